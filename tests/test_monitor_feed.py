"""The monitor's threads against a real socket: a daemon that comes and goes, is slow, hangs, or is none."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fake_monitor as fake
from tttctl.monitor import feed
from tttctl.monitor.feed import Answer, Back, Feed, Lost, News, Refused, Rows, Snapshot


class Heard:
    """What was told; `wait` for it."""

    def __init__(self) -> None:
        self._news: list[News] = []
        self._more = threading.Condition()

    def __call__(self, news: News) -> None:
        with self._more:
            self._news.append(news)
            self._more.notify_all()

    def wait(self, wanted: type[Any] | Callable[[News], bool], seconds: float = 20.0) -> Any:
        """The first such news, which is taken away with all before it."""
        fits = (lambda news: isinstance(news, wanted)) if isinstance(wanted, type) else wanted
        deadline = time.monotonic() + seconds
        with self._more:
            while not any(map(fits, self._news)):
                assert self._more.wait(deadline - time.monotonic()), f"never told; {self._news[-3:]}"
            place = next(i for i, news in enumerate(self._news) if fits(news))
            found = self._news[place]
            del self._news[: place + 1]
            return found


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "tttdd.sock"


@pytest.fixture
def heard(socket: Path) -> Iterator[tuple[Heard, Feed]]:
    told, fed = Heard(), Feed(str(socket), pulse=0.05, patience=0.5)
    fed.start(told)
    yield told, fed
    fed.stop()


def daemon(socket: Path) -> fake.Daemon:
    made = fake.Daemon(socket, {"/v1/health": {"status": "ok", "version": "0"}, "/v1/runs/a/steps": fake.rows(3)})
    made.publish(fake.status())
    return made


def test_a_daemon_that_restarts_is_found_again(socket: Path, heard: tuple[Heard, Feed]) -> None:
    told, fed = heard
    assert "no daemon" in told.wait(Lost).why
    for _ in range(2):
        served = daemon(socket)
        told.wait(Snapshot)
        assert fed.take() == fake.status()
        served.close()
        told.wait(Lost)


def test_snapshots_that_nobody_took_are_replaced_by_the_newest(socket: Path, heard: tuple[Heard, Feed]) -> None:
    told, fed = heard
    served = daemon(socket)
    told.wait(Snapshot)
    for version in map(str, range(5)):
        served.publish(fake.status(version=version))
    deadline = time.monotonic() + 20
    while (newest := fed._newest) is None or newest.version != "4":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert (taken := fed.take()) is not None and taken.version == "4"
    assert fed.take() is None
    served.close()


def test_a_daemon_that_hangs_is_told_and_welcomed_back(socket: Path, heard: tuple[Heard, Feed]) -> None:
    told, _ = heard
    served = daemon(socket)
    told.wait(Snapshot)
    served.hangs.set()
    told.wait(lambda news: isinstance(news, Lost) and "does not answer" in news.why)
    served.hangs.clear()
    told.wait(Back)
    served.close()


def test_steps_are_asked_for_once_at_a_time(socket: Path, heard: tuple[Heard, Feed]) -> None:
    told, fed = heard
    served = daemon(socket)
    told.wait(Snapshot)
    served.hangs.set()
    for _ in range(5):
        fed.rows("a")
    assert told.wait(Rows).rows is None
    assert served.asked.count("/v1/runs/a/steps") == 1
    served.hangs.clear()
    fed.rows("a")
    assert told.wait(Rows).rows == fake.rows(3)
    served.close()


def test_a_question_is_answered_or_refused_and_never_raises(socket: Path, heard: tuple[Heard, Feed]) -> None:
    told, fed = heard
    served = daemon(socket)
    fed.ask(lambda client: client.get("/v1/health", dict[str, str]), print)
    assert told.wait(Answer).value["status"] == "ok"
    fed.ask(lambda client: client.get("/v1/none", dict[str, str]), print)
    assert told.wait(Refused).why == "nothing at /v1/none"
    served.close()


@pytest.mark.parametrize(
    "said", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 \xff\xfe\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nzz\r\n", b""]
)
def test_something_else_at_the_socket_is_no_daemon(socket: Path, said: bytes) -> None:
    listening = fake.answering(socket, said)
    told, fed = Heard(), Feed(str(socket), pulse=60)
    fed.start(told)
    told.wait(Lost)
    fed.stop()
    listening.close()


def test_quitting_waits_for_no_socket(socket: Path) -> None:
    """The whole program, under a terminal: the daemon hangs, and one q ends the open question, the next the program."""
    served = daemon(socket)
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "tttctl", "--socket", str(socket), "monitor"]
    environment = os.environ | {"TERM": "xterm-256color"}
    running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = until(mine, b"judged")
    assert b"\x1b[?1049h" in written
    served.hangs.set()
    os.write(mine, b"b")
    deadline = time.monotonic() + 20
    while "/v1/runs/erdos-long/best" not in served.asked:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pressed = time.monotonic()
    os.write(mine, b"qq")
    try:
        until(mine, b"\x1b[?1049l")
        assert running.wait(20) == 0
    finally:
        running.kill()
        running.wait()
    assert time.monotonic() - pressed < feed.PATIENCE / 2
    os.close(mine)
    served.close()


def until(terminal: int, wanted: bytes) -> bytes:
    """What is written up to that."""
    written = b""
    while wanted not in written:
        written += os.read(terminal, 65536)
    return written
