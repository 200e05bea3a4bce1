"""The third process: grades what a program returned and never runs a program itself.

    Grader.grade(judge, artifact) --frame--> python -I -m judges.grader --frame--> Verdict

frame = 4-byte big-endian length + msgpack.  A judge has its own limits of time and memory: an artifact that exceeds
them is rejected, and the process is started again.
"""

from __future__ import annotations

import functools
import math
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from judges.sandbox.client import ENVIRONMENT, STOP_SECONDS
from judges.sandbox.messages import JudgeDied
from judges.verdict import Verdict

LARGEST = 1e100
"""Reward or objective, in magnitude."""
SECONDS = 20.0
"""For one artifact, besides the process's own start."""
START_SECONDS = 60.0
MEMORY_BYTES = 4 << 30
_HEADER = struct.Struct(">I")


class GraderFailed(RuntimeError):
    """A task's judge raised an exception: the judge is at fault, not the program.  Holds its traceback."""


class _Ask(msgspec.Struct, frozen=True):
    judge: str
    """Path of judge.py."""
    artifact: bytes


class _Answer(msgspec.Struct, frozen=True):
    verdict: Verdict | None = None
    error: str = ""


class Grader:
    """Blocking, any thread; one artifact at a time."""

    def __init__(self, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self._seconds, self._memory_bytes = seconds, memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._ready = False
        self._closed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()

    def start(self) -> None:
        """Start the process unless it runs; returns at once."""
        with self._lock:
            self._started()

    def close(self) -> None:
        """Ends the process at once; an artifact in its hands raises JudgeDied in the thread that waits for it."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def grade(self, judge: Path, artifact: bytes) -> Verdict:
        """The verdict of `judge` (a judge.py) on the bytes that a program returned.

        Raises JudgeDied when the process ends for no reason of the artifact's, GraderFailed when the judge raises.
        """
        with self._lock:
            line = self._started()
            try:
                self._wait_until_ready(line)
                self._ask(line, _Ask(str(judge), artifact))
                answer = _receive(line, self._seconds)
            except TimeoutError:
                self._end(kill=True)
                return Verdict(valid=False, reason="timeout", detail=f"grading it took more than {self._seconds:g} s")
            except (OSError, EOFError):
                self._end(kill=True)
                raise JudgeDied("the grader ended while it graded") from None
        if answer.verdict is None:
            raise GraderFailed(f"{judge} raised an exception:\n{answer.error}")
        return answer.verdict

    def _ask(self, line: socket.socket, ask: _Ask) -> None:
        line.settimeout(self._seconds)
        try:
            line.sendall(_frame(ask))
        except TimeoutError:
            raise EOFError from None
        finally:
            line.settimeout(None)

    def _wait_until_ready(self, line: socket.socket) -> None:
        if not self._ready:
            try:
                _exactly(line, 1, time.monotonic() + START_SECONDS)
            except TimeoutError:
                raise EOFError from None
            self._ready = True

    def _started(self) -> socket.socket:
        if self._closed:
            raise JudgeDied("the grader is closed")
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._line is None:
            self._line = self._start()
        return self._line

    def _start(self) -> socket.socket:
        try:
            ours, self._process = self._begun()
        except OSError as error:  # no descriptor, process or memory left
            raise JudgeDied(f"the grader cannot be started: {error.strerror}") from None
        return ours

    def _begun(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as undo:
            undo.enter_context(ours)
            arguments = [str(theirs.fileno()), str(self._memory_bytes), str(self._seconds)]
            process = subprocess.Popen(
                [sys.executable, "-I", "-m", "judges.grader", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            undo.pop_all()
        return ours, process

    def _end(self, kill: bool = False) -> None:
        if self._line is not None:
            self._line.close()
            self._line, self._ready = None, False
        if self._process is not None:
            if kill:
                self._process.kill()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def _frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _HEADER.pack(len(body)) + body


def _receive(line: socket.socket, seconds: float) -> _Answer:
    deadline = time.monotonic() + seconds
    (length,) = _HEADER.unpack(_exactly(line, _HEADER.size, deadline))
    return msgspec.msgpack.decode(_exactly(line, length, deadline), type=_Answer)


def _exactly(line: socket.socket, count: int, deadline: float = float("inf")) -> bytes:
    """Raises TimeoutError at the deadline and EOFError at the end of the line."""
    parts = bytearray()
    poll = select.poll()  # select() refuses descriptors from 1024 on
    poll.register(line, select.POLLIN)
    while len(parts) < count:
        left = None if deadline == float("inf") else max(deadline - time.monotonic(), 0) * 1000
        if not poll.poll(left):
            raise TimeoutError
        part = line.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


@functools.lru_cache
def _judge(path: str, source: bytes) -> Callable[[bytes], Verdict]:
    """`source` is the file's: a judge that was edited is loaded again."""
    module = types.ModuleType("judge")
    module.__file__ = path
    exec(compile(source, path, "exec"), module.__dict__)
    return module.grade


def _answer(ask: _Ask) -> _Answer:
    try:
        judge = _judge(ask.judge, Path(ask.judge).read_bytes())
        return _Answer(_finite(_typed(judge(ask.artifact))))
    except MemoryError:
        return _Answer(Verdict(valid=False, reason="memory", detail="grading it took too much memory"))
    except Exception:  # noqa: BLE001  any fault of a task's judge is told to its author
        return _Answer(error=traceback.format_exc().encode("utf-8", "backslashreplace").decode())


def _typed(verdict: object) -> Verdict:
    """A verdict with the types that it promises, numpy's numbers made Python's.  What this raises is the judge's."""
    if not isinstance(verdict, Verdict):
        raise TypeError(f"grade returned {verdict!r:.80} in place of a Verdict")
    return msgspec.convert(msgspec.to_builtins(verdict, enc_hook=_python_number), Verdict)


def _python_number(value: Any) -> Any:
    return value.item()


def _finite(verdict: Verdict) -> Verdict:
    """No judge's NaN or infinity gets any further, nor what would become one in the sums over a grid."""
    numbers = [verdict.reward, verdict.objective, verdict.reported, *verdict.certificate.values()]
    if not all(math.isfinite(number) for number in numbers if isinstance(number, float)):
        return Verdict(valid=False, reason="constraint", detail="its reward or objective is not a finite number")
    if max(abs(verdict.reward), abs(verdict.objective or 0.0)) > LARGEST:
        detail = f"its reward or objective is beyond {LARGEST:g}, too large to be averaged"
        return Verdict(valid=False, reason="constraint", detail=detail)
    return verdict


def _serve(line: socket.socket, seconds: float) -> None:
    while True:
        try:
            (length,) = _HEADER.unpack(_exactly(line, _HEADER.size))
            ask = msgspec.msgpack.decode(_exactly(line, length), type=_Ask)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds)  # ends this process should the client be gone by then
        answer = _answer(ask)
        signal.setitimer(signal.ITIMER_REAL, 0)
        line.sendall(_frame(answer))


def main() -> None:
    descriptor, memory, seconds = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    import numpy as np  # before the first artifact, so that its time does not count

    np.fft.rfft(np.ones(4))
    os.chdir("/")
    line = socket.socket(fileno=int(descriptor))
    line.sendall(b"!")
    _serve(line, float(seconds))


if __name__ == "__main__":
    with suppress(ConnectionError):  # the client ended first
        main()
