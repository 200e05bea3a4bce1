"""The harness's end of every process's questions (listener.py): what was reached, in order, and who stops where."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tttdd.failpoint import Point


class Points:
    """Answers the processes' questions; `stop_at` acts before the next answer at a point."""

    def __init__(self, address: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(address))
        self._socket.listen(64)
        self.told: list[tuple[Point, str]] = []
        """In order; coordinates as they are stored."""
        self._stop: tuple[Point, Callable[[], None]] | None = None
        self._turn = threading.Lock()
        self.count = self.judged = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def stop_at(self, point: Point, act: Callable[[], None]) -> None:
        self._stop = point, act

    def forget(self) -> None:
        self.told = []

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=[line], daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with suppress(OSError), line, line.makefile() as questions:
            for question in questions:
                self._heard(json.loads(question))
                line.sendall(b"\n")

    def _heard(self, question: dict[str, Any]) -> None:
        point = Point[question["point"]]
        with self._turn:
            self.told.append((point, question["what"]))
            self.count += 1
            self.judged += point is Point.ROLLOUT_JUDGED
            stop, act = self._stop or (None, None)
            if stop is point:
                self._stop = None
        if stop is point and act is not None:
            act()


def twice(told: list[tuple[Point, str]], done: Point, again: Point) -> int:
    """How often `again` was told of something that had been `done`."""
    finished: set[str] = set()
    count = 0
    for point, what in told:
        if point is done:
            finished.add(what)
        count += point is again and what in finished
    return count
