"""What an experiment tracker is told of each run: its committed rows, its best program, how it ended.

    board changes -> runs that have something to tell -> Session: tell* -> finish;   a failure -> back off, tell again

The store is the source of truth and no cursor is kept of rows: a session says from which step on it lacks them, so a
crash at any moment loses none and repeats none.  Kept in the run's folder are the tracker's id and how far an ended run
was told.  No failure here is a run's.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import anyio
import msgspec

from tttdd import __version__
from tttdd.durable import write_file
from tttdd.errors import first_words
from tttdd.folder import RunFolder
from tttdd.ports import Release, StoreError, WorkerDied, WorkerFailed
from tttdd.protocol import RunInfo, RunState, StepRow, Value

PACE_SECONDS = 1.0
"""Between two looks, while there is news all the time."""
BACKOFF_SECONDS = 30.0
BACKOFF_MOST_SECONDS = 1800.0
ROWS = 200
"""Told at once."""
EXIT: dict[RunState, int] = {"finished": 0, "failed": 1, "cancelled": 255}
"""The states that end a run, as a tracker knows them."""
NOTE = "tracking.json"

_log = logging.getLogger("tttdd.tracking")


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a tracker's run is opened with."""

    id: str
    """The same whenever this run is opened."""
    run: RunInfo
    config: Mapping[str, Value]
    folder: RunFolder


class Session(Protocol):
    """A tracker's run, open.  Every method raises WorkerDied, WorkerFailed or TimeoutError."""

    @property
    def next(self) -> int:
        """First step that the tracker does not have yet, when the session was opened."""
        ...

    async def tell(
        self, rows: Sequence[tuple[int, dict[str, float]]], config: Mapping[str, Value], summary: Mapping[str, Value]
    ) -> None: ...

    async def adapter(self, release: Release, aliases: list[str]) -> None:
        """Keep the release's weights beside the run."""
        ...

    async def finish(self, exit_code: int) -> None:
        """Returns when all that was told is kept for good."""
        ...


Opens = Callable[[Opening], AbstractAsyncContextManager[Session]]


class Store(Protocol):
    def runs(self) -> list[RunInfo]: ...
    def run(self, run: str) -> RunInfo: ...
    def steps(self, run: str) -> list[StepRow]: ...
    def identity(self, run: str) -> dict[str, Value]: ...


class Board(Protocol):
    async def changed(self, after: int) -> int: ...


class Note(msgspec.Struct, frozen=True):
    """Kept in the run's folder."""

    id: str
    ended: tuple[RunState, int] | None = None
    """State and step of a run whose end is told."""


class Tracker:
    def __init__(self, store: Store, board: Board, state_dir: Path, opens: Opens, *, adapters: bool) -> None:
        self._store, self._board, self._state_dir, self._opens = store, board, state_dir, opens
        self._adapters = adapters
        self._version = -1
        self._told: dict[str, tuple[RunState, int]] = {}
        """State and step of the runs that have nothing to tell but what is told."""
        self._failures = 0
        """In a row."""
        self._in_hand: str | None = None
        self._begin()

    async def track(self) -> None:
        """For ever."""
        while True:
            try:
                await self._follow()
            except* (WorkerDied, WorkerFailed, StoreError, OSError) as error:
                if not self._failures:
                    _log.warning("tracking: %s; no run waits for it, it is tried again", first_words(error))
            await anyio.sleep(min(BACKOFF_SECONDS * 2**self._failures, BACKOFF_MOST_SECONDS))
            self._failures += 1

    def _begin(self) -> None:
        """What had ended before anybody wanted it tracked is left alone."""
        for run in self._store.runs():
            if run.state in EXIT:
                note = self._note(run.run)
                ended = note.ended if note else (run.state, run.step)
                self._told |= {run.run: ended} if ended else {}

    async def _follow(self) -> None:
        while True:
            if (name := self._due()) is None:
                await self._news()
                continue
            self._in_hand = name
            run, note = self._store.run(name), self._note(name) or self._take(name)
            opening = Opening(id=note.id, run=run, config=self._config(run), folder=self._folder(name))
            async with self._opens(opening) as session:
                await self._carry(name, note, session)

    async def _carry(self, name: str, note: Note, session: Session) -> None:
        """Tell one run's news until it has ended, or until only another has some."""
        following = _Following(session)
        while True:
            run = self._store.run(name)
            await following.tell(run, self._store, self._config(run))
            if self._adapters:
                await following.keep(run, self._folder(name))
            if run.state in EXIT:
                await session.finish(EXIT[run.state])
                self._write(name, Note(note.id, (run.state, run.step)))
            self._told[name] = (run.state, run.step)
            self._recovered()
            if run.state in EXIT or self._due() not in (None, name):
                return
            await self._news()

    def _recovered(self) -> None:
        if self._failures:
            _log.info("tracking goes on")
        self._failures = 0

    async def _news(self) -> None:
        await anyio.sleep(PACE_SECONDS)
        self._version = await self._board.changed(self._version)

    def _due(self) -> str | None:
        """The run that is running, else one that has something to tell; one that failed to be told is the last."""
        runs = [run for run in self._store.runs() if self._has_news(run)]
        failed = self._in_hand if self._failures else None
        return min(runs, key=lambda run: (run.state != "running", run.run == failed)).run if runs else None

    def _has_news(self, run: RunInfo) -> bool:
        began = run.step > run.first_step or run.state not in ("queued", "cancelled") or self._has_note(run.run)
        waits = run.state == "queued" or self._told.get(run.run) == (run.state, run.step)
        return run.state == "running" or (began and not waits)

    def _config(self, run: RunInfo) -> dict[str, Value]:
        about: dict[str, Value] = {
            "version": __version__,
            "run.task": run.task,
            "run.mode": run.mode,
            "run.kind": run.kind,
            "run.steps": run.steps,
            "run.resumed_from": run.resumed_from,
        }
        return about | self._store.identity(run.run)

    # The note

    def _folder(self, name: str) -> RunFolder:
        return RunFolder(self._state_dir / "runs" / name)

    def _has_note(self, name: str) -> bool:
        return (self._folder(name).path / NOTE).exists()

    def _note(self, name: str) -> Note | None:
        try:
            return msgspec.json.decode((self._folder(name).path / NOTE).read_bytes(), type=Note)
        except (OSError, msgspec.MsgspecError):
            return None

    def _take(self, name: str) -> Note:
        note = Note(uuid.uuid4().hex[:16])
        self._write(name, note)
        return note

    def _write(self, name: str, note: Note) -> None:
        write_file(self._folder(name).path / NOTE, msgspec.json.encode(note))


class _Following:
    """One session's progress."""

    def __init__(self, session: Session) -> None:
        self._session, self._next = session, session.next
        self._face: object = None
        self._rows: list[StepRow] = []
        self._kept: set[tuple[int, str]] = set()

    async def tell(self, run: RunInfo, store: Store, config: Mapping[str, Value]) -> None:
        if self._face == (face := (run.step, run.state, run.best, config)):
            return
        self._rows = [row for row in store.steps(run.run) if row.phase == "committed"]
        new = [(row.step, row.metrics) for row in self._rows if row.step >= self._next]
        for part in range(0, max(1, len(new)), ROWS):
            await self._session.tell(new[part : part + ROWS], config, dict(_summary(run)))
        self._face, self._next = face, new[-1][0] + 1 if new else self._next

    async def keep(self, run: RunInfo, folder: RunFolder) -> None:
        """The weights that sampled the best program, and at the end the last."""
        found = {row.step: row.release for row in self._rows}.get(run.best.step, 0) if run.best else 0
        wanted = [(found, "best"), (run.release, "last")] if run.state in EXIT else [(found, "best")]
        for number, alias in wanted:
            release = folder.release(number)
            if release.path and release.path.is_dir() and (number, alias) not in self._kept:
                await self._session.adapter(release, [alias, f"release-{number}"])
                self._kept.add((number, alias))


def _summary(run: RunInfo) -> Iterator[tuple[str, Value]]:
    yield "state", run.state
    if run.best is not None:
        yield from (("best/reward", run.best.reward), ("best/node", run.best.node), ("best/step", run.best.step))
    if run.best is not None and run.best.objective is not None:
        yield "best/objective", run.best.objective
