"""What a judge says of one program: a frozen record that knows no task and no daemon."""

from __future__ import annotations

from typing import Literal

import msgspec

Reason = Literal[
    "",
    "no code",
    "syntax",
    "import",
    "exception",
    "timeout",
    "memory",
    "output",
    "crash",
    "no result",
    "wrong type",
    "wrong shape",
    "constraint",
]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A judge's answer.  A rejected program has `valid` False, reward 0 and a reason."""

    valid: bool
    reward: float = 0.0
    """Higher is better; finite."""
    objective: float | None = None
    """The quoted number (for instance C5), recomputed by the judge."""
    reason: Reason = ""
    """Class of the rejection; empty when valid."""
    detail: str = ""
    """The rejection in words, with the numbers that broke the rule."""
    reported: float | None = None
    """What the program claimed; recorded, never rewarded."""
    output: str = ""
    """Tail of what the program printed, control characters removed."""
    seconds: float = 0.0
    """Wall-clock seconds of the program, without any time in the queue."""
    peak_bytes: int = 0
    artifact_sha256: str = ""
    artifact: str = ""
    """What a valid program returned, as JSON; empty where it is larger than is kept."""
    certificate: dict[str, str | float | bool] = {}
    """Facts beyond the reward, for instance feasibility at zero slack in exact rationals."""
