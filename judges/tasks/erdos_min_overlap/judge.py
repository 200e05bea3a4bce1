"""C5 of a step function: max over all 2n - 1 lags of correlate(h, 1 - h) * 2 / n; reward 1 / (1e-8 + C5).

h: finite, 0 <= h <= 1, n == n_points; where sum(h) != n/2 it is rescaled and must stay in [0, 1].  The formula is
helpers.py's; the certificate has C5 again in exact rationals.  The reported bound is recorded and never rewarded.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from judges import exact
from judges.decode import Rejected, decode
from judges.promised import beside
from judges.verdict import Verdict

EXPECTED = "(h_values, c5_bound, n_points): a list of numbers, one number, the list's length"


def grade(artifact: bytes) -> Verdict:
    helpers = beside(__file__)
    try:
        values, reported = _returned(artifact)
        try:
            bound = helpers._overlap(helpers._rescaled(values))
        except ValueError as error:
            raise Rejected("constraint", str(error), reported) from None
    except Rejected as rejected:
        return rejected.verdict
    return Verdict(
        valid=True,
        reward=1 / (1e-8 + bound),
        objective=bound,
        reported=reported,
        artifact_sha256=hashlib.sha256(artifact).hexdigest(),
        certificate={
            "points": float(len(values)),
            "reported_agrees": abs(reported - bound) <= 1e-9,
            **_certificate(values, bound),
        },
    )


def _returned(artifact: bytes) -> tuple[NDArray[np.float64], float]:
    values, reported, points = decode(artifact, tuple[list[float], float, float], EXPECTED)
    if not values:
        raise Rejected("wrong shape", "h_values is empty", reported)
    if points != len(values):
        raise Rejected("wrong shape", f"n_points is {points!r} but h_values has {len(values)} values", reported)
    return np.array(values), reported


def _certificate(values: NDArray[np.float64], bound: float) -> dict[str, str | float | bool]:
    """With a the integers, T their sum and s = n / 2T the exact rescaling: h = s a, and at each lag
    sum h(x) (1 - h(y)) * 2 / n = (2T P - n A) / 2T^2, where P sums a(x) over the overlap and A sums a(x) a(y)."""
    a = exact.integers(values)
    if a is None:
        return exact.certificate(bound, None)
    n, total = len(a), sum(a)
    partial = [*accumulate(a), *(total - left for left in accumulate(a[:-1]))]
    products = exact.sums(a, a[::-1])
    numerator = max(2 * total * part - n * product for part, product in zip(partial, products, strict=True))
    over = Fraction(max(a) * n, 2 * total) - 1
    return {
        **exact.certificate(bound, Fraction(numerator, 2 * total**2)),
        "in_range_exactly": over <= 0,
        "exceeds_1_by": float(max(over, 0)),
    }
