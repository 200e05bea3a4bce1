"""A command of the user's is told what happens to the runs: a new best, a failure, an end.

    board changes -> store -> Event -> command: JSON on its standard input, TTTDD_* in its environment;   one at a time

What is to be told follows from the store and a note in the run's folder, so nothing queues up, a restart tells nothing
twice that was told to the end, and of several new bests the newest is told.  No run waits for the command or fails with
it.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

import anyio
import anyio.abc
import msgspec
from msgspec.structs import replace

from judges.text import printable
from tttdd.config import Notify
from tttdd.durable import write_file
from tttdd.errors import CallerError
from tttdd.ports import StoreError
from tttdd.protocol import RunInfo, RunState

PACE_SECONDS = 1.0
"""Between two looks, while there is news all the time."""
COMMAND_SECONDS = 30.0
DRAIN_SECONDS = 0.2
"""For what the command has said to be read, once it has ended."""
TAIL = 2000
"""Bytes of what a failed command has said, for the log."""
PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
ENDED: tuple[RunState, ...] = ("failed", "finished", "cancelled")
NOTE = "announced.json"

_log = logging.getLogger("tttdd.announce")


Kind = Literal["best", "failed", "finished"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What the command reads: one JSON object."""

    event: Kind
    run: RunInfo


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Kept in the run's folder: what was told of it."""

    reward: float | None = None
    """Of the best program that was told."""
    ended: tuple[RunState, int] | None = None
    """State and step of an end that was told."""


class Store(Protocol):
    def runs(self) -> list[RunInfo]: ...


class Board(Protocol):
    async def changed(self, after: int) -> int: ...


class Announcer:
    def __init__(
        self, settings: Notify, store: Store, board: Board, state_dir: Path, whole: Callable[[str], RunInfo]
    ) -> None:
        """`whole` gives a run with what only its task knows, which takes longer."""
        self._settings, self._store, self._board, self._state_dir = settings, store, board, state_dir
        self._whole = whole
        self._notes: dict[str, Note] = {}
        self._begin()

    async def announce(self) -> None:
        """For ever."""
        version, trouble = -1, ""
        while True:
            version = await self._board.changed(version)
            try:
                for run in self._store.runs():
                    await self._look_at(run)
                trouble = ""
            except (StoreError, OSError, CallerError) as error:
                if trouble != (trouble := str(error)):
                    _log.warning("notify: %s", error)
            await anyio.sleep(PACE_SECONDS)

    def _begin(self) -> None:
        """What had ended before anybody wanted to be told is left alone."""
        for run in self._store.runs():
            if run.state in ENDED and not self._place(run.run).exists():
                self._notes[run.run] = Note(ended=(run.state, run.step), reward=run.best and run.best.reward)

    async def _look_at(self, run: RunInfo) -> None:
        note = self._notes.get(run.run) or self._read(run)
        for event, told in _news(run, note):
            if event in self._settings.events:
                whole = self._whole(run.run)
                about = {name: getattr(whole, name) for name in ("target", "objective_name", "direction")}
                about["reason"] = run.reason.encode(errors="replace").decode()  # half a character is no JSON
                await run_command(self._settings.command, Event(event=event, run=replace(run, **about)))
            self._write(run.run, told)
        self._notes.setdefault(run.run, note)

    def _place(self, name: str) -> Path:
        return self._state_dir / "runs" / name / NOTE

    def _read(self, run: RunInfo) -> Note:
        """Of a run that was never looked at, a note is written: from now on its end is told, whatever happens."""
        try:
            return msgspec.json.decode(self._place(run.run).read_bytes(), type=Note)
        except (FileNotFoundError, msgspec.MsgspecError):
            self._write(run.run, Note())
            return Note()

    def _write(self, name: str, note: Note) -> None:
        self._notes[name] = note
        write_file(self._place(name), msgspec.json.encode(note))


def _news(run: RunInfo, note: Note) -> Iterator[tuple[Kind | None, Note]]:
    """What is to be told, each with what is noted once it is; an end that is no end any more is told of nobody."""
    best = run.best
    if best is not None and run.first_step <= best.step < run.step and _is_more(best.reward, note.reward):
        note = replace(note, reward=best.reward)
        yield "best", note
    ended = (run.state, run.step) if run.state in ENDED else None
    if ended != note.ended:
        yield run.state if run.state == "failed" or run.state == "finished" else None, replace(note, ended=ended)


def _is_more(reward: float, told: float | None) -> bool:
    return told is None or reward > told


async def run_command(command: tuple[str, ...], event: Event) -> None:
    """Until it ends, or COMMAND_SECONDS have passed; nothing of its process group stays.  What fails is logged."""
    said, process = bytearray(), None
    try:
        with anyio.CancelScope(shield=True):  # one that is started must be known, to be ended
            process = await anyio.open_process(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(event),
                cwd="/",
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        _log.warning("notify: %s: %s", command[0], error)
        return
    assert process is not None
    told = msgspec.json.encode(event)
    try:
        how = f"took longer than {COMMAND_SECONDS:g} s"
        with anyio.move_on_after(COMMAND_SECONDS):
            code = await _attend(process, told, said)
            how = f"ended with status {code}" if code else ""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    if how:
        words = printable(bytes(said)).strip().replace("\n", " | ")[-TAIL:] or "it said nothing"
        _log.warning("notify: %s, told of %s %s, %s: %s", command[0], event.run.run, event.event, how, words)


async def _attend(process: anyio.abc.Process, told: bytes, said: bytearray) -> int | None:
    """Give it `told`, keep the end of what it says, wait for it; what it leaves behind may hold the pipes open."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_give, process, told)
        tasks.start_soon(_listen, process, said)
        await process.wait()
        await anyio.sleep(DRAIN_SECONDS)
        tasks.cancel_scope.cancel()
    return process.returncode


async def _give(process: anyio.abc.Process, told: bytes) -> None:
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, BrokenPipeError, ConnectionResetError):
        await process.stdin.send(told)
        await process.stdin.aclose()


async def _listen(process: anyio.abc.Process, said: bytearray) -> None:
    assert process.stdout is not None
    async for part in process.stdout:
        said += part
        del said[:-TAIL]


def _environment(event: Event) -> Mapping[str, str]:
    """No secret of the daemon's, and what a one-line script needs without reading JSON."""
    kept = {name: os.environ[name] for name in PASSED if name in os.environ}
    run = event.run
    told = {"EVENT": event.event, "RUN": run.run, "TASK": run.task, "STEP": run.step, "STEPS": run.steps}
    if run.best is not None:
        told |= {"NODE": run.best.node, "REWARD": run.best.reward, "OBJECTIVE": run.best.objective}
    if event.event == "failed":
        told["REASON"] = printable(run.reason)
    return kept | {f"TTTDD_{name}": str(value) for name, value in told.items() if value is not None}
