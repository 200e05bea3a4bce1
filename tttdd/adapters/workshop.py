"""A run's workers, opened together: sampler, trainer, and the folder they share.

prepare: the model's files      open: engine and trainer processes -> World; leaving it ends both
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tttdd.adapters import model
from tttdd.adapters.sampler import EmbeddedEngine
from tttdd.adapters.trainer import MegatronTrainer
from tttdd.config import Config
from tttdd.folder import RunFolder
from tttdd.gate import Gate
from tttdd.ports import Judge, ModelFiles, Observer, Store
from tttdd.step import Plan, World


class LocalWorkshop:
    def __init__(self, config: Config, store: Store, state_dir: Path) -> None:
        self._config, self._store, self._state_dir = config, store, state_dir

    async def prepare(self, progress: Callable[[str, float | None], None]) -> ModelFiles:
        return await model.prepare(self._config.model, progress)

    @asynccontextmanager
    async def open(
        self, plan: Plan, files: ModelFiles, judge: Judge, observer: Observer, gate: Gate
    ) -> AsyncGenerator[World]:
        folder = RunFolder(self._state_dir / "runs" / plan.name)
        async with (
            self._engine(files, folder.logs / "engine.log") as engine,
            MegatronTrainer(
                self._trainer_options(plan, files),
                folder.logs / "trainer.log",
                lambda done, total: observer.progress(done / total),
            ) as trainer,
        ):
            yield World(
                engine=engine,
                trainer=trainer,
                judge=judge,
                store=self._store,
                observer=observer,
                gate=gate,
                folder=folder,
            )

    def _engine(self, files: ModelFiles, log: Path) -> EmbeddedEngine:
        return EmbeddedEngine(
            files.path,
            log,
            context_length=self._config.engine.context_length,
            max_new_tokens=self._config.sampling.max_new_tokens,
        )

    def _trainer_options(self, plan: Plan, files: ModelFiles) -> dict[str, object]:
        table = msgspec.to_builtins(self._config.trainer)
        del table["backend"]
        return table | {"model_path": str(files.path), "dtype": self._config.model.dtype, "seed": plan.seed}
