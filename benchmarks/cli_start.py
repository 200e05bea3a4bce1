"""How long `tttctl VERB` takes from start to end, as a whole process, in milliseconds and in starts of Python itself.

    the daemon's API on its socket, with little behind it -> each command REPEATS times, in turns -> median

In turns, so that whatever else the machine does falls on all of them alike; the processor time tells how much that was.
--patience waits for a machine that does nothing else; `chrt -r 1 taskset -c 1` before the command makes one of a core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.append(sys.path.pop(1))  # a file beside this one has the name of a package

from tests import fake_daemon
from tttdd.protocol import Submit

REPEATS = 20
QUIET = 1.0
LIMIT_MS = 150.0
"""For the verbs that read."""
BARE = {"python -c pass": ["-c", "pass"], "python -I -S -c pass": ["-I", "-S", "-c", "pass"]}
READING = (
    "status",
    "runs",
    "tasks",
    "best first",
    "show first best --lineage",
    "diff first starter best",
    "logs first",
    "config show",
    "config schema",
    "status first",
)
OTHERS = ("completion bash", "--help", "submit erdos_min_overlap", "pause first")


class Run(NamedTuple):
    """Milliseconds."""

    wall: float
    processor: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for a load below 1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, fake_daemon.serving(Path(folder) / "s") as served:
        _fill(served, Path(folder))
        environment = os.environ | {"TTTDD_SOCKET": str(served.socket)}
        _await_quiet(options.patience)
        load = os.getloadavg()
        runs = _measured(environment, REPEATS)
    told = {name: _summary(times) for name, times in runs.items()}
    bare, isolated = (told.pop(name) for name in BARE)
    for each in told.values():
        each["times_python"] = round(each["median_ms"] / bare["median_ms"], 2)
        each["times_python_isolated"] = round(each["median_ms"] / isolated["median_ms"], 2)
    result = {
        "command": f"python benchmarks/{Path(__file__).name}",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{_processor()}, Python {platform.python_version()}",
        "load_before": load,
        "real_time": os.sched_getscheduler(0) == os.SCHED_RR,
        "cores_used": len(os.sched_getaffinity(0)),
        "repeats": REPEATS,
        "python": dict(zip(BARE, (bare, isolated), strict=True)),
        "verbs": told,
        "slower_than_150_ms": [name for name in READING if told[name]["median_ms"] > LIMIT_MS],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    sys.exit(bool(result["slower_than_150_ms"]))


def _fill(served: fake_daemon.Served, folder: Path) -> None:
    """A run with a program that is better than the starter, and a log."""
    served.runner.state_dir = str(folder)
    served.runner.submit(Submit(task="erdos_min_overlap", name="first"))
    better = msgspec.structs.replace(served.runner.node("first", 1), node=2, parent=1, reward=3.0, seed=False)
    served.runner.others[2] = msgspec.structs.replace(better, lineage=[1], program=better.program * 10)
    logs = folder / "runs/first/logs"
    logs.mkdir(parents=True)
    (logs / "engine.log").write_text("a line of the engine's log\n" * 1000)


def _measured(environment: dict[str, str], repeats: int) -> dict[str, list[Run]]:
    commands = {name: [sys.executable, *arguments] for name, arguments in BARE.items()}
    tttctl = str(Path(sys.executable).with_name("tttctl"))
    commands |= {name: [tttctl, *name.split()] for name in (*READING, *OTHERS)}
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for turn in range(repeats + 1):
        for name, command in commands.items():
            run = _run(command, environment)
            if turn:  # the first one compiles and fills the page cache
                runs[name].append(run)
    return runs


def _run(command: list[str], environment: dict[str, str]) -> Run:
    started = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with exit status {process.returncode}")
    return Run(1000 * wall, 1000 * (used.ru_utime + used.ru_stime))


def _summary(runs: list[Run]) -> dict[str, float]:
    return {
        "median_ms": round(statistics.median(run.wall for run in runs), 1),
        "lowest_ms": round(min(run.wall for run in runs), 1),
        "processor_ms": round(statistics.median(run.processor for run in runs), 1),
    }


def _await_quiet(seconds: float) -> None:
    """At most so long, until the load of the last minute is low."""
    deadline = time.monotonic() + seconds
    while os.getloadavg()[0] > QUIET and time.monotonic() < deadline:
        time.sleep(1)


def _processor() -> str:
    """In words, without what names one machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{os.cpu_count()} cores {platform.machine()}, {model}"


if __name__ == "__main__":
    main()
