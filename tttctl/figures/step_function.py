"""Step functions with the curve whose maximum is the objective, and that maximum marked.

overlap          h on [0, 2], 0 <= h <= 1, integral 1:  M(x) = integral of h(t) (1 - h(t + x))        C5 = max M
autoconvolution  f >= 0 on [-1/4, 1/4], integral 1:     f*f on [-1/2, 1/2], piecewise linear          C1 = max f*f
"""

# matplotlib's types leave **kwargs open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tttctl.figures import style

Numbers = NDArray[np.float64]
DIRECT_UP_TO = 4096
"""Values above which sums of products are made by FFT: their error, 1e-13, is not to be seen."""
ROUNDING = 1e-9
OUTLINED_UP_TO = 2000
"""Values above which the curves of an SVG are stored as pixels: a line each would be megabytes."""


class Shape(NamedTuple):
    edges: Numbers
    heights: Numbers
    shifts: Numbers
    sums: Numbers
    name: str
    curve: str
    across: str


def whole(heading: str, below: str, shape: Shape) -> Figure:
    figure = Figure((8.0, 6.4))
    style.title(figure, heading, below)
    function, sums = figure.subplots(2, 1)
    _draw_function(function, shape)
    _draw_sums(sums, shape)
    return figure


def overlap(heights: list[float]) -> Shape:
    """Raises ValueError for heights that cannot be rescaled to the mean 1/2."""
    h = np.array(heights, dtype=np.float64)
    n = len(h)
    largest = float(np.abs(h).max()) if n else 0.0
    if not (largest > 0 and (h / largest).sum() > 0):
        raise ValueError("the heights of a step function must have a positive sum")
    h = h / largest  # no overflow, however large they are
    h = h * (n / 2 / h.sum())
    if not (h.min() >= 0 and h.max() <= 1 + ROUNDING):
        raise ValueError("the heights, scaled to the mean 1/2, must lie in [0, 1]")
    sums = np.concatenate([[0.0], _correlate(h, 1 - h) * 2 / n, [0.0]])
    return Shape(np.linspace(0, 2, n + 1), h, np.linspace(-2, 2, 2 * n + 1), sums, "h", "overlap M", "shift x")


def autoconvolution(heights: list[float]) -> Shape:
    """Negative heights count as 0.  Raises ValueError where nothing is left."""
    f = np.maximum(np.array(heights, dtype=np.float64), 0.0)
    n = len(f)
    if not n or not f.max() > 0:
        raise ValueError("the heights of a step function must have a positive sum")
    width = 1 / (2 * n)
    f = f / f.max()  # no overflow, however large they are
    f = f / (f.sum() * width)
    sums = np.concatenate([[0.0], _correlate(f, f[::-1].copy()) * width, [0.0]])
    return Shape(np.linspace(-0.25, 0.25, n + 1), f, np.linspace(-0.5, 0.5, 2 * n + 1), sums, "f", "f*f", "x")


SHAPES: dict[str, Callable[[list[float]], Shape]] = {"overlap": overlap, "autoconvolution": autoconvolution}


def _correlate(first: Numbers, second: Numbers) -> Numbers:
    n = len(first)
    if n <= DIRECT_UP_TO:
        return np.correlate(first, second, "full")
    size = 1 << (2 * n - 1).bit_length()
    return np.fft.irfft(np.fft.rfft(first, size) * np.fft.rfft(second[::-1], size), size)[: 2 * n - 1]


def _draw_function(axes: Axes, shape: Shape) -> None:
    n, color = len(shape.heights), style.look(0).color
    style.heading(axes, f"Step function {shape.name}: {n} step{'' if n == 1 else 's'}", legend=False)
    rough = n > OUTLINED_UP_TO
    axes.stairs(shape.heights, shape.edges, fill=True, color="#dbeaf4", rasterized=rough)
    axes.stairs(shape.heights, shape.edges, baseline=None, color=color, linewidth=1.1, rasterized=rough)
    axes.set_xlim(shape.edges[0], shape.edges[-1])
    axes.set_ylim(0, 1.06 * float(shape.heights.max()))
    style.upward(axes, f"height of {shape.name}")


def _draw_sums(axes: Axes, shape: Shape) -> None:
    looks, top = style.look(1), int(shape.sums.argmax())
    most, where = float(shape.sums[top]), float(shape.shifts[top])
    style.heading(axes, f"Its {'overlap' if shape.name == 'h' else 'autoconvolution'}")
    rough = len(shape.heights) > OUTLINED_UP_TO
    axes.plot(shape.shifts, shape.sums, color=style.look(0).color, label=shape.curve, rasterized=rough)
    style.level(axes, most, f"its maximum {most:.10g}", looks.line, looks.color)
    mark: dict[str, Any] = {"marker": "v", "markersize": 9, "linestyle": "none", "markeredgecolor": style.PAPER}
    axes.plot([where], [most], color=looks.color, label=f"at {where:.6g}", **mark)
    axes.set_xlim(shape.shifts[0], shape.shifts[-1])
    axes.set_ylim(min(0.0, float(shape.sums.min())), 1.1 * most)
    axes.set_xlabel(shape.across)
    style.upward(axes, shape.curve)
    style.legend(axes)
