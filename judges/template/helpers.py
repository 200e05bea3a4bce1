# Runs in every program's namespace before the program.  The instruction shows the functions without a leading _ in
# place of {helpers}: signature and docstring, so that what is promised is what is there.

import itertools
import math
from collections.abc import Sequence


def evaluate(points: Sequence[Sequence[float]]) -> float:
    """The smallest distance between two of the points, as the judge computes it.
    Raises ValueError with the reason where the judge would refuse them."""
    if len(points) != 7:
        raise ValueError(f"{len(points)} points; expected 7")
    for place, (x, y) in enumerate(points):
        if not (0 <= x <= 1 and 0 <= y <= 1):
            raise ValueError(f"point {place} lies outside the unit square: ({x:g}, {y:g})")
    return float(min(math.dist(first, second) for first, second in itertools.combinations(points, 2)))
