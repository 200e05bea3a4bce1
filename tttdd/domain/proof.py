"""Serving proof: does the engine sample with the weights that the trainer just wrote?  (algorithm, section 7)

    gap   = mean |engine - trainer| on a fixed probe, in nats, under the new release; limit max(3 x floor, 0.01)
    share = <engine's move, trainer's move> / |trainer's move|^2        move: since the base, since the last release

An engine that serves the new release has share 1, one that serves what it served before has share 0.  In bfloat16 a
step may move the log-probs by less than rounding does, but rounding has no direction: over the probe's tokens it
averages out of the engine's move, and the share's standard error says how far.  In the trainer's own move it does not,
so the share is taken of what is no rounding.  It is believed when most of the move is real and its error is small.
"""

from __future__ import annotations

import math

import msgspec

MINIMUM_LIMIT = 0.01
"""Nats, mean absolute."""
BELIEVED_ERROR = 0.125
"""A share with a larger standard error tells nothing: 1 and 0.5 are then less than four errors apart."""
REAL_PART = 0.5
"""Of the trainer's squared move must be more than what rounding alone makes of two passes."""


class Share(msgspec.Struct, frozen=True):
    """How much of the trainer's move the engine has made."""

    value: float
    error: float
    """Standard error.  Infinite when the move cannot be told from rounding."""
    real: float = 0.0
    """How much of the trainer's squared move is no rounding."""

    @property
    def believed(self) -> bool:
        return self.error < BELIEVED_ERROR

    @property
    def incomplete(self) -> bool:
        """Clearly less than the whole move, where rounding has next to no part in it."""
        return self.real > 0.9 and self.value + 4 * self.error < 0.8


class Evidence(msgspec.Struct, frozen=True):
    """Log-probs of the probe's tokens, in nats, all of one length."""

    engine: list[float]
    trainer: list[float]
    engine_base: list[float]
    trainer_base: list[float]
    engine_previous: list[float]
    """Under the newest release before whose own move was believed."""
    trainer_previous: list[float]
    floor: float
    """Engine against trainer under the base, mean absolute."""

    @property
    def gap(self) -> float:
        return distance(self.engine, self.trainer)

    @property
    def limit(self) -> float:
        return max(3 * self.floor, MINIMUM_LIMIT)

    @property
    def engine_shift(self) -> float:
        return distance(self.engine, self.engine_base)

    @property
    def trainer_shift(self) -> float:
        return distance(self.trainer, self.trainer_base)

    @property
    def since_base(self) -> Share:
        return share(_move(self.engine, self.engine_base), _move(self.trainer, self.trainer_base), self._rounding)

    @property
    def since_previous(self) -> Share:
        return share(
            _move(self.engine, self.engine_previous), _move(self.trainer, self.trainer_previous), self._rounding
        )

    @property
    def _rounding(self) -> float:
        """Mean square of what rounding makes of a move, nats^2: as much as between engine and trainer under a release
        that was proved, since either is the difference of two passes.  It grows with what was learned."""
        base = _mean_square(_move(self.engine_base, self.trainer_base))
        return max(base, _mean_square(_move(self.engine_previous, self.trainer_previous)))


def distance(left: list[float], right: list[float]) -> float:
    """Mean absolute difference, nats."""
    return math.fsum(abs(a - b) for a, b in zip(left, right, strict=True)) / len(left)


def share(engine: list[float], trainer: list[float], rounding: float) -> Share:
    """Least squares of the engine's move on the trainer's, through zero; `rounding` as a mean square, nats^2."""
    square = math.fsum(t * t for t in trainer)
    real = 1 - rounding * len(trainer) / square if square > 0 else 0.0
    if real < REAL_PART:
        return Share(0.0, math.inf)
    value = math.fsum(e * t for e, t in zip(engine, trainer, strict=True)) / square
    # Some tokens are far noisier than others, so each counts with its own residual (White's standard error).
    rest = math.fsum(((e - value * t) * t) ** 2 for e, t in zip(engine, trainer, strict=True))
    return Share(value / real, math.sqrt(rest) / square / real, real)


def fault(evidence: Evidence) -> str | None:
    """What is wrong with the publish, with the numbers; None when nothing speaks against it."""
    if not evidence.gap <= evidence.limit:  # also when a log-prob is not a number
        return f"engine and trainer differ by {evidence.gap:.3g} nats on the probe, more than {evidence.limit:.3g}"
    for made, before in ((evidence.since_base, "the base"), (evidence.since_previous, "the release before")):
        if made.believed and (made.value < 0.5 or made.incomplete):
            return (
                f"the engine answers like {before}, or half like it: of the trainer's move since then it has made "
                f"{made.value:.3g} (standard error {made.error:.2g}; shift from the base: engine "
                f"{evidence.engine_shift:.3g}, trainer {evidence.trainer_shift:.3g} nats)"
            )
    return None


def _mean_square(move: list[float]) -> float:
    return math.fsum(step * step for step in move) / len(move)


def _move(now: list[float], before: list[float]) -> list[float]:
    return [a - b for a, b in zip(now, before, strict=True)]
