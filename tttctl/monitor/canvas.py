"""Drawing with braille dots, 2 x 4 to a cell: lines, circles, charts of one curve.

A terminal's cell is about twice as high as wide, so dots are square.  Layers lie over one another, the first on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tttctl.monitor.text import Line, Span

BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BLANK = 0x2800
FARTHEST = 1e12
"""Radius in dots up to which a float tells a circle's dots apart well enough."""


class Canvas:
    """`width` x `height` cells; dots are counted from the upper left."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = max(0, width), max(0, height)
        self.columns, self.rows = 2 * self.width, 4 * self.height
        self._cells = [bytearray(self.width) for _ in range(self.height)]

    def dot(self, x: float, y: float) -> None:
        """What lies outside is not drawn."""
        x, y = x + 0.5, y + 0.5
        if 0 <= x < self.columns and 0 <= y < self.rows:  # never so for what is not finite
            column, row = int(x), int(y)
            self._cells[row // 4][column // 2] |= BITS[row % 4][column % 2]

    def line(self, x0: float, y0: float, x1: float, y1: float) -> None:
        longest = max(abs(x1 - x0), abs(y1 - y0), 1)
        if math.isnan(longest):
            return
        count = math.ceil(min(longest, 4 * (self.columns + self.rows + 1)))
        for i in range(count + 1):
            self.dot(x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count)

    def path(self, points: Sequence[tuple[float, float]]) -> None:
        for (x0, y0), (x1, y1) in pairwise(points):
            self.line(x0, y0, x1, y1)

    def dashes(self, y: float, on: int = 3, off: int = 3) -> None:
        for x in range(self.columns):
            if x % (on + off) < on:
                self.dot(x, y)

    def circle(self, x: float, y: float, radius: float) -> int:
        """How many dots it took: only the arc that may be on the canvas is gone along."""
        reach = math.hypot(self.columns, self.rows) / 2 + 1
        right, down = self.columns / 2 - x, self.rows / 2 - y
        away = math.hypot(right, down)
        if not (abs(away - radius) <= reach and radius < FARTHEST):
            return 0
        count = max(8, math.ceil(2 * math.pi * radius))
        half = math.ceil(math.asin(reach / away) / (2 * math.pi) * count) if away > reach else count / 2
        first = round(math.atan2(down, right) / (2 * math.pi) * count - half) if away > reach else 0
        arc = range(first, first + min(count, math.ceil(2 * half) + 1))
        for i in arc:
            angle = 2 * math.pi * i / count
            self.dot(x + radius * math.cos(angle), y + radius * math.sin(angle))
        return len(arc)

    def cell(self, column: int, row: int) -> int:
        return self._cells[row][column]


def unit(*values: float) -> float:
    """The power of two next below the largest: what is divided by it keeps its digits, and can be subtracted."""
    largest = max(map(abs, values))
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if 0 < largest < math.inf else 1.0


def overlaid(layers: Sequence[tuple[Canvas, str]]) -> list[Line]:
    """The layers as lines; a cell takes the dots of all and the role of the first that has any."""
    top = layers[0][0]
    return [_runs(_cell(layers, column, row) for column in range(top.width)) for row in range(top.height)]


def _cell(layers: Sequence[tuple[Canvas, str]], column: int, row: int) -> tuple[str, str]:
    dots, role = 0, ""
    for canvas, name in layers:
        mine = canvas.cell(column, row)
        dots |= mine
        role = role or (name if mine else "")
    return (chr(BLANK + dots), role) if dots else (" ", "text")


def _runs(cells: Iterable[tuple[str, str]]) -> Line:
    """Neighbours of one role as one span."""
    spans: list[Span] = []
    for char, role in cells:
        if spans and spans[-1].role == role:
            spans[-1] = Span(spans[-1].text + char, role)
        else:
            spans.append(Span(char, role))
    return tuple(spans)
