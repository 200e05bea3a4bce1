"""Collects what one child writes until it has ended: result, output and status pipes, under the limits.

The client keeps at most the result's size and the output's tail; a child that writes more, or runs for longer than
its wall clock allows, is killed, and the reason is our own mark, never the child's word.

    wall clock allowed = wall_seconds + seconds it stood ready while others had its processor, MOST_WAITED times at most

That wait is not the program's doing; its own processor time has a limit of its own (RLIMIT_CPU).
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from judges.sandbox.messages import Ended, Ending, JudgeDied, Limits, Outcome, Refused, Report, Started

TAIL_BYTES = 1 << 16
MOST_WAITED = 2.0
"""Times wall_seconds."""
ANSWER_SECONDS = 60.0
"""For the zygote to start a child, and to tell the end of one that was killed."""
_CHUNK = 1 << 16
_decoder = msgspec.json.Decoder(Report)


class Stuck(JudgeDied):
    """The zygote lives and does not answer."""


class Collector:
    """`ends` are the child's ends of the pipes, in the order result, output, status."""

    def __init__(self, limits: Limits, kill: Callable[[], None]) -> None:
        self._limits, self._kill = limits, kill
        self._killed: Ending | None = None
        self._started: Started | None = None
        self._since = time.monotonic()
        """The start of waiting for the zygote's next word."""
        self._ended: Ended | None = None
        self._refused = ""
        self._result, self._output, self._reports = bytearray(), bytearray(), bytearray()
        self._printed = 0
        self._pipes: list[int] = []
        self.ends: list[int] = []
        self._poll = select.poll()

    def __enter__(self) -> Self:
        """Raises JudgeDied where this process has too many open files."""
        try:
            for _ in range(3):
                self._open_pipe()
        except OSError as error:
            self._close()
            raise JudgeDied(f"cannot make a pipe: {error.strerror}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._close()

    def _open_pipe(self) -> None:
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        self._pipes.append(ours)
        self.ends.append(theirs)

    def _close(self) -> None:
        self.close_ends()
        while self._pipes:
            os.close(self._pipes.pop())

    def close_ends(self) -> None:
        while self.ends:
            os.close(self.ends.pop())

    def collect(self) -> Ending:
        """Until the child has ended.  Raises JudgeDied when the zygote ends first or refuses the child, Stuck when it
        does not answer."""
        for descriptor in self._pipes:
            self._poll.register(descriptor, select.POLLIN)
        while self._ended is None:
            for descriptor, _ in self._poll.poll(max(self._left(), 0.0) * 1000 + 1):
                if not self._take(descriptor):
                    self._finish(descriptor)
            if self._left() <= 0:
                self._run_out()
        if self._refused:
            raise JudgeDied(self._refused)
        if self._killed == "wall" and os.WIFEXITED(self._ended.wait_status):
            self._killed = None  # it had ended by itself before the kill reached it
        for descriptor in self._pipes[:2]:
            self._drain(descriptor)
        return self._killed or "exited"

    def outcome(self, ending: Ending) -> Outcome:
        ended = self._ended or Ended(0.0, 0, 0.0, 0)
        return Outcome(
            ending=ending,
            wait_status=ended.wait_status,
            result=bytes(self._result[: self._limits.result_bytes]),
            output=bytes(self._output[-TAIL_BYTES:]),
            seconds=ended.at - (self._started.at if self._started else ended.at),
            cpu_seconds=ended.cpu_seconds,
            peak_bytes=ended.peak_bytes,
            out_of_memory=ended.out_of_memory,
        )

    def _left(self) -> float:
        """Seconds until the child's wall clock has run out, or the patience with a zygote that starts or ends it."""
        if self._started is None or self._killed:
            return self._since + ANSWER_SECONDS - time.monotonic()
        allowed = self._limits.wall_seconds
        left = self._started.at + allowed - time.monotonic()
        return left if left > 0 else left + min(waited(self._started.pid), MOST_WAITED * allowed)

    def _run_out(self) -> None:
        if self._started is None or self._killed:
            raise Stuck("the sandbox's zygote does not answer")
        self._end("wall")

    def _end(self, why: Ending) -> None:
        if self._killed is None:
            self._killed, self._since = why, time.monotonic()
            self._kill()

    def _drain(self, descriptor: int) -> None:
        with suppress(BlockingIOError):
            while self._killed in (None, "wall") and self._take(descriptor):
                pass

    def _take(self, descriptor: int) -> bool:
        """Read once; False at the end of the pipe."""
        data = os.read(descriptor, _CHUNK)
        result, output, _ = self._pipes
        if descriptor == result:
            self._take_result(data)
        elif descriptor == output:
            self._take_output(data)
        else:
            self._take_reports(data)
        return bool(data)

    def _finish(self, descriptor: int) -> None:
        if descriptor == self._pipes[2] and self._ended is None:
            raise JudgeDied(self._refused or "the sandbox's zygote ended while a program ran")
        self._poll.unregister(descriptor)

    def _take_result(self, data: bytes) -> None:
        if len(self._result) <= self._limits.result_bytes:
            self._result += data
        if len(self._result) > self._limits.result_bytes:
            self._end("result")

    def _take_output(self, data: bytes) -> None:
        self._printed += len(data)
        self._output += data
        if len(self._output) > 8 * TAIL_BYTES:
            del self._output[:-TAIL_BYTES]
        if self._printed > self._limits.output_bytes:
            self._end("output")

    def _take_reports(self, data: bytes) -> None:
        self._reports += data
        while (end := self._reports.find(b"\n")) >= 0:
            line = bytes(self._reports[:end])
            del self._reports[: end + 1]
            match _decoder.decode(line):
                case Started() as started:
                    self._started = started
                case Ended() as ended:
                    self._ended = ended
                case Refused(message=message):
                    self._refused = message


def waited(pid: int) -> float:
    """Seconds that a process has stood ready to run while others had its processor; 0 where the kernel does not tell.

    Its first thread's (sched-stats in the kernel's documentation): the one that must return the result.
    """
    try:
        _, nanoseconds, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(nanoseconds) / 1e9
