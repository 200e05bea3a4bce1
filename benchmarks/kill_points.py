"""The table of kill points: every named point of a run, every victim, and whether the run went on whole.

    python benchmarks/kill_points.py [--light] [--victim NAME ...] [--out FILE.md]

Real workers with a tiny model, a real daemon, judges and store; at each point of tttdd.failpoint the victim gets
kill -9, or the power is cut (what was not synced is gone), or the disk is full until the run waits for room.  A number
is the seconds until a process reached its next point by itself.  "-": the victim is never there at that point.  Needs
root for the full disk and a C compiler for the power cut.  Exit status 1 if anything was lost, done twice, or is not
whole.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hardware import described

from tests.crash.harness import DISKS, Harness, Victim
from tttdd.failpoint import Point

Column = dict[Point, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--light", action="store_true", help="workers without a model")
    parser.add_argument("--victim", action="append", choices=get_args(Victim))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    columns: dict[str, Column] = {}
    verdicts: dict[str, str] = {}
    for victim in options.victim or get_args(Victim):
        columns[victim], verdicts[victim] = column(victim, light=options.light)
        print(f"{victim}: {len(columns[victim])} points, {verdicts[victim]}", flush=True)
    text = "\n".join(lines(columns, verdicts, light=options.light)) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0 if all(verdict == "whole" for verdict in verdicts.values()) else 1


def column(victim: Victim, *, light: bool) -> tuple[Column, str]:
    found: Column = {}
    folder = Path(tempfile.mkdtemp(prefix="tttdd-points-"))
    with Harness(folder / "points", light=light, disk=DISKS.get(victim, "plain")) as harness:
        harness.start()
        for point in harness.strikes(victim):
            found[point] = harness.seconds
        faults = harness.faults()
        counts = {"lost": harness.lost, "judged twice": harness.judged_twice, "trained twice": harness.trained_twice}
    shutil.rmtree(folder)  # what fails is kept, to be looked at
    faults += [f"{count} {what}" for what, count in counts.items() if count]
    return found, "; ".join(faults) or "whole"


def lines(columns: dict[str, Column], verdicts: dict[str, str], *, light: bool) -> list[str]:
    workers = "workers without a model" if light else "real workers, tiny model"
    return [
        f"`{' '.join(['python', *sys.argv])}`, {time.strftime('%Y-%m-%d')}, {described()}, {workers}.",
        "Seconds from the strike until a process of the run reached its next named point, by itself.",
        "",
        f"| point | {' | '.join(columns)} |",
        f"| --- |{' --- |' * len(columns)}",
        *(f"| {point.value} | {' | '.join(_cell(each.get(point)) for each in columns.values())} |" for point in Point),
        f"| **run, archive, batches, releases, metrics** | {' | '.join(verdicts.values())} |",
    ]


def _cell(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"


if __name__ == "__main__":
    sys.exit(main())
