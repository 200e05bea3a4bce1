"""C5 of a step function: max over all 2n - 1 lags of correlate(h, 1 - h) * 2 / n; reward 1 / (1e-8 + C5).

h: finite, 0 <= h <= 1, n == n_points; where sum(h) != n/2 it is rescaled and must stay in [0, 1].  The reported
bound is recorded and never rewarded.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from judges.decode import Rejected, decode
from judges.verdict import Verdict

EXPECTED = "(h_values, c5_bound, n_points): a list of numbers, one number, the list's length"
DIRECT_UP_TO = 4096
"""Points; above it the sums come from an FFT and those near the maximum are taken again directly."""
NEAR_MAXIMUM = 1e-12
DIRECT_LAGS = 256


def grade(artifact: bytes) -> Verdict:
    try:
        heights, reported = _returned(artifact)
    except Rejected as rejected:
        return rejected.verdict
    bound = overlap(heights)
    return Verdict(
        valid=True,
        reward=1 / (1e-8 + bound),
        objective=bound,
        reported=reported,
        artifact_sha256=hashlib.sha256(artifact).hexdigest(),
        certificate={"points": float(len(heights)), "reported_agrees": abs(reported - bound) <= 1e-9},
    )


def overlap(heights: NDArray[np.float64]) -> float:
    """C5 of heights (n,)."""
    n = len(heights)
    if n <= DIRECT_UP_TO:
        return float(np.correlate(heights, 1 - heights, "full").max() * 2 / n)
    others = 1 - heights
    size = 1 << (2 * n - 1).bit_length()  # a power of two: a large prime factor would take ten times as long
    spectrum = np.fft.rfft(heights, size) * np.fft.rfft(others[::-1], size)
    sums = np.fft.irfft(spectrum, size)[: 2 * n - 1]
    near = np.flatnonzero(sums >= sums.max() - NEAR_MAXIMUM * n)
    largest_first = near[np.argsort(-sums[near])][:DIRECT_LAGS]
    return max(_at_lag(heights, others, int(index) - (n - 1)) for index in largest_first) * 2 / n


def _at_lag(heights: NDArray[np.float64], others: NDArray[np.float64], lag: int) -> float:
    """sum over x of heights(x + lag) others(x)."""
    moved, still = (heights[lag:], others[: len(others) - lag]) if lag >= 0 else (heights[:lag], others[-lag:])
    return float(np.dot(moved, still))


def _returned(artifact: bytes) -> tuple[NDArray[np.float64], float]:
    values, reported, points = decode(artifact, tuple[list[float], float, float], EXPECTED)
    if not values:
        raise Rejected("wrong shape", "h_values is empty", reported)
    if points != len(values):
        raise Rejected("wrong shape", f"n_points is {points!r} but h_values has {len(values)} values", reported)
    heights = np.array(values)
    _check_range(heights, "h_values", reported)
    total = float(heights.sum())
    if total == 0:
        raise Rejected("constraint", "all h_values are 0, so they cannot be rescaled to the mean 1/2", reported)
    factor = len(heights) / 2 / total
    if not math.isfinite(factor):  # 0 times infinity would be a NaN, which passes every comparison that follows
        raise Rejected("constraint", f"the sum of h_values, {total:g}, is too small to be rescaled", reported)
    if factor != 1:
        heights = heights * factor
        _check_range(heights, "h_values rescaled to the mean 1/2", reported)
    return heights, reported


def _check_range(heights: NDArray[np.float64], name: str, reported: float) -> None:
    for place, broken in ((int(heights.argmin()), heights.min() < 0), (int(heights.argmax()), heights.max() > 1)):
        if broken:
            detail = f"{name} must lie in [0, 1]: value {place} is {heights[place]:.17g}"
            raise Rejected("constraint", detail, reported)
