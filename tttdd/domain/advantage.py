"""Entropic advantages of one group: weights exp(beta r), with beta set by a fixed distance from uniform.

    KL(softmax(beta r) || uniform) = ln 2
    e_i = exp(beta (r_i - max r));  Z_i = mean of the other e_j;  A_i = e_i / (Z_i + 1e-12) - 1

Leave-one-out, so that a rollout is no part of its own baseline.  float64.  Algorithm, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TARGET = math.log(2)
BETA_LIMIT = 1e6
BISECTIONS = 60


def entropic(rewards: Sequence[float]) -> list[float]:
    """Advantages of a group's rewards, in their order; raises ValueError for fewer than 3 or non-finite rewards."""
    if len(rewards) < 3 or not all(map(math.isfinite, rewards)):
        raise ValueError(f"a group needs at least 3 finite rewards, got {list(rewards)}")
    weights = _weights(beta(rewards), rewards)
    others = [math.fsum(weights[:i] + weights[i + 1 :]) / (len(weights) - 1) for i in range(len(weights))]
    return [weight / (other + 1e-12) - 1 for weight, other in zip(weights, others, strict=True)]


def beta(rewards: Sequence[float]) -> float:
    """Inverse temperature at which the weighted group is ln 2 nats from uniform.

    2^20 where no beta gets there, as when more than half of the group ties at the top.
    """
    high = 1.0
    while divergence(high, rewards) < TARGET and high < BETA_LIMIT:
        high *= 2
    if divergence(high, rewards) < TARGET:
        return high
    low = 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if divergence(middle, rewards) < TARGET:
            low = middle
        else:
            high = middle
    return high


def divergence(beta: float, rewards: Sequence[float]) -> float:
    """KL(softmax(beta r) || uniform), in nats."""
    weights = _weights(beta, rewards)
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    return math.fsum(share * math.log(share * len(shares)) for share in shares if share > 0)


def _weights(beta: float, rewards: Sequence[float]) -> list[float]:
    top = max(rewards)
    return [math.exp(beta * (reward - top)) for reward in rewards]
