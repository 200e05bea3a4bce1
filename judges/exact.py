"""Exact recheck of what a judge computed in floats: doubles are integers times a power of two.

    heights -> integers -> all sums  sum_i a_i b_(k-i)  at once, as ONE product of two huge decimals -> Fraction

Each integer gets a field of decimal digits that no sum can overflow; the decimal module multiplies by number-theoretic
transforms, in a fifth of a second for 20,000 values.  Every lag is there exactly, so that the maximum is certain.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

DIGITS = 1_000_000
"""Of one factor: a quarter of a second, which many verdicts can bear."""
AGREEMENT = 1e-12
"""Relative where the objective is above 1."""


def integers(values: NDArray[np.float64]) -> list[int] | None:
    """Integers in the exact ratios of values (n,), which are at least 0 and not all 0; None where the sums of their
    products would have too many digits."""
    mantissas, exponents = np.frexp(values)
    exponents = exponents.astype(np.int64)
    least = int(exponents[values > 0].min())
    bits = int(exponents[values > 0].max()) - least + 53
    if len(values) * _field(len(values), bits) > DIGITS:
        return None
    whole = np.ldexp(mantissas, 53).astype(np.int64).tolist()
    shifts = np.where(values > 0, exponents - least, 0).tolist()
    return [mantissa << shift for mantissa, shift in zip(whole, shifts, strict=True)]


def sums(first: list[int], second: list[int]) -> list[int]:
    """sum over i of first[i] second[k - i] for all 2n - 1 k; integers >= 0, n each."""
    count = 2 * len(first) - 1
    width = _field(len(first), max(max(first).bit_length(), max(second).bit_length()))
    context = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])
    product = context.multiply(_packed(first, width, context), _packed(second, width, context))
    digits = format(product, "f").zfill(count * width)[-count * width :]
    return [int(digits[start : start + width]) for start in range(0, count * width, width)]


def certificate(objective: float, exact: Fraction | None) -> dict[str, str | float | bool]:
    """`exact`: the objective in rationals, None where `integers` was."""
    if exact is None:
        return {"exact_recheck": "not done: too many digits"}
    off = abs(Fraction(objective) - exact)
    return {"exact_objective": float(exact), "exact_agrees": off <= Fraction(AGREEMENT) * max(1, exact)}


def _field(count: int, bits: int) -> int:
    """Decimal digits of a sum of `count` products of two integers of `bits` bits."""
    return len(str(count << 2 * bits))


def _packed(values: list[int], width: int, context: Context) -> Decimal:
    return context.create_decimal("".join([f"{value:0{width}d}" for value in values]))
