"""The trainer port over a worker process: paths and token ids go out, a report comes back.

    MegatronTrainer.train -> "train" -> tttdd.workers.train -> release folder on disk, TrainReport

The worker takes requests one at a time; `async with` starts it and ends it with all that it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tttdd import wire
from tttdd.adapters.worker import Worker
from tttdd.domain.batch import TrainReport
from tttdd.ports import Probe, Release


class MegatronTrainer(Worker):
    """`options`: every field of the configuration's [trainer] table, and model_path, dtype, seed and threads.

    `on_progress(done, total)` is called as a step's bins are passed.  Every call raises WorkerDied when the process
    is gone and WorkerFailed for a request that it refuses.
    """

    def __init__(
        self, options: dict[str, Any], log: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        self._on_progress = on_progress
        super().__init__("tttdd.workers.train", options, log, self._heard)

    async def train(self, release: Release, batch: Path, target: Release) -> TrainReport:
        if target.path is None:
            raise ValueError("a trained release needs a folder to be written to")
        report = await self.call(
            "train",
            release=release.number,
            release_path=_text(release.path),
            batch=str(batch),
            target=str(target.path),
            target_number=target.number,
        )
        return msgspec.convert(report, TrainReport)

    async def score(self, probe: Probe, *, release: Release) -> list[float]:
        logprobs = await self.call(
            "score",
            release_path=_text(release.path),
            prompt_ids=probe.prompt_ids,
            completion_ids=probe.completion_ids,
        )
        return msgspec.convert(logprobs, list[float])

    def _heard(self, event: wire.Event) -> None:
        if event.name == "progress":
            self._on_progress(event.data["done"], event.data["total"])


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
