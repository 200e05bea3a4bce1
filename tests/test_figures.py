"""The figures themselves: what they show, that nothing is clipped or covers its neighbour, and that bytes repeat."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from fractions import Fraction
from xml.etree import ElementTree

import matplotlib
import msgspec
import numpy as np
import pytest
from figure_data import artifact, close_proofs, frozen, lineage, measured, node, run_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tttctl.figures import comparison, curves, packing, step_function, style
from tttctl.figures import lineage as ancestors
from tttctl.figures.history import FROZEN, History
from tttctl.parser import FIGURES

HOSTILE = "--><script>$\\frac{1}{0}$ \x1b[31m\u202e\x00\u4e2d\uffff & <b>" + "W" * 300
TRAINED = History(run_of("trained", 15), measured())
SEARCHED = History(run_of("searched", 15, mode="search"), frozen(measured(arm=1)))
ONE_STEP = History(run_of(HOSTILE, 1, task=HOSTILE, objective_name=HOSTILE), measured()[:1])
PACKING: packing.Packing = msgspec.json.decode(artifact("circles"), type=packing.Packing)
HEIGHTS: list[float] = json.loads(artifact("overlap"))[0]


def two_groups() -> Figure:
    curve = [[1.0, 2.0], [3.0, 1.0]]
    groups = [comparison.Curves(name, [8, 16], {"m": curve}) for name in ("discover", HOSTILE)]
    return comparison.whole(HOSTILE, HOSTILE, [comparison.Measure("m", HOSTILE, HOSTILE, 0.5)], groups)


DRAWN: dict[str, Callable[[], Figure]] = {
    "trained": lambda: curves.whole(TRAINED),
    "one step, hostile": lambda: curves.whole(History(ONE_STEP.run, close_proofs(ONE_STEP.rows, [1e-6], 9e-7))),
    "one panel": lambda: curves.single("time", TRAINED),
    "lineage": lambda: ancestors.whole(TRAINED, lineage()),
    "a seed is the best": lambda: ancestors.single(ONE_STEP, lineage()[:1]),
    "packing": lambda: packing.whole(HOSTILE, HOSTILE, PACKING),
    "overlap": lambda: step_function.whole(HOSTILE, HOSTILE, step_function.overlap(HEIGHTS)),
    "compare": two_groups,
}


@pytest.mark.parametrize("name", DRAWN)
def test_no_word_of_a_figure_is_clipped_or_covers_another(name: str) -> None:
    with style.styled():
        figure = DRAWN[name]()
        boxes = word_boxes(figure)
    page = figure.bbox.padded(1)
    for axes in figure.axes:
        if legend := axes.get_legend():
            assert legend.get_window_extent().x1 <= axes.bbox.x1 + 1, f"the legend of {axes.get_title()!r} is too wide"
    for word, box in boxes:
        assert page.containsx(box.x0) and page.containsx(box.x1), (word, box, page)
        assert page.containsy(box.y0) and page.containsy(box.y1), (word, box, page)
    overlapping = [(a[0], b[0]) for a, b in itertools.combinations(boxes, 2) if a[1].padded(-2).overlaps(b[1])]
    assert not overlapping


def word_boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """Of all words but ticks, which matplotlib places, and the numbers of a packing's circles, which lie on lines."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    ticks = {id(label) for axis in axes for label in axis.get_ticklabels(which="both")}
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and id(text) not in ticks]
    assert not any(text.get_parse_math() for text in texts), "a name with $ would be drawn as mathematics"
    shown = [text for text in texts if text.get_visible() and text.get_text().strip() and not text.get_text().isdigit()]
    return [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in shown]


def words(draw: Callable[[], Figure]) -> str:
    with style.styled():
        return "\n".join(text.get_text() for text in draw().findobj(Text) if isinstance(text, Text))


@pytest.fixture(scope="module")
def svg() -> bytes:
    return style.render(lambda: curves.single("objective", ONE_STEP), "svg")


def test_the_same_input_is_the_same_bytes(svg: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 31.0)  # the user's own taste
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", None)
    assert style.render(lambda: curves.single("objective", ONE_STEP), "svg") == svg
    png = [style.render(lambda: curves.single("objective", ONE_STEP), "png") for _ in range(2)]
    assert png[0] == png[1]
    assert png[0].startswith(b"\x89PNG") and b"matplotlib" not in png[0]
    assert b"<dc:date>" not in svg


def test_a_hostile_name_is_text_in_an_svg(svg: bytes) -> None:
    tree = ElementTree.fromstring(svg)
    assert {child.tag.partition("}")[2] for child in tree.iter()} <= {
        *("svg", "metadata", "RDF", "Work", "type", "format", "creator", "Agent", "title"),
        *("defs", "style", "g", "path", "use", "clipPath", "rect"),
    }
    assert b"$\\frac{1}{0}$" in svg, "matplotlib comments each text; mathematics would have become a fraction"


def test_what_the_font_lacks_or_what_steers_is_an_escape() -> None:
    assert style.plain("Erd\u0151s \u4e2d\n\x1b[1m \u202e\uffff") == "Erd\u0151s \\u4e2d \\x1b[1m \\u202e\\uffff"
    assert len(style.plain("W" * 500)) == style.LINE_CHARACTERS


def test_steps_count_from_1_and_curves_are_those_of_the_run() -> None:
    with style.styled():
        (axes,) = curves.single("rewards", TRAINED).axes
    mean = axes.lines[0]
    assert np.asarray(mean.get_xdata()).tolist() == list(range(1, 16))
    assert np.asarray(mean.get_ydata()).tolist() == [row.metrics["tttd/reward_mean"] for row in TRAINED.rows]
    assert axes.get_xlim() == (0.5, 15.5)


@pytest.mark.parametrize("name", ["divergence", "proof"])
def test_a_run_without_training_says_so_where_training_would_be_drawn(name: str) -> None:
    assert FROZEN in words(lambda: curves.single(name, SEARCHED))
    assert FROZEN not in words(lambda: curves.single(name, TRAINED))


def test_the_phases_add_up_to_the_step() -> None:
    layers = curves._phases(TRAINED)
    total = [sum(seconds) for seconds in zip(*layers.values(), strict=True)]
    assert total == pytest.approx([row.metrics["time/step"] for row in TRAINED.rows])
    assert list(layers) == ["sample", "judge_wait", "train", "prove", "rest"]


def test_a_divergence_below_0_is_marked_and_one_of_0_is_left_out() -> None:
    rows = [
        msgspec.structs.replace(row, metrics={"train/kl_base": value})
        for row, value in zip(TRAINED.rows, [0.0, -2e-6, 1e-3], strict=False)
    ]
    with style.styled():
        (axes,) = curves.single("divergence", History(TRAINED.run, rows)).axes
    curve, below = axes.lines[:2]
    assert (np.asarray(curve.get_xdata()).tolist(), np.asarray(curve.get_ydata()).tolist()) == ([2, 3], [2e-6, 1e-3])
    assert (below.get_markerfacecolor(), np.asarray(below.get_xdata()).tolist()) == (style.PAPER, [2])
    assert axes.get_ylabel().endswith("hollow: below 0")


@pytest.mark.parametrize(("values", "labelled"), [([2e-4, 5e-4], ["0.0003", "0.0004"]), ([1e-5, 1e-2], ["0.001"])])
def test_a_log_axis_has_numbers_also_within_one_decade(values: list[float], labelled: list[str]) -> None:
    rows = [msgspec.structs.replace(row, proof=None, metrics={}) for row in TRAINED.rows[:2]]
    for row, value in zip(rows, values, strict=True):
        row.metrics["train/kl_base"] = value
    with style.styled():
        figure = curves.single("divergence", History(TRAINED.run, rows))
        FigureCanvasAgg(figure).draw()
    shown = [label.get_text() for label in figure.axes[0].yaxis.get_ticklabels(which="both")]
    assert set(labelled) <= set(shown)


def test_every_figure_that_can_be_asked_for_is_there() -> None:
    assert set(FIGURES) == {"run", "lineage", *curves.PANELS}


def test_the_slack_of_a_contact_is_exact_where_floats_are_not() -> None:
    third = 1 / 3
    circles = [(third, 0.5, third), (2 / 3 + third / 2, 0.5, third / 2)]
    exact = Fraction(2 / 3 + third / 2) - Fraction(third) - Fraction(third) - Fraction(third / 2)
    pair = next(contact for contact in packing.contacts(circles) if contact.other == 1)
    assert pair.slack == float(exact) != 0
    left = next(contact for contact in packing.contacts(circles) if contact.other == -1)
    assert (left.slack, left.named()) == (0.0, "0, left wall")


def test_a_real_packings_contacts_come_closest_first_and_touch() -> None:
    circles = [(x, y, r) for (x, y), r in zip(PACKING[0], PACKING[1], strict=True)]
    found = packing.contacts(circles)
    assert len(found) == 78
    assert found == sorted(found) and -1e-12 < found[0].slack < found[-1].slack < packing.TOUCHING
    assert "sum of radii 2.635977" in words(lambda: packing.whole("", "", PACKING))


def test_a_packing_in_which_nothing_touches_says_nothing_of_touching() -> None:
    loose: packing.Packing = PACKING[0], [r - 1e-7 for r in PACKING[1]], 0.0
    said = words(lambda: packing.whole("", "", loose))
    assert "dashed" not in said and "+1.00e-07" in said
    assert "dashed: 78 contacts, slack < 1e-09" in words(lambda: packing.whole("", "", PACKING))
    pair: packing.Packing = [(0.3, 0.5), (0.5, 0.5)], [0.1, 0.1], 0.2
    assert "dashed: 1 contact, slack" in words(lambda: packing.whole("", "", pair))


@pytest.mark.parametrize("times", [1, 100])
def test_the_overlap_has_its_known_maximum_also_where_it_is_made_by_fourier(times: int) -> None:
    shape = step_function.overlap([h for h in HEIGHTS for _ in range(times)])
    assert shape.sums.max() == pytest.approx(0.3809268534, abs=1e-10)
    assert (shape.shifts[0], shape.shifts[-1], shape.sums[0]) == (-2, 2, 0)
    assert len(shape.shifts) == len(shape.sums) == 2 * 51 * times + 1


def test_the_autoconvolution_has_its_known_maximum_and_the_integral_1() -> None:
    shape = step_function.autoconvolution([1e300 * f for f in json.loads(artifact("autoconvolution"))] + [-5.0])
    assert shape.heights.sum() * (shape.edges[1] - shape.edges[0]) == pytest.approx(1)
    assert np.trapezoid(shape.sums, shape.shifts) == pytest.approx(1)
    assert 1.5 < shape.sums.max() < 1.53
    assert step_function.autoconvolution([3.0]).sums.max() == 2.0  # C1 of one step
    large = step_function.overlap([1.7e308 * h for h in (0.4, 1.0, 0.4)])
    assert large.sums.max() == pytest.approx(step_function.overlap([0.4, 1.0, 0.4]).sums.max())


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: step_function.overlap([0.0]), "positive sum"),
        (lambda: step_function.overlap([]), "positive sum"),
        (lambda: step_function.overlap([1.0, 0.0, 0.0]), "must lie in"),
        (lambda: step_function.autoconvolution([-1.0]), "positive sum"),
        (lambda: packing.checked(([(0.5, 0.5)], [0.1, 0.1], 0.2)), "1 centers and 2 radii"),
        (lambda: packing.checked(([(0.5, 0.5)], [0.6], 0.6)), "unit square"),
        (lambda: packing.checked(([(0.5, 0.5)], [-0.1], 0.1)), "unit square"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        draw()


def test_a_long_ancestry_labels_what_has_room() -> None:
    before = [(number, 0.5 - number / 1000, number // 10) for number in range(150)]
    line = [node(number, objective, step, []) for number, objective, step in before]
    said = words(lambda: ancestors.whole(TRAINED, line))
    assert "node 0: 0.5" in said and "149 generations after node 0" in said
    assert 4 <= said.count("node ") <= ancestors.LABELLED + 4
