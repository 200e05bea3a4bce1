"""The event stream: whole snapshots to any number of watchers, each encoded once for all of them.

    board -changed-> Feed: JSON, anew at most COALESCED_HZ times a second -> EventStream, one a watcher

A slow or late watcher cannot be wrong: it gets the newest snapshot.  One that does not read waits in its own `send`
with at most one snapshot more than its connection buffers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import anyio.abc
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tttdd import protocol

COALESCED_HZ = 5


class Board(Protocol):
    def snapshot(self) -> protocol.Status: ...

    async def changed(self, after: int) -> int:
        """Wait for a version above `after`; returns it."""
        ...


class Feed:
    def __init__(self, board: Board) -> None:
        self._board = board
        self._version, self._made, self._event = -1, -math.inf, b""

    async def after(self, version: int) -> tuple[int, bytes]:
        """An event that is newer than `version`, and its own version, as soon as there is one."""
        newest = await self._board.changed(version)
        now = time.monotonic()
        if self._version <= version or now - self._made >= 1 / COALESCED_HZ:
            event = b"data: " + msgspec.json.encode(self._board.snapshot()) + b"\n\n"
            self._version, self._made, self._event = newest, now, event
        return self._version, self._event


class EventStream(Response):
    """Ends properly when `stopping` is set."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed, stopping: anyio.Event) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._feed, self._stopping = feed, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with anyio.create_task_group() as tasks:
            cancel_at_the_end(tasks, receive, self._stopping)
            await self._tell(send)
        await send({"type": "http.response.body"})

    async def _tell(self, send: Send) -> None:
        version = -1
        while True:
            version, event = await self._feed.after(version)
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await anyio.sleep(1 / COALESCED_HZ)


def cancel_at_the_end(tasks: anyio.abc.TaskGroup, receive: Receive, stopping: anyio.Event) -> None:
    """Of the daemon or of the client's patience."""
    for end in (stopping.wait, lambda: _disconnected(receive)):
        tasks.start_soon(_cancel_after, end, tasks.cancel_scope)


async def _cancel_after(end: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
    await end()
    scope.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
