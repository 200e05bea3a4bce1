"""The queue and the one run in hand: workers per run, restarts after a dead worker, pause, resume, cancel.

    queued -> running -> finished | failed | cancelled
                 ^ v
               paused          resume takes paused and failed runs; a new daemon goes on with what was running

A dead worker is one kind of error: the runner backs off and re-enters the loop, at most RESTARTS times without a
commit in between.  A full disk pauses the run until there is room again, any other error fails it; none ends the
daemon.  Where not even that can be written down, nothing is taken until it can.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import anyio.to_thread
import msgspec

from judges.verdict import Verdict
from tttdd import step
from tttdd.assignment import Assignment, Catalog
from tttdd.board import Board
from tttdd.config import Config
from tttdd.desk import Desk
from tttdd.domain.archive import Archive
from tttdd.errors import CallerError, Conflict, Refused, first_words
from tttdd.failpoint import Point, reach
from tttdd.gate import Gate
from tttdd.planning import plan_of
from tttdd.ports import ModelFiles, PublishFailed, StoreError, StoreUnusable, WorkerDied, WorkerFailed
from tttdd.protocol import RunInfo, RunState, Submit, TaskInfo
from tttdd.registry import Registry
from tttdd.room import lacks_room
from tttdd.run_ports import Room, RunStore
from tttdd.world import Workshop

RESTARTS = 3
BACKOFF_SECONDS = 2.0
ROOM_SECONDS = 10.0
"""Between two looks for room on the disk; doubled, up to ROOM_MOST_SECONDS, by each time that a run comes back."""
ROOM_MOST_SECONDS = 600.0
OPEN: tuple[RunState, ...] = ("queued", "running", "paused")

_log = logging.getLogger("tttdd.runner")


class IdentityChanged(RuntimeError):
    """What the run is made of is not what it was submitted with."""


class Runner(Registry):
    def __init__(
        self,
        config: Config,
        store: RunStore,
        board: Board,
        catalog: Catalog,
        workshop: Workshop,
        room: Room,
        desk: Desk,
    ) -> None:
        super().__init__(config, store, catalog)
        self._board, self._workshop, self._room, self._desk = board, workshop, room, desk
        self._gate = Gate()
        self._news = anyio.Event()
        self._in_hand: str | None = None
        self._scope: anyio.CancelScope | None = None
        self._paused = board.paused = store.paused()
        self._stalled = False

    # What the API asks

    def submit(self, request: Submit) -> RunInfo:
        run = super().submit(request)
        _log.info("run %s: submitted", run.run)
        self._wake()
        return run

    def pause(self, name: str | None, release_gpus: bool) -> None:
        if name is None:
            self._store.set_paused(True)
            self._paused = self._board.paused = True
            self._hold(release_gpus)
        else:
            self._must_be(name, *OPEN)
            self._store.set_state(name, "paused", "paused by a user")
            if name == self._in_hand:
                self._hold(release_gpus)
        self._board.touch()

    def resume(self, name: str | None) -> None:
        self._stalled, self._board.notice = False, ""  # whoever asks wants it tried now
        if name is None:
            self._store.set_paused(False)
            self._paused = self._board.paused = False
        else:
            self._must_be(name, "paused", "failed")
            run = self._store.run(name)
            if name != self._in_hand and (why := self._changed(run, self._assignment(run.kind, run.task), None)):
                raise Conflict(f"run {name!r}: {why}", field="run")
            self._store.set_state(name, "running" if name == self._in_hand else "queued", "")
        in_hand = self._store.run(self._in_hand) if self._in_hand else None
        if not self._paused and (in_hand is None or in_hand.state == "running"):
            self._gate.open()
        self._wake()

    def cancel(self, name: str) -> None:
        self._must_be(name, *OPEN)
        self._store.set_state(name, "cancelled", "cancelled by a user")
        if name == self._in_hand and self._scope is not None:
            self._scope.cancel()
        _log.info("run %s: cancelled", name)
        self._board.touch()

    # The loop

    async def work(self) -> None:
        """Take the open runs one after another, for ever: first what was running, then the oldest."""
        while True:
            news = self._news
            if (name := self._next()) is None:
                await news.wait()
                continue
            self._in_hand = name
            self._gate.open()
            with anyio.CancelScope() as self._scope, self._stalling():
                await self._carry(name)
            self._in_hand = self._scope = None
            self._board.take(None)

    async def await_room(self) -> None:
        """Let go on, for ever, what a full disk has stopped, once there is room."""
        pause, tried = ROOM_SECONDS, dict[str, int]()
        while True:
            await anyio.sleep(pause)
            if self._stalled and await self._is_room(""):
                self._stalled, self._board.notice = False, ""
            with self._stalling():
                for run in [run for run in self._store.runs() if run.waits_for_room]:
                    if await self._is_room(run.run) and self._store.run(run.run).waits_for_room:
                        _log.info("run %s: there is room on the disk again", run.run)
                        self._store.set_state(run.run, "queued")
                        in_vain = tried.get(run.run) == run.step
                        pause = min(2 * pause, ROOM_MOST_SECONDS) if in_vain else ROOM_SECONDS
                        tried[run.run] = run.step
            self._wake()

    async def _carry(self, name: str) -> None:
        """One run until it ends, is paused with its devices released, or cannot go on."""
        failures, committed = 0, self._store.run(name).step
        while True:
            try:
                await self._attempt(name)
                self._set(name, "finished")
                return
            except* WorkerDied as died:
                reached = self._store.run(name).step
                failures, committed = (failures + 1, committed) if reached == committed else (1, reached)
                room = "" if await self._is_room("") else f"\n{os.strerror(errno.ENOSPC)}"
                words = first_words(died) + room  # which had no room for them either
                _log.warning("run %s: %s", name, words)
                if failures > RESTARTS or lacks_room(words):
                    self._end(name, "failed", words)
            except* StoreUnusable as error:
                self._stall(first_words(error))
            except* IdentityChanged as changed:
                self._end(name, "paused", first_words(changed))
            except* (WorkerFailed, PublishFailed, CallerError) as told:
                self._end(name, "failed", first_words(told))
            except* Exception as error:  # noqa: BLE001  any other error fails the run, never the daemon
                if not lacks_room(first_words(error)):
                    _log.exception("run %s failed", name)
                self._end(name, "failed", first_words(error))
            if self._paused or self._stalled or self._store.run(name).state != "running":
                return
            await anyio.sleep(BACKOFF_SECONDS * failures)
            if self._store.run(name).state != "running":  # paused meanwhile
                return

    async def _attempt(self, name: str) -> None:
        self._set(name, "running")
        run = self._store.run(name)
        self._board.take(name, run.grid, self._store.steps(name))
        for place, valid in self._store.judged(name):
            self._board.cell(place, "valid" if valid else "rejected")
        assignment = self._assignment(run.kind, run.task)
        reach(Point.RUN_TAKEN)
        self._board.prepare("the model", None)
        model = await self._workshop.prepare(self._board.prepare)
        await self._plant(run, assignment, model)
        plan = plan_of(run, assignment, self._config)
        self._board.prepare("the workers", None)
        async with self._workshop.open(plan, model, assignment.judge, self._desk, self._board, self._gate) as world:
            reach(Point.WORKERS_OPEN)
            await step.run_to_the_end(plan, world)

    async def _plant(self, run: RunInfo, assignment: Assignment, model: ModelFiles) -> None:
        """Judge the starter and plant the seeds, the first time; refuse another identity, every other time."""
        if why := self._changed(run, assignment, model.revision):
            raise IdentityChanged(why)
        if self._store.identity(run.run)["model.revision"] is not None:
            return
        archive, verdict = Archive(), Verdict(valid=True)
        if assignment.starter and assignment.judge:
            self._board.prepare("the starter program", None)
            verdict = await assignment.judge.grade(assignment.starter)
        if not verdict.valid:
            raise Refused(f"the starter of {run.task!r} is rejected by its own judge: {verdict.detail}")
        archive.seed(
            run.grid.groups,
            program=assignment.starter,
            output=verdict.output,
            reward=verdict.reward,
            objective=verdict.objective,
            certificate=verdict.certificate,
            artifact_sha256=verdict.artifact_sha256,
        )
        now = self._identity(assignment, self._of(run), run.seed, model.revision)
        self._store.plant(run.run, archive, now, verdict.artifact)
        reach(Point.PLANTED)

    # Parts of the above

    def _hold(self, release_gpus: bool) -> None:
        """Close the gate before the run in hand; what is in flight finishes, or ends with the workers."""
        self._gate.close()
        if release_gpus and self._scope is not None:
            self._scope.cancel()

    def _next(self) -> str | None:
        """What was running, else of the queued runs with the highest priority the oldest; none beside a full disk."""
        if not (self._paused or self._stalled):
            with self._stalling():
                runs = self._store.runs()
                taken = [run for run in runs if run.state in ("running", "queued")]
                if taken and not any(run.waits_for_room for run in runs):
                    return min(taken, key=lambda run: (run.state != "running", -run.priority)).run
        return None

    def _told(self, run: RunInfo, info: TaskInfo | None) -> RunInfo:
        told = super()._told(run, info)
        if run.kind == "task" or run.state != "running":
            return told
        if silent := self._desk.waits(run):
            return msgspec.structs.replace(told, state="waiting", reason=told.reason or silent)
        return msgspec.structs.replace(told, reason=told.reason or self._desk.troubles(run))

    def _why(self) -> str:
        paused = "the daemon is paused; it goes on after: tttctl resume" if self._paused else ""
        return self._board.notice or paused

    def _end(self, name: str, state: RunState, reason: str) -> None:
        """Why the run does not go on; where only room on the disk is missing, it waits for that."""
        with self._stalling():
            if lacks_room(reason):
                self._set(name, "paused", self._room_wanted(name, reason), waits=True)
            else:
                self._set(name, state, reason)

    def _room_wanted(self, name: str, reason: str) -> str:
        """The line about the disk, and what the run waits for."""
        line = next(line.strip() for line in reversed(reason.splitlines()) if lacks_room(line))
        return f"{line}; it goes on by itself when {self._room.needed(name) >> 20} MiB are free"

    async def _is_room(self, run: str) -> bool:
        return await anyio.to_thread.run_sync(self._room.enough, run)

    @contextmanager
    def _stalling(self) -> Generator[None]:
        """Where the store cannot be used, nothing is taken until it can."""
        try:
            yield
        except (StoreError, OSError) as error:
            self._stall(str(error))

    def _stall(self, why: str) -> None:
        _log.error("nothing is done until the state can be kept: %s", why)
        self._stalled, self._board.notice = True, why
        self._board.touch()

    def _set(self, name: str, state: RunState, reason: str = "", *, waits: bool = False) -> None:
        if self._store.run(name).state == "cancelled":  # while its workers were closing: it stays so
            return
        self._store.set_state(name, state, reason, waits=waits)
        level = logging.ERROR if state == "failed" else logging.WARNING if reason else logging.INFO
        _log.log(level, "run %s: %s%s", name, state, f": {reason}" if reason else "")
        self._board.touch()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()
        self._board.touch()
