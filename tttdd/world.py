"""What a run is asked to do, the open ports that it is done with, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from tttdd.desk import Desk
from tttdd.domain import prompt
from tttdd.folder import RunFolder
from tttdd.gate import Gate
from tttdd.ports import Judge, ModelFiles, Observer, RolloutEngine, Store, Trainer
from tttdd.protocol import Kind, Mode
from tttdd.thinking import Budget


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is asked to do."""

    name: str
    mode: Mode
    kind: Kind
    seed: int
    steps: int
    groups: int
    rollouts: int
    task: prompt.TaskPrompt
    c: float
    max_nodes: int
    children_kept: int
    count: Literal["rollout", "expansion"]
    budget: Budget
    """Tokens of an answer."""
    context_length: int
    """Tokens, of prompt and answer together."""
    keep: int
    """Newest releases kept on disk, besides the best step's."""

    @property
    def trains(self) -> bool:
        return self.mode == "discover"


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of one run, open."""

    engine: RolloutEngine
    trainer: Trainer | None
    """None in a run that does not train."""
    judge: Judge | None
    """None in an external run."""
    desk: Desk
    store: Store
    observer: Observer
    gate: Gate
    folder: RunFolder


class Workshop(Protocol):
    """Where a run's workers come from."""

    async def prepare(self, progress: Callable[[str, float | None], None]) -> ModelFiles:
        """The model's files, fetched if need be.  Raises WorkerFailed when they cannot be had."""
        ...

    def open(
        self, plan: Plan, files: ModelFiles, judge: Judge | None, desk: Desk, observer: Observer, gate: Gate
    ) -> AbstractAsyncContextManager[World]: ...
