"""What the daemon knows of its runs and tasks, and how a new run is written down: reading, and submit.

    Submit -> task, configuration, rules -> RunRecord -> store;   store + task -> RunInfo, StepRow, NodeInfo

`Runner` adds what acts on the run in hand.
"""

from __future__ import annotations

import difflib
import logging
import re
import time
from typing import Any

import msgspec

from tttdd.assignment import Assignment, Catalog, of_harness
from tttdd.config import Config, Grid, faults
from tttdd.domain import identity
from tttdd.domain.prompt import REGION_CLOSE, REGION_OPEN, split_region
from tttdd.errors import Conflict, NotFound, Refused
from tttdd.protocol import NAME, Artifact, GridSize, Kind, NodeInfo, RunInfo, RunState, StepRow, Submit, TaskInfo
from tttdd.run_ports import RunRecord, RunStore

_log = logging.getLogger("tttdd.registry")


class Registry:
    def __init__(self, config: Config, store: RunStore, catalog: Catalog) -> None:
        self._config, self._store, self._catalog = config, store, catalog

    def submit(self, request: Submit) -> RunInfo:
        _check_kind(request)
        assignment = self._assignment(request.kind, request.task)
        config = self._configured(request)
        for field, rule in faults(config):
            raise Refused(f"{field}: {rule}", field=field)
        name = request.name or self._free_name(request.task)
        if name in self._names():
            raise Conflict(f"there is a run named {name!r} already", field="name", hint="choose another name")
        if config.prompt.style == "completion" and request.kind == "task":
            _check_region(request.task, assignment.prompt.starter)
        record = RunRecord(
            name=name,
            task=request.task,
            seed=request.seed,
            grid=GridSize(config.grid.groups, config.grid.rollouts),
            steps=config.grid.steps,
            identity=self._identity(assignment, config, request.seed, None),
            created=time.time(),
            priority=request.priority,
            mode=request.mode,
            kind=request.kind,
        )
        self._store.open_run(self._continued(record, request.resume_from) if request.resume_from else record)
        return self.run(name)

    def runs(self) -> list[RunInfo]:
        runs = self._store.runs()
        infos: dict[tuple[Kind, str], TaskInfo | None] = {}
        for run in runs:
            if (run.kind, run.task) not in infos:  # reading a task takes milliseconds
                infos[run.kind, run.task] = self._info(run.kind, run.task)
        return [self._told(run, infos[run.kind, run.task]) for run in runs]

    def run(self, name: str) -> RunInfo:
        run = self._store.run(self._known(name))
        return self._told(run, self._info(run.kind, run.task))

    def steps(self, name: str) -> list[StepRow]:
        return self._store.steps(self._known(name))

    def archive(self, name: str, limit: int) -> list[NodeInfo]:
        return self._store.nodes(self._known(name), limit)

    def node(self, name: str, id: int) -> NodeInfo:
        found = self._store.node(self._known(name), id)
        if found is None:
            raise NotFound(f"run {name!r} has no node {id}", field="node")
        return found

    def artifact(self, name: str, id: int) -> Artifact:
        found = self.node(name, id)
        kept = self._store.artifact(name, found.artifact_sha256)
        if kept is None:
            told = f"what node {id} of run {name!r} returned is not kept"
            raise NotFound(told, field="node", hint="it was too large, pruned, or found by an older version")
        return Artifact(msgspec.Raw(kept.encode()), found.artifact_sha256)

    def identity(self, name: str) -> dict[str, identity.Value]:
        run = self._store.run(self._known(name))
        return {**self._store.identity(name), "mode": run.mode, "kind": run.kind}

    def best(self, name: str) -> NodeInfo:
        best = self._store.run(self._known(name)).best
        if best is None:
            raise Conflict(f"run {name!r} has no program yet", hint="there is one when it has started, or found one")
        return self.node(name, best.node)

    def tasks(self) -> list[TaskInfo]:
        """Those that can be run; what is wrong with another is logged, and told to whoever submits it."""
        found: list[TaskInfo] = []
        for name in self._catalog.names():
            try:
                found.append(self._catalog.load(name).info)
            except Refused as error:
                _log.warning("task %s: %s", name, error)
        return found

    async def verify(self, name: str, node: int | None) -> dict[str, Any]:
        run = self.run(name)
        judge = self._assignment(run.kind, run.task).judge
        if judge is None:
            raise Conflict(f"run {name!r} is external: its harness has judged it", field="run")
        found = self.best(name) if node is None else self.node(name, node)
        verdict = await judge.grade(found.program)
        return {"node": found.node, **msgspec.to_builtins(verdict)}

    # Parts of the above

    def _continued(self, record: RunRecord, origin: str) -> RunRecord:
        """`record` as a run that goes on from `origin`; raises Conflict where the two are not alike enough."""
        source = self._store.run(self._known(origin, "resume_from"))
        if source.release and record.mode != "discover":
            raise Conflict(
                f"run {origin!r} has trained its model, and a run of mode {record.mode!r} samples the base model",
                field="resume_from",
                hint="leave out the mode, or go on from a run that has trained nothing",
            )
        if source.task != record.task:
            raise Conflict(f"run {origin!r} is of the task {source.task!r}, not {record.task!r}", field="resume_from")
        theirs = self._store.identity(origin)
        revision = theirs["model.revision"]
        if revision is None:
            raise Conflict(f"run {origin!r} has no program yet", field="resume_from", hint="it has not been started")
        ours = record.identity | {"model.revision": revision}
        alike = identity.INHERITED + (identity.SHAPE if source.release else ())
        if changed := [field for field in identity.differences(ours, theirs) if field.startswith(alike)]:
            raise Conflict(
                f"run {origin!r} differs in {', '.join(changed)}: its release and archive cannot be used",
                field="resume_from",
                hint="configure the daemon as it was for that run, or submit a run of its own",
            )
        if record.grid.groups > source.grid.groups:
            raise Refused(
                f"{record.grid.groups} groups are too many, {source.grid.groups} the most: run {origin!r} has as many "
                "seeds, and no two groups improve the same tree",
                field="grid.groups",
            )
        steps = source.step + record.steps
        return msgspec.structs.replace(record, origin=origin, steps=steps, identity=ours | {"grid.steps": steps})

    def _configured(self, request: Submit) -> Config:
        """The daemon's configuration with what the request overrides."""
        grid = self._config.grid
        size = request.grid or GridSize(grid.groups, grid.rollouts)
        wanted = Grid(groups=size.groups, rollouts=size.rollouts, steps=request.steps or grid.steps)
        return msgspec.structs.replace(self._config, grid=wanted)

    def _of(self, run: RunInfo) -> Config:
        grid = Grid(groups=run.grid.groups, rollouts=run.grid.rollouts, steps=run.steps)
        return msgspec.structs.replace(self._config, grid=grid)

    def _changed(self, run: RunInfo, assignment: Assignment, revision: str | None) -> str:
        """What is not as it was when the run was submitted, and what to do; empty if nothing.

        The model counts when `revision` is given and the run has begun.
        """
        before = self._store.identity(run.run)
        kept = before["model.revision"]
        now = self._identity(assignment, self._of(run), run.seed, revision or kept)
        changed = identity.differences(now, before | {"model.revision": kept or revision})
        if not changed:
            return ""
        told = ", ".join(_was_and_is(field, before.get(field), now.get(field)) for field in changed)
        return (
            f"changed since the run was submitted: {told}; restore and resume, or go on in a new run: "
            f"tttctl submit {run.task} --resume-from {run.run}"
        )

    def _identity(
        self, assignment: Assignment, config: Config, seed: int, revision: identity.Value
    ) -> dict[str, identity.Value]:
        return identity.identity(
            task=assignment.identity,
            model={
                "source": config.model.path or config.model.package,
                "revision": revision,
                "dtype": config.model.dtype,
                "context_length": config.engine.context_length,
            },
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

    def _assignment(self, kind: Kind, task: str) -> Assignment:
        return of_harness(task) if kind == "external" else self._catalog.load(task)

    def _info(self, kind: Kind, task: str) -> TaskInfo | None:
        """None for a task that is no longer there."""
        try:
            return self._assignment(kind, task).info
        except (NotFound, Refused):
            return None

    def _told(self, run: RunInfo, info: TaskInfo | None) -> RunInfo:
        """With what only the task knows, if it is still there, and why nothing is done if the run has no reason."""
        if run.state in ("running", "queued") and not run.reason:
            run = msgspec.structs.replace(run, reason=self._why())
        if info is None:
            return run
        return msgspec.structs.replace(
            run, target=info.target, objective_name=info.objective, direction=info.direction, figure=info.figure
        )

    def _why(self) -> str:
        """What keeps every run from going on, if anything does."""
        return ""

    def _names(self) -> list[str]:
        return [run.run for run in self._store.runs()]

    def _known(self, name: str, field: str = "run") -> str:
        names = self._names()
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "tttctl runs lists them"
            raise NotFound(f"there is no run named {name!r}", field=field, hint=hint)
        return name

    def _free_name(self, task: str) -> str:
        number = 1
        while not self._store.is_free(f"{task}-{number}"):
            number += 1
        return f"{task}-{number}"

    def _must_be(self, name: str, *states: RunState) -> None:
        state = self._store.run(self._known(name)).state
        if state not in states:
            raise Conflict(
                f"run {name!r} is {state}", field="run", hint=f"this needs a run that is {' or '.join(states)}"
            )


def _was_and_is(field: str, before: identity.Value, now: identity.Value) -> str:
    """Of the task's texts and the model's files only hashes are kept, which tell nobody anything."""
    return field if field.startswith("task.") or field == "model.revision" else f"{field} (was {before}, is {now})"


def _check_kind(request: Submit) -> None:
    """What a harness judges has any name that a folder may have, and prompts of the harness's own choice."""
    if request.kind != "external":
        return
    if not re.match(NAME, request.task):
        rule = "letters, digits, '.', '_' and '-', at most 64, the first a letter or a digit"
        raise Refused(f"task: {request.task!r} is no name for what a harness judges", field="task", hint=rule)
    if request.mode == "best-of-n":
        told = "mode: a harness chooses its prompts by itself, so best-of-n is not the daemon's to do"
        raise Refused(told, field="mode", hint="search leaves the model as it is")


def _check_region(task: str, starter: str) -> None:
    try:
        split_region(starter)
    except ValueError as error:
        raise Refused(
            f"task {task!r} cannot be used in completion style: {error}",
            field="task",
            hint=f"mark one region in its starter program with {REGION_OPEN} and {REGION_CLOSE}, or use chat style",
        ) from None
