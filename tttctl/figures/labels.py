"""Words beside points, where they hide neither each other nor a point; what finds no place is left out."""

# matplotlib's types leave **kwargs open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.path import Path
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

Point = tuple[float, float]
CLEAR = 5.0
"""Pixels around a point that words keep clear of."""


class Place(NamedTuple):
    """Points from the labelled point, and the side of the words that is there."""

    x: float
    y: float
    horizontal: str
    vertical: str


PLACES = [
    Place(6, 6, "left", "bottom"),
    Place(6, -6, "left", "top"),
    Place(-6, 6, "right", "bottom"),
    Place(-6, -6, "right", "top"),
    Place(14, 0, "left", "center"),
    Place(0, 14, "center", "bottom"),
    Place(0, -14, "center", "top"),
    Place(-14, 0, "right", "center"),
    Place(10, 20, "left", "bottom"),
    Place(10, -20, "left", "top"),
]


def label(
    axes: Axes, points: Sequence[Point], words: Sequence[str], lines: Sequence[Sequence[Point]] = (), **look: Any
) -> None:
    """Label points, the most important first, beside `lines`.  The axes' limits must be final."""
    canvas = FigureCanvasAgg(axes.figure.figure)
    canvas.figure.draw_without_rendering()  # lays the panels out: only then is it known where a point is
    spots = [axes.transData.transform(point) for point in points]
    paths = [Path(axes.transData.transform(line)) for line in lines if line]
    taken = [Bbox.from_extents(x - CLEAR, y - CLEAR, x + CLEAR, y + CLEAR) for x, y in spots]
    inside = axes.get_window_extent()
    for point, word in zip(points, words, strict=True):
        for place in PLACES:
            made = _annotate(axes, point, word, place, look)
            box = made.get_window_extent(canvas.get_renderer())
            hides = any(box.overlaps(other) for other in taken) or any(
                path.intersects_bbox(box, filled=False) for path in paths
            )
            if _within(box, inside) and not hides:
                taken.append(box)
                break
            made.remove()


def _annotate(axes: Axes, point: Point, word: str, place: Place, look: dict[str, Any]) -> Annotation:
    offset = (place.x, place.y)
    made = axes.annotate(
        word,
        point,
        offset,
        textcoords="offset points",
        ha=place.horizontal,
        va=place.vertical,
        **look,
    )
    made.set_in_layout(False)
    return made


def _within(box: Bbox, outer: Bbox) -> bool:
    return box.x0 >= outer.x0 and box.x1 <= outer.x1 and box.y0 >= outer.y0 and box.y1 <= outer.y1
