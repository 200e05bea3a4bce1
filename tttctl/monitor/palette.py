"""Roles -> colours, for a dark and for a light terminal.

Every text has a contrast of at least 4.5 to 1 on its ground, and whatever a colour tells, a glyph or a word tells too.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Look(NamedTuple):
    colour: str
    """Name of a colour of the palette."""
    ground: str = ""
    """The same; empty for the screen's own."""
    bold: bool = False


DARK = {
    "ground": "#11151c",
    "raised": "#1c2330",
    "chosen": "#2a3a5c",
    "rule": "#3a4558",
    "text": "#d5dbe6",
    "dim": "#8792a6",
    "accent": "#7fb0ff",
    "good": "#8fd36b",
    "warn": "#f0b35e",
    "bad": "#ff7a85",
    "best": "#ffd75f",
    "sample": "#6fd0ee",
    "judge": "#c6a2ff",
    "on_warn": "#1a1205",
    "on_bad": "#22060a",
}
LIGHT = {
    "ground": "#fbfbfa",
    "raised": "#eef0f4",
    "chosen": "#d6e3ff",
    "rule": "#b9c0cc",
    "text": "#1d2330",
    "dim": "#5c6577",
    "accent": "#1f55c4",
    "good": "#2f7413",
    "warn": "#8f5a00",
    "bad": "#bb1f33",
    "best": "#8a5200",
    "sample": "#00697f",
    "judge": "#6d36b8",
    "on_warn": "#ffffff",
    "on_bad": "#ffffff",
}
PALETTES = {"dark": DARK, "light": LIGHT}

LOOKS = {
    "text": Look("text"),
    "strong": Look("text", bold=True),
    "dim": Look("dim"),
    "rule": Look("rule"),
    "title": Look("accent", bold=True),
    "accent": Look("accent"),
    "good": Look("good"),
    "warn": Look("warn", bold=True),
    "bad": Look("bad", bold=True),
    "best": Look("best", bold=True),
    "curve": Look("good", bold=True),
    "target": Look("warn"),
    "waiting": Look("dim"),
    "sampling": Look("sample"),
    "judging": Look("judge"),
    "rejected": Look("bad"),
    "valid": Look("good"),
    "header": Look("text", "raised"),
    "header_strong": Look("accent", "raised", bold=True),
    "chosen": Look("text", "chosen", bold=True),
    "banner_warn": Look("on_warn", "warn", bold=True),
    "banner_bad": Look("on_bad", "bad", bold=True),
}


def name_for(colours: str | None = None) -> str:
    """The palette for this terminal: $COLORFGBG, where the terminal sets it, ends in the number of its ground."""
    told = os.environ.get("COLORFGBG", "") if colours is None else colours
    return "light" if told.rpartition(";")[2] in ("7", "15") else "dark"
