"""A daemon without an engine: a fake runner and board behind the real API, on a real socket, in a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.from_thread
import anyio.lowlevel
import msgspec

from tttdd import errors, ports, protocol
from tttdd import harness_protocol as harness
from tttdd.api import app, server
from tttdd.api.logs import RecentLog
from tttdd.opening import Ask


class FakeRunner:
    """The daemon's runner, as the API sees it: one task, runs that exist as soon as they are submitted."""

    def __init__(self) -> None:
        self.by_name: dict[str, protocol.RunInfo] = {}
        self.state_dir = ""
        self.program = "def build():\n    return 1\n"
        self.others: dict[int, protocol.NodeInfo] = {}
        """Nodes beside the starter, which is 1."""
        self.verified_valid = True
        self.asked: list[tuple[str, object]] = []

    def submit(self, request: protocol.Submit) -> protocol.RunInfo:
        self.asked.append(("submit", request))
        external = request.kind == "external"
        if request.task != "erdos_min_overlap" and not external:
            raise errors.NotFound(f"no task {request.task!r}", field="task", hint="did you mean 'erdos_min_overlap'?")
        name = request.name or f"{request.task}-{len(self.by_name) + 1}"
        if name in self.by_name:
            raise errors.Conflict(f"there is a run {name!r} already", field="name")
        best = None if external else protocol.Best(node=1, reward=2.5, objective=0.4, step=-1)
        self.by_name[name] = protocol.RunInfo(
            run=name,
            task=request.task,
            state="running",
            step=0,
            steps=request.steps or 2,
            release=0,
            grid=request.grid or protocol.GridSize(2, 3),
            seed=request.seed,
            created=1.0,
            starter=best,
            best=best,
            objective_name="" if external else "C5",
            direction="higher" if external else "lower",
            mode=request.mode,
            kind=request.kind,
            state_dir=self.state_dir,
        )
        return self.by_name[name]

    def runs(self) -> list[protocol.RunInfo]:
        return list(self.by_name.values())

    def run(self, name: str) -> protocol.RunInfo:
        if name not in self.by_name:
            raise errors.NotFound(f"no run {name!r}", field="run", hint="known runs: " + ", ".join(self.by_name))
        return self.by_name[name]

    def become(self, name: str, state: protocol.RunState, reason: str = "") -> None:
        self.by_name[name] = msgspec.structs.replace(self.run(name), state=state, reason=reason)

    def pause(self, name: str | None, release_gpus: bool) -> None:
        self.asked.append(("pause", (name, release_gpus)))
        for run in [name] if name else self.by_name:
            self.become(run, "paused")

    def resume(self, name: str | None) -> None:
        self.asked.append(("resume", name))
        for run in [name] if name else self.by_name:
            self.become(run, "running")

    def cancel(self, name: str) -> None:
        if self.run(name).state == "cancelled":
            raise errors.Conflict(f"run {name!r} is cancelled already")
        self.become(name, "cancelled", "asked to")

    async def verify(self, name: str, node: int | None) -> dict[str, object]:
        if self.run(name).kind == "external":
            raise errors.Conflict(f"run {name!r} is external: its harness has judged it", field="run")
        found = self.node(name, 1 if node is None else node)
        reason = "" if self.verified_valid else "constraint"
        verdict = {"valid": self.verified_valid, "reward": found.reward, "objective": found.objective}
        return {**verdict, "reason": reason, "detail": "", "node": found.node}

    def steps(self, name: str) -> list[protocol.StepRow]:
        metrics = {"tttd/valid_fraction": 0.5, "tttd/reward_mean": 1.25, "train/sampler_trainer_gap": 1e-6}
        metrics |= {"train/kl_base": 0.01, "time/step": 3.0}
        return [
            protocol.StepRow(step=step, phase="committed", release=step, metrics=metrics)
            for step in range(self.run(name).step)
        ]

    def archive(self, name: str, limit: int) -> list[protocol.NodeInfo]:
        found = [self.node(name, 1), *(node for node in self.others.values() if not node.pruned)]
        return [msgspec.structs.replace(node, program="", lineage=[]) for node in found][:limit]

    def node(self, name: str, id: int) -> protocol.NodeInfo:
        self.run(name)
        if id in self.others:
            return self.others[id]
        if id != 1:
            raise errors.NotFound(f"run {name!r} has no node {id}", field="node")
        seed = protocol.NodeInfo(
            node=1,
            reward=2.5,
            objective=0.4,
            parent=None,
            seed=True,
            visits=3,
            step=-1,
            pruned=False,
            program=self.program,
            output="said \x1b[31mred",
        )
        if self.run(name).kind == "task":
            return seed
        return msgspec.structs.replace(seed, reward=0.0, objective=None, program="", output="")

    def artifact(self, name: str, id: int) -> protocol.Artifact:
        if not self.node(name, id).artifact_sha256:
            raise errors.NotFound(f"what node {id} of run {name!r} returned is not kept", field="node")
        return protocol.Artifact(msgspec.Raw(b"[[1.0, 0.0], 0.5, 2]"), self.node(name, id).artifact_sha256)

    def identity(self, name: str) -> dict[str, protocol.Value]:
        return {"mode": self.run(name).mode, "seed": self.run(name).seed, "task.judge": "3f5a"}

    def best(self, name: str) -> protocol.NodeInfo:
        if self.run(name).kind == "external" and not self.others:
            raise errors.Conflict(f"run {name!r} has no answer yet")
        return max([self.node(name, 1), *self.others.values()], key=lambda node: node.reward)

    def tasks(self) -> list[protocol.TaskInfo]:
        return [
            protocol.TaskInfo(
                name="erdos_min_overlap",
                title="Erdős minimum overlap",
                objective="C5",
                direction="lower",
                target=0.3809,
                time_limit=5.0,
                entry_point="build",
            )
        ]


class FakeBoard:
    """The live snapshot, of a fake runner; `touch` tells who waits that it changed."""

    def __init__(self, runner: FakeRunner) -> None:
        self._runner, self._version = runner, 0
        self.gpus: list[protocol.GpuInfo] = []
        self._changed = anyio.Event()

    def touch(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = anyio.Event()

    def snapshot(self) -> protocol.Status:
        runs = self._runner.runs()
        phase = protocol.PhaseInfo(name="sample", since=1.0, eta_seconds=90.0)
        return protocol.Status(
            version="0",
            pid=os.getpid(),
            started=1.0,
            config="tttdd.toml",
            state_dir="/nowhere",
            paused=False,
            judges=protocol.JudgesInfo(level="process", parallel=2),
            runs=runs,
            current=protocol.Current(run=runs[0], phase=phase, cells=[["valid", "waiting", "best"]]) if runs else None,
            gpus=self.gpus,
            log=[f"version {self._version}"],
        )

    def watched(self) -> bool:
        """Whether somebody waits for a change."""
        return self._changed.statistics().tasks_waiting > 0

    async def changed(self, after: int) -> int:
        while self._version <= after:
            await self._changed.wait()
        return self._version


class FakeDesk:
    """Says `words`, one after another; `fault` is raised instead, after `told` of them."""

    def __init__(self, *words: str, fault: errors.CallerError | None = None, told: int = 0) -> None:
        self.words, self.fault, self.told = words, fault, told
        self.asked: list[Ask] = []
        self.hung_up = 0

    async def complete(
        self, run: protocol.RunInfo, ask: Ask, on_text: Callable[[str], None] | None = None
    ) -> ports.Receipt:
        self.asked.append(ask)
        try:
            for word in self.words[: self.told] if self.fault else self.words:
                if on_text:
                    on_text(word)
                await anyio.sleep(0.01)
        except anyio.get_cancelled_exc_class():
            self.hung_up += 1
            raise
        if self.fault:
            raise self.fault
        ids = list(range(len(self.words)))
        sampled = ports.Sampled(ids, [-1.0] * len(ids), [True] * len(ids), "".join(self.words), "stop", run.release)
        return ports.Receipt(id="receipt-1", run=run.run, step=run.step, prompt_ids=[1, 2, 3], sampled=sampled)

    def report(self, run: protocol.RunInfo, report: harness.Report, content: bytes) -> harness.Reported:
        told = report.metadata
        return harness.Reported(
            run=run.run, receipt=report.references[0], step=told.step, group=told.group, rollout=told.rollout,
            accepted=True,
        )  # fmt: skip

    def grid(self, run: protocol.RunInfo) -> harness.GridInfo:
        return harness.GridInfo(
            run=run.run, state=run.state, step=run.step, steps=run.steps, release=run.release, groups=2, rollouts=3,
            missing=[harness.Place(group=1, rollout=2)], refused=[],
        )  # fmt: skip


class Served(NamedTuple):
    socket: Path
    runner: FakeRunner
    board: FakeBoard
    recent: RecentLog
    on_loop: Callable[[Callable[[], object]], object]
    """Runs a function in the daemon's thread and waits for it."""


@contextmanager
def serving(
    socket: Path, group: str = "", runner: FakeRunner | None = None, desk: FakeDesk | None = None
) -> Iterator[Served]:
    runner = runner or FakeRunner()
    board, recent = FakeBoard(runner), RecentLog()
    with anyio.from_thread.start_blocking_portal() as portal:

        async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            bound = server.bind(socket, group)
            application = app.build(runner, board, desk or FakeDesk(), group=group, recent=recent)
            await server.serve(bound, application, ready=task_status.started)

        future, _ = portal.start_task(run)
        try:
            yield Served(socket, runner, board, recent, lambda function: portal.call(function))
        finally:
            future.cancel()
            ended = threading.Event()
            future.add_done_callback(lambda _: ended.set())
            assert ended.wait(10)
