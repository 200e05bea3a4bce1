"""The API's routes: each a few lines between the protocol and the runner or the board.

GET reads a snapshot, the store or the judges' tasks; POST asks the runner, which answers at once and acts later
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

import anyio
import msgspec
from starlette.responses import Response

from tttdd import __version__, gpus, protocol
from tttdd import harness_protocol as harness
from tttdd.api import exposition, logs
from tttdd.api.chat import Completion, Desk
from tttdd.api.events import Board, EventStream, Feed
from tttdd.api.openapi import describe
from tttdd.api.routing import App, Call, Route
from tttdd.log_protocol import LogPart, LogQuery


class Runner(Protocol):
    """What the API asks of the daemon's runner.  All raise errors.NotFound for a name that does not exist."""

    def submit(self, request: protocol.Submit) -> protocol.RunInfo: ...
    def runs(self) -> list[protocol.RunInfo]: ...
    def run(self, name: str) -> protocol.RunInfo: ...
    def pause(self, name: str | None, release_gpus: bool) -> None: ...
    def resume(self, name: str | None) -> None: ...
    def cancel(self, name: str) -> None: ...
    async def verify(self, name: str, node: int | None) -> dict[str, Any]: ...
    def steps(self, name: str) -> list[protocol.StepRow]: ...
    def archive(self, name: str, limit: int) -> list[protocol.NodeInfo]: ...
    def node(self, name: str, id: int) -> protocol.NodeInfo: ...
    def artifact(self, name: str, id: int) -> protocol.Artifact: ...
    def best(self, name: str) -> protocol.NodeInfo: ...
    def identity(self, name: str) -> dict[str, protocol.Value]: ...
    def tasks(self) -> list[protocol.TaskInfo]: ...


def build(runner: Runner, board: Board, desk: Desk, *, group: str = "", recent: logs.RecentLog | None = None) -> App:
    """The application; members of `group` may use it besides root and the daemon's account.  `recent` is told as the
    daemon's own log."""
    stopping = anyio.Event()
    return App(routes(runner, board, desk, recent or logs.RecentLog(), stopping), group, stopping)


def routes(runner: Runner, board: Board, desk: Desk, recent: logs.RecentLog, stopping: anyio.Event) -> list[Route]:
    """All that can be called; the docs are made of it, too."""
    do = _Handlers(runner, board, desk, recent, stopping)
    do.routes = [*_daemon_routes(do), *_run_routes(do), *_program_routes(do), *_harness_routes(do)]
    return do.routes


class _Handlers:
    def __init__(self, runner: Runner, board: Board, desk: Desk, recent: logs.RecentLog, stopping: anyio.Event) -> None:
        self._desk = desk
        self._runner, self._board, self._feed, self._stopping = runner, board, Feed(board), stopping
        self._recent = recent
        self.routes: list[Route] = []
        self._newest: tuple[str, int, protocol.StepRow | None] = ("", -1, None)

    async def health(self, call: Call) -> protocol.Health:
        return protocol.Health("ok", __version__)

    async def status(self, call: Call) -> protocol.Status:
        return self._board.snapshot()

    async def events(self, call: Call) -> EventStream:
        return EventStream(self._feed, self._stopping)

    async def metrics(self, call: Call) -> Response:
        await anyio.to_thread.run_sync(exposition.prepare)
        status = self._board.snapshot()
        newest = self._newest_step(status.current.run) if status.current else None
        body, kind = exposition.text(status, newest)
        return Response(body, headers={"content-type": kind})

    def _newest_step(self, run: protocol.RunInfo) -> protocol.StepRow | None:
        """Read when the run has gone on, not for each scrape: a long run has thousands."""
        if self._newest[:2] != (run.run, run.step):
            done = [row for row in self._runner.steps(run.run) if row.phase == "committed"]
            self._newest = (run.run, run.step, done[-1] if done else None)
        return self._newest[2]

    async def openapi(self, call: Call) -> dict[str, Any]:
        return describe(self.routes, __version__)

    async def tasks(self, call: Call) -> list[protocol.TaskInfo]:
        return self._runner.tasks()

    async def gpus(self, call: Call) -> list[protocol.GpuInfo]:
        return await anyio.to_thread.run_sync(gpus.read, abandon_on_cancel=True)

    async def pause_all(self, call: Call) -> protocol.Status:
        self._runner.pause(None, call.body.release_gpus)
        return self._board.snapshot()

    async def resume_all(self, call: Call) -> protocol.Status:
        self._runner.resume(None)
        return self._board.snapshot()

    async def submit(self, call: Call) -> protocol.RunInfo:
        return self._runner.submit(call.body)

    async def runs(self, call: Call) -> list[protocol.RunInfo]:
        return self._runner.runs()

    async def run(self, call: Call) -> protocol.RunInfo:
        return self._runner.run(call.path["run"])

    async def pause(self, call: Call) -> protocol.RunInfo:
        self._runner.pause(call.path["run"], call.body.release_gpus)
        return await self.run(call)

    async def resume(self, call: Call) -> protocol.RunInfo:
        self._runner.resume(call.path["run"])
        return await self.run(call)

    async def cancel(self, call: Call) -> protocol.RunInfo:
        self._runner.cancel(call.path["run"])
        return await self.run(call)

    async def steps(self, call: Call) -> list[protocol.StepRow]:
        return self._runner.steps(call.path["run"])

    async def archive(self, call: Call) -> list[protocol.NodeInfo]:
        return self._runner.archive(call.path["run"], call.query.limit)

    async def node(self, call: Call) -> protocol.NodeInfo:
        return self._runner.node(call.path["run"], call.path["node"])

    async def artifact(self, call: Call) -> protocol.Artifact:
        return self._runner.artifact(call.path["run"], call.path["node"])

    async def logs(self, call: Call) -> LogPart:
        run = self._runner.run(call.path["run"])
        return await anyio.to_thread.run_sync(logs.part, run, self._recent, call.query)

    async def identity(self, call: Call) -> dict[str, protocol.Value]:
        return self._runner.identity(call.path["run"])

    async def best(self, call: Call) -> protocol.NodeInfo:
        return self._runner.best(call.path["run"])

    async def verify(self, call: Call) -> protocol.Verified:
        return msgspec.convert(await self._runner.verify(call.path["run"], call.body.node), protocol.Verified)

    async def complete(self, call: Call) -> Completion:
        run = self._runner.run(call.header)
        return Completion(self._desk, run, call.body, self._stopping)

    async def report(self, call: Call) -> harness.Reported:
        return self._desk.report(self._runner.run(call.path["run"]), call.body, call.content)

    async def grid(self, call: Call) -> harness.GridInfo:
        return self._desk.grid(self._runner.run(call.path["run"]))


def _daemon_routes(do: _Handlers) -> list[Route]:
    p = protocol
    return [
        _get("/v1/health", do.health, p.Health, "Whether the daemon is alive"),
        _get("/v1/status", do.status, p.Status, "One whole snapshot"),
        _get("/v1/events", do.events, p.Status, "The same snapshots as server-sent events"),
        _get("/v1/metrics", do.metrics, str, "The same in Prometheus' text format", kind="text/plain"),
        _get("/v1/openapi.json", do.openapi, dict[str, Any], "This description"),
        _get("/v1/tasks", do.tasks, list[p.TaskInfo], "The tasks, with limits and targets"),
        _get("/v1/gpus", do.gpus, list[p.GpuInfo], "The devices: memory, load, whose processes are on them"),
        _post("/v1/pause", do.pause_all, p.Status, "Pause the whole daemon", takes=p.Pause),
        _post("/v1/resume", do.resume_all, p.Status, "Resume the whole daemon"),
    ]


def _run_routes(do: _Handlers) -> list[Route]:
    p = protocol
    return [
        _post("/v1/runs", do.submit, p.RunInfo, "Submit a run", takes=p.Submit, status=201),
        _get("/v1/runs", do.runs, list[p.RunInfo], "All runs"),
        _get("/v1/runs/{run}", do.run, p.RunInfo, "One run"),
        _get("/v1/runs/{run}/identity", do.identity, dict[str, p.Value], "What makes it the experiment that it is"),
        _get("/v1/runs/{run}/logs", do.logs, LogPart, "A part of one of the run's logs", query=LogQuery),
        _post("/v1/runs/{run}/pause", do.pause, p.RunInfo, "Pause a run", takes=p.Pause),
        _post("/v1/runs/{run}/resume", do.resume, p.RunInfo, "Resume a run"),
        _post("/v1/runs/{run}/cancel", do.cancel, p.RunInfo, "Cancel a run"),
    ]


def _program_routes(do: _Handlers) -> list[Route]:
    p = protocol
    return [
        _get("/v1/runs/{run}/steps", do.steps, list[p.StepRow], "The run's steps and their metrics"),
        _get("/v1/runs/{run}/archive", do.archive, list[p.NodeInfo], "Nodes by reward", query=p.Listing),
        _get("/v1/runs/{run}/nodes/{node}", do.node, p.NodeInfo, "One program with its lineage and verdict"),
        _get("/v1/runs/{run}/nodes/{node}/artifact", do.artifact, p.Artifact, "What a program returned"),
        _get("/v1/runs/{run}/best", do.best, p.NodeInfo, "The best program"),
        _post("/v1/runs/{run}/verify", do.verify, p.Verified, "Judge a stored program again", takes=p.Verify),
    ]


def _harness_routes(do: _Handlers) -> list[Route]:
    h, often = harness, logging.DEBUG
    return [
        _get("/v1/runs/{run}/grid", do.grid, h.GridInfo, "What the step in hand of an external run lacks"),
        _post("/v1/runs/{run}/reports", do.report, h.Reported, "Report a reward", takes=h.Report, logged=often),
        _post(
            "/v1/chat/completions",
            do.complete,
            h.ChatCompletion,
            "Sample from an external run's newest release; with `stream`, ChatChunk as server-sent events",
            takes=h.ChatRequest,
            header="x-tttdd-run",
            fails=h.ChatError,
            logged=often,
        ),
    ]


def _get(path: str, handler: Any, gives: Any, summary: str, **more: Any) -> Route:
    return Route(method="GET", path=path, handler=handler, gives=gives, summary=summary, **more)


def _post(path: str, handler: Any, gives: Any, summary: str, **more: Any) -> Route:
    return Route(method="POST", path=path, handler=handler, gives=gives, summary=summary, **more)
