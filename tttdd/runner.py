"""The queue and the one run in hand: workers per run, restarts after a dead worker, pause, resume, cancel.

    queued -> running -> finished | failed | cancelled
                 ^ v
               paused          a daemon that starts again goes on with what was running

A dead worker is one kind of error: the runner backs off and re-enters the loop, at most RESTARTS times without a
commit in between.  Any other error fails the run, never the daemon.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import anyio
import msgspec

from judges.verdict import Verdict
from tttdd import step
from tttdd.board import Board
from tttdd.config import Config, Grid, faults
from tttdd.domain import identity
from tttdd.domain.archive import Archive
from tttdd.domain.prompt import TaskPrompt
from tttdd.errors import Conflict, NotFound, Refused
from tttdd.gate import Gate
from tttdd.ports import Judge, ModelFiles, RunRecord, RunStore, WorkerDied
from tttdd.protocol import GridSize, NodeInfo, RunInfo, RunState, StepRow, Submit, TaskInfo

RESTARTS = 3
BACKOFF_SECONDS = 2.0
OPEN: tuple[RunState, ...] = ("queued", "running", "paused")

_log = logging.getLogger("tttdd.runner")


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a run uses it."""

    info: TaskInfo
    prompt: TaskPrompt
    judge: Judge
    texts: dict[str, str]
    """What the run's identity hashes: instruction, judge, starter."""
    starter: str
    """The starter program as it is run; empty if the task has none."""


class IdentityChanged(RuntimeError):
    """What the run is made of is not what it was submitted with."""

    def __init__(self, fields: list[str]) -> None:
        super().__init__(
            f"changed since the run was submitted: {', '.join(fields)}; restore them and resume, or submit a new run"
        )


class Catalog(Protocol):
    def names(self) -> list[str]: ...

    def load(self, name: str) -> Assignment:
        """Raises NotFound with the nearest name, or Refused when the task's files are at fault."""
        ...


class Workshop(Protocol):
    """Where a run's workers come from."""

    async def prepare(self, progress: Callable[[str, float | None], None]) -> ModelFiles:
        """The model's files, fetched if need be.  Raises Refused when they cannot be had."""
        ...

    def open(
        self, plan: step.Plan, model: ModelFiles, judge: Judge, observer: Board, gate: Gate
    ) -> AbstractAsyncContextManager[step.World]: ...


class Runner:
    def __init__(self, config: Config, store: RunStore, board: Board, catalog: Catalog, workshop: Workshop) -> None:
        self._config, self._store, self._board = config, store, board
        self._catalog, self._workshop = catalog, workshop
        self._gate = Gate()
        self._news = anyio.Event()
        self._in_hand: str | None = None
        self._scope: anyio.CancelScope | None = None
        self._paused = False

    # What the API asks

    def submit(self, request: Submit) -> RunInfo:
        assignment = self._catalog.load(request.task)
        config = self._configured(request)
        for field, rule in faults(config):
            raise Refused(f"{field}: {rule}", field=field)
        name = request.name or self._free_name(request.task)
        if name in self._names():
            raise Conflict(f"there is a run named {name!r} already", field="name", hint="choose another name")
        if config.prompt.style == "completion" and not assignment.prompt.starter:
            raise Refused(f"task {request.task!r} has no region for completion style", field="task")
        self._store.open_run(
            RunRecord(
                name=name,
                task=request.task,
                seed=request.seed,
                grid=GridSize(config.grid.groups, config.grid.rollouts),
                steps=config.grid.steps,
                identity=self._identity(assignment, config, request.seed, None),
                created=time.time(),
            )
        )
        _log.info("run %s: submitted", name)
        self._wake()
        return self.run(name)

    def runs(self) -> list[RunInfo]:
        return [self._told(run) for run in self._store.runs()]

    def run(self, name: str) -> RunInfo:
        return self._told(self._store.run(self._known(name)))

    def steps(self, name: str) -> list[StepRow]:
        return self._store.steps(self._known(name))

    def archive(self, name: str, limit: int) -> list[NodeInfo]:
        return self._store.nodes(self._known(name), limit)

    def node(self, name: str, id: int) -> NodeInfo:
        found = self._store.node(self._known(name), id)
        if found is None:
            raise NotFound(f"run {name!r} has no node {id}", field="node")
        return found

    def best(self, name: str) -> NodeInfo:
        best = self._store.run(self._known(name)).best
        if best is None:
            raise Conflict(f"run {name!r} has no program yet", hint="its starter is judged when it starts")
        return self.node(name, best.node)

    def tasks(self) -> list[TaskInfo]:
        return [self._catalog.load(name).info for name in self._catalog.names()]

    async def verify(self, name: str, node: int | None) -> dict[str, Any]:
        found = self.best(name) if node is None else self.node(name, node)
        verdict = await self._catalog.load(self.run(name).task).judge.grade(found.program)
        return {"node": found.node, **msgspec.to_builtins(verdict)}

    def pause(self, name: str | None, release_gpus: bool) -> None:
        if name is None:
            self._paused = self._board.paused = True
            self._hold(release_gpus)
        else:
            self._must_be(name, *OPEN)
            self._store.set_state(name, "paused", "paused by a user")
            if name == self._in_hand:
                self._hold(release_gpus)
        self._board.touch()

    def resume(self, name: str | None) -> None:
        if name is None:
            self._paused = self._board.paused = False
        else:
            self._must_be(name, "paused")
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
            name = None if self._paused else self._next()
            if name is None:
                await news.wait()
                continue
            self._in_hand = name
            self._gate.open()
            with anyio.CancelScope() as self._scope:
                await self._carry(name)
            self._in_hand = self._scope = None
            self._board.take(None)

    async def _carry(self, name: str) -> None:
        """One run until it ends, is paused with its devices released, or cannot go on."""
        self._set(name, "running")
        failures, committed = 0, self._store.run(name).step
        while True:
            try:
                await self._attempt(name)
                self._set(name, "finished")
                return
            except* WorkerDied as died:
                reached = self._store.run(name).step
                failures, committed = (failures + 1, committed) if reached == committed else (1, reached)
                _log.warning("run %s: %s", name, _words(died))
                if failures > RESTARTS:
                    self._set(name, "failed", _words(died))
            except* IdentityChanged as changed:
                self._set(name, "paused", _words(changed))
            except* Exception as error:  # noqa: BLE001  any other error fails the run, never the daemon
                _log.exception("run %s failed", name)
                self._set(name, "failed", _words(error))
            if self._store.run(name).state != "running":
                return
            await anyio.sleep(BACKOFF_SECONDS * failures)

    async def _attempt(self, name: str) -> None:
        run = self._store.run(name)
        self._board.take(name, run.grid, [row.metrics["time/step"] for row in self._store.steps(name) if row.proof])
        assignment = self._catalog.load(run.task)
        self._board.prepare("model", None)
        model = await self._workshop.prepare(self._board.prepare)
        await self._plant(run, assignment, model)
        plan = self._plan(run, assignment)
        self._board.prepare("workers", None)
        async with self._workshop.open(plan, model, assignment.judge, self._board, self._gate) as world:
            await step.run_to_the_end(plan, world)

    async def _plant(self, run: RunInfo, assignment: Assignment, model: ModelFiles) -> None:
        """Judge the starter and plant the seeds, the first time; refuse another identity, every other time."""
        now = self._identity(assignment, self._of(run), run.seed, model.revision)
        before = self._store.identity(run.run)
        if changed := identity.differences(
            now, before | {"model.revision": before["model.revision"] or model.revision}
        ):
            raise IdentityChanged(changed)
        if before["model.revision"] is not None:
            return
        archive, verdict = Archive(), Verdict(valid=True)
        if assignment.starter:
            self._board.prepare("starter program", None)
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
        )
        self._store.plant(run.run, archive, now)

    def _plan(self, run: RunInfo, assignment: Assignment) -> step.Plan:
        search = self._config.search
        return step.Plan(
            name=run.run,
            seed=run.seed,
            steps=run.steps,
            groups=run.grid.groups,
            rollouts=run.grid.rollouts,
            task=assignment.prompt,
            c=search.c,
            max_nodes=search.max_nodes,
            children_kept=search.children_kept,
            count=search.count,
            keep=self._config.checkpoints.keep,
        )

    # Parts of the above

    def _configured(self, request: Submit) -> Config:
        """The daemon's configuration with what the request overrides."""
        grid = self._config.grid
        size = request.grid or GridSize(grid.groups, grid.rollouts)
        wanted = Grid(groups=size.groups, rollouts=size.rollouts, steps=request.steps or grid.steps)
        return msgspec.structs.replace(self._config, grid=wanted)

    def _of(self, run: RunInfo) -> Config:
        grid = Grid(groups=run.grid.groups, rollouts=run.grid.rollouts, steps=run.steps)
        return msgspec.structs.replace(self._config, grid=grid)

    def _identity(
        self, assignment: Assignment, config: Config, seed: int, revision: str | None
    ) -> dict[str, identity.Value]:
        return identity.identity(
            task=assignment.texts,
            model={"source": config.model.path or config.model.package, "revision": revision},
            settings={
                "grid": config.grid,
                "sampling": config.sampling,
                "prompt": config.prompt,
                "search": config.search,
                "trainer": config.trainer,
                "judges": {"time_limit": assignment.info.time_limit},
            },
            seed=seed,
        )

    def _told(self, run: RunInfo) -> RunInfo:
        """With what only the task knows, if it is still there."""
        try:
            info = self._catalog.load(run.task).info
        except (NotFound, Refused):
            return run
        return msgspec.structs.replace(run, target=info.target, objective_name=info.objective, direction=info.direction)

    def _names(self) -> list[str]:
        return [run.run for run in self._store.runs()]

    def _known(self, name: str) -> str:
        names = self._names()
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "GET /v1/runs lists the runs"
            raise NotFound(f"there is no run named {name!r}", field="run", hint=hint)
        return name

    def _free_name(self, task: str) -> str:
        names = self._names()
        number = 1
        while f"{task}-{number}" in names:
            number += 1
        return f"{task}-{number}"

    def _must_be(self, name: str, *states: RunState) -> None:
        state = self.run(name).state
        if state not in states:
            raise Conflict(
                f"run {name!r} is {state}", field="run", hint=f"this needs a run that is {' or '.join(states)}"
            )

    def _hold(self, release_gpus: bool) -> None:
        """Close the gate before the run in hand; what is in flight finishes, or ends with the workers."""
        self._gate.close()
        if release_gpus and self._scope is not None:
            self._scope.cancel()

    def _next(self) -> str | None:
        open_runs = {run.run: run.state for run in self._store.runs() if run.state in ("running", "queued")}
        return min(open_runs, key=lambda name: open_runs[name] != "running", default=None)

    def _set(self, name: str, state: RunState, reason: str = "") -> None:
        self._store.set_state(name, state, reason)
        _log.info("run %s: %s%s", name, state, f": {reason}" if reason else "")
        self._board.touch()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()
        self._board.touch()


def _words(group: BaseExceptionGroup[BaseException]) -> str:
    """The first error's message: the others are its consequences."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
