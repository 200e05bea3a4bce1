"""Text for people and JSON for programs, to a terminal that must not be harmed by what a program printed.

Control characters, C1 codes, bidirectional overrides and lone surrogates are shown as escapes, never sent.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
STATES = {"running": "32", "finished": "1", "failed": "31", "cancelled": "33", "paused": "33"}


def clean(text: str) -> str:
    """`text` with everything that could steer a terminal made visible; newlines and tabs stay."""
    return HARMFUL.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text)


def say(text: str = "") -> None:
    print(clean(text))


def show_json(value: Any) -> None:
    """One JSON document on one line; harmful characters as JSON escapes."""
    text = msgspec.json.encode(value).decode()
    print(HARMFUL.sub(lambda found: f"\\u{ord(found.group()):04x}", text), flush=True)


def complain(text: str) -> None:
    print("tttctl: " + clean(text), file=sys.stderr)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their contents; on a terminal the last one is cut to fit."""
    lines = [list(head), *([clean(cell).replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    room = max(8, (width() or 10_000) - sum(widths[:-1]) - 2 * (len(head) - 1))
    for number, line in enumerate(lines):
        last = line[-1] if len(line[-1]) <= room else line[-1][: room - 1] + "…"
        text = "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths[:-1], strict=False)), last]).rstrip()
        print(_colour(text, "1") if number == 0 else _by_state(text, line))


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
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix))


def _by_state(text: str, line: list[str]) -> str:
    code = next((STATES[cell] for cell in line if cell in STATES), None)
    return _colour(text, code) if code else text


def _colour(text: str, code: str) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
