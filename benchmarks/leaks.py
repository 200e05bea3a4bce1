"""Does anything grow?  A private daemon searches for hundreds of tiny steps, and all that it holds is counted.

    python benchmarks/leaks.py --steps 500
    python benchmarks/leaks.py --config benchmarks/smollm2.toml --set max_new_tokens=32      (a GPU, a tiny Qwen3)

Each quantity (benchmarks/census.py) is counted every few steps, and its median in the last quarter of the steps held
against that in the first, a warm-up left out.  Flat is what grew by no more than its tolerance; the database and the
daemon's own log grow by design.  Prints a table and one JSON object; exit status 1 if anything grew.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import census
import private
from hardware import described
from learning import STARTING

from tests.tiny_models import write_tiny_model
from tttdd import config, protocol

TOLERANCES = {
    "RSS MiB": (8.0, 0.02),
    "anonymous MiB": (8.0, 0.02),
    "descriptors": (8.0, 0.0),  # a program that is being judged has three in the daemon
    "threads": (2.0, 0.0),
    "processes": (0.0, 0.0),
    "zombies": (0.0, 0.0),
    "mounts": (0.0, 0.0),
    "files": (2.0, 0.0),
    "write-ahead log MiB": (1.0, 0.0),
    "folder MiB": (0.1, 0.05),
    "logs KiB": (256.0, 0.0),
    "ours MiB": (32.0, 0.0),
    "MiB": (32.0, 0.0),
}
"""By the end of a quantity's name: growth in its own unit, or as a share of the first quarter, whichever is more."""
UNLIMITED = ("database MiB", "daemon's log KiB", "seconds a step")
"""The first two grow by design, and how long a step takes is the machine's affair too."""
NODES = 100
"""The archive is full before the first quarter begins; what it holds would grow with it."""
WARM_UP = 0.1
TENTHS = 10


def main() -> int:
    options = _options()
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="tttdd-bench-") as folder:
        place = Path(folder)
        (place / "tmp").mkdir()
        os.environ["TMPDIR"] = str(place / "tmp")
        _configure(place, options)
        rows, ended = search(place, options)
    names = dict.fromkeys(name for row in rows for name in row if name != "step")
    found = [judged(name, rows, options.steps) for name in names]
    show(found)
    result = {
        "benchmark": "leaks",
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": described(),
        "seconds": round(time.time() - started, 1),
        "steps": options.steps,
        "grid": [options.groups, options.rollouts],
        "run": ended,
        "samples": len(rows),
        "grown": [one["quantity"] for one in found if not one["flat"]],
        "quantities": found,
    }
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if ended == "finished" and not result["grown"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="erdos_min_overlap")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=4, help="steps from one count to the next")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--config", type=Path, default=config.shipped("tttdd.cpu.toml"), help="default: the CPU's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another value of a key")
    parser.add_argument("--argument", action="append", default=[], metavar="NAME=VALUE", help="of engine.arguments")
    parser.add_argument("--model", type=Path, help="default: a tiny one with random weights")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    return parser.parse_args()


def _configure(place: Path, options: argparse.Namespace) -> None:
    values: dict[str, object] = {"max_new_tokens": 32, "lr": 1e-4}
    values |= dict(item.split("=", 1) for item in options.set)
    model = options.model or write_tiny_model(place / "model", "qwen3")
    file = private.configure(place, options.config, model, options.argument, **values)
    file.write_text(file.read_text() + f"\n[search]\nmax_nodes = {NODES}\n")


def search(place: Path, options: argparse.Namespace) -> tuple[list[census.Counts], str]:
    """The counts, one every few steps, with `step` and the seconds a step since the one before; how the run ended."""
    rows: list[census.Counts] = []
    with private.Daemon(place) as daemon:
        grid = protocol.GridSize(options.groups, options.rollouts)
        with STARTING.open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            request = protocol.Submit(task=options.task, steps=options.steps, grid=grid)
            name = daemon.client.post("/v1/runs", request, protocol.RunInfo).run
            daemon.wait_for_phase("sample")
        step, then = 0, time.monotonic()
        while (run := daemon.run(name)).state == "running":
            if run.step < step + options.every or run.step == options.steps:
                time.sleep(0.1)
                continue
            next(daemon.client.events())  # somebody looks in and goes away
            seconds = (time.monotonic() - then) / (run.step - step)
            step, then = run.step, time.monotonic()
            log = (place / "daemon.log").stat().st_size / 1024
            counts = census.taken(daemon.process.pid, place)
            rows.append({"step": step, **counts, "daemon's log KiB": log, "seconds a step": seconds})
            print(f"step {step}, {seconds:.2f} s a step", file=sys.stderr)
    return rows, ": ".join(filter(None, [run.state, run.reason]))


def judged(name: str, rows: list[census.Counts], steps: int) -> dict[str, Any]:
    """Medians of both ends, the slope between, and whether that is flat."""
    first_step = WARM_UP * steps
    course = [(row["step"], row[name]) for row in rows if name in row and row["step"] >= first_step]
    quarter = max(1, len(course) // 4)
    first, last = (statistics.median(value for _, value in part) for part in (course[:quarter], course[-quarter:]))
    slope = statistics.linear_regression(*zip(*course, strict=True)).slope if len(course) > 1 else 0.0
    found = {"quantity": name, "first": round(first, 3), "last": round(last, 3), "per_100_steps": round(100 * slope, 4)}
    tenth = max(1, len(course) // TENTHS)
    parts = [course[start : start + tenth] for start in range(0, len(course), tenth)]
    found["course"] = [round(statistics.median(value for _, value in part), 3) for part in parts]
    if name in UNLIMITED:
        return found | {"tolerance": None, "flat": True}
    absolute, share = next(limit for end, limit in TOLERANCES.items() if name.endswith(end))
    tolerance = max(absolute, share * first)
    return found | {"tolerance": round(tolerance, 3), "flat": last - first <= tolerance}


def show(found: list[dict[str, Any]]) -> None:
    print(f"{'quantity':28} {'first':>10} {'last':>10} {'per 100':>9} {'tolerance':>9}")
    for one in found:
        tolerance = "none" if one["tolerance"] is None else f"{one['tolerance']:.1f}"
        print(
            f"{one['quantity']:28} {one['first']:>10.2f} {one['last']:>10.2f} {one['per_100_steps']:>9.3f} "
            f"{tolerance:>9}  {'flat' if one['flat'] else 'GROWS'}"
        )


if __name__ == "__main__":
    sys.exit(main())
