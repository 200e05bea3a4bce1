"""The devices as NVML tells them, by a fake: what is read, whose it is, and every way in which NVML can fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.fakes import FakeNvml
from tttdd import config, daemon, gpus
from tttdd.board import Board
from tttdd.protocol import GpuInfo, GpuProcess, JudgesInfo

pytestmark = pytest.mark.anyio

GIB = 2**30
H200 = {"total": 140 * GIB, "used": 3 * GIB, "load": 42}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml(H200 | {"processes": {os.getpid(): 2 * GIB}}, dict(H200))
    monkeypatch.setattr(gpus, "nvml", fake)
    return fake


@pytest.fixture
def session(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The pids of a process that leads a session as our trainer does, and of a child of it."""
    (tmp_path / "tttdd").mkdir()
    (tmp_path / "tttdd" / "workers.py").write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'])\nprint(child.pid, flush=True)\nsys.stdin.read()\nchild.kill()\n"
    )
    (tmp_path / "tttdd" / "__init__.py").touch()
    command = [sys.executable, "-m", "tttdd.workers", "tttdd.workers.train", "3", "1", "{}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, text=True, start_new_session=True, stdin=pipe, stdout=pipe) as leader:
        assert leader.stdout and leader.stdin
        yield leader.pid, int(leader.stdout.readline())
        leader.stdin.close()


def test_a_device_is_read_with_memory_load_and_processes(nvml: FakeNvml) -> None:
    first, second = gpus.read()
    assert (first.index, first.name, first.memory_total, first.memory_used) == (0, "NVIDIA H200", 140 * GIB, 3 * GIB)
    assert first.load == 0.42
    assert [(one.pid, one.memory) for one in first.processes] == [(os.getpid(), 2 * GIB)]
    assert (second.index, second.processes) == (1, [])
    assert nvml.open == 0


def test_a_machine_without_nvml_has_no_devices(nvml: FakeNvml) -> None:
    nvml.broken = {"nvmlInit"}
    assert gpus.read() == []
    assert gpus.nvml is nvml


def test_the_real_library_answers_with_a_list() -> None:
    assert isinstance(gpus.read(), list)


@pytest.mark.parametrize(
    ("broken", "indices"),
    [
        ("nvmlDeviceGetCount", []),
        ("nvmlDeviceGetHandleByIndex 0", [1]),
        ("nvmlDeviceGetMemoryInfo", []),
        ("nvmlShutdown", [0, 1]),
    ],
)
def test_what_cannot_be_read_is_left_out(nvml: FakeNvml, broken: str, indices: list[int]) -> None:
    nvml.broken = {broken}
    assert [gpu.index for gpu in gpus.read()] == indices


def test_a_device_that_tells_neither_load_nor_processes_is_still_told(nvml: FakeNvml) -> None:
    nvml.broken = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses"}
    assert [(gpu.load, gpu.processes, gpu.memory_used) for gpu in gpus.read()] == [(None, [], 3 * GIB)] * 2


def test_all_that_a_worker_starts_is_its_own(session: tuple[int, int]) -> None:
    assert [gpus.owner(pid) for pid in session] == ["trainer", "trainer"]


@pytest.mark.parametrize(
    ("module", "owner"),
    [("serve", "engine"), ("serve.probe", "engine"), ("sample", "engine"), ("train", "trainer"), ("fetch", None)],
)
def test_a_worker_is_known_by_its_module(module: str, owner: str | None) -> None:
    line = f"python\0-P\0-m\0tttdd.workers\0tttdd.workers.{module}\x003\x001\0{{}}\0"
    assert gpus.worker(line) == owner


def test_another_command_is_named_and_a_process_that_is_gone_is_unknown() -> None:
    command = ["sh", "-c", "echo ready; read more"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, start_new_session=True, stdin=pipe, stdout=pipe) as other:
        assert other.stdin and other.stdout and other.stdout.readline() == b"ready\n"
        assert gpus.owner(other.pid) == "sh"
        other.stdin.close()
    assert gpus.owner(other.pid) == "unknown"


def reading(used: int = 3 * GIB, load: float | None = 0.4, pids: tuple[int, ...] = (7,)) -> list[GpuInfo]:
    held = [GpuProcess(pid=pid, memory=GIB, owner="engine") for pid in pids]
    return [GpuInfo(index=0, name="x", memory_total=9 * GIB, memory_used=used, load=load, processes=held)]


def test_only_a_noticeable_change_is_one() -> None:
    before = reading()
    assert not gpus.differ(before, reading(used=3 * GIB + (63 << 20), load=0.44))
    assert gpus.differ(before, reading(used=3 * GIB - (64 << 20)))
    assert gpus.differ(before, reading(load=0.45))
    assert gpus.differ(before, reading(pids=(8,)))
    assert gpus.differ(before, [])


def settings(engine: tuple[int, ...], trainer: tuple[int, ...]) -> config.Config:
    return config.Config(
        model=config.Model(path="m"),
        engine=config.Engine(devices=engine),
        trainer=config.Trainer(devices=trainer),
    )


def test_devices_that_are_not_there_are_told_with_those_that_are(nvml: FakeNvml) -> None:
    there = gpus.read()
    assert list(gpus.missing(settings((0,), (1,)), there)) == []
    assert list(gpus.missing(settings((0, 3), (1,)), there)) == [
        ("engine.devices", "there is no GPU 3; this machine has 2 (0, 1)")
    ]
    assert list(gpus.missing(settings((0,), (4, 5)), [])) == [
        ("engine.devices", "there is no GPU 0; this machine has no NVIDIA GPU that can be seen"),
        ("trainer.devices", "there is no GPU 4, 5; this machine has no NVIDIA GPU that can be seen"),
    ]


async def test_the_board_shows_the_newest_reading_and_tells_noticeable_ones(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "GAUGE_SECONDS", 0.01)
    board = Board("c", "s", lambda: [], lambda: JudgesInfo(level="process", parallel=1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(daemon.gauge, board)
        with anyio.fail_after(30):
            version = await board.changed(0)
            nvml.devices[1]["used"] += 1 << 20
            while board.snapshot().gpus[1].memory_used == 3 * GIB:
                await anyio.sleep(0.01)
            assert await board.changed(version - 1) == version
            nvml.devices[1]["used"] += GIB
            assert await board.changed(version) == version + 1
        assert nvml.open >= 1
        tasks.cancel_scope.cancel()


async def test_without_devices_nothing_is_watched(nvml: FakeNvml) -> None:
    nvml.devices.clear()
    board = Board("c", "s", lambda: [], lambda: JudgesInfo(level="process", parallel=1))
    with anyio.fail_after(30):
        await daemon.gauge(board)
    assert board.snapshot().gpus == []
    assert nvml.open == 0


@pytest.mark.parametrize(("daemon", "expected"), [("own", True), ("gone", True), ("another", False)])
def test_workers_of_this_or_a_dead_daemon_are_leaving_and_those_of_another_are_not(daemon: str, expected: bool) -> None:
    pid = {"own": os.getpid(), "gone": 2**22 + 1, "another": os.getppid()}[daemon]
    command = [sys.executable, "-c", "input()", "tttdd.workers.serve", "3", str(pid), "{}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as worker:
        while not Path(f"/proc/{worker.pid}/cmdline").read_bytes():  # it has just become another program
            time.sleep(0.01)
        holders = [GpuProcess(pid=worker.pid, memory=1, owner="engine")]
        gpu = GpuInfo(index=0, name="x", memory_total=2, memory_used=1, load=None, processes=holders)
        assert gpus.leaving([gpu]) is expected
        worker.kill()
