"""Serving proof: does the engine sample with the weights that the trainer just wrote?  (algorithm, section 7)

    gap = mean |engine - trainer|  on a fixed probe, in nats, under the new release
    limit = max(3 x floor, 0.01)   floor: the same gap under the base, when the workers started

Three ways to fail: the gap is above the limit; the trainer says that the weights moved and the engine answers
like the base; the engine is nearer to the previous release than to the new one (it kept the old adapter).
"""

from __future__ import annotations

import math

import msgspec

MINIMUM_LIMIT = 0.01
"""Nats, mean absolute."""


class Evidence(msgspec.Struct, frozen=True):
    """Log-probs of the probe's tokens, in nats, all of one length."""

    engine: list[float]
    trainer: list[float]
    engine_base: list[float]
    trainer_base: list[float]
    trainer_previous: list[float]
    """The trainer's under the release that was served before."""
    floor: float

    @property
    def gap(self) -> float:
        return distance(self.engine, self.trainer)

    @property
    def limit(self) -> float:
        return max(3 * self.floor, MINIMUM_LIMIT)

    @property
    def visible(self) -> float:
        """Smallest movement of the weights that this probe can tell from rounding."""
        return 3 * self.floor

    @property
    def engine_shift(self) -> float:
        return distance(self.engine, self.engine_base)

    @property
    def trainer_shift(self) -> float:
        return distance(self.trainer, self.trainer_base)


def distance(left: list[float], right: list[float]) -> float:
    """Mean absolute difference, nats."""
    return math.fsum(abs(a - b) for a, b in zip(left, right, strict=True)) / len(left)


def fault(evidence: Evidence) -> str | None:
    """What is wrong with the publish, with the numbers; None when it is proved."""
    if not evidence.gap <= evidence.limit:  # also when a log-prob is not a number
        return f"engine and trainer differ by {evidence.gap:.3g} nats on the probe, more than {evidence.limit:.3g}"
    if evidence.trainer_shift > evidence.visible and evidence.engine_shift <= evidence.floor:
        return (
            f"the engine answers like the base (shift {evidence.engine_shift:.3g} nats) although the trainer's "
            f"weights moved by {evidence.trainer_shift:.3g}"
        )
    moved = distance(evidence.trainer, evidence.trainer_previous)
    stale = distance(evidence.engine, evidence.trainer_previous)
    if moved > evidence.visible and stale < evidence.gap:
        return (
            f"the engine is nearer to the previous release ({stale:.3g} nats) than to the new one "
            f"({evidence.gap:.3g}), which moved by {moved:.3g}"
        )
    return None
