# Run in every program's namespace before the program, shown in the instruction, and what judge.py computes with.

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DIRECT_UP_TO = 4096
_DIRECT_LAGS = 256


def evaluate(h_values: Sequence[float]) -> float:
    """C5 of h_values as the judge computes it, rescaling included.
    Raises ValueError with the reason where the judge would refuse them."""
    return _overlap(_rescaled(_numbers(h_values)))


initial_h_values: list[float] = [0.405 + 0.405 * math.cos(0.8 * math.pi * (i - 49.5) / 50) for i in range(100)]
"""100 heights to start from, with C5 about 0.39."""


def _overlap(heights: NDArray[np.float64]) -> float:
    others = 1 - heights
    return _largest(heights, others, _sums(heights, others)) * 2 / len(heights)


def _rescaled(heights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Heights with the mean 1/2.  Raises ValueError where one lies, or then lies, outside [0, 1]."""
    if not len(heights):
        raise ValueError("h_values is empty")
    _check_range(heights, "h_values")
    total = float(heights.sum())
    if total == 0:
        raise ValueError("all h_values are 0, so they cannot be rescaled to the mean 1/2")
    factor = len(heights) / 2 / total
    if not math.isfinite(factor):  # 0 times infinity would be a NaN, which passes every comparison that follows
        raise ValueError(f"the sum of h_values, {total:g}, is too small to be rescaled")
    if factor != 1:
        heights = heights * factor
        _check_range(heights, "h_values rescaled to the mean 1/2")
    return heights


def _check_range(heights: NDArray[np.float64], name: str) -> None:
    for place, broken in ((int(heights.argmin()), heights.min() < 0), (int(heights.argmax()), heights.max() > 1)):
        if broken:
            raise ValueError(f"{name} must lie in [0, 1]: value {place} is {heights[place]:.17g}")


def _sums(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum over x of first(x + lag) second(x) for all 2n - 1 lags; where that would take too long, by FFT."""
    n = len(first)
    if n <= _DIRECT_UP_TO:
        return np.correlate(first, second, "full")
    size = 1 << (2 * n - 1).bit_length()  # a power of two: a large prime factor would take ten times as long
    return np.fft.irfft(np.fft.rfft(first, size) * np.fft.rfft(second[::-1], size), size)[: 2 * n - 1]


def _largest(first: NDArray[np.float64], second: NDArray[np.float64], sums: NDArray[np.float64]) -> float:
    """The largest of `_sums`; those of an FFT that come near the maximum are summed again directly."""
    n = len(first)
    if n <= _DIRECT_UP_TO:
        return float(sums.max())
    error = 1e-12 * float(np.linalg.norm(first) * np.linalg.norm(second))  # an FFT's is a hundredth of this
    near = np.flatnonzero(sums >= sums.max() - error)
    lags = near[np.argsort(-sums[near])][:_DIRECT_LAGS] - (n - 1)
    ends = [(max(lag, 0), max(-lag, 0), n - abs(lag)) for lag in lags.tolist()]
    return max(float(np.dot(first[i : i + length], second[j : j + length])) for i, j, length in ends)


def _numbers(values: Sequence[float]) -> NDArray[np.float64]:
    """Finite numbers and nothing else, as an array of one dimension.  Raises ValueError."""
    plain: list[Any] = [value.item() if isinstance(value, np.generic) else value for value in values]
    for place, value in enumerate(plain):
        if type(value) not in (int, float) or not abs(value) < math.inf:
            raise ValueError(f"value {place} must be a finite number, not {value!r:.40}")
    try:
        return np.array(plain, dtype=np.float64)
    except OverflowError:
        raise ValueError("a number is too large for a float") from None
