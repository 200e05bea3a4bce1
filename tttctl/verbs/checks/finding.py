"""What a check has to say."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    what: str
    state: Literal["ok", "missing", "note"]
    """missing: the loop cannot run like this."""
    found: str
    do: str = ""
    """What to do about it."""


def ok(what: str, found: str) -> Finding:
    return Finding(what, "ok", found)


def note(what: str, found: str, do: str = "") -> Finding:
    return Finding(what, "note", found, do)


def missing(what: str, found: str, do: str) -> Finding:
    return Finding(what, "missing", found, do)
