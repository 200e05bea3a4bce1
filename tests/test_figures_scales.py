"""What a figure shows of small values, of one step alone, and of series that coincide."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from figure_data import close_proofs, measured, run_of
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from tttctl.figures import comparison, curves, style
from tttctl.figures.history import History

SHADE = 40
"""By which a pixel at a marker's edge may differ from the marker's colour."""


def of_proofs(steps: int, gaps: list[float], floor: float) -> History:
    return History(run_of("close", steps), close_proofs(measured()[:steps], gaps, floor))


def panel(name: str, history: History) -> Axes:
    """Drawn, as what is drawn may only then be where it is."""
    with style.styled():
        figure = curves.single(name, history)
        FigureCanvasAgg(figure).draw()
    return figure.axes[0]


def height(axes: Axes, value: float) -> float:
    """0 at the panel's lower edge, 1 at its upper."""
    _, at = axes.transAxes.inverted().transform(axes.transData.transform((1, value)))
    return float(at)


@pytest.mark.parametrize(("gaps", "floor"), [([1e-6, 3e-6], 9e-7), ([0.0, 3e-6], 0.0)])
def test_gaps_far_below_the_limit_are_told_from_0_and_0_is_at_the_edge(gaps: list[float], floor: float) -> None:
    axes = panel("proof", of_proofs(15, gaps, floor))
    assert 0.15 < height(axes, 3e-6) < 0.6 < height(axes, 0.01) < 0.97
    assert height(axes, 0.0) == pytest.approx(0)
    assert {"0", "0.01"} <= {label.get_text() for label in axes.yaxis.get_ticklabels()}


def test_an_axis_of_zeros_and_a_limit_or_of_gaps_near_it_stays_as_it_is() -> None:
    assert panel("proof", of_proofs(15, [0.0, 0.0], 0.0)).get_yscale() == "linear"
    assert panel("proof", History(run_of("trained", 15), measured())).get_yscale() == "linear"


@pytest.mark.parametrize(("name", "labels"), [("divergence", ["sampler limit"]), ("proof", ["floor", "limit"])])
def test_limits_of_one_step_are_lines_across_the_panel(name: str, labels: list[str]) -> None:
    axes = panel(name, of_proofs(1, [1e-6], 9e-7))
    lines = {str(line.get_label()): line.get_window_extent() for line in axes.patches}
    for label in labels:
        assert lines[label].width == pytest.approx(axes.bbox.width), label
        assert axes.bbox.y0 < lines[label].y0 < axes.bbox.y1


@pytest.mark.parametrize("count", [2, 3, 4])
def test_groups_that_coincide_at_one_step_all_show(count: int) -> None:
    curve = [[2.0]]
    groups = [comparison.Curves(f"g{index}", [8], {"m": curve}) for index in range(count)]
    with style.styled():
        figure = comparison.whole("", "", [comparison.Measure("m", "", "")], groups)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    box = figure.axes[0].bbox
    seen = np.asarray(canvas.buffer_rgba())[::-1][int(box.y0) : int(box.y1), int(box.x0) : int(box.x1), :3].astype(int)
    for index in range(count):
        color = [round(255 * part) for part in to_rgb(style.look(index).color)]
        near = np.abs(seen - color).max(axis=2) < SHADE
        assert near.sum() >= 2, f"group {index} is hidden"


def test_lines_that_coincide_are_thinner_the_later_they_are_drawn() -> None:
    for count in (2, 3, 6):
        looks = [style.look(index, count) for index in range(count)]
        assert all(a.width > b.width and a.size > b.size for a, b in itertools.pairwise(looks))
    assert style.look(0) == style.look(0, 1) and style.look(2, 3).size == style.look(0).size
