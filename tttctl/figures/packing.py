"""Circles in the unit square, to scale, with the contacts that leave the least room.

    slack = distance of the centers - sum of the radii, or distance to a wall - radius

Of the closest contacts it is computed to 50 digits from the doubles: near 1e-16 a float's own difference is noise.
"""

# matplotlib's types leave **kwargs open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from itertools import combinations
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from tttctl.figures import style

Packing = tuple[list[tuple[float, float]], list[float], float]
"""Centers, radii, the sum that the program says they have."""
Row = tuple[float, float, float]
NUMBERED = 9
TOUCHING = 1e-9
"""Slack below which two are drawn as touching."""
MOST = 1000
OUTSIDE = 1e-6
CANDIDATES = 2000
"""Of the closest contacts that are computed to all digits."""
DIGITS = Context(prec=50)
WALLS = ("left", "right", "lower", "upper")


class Contact(NamedTuple):
    slack: float
    circle: int
    other: int
    """Another circle, or -1 - the index of a wall."""

    def named(self) -> str:
        return f"{self.circle} and {self.other}" if self.other >= 0 else f"{self.circle}, {WALLS[-1 - self.other]} wall"


def whole(heading: str, below: str, packing: Packing) -> Figure:
    figure = Figure((9.2, 6.4))
    style.title(figure, heading, below)
    drawn, told = figure.subplots(1, 2, width_ratios=[2.3, 1])
    circles = [(x, y, r) for (x, y), r in zip(packing[0], packing[1], strict=True)]
    found = contacts(circles)
    _draw(drawn, circles, found)
    _tell(told, circles, found)
    return figure


def checked(packing: Packing) -> Packing:
    """Raises ValueError for what is no packing of the unit square, or has too many circles to be seen."""
    centers, radii, _ = packing
    if len(centers) != len(radii) or not 0 < len(radii) <= MOST:
        raise ValueError(f"{len(centers)} centers and {len(radii)} radii; expected as many of both, 1 to {MOST}")
    circles = [(x, y, r) for (x, y), r in zip(centers, radii, strict=True)]
    if any(r < 0 or min(_rooms((x, y, r))) - r < -OUTSIDE for x, y, r in circles):
        raise ValueError("the circles do not lie in the unit square")
    return packing


def contacts(circles: Sequence[Row]) -> list[Contact]:
    """The NUMBERED closest pairs and walls and all others that touch, the closest first."""
    walls = [(room - c[2], i, -1 - wall) for i, c in enumerate(circles) for wall, room in enumerate(_rooms(c))]
    pairs = [(_apart(a, b), i, j) for (i, a), (j, b) in combinations(enumerate(circles), 2)]
    with localcontext(DIGITS):
        exact = sorted(_exact(circles, i, other) for _, i, other in sorted([*walls, *pairs])[:CANDIDATES])
    return [contact for place, contact in enumerate(exact) if place < NUMBERED or contact.slack < TOUCHING]


def _rooms(circle: Row) -> tuple[float, float, float, float]:
    x, y, _ = circle
    return x, 1 - x, y, 1 - y


def _apart(a: Row, b: Row) -> float:
    return math.hypot(a[0] - b[0], a[1] - b[1]) - a[2] - b[2]


def _exact(circles: Sequence[Row], i: int, other: int) -> Contact:
    x, y, r = map(Decimal, circles[i])
    if other < 0:
        return Contact(float((x, 1 - x, y, 1 - y)[-1 - other] - r), i, other)
    u, v, s = map(Decimal, circles[other])
    return Contact(float(((x - u) ** 2 + (y - v) ** 2).sqrt() - r - s), i, other)


def _draw(axes: Axes, circles: Sequence[Row], found: Sequence[Contact]) -> None:
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.01)
    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, edgecolor=style.INK, linewidth=1.4))
    discs = [Circle((x, y), r) for x, y, r in circles]
    axes.add_collection(PatchCollection(discs, facecolor="#dbeaf4", edgecolor=style.look(0).color, linewidth=1.1))
    touching = [_ends(circles, contact) for contact in found if contact.slack < TOUCHING]
    axes.add_collection(LineCollection(touching, colors=style.SOFT, linewidths=0.8, linestyles=[(0, (2.5, 2))]))
    for index, (x, y, r) in enumerate(circles):
        axes.text(x, y, str(index), ha="center", va="center", fontsize=_size(r), color=style.SOFT, bbox=_under())
    for place, contact in enumerate(found[:NUMBERED]):
        axes.text(*_meeting(circles, contact), str(place + 1), ha="center", va="center", fontsize=7.5, **_badge())


def _size(radius: float) -> float:
    return max(3.0, min(8.5, 110 * radius))


def _under() -> dict[str, Any]:
    return {"boxstyle": "round,pad=0.12", "facecolor": "#dbeaf4", "edgecolor": "none"}


def _badge() -> dict[str, Any]:
    box = {"boxstyle": "circle,pad=0.22", "facecolor": style.look(1).color, "edgecolor": style.PAPER, "linewidth": 0.8}
    return {"color": style.PAPER, "fontweight": "bold", "bbox": box, "zorder": 5}


def _ends(circles: Sequence[Row], contact: Contact) -> list[tuple[float, float]]:
    x, y, _ = circles[contact.circle]
    if contact.other >= 0:
        return [(x, y), circles[contact.other][:2]]
    return [(x, y), [(0.0, y), (1.0, y), (x, 0.0), (x, 1.0)][-1 - contact.other]]


def _meeting(circles: Sequence[Row], contact: Contact) -> tuple[float, float]:
    """On the way from one center to the other, or to the wall, where the first circle ends."""
    (x, y), (u, v) = _ends(circles, contact)
    way = math.hypot(u - x, v - y) or 1.0
    share = min(1.0, circles[contact.circle][2] / way)
    return x + share * (u - x), y + share * (v - y)


def _tell(axes: Axes, circles: Sequence[Row], found: Sequence[Contact]) -> None:
    axes.set_axis_off()
    touching = sum(contact.slack < TOUCHING for contact in found)
    total = math.fsum(r for _, _, r in circles)
    lines = [f"{len(circles)} circle{'' if len(circles) == 1 else 's'}", f"sum of radii {total:.12g}"]
    if touching:
        lines.append(f"dashed: {touching} contact{'' if touching == 1 else 's'}, slack < {TOUCHING:g}")
    axes.text(0, 0.97, "\n".join(lines), va="top", linespacing=1.5)
    axes.text(0, 0.74, "Tightest contacts, least slack first", fontweight="bold", va="top")
    for place, contact in enumerate(found[:NUMBERED]):
        height = 0.665 - 0.058 * place
        axes.text(0.04, height, str(place + 1), ha="center", va="center", fontsize=7.5, **_badge())
        axes.text(0.13, height, contact.named(), va="center")
        axes.text(1.0, height, f"{contact.slack:+.2e}", va="center", ha="right")
    if found and found[0].slack < 0:
        axes.text(0, 0.0, "below 0: they overlap by that much", color=style.SOFT, va="bottom")
