"""The daemon's news, brought by threads that nobody waits for: a hung socket holds up neither screen nor `q`.

    stream: /v1/events, again and again     pulse: /v1/health every few seconds     ask: one call, one thread

News are told by `tell`, which must not block.  Snapshots that come while one waits to be taken replace it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from tttctl.client import Client, Failed, NoDaemon, run_path
from tttdd.protocol import Health, Status, StepRow

PATIENCE = 10.0
"""Seconds that a call may take; a daemon at work answers in milliseconds."""
PULSE_SECONDS = 3.0
RETRY_SECONDS = 0.5
TROUBLE = (NoDaemon, Failed, OSError, EOFError, ValueError, IndexError)
"""What a call can end in, when something answers that is no daemon, too."""

Value = TypeVar("Value")


class Snapshot(msgspec.Struct, frozen=True):
    """There is one to be taken."""


class Back(msgspec.Struct, frozen=True):
    """The daemon answers."""


class Lost(msgspec.Struct, frozen=True):
    why: str


class Rows(msgspec.Struct, frozen=True):
    run: str
    rows: list[StepRow] | None
    """None: they could not be had."""


class Answer(msgspec.Struct, frozen=True):
    """Of a call that was asked for; `then` takes the value."""

    then: Callable[[Any], None]
    value: Any


class Refused(msgspec.Struct, frozen=True):
    why: str


News = Snapshot | Back | Lost | Rows | Answer | Refused
Tell = Callable[[News], None]


class Source(Protocol):
    """What the app asks of its feed."""

    def start(self, tell: Tell) -> None: ...
    def stop(self) -> None: ...
    def take(self) -> Status | None: ...
    def rows(self, run: str) -> None: ...
    def ask(self, call: Callable[[Client], Value], then: Callable[[Value], None]) -> None: ...


class Feed:
    def __init__(self, path: str, pulse: float = PULSE_SECONDS, patience: float = PATIENCE) -> None:
        self._client = Client(path, timeout=patience)
        self._pulse_client = Client(path, timeout=min(patience, pulse))
        self._pulse_seconds = pulse
        self._tell: Tell = _nobody
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._newest: Status | None = None
        self._streaming = False
        self._asked: set[str] = set()

    def start(self, tell: Tell) -> None:
        self._tell = tell
        for work in (self._stream, self._pulse):
            _in_background(work)

    def stop(self) -> None:
        """Nothing is told any more; a thread that waits for a socket ends with the process."""
        self._tell = _nobody
        self._stopped.set()

    def take(self) -> Status | None:
        """The newest snapshot, once."""
        with self._lock:
            newest, self._newest = self._newest, None
        return newest

    def rows(self, run: str) -> None:
        """Ask for a run's steps; a question that is open already is not asked again."""
        if run not in self._asked:
            self._asked.add(run)
            _in_background(lambda: self._fetch(run))

    def ask(self, call: Callable[[Client], Value], then: Callable[[Value], None]) -> None:
        """Do `call` somewhere else, then tell its value, or why there is none."""

        def work() -> None:
            try:
                news: News = Answer(then, call(self._client))
            except TROUBLE as error:
                news = Refused(str(error))
            self._tell(news)

        _in_background(work)

    def _fetch(self, run: str) -> None:
        try:
            rows = self._client.get(run_path(run, "/steps"), list[StepRow])
        except TROUBLE:  # the banner tells of a daemon that is gone; the rows are asked for again
            rows = None
        self._asked.discard(run)
        self._tell(Rows(run, rows))

    def _stream(self) -> None:
        while not self._stopped.is_set():
            why = "the daemon has ended"
            try:
                for status in self._client.events():
                    self._streaming = True
                    self._offer(status)
                    if self._stopped.is_set():
                        return
            except TROUBLE as error:
                why = str(error)
            self._streaming = False
            self._tell(Lost(why))
            self._stopped.wait(RETRY_SECONDS)

    def _offer(self, status: Status) -> None:
        with self._lock:
            waiting, self._newest = self._newest is not None, status
        if not waiting:
            self._tell(Snapshot())

    def _pulse(self) -> None:
        """A daemon that is stopped or stuck closes nothing: only a call that is not answered shows it."""
        while not self._stopped.wait(self._pulse_seconds):
            try:
                self._pulse_client.get("/v1/health", Health)
            except TROUBLE as error:
                self._tell(Lost(str(error)))
            else:
                if self._streaming:
                    self._tell(Back())


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def _nobody(news: News) -> None:
    pass
