"""Two hundred watchers over the real socket, some of which never read: all others see the newest snapshot."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import psutil
import pytest
from fake_daemon import FakeBoard, FakeRunner, Served, serving

from tests.test_api_bounds import connected, grow
from tttdd.api import events
from tttdd.api.events import Feed
from tttdd.protocol import Status

READERS, DEAF = 170, 30


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "s") as served:
        yield served


def watching(stack: ExitStack, served: Served, count: int) -> list[socket.socket]:
    socks = [stack.enter_context(connected(served)) for _ in range(count)]
    for sock in socks:
        sock.sendall(b"GET /v1/events HTTP/1.1\r\nhost: t\r\n\r\n")
    return socks


def read_until(socks: list[socket.socket], words: bytes, seconds: float = 30.0) -> int:
    """How many of them have heard `words`."""
    end, heard = time.monotonic() + seconds, 0
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        tails = dict.fromkeys(socks, b"")
        while selector.get_map() and time.monotonic() < end:
            for key, _ in selector.select(1.0):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                tails[sock] = tails[sock][-len(words) :] + sock.recv(1 << 20)
                if words in tails[sock]:
                    heard += 1
                    selector.unregister(sock)
    return heard


def test_200_watchers_of_which_some_never_read_all_see_the_newest_snapshot(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "COALESCED_HZ", 50)
    grow(served, size=1 << 17)
    with ExitStack() as stack:
        watching(stack, served, DEAF)
        readers = watching(stack, served, READERS)
        assert read_until(readers, b'"log":["version 0"]') == READERS
        before = psutil.Process().memory_info().rss
        for version in range(1, 31):
            served.on_loop(served.board.touch)
            assert read_until(readers[:1], b'"log":["version %d"]' % version) == 1
        assert read_until(readers[1:], b'"log":["version 30"]') == READERS - 1
        assert psutil.Process().memory_info().rss - before < 64 << 20, "30 snapshots for 30 deaf ones would be 118 MB"


class CountingBoard(FakeBoard):
    encoded = 0

    def snapshot(self) -> Status:
        self.encoded += 1
        return super().snapshot()


async def hear(feed: Feed, heard: list[bytes], until: int) -> None:
    version = -1
    while version < until:
        version, event = await feed.after(version)
        heard.append(event)
        await anyio.sleep(1 / events.COALESCED_HZ)


@pytest.mark.parametrize("watchers", [1, 200])
def test_a_snapshot_is_encoded_once_for_all_watchers(watchers: int) -> None:
    async def all_hear() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(watchers):
                tasks.start_soon(hear, feed, heard[number], 20)
            for _ in range(20):
                await anyio.sleep(0.01)
                board.touch()

    board = CountingBoard(FakeRunner())
    feed, heard = Feed(board), [list[bytes]() for _ in range(watchers)]
    anyio.run(all_hear)
    assert all(b"version 20" in mine[-1] for mine in heard)
    assert board.encoded <= 20, "not once for each watcher"


def test_a_watcher_that_comes_later_is_told_what_is_true_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "COALESCED_HZ", 1000)
    runner = FakeRunner()
    feed = Feed(FakeBoard(runner))

    async def twice() -> bytes:
        await feed.after(-1)
        runner.program = "nothing tells the board of this"
        runner.submit(events.protocol.Submit(task="erdos_min_overlap", name="late"))
        await anyio.sleep(0.01)
        return (await feed.after(-1))[1]

    assert b'"late"' in anyio.run(twice)
