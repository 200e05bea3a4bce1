"""C2 of a step function f >= 0: |g|_2^2 / (|g|_1 |g|_inf) for g = f*f; the reward is C2.

g is piecewise linear through the N = 2n - 1 sums y of f*f, zero at both ends of [-1/2, 1/2], spacing h = 1 / (N + 1):
|g|_2^2 = sum of h/3 (y_i^2 + y_i y_(i+1) + y_(i+1)^2), |g|_1 = sum|y| / (N + 1), |g|_inf = max|y|.  Finite numbers;
negatives count as 0; the sum is at least 0.01.  The formula is helpers.py's; the certificate has C2 in exact rationals.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from judges import exact
from judges.decode import Rejected, decode
from judges.promised import beside
from judges.verdict import Verdict

EXPECTED = "a list of numbers"


def grade(artifact: bytes) -> Verdict:
    helpers = beside(__file__)
    try:
        values = np.array(decode(artifact, list[float], EXPECTED))
        if not len(values):
            raise Rejected("wrong shape", f"the list is empty; expected {EXPECTED}")
        bound = helpers._bound(helpers._scaled(values))
    except ValueError as error:
        return Rejected("constraint", str(error)).verdict
    except Rejected as rejected:
        return rejected.verdict
    return Verdict(
        valid=True,
        reward=bound,
        objective=bound,
        artifact_sha256=hashlib.sha256(artifact).hexdigest(),
        certificate={"points": float(len(values)), **exact.certificate(bound, _exact_bound(np.maximum(values, 0)))},
    )


def _exact_bound(heights: NDArray[np.float64]) -> Fraction | None:
    f = exact.integers(heights)
    if f is None:
        return None
    y = exact.sums(f, f)
    squares = 2 * sum(value * value for value in y) + sum(left * right for left, right in pairwise(y))
    return Fraction(squares, 3 * sum(y) * max(y))
