"""The algorithm, top to bottom (TTT-Discover, arXiv:2601.16175).

    Ready(step, release)  -> publish + prove -> select parents -> sample, judge, record -> full grid
                          -> archive, advantages, frozen batch -> begin  -> Pending(step, release, batch)
    Pending               -> train: (release, batch) -> release + 1 -> publish + prove -> commit -> Ready(step + 1)

Both halves can be repeated: the store is the only memory between them, so first start, resume and recovery after
a crash are the same loop.
"""

from __future__ import annotations

import hashlib
import time
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import msgspec

from judges.verdict import Verdict
from tttdd.domain import advantage, batch, extract, metrics, prompt, puct
from tttdd.domain.archive import Archive, Child, Node
from tttdd.domain.grid import Coordinate, missing, trainable
from tttdd.durable import write_file
from tttdd.failpoint import Point, reach
from tttdd.folder import RunFolder
from tttdd.gate import Gate
from tttdd.ports import (
    Judge,
    Observer,
    Pending,
    Probe,
    Ready,
    Release,
    Rollout,
    RolloutEngine,
    Store,
    Trainer,
)
from tttdd.protocol import CellState
from tttdd.serving import Serving
from tttdd.thinking import Answers, Budget

PROBE_TOKENS = 2048
"""At most: the more there are, the smaller a move of the weights that shows above bfloat16's rounding."""
END_OF_CONTEXT = 8
"""Tokens that an engine may keep free."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is asked to do."""

    name: str
    seed: int
    steps: int
    groups: int
    rollouts: int
    task: prompt.TaskPrompt
    c: float
    max_nodes: int
    children_kept: int
    count: Literal["rollout", "expansion"]
    budget: Budget
    """Tokens of an answer."""
    context_length: int
    """Tokens, of prompt and answer together."""
    keep: int
    """Newest releases kept on disk, besides the best step's."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of one run, open."""

    engine: RolloutEngine
    trainer: Trainer
    judge: Judge
    store: Store
    observer: Observer
    gate: Gate
    folder: RunFolder


async def run_to_the_end(plan: Plan, world: World) -> None:
    """Go on from wherever the store says the run is, to its last step."""
    answers = await Answers.prepare(world.engine, plan.budget)
    serving = await Serving.start(world.engine, world.trainer, world.observer, await make_probe(plan, world))
    while True:
        await world.gate.wait()
        match world.store.state(plan.name):
            case Ready(step=step, release=release):
                world.folder.retain(world.store.kept_releases(plan.name, plan.keep))
                reach(Point.OLD_RELEASES_DELETED)
                await serving.publish(step, release)
                if step >= plan.steps:
                    reach(Point.RUN_DONE)
                    return
                await sample_half(plan, world, answers, step, release)
            case Pending() as pending:
                await train_half(plan, world, serving, pending)


async def make_probe(plan: Plan, world: World) -> Probe:
    """A seed's prompt, then what the model would have to write for the starter; all but the first token count."""
    seed = world.store.archive(plan.name).seeds[0]
    prompt_ids = await world.engine.encode(prompt.render(plan.task, seed))
    answer_ids = await world.engine.encode_more(prompt.written_part(plan.task, seed))
    ids = (prompt_ids + answer_ids)[-min(PROBE_TOKENS, plan.context_length - END_OF_CONTEXT) :]
    return Probe(ids[:1], ids[1:])


async def sample_half(plan: Plan, world: World, answers: Answers, step: int, release: Release) -> None:
    """Fill the grid, grow the archive, freeze the batch: Ready -> Pending."""
    world.observer.phase(step, release.number, "sample")
    archive = world.store.archive(plan.name)
    parents = puct.select_parents(archive, plan.groups, plan.c)
    asks = [await make_ask(plan, world, parent, archive.best.reward) for parent in parents]
    reach(Point.PARENTS_SELECTED)
    recorded = world.store.rollouts(plan.name, step)
    for rollout in recorded:
        world.observer.cell(rollout.coordinate, outcome(rollout.verdict, archive.best.reward))
    clock = SampleClock()
    async with anyio.create_task_group() as grid:  # its end is the barrier
        for place in missing(step, plan.groups, plan.rollouts, {r.coordinate for r in recorded}):
            grid.start_soon(one_rollout, plan, world, answers, release, place, asks[place.group], clock)
    reach(Point.GRID_FULL)
    rollouts = world.store.rollouts(plan.name, step)
    close = partial(close_grid, plan, step, release, archive, asks, rollouts, world.folder)
    path, row = await anyio.to_thread.run_sync(close)  # parsing hundreds of programs must not hold the event loop
    world.store.begin(plan.name, step, archive, path, row | clock.row())
    reach(Point.STEP_BEGUN)


class Ask(msgspec.Struct, frozen=True):
    """What every rollout of a group is asked."""

    parent: Node
    prompt: prompt.Prompt
    prompt_ids: list[int]
    best: float
    """Highest reward in the archive before the step."""


async def make_ask(plan: Plan, world: World, parent: Node, best: float) -> Ask:
    text = prompt.render(plan.task, parent)
    return Ask(parent, text, await world.engine.encode(text), best)


async def one_rollout(
    plan: Plan,
    world: World,
    answers: Answers,
    release: Release,
    place: Coordinate,
    ask: Ask,
    clock: SampleClock,
) -> None:
    """Sample, extract, judge, and keep the result durably at its coordinate."""
    await world.gate.wait()
    world.observer.cell(place, "sampling")
    seed = rollout_seed(plan.seed, place)
    sampled = await answers.sample(ask.prompt_ids, release=release.number, seed=seed, stop=ask.prompt.stop)
    clock.sampled(len(sampled.token_ids))
    reach(Point.ROLLOUT_SAMPLED, place)
    program = extract.extract(plan.task, sampled.text)
    world.observer.cell(place, "judging")
    verdict = await world.judge.grade(program) if program is not None else no_program(sampled.finish_reason)
    reach(Point.ROLLOUT_JUDGED, place)
    world.store.record(plan.name, Rollout(place, ask.parent.id, program, sampled, verdict))
    reach(Point.ROLLOUT_RECORDED, place)
    world.observer.cell(place, outcome(verdict, ask.best))


class SampleClock:
    """Times the sampling half; what a crash interrupted is not counted."""

    def __init__(self) -> None:
        self._started = self._last_sampled = time.monotonic()
        self._tokens = 0

    def sampled(self, tokens: int) -> None:
        self._tokens += tokens
        self._last_sampled = time.monotonic()

    def row(self) -> dict[str, float]:
        now = time.monotonic()
        sampling = self._last_sampled - self._started
        return {
            "time/sample": now - self._started,
            "time/judge_wait": now - self._last_sampled,
            "rollout/tokens_per_second": self._tokens / sampling if sampling > 0 else 0.0,
        }


def outcome(verdict: Verdict, best: float) -> CellState:
    if not verdict.valid:
        return "rejected"
    return "best" if verdict.reward > best else "valid"


def no_program(finish_reason: str) -> Verdict:
    cut = "; it was cut at the token budget" if finish_reason == "length" else ""
    return Verdict(valid=False, reason="no code", detail=f"the answer holds no complete program{cut}")


def rollout_seed(seed: int, place: Coordinate) -> int:
    """One seed per coordinate, below 2^63: a rollout that must be sampled again is the same rollout."""
    digest = hashlib.sha256(f"{seed}/{place.step}/{place.group}/{place.rollout}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def close_grid(
    plan: Plan,
    step: int,
    release: Release,
    archive: Archive,
    asks: list[Ask],
    rollouts: list[Rollout],
    folder: RunFolder,
) -> tuple[Path, dict[str, float]]:
    """Grow the archive, freeze the batch; returns the batch's file and the grid's half of the metrics row."""
    grow(plan, archive, [ask.parent for ask in asks], rollouts)
    frozen = freeze(plan, step, release, [ask.prompt_ids for ask in asks], rollouts)
    write_file(folder.batch(step), batch.encode(frozen))
    return folder.batch(step), {
        **metrics.grid_row(step, plan.groups, plan.rollouts, [(r.sampled, r.program, r.verdict) for r in rollouts]),
        **metrics.archive_row(archive),
        "tttd/training_groups": float(len(frozen.groups)),
        "tttd/training_rollouts": float(sum(len(group.samples) for group in frozen.groups)),
    }


def grow(plan: Plan, archive: Archive, parents: list[Node], rollouts: list[Rollout]) -> None:
    """Valid children in, visits up, surplus out (section 1)."""
    for group, parent in enumerate(parents):
        children = [child(r) for r in rollouts if r.coordinate.group == group and r.verdict.valid]
        archive.record_group(parent.id, children, plan.rollouts, plan.count)
    archive.prune(plan.max_nodes, plan.children_kept)


def child(rollout: Rollout) -> Child:
    verdict = rollout.verdict
    return Child(
        program=rollout.program or "",
        output=verdict.output,
        reward=verdict.reward,
        objective=verdict.objective,
        certificate=verdict.certificate,
        step=rollout.coordinate.step,
    )


def freeze(
    plan: Plan, step: int, release: Release, prompt_ids: list[list[int]], rollouts: list[Rollout]
) -> batch.Batch:
    """The trainable groups with their advantages (sections 2 and 3)."""
    by_group = [[r for r in rollouts if r.coordinate.group == group] for group in range(plan.groups)]
    rewards = [[r.verdict.reward for r in group] for group in by_group]
    groups = [
        batch.Group(
            prompt_ids=prompt_ids[index],
            samples=[
                batch.Sample(
                    token_ids=r.sampled.token_ids,
                    logprobs=r.sampled.logprobs,
                    loss_mask=r.sampled.loss_mask,
                    advantage=a,
                )
                for r, a in zip(by_group[index], advantage.entropic(rewards[index]), strict=True)
            ],
        )
        for index in trainable(rewards)
    ]
    return batch.Batch(
        run=plan.name, step=step, release=release.number, rollouts_total=plan.groups * plan.rollouts, groups=groups
    )


async def train_half(plan: Plan, world: World, serving: Serving, pending: Pending) -> None:
    """One optimizer step, publish, prove: Pending -> Ready(step + 1)."""
    step, release = pending.step, pending.release
    world.observer.phase(step, release.number, "train")
    target = world.folder.release(release.number + 1)
    await world.engine.rest()
    reach(Point.ENGINE_RESTS)
    report = await world.trainer.train(release, pending.batch, target)
    reach(Point.STEP_TRAINED)
    served = await serving.publish(step, target)
    world.observer.phase(step, target.number, "commit")
    row = pending.metrics | metrics.train_row(msgspec.structs.asdict(report))
    row["time/train"], row["time/publish"] = report.seconds, served.publish_seconds
    row["time/prove"], row["time/retire"] = served.prove_seconds, served.retire_seconds
    row["time/step"] = sum(row[f"time/{phase}"] for phase in ("sample", "train", "publish", "prove", "retire"))
    world.store.commit(plan.name, step, target, served.proof, row)
    reach(Point.STEP_COMMITTED)
    world.observer.committed(step, row)
