"""Charts in the terminal: the best over the steps with its target line, sparklines, bars.

What is drawn is what was told: a value that is missing or not finite leaves a gap, none is made up.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from tttctl.monitor.canvas import Canvas, overlaid, unit
from tttctl.monitor.text import Line, Span, fit, line, width_of
from tttctl.render import number

BLOCKS = "▁▂▃▄▅▆▇█"
LARGEST = sys.float_info.max


@lru_cache(maxsize=64)
def staircase(
    points: tuple[tuple[float, float], ...], last: float, target: float | None, width: int, height: int
) -> list[Line]:
    """A value that holds until the next, from x = 0 to `last`; `target` as a dashed line."""
    known = [(x, y) for x, y in points if math.isfinite(y)]
    target = target if target is not None and math.isfinite(target) else None
    if not known or width < 12 or height < 2:
        return [line(("no step yet", "dim"))]
    values = [*(y for _, y in known), *(() if target is None else (target,))]
    whole = unit(*values)
    low, high = _bounds([value / whole for value in values])
    goes = None if target is None else target / whole
    rows = height - 1 if height >= 6 else height
    labels = _labels(low, high, goes, rows, whole)
    left = max(len(text) for text, _ in labels.values()) + 1
    plot = Canvas(width - left, rows)
    goal = Canvas(width - left, rows)
    across, down = (plot.columns - 1) / max(last, 1), (plot.rows - 1) / (high - low)
    steps = [(x * across, (high - y / whole) * down) for x, y in known]
    plot.path([corner for pair in pairwise(steps) for corner in _corner(*pair)] or steps * 2)
    if goes is not None:
        goal.dashes((high - goes) * down)
    drawn = [
        (_label(labels.get(row, ("", "dim")), left), *cells)
        for row, cells in enumerate(overlaid([(plot, "curve"), (goal, "target")]))
    ]
    return [*drawn, _axis(left, plot.width, last)] if rows < height else drawn


def _corner(first: tuple[float, float], second: tuple[float, float]) -> list[tuple[float, float]]:
    return [first, (second[0], first[1]), second]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 1e-6 or 1.0
    return low - room, high + room


def _labels(low: float, high: float, target: float | None, rows: int, whole: float) -> dict[int, tuple[str, str]]:
    """Row -> its label; the target's own goes before the ends'.  The values are parts of `whole`."""
    digits = 6 if high - low < 0.01 * max(abs(low), abs(high)) else 4
    ends = [number(max(-LARGEST, min(LARGEST, end * whole)), digits) for end in (high, low)]
    labels = {0: (ends[0], "dim"), rows - 1: (ends[1], "dim")}
    if target is not None:
        row = min(rows - 1, math.floor((high - target) / (high - low) * rows))
        labels[row] = (number(target * whole, 6), "target")
    return labels


def _label(label: tuple[str, str], width: int) -> Span:
    return Span(label[0].rjust(width - 1) + " ", label[1])


def _axis(left: int, width: int, last: float) -> Line:
    ends = f"0{f'step {last:g}'.rjust(width - 1)}"
    return line((" " * left + ends, "dim"))


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest `width` values, each a block as high as it lies between the least and the greatest of them."""
    shown = values[max(0, len(values) - width) :]
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return ""
    whole = unit(*finite)
    low, high = min(finite) / whole, max(finite) / whole
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value / whole - low) * scale)] if math.isfinite(value) else " " for value in shown)


def bar(share: float, width: int, role: str) -> Line:
    """A thick line on a thin one: to be told apart without colour, too."""
    full = round(max(0.0, min(1.0, share)) * width) if math.isfinite(share) else 0
    return line(("━" * full, role), ("─" * (width - full), "rule"))


def framed(title: Line, note: Line, content: Sequence[Line], width: int, height: int, boxed: bool) -> list[Line]:
    """`content` under its title: in a box, or below a rule where rows are dear."""
    if height < 1 or width < 4:
        return []
    inner, rows = (width - 4, height - 2) if boxed else (width, height - 1)
    filled = [fit(content[row] if row < len(content) else (), inner) for row in range(rows)]
    if not boxed:
        return [_rule("─", "─", title, note, width), *filled]
    edge = Span("│", "rule")
    body = [(edge, Span(" "), *row, Span(" "), edge) for row in filled]
    return [_rule("╭", "╮", title, note, width), *body, line(("╰" + "─" * (width - 2) + "╯", "rule"))]


def _rule(left: str, right: str, title: Line, note: Line, width: int) -> Line:
    """──── title ──────── note ──; what has no room is left out, the note first."""
    head = (Span(" "), *title, Span(" "))
    tail = (Span(" "), *note, Span(" ")) if note else ()
    room = width - 4 - width_of(head)
    if width_of(tail) > room:
        tail = ()
    rest = room - width_of(tail)
    if rest < 0:
        head, rest = fit(head, width - 4), 0
    return (Span(left + "─", "rule"), *head, Span("─" * rest, "rule"), *tail, Span("─" + right, "rule"))
