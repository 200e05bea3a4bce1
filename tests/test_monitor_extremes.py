"""The monitor on what no program should return: numbers at the ends of what a float holds, lines without an end."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests import fake_monitor as fake
from tttctl.monitor import best, charts, figures, source, text
from tttctl.monitor.canvas import Canvas

LARGEST, LEAST = sys.float_info.max, math.ulp(0.0)
finite = st.floats(allow_nan=False, allow_infinity=False)
several = st.lists(finite, min_size=1, max_size=12)
quickly = settings(max_examples=100, deadline=None)
SOON = 4.0
"""Seconds on a busy machine; each of these took from thirteen to more than a hundred."""


@quickly
@given(st.lists(st.floats(), max_size=8), st.none() | st.floats(), st.integers(0, 60), st.integers(0, 12))
@example([LARGEST, -LARGEST], LARGEST, 60, 8)
@example([LEAST, 0.0], None, 60, 8)
def test_a_curve_of_any_numbers_is_drawn(values: list[float], target: float | None, width: int, height: int) -> None:
    points = tuple((float(step), value) for step, value in enumerate(values))
    lines = charts.staircase(points, len(values), target, width, height)
    told = any(map(math.isfinite, values)) and width >= 12 and height >= 2
    assert len(lines) == (height if told else 1)
    assert not any("inf" in span.text or "nan" in span.text for row in lines for span in row)


@quickly
@given(several)
@example([0.0, 1e-308])
@example([1e-310, 2e-310])
@example([1.7e308, -1.7e308])
def test_a_sparkline_of_any_numbers_has_its_least_and_its_greatest(values: list[float]) -> None:
    shown = charts.sparkline(values, 12)
    assert shown[values.index(min(values))] == "▁" and len(shown) == len(values)
    assert min(values) == max(values) or shown[values.index(max(values))] == "█"


@quickly
@given(st.sampled_from(["overlap", "autoconvolution", "circles"]), several)
@example("overlap", [1e99, -1e99, LEAST])
@example("autoconvolution", [LEAST] * 5)
@example("circles", [LEAST, LEAST, 9.9e5])
@example("circles", [-9e5, 0.5, 9e5])
def test_a_figure_of_any_numbers_is_drawn_or_says_why_not(kind: str, values: list[float]) -> None:
    circles = [[[x, y] for x, y in zip(values, values[::-1], strict=True)], [abs(value) for value in values], 1.0]
    artifact = {"circles": circles, "overlap": [values, 0.0, 0.0], "autoconvolution": values}[kind]
    try:
        figure = figures.prepared(kind, artifact)
    except figures.NotDrawn:
        return
    assert len(figures.drawing(figure, 40, 12)) == 12


@quickly
@given(st.lists(st.floats(), min_size=4, max_size=4))
@example([1.5e308, 0.0, 1.5e308, 0.0])
@example([0.0, -1e300, 1e300, 0.0])
def test_a_canvas_takes_any_numbers(numbers: list[float]) -> None:
    canvas = Canvas(5, 5)
    canvas.dot(numbers[0], numbers[1])
    canvas.line(*numbers)
    canvas.circle(*numbers[:3])


@given(st.floats(-30, 50), st.floats(-30, 50), st.floats(0, 60))
@settings(max_examples=100, deadline=None)
def test_the_arc_on_the_canvas_is_all_of_the_circle_that_is_there(x: float, y: float, radius: float) -> None:
    canvas, whole = Canvas(10, 5), Canvas(10, 5)
    canvas.circle(x, y, radius)
    count = max(8, math.ceil(2 * math.pi * radius))
    for turn in (math.tau * i / count for i in range(count)):
        whole.dot(x + radius * math.cos(turn), y + radius * math.sin(turn))
    unlike = [
        (canvas.cell(column, row) ^ whole.cell(column, row)).bit_count() for column in range(10) for row in range(5)
    ]
    assert sum(unlike) <= 2  # a turn more or less can round a dot at an edge to the other side


def test_a_long_line_is_broken_without_losing_a_character() -> None:
    line = text.line(("漢" * 4_999 + "x", "good"), ("é" * 77, "dim"), ("", "text"), ("語" * 3, "bad"))
    rows = source.broken(line, 9)
    assert max(map(text.width_of, rows)) <= 9
    assert "".join(span.text for row in rows for span in row) == "".join(span.text for span in line)
    assert rows[-1] == text.line(("ééé", "dim"), ("語" * 3, "bad")) and source.broken((), 9) == [()]
    assert text.wrapped("a漢\n\u0301\n", 2) == [text.line(each) for each in ("a", "漢", "\u0301", "")]


CIRCLES = [(0.5 + place * 1e-5 - 9e5, 0.5, 9e5) for place in range(20_000)]
ALIKE = [(0.5 + place * 1e-5, 0.5, 0.4) for place in range(20_000)]
LONG: dict[str, Callable[[], list[text.Line]]] = {
    "a line": lambda: source.numbered([text.line("x" * 1_000_000)], 76),
    "a line of wide characters": lambda: source.numbered([text.line("漢" * 200_000)], 76),
    "printed": lambda: text.wrapped("x" * 3_000_000, 76),
    "circles far larger than the square": lambda: figures.drawing(figures.Circles(CIRCLES), 100, 50),
    "circles over one another": lambda: figures.drawing(figures.Circles(ALIKE), 100, 50),
}


@pytest.mark.parametrize("what", LONG)
def test_the_screen_does_not_wait_for(what: str) -> None:
    began = time.thread_time()
    LONG[what]()
    assert time.thread_time() - began < SOON


def test_circles_that_are_left_out_are_told() -> None:
    told = figures.drawing(figures.Circles(ALIKE), 100, 50)[-1][0].text
    assert told.startswith("20000 circles, radii sum to 8000, the ") and told.endswith(" largest drawn")
    assert "largest" not in figures.drawing(figures.prepared("circles", fake.packing()), 100, 50)[-1][0].text


@pytest.mark.parametrize(
    ("program", "output", "shown", "said"),
    [
        ("x\n" * 5_000, "", source.LINES, ["6,000 more characters; tttctl best RUN -o FILE has it all"]),
        ("x" * 200_100, "", 200_000 // 74 + 1, ["100 more characters; tttctl best RUN -o FILE has it all"]),
        ("x", "y\n" * 2_001, 1, ["2 more characters; tttctl show RUN 4711 has it all"]),
        ("x\n" * 2_000, "y\n" * 2_000, source.LINES, []),
    ],
    ids=["lines", "characters", "output", "all of it"],
)
def test_a_long_program_or_output_is_shown_from_its_beginning_and_says_so(
    program: str, output: str, shown: int, said: list[str]
) -> None:
    client: Any = fake.FakeClient({"/v1/runs/erdos-long/best": fake.node(program=program, output=output)})
    rows = best.program_lines(best.fetch(client, fake.run("erdos-long", figure="")), 76)
    assert sum("x" in "".join(span.text for span in row if span.role != "warn") for row in rows) == shown
    assert [span.text for row in rows for span in row if span.role == "warn"] == said
