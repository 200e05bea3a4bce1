"""The whole loop over fakes and the real store: crashes at each point, proofs, pause, what is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from tests.fakes import Crash, FakeEngine, FakeJudge, FakeObserver, FakeTrainer
from tttdd import step
from tttdd.adapters.store import SqliteStore
from tttdd.desk import Desk
from tttdd.domain import batch as batches
from tttdd.domain.archive import Archive
from tttdd.domain.prompt import TaskPrompt
from tttdd.folder import RunFolder
from tttdd.gate import Gate
from tttdd.ports import Pending, PublishFailed, Ready, Release
from tttdd.protocol import GridSize, PhaseName
from tttdd.run_ports import RunRecord
from tttdd.serving import make_probe
from tttdd.thinking import Budget
from tttdd.world import Plan, World

STARTER = "h = [⟦0.4, 0.1⟧]\n"
TASK = TaskPrompt(
    instruction="Make the sum large.",
    short_instruction="Make the sum large.",
    style="completion",
    objective_name="sum",
    starter=STARTER,
)
PLAN = Plan(
    name="r",
    mode="discover",
    kind="task",
    seed=7,
    steps=3,
    groups=2,
    rollouts=4,
    task=TASK,
    c=1.0,
    max_nodes=100,
    children_kept=2,
    count="rollout",
    budget=Budget(max_new_tokens=40),
    context_length=4096,
    keep=2,
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def open_store(state_dir: Path) -> SqliteStore:
    """A store with the run PLAN, planted."""
    store = SqliteStore(state_dir)
    grid = GridSize(PLAN.groups, PLAN.rollouts)
    store.open_run(RunRecord(name="r", task="t", seed=7, steps=3, grid=grid, identity={}, created=0.0))
    archive = Archive()
    archive.seed(PLAN.groups, program="h = [0.4, 0.1]\n", reward=0.5, objective=0.5)
    store.plant("r", archive, {})
    return store


def world(state_dir: Path, store: SqliteStore, **parts: Any) -> World:
    ports: dict[str, Any] = {
        "engine": FakeEngine(),
        "trainer": FakeTrainer(),
        "judge": FakeJudge(),
        "observer": FakeObserver(),
    }
    return World(
        store=store,
        desk=Desk(store, lambda: None),
        gate=Gate(),
        folder=RunFolder(state_dir / "runs" / "r"),
        **(ports | parts),
    )


async def run_until_crash(plan: Plan, place: World) -> None:
    with pytest.raises((ExceptionGroup, Crash)) as caught:
        await step.run_to_the_end(plan, place)
    assert caught.type is Crash or caught.group_contains(Crash)


def rewards(store: SqliteStore) -> list[float]:
    return [row.metrics["tttd/reward_mean"] for row in store.steps("r")]


@pytest.mark.anyio
async def test_every_step_is_committed_with_a_release_and_a_proof(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await step.run_to_the_end(PLAN, world(tmp_path, store))
    rows = store.steps("r")
    assert [row.phase for row in rows] == ["committed"] * 3
    assert [row.proof.release for row in rows if row.proof] == [1, 2, 3]
    assert {"time/sample", "time/train", "time/step", "train/kl_base", "tttd/valid_fraction"} <= rows[0].metrics.keys()
    best = store.best("r")
    assert best is not None and best.reward > 0.5


FROZEN = [msgspec.structs.replace(PLAN, mode=mode) for mode in ("search", "best-of-n")]


@pytest.mark.anyio
@pytest.mark.parametrize("plan", FROZEN, ids=lambda plan: plan.mode)
async def test_a_run_that_does_not_train_commits_its_steps_under_the_base_without_a_batch(
    tmp_path: Path, plan: Plan
) -> None:
    store, engine = open_store(tmp_path), FakeEngine()
    await step.run_to_the_end(plan, world(tmp_path, store, trainer=None, engine=engine))
    rows = store.steps("r")
    assert store.state("r") == Ready(3, Release(0)) and list(engine.served) == [0]
    assert [(row.phase, row.release, row.proof) for row in rows] == [("committed", 0, None)] * 3
    names = {name for row in rows for name in row.metrics}
    assert {"tttd/reward_mean", "archive/best_reward", "time/step"} <= names
    assert not [name for name in names if name.startswith(("train/", "tttd/training", "time/train", "time/p"))]
    assert not (tmp_path / "runs/r/batches").exists() and store.archive("r").best.reward > 0.5


@pytest.mark.anyio
@pytest.mark.parametrize("plan", FROZEN, ids=lambda plan: plan.mode)
async def test_a_search_goes_on_from_what_it_found_and_best_of_n_never_does(tmp_path: Path, plan: Plan) -> None:
    store = open_store(tmp_path)
    await step.run_to_the_end(plan, world(tmp_path, store, trainer=None))
    found = [node.parent for node in store.archive("r") if node.step > 0]
    assert found and all(parent in (0, 1) for parent in found) == (plan.mode == "best-of-n")


@pytest.mark.anyio
async def test_a_run_that_does_not_train_goes_on_after_a_crash_as_it_commits(tmp_path: Path) -> None:
    store, plan = open_store(tmp_path), FROZEN[0]
    await run_until_crash(plan, world(tmp_path, store, trainer=None, observer=FakeObserver(crash_at="commit")))
    held = store.state("r")
    assert isinstance(held, Pending) and held.batch is None
    engine = FakeEngine()
    await step.run_to_the_end(plan, world(tmp_path, store, trainer=None, engine=engine))
    assert len(engine.sampled) == (2 - held.step) * PLAN.groups * PLAN.rollouts
    assert store.state("r") == Ready(3, Release(0))


@pytest.mark.anyio
async def test_what_the_programs_of_the_archive_returned_is_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await step.run_to_the_end(PLAN, world(tmp_path, store))
    for node in store.nodes("r", 100):
        kept = store.artifact("r", node.artifact_sha256)
        assert node.seed or (kept is not None and sum(json.loads(kept)) == node.reward)


@pytest.mark.anyio
@pytest.mark.parametrize("phase", ["sample", "train", "publish", "prove", "commit"])
async def test_a_crash_as_a_phase_begins_changes_nothing_of_the_run(tmp_path: Path, phase: PhaseName) -> None:
    whole = open_store(tmp_path / "whole")
    await step.run_to_the_end(PLAN, world(tmp_path / "whole", whole))
    store = open_store(tmp_path / "broken")
    await run_until_crash(PLAN, world(tmp_path / "broken", store, observer=FakeObserver(crash_at=phase)))
    store.close()
    again = SqliteStore(tmp_path / "broken")
    await step.run_to_the_end(PLAN, world(tmp_path / "broken", again))
    assert rewards(again) == rewards(whole)
    assert [node.program for node in again.archive("r")] == [node.program for node in whole.archive("r")]


@pytest.mark.anyio
async def test_a_crash_in_sampling_repeats_no_judged_rollout(tmp_path: Path) -> None:
    store, judge = open_store(tmp_path), FakeJudge()
    await run_until_crash(PLAN, world(tmp_path, store, engine=FakeEngine(crash_after=5), judge=judge))
    recorded = len(store.rollouts("r", 0))
    assert recorded > 0
    engine = FakeEngine()
    await step.run_to_the_end(
        Plan(**{**{f: getattr(PLAN, f) for f in PLAN.__struct_fields__}, "steps": 1}),
        world(tmp_path, store, engine=engine, judge=judge),
    )
    assert len(engine.sampled) == PLAN.groups * PLAN.rollouts - recorded


@pytest.mark.anyio
async def test_a_crash_after_training_repeats_the_training_but_no_rollout(tmp_path: Path) -> None:
    store, first = open_store(tmp_path), FakeTrainer(crash="after")
    await run_until_crash(PLAN, world(tmp_path, store, trainer=first))
    assert first.trained == [(0, "r")]
    engine, second = FakeEngine(), FakeTrainer()
    await step.run_to_the_end(PLAN, world(tmp_path, store, engine=engine, trainer=second))
    assert second.trained == [(1, "r"), (2, "r")]  # release 1 was there already
    assert len(engine.sampled) == 2 * PLAN.groups * PLAN.rollouts


@pytest.mark.anyio
async def test_an_engine_that_keeps_an_old_release_fails_the_publish_before_a_rollout_is_sampled(
    tmp_path: Path,
) -> None:
    store, engine = open_store(tmp_path), FakeEngine(stuck=True)
    with pytest.raises(PublishFailed, match="release 1 is not what the engine serves, 2 times"):
        await step.run_to_the_end(PLAN, world(tmp_path, store, engine=engine))
    assert len(engine.sampled) == PLAN.groups * PLAN.rollouts
    assert store.run("r").step == 0


@pytest.mark.anyio
async def test_a_frozen_trainer_is_no_publish_failure(tmp_path: Path) -> None:
    store, observer = open_store(tmp_path), FakeObserver()
    await step.run_to_the_end(PLAN, world(tmp_path, store, trainer=FakeTrainer(frozen=True), observer=observer))
    assert all(proof.trainer_shift == 0 for proof in observer.proofs)


@pytest.mark.anyio
async def test_a_probe_is_the_end_of_a_prompt_and_its_answer_and_fits_the_context(tmp_path: Path) -> None:
    place = world(tmp_path, open_store(tmp_path))
    seed = place.store.archive("r").seeds[0]
    whole, cut = [await make_probe(place.engine, PLAN.task, seed, length) for length in (PLAN.context_length, 50)]
    assert (whole.prompt_ids + whole.completion_ids)[-42:] == cut.prompt_ids + cut.completion_ids
    assert len(whole.completion_ids) > 42 and len(cut.prompt_ids) == 1


@pytest.mark.anyio
async def test_a_closed_gate_holds_the_run_and_an_open_one_lets_it_end(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    place = world(tmp_path, store)
    place.gate.close()
    with anyio.move_on_after(0.1):
        await step.run_to_the_end(PLAN, place)
    assert store.rollouts("r", 0) == []
    place.gate.open()
    await step.run_to_the_end(PLAN, place)
    assert store.run("r").step == 3


@pytest.mark.anyio
async def test_the_batch_holds_the_recorded_rollouts_and_only_groups_with_signal(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await run_until_crash(PLAN, world(tmp_path, store, trainer=FakeTrainer(crash="before")))
    frozen = batches.read(RunFolder(tmp_path / "runs" / "r").batch(0))
    recorded = {bytes(r.sampled.token_ids) for r in store.rollouts("r", 0)}
    assert {bytes(sample.token_ids) for group in frozen.groups for sample in group.samples} <= recorded
    assert all(len({sample.advantage for sample in group.samples}) > 1 for group in frozen.groups)
    assert (frozen.rollouts_total, frozen.release) == (8, 0)


@pytest.mark.anyio
async def test_old_releases_and_batches_are_deleted_but_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await step.run_to_the_end(PLAN, world(tmp_path, store))
    kept = store.kept_releases("r", PLAN.keep) - {0}
    assert {int(path.name) for path in (tmp_path / "runs" / "r" / "releases").iterdir()} == kept
    assert {2, 3} <= kept
    assert isinstance(store.state("r"), Ready)


@pytest.mark.anyio
async def test_fifty_steps_take_no_more_files_than_five_and_a_row_a_rollout(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    folder, most = tmp_path / "runs/r", 0

    class Counting(FakeObserver):
        def committed(self, step: int, metrics: dict[str, float]) -> None:
            nonlocal most
            most = max(most, len([*folder.glob("releases/*"), *folder.glob("batches/*")]))

    plan = msgspec.structs.replace(PLAN, steps=50, max_nodes=12)
    await step.run_to_the_end(plan, world(tmp_path, store, observer=Counting()))
    assert 2 * PLAN.keep < most <= 2 * (PLAN.keep + 2), "the kept, the best step's and the newest"
    ((rollouts, samples, living),) = store._database.all(
        "SELECT (SELECT count(*) FROM rollouts), (SELECT count(*) FROM samples),"
        " (SELECT count(*) FROM nodes WHERE NOT pruned)"
    )
    assert (rollouts, samples, living) == (50 * 8, 0, 12)


def test_a_coordinate_always_gets_the_same_seed_and_no_two_share_one() -> None:
    places = [step.Coordinate(s, g, r) for s in range(3) for g in range(8) for r in range(64)]
    seeds = [step.rollout_seed(0, place) for place in places]
    assert seeds == [step.rollout_seed(0, place) for place in places]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
