"""What a run is asked to do, and the open ports that it is done with."""

from __future__ import annotations

from typing import Literal

import msgspec

from tttdd.desk import Desk
from tttdd.domain import prompt
from tttdd.folder import RunFolder
from tttdd.gate import Gate
from tttdd.ports import Judge, Observer, RolloutEngine, Store, Trainer
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
