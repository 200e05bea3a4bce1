"""Grades what a program returned.  It recomputes everything and believes nothing that the program says of itself.

It runs in a process that never ran a program, and gets the returned value as JSON (numpy arrays come as lists).
"""

from __future__ import annotations

from judges.decode import Rejected, decode
from judges.promised import beside
from judges.verdict import Verdict

SHAPE = list[tuple[float, float]]
EXPECTED = "7 pairs of numbers"


def grade(artifact: bytes) -> Verdict:
    """Valid with a reward (finite, above 0, higher is better: 1 / x where lower is better), or not valid with a reason,
    worth 0.  An exception here is a fault of the judge, not of the program, and ends the run."""
    try:
        points = decode(artifact, SHAPE, EXPECTED)  # NaN, infinities, booleans and text never get past this
    except Rejected as rejected:
        return rejected.verdict
    try:
        distance = beside(__file__).evaluate(points)  # from helpers.py: programs measure as the judge does
    except ValueError as error:
        return Verdict(valid=False, reason="constraint", detail=str(error))
    return Verdict(valid=True, reward=distance, objective=distance)
