"""The real wandb: what it has after a whole run, after kill -9, after another start; offline, and with a fake server.

Offline its transaction log is read record by record (wandb's protobufs in LevelDB's log format).  Nothing may be sent
elsewhere: a listener stands where W&B's server and the proxy would be.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import fake_wandb
import psutil
import pytest
from wandb.proto import wandb_internal_pb2

from tests.processes import alive, words
from tests.test_tracking import FakeStore
from tttdd import __version__, daemon, tracking
from tttdd.adapters import tracking_wandb
from tttdd.adapters.tracking_wandb import NoKey, WandbTracking, api_key
from tttdd.config import Config, Model, Tracking, Wandb
from tttdd.protocol import Best
from tttdd.tracking import Tracker

MARK = "hunter2-do-not-tell-0123456789abcdef0123456789abcdef"
BLOCK = 32768
proto: Any = wandb_internal_pb2  # its types are made at run time
HEADER = struct.Struct("<IHB")

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def outside(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Secrets planted, a home of its own, and the certainty that nobody calls home."""
    monkeypatch.setattr(tracking, "PACE_SECONDS", 0.01)
    monkeypatch.setattr(tracking, "BACKOFF_SECONDS", 0.01)
    home = tmp_path_factory.mktemp("home")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for name in ("WANDB_BASE_URL", "HTTPS_PROXY", "HTTP_PROXY"):
            monkeypatch.setenv(name, address)
        for name in ("WANDB_API_KEY", "HF_TOKEN", "SOME_LOGIN"):
            monkeypatch.setenv(name, f"{MARK}-{name}")
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
            monkeypatch.setenv(name, str(home))
        yield
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert list(home.iterdir()) == [], "written only where it was told to"


def records(log: Path) -> Iterator[Any]:
    data, place, whole = log.read_bytes(), 7, b""
    assert data[:4] in (b":W&B", b"")
    while place + HEADER.size <= len(data):
        if BLOCK - place % BLOCK < HEADER.size:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        whole += data[place + HEADER.size : place + HEADER.size + length]
        place += HEADER.size + length
        if place > len(data):  # it is being written
            return
        if kind in (1, 4):  # whole, or the last part
            record = proto.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


class Log:
    """What one run's folder holds."""

    def __init__(self, root: Path) -> None:
        (folder,) = (root / "wandb").glob("*run-*")
        (file,) = folder.glob("*.wandb")
        self.id = file.stem.removeprefix("run-")
        self.rows: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.axes: dict[str, str] = {}
        self.artifacts: list[Any] = []
        self.exits: list[int] = []
        self.run: Any = None
        for record in records(file):
            self._take(record)

    def _take(self, record: Any) -> None:
        match record.WhichOneof("record_type"):
            case "run":
                self.run = record.run
                self.config |= values(record.run.config.update)
            case "config":
                self.config |= values(record.config.update)
            case "history":
                self.rows.append(values(record.history.item))
            case "summary":
                self.summary |= values(record.summary.update)
            case "metric":
                self.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
            case "artifact":
                self.artifacts.append(record.artifact)
            case "exit":
                self.exits.append(record.exit.exit_code)
            case _:
                pass

    @property
    def steps(self) -> list[int]:
        assert [row["_step"] for row in self.rows] == [row["tttd/step"] for row in self.rows]
        return [row["_step"] for row in self.rows]


def values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


class Place:
    def __init__(self, state_dir: Path, **settings: Any) -> None:
        self.store, self.state_dir = FakeStore(state_dir), state_dir
        about: dict[str, Any] = {"enabled": True, "mode": "offline"}
        self.settings = Wandb(**(about | settings))

    @asynccontextmanager
    async def tracking(self) -> AsyncGenerator[Place]:
        opens = WandbTracking(self.settings).open
        adapters = self.settings.upload_checkpoints
        tracker = Tracker(self.store, self.store, self.state_dir, opens, adapters=adapters)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tracker.track)
            await anyio.sleep(0.01)
            yield self
            tasks.cancel_scope.cancel()

    def ended(self) -> bool:
        note = self.state_dir / "runs/r" / tracking.NOTE
        return note.exists() and b'"ended":[' in note.read_bytes()

    def steps(self) -> list[int]:
        """So far: the file may not be there yet."""
        return self.log().steps if any(self.state_dir.glob("runs/r/wandb/*run-*/*.wandb")) else []

    def log(self) -> Log:
        return Log(self.state_dir / "runs/r")


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.01)


def ours() -> list[psutil.Process]:
    """The tracker's worker, then wandb's own process."""
    workers = [each for each in psutil.Process().children() if "tttdd.workers.track" in words(each)]
    below = [child for each in workers for child in each.children(recursive=True)]
    return workers + [child for child in below if any("wandb-core" in word for word in words(child))]


def written(state_dir: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in state_dir.rglob("*") if file.is_file()}


async def test_a_run_from_its_first_row_to_its_end(tmp_path: Path) -> None:
    place = Place(tmp_path, upload_checkpoints=True, project="puzzles")
    for name in ("adapter_model.safetensors", "adapter_config.json", "release.json", "optimizer.safetensors"):
        (tmp_path / "runs/r/releases/0001").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs/r/releases/0001" / name).write_text(f"{name} of release 1")
    async with place.tracking():
        place.store.submit(mode="discover")
        await until(lambda: len(ours()) == 2)
        told = "".join(f"{each.cmdline()} {each.environ()}" for each in ours())
        place.store.commit(loss=0.5)
        place.store.change(best=Best(node=4, reward=2.5, objective=0.25, step=1))
        place.store.commit(times=2, loss=0.25)
        place.store.change(state="finished")
        await until(place.ended)
    log = place.log()
    assert (log.steps, [row["loss"] for row in log.rows], log.exits) == ([0, 1, 2], [0.5, 0.25, 0.25], [0])
    assert (log.run.project, log.run.display_name, log.run.run_group, [*log.run.tags]) == (
        *("puzzles", "r", "t"),
        ["discover"],
    )
    expected = {"version": __version__, "grid.rollouts": 4, "model.revision": "abc", "run.task": "t"}
    assert log.config.items() >= expected.items()
    best = {"best/reward": 2.5, "best/objective": 0.25, "best/node": 4, "best/step": 1, "state": "finished"}
    assert log.summary.items() >= best.items()
    assert log.axes == {"tttd/step": "", "*": "tttd/step"}
    (artifact,) = log.artifacts
    assert {each.path for each in artifact.manifest.contents} == {
        *("adapter_model.safetensors", "adapter_config.json", "release.json")
    }
    assert (artifact.type, artifact.metadata, "best" in artifact.aliases) == ("model", '{"release":1}', True)
    assert [name for name, data in written(tmp_path).items() if MARK.encode() in data] == []
    assert MARK not in told and "WANDB_BASE_URL" in told
    assert os.uname().nodename not in str(log.run) and not any("requirements" in name for name in written(tmp_path))


async def test_kill_9_between_commit_and_log_and_another_daemon_leave_every_row_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.tracking():
        place.store.submit()
        place.store.commit(times=2)
        await until(lambda: len(ours()) == 2)
        for process in ours():
            process.kill()
        place.store.commit()
        await until(lambda: len(ours()) == 2)
        await until(lambda: place.steps() == [0, 1, 2])
        first = place.log().id
        for process in reversed(ours()):
            process.send_signal(signal.SIGSTOP)
        place.store.commit()
        held, began = ours(), time.monotonic()
    assert time.monotonic() - began < 4, "what hangs does not hold the daemon"
    await until(lambda: not any(alive(each) for each in held), 5)
    place.store.commit()
    async with place.tracking():
        place.store.change(state="failed")
        await until(place.ended)
    log = place.log()
    assert (log.steps, log.exits, log.id) == ([0, 1, 2, 3, 4], [1], first)


def words_and_environment(process: psutil.Process) -> str:
    """Empty of one that has just ended."""
    with suppress(psutil.Error):
        return f"{process.cmdline()} {process.environ()}"
    return ""


async def test_a_run_that_a_server_has_in_part_is_gone_on_with_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, mode="online")
    with fake_wandb.serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        async with place.tracking():
            place.store.submit()
            place.store.commit(times=2)
            place.store.change(state="failed")
            await until(lambda: server.exits == [1] and place.ended())
            assert server.steps == [0, 1]
            place.store.change(state="running")
            place.store.commit()
            await until(lambda: len(ours()) == 2)
            told = "".join(map(words_and_environment, ours()))
            for process in ours():
                process.kill()
            place.store.commit()
            place.store.change(state="finished")
            await until(lambda: server.exits == [1, 0])
    assert (server.steps, server.exits, len(set(server.runs))) == ([0, 1, 2, 3], [1, 0], 1)
    assert server.config["grid.rollouts"] == {"value": 4}
    (key,) = server.keys
    assert b64decode(key.removeprefix("Basic ")) == f"api:{MARK}-WANDB_API_KEY".encode()
    assert MARK not in told
    assert [name for name, data in written(tmp_path).items() if MARK.encode() in data] == []


async def test_a_directory_that_cannot_be_used_is_told_once_and_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    place = Place(tmp_path, directory=str(tmp_path / "file"))
    async with place.tracking():
        place.store.submit()
        place.store.commit()
        await until(lambda: bool(caplog.messages))
        await anyio.sleep(0.3)
    (said,) = caplog.messages
    assert said.startswith("tracking: W&B: open: NotADirectoryError: ") and f"{tmp_path}/file" in said


@contextmanager
def mounted(small: Path) -> Iterator[Path]:
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tttdd", small], check=True)
    try:
        yield small
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_rows_that_a_full_disk_has_not_taken_are_there_when_it_has_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "BACKOFF_SECONDS", 0.5)
    with mounted(tmp_path / "small") as small:
        place = Place(tmp_path, directory=str(small))
        async with place.tracking():
            place.store.submit()
            await until(lambda: len(ours()) == 2 and any(small.rglob("*.wandb")))
            with suppress(OSError):
                (small / "ballast").write_bytes(bytes(24 << 20))
            place.store.commit(times=50)
            place.store.change(state="finished")
            await until(lambda: "No space left on device" in caplog.text)
            assert not place.ended()
            (small / "ballast").unlink()
            await until(place.ended)
        assert Log(small / "r").steps == list(range(50))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_nothing_is_written_elsewhere_where_the_directory_is_read_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path / "small") as small:
        (small / "r/wandb").mkdir(parents=True)
        subprocess.run(["mount", "-o", "remount,ro", small], check=True)
        async with Place(tmp_path, directory=str(small)).tracking() as place:
            place.store.submit()
            await until(lambda: bool(caplog.messages))
    assert f"W&B: open: PermissionError: [Errno 13] Permission denied: '{small}/r/wandb'" in caplog.text


async def test_a_key_is_taken_from_the_environment_or_the_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api_key() == f"{MARK}-WANDB_API_KEY"
    monkeypatch.delenv("WANDB_API_KEY")
    assert api_key() is None
    with pytest.raises(NoKey, match="set WANDB_API_KEY"):
        WandbTracking(Wandb(mode="online"))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert api_key() is None
    (tmp_path / tracking_wandb.CREDENTIAL).write_text("key\n")
    assert api_key() == "key"


async def test_without_a_key_the_daemon_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    config = Config(model=Model(path="m"), tracking=Tracking(wandb=Wandb(enabled=True)))
    nobody: Any = None
    assert [*daemon._followers(config, nobody, nobody, nobody, Path())] == []
    assert 'tracking.wandb: mode = "online" needs an API key: set WANDB_API_KEY' in caplog.text
