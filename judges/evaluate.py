"""A program in, a verdict out: one task's sandbox limits, entry point and grader put together.

    program -> Sandbox.run -> Outcome -> rejected with its class and one line of detail
                                      -> artifact (JSON bytes) -> Grader.grade -> Verdict

`granted` is what this machine can give to each of several programs at once: processors that no other has, and memory
that is there for all of them.  The model is told what is granted.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import msgspec

from judges.grader import Grader
from judges.sandbox import AnySandbox, Limits, Outcome, Sandbox, Ticket
from judges.sandbox.messages import Failure
from judges.task import KILL_FACTOR, Task
from judges.text import printable
from judges.verdict import Reason, Verdict

DETAIL_CHARACTERS = 500
ARTIFACT_BYTES = 1 << 20
"""Of what a valid program returned that its verdict carries; more is graded, but not kept."""
_MEMORY_SHARE = 0.5
"""Of the machine's memory that all programs at once may address."""
_LEAST_GIB = 0.5
"""For numpy and scipy, however little the machine has."""
_GIB = 1 << 30


class Evaluator:
    """Grades programs of one task.  Blocking, any thread; `sandbox` and `grader` may serve others, too."""

    def __init__(self, task: Task, sandbox: AnySandbox, grader: Grader) -> None:
        self._task, self._sandbox, self._grader = task, sandbox, grader
        self._limits = limits_of(task)

    def grade(self, program: str, ticket: Ticket | None = None) -> Verdict:
        """Run and grade.  Raises JudgeDied when a process of ours fails, GraderFailed when the task's judge does."""
        outcome = self._run(program, ticket)
        if _killed(outcome, self._limits):  # by a person, or for memory that others took: it gets a second chance
            outcome = self._run(program, ticket)
        artifact = outcome.result[1:]
        if refused := self._rejection(outcome):
            verdict = _rejected(*refused)
        else:
            verdict = self._grader.grade(self._task.judge, artifact)
        return msgspec.structs.replace(
            verdict,
            detail=printable(verdict.detail[:DETAIL_CHARACTERS]),
            output=printable(outcome.output),
            seconds=outcome.seconds,
            peak_bytes=outcome.peak_bytes,
            artifact=_kept(artifact) if verdict.valid else "",
            artifact_sha256=hashlib.sha256(artifact).hexdigest() if verdict.valid else "",
        )

    def cancel(self, ticket: Ticket) -> None:
        self._sandbox.cancel(ticket)

    def _run(self, program: str, ticket: Ticket | None) -> Outcome:
        return self._sandbox.run(program, self._task.call, self._limits, ticket)

    def _rejection(self, outcome: Outcome) -> tuple[Reason, str] | None:
        """Why there is nothing to grade; our own marks come before the child's word."""
        limits = self._limits
        match outcome.ending:
            case "cancelled":
                return "crash", "it was cancelled"
            case "wall":
                return "timeout", f"it ran for more than {limits.wall_seconds:g} s and was killed"
            case "output":
                return "output", f"it printed more than {limits.output_bytes >> 20} MiB"
            case "result":
                return "output", f"it returned more than {limits.result_bytes >> 20} MiB"
            case "exited":
                return _ended(outcome, limits)


def limits_of(task: Task) -> Limits:
    wall = task.limits.seconds * KILL_FACTOR
    return Limits(
        wall_seconds=wall,
        cpu_seconds=math.ceil(wall * task.limits.cpus),
        cpus=task.limits.cpus,
        memory_bytes=int(task.limits.memory_gib * _GIB),
    )


def processors() -> int:
    """That this process, and so every program, may use."""
    return len(os.sched_getaffinity(0))


def at_once(task: Task, parallel: int | None) -> int:
    """Programs of this task that run at once: `parallel`, else as many as get processors of their own."""
    return parallel or max(1, processors() // task.limits.cpus)


def granted(task: Task, programs: int) -> Task:
    """The task under limits that this machine can keep for each of `programs` at once."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    cpus = max(1, min(task.limits.cpus, processors() // programs))
    room = math.floor(_MEMORY_SHARE * machine / programs * 10) / 10
    return task.limited(cpus=cpus, memory_gib=min(task.limits.memory_gib, max(_LEAST_GIB, room)))


@contextmanager
def evaluator(task: Task, sandbox: AnySandbox | None = None) -> Generator[Evaluator]:
    """An Evaluator with a sandbox and a grader of its own, for one program at a time."""
    sandbox = sandbox or Sandbox()
    with ExitStack() as stack:
        grader = stack.enter_context(Grader())  # first: it starts in the background
        stack.callback(sandbox.close)
        sandbox.start()
        yield Evaluator(granted(task, 1), sandbox, grader)


def _ended(outcome: Outcome, limits: Limits) -> tuple[Reason, str] | None:
    if os.WIFSIGNALED(outcome.wait_status):
        return _signalled(os.WTERMSIG(outcome.wait_status), outcome, limits)
    if outcome.result.startswith(b"E"):
        return _failure(outcome.result[1:])
    if code := os.WEXITSTATUS(outcome.wait_status):
        return "crash", f"it ended with exit status {code}"
    if not outcome.result.startswith(b"R"):
        return "no result", "it ended before it returned a result"
    return None


def _kept(artifact: bytes) -> str:
    return artifact.decode(errors="replace") if len(artifact) <= ARTIFACT_BYTES else ""


def _killed(outcome: Outcome, limits: Limits) -> bool:
    """Whether it got SIGKILL, and nothing tells of a limit that it broke."""
    killed = os.WIFSIGNALED(outcome.wait_status) and os.WTERMSIG(outcome.wait_status) == signal.SIGKILL
    explained = outcome.out_of_memory or limits.processor_time_is_up(outcome.cpu_seconds)
    return outcome.ending == "exited" and killed and not explained


def _signalled(number: int, outcome: Outcome, limits: Limits) -> tuple[Reason, str]:
    if outcome.out_of_memory:
        return "memory", "it was killed because memory ran out"
    if number in (signal.SIGKILL, signal.SIGXCPU) and limits.processor_time_is_up(outcome.cpu_seconds):
        return "timeout", f"it used more than {limits.cpu_seconds} s of processor time and was killed"
    if number == signal.SIGKILL:
        return "memory", "the system killed it twice, most likely because memory ran out"
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return "crash", f"it was killed by {name}"


def _failure(told: bytes) -> tuple[Reason, str]:
    try:
        failure = msgspec.json.decode(told, type=Failure)
    except (msgspec.DecodeError, RecursionError):
        return "no result", "it wrote something of its own in place of a result"
    return failure.reason, failure.detail


def _rejected(reason: Reason, detail: str) -> Verdict:
    return Verdict(valid=False, reason=reason, detail=detail)
