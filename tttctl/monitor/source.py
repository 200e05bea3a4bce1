"""A program as lines: highlighted, numbered, wrapped; every character shown as what it is."""

from __future__ import annotations

from collections.abc import Sequence

from pygments.lexers.python import PythonLexer  # pyright: ignore[reportMissingTypeStubs]  # it has none
from pygments.token import Comment, Keyword, Literal, Name, Operator, Token
from rich.cells import cell_len, set_cell_size

from tttctl.monitor.text import Line, Span, visible

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


def highlighted(program: str) -> list[Line]:
    """One line for each of the program's."""
    lines: list[list[Span]] = [[]]
    for kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(visible(program)):
        role = next((role for token, role in ROLES if kind in token), "text")
        first, *rest = text.split("\n")
        lines[-1] += [Span(first, role)] if first else []
        lines += [[Span(part, role)] if part else [] for part in rest]
    return [tuple(spans) for spans in lines]


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
    rows: list[list[Span]] = [[]]
    room = width
    for text, role in spans:
        while cell_len(text) > room:
            head = _head(text, room)
            rows[-1].append(Span(head, role))
            rows.append([])
            text, room = text[len(head) :], width
        rows[-1].append(Span(text, role))
        room -= cell_len(text)
    return [tuple(row) for row in rows]


def _head(text: str, width: int) -> str:
    head = set_cell_size(text, width)
    return head if text.startswith(head) else head[:-1]  # a wide character at the edge
