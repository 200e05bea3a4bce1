# Run in every program's namespace before the program, shown in the instruction, and what judge.py computes with.

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CIRCLES = 32
_SLACK = 1e-12


def evaluate(centers: Sequence[Sequence[float]], radii: Sequence[float]) -> float:
    """The sum of radii as the judge computes it.
    Raises ValueError, with how far off it is, where the judge would refuse the packing."""
    points, sizes = [_numbers(center) for center in centers], _numbers(radii)
    if len(points) != _CIRCLES or len(sizes) != _CIRCLES or any(len(point) != 2 for point in points):
        raise ValueError(
            f"{len(points)} centers and {len(sizes)} radii; expected {_CIRCLES} pairs and {_CIRCLES} numbers"
        )
    _check(np.array(points), sizes)
    return float(sizes.sum())


def _check(centers: NDArray[np.float64], radii: NDArray[np.float64]) -> None:
    """Raises ValueError with the worst break of the rules."""
    if radii.min() < 0:
        circle = int(radii.argmin())
        raise ValueError(f"circle {circle} has the negative radius {radii[circle]:.6g}")
    first, second = np.triu_indices(len(radii), 1)
    with np.errstate(over="ignore", invalid="ignore"):  # near 1e308; neither infinity nor NaN passes what follows
        beyond = np.maximum(radii[:, None] - centers, centers + radii[:, None] - 1).max(axis=1)
        gaps = centers[first] - centers[second]
        overlaps = radii[first] + radii[second] - np.hypot(gaps[:, 0], gaps[:, 1])
    outside, overlap = float(beyond.max()), float(overlaps.max())
    if outside <= _SLACK and overlap <= _SLACK:
        return
    if overlap >= outside:
        pair = int(overlaps.argmax())
        raise ValueError(f"overlap of circles {first[pair]} and {second[pair]} by {overlap:.1e}")
    raise ValueError(f"circle {int(beyond.argmax())} leaves the unit square by {outside:.1e}")


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
