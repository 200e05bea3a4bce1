"""compare: runs of one task over their seeds, at the rollouts that all have made."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import serving
from figure_data import SEEDS, RunsToDraw, frozen, measured, run_of

from tttctl.__main__ import run as tttctl
from tttdd.protocol import GridSize, StepRow

GRID = GridSize(4, 8)


def rows_of(seed: int, *, trained: bool) -> list[StepRow]:
    rows = measured(SEEDS, 2 * seed + (not trained))
    return rows if trained else frozen(rows)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunsToDraw]:
    """Three seeds that trained, two that did not."""
    runs = RunsToDraw()
    for seed in range(3):
        runs.add(run_of(f"t{seed}", 8, seed=seed, grid=GRID), rows_of(seed, trained=True), **{"grid.steps": 8})
    for seed in range(2):
        run = run_of(f"s{seed}", 8, seed=seed, grid=GRID, mode="search")
        runs.add(run, rows_of(seed, trained=False), **{"grid.steps": 9})
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "tttdd.sock", runner=runs) as served:
        monkeypatch.setenv("TTTDD_SOCKET", str(served.socket))
        yield runs


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert tttctl(["compare", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_groups_are_all_but_the_seed_with_mean_and_the_samples_deviation(
    runs: RunsToDraw, capsys: pytest.CaptureFixture[str]
) -> None:
    told = answer(capsys, "t0", "s0", "t1", "s1", "t2")
    trained, searched = told["groups"]
    assert (trained["label"], trained["runs"], trained["seeds"]) == ("discover", ["t0", "t1", "t2"], [0, 1, 2])
    assert (searched["label"], searched["runs"]) == ("search", ["s0", "s1"])
    last = [rows_of(seed, trained=True)[-1].metrics for seed in range(3)]
    for name, metric in (("best_objective", "archive/best_objective"), ("mean_reward", "tttd/reward_mean")):
        values = [metrics[metric] for metrics in last]
        expected = {"mean": statistics.fmean(values), "std": statistics.stdev(values)}
        assert trained[name] == pytest.approx(expected | {"min": min(values), "max": max(values)})
    assert (told["task"], told["rollouts"], told["target"], told["files"]) == ("erdos_min_overlap", 256, 0.3808, [])


def test_one_seed_has_no_spread(runs: RunsToDraw, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "t0", "s0", "s1")["groups"][0]["best_objective"]["std"] is None
    assert tttctl(["compare", "t0", "s0", "s1"]) == 0
    said = capsys.readouterr().out
    one = next(line.split() for line in said.splitlines() if line.startswith("1 ") and "best objective" in line)
    assert one[-4:] == ["-", "-", "-", "discover"]
    assert "-: one seed has no spread" in said


def test_runs_are_cut_to_what_all_have_made_and_that_is_said(
    runs: RunsToDraw, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.add(run_of("s0", 8, state="running", grid=GRID, mode="search"), rows_of(0, trained=False)[:5])
    told = answer(capsys, "t0", "s0")
    assert told["rollouts"] == 160
    assert told["groups"][0]["mean_reward"]["mean"] == rows_of(0, trained=True)[4].metrics["tttd/reward_mean"]
    assert tttctl(["compare", "t0", "s0"]) == 0
    assert "at 160 rollouts a run, the most that all have made" in capsys.readouterr().out


def test_other_grids_are_other_groups_at_their_last_whole_step(
    runs: RunsToDraw, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.add(run_of("wide", 8, grid=GridSize(4, 20)), rows_of(0, trained=True))
    told = answer(capsys, "t0", "wide")
    assert [(group["label"], group["rollouts"]) for group in told["groups"]] == [
        ("discover, grid.rollouts 8", 256),
        ("discover, grid.rollouts 20", 240),
    ]
    assert tttctl(["compare", "t0", "wide"]) == 0
    assert "discover, grid.rollouts 20: at 240 rollouts, its last whole step" in capsys.readouterr().out


def test_a_setting_that_differs_names_its_groups(runs: RunsToDraw, capsys: pytest.CaptureFixture[str]) -> None:
    runs.add(run_of("slow", 8, grid=GRID), rows_of(0, trained=True), **{"trainer.lr": 1e-5, "task.judge": "a" * 64})
    runs.add(run_of("fast", 8, grid=GRID), rows_of(1, trained=True), **{"trainer.lr": 3e-4, "task.judge": "b" * 64})
    labels = [group["label"] for group in answer(capsys, "slow", "fast")["groups"]]
    assert labels == [f"discover, task.judge {c * 12}, trainer.lr {lr}" for c, lr in (("a", "1e-05"), ("b", "0.0003"))]


def test_the_steps_of_the_run_it_goes_on_from_are_not_its_own(
    runs: RunsToDraw, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.add(run_of("on", 8, grid=GRID, resumed_from="t0", first_step=5), rows_of(0, trained=True))
    told = answer(capsys, "on", "t0")
    assert told["rollouts"] == 96
    assert [group["label"] for group in told["groups"]] == ["discover, resumed from t0", "discover, resumed from -"]


def test_the_figure_is_drawn_and_told(runs: RunsToDraw, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "t0", "t1", "s0", "-o", "c.svg")["files"] == ["c.svg"]
    drawn = Path("c.svg").read_bytes()
    assert b"discover (2 seeds)" in drawn and b"search (1 seed)" in drawn, "matplotlib comments each text"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["t0", "other"], "run 'other' is of task 'another', run 't0' of task 'erdos_min_overlap'"),
        (["t0", "t1", "t0"], "named twice: t0"),
        (["t0", "same"], "runs 't0' and 'same' are the same experiment with the same seed 0"),
        (["t0", "new"], "run 'new' has no committed step of its own"),
        (["t0", "nobody"], "no run 'nobody'"),
        (["t0", "huge"], "run 'huge' makes 512 rollouts a step, run 't0' has made 256 in all"),
        (["t0", "-o", "a.txt"], "-o: 'a.txt' does not end in .png or .svg"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    runs: RunsToDraw, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    runs.add(run_of("other", 8, task="another", grid=GRID), rows_of(0, trained=True))
    runs.add(run_of("same", 8, grid=GRID), rows_of(0, trained=True), **{"grid.steps": 30})
    runs.add(run_of("new", 0, grid=GRID), [])
    runs.add(run_of("huge", 8), rows_of(0, trained=True))
    assert tttctl(["compare", *arguments]) == 2
    assert said in capsys.readouterr().err
