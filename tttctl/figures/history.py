"""A run and its committed steps, as the curves need them: steps counted from 1, values where the step has them."""

from __future__ import annotations

import msgspec

from tttdd.protocol import RunInfo, StepRow

FROZEN = "the model is not trained in this run"


class Series(msgspec.Struct, frozen=True):
    steps: list[int]
    """Counted from 1."""
    values: list[float]

    def __bool__(self) -> bool:
        return bool(self.steps)


class History(msgspec.Struct, frozen=True):
    run: RunInfo
    rows: list[StepRow]
    """Committed, at least one, in order."""

    @property
    def trains(self) -> bool:
        return self.run.mode == "discover"

    @property
    def last(self) -> int:
        """Number of the newest step, from 1."""
        return self.rows[-1].step + 1

    def series(self, name: str) -> Series:
        found = [(row.step + 1, row.metrics[name]) for row in self.rows if name in row.metrics]
        return Series([step for step, _ in found], [value for _, value in found])

    def proofs(self, name: str) -> Series:
        """A number of each step's serving proof."""
        found = [(row.step + 1, getattr(row.proof, name)) for row in self.rows if row.proof]
        return Series([step for step, _ in found], [value for _, value in found])
