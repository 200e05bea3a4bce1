"""Does anything stay on the GPUs?  A daemon's work is ended in every way there is, and NVML asked what is left.

    python benchmarks/leftovers.py --config benchmarks/smollm2.toml --model DIRECTORY

finish, cancel, kill -9 of the engine, of a trainer rank (both: the run must go on by itself), SIGTERM, kill -9 of the
daemon.  After each end: processes that NVML names, worker processes, and the devices' memory against that before the
start.  Prints a table and one JSON object; exit status 1 if anything stayed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import private
import psutil
from hardware import described

from tttdd import gpus, protocol

NOISE_BYTES = 64 << 20
PATIENCE_SECONDS = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--task", default="erdos_min_overlap")
    parser.add_argument("--argument", action="append", default=[], metavar="NAME=VALUE", help="of engine.arguments")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    before = memory()
    with tempfile.TemporaryDirectory(prefix="tttdd-bench-") as folder:
        place = Path(folder)
        private.configure(place, options.config, options.model, options.argument)
        rows = [row | left(before) for row in endings(place, options.task)]
    result = {
        "benchmark": "leftovers",
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": described(),
        "memory_before_mib": [count >> 20 for count in before],
        "endings": rows,
    }
    for row in rows:
        print(f"{row['ending']:20} clean: {row['clean']!s:5} after {row['seconds']:4.1f} s  {row}")
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["clean"] for row in rows) else 1


def endings(place: Path, task: str) -> Iterator[dict[str, Any]]:
    """Yields when something has ended and the devices should be as before."""
    with private.Daemon(place) as daemon:
        daemon.finish(submit(daemon, task, 1))
        yield {"ending": "finish"}
        run = submit(daemon, task, 50)
        daemon.wait_for_phase("sample")
        daemon.client.post(f"/v1/runs/{run}/cancel", None, protocol.RunInfo)
        yield {"ending": "cancel"}
        run = submit(daemon, task, 50)
        daemon.wait_for_phase("sample")
        engine = kill(daemon, "tttdd.workers.serve", deepest=True)
        seconds = recovered(daemon, "tttdd.workers.serve", engine)
        trainer = kill(daemon, "tttdd.workers.train")
        went_on = {
            "engine_back_seconds": seconds,
            "trainer_back_seconds": recovered(daemon, "tttdd.workers.train", trainer),
        }
    yield {"ending": "SIGTERM", "after_kill_9_of": "engine, trainer rank", **went_on, "step": step_of(place)}
    with private.Daemon(place) as daemon:
        daemon.wait_for_phase("train")
        daemon.process.kill()
        daemon.process.wait()
        yield {"ending": "kill -9 of the daemon"}


def submit(daemon: private.Daemon, task: str, steps: int) -> str:
    request = protocol.Submit(task=task, steps=steps, grid=protocol.GridSize(2, 8))
    return daemon.client.post("/v1/runs", request, protocol.RunInfo).run


def workers(module: str = "tttdd.workers") -> list[psutil.Process]:
    return [
        one for one in psutil.process_iter(["cmdline"]) if any(module in word for word in one.info["cmdline"] or [])
    ]


def kill(daemon: private.Daemon, module: str, *, deepest: bool = False) -> int:
    """kill -9 of a worker, or of the last process that it started; returns the worker's pid."""
    worker = workers(module)[0]
    below = worker.children(recursive=True)
    victim = next((one for one in below if "scheduler" in " ".join(one.cmdline())), below[-1]) if deepest else worker
    os.kill(victim.pid, signal.SIGKILL)
    return worker.pid


def recovered(daemon: private.Daemon, module: str, old: int) -> float:
    """Seconds until another worker serves and the run samples again."""
    started = time.monotonic()
    while not any(worker.pid != old for worker in workers(module)):
        if time.monotonic() - started > 120:
            raise RuntimeError(f"no new {module}: {daemon.log()}")
        time.sleep(0.1)
    daemon.wait_for_phase("start")
    daemon.wait_for_phase("sample", "train")
    return round(time.monotonic() - started, 1)


def step_of(place: Path) -> str:
    return (place / "daemon.log").read_text().strip().splitlines()[-1]


def memory() -> list[int]:
    return [gpu.memory_used for gpu in gpus.read()]


def left(before: list[int]) -> dict[str, Any]:
    """What stays, once it has had a while to go."""
    started = time.monotonic()
    while True:
        found = {
            "gpu_processes": [process.owner for gpu in gpus.read() for process in gpu.processes],
            "worker_processes": len(workers()) + len(workers("sglang::")),
            "memory_mib": [count >> 20 for count in memory()],
        }
        excess = [now - then for now, then in zip(memory(), before, strict=True)]
        clean = not (found["gpu_processes"] or found["worker_processes"]) and all(each < NOISE_BYTES for each in excess)
        seconds = time.monotonic() - started
        if clean or seconds > PATIENCE_SECONDS:
            return {"clean": clean, "seconds": round(seconds, 1), **found}
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
