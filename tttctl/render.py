"""Text for people and JSON for programs, to a terminal that must not be harmed by what a program printed.

Control characters, C1 codes, bidirectional overrides, characters that no font shows and lone surrogates are shown as
escapes, never sent.  A table is as wide as its contents; on a terminal its widest columns are broken into lines, and
nothing is cut off.
"""

from __future__ import annotations

import os
import re
import sys
import time
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
BEYOND_ASCII = re.compile(f"{HARMFUL.pattern}|[^\x00-\x7f]")
CELLS = {
    **{"running": "32", "finished": "1", "failed": "31", "cancelled": "33", "paused": "33", "waiting": "33"},
    **{"ok": "32", "note": "33", "missing": "31"},
}
"""Colours of table cells that say one of these words."""
NARROWEST = 8
"""Columns that a part of a table keeps on any terminal."""
GAP = "  "


def clean(text: str) -> str:
    """`text` with everything that could steer a terminal made visible; newlines and tabs stay."""
    return HARMFUL.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text)


def say(text: str = "") -> None:
    print(clean(text))


def show_json(value: Any) -> None:
    """One JSON document on one line; harmful characters as JSON escapes."""
    told = HARMFUL if (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" else BEYOND_ASCII
    print(told.sub(_json_escape, _json(value)), flush=True)


def complain(text: str) -> None:
    with suppress(OSError):  # a stderr that takes nothing leaves the exit status
        print("tttctl: " + clean(text), file=sys.stderr)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    cells = [list(head), *([_flat(cell) for cell in row] for row in rows)]
    widths = [max(map(columns, column)) for column in zip(*cells, strict=True)]
    if there := width():
        widths = _fitted(widths, there - len(GAP) * (len(widths) - 1))
    for number, row in enumerate(cells):
        parts = [_broken(cell, width) for cell, width in zip(row, widths, strict=True)]
        codes = ["1" if number == 0 else CELLS.get(cell, "") for cell in row]
        for line in range(max(map(len, parts))):
            print(_line([part[line] if line < len(part) else "" for part in parts], widths, codes))


def columns(text: str) -> int:
    """How many a terminal needs for it: two for a wide character, none for one that combines."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def width() -> int | None:
    """Columns of the terminal, None when stdout is none.  (shutil's loads three compression libraries first.)"""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return None


def number(value: float | None, digits: int = 6) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def moment(unix: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix))
    except (OverflowError, ValueError, OSError):  # of no year that there is
        return "-"


def coloured(text: str, code: str) -> str:
    """`text` in a colour, on a terminal that may have any (https://no-color.org)."""
    if not (code and text and sys.stdout.isatty()) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a file's name that is no UTF-8: only the standard library writes its bytes as escapes
        import json

        return json.dumps(msgspec.to_builtins(value, str_keys=True), separators=(",", ":"))


def _json_escape(found: re.Match[str]) -> str:
    units = found.group().encode("utf-16-be", "surrogatepass").hex()
    return re.sub("....", r"\\u\g<0>", units)


def _flat(cell: str) -> str:
    return clean(cell).replace("\n", " ").replace("\t", " ")


def _fitted(widths: list[int], room: int) -> list[int]:
    """The widest columns are made narrower until all fit."""
    fitted = list(widths)
    while sum(fitted) > room and max(fitted) > NARROWEST:
        widest = max(fitted)
        next_one = max((each for each in fitted if each < widest), default=0)
        many = fitted.count(widest)
        less = max(next_one, NARROWEST, widest - -(-(sum(fitted) - room) // many))
        fitted = [less if each == widest else each for each in fitted]
    return fitted


def _broken(text: str, room: int) -> list[str]:
    """Lines of at most `room` columns, broken at spaces where there are any."""
    lines: list[str] = []
    while columns(text) > room:
        end = _end(text, room)
        space = text.rfind(" ", 0, end + 1)
        lines.append(text[: space if space > 0 else end].rstrip())
        text = text[space if space > 0 else end :].lstrip()
    return [*lines, text]


def _end(text: str, room: int) -> int:
    """How many characters, at least one, are at most `room` columns wide."""
    used = 0
    for place, character in enumerate(text):
        used += _columns(character)
        if used > room:
            return max(1, place)
    return len(text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _line(cells: Sequence[str], widths: Sequence[int], codes: Sequence[str]) -> str:
    last = max((place for place, cell in enumerate(cells) if cell), default=0)
    padded = [
        coloured(cell, code) + " " * (width - columns(cell)) * (place < last)
        for place, (cell, width, code) in enumerate(zip(cells, widths, codes, strict=True))
    ]
    return GAP.join(padded[: last + 1])
