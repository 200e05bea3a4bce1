"""A run's workers, opened together: engine, trainer if it trains, and the folder they share.

prepare: the model's files      open: memory plan -> engine -> trainer -> World; leaving it ends both

The engine is up before the trainer starts: SGLang sizes its KV cache by what is free on the device.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

import anyio.to_thread
import msgspec

from tttdd import gpus, memory
from tttdd.adapters import model
from tttdd.adapters.sampler import EmbeddedEngine
from tttdd.adapters.trainer import MegatronTrainer
from tttdd.config import Config
from tttdd.desk import Desk
from tttdd.errors import Refused
from tttdd.folder import RunFolder
from tttdd.gate import Gate
from tttdd.memory import CannotFit, MemoryPlan
from tttdd.ports import Judge, ModelFiles, Observer, RolloutEngine, Store, Trainer
from tttdd.world import Plan, World

LEAVING_SECONDS = 60.0
"""For the workers of a daemon that was killed to be gone: what they hold must not be planned around."""

_log = logging.getLogger("tttdd.workshop")


class LocalWorkshop:
    def __init__(self, config: Config, store: Store, state_dir: Path) -> None:
        self._config, self._store, self._state_dir = config, store, state_dir

    async def prepare(self, progress: Callable[[str, float | None], None]) -> ModelFiles:
        return await model.prepare(self._config.model, progress)

    @asynccontextmanager
    async def open(
        self, plan: Plan, files: ModelFiles, judge: Judge | None, desk: Desk, observer: Observer, gate: Gate
    ) -> AsyncGenerator[World]:
        folder = RunFolder(self._state_dir / "runs" / plan.name)
        memory_plan = await self._memory_plan(files, plan.groups * plan.rollouts)
        async with (
            self._engine(plan, files, folder, memory_plan) as engine,
            self._trainer(plan, files, folder, memory_plan, observer) as trainer,
        ):
            yield World(
                engine=engine,
                trainer=trainer,
                judge=judge,
                desk=desk,
                store=self._store,
                observer=observer,
                gate=gate,
                folder=folder,
            )

    async def _memory_plan(self, files: ModelFiles, rollouts: int) -> MemoryPlan:
        found = await anyio.to_thread.run_sync(gpus.read)
        with anyio.move_on_after(LEAVING_SECONDS):
            while gpus.leaving(found):
                await anyio.sleep(0.5)
                found = await anyio.to_thread.run_sync(gpus.read)
        try:
            planned = memory.plan_for(self._config, files.path, found, rollouts)
        except CannotFit as error:
            raise Refused(str(error)) from None
        for line in planned.lines():
            _log.info("%s", line)
        return planned

    def _engine(
        self, plan: Plan, files: ModelFiles, folder: RunFolder, planned: MemoryPlan
    ) -> AbstractAsyncContextManager[RolloutEngine]:
        config = self._config
        if config.engine.backend == "torch":
            return EmbeddedEngine(
                files.path,
                folder.logs / "engine.log",
                context_length=config.engine.context_length,
                thinking=config.sampling.thinking,
            )
        # An HTTP client that the embedded engine does without costs a fifth of a second.
        from tttdd.adapters.sglang import SglangEngine
        from tttdd.adapters.sglang_server import Place, Settings

        settings = Settings(
            places=tuple(Place(each.device, each.mem_fraction, each.max_running_requests) for each in planned.engines),
            context_length=config.engine.context_length,
            thinking=config.sampling.thinking,
            dtype=config.model.dtype,
            rank=config.trainer.rank,
            targets=config.trainer.targets,
            release_kv=planned.release_kv,
            seed=plan.seed,
            arguments=config.engine.arguments,
        )
        return SglangEngine(files.path, folder.path / "serving", folder.logs, settings)

    def _trainer(
        self, plan: Plan, files: ModelFiles, folder: RunFolder, planned: MemoryPlan, observer: Observer
    ) -> AbstractAsyncContextManager[Trainer | None]:
        if not plan.trains:
            return nullcontext()
        return MegatronTrainer(
            self._trainer_options(plan, files, planned),
            folder.logs / "trainer.log",
            lambda done, total: observer.progress(done / total),
            processes=max(1, len(self._config.trainer.devices)),
        )

    def _trainer_options(self, plan: Plan, files: ModelFiles, planned: MemoryPlan) -> dict[str, object]:
        table = msgspec.to_builtins(self._config.trainer)
        del table["backend"]
        return table | {
            "model_path": str(files.path),
            "dtype": self._config.model.dtype,
            "seed": plan.seed,
            "max_tokens_per_gpu": planned.max_tokens_per_gpu,
        }
