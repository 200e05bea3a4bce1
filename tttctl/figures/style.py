"""One look for every figure: colours that the colour-blind tell apart, and line, marker and hatch that grey keeps.

    render(draw, "svg") = the bytes of draw()'s figure under this look, whatever the user's own matplotlibrc says

No dates and a fixed salt: the same figure is the same bytes.  Text is never mathematics, and what the font lacks or
what could steer a reader is shown as an escape.
"""

# matplotlib's types leave **kwargs open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Literal, NamedTuple

from matplotlib import font_manager, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tttctl.render import clean

Format = Literal["png", "svg"]
FONT = "DejaVu Sans"
"""Comes with matplotlib, so that a figure is the same on every machine."""
INK, SOFT, LINE, PAPER = "#1c1c1c", "#5c5c5c", "#dddddd", "#ffffff"
MARKS = 14
"""Markers on one curve, however many points it has."""
LINE_CHARACTERS = 160
ROW_CHARACTERS = 40
"""Of a legend, above which its lines are drawn shorter."""

LOOK: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": SOFT,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.1,
    "figure.dpi": 100,
    "font.family": FONT,
    "font.size": 9,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.7,
    "legend.borderaxespad": 0.0,
    "legend.columnspacing": 1.4,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.dpi": 150,
    "svg.fonttype": "path",
    "svg.hashsalt": "tttdd",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": SOFT,
    "xtick.labelsize": 8.5,
    "ytick.color": SOFT,
    "ytick.labelsize": 8.5,
}


class Look(NamedTuple):
    """How one series differs from the others, also without colour."""

    color: str
    line: Any
    marker: str
    hatch: str
    width: float = 1.5
    size: float = 4.8
    """Of its markers."""


LOOKS = [
    Look("#0072b2", "-", "o", ""),
    Look("#d55e00", (0, (5, 1.6)), "s", "////"),
    Look("#009e73", (0, (1.2, 1.2)), "^", "...."),
    Look("#b2528a", (0, (6, 1.5, 1.2, 1.5)), "D", "xxxx"),
    Look("#e69f00", (0, (3, 1.2)), "v", "\\\\\\\\"),
    Look("#56b4e9", (0, (8, 1.5, 1.2, 1.5, 1.2, 1.5)), "P", "----"),
]
"""After Okabe and Ito."""
NESTED = ((0.25, 2.0), (0.7, 3.0))
"""By how many times the last series' line and markers the first one's grow with each series, and to how many times."""


def styled() -> AbstractContextManager[None]:
    """This look, and nothing of the user's own, for what is made and saved inside."""
    return style.context(["default", LOOK])


def render(draw: Callable[[], Figure], form: Format) -> bytes:
    buffer = io.BytesIO()
    nameless: dict[Format, dict[str, Any]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    with styled():
        draw().savefig(buffer, format=form, metadata=nameless[form])
    return buffer.getvalue()


def plain(text: str, limit: int = LINE_CHARACTERS) -> str:
    """One line of at most `limit` characters that the font can draw and that mean themselves."""
    known = _glyphs()
    line = " ".join(clean(text).split())
    shown = "".join(c if ord(c) in known else c.encode("unicode_escape").decode() for c in line)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(font_manager.get_font(font_manager.findfont(FONT)).get_charmap())


def look(index: int, count: int = 1) -> Look:
    """Of series `index` of `count` in one panel, drawn in that order: a later one is thinner, and hides none below."""
    kind = LOOKS[index % len(LOOKS)]
    before = (count - 1 - index) / max(1, count - 1)
    width, size = (min(1 + more * (count - 1), most) ** before for more, most in NESTED)
    return kind._replace(width=kind.width * width, size=kind.size * size)


def fitted(text: str, room: float, size: float, weight: str = "normal") -> str:
    """`plain`, cut where it would be wider than `room`; both in points."""
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties(family=FONT, weight=weight)))
    font.set_size(10 * size, 72)  # of large letters no width is rounded to pixels
    line = plain(text)
    room *= 0.95  # small letters on pixels may be wider
    if _wide(font, line) <= room:
        return line
    return line[: bisect_right(range(len(line)), room, key=lambda count: _wide(font, line[:count] + "…")) - 1] + "…"


def _wide(font: Any, line: str) -> float:
    font.set_text(line)
    return font.get_width_height()[0] / 640


def title(figure: Figure, text: str, below: str) -> None:
    """A figure's heading, at the left, and a line in a softer colour."""
    width, height = figure.get_size_inches()
    room, left = 72 * (width - 0.3), 0.12 / width
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - 0.62 / height))
    figure.text(left, 1 - 0.2 / height, fitted(text, room, 13, "bold"), va="center", fontsize=13, fontweight="bold")
    figure.text(left, 1 - 0.44 / height, fitted(below, room, 9), va="center", color=SOFT)


def heading(axes: Axes, text: str, *, legend: bool = True) -> None:
    """A panel's title, with room for a legend between it and the panel."""
    axes.set_title(fitted(text, _room(axes)[0], 10.5, "bold"), pad=22 if legend else 7)


def upward(axes: Axes, text: str) -> None:
    """What the vertical axis counts."""
    axes.set_ylabel(fitted(text, _room(axes)[1], 9))


def _room(axes: Axes) -> tuple[float, float]:
    """About how wide and high the panel will be, in points, before it is laid out."""
    place = axes.get_subplotspec()
    rows, columns = place.get_gridspec().get_geometry() if place else (1, 1)
    width, height = axes.figure.figure.get_size_inches()
    return 72 * width / columns - 60, 72 * (height - 0.7) / rows - 70


def legend(axes: Axes) -> None:
    """Above the panel in one row, where it hides no curve."""
    handles, labels = axes.get_legend_handles_labels()
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.03), "ncols": max(1, len(labels))}
    if sum(map(len, labels)) > ROW_CHARACTERS or len(labels) > 3:
        place |= {"handlelength": 1.3, "columnspacing": 0.6, "handletextpad": 0.4}
    shown = axes.legend(handles, labels, **place)
    shown.set_in_layout(False)  # the panels' widths do not follow from their words


def curve(axes: Axes, xs: Sequence[float], ys: Sequence[float], label: str, looks: Look, **more: Any) -> None:
    axes.plot(
        xs,
        ys,
        color=looks.color,
        linestyle=looks.line,
        linewidth=looks.width,
        marker=looks.marker,
        markersize=looks.size,
        markeredgecolor=PAPER,
        markeredgewidth=0.4,
        markevery=max(1, -(-len(xs) // MARKS)),
        label=plain(label, 80),
        **more,
    )


def level(axes: Axes, value: float, label: str, line: Any = (0, (1, 1.6)), color: str = INK) -> None:
    """A line across the panel, for what does not change."""
    axes.axhline(value, color=color, linestyle=line, linewidth=1.2, label=plain(label, 40), zorder=1.5)


def levels(axes: Axes, steps: Sequence[int], values: Sequence[float], label: str, **more: Any) -> None:
    """A line as wide as the steps, also where there is one step, for what is set anew at each."""
    look: dict[str, Any] = {"color": INK, "linestyle": (0, (1, 1.6)), "linewidth": 1.2} | more
    axes.stairs(values, step_edges(steps), baseline=None, label=plain(label, 40), **look)


def step_edges(steps: Sequence[int]) -> list[float]:
    return [steps[0] - 0.5, *(step + 0.5 for step in steps)]


def steps_axis(axes: Axes, last: int, name: str = "step") -> None:
    """Whole steps, counted from 1 as everywhere that a person reads them."""
    axes.set_xlim(0.5, max(last, 1) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    axes.set_xlabel(name)


def log_scale(axes: Axes) -> None:
    """Of what is drawn already.  matplotlib writes powers as mathematics, which is not interpreted here."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}" if high < 10 * low else "")


def log_scale_to_0(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic down to the decade of the least of `values` that is above 0, and linear from there to 0."""
    least = min(value for value in values if value > 0)
    axes.set_yscale("symlog", linthresh=10 ** math.floor(math.log10(least)))
    axes.yaxis.set_major_formatter("{x:g}")


def absent(axes: Axes, why: str) -> None:
    """In place of curves that the run does not have."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_facecolor("#f5f5f5")
    axes.text(0.5, 0.5, plain(why), transform=axes.transAxes, ha="center", va="center", color=SOFT, wrap=True)
