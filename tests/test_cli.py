"""tttctl against the real API over fakes: every verb, its JSON, its exit status, and text that means harm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_daemon import Served, serving

from tests.fakes import FakeNvml
from tttctl.__main__ import run as tttctl
from tttctl.client import Client
from tttctl.render import clean
from tttctl.verbs import demo
from tttctl.verbs.runs import _describe_daemon, describe
from tttctl.verbs.watch import Meter
from tttdd import config, gpus, protocol
from tttdd.protocol import JudgesInfo, Submit

TASK = "erdos_min_overlap"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(tmp_path / "tttdd.sock") as served:
        monkeypatch.setenv("TTTDD_SOCKET", str(served.socket))
        assert tttctl(["submit", TASK, "--name", "first", "--json"]) == 0
        yield served


def out(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert tttctl(list(arguments)) == 0
    return capsys.readouterr().out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(out(capsys, *arguments, "--json"))


def test_submit_sends_what_was_asked(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--steps", "3", "--groups", "2", "--rollouts", "4", "--seed", "7"]
    run = answer(capsys, "submit", TASK, *sizes, "--name", "second")
    assert (run["run"], run["steps"], run["grid"]) == ("second", 3, {"groups": 2, "rollouts": 4})
    assert run["seed"] == 7
    tttctl(["submit", TASK, "--priority", "5", "--resume-from", "second"])
    assert served.runner.asked[-1] == ("submit", Submit(task=TASK, priority=5, resume_from="second"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs"], "first"),
        (["status"], "judges: process"),
        (["status", "first"], "0 of 2 steps"),
        (["tasks"], TASK),
        (["best", "first"], "def build():"),
        (["show", "first", "1"], "objective 0.4"),
        (["show", "first", "1", "--lineage"], "NODE"),
        (["verify", "first"], "node 1 is valid"),
        (["verify", "first", "1"], "node 1 is valid"),
        (["pause", "first", "--release-gpus"], "first: paused"),
        (["resume", "first"], "first: running"),
        (["pause"], "the daemon is"),
        (["resume"], "the daemon is"),
        (["cancel", "first"], "first: cancelled"),
    ],
)
def test_a_verb_speaks_to_people_and_to_programs(
    served: Served, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in out(capsys, *arguments)
    if arguments[0] != "cancel":
        assert answer(capsys, *arguments)


def test_best_writes_the_program_byte_for_byte(served: Served, tmp_path: Path) -> None:
    served.runner.program = "x = '\x1b[31m\ré'\r\n"
    assert tttctl(["best", "first", "-o", str(tmp_path / "best.py")]) == 0
    assert (tmp_path / "best.py").read_bytes().decode() == served.runner.program


def test_a_rejected_program_is_exit_status_1(served: Served) -> None:
    served.runner.verified_valid = False
    assert tttctl(["verify", "first"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit", "erdos"], "did you mean 'erdos_min_overlap'?"),
        (["submit", TASK, "--groups", "2"], "go together"),
        (["submit", TASK, "--name", "first"], "already"),
        (["status", "nobody"], "known runs: first"),
        (["status", "no/../body"], "no such path"),
        (["show", "first", "7"], "no node 7"),
        (["watch", "nobody"], "nobody"),
        (["best", "first", "-o", "/nowhere/at/all"], "cannot write"),
    ],
)
def test_a_refusal_is_exit_status_2_with_its_reason(
    served: Served, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert tttctl(arguments) == 2
    assert said in capsys.readouterr().err


def test_no_daemon_is_exit_status_3_and_says_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tttctl(["--socket", str(tmp_path / "none"), "runs"]) == 3
    assert tttctl(["runs", "--socket", str(tmp_path / "none")]) == 3
    assert "systemctl start tttdd" in capsys.readouterr().err


def test_bad_usage_is_exit_status_2() -> None:
    with pytest.raises(SystemExit) as ended:
        tttctl(["submit", TASK, "--steps", "many"])
    assert ended.value.code == 2


def test_a_broken_handler_is_told_as_the_daemons_failure(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.runner, "best", None)
    assert tttctl(["best", "first"]) == 1
    assert "the daemon failed (HTTP 500)" in capsys.readouterr().err


def test_an_answer_of_another_version_is_told_as_such(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.runner, "best", served.runner.run)
    assert tttctl(["best", "first"]) == 1
    assert "another version" in capsys.readouterr().err


def until_watched(served: Served) -> None:
    while not served.on_loop(served.board.watched):
        time.sleep(0.01)


@pytest.mark.parametrize("verb", [["watch", "first"], ["submit", TASK, "--wait"], ["submit", TASK, "--watch"]])
@pytest.mark.parametrize(("state", "status"), [("finished", 0), ("failed", 1), ("cancelled", 1)])
def test_waiting_ends_with_the_run(served: Served, verb: list[str], state: Any, status: int) -> None:
    def end() -> None:
        until_watched(served)
        for name in list(served.runner.by_name):
            served.on_loop(lambda name=name: served.runner.become(name, state, "because"))
        served.on_loop(served.board.touch)

    ender = threading.Thread(target=end)
    ender.start()
    assert tttctl([*verb, "--json"]) == status
    ender.join()


def test_watch_tells_each_committed_step_once(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    def advance(step: int, state: Any) -> None:
        run = served.runner.run("first")
        served.runner.by_name["first"] = msgspec.structs.replace(run, step=step, state=state)
        served.board.touch()

    def play() -> None:
        for step, state in [(1, "running"), (2, "running"), (2, "finished")]:
            until_watched(served)
            served.on_loop(lambda step=step, state=state: advance(step, state))

    player = threading.Thread(target=play)
    player.start()
    assert tttctl(["watch", "first"]) == 0
    player.join()
    lines = [line for line in capsys.readouterr().err.splitlines() if "mean reward" in line]
    assert [line.split(":")[0] for line in lines] == ["step 1/2", "step 2/2"]
    assert "valid 50%" in lines[0]
    assert "KL 0.01" in lines[0]


@pytest.mark.parametrize(
    ("judges", "line"),
    [
        (JudgesInfo(level="docker", parallel=2, missing=["a", "b"]), "judges: docker, 2 at once (not contained: a; b)"),
        (JudgesInfo(level="none", parallel=2, missing=["no image"]), "judges: cannot start: no image"),
    ],
)
def test_the_status_says_what_contains_programs(
    served: Served, capsys: pytest.CaptureFixture[str], judges: JudgesInfo, line: str
) -> None:
    _describe_daemon(msgspec.structs.replace(served.board.snapshot(), judges=judges))
    assert line in capsys.readouterr().out.splitlines()


def test_the_status_says_what_keeps_the_daemon_from_working(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    _describe_daemon(msgspec.structs.replace(served.board.snapshot(), notice="No space left on device"))
    assert "nothing is done until the state can be kept: No space left on device" in capsys.readouterr().out


def test_a_run_tells_where_it_went_on_from_and_what_it_waits_for(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    run = msgspec.structs.replace(
        served.runner.run("first"), resumed_from="before", first_step=7, state="paused", waits_for_room=True
    )
    describe(run)
    told = capsys.readouterr().out
    assert "from before, its first 7 steps" in told and "waits for room on the disk" in told


def test_why_a_run_does_not_go_on_is_told_once_and_in_full(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    run = msgspec.structs.replace(served.runner.run("first"), state="paused", reason="disk full " * 20)
    with Meter() as meter:
        meter.update(run, None)
        meter.update(run, None)
    assert capsys.readouterr().err.count(f"first paused: {run.reason}") == 1


def test_an_interrupted_watch_is_exit_status_130_and_says_that_the_run_goes_on(served: Served) -> None:
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests that run in the background ignore it
    command = [sys.executable, "-m", "tttctl", "watch", "first"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=heard) as watching:
        assert watching.stderr is not None
        watching.stderr.readline()
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 130
        assert b"tttctl watch first" in watching.stderr.read()


HOSTILE = "\x1b]0;owned\x07 \x9b31m \u202egnp\x7f \r\x08"


@pytest.mark.parametrize("arguments", [["best", "first"], ["show", "first", "1"], ["best", "first", "--json"]])
def test_hostile_text_never_reaches_the_terminal_raw(
    served: Served, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    served.runner.program = HOSTILE
    text = out(capsys, *arguments)
    assert not set(text) & (set(HOSTILE) - set(" 0123456789mgnpowned;]"))
    if "--json" in arguments:
        assert json.loads(text)["program"] == HOSTILE


def test_cleaning_leaves_plain_text_alone() -> None:
    assert clean("a\tb\nErdős ≤ 1") == "a\tb\nErdős ≤ 1"
    assert clean("\x1b") == "\\x1b"


def test_start_up_imports_nothing_slow(tmp_path: Path) -> None:
    program = "import sys; from tttctl.__main__ import run; run(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", program, "status", "--socket", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    slow = {
        "httpx",
        "rich",
        "numpy",
        "torch",
        "textual",
        "litestar",
        "anyio",
        "asyncio",
        "http.client",
        "uvicorn",
        "pynvml",
    }
    slow |= {"shutil", "inspect", "typing_extensions"}
    loaded = set(done.stdout.split())
    assert "tttctl.verbs.runs" in loaded
    assert not loaded & slow


def test_config_show_tells_where_each_value_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.toml"
    file.write_text('[model]\npath = "/m"\n[grid]\nsteps = 3\n')
    values = answer(capsys, "config", "show", "--file", str(file))["values"]
    assert values["grid.steps"] == {"value": 3, "from": f"{file}:4"}
    assert values["grid.groups"] == {"value": 8, "from": "default"}
    assert "grid.steps" in out(capsys, "config", "show", "--file", str(file))


def test_config_check_names_file_line_and_nearest_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.toml"
    file.write_text('[model]\npath = "/m"\n[grid]\nrollout = 3\n')
    assert tttctl(["config", "check", "--file", str(file)]) == 2
    assert f"{file}:4: unknown key 'grid.rollout'; did you mean 'rollouts'?" in capsys.readouterr().err
    assert tttctl(["config", "check", "--file", str(config.shipped("tttdd.cpu.toml"))]) == 0


def test_config_check_refuses_a_device_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpus, "nvml", FakeNvml({"total": 9, "used": 5}))
    file = tmp_path / "t.toml"
    file.write_text('[model]\npath = "/m"\n[engine]\ndevices = [0, 3]\n')
    assert tttctl(["config", "check", "--file", str(file)]) == 2
    said = f"{file}:4: engine.devices: there is no GPU 3; this machine has 1 (0)"
    assert said in capsys.readouterr().err
    assert tttctl(["config", "show", "--file", str(file)]) == 0


def test_status_shows_a_line_for_every_device(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    held = [protocol.GpuProcess(pid=7, memory=2**30, owner=owner) for owner in ("trainer", "engine", "engine")]
    one = protocol.GpuInfo(
        index=0, name="H200", memory_total=140 << 30, memory_used=91 << 30, load=0.93, processes=held
    )
    served.board.gpus = [one, msgspec.structs.replace(one, index=1, load=None, processes=[])]
    text = out(capsys, "status")
    assert "GPU 0: H200, 91.0 of 140.0 GiB, load 93%, engine, trainer\n" in text
    assert "GPU 1: H200, 91.0 of 140.0 GiB, load -, no process\n" in text
    assert answer(capsys, "status")["gpus"][0]["processes"][0] == {"pid": 7, "memory": 2**30, "owner": "trainer"}


def test_doctor_finds_the_daemon_and_the_packages(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    tttctl(["doctor", "--json"])
    lines = capsys.readouterr().out.strip().splitlines()
    findings = {finding["what"]: finding for finding in json.loads(lines[-1])["findings"]}
    assert findings["daemon"]["state"] == "ok"
    assert findings["python"]["found"] == sys.version.split()[0]
    assert findings["sandbox"]["found"].split(";")[0] in ("namespaces", "process")


def test_the_demos_configuration_is_the_shipped_one_with_its_own_places(tmp_path: Path) -> None:
    file, socket = demo.write_config(tmp_path)
    written, shipped = config.load(file), config.load(config.shipped("tttdd.cpu.toml"))
    assert written.daemon.socket == str(socket) == str(tmp_path / "tttdd.sock")
    assert written.daemon.state_dir == str(tmp_path)
    assert msgspec.structs.replace(written, daemon=shipped.daemon) == shipped


def test_a_deep_state_directory_gets_a_socket_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    _, socket = demo.write_config(deep)
    assert len(os.fsencode(socket)) < demo.SOCKET_PATH_LIMIT
    socket.parent.rmdir()


def asked(**changes: Any) -> Namespace:
    return Namespace(**{"task": TASK, "steps": None, "seed": 0, "state_dir": None, "json": False} | changes)


def test_the_same_demo_again_goes_on_with_the_run_that_was_cut_short(served: Served) -> None:
    client = Client(str(served.socket))
    assert demo.run_to_follow(client, asked()).run == "first"
    assert demo.run_to_follow(client, asked(steps=2)).run == "first"
    assert demo.run_to_follow(client, asked(seed=1)).run != "first"
    served.runner.become("first", "finished")
    assert demo.run_to_follow(client, asked()).run != "first"


def test_a_refused_demo_leaves_nothing_behind(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def the_fake(state_dir: Path, tasks: Path | None) -> Iterator[Client]:
        yield Client(str(served.socket))

    monkeypatch.setattr(demo, "private_daemon", the_fake)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert tttctl(["demo", "erdos"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert not any((tmp_path / "temporary").iterdir())


def test_the_demos_last_line_has_one_entry_per_committed_step(served: Served, tmp_path: Path) -> None:
    run = msgspec.structs.replace(served.runner.run("first"), step=2, release=2, state="finished")
    served.runner.by_name["first"] = run
    verdict = Client(str(served.socket)).post("/v1/runs/first/verify", protocol.Verify(), protocol.Verified)
    told = demo.summary(run, served.runner.steps("first"), verdict, tmp_path)
    assert (told["steps_committed"], told["releases"], told["best"]["verified"]) == (2, 2, True)
    columns = ("valid_fraction", "mean_reward", "sampler_trainer_gap", "kl_base", "proof", "seconds")
    assert [len(told[name]) for name in columns] == [2] * 6
    assert told["mean_reward"] == [1.25, 1.25]
