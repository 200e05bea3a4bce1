"""Weights & Biases as a tracker: one worker process per open run, which alone imports wandb.

    Opening -> Worker("tttdd.workers.track") -> open: next step -> tell, adapter, finish;   leaving kills all of it

Nothing here waits for wandb longer than the limits below: what it has not taken is told to the next process.  The API
key goes over the worker's line, so it stands in no environment, command line or file.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil

from tttdd.adapters.worker import Worker
from tttdd.config import Wandb
from tttdd.ports import Release, WorkerFailed
from tttdd.protocol import Value
from tttdd.tracking import Opening

OPEN_SECONDS = 180.0
TELL_SECONDS = 60.0
UPLOAD_SECONDS = 900.0
LEAVE_SECONDS = 0.5
"""For wandb's own process to write what it has, once its parent is gone."""
CREDENTIAL = "wandb_api_key"


class NoKey(RuntimeError):
    """Nothing can be sent.  The message says what to do."""


def api_key() -> str | None:
    """$WANDB_API_KEY, else systemd's credential wandb_api_key."""
    if key := os.environ.get("WANDB_API_KEY", "").strip():
        return key
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    try:
        return (Path(folder) / CREDENTIAL).read_text().strip() if folder else None
    except FileNotFoundError:
        return None


class WandbTracking:
    """Opens runs.  Raises NoKey."""

    def __init__(self, settings: Wandb) -> None:
        self._settings, self._key = settings, None
        if settings.mode == "online":
            self._key = api_key()
            if not self._key:
                raise NoKey(
                    'tracking.wandb: mode = "online" needs an API key: set WANDB_API_KEY in the daemon\'s environment, '
                    f'or the systemd credential {CREDENTIAL}, or mode = "offline"; nothing is tracked until then'
                )

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncGenerator[WandbSession]:
        """Raises WorkerDied, WorkerFailed or TimeoutError, now or in a method of the session."""
        async with Worker("tttdd.workers.track", {}, opening.folder.logs / "track.log") as worker:
            try:
                yield WandbSession(worker, await _ask(worker, OPEN_SECONDS, "open", **self._opened_with(opening)))
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(_end, worker.pid)

    def _opened_with(self, opening: Opening) -> dict[str, Any]:
        settings, run = self._settings, opening.run
        root = opening.folder.path if settings.directory is None else Path(settings.directory).absolute() / run.run
        return {
            "root": str(root),
            "mode": settings.mode,
            "project": settings.project,
            "entity": settings.entity,
            "id": opening.id,
            "name": run.run,
            "group": run.task,
            "tags": [run.mode],
            "created": run.created,
            "config": opening.config,
            "api_key": self._key,
        }


class WandbSession:
    def __init__(self, worker: Worker, next: int) -> None:
        self._worker, self.next = worker, next

    async def tell(
        self, rows: Sequence[tuple[int, dict[str, float]]], config: Mapping[str, Value], summary: Mapping[str, Value]
    ) -> None:
        await _ask(self._worker, TELL_SECONDS, "tell", rows=rows, config=config, summary=summary)

    async def adapter(self, release: Release, aliases: list[str]) -> None:
        about = {"release": release.number, "folder": str(release.path), "aliases": aliases}
        await _ask(self._worker, UPLOAD_SECONDS, "adapter", **about)

    async def finish(self, exit_code: int) -> None:
        await _ask(self._worker, UPLOAD_SECONDS, "finish", exit_code=exit_code)


async def _ask(worker: Worker, seconds: float, method: str, **params: Any) -> Any:
    try:
        with anyio.fail_after(seconds):
            return await worker.call(method, **params)
    except TimeoutError:
        raise WorkerFailed(f"W&B: {method}: no answer for {seconds:g} s; {worker.log} may say why") from None
    except WorkerFailed as error:
        raise WorkerFailed(f"W&B: {method}: {error}") from None


def _end(pid: int) -> None:
    """The worker, and the process that wandb has put into a session of its own, hung or not."""
    with suppress(psutil.Error):
        worker = psutil.Process(pid)
        children = worker.children(recursive=True)
        worker.kill()
        for child in psutil.wait_procs(children, LEAVE_SECONDS)[1]:
            with suppress(psutil.Error):
                child.kill()
