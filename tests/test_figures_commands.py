"""plot and best --figure: the files they write, what they say, and what they refuse."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_daemon import serving
from figure_data import RunsToDraw, artifact, frozen, measured, run_of

from tttctl.__main__ import run as tttctl
from tttctl.verbs.figures import write


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunsToDraw]:
    runs = RunsToDraw()
    runs.add(run_of("first", 15), measured())
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "tttdd.sock", runner=runs) as served:
        monkeypatch.setenv("TTTDD_SOCKET", str(served.socket))
        yield runs


def test_plot_names_its_file_by_the_run_and_says_it(runs: RunsToDraw, capsys: pytest.CaptureFixture[str]) -> None:
    assert tttctl(["plot", "first", "--figure", "proof"]) == 0
    assert capsys.readouterr().out == "first-proof.png: first, proof, 15 steps\n"
    assert Path("first-proof.png").read_bytes().startswith(b"\x89PNG")


def test_plot_tells_programs_where_its_file_is(runs: RunsToDraw, capsys: pytest.CaptureFixture[str]) -> None:
    assert tttctl(["plot", "first", "--figure", "lineage", "-o", "a.SVG", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": "first", "figure": "lineage", "files": ["a.SVG"]}
    assert b"<svg" in Path("a.SVG").read_bytes()


def test_all_curves_of_a_run_that_trained_nothing_are_one_figure(runs: RunsToDraw) -> None:
    runs.add(run_of("base", 15, mode="search"), frozen(measured(arm=1)))
    assert tttctl(["plot", "base"]) == 0
    assert Path("base.png").stat().st_size > 50_000


@pytest.mark.parametrize(("figure", "task"), [("circles", "packing"), ("overlap", "erdos"), ("autoconvolution", "ac1")])
def test_best_draws_what_the_program_returned_and_writes_it(
    runs: RunsToDraw, capsys: pytest.CaptureFixture[str], figure: Any, task: str
) -> None:
    runs.add(run_of("first", 15, figure=figure, task=task), measured())
    runs.keep(artifact(figure))
    assert tttctl(["best", "first", "--figure", "b.svg", "--artifact", "b.json"]) == 0
    assert Path("b.json").read_bytes() == runs.kept
    assert b"<svg" in Path("b.svg").read_bytes()
    said = capsys.readouterr().out
    assert "b.svg: node 5" in said and "b.json: node 5" in said and "def run" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plot", "first", "-o", "a.pdf"], "-o: 'a.pdf' does not end in .png or .svg"),
        (["plot", "first", "-o", "png"], "-o: 'png' does not end in .png or .svg"),
        (["plot", "nobody"], "no run 'nobody'"),
        (["plot", "new"], "run 'new' has no committed step (there is something to draw after its first step"),
        (["plot", "first", "--figure", "time", "-o", "none/a.png"], "cannot write none/a.png: No such file"),
        (["best", "first", "--figure", "a.gif"], "--figure: 'a.gif' does not end in .png or .svg"),
        (["best", "plain", "--figure", "a.png"], "--figure: the programs of task 'other' return nothing to draw"),
        (["best", "odd", "--figure", "a.png"], "what node 5 returned cannot be drawn as circles"),
    ],
)
def test_a_refusal_names_what_is_wrong_and_leaves_no_file(
    runs: RunsToDraw, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], said: str
) -> None:
    runs.add(run_of("new", 0), [])
    runs.add(run_of("plain", 15, figure="", task="other"), measured())
    runs.add(run_of("odd", 15, figure="circles"), measured())
    assert tttctl(arguments) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tttdd.sock"]


def test_what_is_not_kept_cannot_be_drawn_and_it_says_what_to_do(
    runs: RunsToDraw, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.kept = None
    assert tttctl(["best", "first", "--artifact", "a.json"]) == 2
    assert "is not kept" in (said := capsys.readouterr().err) and "tttctl verify first 5" in said


def test_an_artifact_that_is_not_what_was_judged_is_a_failure(
    runs: RunsToDraw, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.kept = b"[[0.5], 0.5, 1]"
    assert tttctl(["best", "first", "--artifact", "a.json"]) == 1
    assert "is not what was judged" in capsys.readouterr().err
    assert not Path("a.json").exists()


def test_steps_that_are_not_committed_are_not_drawn(runs: RunsToDraw, capsys: pytest.CaptureFixture[str]) -> None:
    rows = measured()
    runs.add(run_of("first", 1), [rows[0], msgspec.structs.replace(rows[1], phase="pending")])
    assert tttctl(["plot", "first", "--figure", "valid"]) == 0
    assert "valid, 1 step\n" in capsys.readouterr().out


def test_a_file_is_replaced_whole_through_its_link_and_by_the_umask(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    os.umask(mask := os.umask(0o077))
    write(tmp_path / "fresh", b"")
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o666 & ~mask
