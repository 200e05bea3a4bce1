"""Programs a second that the judges run, against what one would write without them, in one run on one machine.

    python benchmarks/judges.py [--width 2] [--seconds 20] [--rounds 3] [--alive 512]

The same program everywhere: it imports numpy and scipy.optimize, computes a little and returns a step function.  Rounds
alternate between the ways, so that a load from elsewhere meets all; the best round counts.  `fresh python` is a new
`python -I` for each program with a limit on its time and nothing else; concurrent.futures contains nothing.  Then 512
programs alive together, and 512 through the daemon's pool: what memory they hold.  Prints a table, then a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import anyio
import psutil

sys.path.append(sys.path.pop(0))  # this file has the name of the package that it measures

import hardware

from judges import task as tasks
from judges.evaluate import Evaluator
from judges.grader import Grader
from judges.sandbox import AnySandbox, Entry, Limits, Sandbox, made
from tttdd.adapters.judge_pool import JudgePool

BODY = "h = np.linspace(0.2, 0.8, 50)\n    return h.tolist(), float(h.sum()), 50\n"
NUMPY = f"import numpy as np\ndef run(**k):\n    {BODY}"
SCIPY = f"import scipy.optimize\n{NUMPY}"
SLEEPER = "import time, numpy as np\ndef run(**k):\n    time.sleep({seconds})\n    return [0.5, 0.5], 0.5, 2\n"
CALL = "import json\nprint(json.dumps(run()))\n"
ENTRY = Entry("run")
LIMITS = Limits(wall_seconds=60.0, cpu_seconds=30)
ERDOS = tasks.load("erdos_min_overlap").limited(30.0, cpus=1, memory_gib=1.0)
MIB = 1 << 20
Way = Callable[[], object]


def sandboxed(sandbox: AnySandbox) -> None:
    outcome = sandbox.run(SCIPY, ENTRY, LIMITS)
    assert outcome.result.startswith(b"R[[0.2"), outcome


def judged(judge: Evaluator) -> None:
    verdict = judge.grade(SCIPY)
    assert verdict.valid, verdict


def fresh(program: str) -> None:
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = ["/bin/sh", "-c", 'ulimit -t 30 && exec "$@"', "sh", sys.executable, "-I", "-c", program + CALL]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=True)
    assert done.stdout.startswith(b"[[0.2"), done.stdout


def in_a_worker(program: str) -> object:
    names: dict[str, Callable[[], object]] = {}
    exec(program, names)
    return names["run"]()


def rate(way: Way, width: int, seconds: float) -> float:
    """Programs a second, `width` at a time, for about so long."""
    end = time.perf_counter() + seconds
    counts: list[int] = []

    def work() -> None:
        count = 0
        while time.perf_counter() < end:
            way()
            count += 1
        counts.append(count)

    begun = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)


def held(pids: list[int]) -> int:
    """Proportional set size of processes, bytes: shared pages count once."""
    total = 0
    for pid in pids:
        try:
            total += psutil.Process(pid).memory_full_info().pss
        except psutil.Error:
            continue
    return total


def descendants() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True)]


def alive_together(sandbox: Sandbox, programs: int) -> dict[str, float]:
    """All of them run at the same moment."""
    before = held(descendants())
    program, limits = SLEEPER.format(seconds=30), Limits(wall_seconds=120.0, cpu_seconds=60)
    begun = time.perf_counter()
    with ThreadPoolExecutor(programs) as pool:
        results = [pool.submit(sandbox.run, program, ENTRY, limits) for _ in range(programs)]
        while len(psutil.Process(sandbox.pid).children()) < programs and time.perf_counter() - begun < 25:
            time.sleep(0.1)
        started, running = time.perf_counter() - begun, len(psutil.Process(sandbox.pid).children())
        most = held(descendants())
        right = sum(result.result().result == b"R[[0.5, 0.5], 0.5, 2]" for result in results)
    return {
        "programs": programs,
        "running_at_once": running,
        "seconds_to_start": round(started, 2),
        "right": right,
        "mib_each": round((most - before) / MIB / max(running, 1), 2),
        "mib_before": round(before / MIB, 1),
        "mib_after": round(held(descendants()) / MIB, 1),
    }


def through_the_pool(programs: int) -> dict[str, float]:
    """As a grid's: all are asked for at once, as many run as have processors."""
    samples: list[int] = []

    async def main() -> float:
        async with JudgePool() as pool, anyio.create_task_group() as group:
            judge = pool.for_task(pool.granted(ERDOS))
            await judge.grade(SCIPY)
            begun = time.perf_counter()
            async with anyio.create_task_group() as grid:
                for _ in range(programs):
                    grid.start_soon(judge.grade, SCIPY)
                group.start_soon(sample)
            seconds = time.perf_counter() - begun
            group.cancel_scope.cancel()
        return seconds

    async def sample() -> None:
        while True:
            samples.append(held([os.getpid(), *descendants()]))
            await anyio.sleep(0.5)

    seconds = anyio.run(main)
    quarter = max(1, len(samples) // 4)
    first, last = samples[:quarter], samples[-quarter:]
    return {
        "programs": programs,
        "seconds": round(seconds, 2),
        "mib_first_quarter": round(sum(first) / len(first) / MIB, 1),
        "mib_last_quarter": round(sum(last) / len(last) / MIB, 1),
    }


def ways(stack: ExitStack) -> dict[str, Way]:
    sandbox, grader = stack.enter_context(Sandbox()), stack.enter_context(Grader())
    pool = stack.enter_context(ProcessPoolExecutor(len(os.sched_getaffinity(0))))
    judge = Evaluator(ERDOS, sandbox, grader)
    found: dict[str, Way] = {
        f"zygote, {sandbox.level}": lambda: sandboxed(sandbox),
        f"zygote, {sandbox.level}, and graded": lambda: judged(judge),
        "fresh python, numpy": lambda: fresh(NUMPY),
        "fresh python, numpy + scipy.optimize": lambda: fresh(SCIPY),
        "concurrent.futures, warm, not contained": lambda: pool.submit(in_a_worker, SCIPY).result(),
    }
    process = stack.enter_context(Sandbox("process"))
    found["zygote, process"] = lambda: sandboxed(process)
    if os.environ.get("DOCKER_HOST"):
        docker = made("docker")
        stack.callback(docker.close)
        docker.start()
        found["docker, a container each"] = lambda: sandboxed(docker)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=len(os.sched_getaffinity(0)), help="programs at a time")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each way, over all rounds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alive", type=int, default=512, help="programs alive together")
    parser.add_argument("--out", type=Path, help="write the JSON there")
    options = parser.parse_args()
    with ExitStack() as stack:
        compared = ways(stack)
        for way in compared.values():
            way()
        best = dict.fromkeys(compared, 0.0)
        for _ in range(options.rounds):
            for name, way in compared.items():
                best[name] = max(best[name], rate(way, options.width, options.seconds / options.rounds))
    scipy, numpy = best["fresh python, numpy + scipy.optimize"], best["fresh python, numpy"]
    print(f"{'way':42} {'programs/s':>10} {'x fresh scipy':>14} {'x fresh numpy':>14}")
    for name, value in best.items():
        print(f"{name:42} {value:10.2f} {value / scipy:14.1f} {value / numpy:14.1f}")
    with Sandbox() as sandbox:
        together = alive_together(sandbox, options.alive)
    print(f"alive together: {together}")
    grid = through_the_pool(512)
    print(f"through the daemon's pool: {grid}")
    record = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": hardware.described(),
        "load_at_end": [round(each, 2) for each in os.getloadavg()],
        "width": options.width,
        "programs_a_second": {name: round(value, 2) for name, value in best.items()},
        "times_fresh_scipy": {name: round(value / scipy, 1) for name, value in best.items()},
        "times_fresh_numpy": {name: round(value / numpy, 1) for name, value in best.items()},
        "alive_together": together,
        "through_the_pool": grid,
    }
    print(json.dumps(record))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
