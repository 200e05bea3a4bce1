"""What keeps the daemon from starting is told with what it is about; nothing is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import anyio
import pytest

from tests.fakes import FakeNvml
from tests.tiny_config import tiny_config
from tttdd import config, daemon, gpus


def refusal(
    folder: Path, *, engine: str = "torch", tasks: str = "", devices: tuple[int, ...] = (), **paths: str
) -> str:
    settings = config.Config(
        daemon=config.Daemon(
            socket=paths.get("socket", str(folder / "s")), state_dir=paths.get("state_dir", str(folder)), group=""
        ),
        model=config.Model(path="m", dtype="float32"),
        engine=config.Engine(backend="sglang" if engine == "sglang" else "torch"),
        trainer=config.Trainer(devices=devices),
        tasks=config.Tasks(path=(tasks,) if tasks else ()),
    )
    with pytest.raises(daemon.CannotStart) as caught:
        daemon.run(settings, folder / "tttdd.toml")
    return str(caught.value)


def test_a_state_dir_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(tmp_path, state_dir=str(tmp_path / "file")) == (
        f"{tmp_path}/file: cannot be used as state_dir: Not a directory"
    )


def test_a_socket_path_that_is_a_file_is_named_and_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert refusal(tmp_path, socket=str(tmp_path / "file")).startswith(f"{tmp_path}/file: cannot listen there: ")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_socket_in_use_is_told_with_the_process(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
        other.listen()
        assert "a daemon already listens there (pid " in refusal(tmp_path)


def test_a_state_dir_in_use_is_refused(tmp_path: Path) -> None:
    with daemon.locked(tmp_path):
        assert "another daemon uses this state_dir" in refusal(tmp_path)


def test_a_directory_of_tasks_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, tasks="/nowhere").endswith("tasks.path: /nowhere is no directory")


def test_a_device_that_is_not_there_is_refused_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tttdd.toml").write_text("[trainer]\ndevices = [1]\n")
    monkeypatch.setattr(gpus, "nvml", FakeNvml({"total": 9, "used": 5}))
    assert refusal(tmp_path, devices=(1,)) == (
        f"{tmp_path}/tttdd.toml:2: trainer.devices: there is no GPU 1; this machine has 1 (0)"
    )


def test_a_version_of_sglang_that_is_not_spoken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.5.3")
    said = refusal(tmp_path, engine="sglang")
    assert 'engine.backend = "sglang": SGLang 0.5.3 is installed, but this version of tttdd speaks to ' in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_full_at_the_start_may_have_room_at_another(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tttdd", small], check=True)
    try:
        with (small / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        command = [sys.executable, "-m", "tttdd", "--state-dir", small / "state", "--socket", tmp_path / "s"]
        (tmp_path / "tttdd.toml").write_text(tiny_config(tmp_path, small / "state"))
        done = subprocess.run([*command, "--config", tmp_path / "tttdd.toml"], capture_output=True, text=True)
        assert (done.returncode, "No space left on device" in done.stderr) == (1, True), done.stderr
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_mistake_of_a_follower_ends_the_follower_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def mistaken() -> None:
        raise ZeroDivisionError("a mistake")

    anyio.run(daemon.apart, mistaken)
    assert "no run is touched" in caplog.text and "a mistake" in caplog.text
