"""What a daemon holds after a run is what it held after the run before.  Hundreds of steps: benchmarks/leaks.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import census, private
from tests.tiny_models import write_tiny_model
from tttctl.client import run_path
from tttdd import config, protocol

STEPS = 2
LOOKS, PAUSE_SECONDS = 5, 0.2
"""The fewest of some looks count: a connection may just be ending."""
ROLES = ("daemon", "zygote", "grader")
FLAT = [f"{role} {what}" for role in ROLES for what in ("descriptors", "processes")]
FLAT += ["zombies", "temporary files"]

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[private.Daemon]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    model = write_tiny_model(tmp_path / "model")
    private.configure(tmp_path, config.shipped("tttdd.cpu.toml"), model, [], max_new_tokens=32)
    with private.Daemon(tmp_path) as daemon:
        yield daemon


def after_a_run(daemon: private.Daemon, place: Path) -> census.Counts:
    request = protocol.Submit(task="erdos_min_overlap", steps=STEPS, grid=protocol.GridSize(2, 4))
    run = daemon.finish(daemon.client.post("/v1/runs", request, protocol.RunInfo).run)
    assert len(daemon.client.get(run_path(run.run, "/steps"), list[protocol.StepRow])) == STEPS
    next(daemon.client.events())  # somebody looks in and goes away
    looks = [_look(daemon, place) for _ in range(LOOKS)]
    return {name: min(look.get(name, 0) for look in looks) for name in looks[0]}


def _look(daemon: private.Daemon, place: Path) -> census.Counts:
    time.sleep(PAUSE_SECONDS)
    return census.taken(daemon.process.pid, place)


def test_a_run_leaves_the_daemon_with_what_the_run_before_left_it(daemon: private.Daemon, tmp_path: Path) -> None:
    first, second = (after_a_run(daemon, tmp_path) for _ in range(2))
    assert not {name: second[name] - first[name] for name in FLAT if second[name] > first[name]}
    assert not [name for name in second if name.startswith(("engine", "trainer"))]
    assert second["zombies"] == 0
