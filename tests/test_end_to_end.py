"""The real daemon on a tiny model: real engine, trainer, judges, store; paused, cancelled, continued.

What kills it is in tests/crash.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from safetensors import safe_open

from tests.processes import alive, wait_for, words
from tests.tiny_config import tiny_config
from tests.tiny_models import write_tiny_model
from tttctl.client import Client, NoDaemon
from tttdd.protocol import (
    Artifact,
    GridSize,
    Health,
    NodeInfo,
    Pause,
    RunInfo,
    Status,
    StepRow,
    Submit,
    Value,
    Verified,
    Verify,
)

GRID = GridSize(2, 4)
RUN = "/v1/runs/r"

pytestmark = pytest.mark.timeout(300)


class Daemon:
    """A tttdd process in a folder of its own."""

    def __init__(self, folder: Path, style: str = "completion", environment: dict[str, str] | None = None) -> None:
        self.folder, self.client = folder, Client(str(folder / "s"))
        self._environment = os.environ | (environment or {})
        write_tiny_model(folder / "model")
        (folder / "tttdd.toml").write_text(tiny_config(folder, folder / "state", prompt={"style": style}))

    def start(self) -> None:
        command = [sys.executable, "-m", "tttdd", "--config", str(self.folder / "tttdd.toml")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, start_new_session=True, env=self._environment)
        wait_for(lambda: self.answers(), "the daemon")

    def answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            return self.client.get("/v1/health", Health).status == "ok"
        except NoDaemon:
            return False

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def workers(self, module: str = "tttdd.workers") -> list[psutil.Process]:
        return [child for child in self.children() if any(part.startswith(module) for part in words(child))]

    def kill(self) -> None:
        """kill -9, and see that nothing it started outlives it."""
        children = self.children()
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not any(alive(child) for child in children), "the workers to die with the daemon")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)

    def submit(self, steps: int) -> None:
        self.client.post("/v1/runs", Submit(task="erdos_min_overlap", steps=steps, grid=GRID, name="r"), RunInfo)

    def run(self, name: str = "r") -> RunInfo:
        return self.client.get(f"/v1/runs/{name}", RunInfo)

    def phase(self) -> tuple[int, str]:
        current = self.client.get("/v1/status", Status).current
        return (current.run.step, current.phase.name) if current else (-1, "idle")

    def finish(self, name: str = "r") -> RunInfo:
        wait_for(lambda: self.run(name).state not in ("queued", "running"), "the run to end", 200)
        return self.run(name)

    def rows(self, query: str) -> list[tuple[int, ...]]:
        with sqlite3.connect(f"file:{self.folder}/state/archive.sqlite3?mode=ro", uri=True) as database:
            return database.execute(query).fetchall()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    daemon.start()
    yield daemon
    daemon.stop()


def assert_whole(daemon: Daemon, steps: int) -> None:
    """Every coordinate recorded once, one release a step, each proved, samples gone, batch = what was archived."""
    size = GRID.groups * GRID.rollouts
    assert daemon.rows("SELECT step, count(*) FROM rollouts GROUP BY step") == [(s, size) for s in range(steps)]
    releases = [(0, -1), *((s + 1, s) for s in range(steps))]
    assert daemon.rows("SELECT number, step FROM releases ORDER BY number") == releases
    assert daemon.rows("SELECT count(*) FROM samples") == [(0,)]
    committed = daemon.client.get(f"{RUN}/steps", list[StepRow])
    assert [row.release for row in committed] == list(range(steps))
    for row in committed:
        assert row.proof is not None and row.proof.gap < 1e-4 < row.proof.trainer_shift
        assert abs(row.metrics["train/sampler_trainer_gap"]) < 1e-4


def test_the_real_loop_learns_its_best_is_valid_again_and_another_run_goes_on_from_there(daemon: Daemon) -> None:
    daemon.submit(steps=2)
    run = daemon.finish()
    assert (run.state, run.step, run.release) == ("finished", 2, 2), run.reason
    assert_whole(daemon, 2)
    assert run.best is not None and run.starter is not None and run.best.reward >= run.starter.reward
    verified = daemon.client.post(f"{RUN}/verify", Verify(node=run.best.node), Verified)
    assert (verified.valid, verified.reward) == (True, run.best.reward)
    node = daemon.client.get(f"{RUN}/best", NodeInfo)
    assert node.program.startswith("import numpy") and "⟦" not in node.program
    kept = daemon.client.get(f"{RUN}/nodes/{run.best.node}/artifact", Artifact)
    heights, _, points = msgspec.json.decode(kept.artifact, type=tuple[list[float], float, int])
    assert len(heights) == points and kept.sha256 == verified.artifact_sha256 == node.artifact_sha256
    wait_for(lambda: not daemon.workers(), "idle: no worker")
    another_goes_on_from_its_weights_and_its_optimizer(daemon)


def another_goes_on_from_its_weights_and_its_optimizer(daemon: Daemon) -> None:
    request = Submit(task="erdos_min_overlap", steps=1, grid=GRID, seed=1, name="more", resume_from="r")
    daemon.client.post("/v1/runs", request, RunInfo)
    more = daemon.finish("more")
    assert (more.state, more.step, more.release, more.first_step) == ("finished", 3, 3, 2), more.reason
    (row,) = daemon.client.get("/v1/runs/more/steps", list[StepRow])
    assert row.proof is not None and row.proof.gap < 1e-4 < row.proof.trainer_shift
    with safe_open(daemon.folder / "state/runs/more/releases/0003/optimizer.safetensors", "numpy") as tensors:
        assert int(tensors.get_tensor("step")) == 3


def test_a_run_that_does_not_train_starts_no_trainer_and_stays_on_the_base(daemon: Daemon) -> None:
    request = Submit(task="circle_packing_26", steps=2, grid=GRID, name="r", mode="search")
    daemon.client.post("/v1/runs", request, RunInfo)
    wait_for(lambda: daemon.phase()[1] == "sample", "sampling", 120)
    log = daemon.folder / "state/runs/r/logs"
    assert daemon.workers("tttdd.workers") and [file.name for file in log.iterdir()] == ["engine.log"]
    run = daemon.finish()
    assert (run.state, run.step, run.release, run.mode, run.figure) == ("finished", 2, 0, "search", "circles")
    assert daemon.rows("SELECT number, step FROM releases") == [(0, -1)] and daemon.rows("SELECT * FROM samples") == []
    steps = daemon.client.get(f"{RUN}/steps", list[StepRow])
    assert [(row.phase, row.proof, "train/loss" in row.metrics) for row in steps] == [("committed", None, False)] * 2
    assert daemon.client.get(f"{RUN}/identity", dict[str, Value])["mode"] == "search"


def test_a_paused_daemon_that_is_killed_stays_paused_and_holds_no_worker(daemon: Daemon) -> None:
    daemon.client.post("/v1/pause", Pause(), Status)
    daemon.submit(steps=1)
    daemon.kill()
    daemon.start()
    status = daemon.client.get("/v1/status", Status)
    assert (status.paused, [run.state for run in status.runs]) == (True, ["queued"])
    time.sleep(0.5)
    assert daemon.workers() == []


def test_a_paused_run_waits_releases_its_workers_and_goes_on(daemon: Daemon) -> None:
    daemon.submit(steps=1)
    wait_for(lambda: daemon.phase()[1] == "sample", "sampling", 120)
    daemon.client.post(f"{RUN}/pause", Pause(release_gpus=True), RunInfo)
    wait_for(lambda: not daemon.workers(), "no worker")
    assert daemon.run().state == "paused"
    daemon.stop()
    daemon.start()
    assert daemon.run().state == "paused"
    daemon.client.post(f"{RUN}/resume", None, RunInfo)
    assert daemon.finish().state == "finished", daemon.run().reason
    assert_whole(daemon, 1)


def test_a_cancelled_run_ends_its_workers_and_the_next_one_starts(daemon: Daemon) -> None:
    daemon.submit(steps=50)
    daemon.client.post("/v1/runs", Submit(task="circle_packing_26", steps=1, grid=GRID, name="next"), RunInfo)
    wait_for(lambda: daemon.phase()[1] == "sample", "sampling", 120)
    daemon.client.post(f"{RUN}/cancel", None, RunInfo)
    wait_for(lambda: daemon.client.get("/v1/runs/next", RunInfo).state == "running", "the next run")
    assert daemon.run().state == "cancelled"
    daemon.stop()
    assert daemon.process.returncode == 0


def test_a_grid_without_a_valid_program_trains_a_batch_without_signal(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, style="chat")
    daemon.start()
    try:
        daemon.submit(steps=1)
        assert daemon.finish().state == "finished", daemon.run().reason
        (row,) = daemon.client.get(f"{RUN}/steps", list[StepRow])
        assert row.metrics["tttd/valid_fraction"] == 0 and row.metrics["tttd/training_groups"] == 1
        assert daemon.run().release == 1
    finally:
        daemon.stop()


def test_a_run_whose_settings_changed_is_paused_naming_the_fields(daemon: Daemon) -> None:
    daemon.submit(steps=2)
    wait_for(lambda: daemon.run().state == "running", "the run's start")
    daemon.kill()
    config = daemon.folder / "tttdd.toml"
    config.write_text(config.read_text().replace("lr = 0.001", "lr = 0.002"))
    daemon.start()
    wait_for(lambda: daemon.run().state == "paused", "the refusal")
    assert "trainer.lr" in daemon.run().reason
