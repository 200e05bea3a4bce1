"""32 circles; the best sum known without tolerance is 2.93957277..."""

from judges.packing import grade as grade_packing
from judges.promised import beside
from judges.verdict import Verdict

CIRCLES = 32
BEST_KNOWN = 2.9395727713


def grade(artifact: bytes) -> Verdict:
    return grade_packing(artifact, CIRCLES, BEST_KNOWN, beside(__file__))
