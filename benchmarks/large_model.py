"""One step at the size of the reference: sampling, training, publishing and proving, with the product's own parts.

    python benchmarks/large_model.py --tokenizer DIRECTORY --engines 0 --trainers 0 --model /tmp/qwen3-8b-shape

The model has the shape of Qwen3-8B and random weights: right for speed and memory, useless for quality.  Lengths of
the answers are drawn from a log-normal, as reasoning models' are, and cut to fit the time.  Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import anyio
import msgspec
import private
from hardware import described
from random_model import write_model

from tttdd import config, durable, gpus, memory
from tttdd.adapters.workshop import LocalWorkshop
from tttdd.config import Config
from tttdd.domain import batch
from tttdd.folder import RunFolder
from tttdd.gate import Gate
from tttdd.ports import ModelFiles, Probe, Release, Sampled
from tttdd.serving import Serving
from tttdd.world import World


class Watcher:
    """Stands in for the board: says what happens; the peak of every device's memory is read on the side."""

    def __init__(self) -> None:
        self.peaks: dict[int, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        with gpus.opened():
            while not self._ended.wait(0.2):
                for gpu in gpus.read():
                    self.peaks[gpu.index] = max(self.peaks.get(gpu.index, 0), gpu.memory_used)

    def take_peaks(self) -> dict[str, float]:
        """GiB since the last call, by device."""
        peaks, self.peaks = self.peaks, {}
        return {str(index): round(peak / 2**30, 1) for index, peak in sorted(peaks.items())}

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def phase(self, step: int, release: int, phase: str) -> None:
        say(f"step {step}, release {release}: {phase}")

    def progress(self, share: float) -> None: ...

    def proved(self, proof: Any) -> None:
        say(f"proved: {msgspec.json.encode(proof).decode()}")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    options = _options()
    if options.write_model:
        write_model(options.model, options.tokenizer)
        return
    subprocess.run([sys.executable, *sys.argv, "--write-model"], check=True)  # what it takes of the device goes with it
    settings = _config(options)
    result = {
        "benchmark": "large_model",
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": described(),
        "engines": options.engines,
        "trainers": options.trainers,
        "tensor_parallel": options.tensor_parallel,
    }
    watcher = Watcher()
    try:
        anyio.run(measure, options, settings, watcher, result)
    finally:
        watcher.stop()
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    time.sleep(2)
    result["memory_after_gib"] = {str(gpu.index): round(gpu.memory_used / 2**30, 2) for gpu in gpus.read()}
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="made there if it is not there yet")
    parser.add_argument("--tokenizer", type=Path, required=True, help="directory with a tokenizer.json")
    parser.add_argument("--engines", type=int, nargs="+", default=[0])
    parser.add_argument("--trainers", type=int, nargs="+", default=[0])
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=1500, help="tokens")
    parser.add_argument("--median", type=int, default=700, help="tokens of an answer")
    parser.add_argument("--longest", type=int, default=4000, help="tokens of an answer")
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument(
        "--argument", action="append", default=[], metavar="NAME=VALUE", help="more of engine.arguments"
    )
    parser.add_argument("--write-model", action="store_true", help="only that")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _config(options: argparse.Namespace) -> Config:
    """The reference configuration but for the model, the devices and the context."""
    reference = msgspec.structs.replace(
        config.load(config.shipped("tttdd.toml")), model=config.Model(path=str(options.model))
    )
    pairs = (item.partition("=") for item in options.argument)
    arguments: dict[str, str | int | float | bool] = {
        name: tomllib.loads(f"value = {private.toml(value)}")["value"] for name, _, value in pairs
    }
    return msgspec.structs.replace(
        reference,
        engine=msgspec.structs.replace(
            reference.engine,
            devices=tuple(options.engines),
            mem_fraction=None,
            context_length=options.context,
            arguments=arguments,
        ),
        trainer=msgspec.structs.replace(
            reference.trainer,
            devices=tuple(options.trainers),
            max_tokens_per_gpu=None,
            tensor_parallel=options.tensor_parallel,
        ),
    )


async def measure(options: argparse.Namespace, settings: Config, watcher: Watcher, result: dict[str, Any]) -> None:
    """Fills `result` as it goes, so that a failure leaves what was measured before."""
    files = ModelFiles(options.model, "random")
    planned = memory.plan_for(settings, options.model, gpus.read(), options.groups * options.rollouts)
    for line in planned.lines():
        say(line)
    result["plan"] = planned.lines()
    draw = random.Random(0)
    prompts = [[draw.randrange(1000, 150000) for _ in range(options.prompt)] for _ in range(options.groups)]
    plan: Any = argparse.Namespace(name="large", trains=True, groups=options.groups, rollouts=options.rollouts, seed=0)
    with tempfile.TemporaryDirectory() as state:
        nobody: Any = None  # no harness comes
        workshop: Any = LocalWorkshop(settings, None, Path(state))  # pyright: ignore[reportArgumentType]
        started = time.monotonic()
        try:
            async with workshop.open(plan, files, None, nobody, watcher, Gate()) as world:
                probe = Probe(prompts[0][:1], [draw.randrange(1000, 150000) for _ in range(2000)])
                serving = await Serving.start(world.engine, world.trainer, world.observer, probe)
                result["start_seconds"] = time.monotonic() - started
                result["memory_start_gib"] = watcher.take_peaks()
                await step(options, world, serving, prompts, watcher, result)
        finally:
            _keep_logs(options, RunFolder(Path(state) / "runs" / "large").logs)


def _keep_logs(options: argparse.Namespace, logs: Path) -> None:
    for log in logs.glob("*.log") if options.out else ():
        (options.out.parent / f"{options.out.stem}-{log.name}").write_bytes(log.read_bytes()[-40_000:])


async def step(
    options: argparse.Namespace,
    world: World,
    serving: Serving,
    prompts: list[list[int]],
    watcher: Watcher,
    result: dict[str, Any],
) -> None:
    lengths = answer_lengths(options)
    before = time.monotonic()
    groups = await sample(world, prompts, lengths)
    sampling = time.monotonic() - before
    tokens = sum(len(each.token_ids) for group in groups for each in group)
    result |= {
        "rollouts": len(lengths),
        "answer_tokens": tokens,
        "answer_tokens_median": statistics.median(lengths),
        "answer_tokens_longest": max(lengths),
        "prompt_tokens": options.prompt,
        "sample_seconds": sampling,
        "sampled_tokens_per_second": tokens / sampling,
        "memory_sampling_gib": watcher.take_peaks(),
    }
    say(f"{tokens} tokens in {sampling:.1f} s")
    path = world.folder.batch(0)
    durable.write_file(path, batch.encode(as_batch(prompts, groups)))
    before = time.monotonic()
    await world.engine.rest()
    result["rest_seconds"] = time.monotonic() - before
    watcher.take_peaks()
    await anyio.sleep(1)
    result["memory_rested_gib"] = watcher.take_peaks()
    target = world.folder.release(1)
    assert world.trainer
    report = await world.trainer.train(Release(0), path, target)
    result |= {"train": msgspec.structs.asdict(report), "memory_training_gib": watcher.take_peaks()}
    await anyio.sleep(1)
    result["memory_trained_gib"] = watcher.take_peaks()
    result["trained_tokens_per_second"] = report.tokens / report.seconds
    served = await serving.publish(0, target)
    result |= {
        "publish_seconds": served.publish_seconds,
        "prove_seconds": served.prove_seconds,
        "retire_seconds": served.retire_seconds,
        "proof": msgspec.structs.asdict(served.proof),
    }
    before = time.monotonic()
    again = await sample(world, prompts, [64] * len(lengths), release=1)
    result["sampled_under_release_1"] = sum(len(each.token_ids) for group in again for each in group)
    result["sampled_under_release_1_seconds"] = time.monotonic() - before


def answer_lengths(options: argparse.Namespace) -> list[int]:
    draw = random.Random(1)
    count = options.groups * options.rollouts
    return [min(options.longest, max(16, int(options.median * draw.lognormvariate(0, 0.8)))) for _ in range(count)]


async def sample(world: World, prompts: list[list[int]], lengths: list[int], release: int = 0) -> list[list[Sampled]]:
    """Groups of answers of the given lengths (the end-of-sequence token is too rare in a random model to matter)."""
    share = len(lengths) // len(prompts)
    found: dict[int, Sampled] = {}

    async def one(place: int) -> None:
        found[place] = await world.engine.sample(
            prompts[place // share], release=release, seed=2 * place, stop=(), max_new_tokens=lengths[place]
        )

    async with anyio.create_task_group() as tasks:
        for place in range(len(lengths)):
            tasks.start_soon(one, place)
    return [[found[place] for place in range(start, start + share)] for start in range(0, len(lengths), share)]


def as_batch(prompts: list[list[int]], groups: list[list[Sampled]]) -> batch.Batch:
    draw = random.Random(2)
    return batch.Batch(
        run="large",
        step=0,
        release=0,
        rollouts_total=sum(map(len, groups)),
        groups=[
            batch.Group(
                prompt,
                [batch.Sample(each.token_ids, each.logprobs, each.loss_mask, draw.gauss(0, 1)) for each in group],
            )
            for prompt, group in zip(prompts, groups, strict=True)
        ],
    )


if __name__ == "__main__":
    main()
