"""Does training help?  The embedded default against the same search with learning rate 0, at equal seeds.

    python benchmarks/learning.py --steps 8 --seeds 0 1 2 --jobs 2
    python benchmarks/learning.py --config benchmarks/smollm2.toml --steps 15 --seeds 0 --jobs 2        (a GPU)

Every run is a private daemon; only trainer.lr differs between the two arms.
Prints a table a seed, the mean over seeds of every step, and one JSON object with all curves.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import fcntl
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import private
from hardware import described

from tttctl.client import run_path
from tttdd import config, protocol

COLUMNS = ("tttd/reward_mean", "tttd/valid_fraction", "archive/best_objective", "train/kl_base", "time/step")
MORE = (
    "train/sampler_trainer_gap",
    "tttd/truncated_fraction",
    "tttd/distinct_programs",
    "rollout/tokens_per_second",
    *(f"time/{phase}" for phase in ("sample", "judge_wait", "train", "publish", "prove", "retire")),
)
STARTING = Path(tempfile.gettempdir(), "tttdd-benchmark-starting")
"""Locked while an engine starts, by whichever benchmark: each sizes its cache by what is free on the device."""


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
        "machine": described(),
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
    parser.add_argument("--config", type=Path, default=config.shipped("tttdd.cpu.toml"), help="default: the CPU's")
    parser.add_argument("--lr", type=float, help="default: the configuration's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another value of a key")
    parser.add_argument("--argument", action="append", default=[], metavar="NAME=VALUE", help="of engine.arguments")
    parser.add_argument("--keep", type=Path, help="keep every run's state here")
    parser.add_argument("--groups", type=int, help="default: the configuration's")
    parser.add_argument("--rollouts", type=int, help="default: the configuration's")
    parser.add_argument("--jobs", type=int, default=1, help="daemons at a time; each wants two cores")
    parser.add_argument("--model", type=Path, help="a local transformers directory instead of the embedded package")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    options.lr = config.load(options.config).trainer.lr if options.lr is None else options.lr
    return options


def measure(options: argparse.Namespace, seed: int, lr: float) -> dict[str, list[Any]]:
    """The metrics columns of one run, a value a step, and the proofs."""
    with tempfile.TemporaryDirectory(prefix="tttdd-bench-") as folder:
        place = options.keep / f"seed-{seed}-lr-{lr:g}" if options.keep else Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        private.configure(place, options.config, options.model, options.argument, lr=lr, **_overrides(options))
        with private.Daemon(place) as daemon:
            with STARTING.open("w") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)
                request = protocol.Submit(task=options.task, steps=options.steps, seed=seed, grid=_grid(options))
                run = daemon.client.post("/v1/runs", request, protocol.RunInfo).run
                daemon.wait_for_phase("sample")
            daemon.finish(run)
            rows = daemon.client.get(run_path(run, "/steps"), list[protocol.StepRow])
    curves: dict[str, list[Any]] = {name: [row.metrics[name] for row in rows] for name in (*COLUMNS, *MORE)}
    return curves | {"proof": [msgspec.to_builtins(row.proof) for row in rows]}


def _overrides(options: argparse.Namespace) -> dict[str, object]:
    return dict(item.split("=", 1) for item in options.set)


def _grid(options: argparse.Namespace) -> protocol.GridSize:
    default = config.load(options.config).grid
    return protocol.GridSize(options.groups or default.groups, options.rollouts or default.rollouts)


def average(curves: list[dict[str, list[Any]]]) -> dict[str, list[float]]:
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
