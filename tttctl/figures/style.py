"""One look for every figure: colours that the colour-blind tell apart, and line, marker and hatch that grey keeps.

    render(draw, "svg") = the bytes of draw()'s figure under this look, whatever the user's own matplotlibrc says

No dates and a fixed salt: the same figure is the same bytes.  Text is never mathematics, and what the font lacks or
what could steer a reader is shown as an escape.
"""

# matplotlib's types leave **kwargs open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
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
TITLE_CHARACTERS = 96

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


LOOKS = [
    Look("#0072b2", "-", "o", ""),
    Look("#d55e00", (0, (5, 1.6)), "s", "////"),
    Look("#009e73", (0, (1.2, 1.2)), "^", "...."),
    Look("#b2528a", (0, (6, 1.5, 1.2, 1.5)), "D", "xxxx"),
    Look("#e69f00", (0, (3, 1.2)), "v", "\\\\\\\\"),
    Look("#56b4e9", (0, (8, 1.5, 1.2, 1.5, 1.2, 1.5)), "P", "----"),
]
"""After Okabe and Ito."""


def render(draw: Callable[[], Figure], form: Format) -> bytes:
    buffer = io.BytesIO()
    nameless: dict[Format, dict[str, Any]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    with style.context(["default", LOOK]):
        draw().savefig(buffer, format=form, metadata=nameless[form])
    return buffer.getvalue()


def plain(text: str, limit: int = TITLE_CHARACTERS) -> str:
    """One line of at most `limit` characters that the font can draw and that mean themselves."""
    known = _glyphs()
    line = " ".join(clean(text).split())
    shown = "".join(c if ord(c) in known else c.encode("unicode_escape").decode() for c in line)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(font_manager.get_font(font_manager.findfont(FONT)).get_charmap())


def look(index: int) -> Look:
    return LOOKS[index % len(LOOKS)]


def title(figure: Figure, text: str, below: str = "") -> None:
    """A figure's heading, at the left, and a line in a softer colour."""
    size = figure.get_size_inches()
    figure.suptitle(plain(text), x=0.12 / size[0], ha="left", fontsize=13, fontweight="bold")
    if below:
        # An empty second line of the heading keeps its room, in which the softer one is put.
        figure.suptitle(plain(text) + "\n", x=0.12 / size[0], ha="left", fontsize=13, fontweight="bold")
        figure.text(0.12 / size[0], 1 - 0.42 / size[1], plain(below, 160), ha="left", va="center", color=SOFT)


def heading(axes: Axes, text: str, *, legend: bool = True) -> None:
    """A panel's title, with room for a legend between it and the panel."""
    axes.set_title(plain(text, 64), pad=22 if legend else 7)


def legend(axes: Axes) -> None:
    """Above the panel in one row, where it hides no curve."""
    handles, labels = axes.get_legend_handles_labels()
    narrow = {"handlelength": 1.3, "columnspacing": 0.9, "handletextpad": 0.5} if len(labels) > 3 else {}
    shown = axes.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0, 1.03), ncols=max(1, len(labels)), **narrow
    )
    shown.set_in_layout(False)  # the panels' widths do not follow from their words


def curve(axes: Axes, xs: Sequence[float], ys: Sequence[float], label: str, looks: Look, **more: Any) -> None:
    axes.plot(
        xs,
        ys,
        color=looks.color,
        linestyle=looks.line,
        marker=looks.marker,
        markevery=max(1, -(-len(xs) // MARKS)),
        label=plain(label, 80),
        **more,
    )


def level(axes: Axes, value: float, label: str, line: Any = (0, (1, 1.6)), color: str = INK) -> None:
    """A line across the panel, for what does not change."""
    axes.axhline(value, color=color, linestyle=line, linewidth=1.2, label=plain(label, 40), zorder=1.5)


def steps_axis(axes: Axes, last: int, name: str = "step") -> None:
    """Whole steps, counted from 1 as everywhere that a person reads them."""
    axes.set_xlim(0.5, max(last, 1) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    axes.set_xlabel(name)


def plain_log_ticks(axes: Axes) -> None:
    """matplotlib writes powers as mathematics, which is not interpreted here."""
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def absent(axes: Axes, why: str) -> None:
    """In place of curves that the run does not have."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_facecolor("#f5f5f5")
    axes.text(0.5, 0.5, plain(why), transform=axes.transAxes, ha="center", va="center", color=SOFT, wrap=True)
