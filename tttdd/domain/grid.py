"""The barrier of one step: groups x rollouts coordinates, one report each, all under one release.

    missing() -> sample, judge -> place(coordinate, release) -> ... -> full -> trainable(rewards)

The first report at a coordinate wins.  Algorithm, section 2.
"""

from __future__ import annotations

from collections.abc import Sequence

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


class Grid:
    """The coordinates of one step and which of them are reported."""

    def __init__(self, step: int, groups: int, rollouts: int) -> None:
        self.release: int | None = None
        """The release of the first report; None while the grid is empty."""
        self._all = [Coordinate(step, group, rollout) for group in range(groups) for rollout in range(rollouts)]
        self._open = set(self._all)
        self._taken: set[Coordinate] = set()

    @property
    def full(self) -> bool:
        return not self._open

    def missing(self) -> list[Coordinate]:
        """Coordinates without a report, in order."""
        return [coordinate for coordinate in self._all if coordinate in self._open]

    def place(self, coordinate: Coordinate, release: int) -> bool:
        """Take a coordinate; False if it was taken already.

        Raises SecondRelease for another release than the grid's and ValueError for a coordinate outside the grid.
        """
        if coordinate not in self._open and coordinate not in self._taken:
            raise ValueError(f"{coordinate} lies outside this grid")
        if self.release is not None and release != self.release:
            raise SecondRelease(coordinate, self.release, release)
        if coordinate in self._taken:
            return False
        self.release = release
        self._open.remove(coordinate)
        self._taken.add(coordinate)
        return True


def trainable(rewards: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the groups that the trainer receives: those whose rewards differ.

    If every group is constant, group 0 stays, so that the trainer still gets a (zero-signal) batch.
    """
    return [group for group, row in enumerate(rewards) if min(row) != max(row)] or [0]
