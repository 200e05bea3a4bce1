"""The barrier of one step: groups x rollouts coordinates, one report each, all under one release.

    missing -> sample, judge, record -> ... -> nothing missing -> trainable

The first report at a coordinate wins, and the grid holds one release: the store, which outlives a crash, enforces
both.  Algorithm, section 2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec


class SecondRelease(ValueError):
    """A rollout of another release than the grid's.  The message names both."""

    def __init__(self, coordinate: Coordinate, first: int, second: int) -> None:
        place = f"step {coordinate.step}, group {coordinate.group}, rollout {coordinate.rollout}"
        super().__init__(f"{place}: sampled under release {second}, but this grid holds release {first}")
        self.first, self.second = first, second


class Coordinate(msgspec.Struct, frozen=True, order=True):
    """A rollout's place in a run; each part counts from 0."""

    step: int
    group: int
    rollout: int


def missing(step: int, groups: int, rollouts: int, recorded: Collection[Coordinate]) -> list[Coordinate]:
    """Coordinates of the step's grid without a report, in order.  None left: the grid is full."""
    places = (Coordinate(step, group, rollout) for group in range(groups) for rollout in range(rollouts))
    return [place for place in places if place not in recorded]


def trainable(rewards: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the groups that the trainer receives: those whose rewards differ.

    If every group is constant, group 0 stays, so that the trainer still gets a (zero-signal) batch.
    """
    return [group for group, row in enumerate(rewards) if min(row) != max(row)] or [0]
