"""A program as lines: highlighted, numbered, wrapped; every character shown as what it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from pygments.lexers.python import PythonLexer  # pyright: ignore[reportMissingTypeStubs]  # it has none
from pygments.token import Comment, Keyword, Literal, Name, Operator, Token

from tttctl.monitor.text import Line, Span, chopped, line, visible

ROLES = (
    (Comment, "dim"),
    (Keyword, "judging"),
    (Literal.String, "good"),
    (Literal.Number, "best"),
    (Name.Function, "accent"),
    (Name.Class, "accent"),
    (Name.Decorator, "accent"),
    (Name.Builtin, "sampling"),
    (Operator.Word, "judging"),
    (Token.Error, "text"),
)

LINES, CHARACTERS = 2_000, 200_000
"""Of a program or of what it printed, that are shown: more would keep the screen waiting."""


def highlighted(program: str) -> list[Line]:
    """One line for each of the program's."""
    lines: list[list[Span]] = [[]]
    for kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(visible(program)):
        role = _role(kind)
        first, *rest = text.split("\n")
        lines[-1] += [Span(first, role)] if first else []
        lines += [[Span(part, role)] if part else [] for part in rest]
    return [tuple(spans) for spans in lines]


@cache
def _role(kind: Any) -> str:
    return next((role for token, role in ROLES if kind in token), "text")


def beginning(text: str) -> str:
    """As much of `text` as is shown."""
    return "\n".join(text[:CHARACTERS].split("\n", LINES)[:LINES])


def left_out(text: str, command: str) -> list[Line]:
    """How much of `text` is not shown, and which command has all of it."""
    left = len(text) - len(beginning(text))
    return [(), line((f"{left:,} more characters; {command} has it all", "warn"))] if left else []


def numbered(lines: Sequence[Line], width: int) -> list[Line]:
    """Wrapped to `width`; the lines' numbers on the left."""
    digits = len(str(len(lines)))
    shown: list[Line] = []
    for count, spans in enumerate(lines, 1):
        for part, row in enumerate(broken(spans, max(8, width - digits - 1))):
            shown.append((Span(f"{count if part == 0 else '':>{digits}} ", "dim"), *row))
    return shown


def broken(spans: Line, width: int) -> list[Line]:
    """Broken wherever `width` cells are full."""
    sizes = [len(row) for row in chopped("".join(span.text for span in spans), width)]
    rows: list[list[Span]] = [[] for _ in sizes]
    row, room = 0, sizes[0]
    for text, role in spans:
        start = 0
        while start < len(text):
            if not room:
                row, room = row + 1, sizes[row + 1]
            part = text[start : start + room]
            rows[row].append(Span(part, role))
            start, room = start + len(part), room - len(part)
    return [tuple(each) for each in rows]
