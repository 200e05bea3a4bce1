"""C1 of a step function f >= 0 with n steps: 2 n max(f*f) / (sum f)^2; reward 1 / (1e-8 + C1).

Finite numbers; negatives count as 0; the sum is at least 0.01.  Nothing else is clamped, as C1 does not change with
f's scale.  The formula is helpers.py's; the certificate has C1 again in exact rationals.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction

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
        reward=1 / (1e-8 + bound),
        objective=bound,
        artifact_sha256=hashlib.sha256(artifact).hexdigest(),
        certificate={"points": float(len(values)), **exact.certificate(bound, _exact_bound(np.maximum(values, 0)))},
    )


def _exact_bound(heights: NDArray[np.float64]) -> Fraction | None:
    f = exact.integers(heights)
    if f is None:
        return None
    return Fraction(2 * len(f) * max(exact.sums(f, f)), sum(f) ** 2)
