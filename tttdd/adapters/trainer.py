"""The trainer port over worker processes, one a device: paths and token ids go out, a report comes back.

    MegatronTrainer.train -> "train" to every process -> tttdd.workers.train -> release folder on disk, TrainReport

They take requests one at a time, all the same ones, and speak with each other while they work: when one is gone or
fails alone, the others may wait for it for ever.  Then a call ends at once, and leaving the context ends them all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec

from tttdd import wire
from tttdd.adapters.worker import Worker
from tttdd.domain.batch import TrainReport
from tttdd.ports import Probe, Release, WorkerDied, WorkerFailed

log = logging.getLogger("tttdd.trainer")

MEETING = "rendezvous-"
"""Folder in which the processes of one start find each other, beside their log."""

SAME_ANSWER_SECONDS = 5.0
"""For the other processes to refuse a request that one has refused; who doesn't hangs."""


class MegatronTrainer:
    """`options`: every field of the configuration's [trainer] table, and model_path, dtype, seed and threads.

    The first process logs to `log_path`, the others beside it.  `on_progress(done, total)` is called as the first one's
    bins are passed.  Every call raises WorkerDied when a process is gone, or hangs since another failed alone, and
    WorkerFailed for a request that is refused.
    """

    def __init__(
        self,
        options: dict[str, Any],
        log_path: Path,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        processes: int = 1,
    ) -> None:
        self._options, self._log_path, self._on_progress, self._processes = options, log_path, on_progress, processes
        self._workers: list[Worker] = []
        self._exit = contextlib.AsyncExitStack()
        self._in_step = True
        """Whether all have answered the last request: none is at work, or waits for another."""
        self._lost: str | None = None
        """Why there is no more use in asking."""

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as opening:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            for leftover in self._log_path.parent.glob(f"{MEETING}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            folder = opening.enter_context(tempfile.TemporaryDirectory(prefix=MEETING, dir=self._log_path.parent))
            for index in range(self._processes):
                seat = {"index": index, "count": self._processes, "rendezvous": str(Path(folder) / "rendezvous")}
                heard = self._heard if index == 0 else None
                worker = Worker("tttdd.workers.train", self._options | {"seat": seat}, self._log_of(index), heard)
                self._workers.append(await opening.enter_async_context(worker))
            self._exit = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if not self._in_step:  # they would not hear of the end, each for its STOP_SECONDS; nothing is lost
            for pid in self.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        return await self._exit.__aexit__(kind, error, trace)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    async def train(self, release: Release, batch: Path, target: Release) -> TrainReport:
        if target.path is None:
            raise ValueError("a trained release needs a folder to be written to")
        report = await self._call(
            "train",
            release=release.number,
            release_path=_text(release.path),
            batch=str(batch),
            target=str(target.path),
            target_number=target.number,
        )
        return msgspec.convert(report, TrainReport)

    async def score(self, probe: Probe, *, release: Release) -> list[float]:
        logprobs = await self._call(
            "score",
            release_path=_text(release.path),
            prompt_ids=probe.prompt_ids,
            completion_ids=probe.completion_ids,
        )
        return msgspec.convert(logprobs, list[float])

    async def _call(self, method: str, **params: Any) -> Any:
        """The first process's answer, when all have answered; else the failure that counts."""
        if self._lost is not None:
            raise WorkerDied(self._lost)
        answers: dict[int, Any] = {}
        died: list[WorkerDied] = []
        refused: dict[int, WorkerFailed] = {}
        self._in_step = False

        async def ask(index: int) -> None:
            try:
                answers[index] = await self._workers[index].call(method, **params)
            except WorkerDied as error:
                died.append(error)
                tasks.cancel_scope.cancel()
            except WorkerFailed as error:
                refused[index] = error
                tasks.cancel_scope.deadline = min(tasks.cancel_scope.deadline, _soon())

        async with anyio.create_task_group() as tasks:
            for index in range(len(self._workers)):
                tasks.start_soon(ask, index)
        self._in_step = len(answers) + len(refused) == len(self._workers)
        failures = [*died, *(refused[index] for index in sorted(refused))]
        if not failures:
            return answers[0]
        if not self._in_step:
            self._lost = str(failures[0])
        raise failures[0]

    def _heard(self, event: wire.Event) -> None:
        match event.name:
            case "progress":
                self._on_progress(event.data["done"], event.data["total"])
            case "warning":
                log.warning("%s", event.data["text"])
            case _:
                pass

    def _log_of(self, index: int) -> Path:
        path = self._log_path
        return path if index == 0 else path.with_name(f"{path.stem}-{index}{path.suffix}")


def _soon() -> float:
    return anyio.current_time() + SAME_ANSWER_SECONDS


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
