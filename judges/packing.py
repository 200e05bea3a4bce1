"""Grades n circles in the unit square: the reward is the sum of radii, recomputed.

Every circle inside and every pair apart, each with slack 1e-12.  The sum grows about ten times as fast as the slack,
so the verdict also says, in exact rationals, whether the packing holds at ZERO slack, and the sum after the smallest
uniform shrink of the radii that makes it hold.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from itertools import combinations
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from judges.decode import Rejected, decode
from judges.verdict import Verdict

Circle = tuple[Fraction, Fraction, Fraction]


def grade(artifact: bytes, n: int, record: float, helpers: ModuleType) -> Verdict:
    """`artifact`: JSON of (centers (n, 2), radii (n,), sum); the rules are those of the task's `helpers`.
    A sum above `record` can only come from the slack."""
    try:
        centers, radii, reported = _returned(artifact, n)
        _check(helpers, centers, radii, reported)
    except Rejected as rejected:
        return rejected.verdict
    total = float(radii.sum())
    return Verdict(
        valid=True,
        reward=total,
        objective=total,
        reported=reported,
        artifact_sha256=hashlib.sha256(artifact).hexdigest(),
        certificate=_certificate(centers, radii, total, record),
    )


def _returned(artifact: bytes, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    expected = f"(centers, radii, sum): {n} pairs of numbers, {n} numbers, one number"
    shape = tuple[list[tuple[float, float]], list[float], float]
    centers, radii, reported = decode(artifact, shape, expected)
    if len(centers) != n or len(radii) != n:
        raise Rejected("wrong shape", f"{len(centers)} centers and {len(radii)} radii; expected {expected}", reported)
    return np.array(centers), np.array(radii), reported


def _check(helpers: ModuleType, centers: NDArray[np.float64], radii: NDArray[np.float64], reported: float) -> None:
    try:
        helpers._check(centers, radii)
    except ValueError as error:
        raise Rejected("constraint", str(error), reported) from None


def _certificate(
    centers: NDArray[np.float64], radii: NDArray[np.float64], total: float, record: float
) -> dict[str, str | float | bool]:
    circles = [
        (Fraction(x), Fraction(y), Fraction(r)) for (x, y), r in zip(centers.tolist(), radii.tolist(), strict=True)
    ]
    scale = _largest_scale(circles)
    return {
        "feasible_at_zero_slack": scale == 1,
        "sum_after_shrink": math.fsum(radii.tolist()) * scale,
        "tolerance_exploitation": total > record,
    }


def _largest_scale(circles: list[Circle]) -> float:
    """The largest double in [0, 1] by which all radii can be multiplied so that everything holds exactly; 0 also
    where nothing helps because a center itself lies outside."""
    rooms = [(room, r) for x, y, r in circles for room in (x, 1 - x, y, 1 - y)]
    if any(room < 0 for room, _ in rooms):
        return 0.0
    walls = [room / r for room, r in rooms if r > 0]
    squares = [
        ((x - u) ** 2 + (y - v) ** 2) / (r + s) ** 2 for (x, y, r), (u, v, s) in combinations(circles, 2) if r + s > 0
    ]
    scale = float(min([*walls, Fraction(1)]))
    while Fraction(scale) > min([*walls, Fraction(1)]):
        scale = math.nextafter(scale, 0)
    closest = min([*squares, Fraction(1)])
    if Fraction(scale) ** 2 > closest:
        doublings = (closest.denominator.bit_length() - closest.numerator.bit_length()) // 2
        near_1 = closest * 4**doublings  # whose float has all its bits, however small `closest` is
        scale = math.ldexp(math.sqrt(near_1), -doublings)
        while Fraction(scale) ** 2 > closest:
            scale = math.nextafter(scale, 0)
    return scale
