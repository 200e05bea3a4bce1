"""The client of the zygote: blocking, any thread; many programs can be in flight at once.

    run: pipes + sealed memfd -> Launch -> collect result, output and status until Ended, or Kill at a limit

The wall clock of a program starts when its child does.  Failures of ours raise JudgeDied; the next run starts a
new zygote where the old one is gone.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Self

import msgspec

from judges.sandbox.collect import Collector, Stuck
from judges.sandbox.limits import THREAD_VARIABLES
from judges.sandbox.messages import Entry, Hello, Job, JudgeDied, Kill, Launch, Level, Limits, Outcome

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/scratch",
    "TMPDIR": "/scratch",
    "MALLOC_ARENA_MAX": "2",
} | dict.fromkeys(THREAD_VARIABLES, "1")
"""All that a program sees of an environment.  numpy reads it in the zygote, which must have one thread only; a child's
threads are as many as its processors (limits.pin)."""

ZYGOTE = ("-m", "judges.sandbox.zygote")
START_SECONDS = 60.0
STOP_SECONDS = 5.0
_HELLO_BYTES = 1 << 16
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Ticket:
    """Made before a `run` and given to it, to cancel that run from another thread."""

    def __init__(self) -> None:
        self.cancelled = False
        self.kill: Callable[[], None] | None = None
        """How to end the program; set while it runs."""


class _Zygote:
    """One zygote process and the line to it."""

    def __init__(self, level: Level) -> None:
        try:
            self.control, self.process = self._begun(level)
        except OSError as error:  # no descriptor, process or memory left
            raise JudgeDied(f"the sandbox's zygote cannot be started: {error.strerror}") from None
        self.hello = self._greeted()

    @staticmethod
    def _begun(level: Level) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, ExitStack() as undo:
            undo.enter_context(ours)
            command = [
                sys.executable,
                "-I",
                *ZYGOTE,
                str(theirs.fileno()),
                str(os.getpid()),
                level,
            ]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            undo.pop_all()
        return ours, process

    def _greeted(self) -> Hello:
        self.control.settimeout(START_SECONDS)
        try:
            packet = self.control.recv(_HELLO_BYTES)
        except (TimeoutError, ConnectionResetError):
            packet = b""
        self.control.settimeout(None)
        if not packet:
            self.end()
            raise JudgeDied(f"the sandbox's zygote did not start (exit status {self.process.returncode})")
        return msgspec.json.decode(packet, type=Hello)

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.control.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Sandbox:
    """`with Sandbox() as sandbox: sandbox.run(program, Entry("run"), limits)`."""

    def __init__(self, level: Level = "namespaces") -> None:
        self._wanted: Level = level
        self._zygote: _Zygote | None = None
        self._closed = False
        self._starting = threading.Lock()
        """Held for as long as a start takes; the other for moments only, so that `cancel` never waits."""
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._slots: dict[int, tuple[int, ...]] = {}
        """Of the programs that run, with their processors."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()

    def start(self) -> None:
        """Start the zygote unless it runs.  Takes about a second.  Raises JudgeDied when it does not come up."""
        self._alive()

    def close(self) -> None:
        """End the zygote, and with it every program that still runs."""
        with self._starting:
            self._closed = True
            if self._zygote is not None:
                self._zygote.end()
                self._zygote = None

    @property
    def level(self) -> Level | None:
        """Containment in force; None before the start."""
        zygote = self._zygote
        return zygote.hello.level if zygote else None

    @property
    def missing(self) -> list[str]:
        """What that level does not contain on this machine, in words."""
        zygote = self._zygote
        return zygote.hello.missing if zygote else []

    @property
    def pid(self) -> int | None:
        zygote = self._zygote
        return zygote.process.pid if zygote else None

    def run(self, program: str, entry: Entry, limits: Limits, ticket: Ticket | None = None) -> Outcome:
        """Run `program` in a new child and wait for its end, however it comes.

        Raises JudgeDied when the zygote dies or the child can't be made.
        """
        ticket = ticket or Ticket()
        slot, processors = self._take_slot(limits.cpus)
        try:
            job = Job(program.encode("utf-8", "surrogatepass"), entry)
            return self._run(job, Launch(next(self._ids), slot, processors, limits), ticket)
        finally:
            with self._lock:
                del self._slots[slot]

    def cancel(self, ticket: Ticket) -> None:
        """End the run of `ticket`, or keep it from starting: its Outcome says `cancelled`."""
        with self._lock:
            ticket.cancelled = True
            if ticket.kill is not None:
                ticket.kill()

    def _run(self, job: Job, launch: Launch, ticket: Ticket) -> Outcome:
        zygote = self._alive()
        control, kill = zygote.control, partial(_send, zygote.control, Kill(launch.id))
        with Collector(launch.limits, kill) as collector:
            with self._lock:
                if ticket.cancelled:
                    return collector.outcome("cancelled")
                _send_launch(control, launch, job, collector.ends)
                ticket.kill = kill
            collector.close_ends()
            try:
                ending = collector.collect()
            except Stuck:
                zygote.kill()
                raise
            finally:
                with self._lock:
                    ticket.kill = None
            return collector.outcome("cancelled" if ticket.cancelled else ending)

    def _alive(self) -> _Zygote:
        with self._starting:
            if self._closed:
                raise JudgeDied("the sandbox is closed")
            if self._zygote is not None and not self._zygote.alive():
                self._zygote.end()
                self._zygote = None
            if self._zygote is None:
                self._zygote = _Zygote(self._wanted)
            return self._zygote

    def _take_slot(self, cpus: int) -> tuple[int, tuple[int, ...]]:
        """The smallest number that is free, and the `cpus` processors that fewest programs run on."""
        with self._lock:
            slot = next(number for number in itertools.count() if number not in self._slots)
            taken = Counter(processor for processors in self._slots.values() for processor in processors)
            idlest = sorted(sorted(os.sched_getaffinity(0)), key=lambda processor: taken[processor])
            self._slots[slot] = tuple(idlest[:cpus])
            return slot, self._slots[slot]


def _send(control: socket.socket, request: Kill) -> None:
    """A kill for a zygote that is gone has nothing to do."""
    with suppress(OSError):
        control.send(msgspec.json.encode(request))


def _send_launch(control: socket.socket, launch: Launch, job: Job, ends: list[int]) -> None:
    try:
        with open(os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb") as file:
            file.write(msgspec.msgpack.encode(job))
            file.flush()
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            socket.send_fds(control, [msgspec.json.encode(launch)], [file.fileno(), *ends])
    except OSError as error:
        raise JudgeDied(f"the sandbox's zygote takes no program: {error}") from None
