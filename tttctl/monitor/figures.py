"""What a program returned, drawn with braille: circles in their square, a step function with its overlap curve.

`prepared` does what takes time, once; `drawing` fits the result into any size.  Neither trusts the artifact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from tttctl.monitor.canvas import Canvas, overlaid, unit
from tttctl.monitor.text import Line, Span, line, sentences
from tttctl.render import number

MOST_CIRCLES = 20_000
MOST_HEIGHTS = 1_000_000
MOST_DOTS = 200_000
"""After which no further circle is begun: the screen waits for it, and no packing takes as many."""


class NotDrawn(Exception):
    """Why there is no figure."""


class Circles(msgspec.Struct, frozen=True):
    circles: list[tuple[float, float, float]]
    """x, y, radius, in a unit square."""


class Curves(msgspec.Struct, frozen=True):
    """A step function and the curve whose maximum is the objective."""

    heights: list[float]
    curve: list[float]
    name: str


Drawable = Circles | Curves


def prepared(kind: str, artifact: Any) -> Drawable:
    """Raises NotDrawn with the reason."""
    try:
        match kind:
            case "circles":
                return _circles(artifact)
            case "overlap":
                return _overlap(artifact)
            case "autoconvolution":
                return _autoconvolution(artifact)
            case _:
                raise NotDrawn("what this task's programs return is not drawn")
    except msgspec.ValidationError as error:
        raise NotDrawn(f"what the program returned has another form: {error}") from None


def _circles(artifact: Any) -> Circles:
    centers, radii, _ = msgspec.convert(artifact, tuple[list[tuple[float, float]], list[float], float])
    if len(centers) != len(radii) or not 0 < len(radii) <= MOST_CIRCLES:
        raise NotDrawn(f"{len(centers)} centers and {len(radii)} radii are not drawn")
    circles = [(x, y, radius) for (x, y), radius in zip(centers, radii, strict=True)]
    if not all(abs(value) < 1e6 for circle in circles for value in circle):
        raise NotDrawn("a number is not finite, or far outside of the square")
    return Circles(circles)


def _overlap(artifact: Any) -> Curves:
    """correlate(h, 1 - h) 2 / n, with h scaled to the sum n / 2."""
    heights = _heights(msgspec.convert(artifact, tuple[list[float], float, float])[0])
    count, total = len(heights), math.fsum(heights)
    if not total > 0:
        raise NotDrawn("the heights sum to nothing")
    scaled = [height * count / 2 / total for height in heights]
    if not all(abs(height) < 1e100 for height in scaled):
        raise NotDrawn("the heights sum to next to nothing")
    curve = _convolved(scaled, [1 - height for height in reversed(scaled)])
    return Curves(scaled, [value * 2 / count for value in curve], "overlap")


def _autoconvolution(artifact: Any) -> Curves:
    if isinstance(artifact, list | tuple) and artifact and isinstance(artifact[0], list | tuple):
        artifact = artifact[0]  # pyright: ignore[reportUnknownVariableType]
    heights = _heights(msgspec.convert(artifact, list[float]))
    return Curves(heights, _convolved(heights, heights), "f * f")


def _heights(values: list[float]) -> list[float]:
    if not 0 < len(values) <= MOST_HEIGHTS:
        raise NotDrawn(f"{len(values)} heights are not drawn")
    if not all(abs(value) < 1e100 for value in values):
        raise NotDrawn("a height is not finite")
    return values


def _convolved(left: list[float], right: list[float]) -> list[float]:
    """By Fourier transform: as exact as a drawing needs to be, also for a million heights."""
    import numpy as np  # not worth its import time before there is something to draw

    size = len(left) + len(right) - 1
    product = np.fft.rfft(left, size) * np.fft.rfft(right, size)
    return np.fft.irfft(product, size).tolist()


def drawing(figure: Drawable | str, width: int, height: int) -> list[Line]:
    """The figure, or in words why there is none."""
    match figure:
        case str():
            return sentences(figure, width, "dim")
        case Circles():
            return _draw_circles(figure, width, height)
        case Curves():
            return _draw_curves(figure, width, height)


def _draw_circles(figure: Circles, width: int, height: int) -> list[Line]:
    rows = max(2, min(height - 1, width // 2))
    canvas, square = Canvas(2 * rows, rows), Canvas(2 * rows, rows)
    side = canvas.rows - 1
    square.path([(0, 0), (side, 0), (side, side), (0, side), (0, 0)])
    drawn = _outlines(canvas, sorted(figure.circles, key=lambda circle: -circle[2]), side)
    total = math.fsum(radius for _, _, radius in figure.circles)
    fewer = f", the {drawn} largest drawn" if drawn < len(figure.circles) else ""
    told = line((f"{len(figure.circles)} circles, radii sum to {number(total, 8)}{fewer}", "dim"))
    margin = Span(" " * max(0, (width - 2 * rows) // 2))
    return [*((margin, *row) for row in overlaid([(canvas, "curve"), (square, "dim")])), told]


def _outlines(canvas: Canvas, circles: Sequence[tuple[float, float, float]], side: int) -> int:
    """How many of them were drawn before the dots were used up."""
    dots = 0
    for place, (x, y, radius) in enumerate(circles):
        if dots >= MOST_DOTS:
            return place
        dots += canvas.circle(x * side, (1 - y) * side, radius * side)
    return len(circles)


def _draw_curves(figure: Curves, width: int, height: int) -> list[Line]:
    upper = max(2, (height - 2) // 2)
    lower = max(2, height - 2 - upper)
    greatest = max(figure.curve)
    heads = (f"{len(figure.heights)} heights", f"{figure.name}, at most {number(greatest, 8)}")
    return [
        line((heads[0], "dim")),
        *_plot(figure.heights, None, width, upper, "sampling"),
        line((heads[1], "dim")),
        *_plot(figure.curve, greatest, width, lower, "curve"),
    ]


def _plot(values: Sequence[float], mark: float | None, width: int, height: int, role: str) -> list[Line]:
    """Values over their places, each a step, the axis at 0; `mark` as a dashed line."""
    canvas, marks = Canvas(width, height), Canvas(width, height)
    low, high = min(0.0, *values), max(0.0, *values)
    whole = unit(low, high)
    low, high = low / whole, high / whole
    down = (canvas.rows - 1) / ((high - low) or 1.0)
    before: tuple[float, float] | None = None
    for column in range(canvas.columns):
        least, greatest = (value / whole for value in _between(values, column, canvas.columns))
        top, bottom = (high - greatest) * down, (high - least) * down
        if before is not None:  # no gap where a step is steep
            top, bottom = min(top, before[1]), max(bottom, before[0])
        canvas.line(column, top, column, bottom)
        before = (high - greatest) * down, (high - least) * down
    marks.dashes(canvas.rows - 1 + low * down, 1, 1)
    if mark is not None:
        marks.dashes((high - mark / whole) * down)
    return overlaid([(canvas, role), (marks, "target")])


def _between(values: Sequence[float], column: int, columns: int) -> tuple[float, float]:
    """Least and greatest of the values that fall on a column: no peak is lost."""
    first = column * len(values) // columns
    last = max(first + 1, (column + 1) * len(values) // columns)
    part = values[first:last]
    return min(part), max(part)
