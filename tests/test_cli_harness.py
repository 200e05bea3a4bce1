"""External runs on the command line, in the monitor and for Prometheus: how a harness reaches one, what it lacks, and
that a run without objective, target, starter or best is shown by every verb."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fake_daemon import FakeDesk, Served, serving

from tests import fake_monitor as fake
from tests.test_monitor_views import screen, seen
from tttctl.__main__ import run as tttctl
from tttctl.monitor import pages, phases
from tttctl.monitor.text import Line
from tttctl.verbs import harness
from tttctl.verbs.runs import _describe_daemon
from tttdd.api import exposition
from tttdd.harness_protocol import GridInfo, Place, RefusedRelease
from tttdd.protocol import Best, GridSize, NodeInfo, RunState, StepRow, Submit

SILENT = "its harness is silent: 2 of 6 rollouts of step 1 are missing (0/1, 1/2)"
EXTERNAL = {"kind": "external", "objective_name": "", "target": None, "starter": None, "figure": ""}
WAITING = fake.run("mine", "waiting", reason=SILENT, best=None, direction="higher", **EXTERNAL)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(tmp_path / "tttdd.sock", desk=FakeDesk('say "receipt":"no" ', "more")) as served:
        monkeypatch.setenv("TTTDD_SOCKET", str(served.socket))
        monkeypatch.chdir(tmp_path)
        served.runner.submit(Submit(task="digits", kind="external", name="mine"))
        yield served


def found(served: Served) -> None:
    """The run has two steps and a best answer."""
    answer = {"objective": None, "seed": False, "visits": 0, "pruned": False, "lineage": [1]}
    served.runner.others[2] = NodeInfo(node=2, reward=9.5, parent=1, step=1, program="9 \x1b[31m9", **answer)
    best = Best(node=2, reward=9.5, objective=None, step=1)
    run = msgspec.structs.replace(served.runner.run("mine"), step=2, release=2, best=best, state="finished")
    served.runner.by_name["mine"] = run


def test_an_external_run_is_submitted_and_says_how_its_harness_reaches_it(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tttctl(["submit", "sums", "--external", "--no-train", "--groups", "2", "--rollouts", "4"]) == 0
    assert "tttctl client sums-2" in capsys.readouterr().out
    asked = Submit(task="sums", kind="external", mode="search", grid=GridSize(2, 4))
    assert served.runner.asked[-1] == ("submit", asked)


def test_client_tells_people_and_programs_how_a_run_is_reached(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tttctl(["--socket", served.socket.name, "client", "mine"]) == 0
    said = capsys.readouterr().out
    for line in (f"socket    {served.socket}\n", "base URL  http://tttdd/v1\n", "header    x-tttdd-run: mine\n"):
        assert line in said
    assert "0 of 0 to 1, sampled by release 0\n" in said and "1 of 6 reports, group/rollout: 1/2\n" in said
    assert tttctl(["client", "mine", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["socket"], told["header"]) == (str(served.socket), {"x-tttdd-run": "mine"})
    assert (told["base_url"], told["missing"]) == ("http://tttdd/v1", [{"group": 1, "rollout": 2}])


def test_the_calls_that_client_tells_can_be_pasted(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Even where the answer has quotes of its own."""
    tttctl(["client", "mine"])
    _, _, calls = capsys.readouterr().out.partition("\n\n")
    done = subprocess.run(["bash", "-eu", "-c", calls], capture_output=True, text=True, check=True)
    completion, report = map(json.loads, done.stdout.splitlines())
    assert completion["choices"][0]["message"]["content"] == 'say "receipt":"no" more'
    assert report["receipt"] == completion["receipt"] and (report["group"], report["rollout"]) == (1, 2)


def test_client_tells_refused_releases_many_coordinates_and_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    grid = GridInfo(
        run="it's", state="waiting", step=1, steps=2, release=1, groups=4, rollouts=4,
        missing=[Place(group=group, rollout=3) for group in range(9)],
        refused=[RefusedRelease(group=0, rollout=3, releases=[1, 0])],
    )  # fmt: skip
    harness._tell(grid, "/a b/s")
    said = capsys.readouterr().out
    assert "7/3, ...\n" in said and "8/3" not in said
    assert "0/3: a report of release 0 in a grid of release 1; sample it again\n" in said
    assert "--unix-socket '/a b/s'" in said and "it%27s/reports" in said
    harness._tell(msgspec.structs.replace(grid, step=2, missing=[], state="finished"), "/s")
    assert capsys.readouterr().out.endswith("step      none: all 2 are committed\n")


@pytest.mark.parametrize("has_best", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"],
        ["status"],
        ["status", "mine"],
        ["client", "mine"],
        ["best", "mine"],
        ["best", "mine", "--figure", "b.svg"],
        ["best", "mine", "--artifact", "b.json"],
        ["show", "mine", "best", "--lineage"],
        ["show", "mine", "starter"],
        ["diff", "mine", "1", "best"],
        ["verify", "mine"],
        ["plot", "mine"],
        ["plot", "mine", "--figure", "lineage"],
        ["report", "mine"],
        ["report", "mine", "--verify"],
        ["compare", "mine", "-o", "c.svg"],
        ["export", "mine", "folder"],
    ],
    ids=" ".join,
)
def test_every_verb_shows_an_external_run_or_refuses(
    served: Served, capsys: pytest.CaptureFixture[str], arguments: list[str], has_best: bool
) -> None:
    if has_best:
        found(served)
    status = tttctl(arguments)
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "None" not in said.out + said.err
    refused = {"verify mine", "best mine --figure b.svg", "best mine --artifact b.json", "show mine starter"}
    refused |= {"report mine --verify"}
    if has_best:
        assert status == (2 if " ".join(arguments) in refused else 0), said.err
    assert status in (0, 2) and (status == 0 or said.err.startswith("tttctl: "))
    assert "fault of tttctl" not in said.err


def test_what_is_shown_of_a_best_answer_is_its_reward(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    found(served)
    for arguments, line in (
        (["runs"], "mine  finished  2/2   9.5"),
        (["status", "mine"], "best      reward 9.5, node 2"),
        (["best", "mine"], "9 \\x1b[31m9"),
        (["watch", "mine"], "best      reward 9.5"),
    ):
        assert tttctl(arguments) == 0
        assert line in capsys.readouterr().out
    assert tttctl(["report", "mine"]) == tttctl(["export", "mine", "out"]) == 0
    page = Path("mine.html").read_text()
    assert "tttctl submit digits --external --steps 2" in page and "tttctl verify" not in page
    assert "Starter" not in page and "Target" not in page and "Best reward" in page
    assert Path("out/programs/2.txt").read_text() == "9 \x1b[31m9"


def test_a_run_that_waits_for_its_harness_says_what_is_missing(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.runner.become("mine", "waiting", SILENT)
    assert tttctl(["runs"]) == tttctl(["status", "mine"]) == 0
    listed, told = capsys.readouterr().out.split("\nmine: ")
    assert f"waiting  0/2   -     {SILENT}" in listed
    assert told.startswith(f"waiting: {SILENT}\n") and "next      tttctl client mine" in told
    _describe_daemon(served.board.snapshot())
    assert "step 1/2, sample, grid 2/3, waits for its harness, ETA -\n" in capsys.readouterr().out


def test_waiting_is_no_end_for_who_follows_a_run(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    def play() -> None:
        states: list[tuple[RunState, str]] = [("waiting", SILENT), ("running", ""), ("finished", "")]
        for state, reason in states:
            while not served.board.watched():
                time.sleep(0.01)
            served.on_loop(lambda state=state, reason=reason: served.runner.become("mine", state, reason))
            served.on_loop(served.board.touch)

    player = threading.Thread(target=play)
    player.start()
    assert tttctl(["watch", "mine"]) == 0
    player.join()
    said = capsys.readouterr().err
    assert f"mine waiting: {SILENT}\n" in said and "step 1 sample, waiting\n" in said


def text(lines: list[Line]) -> str:
    return "\n".join("".join(span.text for span in line) for line in lines)


@pytest.mark.parametrize("size", [(80, 23), (120, 40)])
def test_the_monitor_shows_what_a_waiting_run_lacks(size: tuple[int, int]) -> None:
    status = fake.status(runs=[WAITING, *fake.runs()[1:]], current=fake.current(run=WAITING))
    said = screen(seen(status), *size)
    assert f"mine waits: {SILENT}"[: size[0] - 4] in said["banner"][0]
    assert "waiting" in said["header"][0] and "ETA" not in said["header"][0]
    assert any("○ mine" in line for line in said["queue"])
    assert "nothing found yet" in "".join(said["best"]) and "judge " not in "".join(said["phases"])
    held = screen(seen(msgspec.structs.replace(status, paused=True)), 200, 59)
    assert "held: the daemon is paused" in held["header"][0]


def test_the_monitor_tells_of_refused_reports_while_the_run_goes_on() -> None:
    run = msgspec.structs.replace(WAITING, state="running", reason="group 0, rollout 1: a report of release 0 ...")
    said = screen(seen(fake.status(runs=[run], current=fake.current(run=run))), 120, 40)
    assert "mine running: group 0, rollout 1: a report of release 0" in said["banner"][0]


def test_the_monitors_details_of_an_external_run_have_its_reason_and_its_best_reward() -> None:
    run = msgspec.structs.replace(WAITING, best=Best(node=7, reward=31.0, objective=None, step=1))
    said = text(pages.details(run, run.state, [], 200))
    assert SILENT in said and "reward 31, node 7, step 2" in said and "external" in said and "target" not in said
    names = [phase.name for phase in phases.phases(fake.current(run=run), [], fake.NOW, None)]
    assert names == ["sample", "train", "publish", "prove"]


def test_prometheus_hears_of_a_waiting_run_as_open_and_of_no_end_of_it() -> None:
    status = fake.status(runs=[WAITING], current=fake.current(run=WAITING))
    said, _ = exposition.text(status, StepRow(step=11, phase="committed", release=11, metrics={}))
    lines = said.decode().splitlines()
    assert 'tttdd_runs{state="waiting"} 1.0' in lines
    assert any(line.startswith("tttdd_run_info{") and 'state="waiting"' in line for line in lines)
    assert not any(line.startswith("tttdd_run_eta_seconds{") for line in lines)
