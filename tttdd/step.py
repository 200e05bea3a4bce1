"""The algorithm, top to bottom (TTT-Discover, arXiv:2601.16175).

    Ready(step, release)  -> publish + prove -> select parents -> sample, judge, record -> full grid
                          -> archive, advantages, frozen batch -> begin  -> Pending(step, release, batch)
    Pending               -> train: (release, batch) -> release + 1 -> publish + prove -> commit -> Ready(step + 1)

A run of mode search or best-of-n trains nothing: Pending is committed as Ready(step + 1, release).

Both halves can be repeated: the store is the only memory between them, so first start, resume and recovery after
a crash are the same loop.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

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
from tttdd.opening import Opening
from tttdd.ports import Pending, Ready, Release, Rollout
from tttdd.protocol import CellState
from tttdd.sample_clock import SampleClock
from tttdd.serving import Serving, make_probe
from tttdd.thinking import Answers
from tttdd.world import Plan, World


async def run_to_the_end(plan: Plan, world: World) -> None:
    """Go on from wherever the store says the run is, to its last step."""
    answers = await Answers.prepare(world.engine, plan.budget)
    serving = await open_serving(plan, world)
    while True:
        await world.gate.wait()
        match world.store.state(plan.name):
            case Ready(step=step, release=release):
                world.folder.retain(world.store.kept_releases(plan.name, plan.keep))
                reach(Point.OLD_RELEASES_DELETED)
                if serving:
                    await serving.publish(step, release)
                if step >= plan.steps:
                    reach(Point.RUN_DONE)
                    return
                await sample_half(plan, world, answers, step, release)
            case Pending() as pending if serving:
                await train_half(plan, world, serving, pending)
            case Pending() as pending:
                keep_half(plan, world, pending)


async def open_serving(plan: Plan, world: World) -> Serving | None:
    """The proof of what is served needs a trainer to compare with; without one the base is all that is ever loaded."""
    if world.trainer:
        seed = world.store.archive(plan.name).seeds[0]
        probe = await make_probe(world.engine, plan.task, seed, plan.context_length)
        return await Serving.start(world.engine, world.trainer, world.observer, probe)
    await world.engine.publish(Release(0))
    return None


async def sample_half(plan: Plan, world: World, answers: Answers, step: int, release: Release) -> None:
    """Fill the grid, grow the archive, freeze the batch: Ready -> Pending."""
    world.observer.phase(step, release.number, "sample")
    archive = world.store.archive(plan.name)
    parents = select_parents(plan, archive)
    recorded = world.store.rollouts(plan.name, step)
    for rollout in recorded:
        world.observer.cell(rollout.coordinate, outcome(rollout.verdict, archive.best.reward))
    places = missing(step, plan.groups, plan.rollouts, {r.coordinate for r in recorded})
    clock, asks = SampleClock(), list[Ask]()
    if plan.kind == "external":
        await world.desk.fill(opening(plan, world, answers, step, release, set(places), archive.best.reward, clock))
    else:
        asks = [await make_ask(plan, world, parent, archive.best.reward) for parent in parents]
        reach(Point.PARENTS_SELECTED)
        async with anyio.create_task_group() as grid:  # its end is the barrier
            for place in places:
                grid.start_soon(one_rollout, plan, world, answers, release, place, asks[place.group], clock)
    reach(Point.GRID_FULL)
    rollouts = world.store.rollouts(plan.name, step)
    prompts = [ask.prompt_ids for ask in asks]
    close = partial(close_grid, plan, step, release, archive, parents, prompts, rollouts, world.folder)
    path, row = await anyio.to_thread.run_sync(close)  # parsing hundreds of programs must not hold the event loop
    world.store.begin(plan.name, step, archive, path, row | clock.row())
    reach(Point.STEP_BEGUN)


def select_parents(plan: Plan, archive: Archive) -> list[Node]:
    """One for each group.  A harness chooses what it asks by itself."""
    if plan.mode == "best-of-n" or plan.kind == "external":
        return archive.seeds[: plan.groups]
    return puct.select_parents(archive, plan.groups, plan.c)


def opening(
    plan: Plan,
    world: World,
    answers: Answers,
    step: int,
    release: Release,
    places: set[Coordinate],
    best: float,
    clock: SampleClock,
) -> Opening:
    """For a harness that samples, judges and reports in place of `one_rollout`."""
    return Opening(
        run=plan.name,
        step=step,
        release=release,
        context_length=plan.context_length,
        max_new_tokens=plan.budget.max_new_tokens,
        best=best,
        missing=places,
        engine=world.engine,
        answers=answers,
        observer=world.observer,
        gate=world.gate,
        clock=clock,
    )


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
    assert world.judge  # there is one where no harness judges
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
    parents: list[Node],
    prompts: list[list[int]],
    rollouts: list[Rollout],
    folder: RunFolder,
) -> tuple[Path | None, dict[str, float]]:
    """Grow the archive, freeze the batch; returns the batch's file and the grid's half of the metrics row."""
    grow(plan, archive, parents, rollouts)
    row = {
        **metrics.grid_row(step, plan.groups, plan.rollouts, [(r.sampled, r.program, r.verdict) for r in rollouts]),
        **metrics.archive_row(archive),
    }
    if not plan.trains:
        return None, row
    frozen = freeze(plan, step, release, prompts, rollouts)
    write_file(folder.batch(step), batch.encode(frozen))
    return folder.batch(step), {
        **row,
        "tttd/training_groups": plan.groups - row["tttd/constant_groups_removed"],
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
        artifact_sha256=verdict.artifact_sha256,
    )


def freeze(plan: Plan, step: int, release: Release, prompts: list[list[int]], rollouts: list[Rollout]) -> batch.Batch:
    """The trainable groups with their advantages (sections 2 and 3); `prompts` are the groups' own."""
    by_group = [[r for r in rollouts if r.coordinate.group == group] for group in range(plan.groups)]
    kept = trainable([[r.verdict.reward for r in group] for group in by_group])
    groups = [
        batch.Group(prompt_ids=list(prompt_ids), samples=samples)
        for index in kept
        for prompt_ids, samples in by_prompt(by_group[index], prompts).items()
    ]
    return batch.Batch(
        run=plan.name, step=step, release=release.number, rollouts_total=plan.groups * plan.rollouts, groups=groups
    )


def by_prompt(rollouts: list[Rollout], prompts: list[list[int]]) -> dict[tuple[int, ...], list[batch.Sample]]:
    """A group's samples under what each was asked: a harness may ask every rollout something else."""
    found: dict[tuple[int, ...], list[batch.Sample]] = {}
    for r, a in zip(rollouts, advantage.entropic([r.verdict.reward for r in rollouts]), strict=True):
        sample = batch.Sample(
            token_ids=r.sampled.token_ids, logprobs=r.sampled.logprobs, loss_mask=r.sampled.loss_mask, advantage=a
        )
        found.setdefault(tuple(r.prompt_ids or prompts[r.coordinate.group]), []).append(sample)
    return found


async def train_half(plan: Plan, world: World, serving: Serving, pending: Pending) -> None:
    """One optimizer step, publish, prove: Pending -> Ready(step + 1)."""
    step, release = pending.step, pending.release
    assert world.trainer and pending.batch  # a run that trains has both
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


def keep_half(plan: Plan, world: World, pending: Pending) -> None:
    """Nothing is trained: Pending -> Ready(step + 1) under the same release."""
    step, release = pending.step, pending.release
    world.observer.phase(step, release.number, "commit")
    row = pending.metrics | {"time/step": pending.metrics["time/sample"]}
    world.store.commit(plan.name, step, release, None, row)
    reach(Point.STEP_COMMITTED)
    world.observer.committed(step, row)
