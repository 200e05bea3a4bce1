"""Kill things at random, for as long as you like, and see that nothing is lost and nothing is done twice.

    python benchmarks/soak.py --kills 200 [--json] [--seed S] [--light] [--out FILE]

A real daemon with a tiny model (tests/tiny_models.py) works on a run; again and again its daemon, engine, trainer,
judges' zygote, grader or a judged program gets kill -9, or the power is cut: what was not synced is gone.  Half of the
kills come at a named point of a step (tttdd.failpoint), half at any time after one.  --light: workers without a model.

lost: rollouts that were told to be recorded and are not; judged_twice, trained_twice: what was done again after it was
recorded; faults: what the ledger (tests/crash/ledger.py) finds wrong in the end.  Exit status 1 unless all are none.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hardware import described

from tests.crash.harness import Harness, Victim, reachable
from tttdd.failpoint import Point

VICTIMS: tuple[Victim, ...] = ("daemon", "engine", "trainer", "zygote", "grader", "judge", "power")
ONCE = {Point.RUN_TAKEN, Point.PLANTED, Point.WORKERS_OPEN}
"""Points that a run in hand does not come by again."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--json", action="store_true", help="print nothing but the result")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = soak(options.kills, options.seed, light=options.light, quiet=options.json)
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    good = not (result["faults"] or result["lost"] or result["judged_twice"] or result["trained_twice"])
    return 0 if good else 1


def soak(kills: int, seed: int, *, light: bool, quiet: bool) -> dict[str, Any]:
    draw, started, victims = random.Random(seed), time.monotonic(), Counter[str]()
    folder = Path(tempfile.mkdtemp(prefix="tttdd-soak-"))
    with Harness(folder / "soak", light=light, disk="power") as harness:
        harness.start()
        harness.submit(10 * kills + 10, "soak")
        while harness.kills < kills:
            victim = draw.choice(VICTIMS)
            point = draw.choice([point for point in reachable(victim) if point not in ONCE])
            delay = draw.choice([0.0, draw.uniform(0, 2)])
            harness.strike(point, victim, delay)
            victims[victim] += 1
            if not quiet:
                told = f"{point.value}{f' + {delay:.2f} s' if delay else ''}"
                print(f"{harness.kills:4} {victim:8} {told:48} step {harness.info().step}", flush=True)
        harness.cancel()
        steps = harness.info().step
        faults = harness.faults()
    shutil.rmtree(folder)  # what fails is kept, to be looked at
    return {
        "benchmark": "soak",
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": described(),
        "workers": "light" if light else "real, tiny model",
        "kills": harness.kills,
        "by_victim": dict(victims.most_common()),
        "steps": steps,
        "faults": faults,
        "lost": harness.lost,
        "judged_twice": harness.judged_twice,
        "trained_twice": harness.trained_twice,
        "seconds": round(time.monotonic() - started),
    }


if __name__ == "__main__":
    sys.exit(main())
