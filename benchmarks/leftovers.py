"""Does anything stay on the GPUs?  A daemon's work is ended in every way there is, and NVML asked what is left.

    python benchmarks/leftovers.py --config benchmarks/smollm2.toml --set max_new_tokens=32     (a tiny random Qwen3)

finish, pause with its devices released (then resume: no rollout that was recorded is sampled again), cancel, kill -9 of
the engine, of a trainer rank (both: the run must go on by itself), SIGTERM, kill -9 of the daemon.  After each end:
processes that NVML names, worker processes, and the devices' memory against that before the start.  Prints a table and
one JSON object; exit status 1 if anything stayed or a rollout was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import private
import psutil
from hardware import described

from tests.tiny_models import write_tiny_model
from tttctl.client import run_path
from tttdd import gpus, protocol

NOISE_BYTES = 64 << 20
PATIENCE_SECONDS = 20.0
ENGINE = ("tttdd.workers.serve", "tttdd.workers.sample")
TRAINER = ("tttdd.workers.train",)
GRID = protocol.GridSize(4, 8)

Recorded = set[tuple[int, int, int, float]]
"""Step, group, rollout, and when it was recorded."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="default: a tiny one with random weights")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another value of a key")
    parser.add_argument("--task", default="erdos_min_overlap")
    parser.add_argument("--argument", action="append", default=[], metavar="NAME=VALUE", help="of engine.arguments")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    before, files = memory(), shared_memory()
    with tempfile.TemporaryDirectory(prefix="tttdd-bench-") as folder:
        place = Path(folder)
        model = options.model or write_tiny_model(place / "model", "qwen3")
        values: dict[str, object] = dict(item.split("=", 1) for item in options.set)
        private.configure(place, options.config, model, options.argument, **values)
        rows = [shown(row | left(before, files)) for row in endings(place, options.task)]
    result = {
        "benchmark": "leftovers",
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": described(),
        "memory_before_mib": [count >> 20 for count in before],
        "endings": rows,
    }
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    lost = any(row.get("after_resume", {}).get("lost") for row in rows)
    return 0 if all(row["clean"] for row in rows) and not lost else 1


def shown(row: dict[str, Any]) -> dict[str, Any]:
    print(f"{row['ending']:21} clean: {row['clean']!s:5} after {row['seconds']:4.1f} s  {row}", flush=True)
    return row


def endings(place: Path, task: str) -> Iterator[dict[str, Any]]:
    """Yields when something has ended and the devices should be as before."""
    with private.Daemon(place) as daemon:
        daemon.finish(submit(daemon, task, 1))
        yield {"ending": "finish"}
        run = submit(daemon, task, 50)
        before = sampling(daemon, place, run)
        daemon.client.post(run_path(run, "/pause"), protocol.Pause(release_gpus=True), protocol.RunInfo)
        yield {"ending": "pause --release-gpus"}
        went_on = resumed(daemon, place, run, before)
        daemon.client.post(run_path(run, "/cancel"), None, protocol.RunInfo)
        yield {"ending": "cancel", "after_resume": went_on}
        submit(daemon, task, 50)
        daemon.wait_for_phase("sample")
        seconds = recovered(daemon, ENGINE, kill(daemon, ENGINE, deepest=True))
        went_on = {
            "engine_back_seconds": seconds,
            "trainer_back_seconds": recovered(daemon, TRAINER, kill(daemon, TRAINER)),
        }
    yield {"ending": "SIGTERM", "after_kill_9_of": "engine, trainer rank", **went_on, "step": step_of(place)}
    with private.Daemon(place) as daemon:
        daemon.wait_for_phase("train")
        daemon.process.kill()
        daemon.process.wait()
        yield {"ending": "kill -9 of the daemon"}


def submit(daemon: private.Daemon, task: str, steps: int) -> str:
    request = protocol.Submit(task=task, steps=steps, grid=GRID)
    return daemon.client.post("/v1/runs", request, protocol.RunInfo).run


def sampling(daemon: private.Daemon, place: Path, run: str) -> Recorded:
    """Until a grid is partly filled; what has been recorded by then."""
    daemon.wait_for_phase("sample")
    while not (found := recorded(place, run)) or len(found) % (GRID.groups * GRID.rollouts) == 0:
        time.sleep(0.01)
    return found


def recorded(place: Path, run: str) -> Recorded:
    query = "SELECT step, grid_group, rollout, recorded FROM rollouts WHERE run = ?"
    with sqlite3.connect(f"file:{place}/state/archive.sqlite3?mode=ro", uri=True) as database:
        return set(database.execute(query, [run]))


def resumed(daemon: private.Daemon, place: Path, run: str, before: Recorded) -> dict[str, Any]:
    """The run goes on, until the grid that was begun is committed; what became of its rollouts."""
    started, step = time.monotonic(), daemon.run(run).step
    kept = before | recorded(place, run)
    daemon.client.post(run_path(run, "/resume"), None, protocol.RunInfo)
    while daemon.run(run).step == step:
        if daemon.run(run).state not in ("queued", "running") or time.monotonic() - started > 180:
            raise RuntimeError(f"{run} did not go on: {daemon.log()}")
        time.sleep(0.1)
    grid = {row for row in recorded(place, run) if row[0] == step}
    ours = {row for row in kept if row[0] == step}
    return {
        "seconds_to_the_next_step": round(time.monotonic() - started, 1),
        "recorded_before": len(ours),
        "sampled_after": len(grid - ours),
        "lost": len(ours - grid),
    }


def workers(*words: str) -> list[psutil.Process]:
    """Everybody's processes with one of `words` in a part of their command."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(word in part for part in process.info["cmdline"] or [] for word in words)
    ]


def mine(daemon: private.Daemon, modules: tuple[str, ...]) -> list[psutil.Process]:
    """Of those, the daemon's own."""
    return [worker for worker in workers(*modules) if worker.ppid() == daemon.process.pid]


def kill(daemon: private.Daemon, modules: tuple[str, ...], *, deepest: bool = False) -> int:
    """kill -9 of a worker, or of the last process that it started; returns the worker's pid."""
    worker = mine(daemon, modules)[0]
    below = worker.children(recursive=True) if deepest else []
    scheduler = next((one for one in below if "scheduler" in " ".join(one.cmdline())), None)
    os.kill((scheduler or [worker, *below][-1]).pid, signal.SIGKILL)
    return worker.pid


def recovered(daemon: private.Daemon, modules: tuple[str, ...], old: int) -> float:
    """Seconds until another worker serves and the run samples again."""
    started = time.monotonic()
    while not any(worker.pid != old for worker in mine(daemon, modules)):
        if time.monotonic() - started > 120:
            raise RuntimeError(f"no new {modules[0]}: {daemon.log()}")
        time.sleep(0.1)
    daemon.wait_for_phase("start")
    daemon.wait_for_phase("sample", "train")
    return round(time.monotonic() - started, 1)


def step_of(place: Path) -> str:
    return (place / "daemon.log").read_text().strip().splitlines()[-1]


def memory() -> list[int]:
    return [gpu.memory_used for gpu in gpus.read()]


def shared_memory() -> set[str]:
    return {file.name for file in Path("/dev/shm").iterdir()}


def left(before: list[int], files: set[str]) -> dict[str, Any]:
    """What stays, once it has had a while to go."""
    started = time.monotonic()
    while True:
        found = {
            "gpu_processes": [process.owner for gpu in gpus.read() for process in gpu.processes],
            "worker_processes": len(workers("tttdd.workers", "sglang::")),
            "shared_memory_files": len(shared_memory() - files),
            "memory_mib": [count >> 20 for count in memory()],
        }
        excess = [now - then for now, then in zip(memory(), before, strict=True)]
        clean = not any(found[name] for name in found if name != "memory_mib") and max(excess, default=0) < NOISE_BYTES
        seconds = time.monotonic() - started
        if clean or seconds > PATIENCE_SECONDS:
            return {"clean": clean, "seconds": round(seconds, 1), **found}
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
