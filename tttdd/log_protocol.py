"""What crosses the daemon's socket of a run's logs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class LogQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str = "daemon"
    offset: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0
    """Byte to begin at.  A negative one counts from the end, and then the first line that is whole begins."""
    file: str = ""
    """What LogPart said before; what has been set aside since is then read to its end first."""


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    sources: list[str]
    """All there are: `daemon` and the workers' files; one that ends in `.1` was set aside."""
    file: str
    start: int
    offset: int
    """Bytes of the log at which `text` begins, and the next part."""
    text: str
