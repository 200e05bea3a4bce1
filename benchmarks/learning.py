"""Does training help?  The embedded default against the same search with learning rate 0, at equal seeds.

    python benchmarks/learning.py --steps 8 --seeds 0 1 2 --jobs 2

Every run is a private daemon with the shipped CPU configuration; only trainer.lr differs between the two arms.
Prints a table a seed, the mean over seeds of every step, and one JSON object with all curves.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tttctl.client import Client, NoDaemon, run_path
from tttdd import config, protocol

COLUMNS = ("tttd/reward_mean", "tttd/valid_fraction", "archive/best_objective", "train/kl_base", "time/step")


def main() -> int:
    options = _options()
    started = time.time()
    arms = [(seed, lr) for seed in options.seeds for lr in (options.lr, 0.0)]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        curves = dict(zip(arms, pool.map(lambda arm: measure(options, *arm), arms), strict=True))
    for seed in options.seeds:
        show(f"seed {seed}", curves[seed, options.lr], curves[seed, 0.0])
    means = {lr: average([curves[seed, lr] for seed in options.seeds]) for lr in (options.lr, 0.0)}
    show("mean over seeds", means[options.lr], means[0.0])
    trained, frozen = means[options.lr]["tttd/reward_mean"], means[0.0]["tttd/reward_mean"]
    result = {
        "benchmark": "learning",
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "task": options.task,
        "lr": options.lr,
        "seconds": time.time() - started,
        "trained_first": trained[0],
        "trained_last": trained[-1],
        "frozen_first": frozen[0],
        "frozen_last": frozen[-1],
        "curves": [{"seed": seed, "lr": lr, **curve} for (seed, lr), curve in curves.items()],
    }
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="erdos_min_overlap")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lr", type=float, default=config.load(config.shipped("tttdd.cpu.toml")).trainer.lr)
    parser.add_argument("--groups", type=int, help="default: the configuration's")
    parser.add_argument("--rollouts", type=int, help="default: the configuration's")
    parser.add_argument("--jobs", type=int, default=1, help="daemons at a time; each wants two cores")
    parser.add_argument("--model", type=Path, help="a local transformers directory instead of the embedded package")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    return parser.parse_args()


def measure(options: argparse.Namespace, seed: int, lr: float) -> dict[str, list[float]]:
    """The metrics columns of one run, a value a step."""
    with tempfile.TemporaryDirectory(prefix="tttdd-bench-") as folder:
        place = Path(folder)
        settings = _settings(place, lr, options.model)
        with (place / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen([sys.executable, "-m", "tttdd", "--config", str(settings)], stderr=log)
        try:
            return _follow(Client(str(place / "s")), options, seed, daemon)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)


def _settings(place: Path, lr: float, model: Path | None) -> Path:
    text = config.shipped("tttdd.cpu.toml").read_text()
    text = text.replace("[daemon]\n", f'[daemon]\nsocket = "{place}/s"\nstate_dir = "{place}/state"\n', 1)
    text = re.sub(r"^lr = .*$", f"lr = {lr}", text, count=1, flags=re.M)
    if model:
        text = re.sub(r"^package = .*$", f'path = "{model}"', text, count=1, flags=re.M)
    file = place / "tttdd.toml"
    file.write_text(text)
    return file


def _follow(
    client: Client, options: argparse.Namespace, seed: int, daemon: subprocess.Popen[bytes]
) -> dict[str, list[float]]:
    default = config.load(config.shipped("tttdd.cpu.toml")).grid
    grid = protocol.GridSize(options.groups or default.groups, options.rollouts or default.rollouts)
    request = protocol.Submit(task=options.task, steps=options.steps, seed=seed, grid=grid)
    while daemon.poll() is None:
        try:
            run = client.post("/v1/runs", request, protocol.RunInfo)
            break
        except NoDaemon:
            time.sleep(0.1)
    else:
        raise RuntimeError("the daemon did not start")
    while run.state in ("queued", "running"):
        time.sleep(1)
        run = client.get(run_path(run.run), protocol.RunInfo)
    if run.state != "finished":
        raise RuntimeError(f"seed {seed}: {run.state}: {run.reason}")
    rows = client.get(run_path(run.run, "/steps"), list[protocol.StepRow])
    return {name: [row.metrics[name] for row in rows] for name in COLUMNS}


def average(curves: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    return {
        name: [statistics.fmean(values) for values in zip(*(curve[name] for curve in curves), strict=True)]
        for name in COLUMNS
    }


def show(title: str, trained: dict[str, list[float]], frozen: dict[str, list[float]]) -> None:
    print(
        f"\n{title}\n{'step':>4} {'trained: mean reward':>21} {'valid':>6} {'best':>8} {'KL':>7}   "
        f"{'frozen: mean reward':>20} {'valid':>6} {'best':>8} {'seconds':>8}"
    )
    rows = zip(*(trained[name] for name in COLUMNS), *(frozen[name] for name in COLUMNS), strict=True)
    for step, (mean, valid, best, kl, seconds, mean0, valid0, best0, _, _) in enumerate(rows, 1):
        print(
            f"{step:>4} {mean:>21.4f} {valid:>6.2f} {best:>8.5f} {kl:>7.4f}   "
            f"{mean0:>20.4f} {valid0:>6.2f} {best0:>8.5f} {seconds:>8.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
