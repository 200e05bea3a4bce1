"""26 circles; the best sum known without tolerance is 2.63598308..."""

from judges.packing import grade as grade_packing
from judges.promised import beside
from judges.verdict import Verdict

CIRCLES = 26
BEST_KNOWN = 2.635983085


def grade(artifact: bytes) -> Verdict:
    return grade_packing(artifact, CIRCLES, BEST_KNOWN, beside(__file__))
