"""The daemon's judges: one zygote and one grader for all runs, and a bounded number of programs at a time.

    async with JudgePool(parallel) as pool:             starts in the background: readiness never waits for it
        judge = pool.for_task(pool.granted(task))       a ports.Judge
        verdict = await judge.grade(program)            waits for its processors, then runs; cancelling kills the child

A failure of ours (a dead process, a refused fork) is tried again, then raised as WorkerDied: never a reward of 0.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread

from judges.evaluate import Evaluator, at_once, granted, processors
from judges.grader import Grader, GraderFailed
from judges.sandbox import AnySandbox, JudgeDied, Sandbox, Ticket
from judges.task import Task
from judges.verdict import Verdict
from tttdd.ports import WorkerDied, WorkerFailed

ATTEMPTS = 4
"""One try and three more."""
_PAUSE_SECONDS = 0.2
"""Before the second try; doubled each time: a machine short of processes needs a moment."""

_log = logging.getLogger("tttdd.judges")


class JudgePool:
    """`parallel` programs at once whatever the task; None: as many as get processors of their own."""

    def __init__(self, parallel: int | None = None, sandbox: AnySandbox | None = None) -> None:
        self._parallel = parallel
        self._failure = ""
        self._sandbox, self._grader = sandbox or Sandbox(), Grader()

    async def __aenter__(self) -> Self:
        self._places = Places(self.parallel)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            for close in (self._sandbox.close, self._grader.close):
                await anyio.to_thread.run_sync(close)
        return await self._tasks.__aexit__(kind, error, trace)

    @property
    def level(self) -> str:
        """Containment in force; `starting` until it is ready, `none` where it could not start."""
        return self._sandbox.level or ("none" if self._failure else "starting")

    @property
    def missing(self) -> list[str]:
        """What that level does not contain on this machine, or why no program can be judged."""
        return self._sandbox.missing or ([self._failure] if self._failure and not self._sandbox.level else [])

    @property
    def parallel(self) -> int:
        """Most programs at once: fewer of those that get several processors each."""
        return self._parallel or processors()

    def granted(self, task: Task) -> Task:
        """The task under limits that hold for every program, however many run."""
        return granted(task, at_once(task, self._parallel))

    def for_task(self, task: Task) -> TaskJudge:
        """`task` as `granted`."""
        places = self.parallel // at_once(task, self._parallel)
        return TaskJudge(Evaluator(task, self._sandbox, self._grader), partial(self._places.taken, places))

    async def _start(self) -> None:
        """A start that fails shows again, with its reason, in the first `grade`."""
        try:
            await anyio.to_thread.run_sync(self._grader.start)
            await anyio.to_thread.run_sync(self._sandbox.start, abandon_on_cancel=True)
        except JudgeDied as error:
            self._failure = str(error)
            _log.warning("the judges do not start: %s", error)
            return
        for lack in self.missing:
            _log.warning("judges at level %s: %s", self.level, lack)


class Places:
    """So many places in all; who takes several at a time gets them in the order of asking."""

    def __init__(self, total: int) -> None:
        self._free = anyio.CapacityLimiter(total)
        self._turn = anyio.Lock()

    @asynccontextmanager
    async def taken(self, count: int) -> AsyncGenerator[None]:
        with ExitStack() as held:
            async with self._turn:
                for place in [object() for _ in range(count)]:
                    await self._free.acquire_on_behalf_of(place)
                    held.callback(self._free.release_on_behalf_of, place)
            yield


class TaskJudge:
    """Implements ports.Judge for one task."""

    def __init__(self, evaluator: Evaluator, place: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._evaluator, self._place = evaluator, place

    async def grade(self, program: str) -> Verdict:
        """Raises WorkerDied when the judges keep failing, WorkerFailed when the task's own judge is broken."""
        async with self._place():
            return await self._persistently(program)

    async def _persistently(self, program: str) -> Verdict:
        for attempt in range(ATTEMPTS):
            try:
                return await self._once(program)
            except JudgeDied as error:
                if attempt == ATTEMPTS - 1:
                    raise WorkerDied(f"the judges failed {ATTEMPTS} times: {error}") from error
                await anyio.sleep(_PAUSE_SECONDS * 2**attempt)
            except GraderFailed as error:
                raise WorkerFailed(str(error)) from error
        raise AssertionError("unreachable")

    async def _once(self, program: str) -> Verdict:
        ticket = Ticket()
        grade: Callable[[], Verdict] = partial(self._evaluator.grade, program, ticket)
        try:
            return await anyio.to_thread.run_sync(grade, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):  # a thread: a stopped zygote must not stop the event loop
                await anyio.to_thread.run_sync(self._evaluator.cancel, ticket, limiter=anyio.CapacityLimiter(1))
            raise
