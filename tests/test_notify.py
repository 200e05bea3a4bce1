"""The daemon's words to systemd, heard by a datagram socket in the place of the manager."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tttdd import notify


class EndOfTest(Exception):
    pass


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = str(tmp_path / "notify")
    address = path if request.param == "file" else "@" + path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address.replace("@", "\0", 1))
        listener.settimeout(2)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        yield listener


def test_the_manager_hears_each_word_as_one_datagram(manager: socket.socket) -> None:
    notify.ready()
    notify.status("step 3 of 8\nREADY=1")
    notify.stopping()
    assert [manager.recv(4096) for _ in range(3)] == [b"READY=1", b"STATUS=step 3 of 8 READY=1", b"STOPPING=1"]


def test_nothing_is_said_where_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify.ready()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify.ready()


def test_a_manager_that_stopped_reading_does_not_hold_the_daemon(manager: socket.socket) -> None:
    begun = time.monotonic()
    for _ in range(2000):
        notify.status("x" * 200)
    assert time.monotonic() - begun < 20
    assert manager.recv(4096).startswith(b"STATUS=")


def test_the_loop_beats_twice_in_the_interval_the_manager_asked_for(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise EndOfTest

    monkeypatch.setattr(notify.anyio, "sleep", sleep)
    with pytest.raises(EndOfTest):
        anyio.run(notify.watchdog)
    assert pauses == [0.1] * heard(manager) == [0.1] * 4


def test_a_loop_that_hangs_misses_its_beats(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)

    async def hang() -> None:
        with anyio.move_on_after(0.5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(notify.watchdog)
                await anyio.sleep(0.01)
                time.sleep(0.5)

    anyio.run(hang)
    assert heard(manager) <= 2


def test_the_newest_log_message_is_the_status_line(manager: socket.socket) -> None:
    log = logging.getLogger("tests.notify")
    handler = notify.StatusLog()
    log.addHandler(handler)
    log.warning("step %d:\nsampling", 3)
    log.removeHandler(handler)
    assert manager.recv(4096) == b"STATUS=step 3: sampling"


@pytest.mark.parametrize(("interval", "process"), [("", None), ("0", None), ("soon", None), ("100000", "1")])
def test_no_watchdog_where_none_is_asked_of_this_process(
    interval: str, process: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", interval)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    if process is not None:
        monkeypatch.setenv("WATCHDOG_PID", process)
    anyio.run(notify.watchdog)


def heard(manager: socket.socket) -> int:
    """WATCHDOG datagrams that have come."""
    manager.setblocking(False)
    count = 0
    while True:
        try:
            assert manager.recv(4096) == b"WATCHDOG=1"
        except BlockingIOError:
            return count
        count += 1
