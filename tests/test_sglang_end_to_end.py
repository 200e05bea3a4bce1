"""The real daemon on a machine that seems to have two GPUs and SGLang: of it all only NVML and SGLang are fakes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import wait_for
from tests.test_end_to_end import RUN, Daemon, assert_whole
from tttdd.protocol import GpuInfo, Status, StepRow

HERE = Path(__file__).parent
ENVIRONMENT = {"PYTHONPATH": f"{HERE / 'fake_gpu'}{os.pathsep}{HERE.parent}"}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, environment=ENVIRONMENT)
    config = tmp_path / "tttdd.toml"
    engine = 'backend = "sglang"\ndevices = [0, 1]'
    config.write_text(config.read_text().replace('backend = "torch"\ndevices = []', engine))
    daemon.start()
    yield daemon
    daemon.stop()


def servers(daemon: Daemon) -> list[psutil.Process]:
    return daemon.workers("tttdd.workers.sglang_server")


def test_a_killed_server_is_replaced_and_only_what_is_missing_is_sampled(daemon: Daemon) -> None:
    daemon.submit(steps=1)
    wait_for(lambda: daemon.phase()[1] == "sample", "sampling", 200)
    wait_for(lambda: bool(daemon.rows("SELECT 1 FROM rollouts")), "a recorded rollout")
    before = daemon.rows("SELECT step, grid_group, rollout, recorded FROM rollouts")
    first = servers(daemon)
    assert len(first) == 2
    os.kill(first[0].pid, signal.SIGKILL)
    assert daemon.finish().state == "finished", daemon.run().reason
    assert_whole(daemon, 1)
    assert set(before) <= set(daemon.rows("SELECT step, grid_group, rollout, recorded FROM rollouts"))
    for row in daemon.client.get(f"{RUN}/steps", list[StepRow]):
        assert row.proof is not None and row.proof.share == pytest.approx(1, abs=0.05)
    assert "GPU 1 (16.0 GiB, 15.0 GiB free): engine" in (daemon.folder / "log").read_text()
    wait_for(lambda: not daemon.workers(), "idle: no worker")


def test_a_killed_daemon_leaves_no_server_not_even_one_that_is_starting(daemon: Daemon) -> None:
    assert [gpu.index for gpu in daemon.client.get("/v1/gpus", list[GpuInfo])] == [0, 1]
    assert daemon.client.get("/v1/status", Status).gpus[0].memory_total == 16 << 30
    daemon.submit(steps=1)
    wait_for(lambda: len(servers(daemon)) == 2, "the servers", 100)
    daemon.kill()
