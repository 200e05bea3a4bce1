# Run in every program's namespace before the program, shown in the instruction, and what judge.py computes with.

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST_SUM = 0.01
_DIRECT_UP_TO = 4096
_DIRECT_LAGS = 256


def evaluate(values: Sequence[float]) -> float:
    """C2 of the step heights as the judge computes it.
    Raises ValueError with the reason where the judge would refuse them."""
    return _bound(_scaled(_numbers(values)))


def _bound(heights: NDArray[np.float64]) -> float:
    """The factor 1 / (N + 1) of both norms is left out.  No value is negative, so the sum of f*f is (sum f)^2."""
    turned = heights[::-1].copy()
    convolved = _sums(heights, turned)
    squares = 2 * float(np.dot(convolved, convolved)) + float(np.dot(convolved[1:], convolved[:-1]))
    return squares / 3 / (float(heights.sum()) ** 2 * _largest(heights, turned, convolved))


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without negatives, and times the power of two that brings the largest into [1/2, 1): C2 does not change, and
    nothing overflows.  Raises ValueError."""
    if not len(values):
        raise ValueError("the list is empty")
    values = np.maximum(values, 0)
    with np.errstate(over="ignore"):
        total = float(values.sum())
    if total < _LEAST_SUM:
        raise ValueError(
            f"the sum of the values, negatives counted as 0, is {total:g}; it must be at least {_LEAST_SUM}"
        )
    return np.ldexp(values, -int(np.frexp(values.max())[1]))


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
