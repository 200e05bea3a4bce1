"""The monitor's views without a terminal: exact sizes, honest coarseness, phases, alarms, figures, colours."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import fake_monitor as fake
from tttctl.client import Failed
from tttctl.monitor import best, charts, figures, grid, palette, phases, plan, progress, source, text, views
from tttctl.monitor.divergence import gap_alarm, gauges, kl_alarm
from tttctl.monitor.queue import window
from tttctl.monitor.seen import Seen, lost, moved, told
from tttdd.protocol import CellState, Error, Status, StepRow

replace = msgspec.structs.replace


def seen(status: Status | None = None, **changes: Any) -> Seen:
    return replace(told(Seen(steps={"erdos-long": fake.rows()}), status or fake.status(), fake.NOW), **changes)


def screen(what: Seen, width: int, height: int) -> dict[str, list[str]]:
    """Panel -> its lines, which fill its place exactly; the places lie within the screen and do not overlap."""
    taken: Counter[tuple[int, int]] = Counter()
    said: dict[str, list[str]] = {}
    for name, place in plan.plan(width, height, views.needs(what)).items():
        lines = views.panel(name, what, fake.NOW, place, plan.roomy(width, height))
        assert len(lines) == place.height, name
        assert {text.width_of(line) for line in lines} <= {place.width}, name
        taken.update(itertools.product(range(place.x, place.x + place.width), range(place.y, place.y + place.height)))
        said[name] = ["".join(span.text for span in line) for line in lines]
    assert not taken or max(taken.values()) == 1
    assert all(x < width and y < height for x, y in taken)
    return said


STATES = {
    "at work": seen(),
    "idle": seen(fake.status(runs=[], current=None, gpus=[], log=[])),
    "no daemon yet": Seen(),
    "lost": lost(seen(), "no daemon at /run/tttdd.sock", fake.NOW - 9),
    "eight devices": seen(fake.status(gpus=fake.gpus(8))),
    "a large grid": seen(fake.status(current=fake.current(cells=fake.cells(0.5, 64, 512)))),
    "a narrow grid": seen(fake.status(current=fake.current(cells=fake.cells(0.5, 100, 3)))),
    "preparing": seen(fake.status(current=fake.current(preparing="a download", progress=0.3))),
    "nothing measured": seen(steps={}),
}


@pytest.mark.parametrize("state", STATES)
def test_every_panel_fills_its_place_exactly_at_every_size(state: str) -> None:
    for width, height in (
        (80, 23),
        (200, 59),
        (120, 40),
        (116, 33),
        (115, 33),
        (60, 20),
        (59, 15),
        (20, 6),
        (3, 2),
        (1, 1),
    ):
        screen(STATES[state], width, height)


@settings(max_examples=50)
@given(st.text(), st.integers(0, 40))
def test_any_text_is_cut_or_padded_to_exactly_the_width(any_text: str, width: int) -> None:
    spans = text.line(text.one_line(any_text), ("│", "rule"))
    assert text.width_of(text.fit(spans, width)) == width


@given(st.text(alphabet=st.characters(codec=None)))
def test_nothing_that_steers_a_terminal_is_left(any_text: str) -> None:
    shown = text.one_line(any_text)
    assert all(char.isprintable() for char in shown), shown
    assert text.visible(shown) == shown


def test_without_gpus_a_line_says_cpu_and_the_room_is_the_others() -> None:
    without = screen(seen(fake.status(gpus=[])), 80, 23)
    assert without["devices"][0].startswith("CPU")
    assert len(screen(seen(fake.status(gpus=fake.gpus(8))), 80, 23)["devices"]) == 2
    assert len(without["devices"]) == 1


def test_each_rollout_has_its_tile_where_there_is_room_and_counts_are_exact() -> None:
    cells = fake.cells(0.5)
    lines = ["".join(span.text for span in line) for line in grid.heat_map(cells, 80, 8)]
    assert [line[:64] for line in lines] == ["".join(grid.GLYPHS[cell] for cell in row) for row in cells]
    counts = Counter(cell for row in cells for cell in row)
    for state, line in zip(grid.ORDER, lines, strict=False):
        assert line[64:].split() == [str(counts[state]), grid.GLYPHS[state], state]


def test_a_coarse_grid_says_so_and_hides_no_best() -> None:
    cells: list[list[CellState]] = [["valid"] * 640 for _ in range(64)]
    cells[13][633] = "best"
    assert grid.coarseness(cells, 80, 8) == "tile 8×10: best or most"
    lines = ["".join(span.text for span in line) for line in grid.heat_map(cells, 80, 8)]
    assert sum(line[:64].count("★") for line in lines) == 1
    assert lines[1][63] == "★"
    assert "tile 8×10" in screen(seen(fake.status(current=fake.current(cells=cells))), 80, 23)["grid"][0]


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        (["valid", "best", "rejected"], "best"),
        (["valid", "valid", "rejected"], "valid"),
        (["waiting", "sampling"], "sampling"),
        (["rejected"] * 3 + ["waiting"] * 2, "rejected"),
    ],
)
def test_a_tile_for_many_is_the_best_or_the_most_frequent(states: Any, shown: str) -> None:
    assert grid.summary(states) == shown


def test_tiles_differ_without_colours() -> None:
    assert len(set(grid.GLYPHS.values())) == len(grid.GLYPHS)


def names(found: list[phases.Phase]) -> list[tuple[str, str, int | None]]:
    return [(phase.name, phase.state, None if phase.seconds is None else round(phase.seconds)) for phase in found]


def test_the_phases_tell_what_is_done_what_goes_on_and_what_is_expected() -> None:
    found = phases.phases(fake.current(phase="publish"), fake.rows(), fake.NOW, None)
    assert names(found) == [
        ("sample", "done", 81),
        ("judge", "done", None),
        ("train", "done", 47),
        ("publish", "now", 41),
        ("prove", "next", None),
    ]
    assert found[4].expected is not None and 5 < found[4].expected < 7
    assert phases.remaining(found) == pytest.approx(found[4].expected)


def test_judging_alone_is_timed_from_the_last_sampled_rollout() -> None:
    judging = fake.current(cells=[["valid", "judging"]])
    found = phases.phases(judging, fake.rows(), fake.NOW, fake.NOW - 11)
    assert names(found)[:2] == [("sample", "done", 30), ("judge", "now", 11)]


def test_a_frozen_run_has_no_training_phases_and_no_alarms() -> None:
    run = fake.run("erdos-long", mode="search")
    found = phases.phases(fake.current(run=run), [], fake.NOW, None)
    assert [phase.name for phase in found] == ["sample", "judge"]
    assert gauges(run, fake.rows(), fake.PROOF) == []
    frozen = fake.status(runs=[run], current=fake.current(run=run, proof=None))
    assert "frozen" in " ".join(screen(seen(frozen), 80, 23)["divergence"])


def test_before_a_step_is_done_no_end_is_promised() -> None:
    assert phases.remaining(phases.phases(fake.current(), [], fake.NOW, None)) is None


def test_when_the_last_rollout_was_sampled_is_remembered_until_the_next_grid() -> None:
    drained = fake.status(current=fake.current(cells=[["valid", "judging"]]))
    first = told(Seen(), drained, 5.0)
    assert first.drained == 5.0
    assert told(first, drained, 9.0).drained == 5.0
    assert told(first, fake.status(), 9.0).drained is None


@pytest.mark.parametrize(
    ("gap", "limit", "alarm"),
    [
        (0.009, 0.01, ""),
        (-0.02, 0.01, "above 0.01"),
        (0.5, None, ""),
        (math.nan, None, "not a number"),
        (None, 0.01, ""),
    ],
)
def test_the_gap_alarms_above_the_daemons_own_limit(gap: float | None, limit: float | None, alarm: str) -> None:
    assert gap_alarm(gap, limit) == alarm


@pytest.mark.parametrize(
    ("history", "alarm"),
    [
        ([0.01, 0.02, 0.03], ""),
        ([0.02, 0.03, 0.0009], "back at the base"),
        ([0.005, 0.0009], ""),
        ([0.02, 0.03, 0.1], "jumped from 0.03"),
        ([0.0, 0.029], ""),
        ([0.5], ""),
        ([0.1, math.inf], "not a number"),
        ([], ""),
    ],
)
def test_the_kl_alarms_when_it_falls_to_the_base_or_jumps(history: list[float], alarm: str) -> None:
    assert kl_alarm(history, fake.PROOF) == alarm


def test_an_engine_that_made_less_than_half_of_the_move_is_alarming() -> None:
    proof = replace(fake.PROOF, share=0.3)
    served = gauges(fake.run("x"), fake.rows(), proof)[2]
    assert (served.alarm, served.more) == ("the engine lags", "30%")
    what = seen(fake.status(current=fake.current(proof=proof)))
    assert any("✗ serving proof" in line for line in screen(what, 80, 23)["divergence"])


def test_the_queue_has_what_works_first_then_what_is_next_then_the_newest() -> None:
    order = [run.run for run in seen().listed()]
    assert order == ["erdos-long", "packing-2", "erdos-frozen", "erdos-0", "packing-1"]
    assert [run.run for run in seen(search="FAILED").listed()] == ["erdos-0"]


def test_a_queued_run_is_before_what_does_not_go_on_by_itself_and_priority_counts_only_there() -> None:
    runs = [
        fake.run("old", "finished", priority=9),
        fake.run("held back", "paused", priority=7),
        fake.run("second", "queued"),
        fake.run("third", "queued", created=fake.NOW - 99999),
        fake.run("next", "queued", priority=5),
        fake.run("in hand", "paused"),
        fake.run("new", "finished"),
    ]
    listed = seen(fake.status(runs=runs, current=fake.current(run=runs[5]))).listed()
    assert [run.run for run in listed] == ["in hand", "next", "second", "third", "held back", "new", "old"]


def test_a_paused_daemons_run_does_not_say_that_it_works() -> None:
    paused = screen(seen(fake.status(paused=True)), 200, 59)
    assert "held: the daemon is paused" in paused["header"][0] and "ETA" not in paused["header"][0]
    assert "‖ erdos-long" in screen(seen(fake.status(paused=True)), 80, 23)["queue"][1]
    assert "running" not in "".join(paused["header"] + paused["queue"])
    assert "running" in screen(seen(), 200, 59)["header"][0]


def test_without_a_run_in_hand_the_newest_find_is_shown() -> None:
    waiting = [fake.run("a", "finished", priority=3), fake.run("b", "finished"), fake.run("c", "failed")]
    idle = seen(fake.status(runs=[*waiting, fake.run("d", "paused")], current=None))
    shown = idle.shown()
    assert shown is not None and shown.run == "b"
    none = seen(fake.status(runs=waiting[2:], current=None)).shown()
    assert none is not None and none.run == "c"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("sum of radii", 2.06503714159, "sum of radii 2.06504  0.571 to 2.63598"),
        ("C5", 0.38214907123, "C5 0.3821490712  0.00127 to 0.380876"),
        ("a name of many words", 2.5, "a name of many words"),
    ],
)
def test_the_target_stays_at_39_columns(name: str, value: float, told: str) -> None:
    target = 0.380876 if name == "C5" else 2.635983
    found = replace(fake.STARTER, objective=value)
    direction = "lower" if name == "C5" else "higher"
    run = fake.run("x", best=found, target=target, objective_name=name, direction=direction)
    line = "".join(span.text for span in progress.headline(run, 39))
    assert len(line) <= 39 and line.endswith(f" to {target:.6g}")
    assert line == told or (name.startswith("a name") and "… 2.5" in line)


def test_a_coarse_grid_says_so_in_the_smallest_terminal() -> None:
    said = screen(seen(), plan.LEAST_WIDTH, plan.LEAST_HEIGHT)["grid"][0]
    assert "tile 2×1: best or most" in said


@pytest.mark.parametrize("size", [(60, 14), (75, 40), (100, 17), (20, 6)])
def test_where_there_is_no_room_the_monitor_says_what_it_wants(size: tuple[int, int]) -> None:
    said = screen(seen(), *size)
    assert list(said) == ["narrow"]
    assert f"wants 80x24; it has {size[0]}x{size[1] + 1}." in " ".join(" ".join(said["narrow"]).split())


def test_the_cursor_is_always_on_the_screen() -> None:
    many = fake.status(runs=[fake.run(f"run-{i:03}", "queued", created=float(i)) for i in range(200)], current=None)
    what = seen(many)
    for _ in range(3):
        what = moved(what, 70)
    assert what.chosen == "run-199"
    assert window(what, 4)[-1].run == "run-199"
    assert moved(what, -999).chosen == "run-000"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"notice": "No space left on device"}, "nothing is done until the state can be kept: No space"),
        ({"paused": True}, "the daemon is paused; R resumes it"),
        ({"current": fake.current(run=fake.run("erdos-long", "paused", reason="asked to"))}, "paused: asked to; r res"),
    ],
)
def test_what_keeps_work_from_going_on_is_told(changes: Any, said: str) -> None:
    assert said in screen(seen(fake.status(**changes)), 120, 23)["banner"][0]


def test_the_distance_to_the_target_is_told_until_it_is_passed() -> None:
    assert "0.00127 to 0.380876" in screen(seen(), 80, 23)["best"][1]
    passed = fake.run("erdos-long", best=replace(fake.STARTER, objective=0.38))
    assert "past the target by 0.000876" in screen(seen(fake.status(runs=[passed])), 80, 23)["best"][1]


def test_the_curve_falls_and_meets_the_dashed_target() -> None:
    lines = charts.staircase(((0.0, 2.0), (1.0, 1.5), (2.0, 1.0)), 4.0, 1.0, 40, 8)
    roles = [{span.role for span in line if span.text.strip()} for line in lines]
    assert "curve" in roles[0] and "target" in roles[6] and "target" not in roles[0]
    assert "".join(span.text for span in lines[-1]).endswith("step 4")


def test_gaps_and_infinities_are_not_drawn() -> None:
    assert charts.sparkline([1.0, math.nan, 2.0], 5) == "▁ █"
    assert charts.sparkline([math.inf], 5) == ""
    assert charts.staircase(((0.0, math.nan),), 4.0, None, 40, 8)[0][0].text == "no step yet"


def test_rows_with_odd_numbers_are_shown() -> None:
    rows = [
        StepRow(step=0, phase="committed", release=0, metrics={"tttd/reward_mean": math.inf, "train/kl_base": math.nan})
    ]
    screen(seen(steps={"erdos-long": rows}), 200, 59)


def dots(lines: list[text.Line]) -> int:
    return sum(char not in " \u2800" for line in lines for span in line for char in span.text if char >= "\u2800")


def test_circles_are_drawn_where_they_are() -> None:
    figure = figures.prepared("circles", [[[0.25, 0.75]], [0.2], 0.2])
    lines = figures.drawing(figure, 40, 21)
    upper_left = [[char for span in line for char in span.text if span.role == "curve"] for line in lines]
    assert any(upper_left[:10]) and not any(upper_left[11:20])


def test_the_overlap_curve_is_the_judges() -> None:
    import numpy as np

    heights = fake.step_heights(60)
    figure = figures.prepared("overlap", heights)
    assert isinstance(figure, figures.Curves)
    h = np.array(heights[0]) * 30 / sum(heights[0])
    assert figure.curve == pytest.approx(np.correlate(h, 1 - h, "full") * 2 / 60)
    squared = figures.prepared("autoconvolution", [1.0, 2.0, 3.0])
    assert isinstance(squared, figures.Curves) and squared.curve == pytest.approx([1, 4, 10, 12, 9])


@pytest.mark.parametrize("size", [(1, 1), (4, 3), (40, 20), (200, 60)])
def test_a_figure_fits_any_size(size: tuple[int, int]) -> None:
    for kind, artifact in (("circles", fake.packing()), ("overlap", fake.step_heights(5000))):
        figures.drawing(figures.prepared(kind, artifact), *size)


@pytest.mark.parametrize(
    ("kind", "artifact", "why"),
    [
        ("", [], "is not drawn"),
        ("circles", {"x": 1}, "another form"),
        ("circles", [[[0, 0]], [0.1, 0.2], 1], "1 centers and 2 radii"),
        ("circles", [[[1e300, 0]], [0.1], 1], "far outside"),
        ("overlap", [[], 0.0, 0], "0 heights"),
        ("overlap", [[0.0, 0.0], 0.0, 2], "sum to nothing"),
        ("autoconvolution", ["a"], "another form"),
    ],
)
def test_what_cannot_be_drawn_says_why(kind: str, artifact: Any, why: str) -> None:
    with pytest.raises(figures.NotDrawn, match=why):
        figures.prepared(kind, artifact)


def test_an_artifact_that_is_not_kept_is_no_failure() -> None:
    missing = Failed(404, Error(error="node 4711 has no artifact", hint="pruned"))
    paths = {"/v1/runs/erdos-long/best": fake.node(), "/v1/runs/erdos-long/nodes/4711/artifact": missing}
    client: Any = fake.FakeClient(paths)
    found = best.fetch(client, fake.run("erdos-long"))
    assert found.figure == "No figure: what this program returned is not kept (node 4711 has no artifact (pruned))."
    assert "not drawn" in str(best.fetch(client, fake.run("erdos-long", figure="")).figure)


def test_a_program_is_highlighted_and_wrapped_without_losing_a_character() -> None:
    program = 'def f():\n    return "' + "x" * 100 + '"  # said\n\n'
    lines = source.highlighted(program)
    assert "\n".join("".join(span.text for span in line) for line in lines) == program
    assert tuple(
        next(span.role for line in lines for span in line if word in span.text) for word in ("def", "# said", "xxx")
    ) == ("judging", "dim", "good")
    rows = source.numbered(lines, 30)
    assert max(text.width_of(row) for row in rows) <= 30
    assert "".join("".join(span.text for span in row[1:]) for row in rows) == program.replace("\n", "")


@pytest.mark.parametrize("name", palette.PALETTES)
def test_every_text_stands_out_from_its_ground(name: str) -> None:
    colours = palette.PALETTES[name]
    for role, look in palette.LOOKS.items():
        pair = sorted(luminance(colours[colour]) for colour in (look.colour, look.ground or "ground"))
        assert role == "rule" or (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, role


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("told_colours", "name"), [("15;0", "dark"), ("0;15", "light"), ("0;default;7", "light"), ("", "dark")]
)
def test_the_terminal_tells_whether_it_is_light(told_colours: str, name: str) -> None:
    assert palette.name_for(told_colours) == name
