"""Hostile bytes made fit to be stored, shown and put into a prompt: what a program printed is text, never commands."""

from __future__ import annotations

import re

TAIL_CHARACTERS = 2000

_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all of C0 and C1 but tab and newline
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # zero width, bidirectional, separators
    "\U000e0000-\U000e007f]"  # tags
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def printable(raw: bytes | str, limit: int = TAIL_CHARACTERS) -> str:
    """The last `limit` characters without escape sequences, control and bidirectional characters."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    text = _SEQUENCES.sub("", text.replace("\r\n", "\n"))
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))[-limit:]
