"""Lines of text with roles, as wide as asked: what every view makes and a panel shows.

A role is a name ("good", "dim"); a palette gives it colours.  Text from elsewhere goes through `visible`: whatever
could steer a terminal, or is not where it seems to be, is shown as its escape.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size

from tttctl.render import clean

TAB = "    "
UNSEEN = {"Cf", "Cn", "Co", "Zl", "Zp"}
"""Categories of characters that no font shows: joiners, selectors of direction, characters that do not exist."""
VARIATION = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
PLAIN = re.compile(r"[ -~\n]*")


class Span(NamedTuple):
    text: str
    role: str = "text"


Line = tuple[Span, ...]


def visible(text: str) -> str:
    """`text` of which every character takes the room that it seems to take; newlines stay."""
    if PLAIN.fullmatch(text):
        return text
    text = VARIATION.sub("", clean(text.expandtabs(len(TAB))))
    return "".join(_escaped(char) if unicodedata.category(char) in UNSEEN else char for char in text)


def one_line(text: str) -> str:
    return " ".join(visible(text).split())


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()


def line(*parts: str | tuple[str, str]) -> Line:
    return tuple(Span(part) if isinstance(part, str) else Span(*part) for part in parts)


def width_of(spans: Iterable[Span]) -> int:
    return sum(cell_len(span.text) for span in spans)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` cells, with an ellipsis where something is missing."""
    if cell_len(text) <= width:
        return text
    return "" if width < 1 else set_cell_size(text, width - 1).rstrip() + "…"


def pad(text: str, width: int) -> str:
    """`text` in exactly `width` cells."""
    return set_cell_size(cut(text, width), max(0, width))


def fit(spans: Sequence[Span], width: int) -> Line:
    """Exactly `width` cells of them."""
    done: list[Span] = []
    for span in spans:
        size = cell_len(span.text)
        if size > width:
            done.append(Span(pad(span.text, width), span.role))
            return tuple(done)
        done.append(span)
        width -= size
    return (*done, Span(" " * width)) if width else tuple(done)


def spread(left: Sequence[Span], right: Sequence[Span], width: int) -> Line:
    """`left` and `right` at their sides; where both have no room, `left` is cut."""
    room = width - width_of(right)
    return (*fit(left, room - 1), Span(" "), *right) if room > 1 else fit(left, width)


def joined(parts: Iterable[Line], between: str = "  ") -> Line:
    spans: list[Span] = []
    for part in parts:
        spans += [Span(between), *part] if spans else part
    return tuple(spans)


def sentences(text: str, width: int, role: str = "text") -> list[Line]:
    """Prose, broken between words where it can be."""
    rows = textwrap.wrap(one_line(text), max(1, width))
    return [part for row in rows for part in wrapped(row, width, role)]


def wrapped(text: str, width: int, role: str = "text") -> list[Line]:
    """`text` broken after every `width` cells: what is cut at a word may hide where it was."""
    return [line((row, role)) for paragraph in visible(text).split("\n") for row in chopped(paragraph, width)]


def chopped(text: str, width: int) -> list[str]:
    """One row of `text` as rows of at most `width` cells, in time that grows as its length; always at least one."""
    return (width > 1 and chop_cells(text, width)) or [text]
