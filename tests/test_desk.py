"""An external run over fakes and the real store: a harness samples and reports, and the run goes on as ever."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from tests.fakes import FakeCatalog, FakeEngine, FakeJudge, FakeRoom, FakeTrainer, FakeWorkshop
from tttdd import desk as desks
from tttdd.adapters.store import SqliteStore
from tttdd.board import Board
from tttdd.config import Config, Engine, Grid, Model, Prompting, Sampling
from tttdd.desk import Desk
from tttdd.domain import batch
from tttdd.domain.batch import TrainReport
from tttdd.errors import CallerError, Conflict, NotYet, Refused
from tttdd.harness_protocol import GridInfo, Reported
from tttdd.harness_protocol import Report as Told
from tttdd.opening import Ask
from tttdd.ports import OnText, Receipt, Release, Sampled, Turn, WorkerDied, WorkerFailed
from tttdd.protocol import GridSize, JudgesInfo, RunInfo, Submit
from tttdd.runner import Runner

CONFIG = Config(
    model=Model(path="m", dtype="float32"),
    engine=Engine(backend="torch", context_length=1024),
    grid=Grid(groups=2, rollouts=3, steps=2),
    prompt=Prompting(style="completion"),
    sampling=Sampling(max_new_tokens=500),
)
TURNS = [Turn("user", "Say numbers.")]

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class HeldEngine(FakeEngine):
    """Samples when it is let to; `died` is raised instead, once."""

    def __init__(self) -> None:
        super().__init__()
        self.let = anyio.Event()
        self.let.set()
        self.under_way = self.given_up = 0
        self.died: WorkerDied | None = None
        self.refuses: WorkerFailed | None = None
        self.silent = False
        """Its template makes nothing of what it is told."""

    async def encode_chat(self, messages: list[Turn], thinking: bool | None) -> list[int]:
        return [] if self.silent else await super().encode_chat(messages, thinking)

    async def sample(
        self,
        prompt_ids: list[int],
        *,
        release: int,
        seed: int,
        stop: tuple[str, ...],
        max_new_tokens: int,
        on_text: OnText | None = None,
    ) -> Sampled:
        self.under_way += 1
        try:
            await self.let.wait()
            if self.died:
                died, self.died = self.died, None
                raise died
            if self.refuses:
                refuses, self.refuses = self.refuses, None
                raise refuses
            return await super().sample(
                prompt_ids, release=release, seed=seed, stop=stop, max_new_tokens=max_new_tokens, on_text=on_text
            )
        except anyio.get_cancelled_exc_class():
            self.given_up += 1
            raise
        finally:
            self.under_way -= 1


class HeldTrainer(FakeTrainer):
    """Waits for `let` before it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.let, self.held = anyio.Event(), 0
        self.let.set()

    async def train(self, release: Release, batch: Path, target: Release) -> TrainReport:
        self.held += 1
        await self.let.wait()
        return await super().train(release, batch, target)


class HeldWorkshop(FakeWorkshop):
    """Its engine and its trainer outlive a restart."""

    trainer: HeldTrainer

    def __init__(self, store: SqliteStore, state_dir: Path) -> None:
        super().__init__(store, state_dir)
        self.engine, self.trainer = HeldEngine(), HeldTrainer()
        self.make_engine = lambda: self.engine


class Place:
    """A runner, its desk, and the words of a harness."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir, self.store = state_dir, SqliteStore(state_dir)
        self.workshop = HeldWorkshop(self.store, state_dir)
        judges = JudgesInfo(level="process", parallel=1)
        self.board = Board("c", str(state_dir), lambda: self.runner.runs(), lambda: judges)
        self.desk = Desk(self.store, self.board.touch)
        catalog = FakeCatalog(FakeJudge())
        self.runner = Runner(CONFIG, self.store, self.board, catalog, self.workshop, FakeRoom(), self.desk)
        self.seeds = itertools.count()

    def submit(self, name: str = "x", **more: Any) -> RunInfo:
        return self.runner.submit(Submit(task="digits", name=name, kind="external", **more))

    async def ask(self, run: str = "x", on_text: Callable[[str], None] | None = None, **more: Any) -> Receipt:
        parts: dict[str, Any] = {"turns": TURNS, "thinking": None, "stop": (), "max_new_tokens": None}
        ask = Ask(**{**parts, "seed": next(self.seeds), **more})
        return await self.desk.complete(self.runner.run(run), ask, on_text)

    def report(
        self, receipt: Receipt | str, group: int, rollout: int, score: float = 1.0, *, run: str = "x", **more: Any
    ) -> Reported:
        step = more.pop("step", self.runner.run(run).step)
        size = {"groups_per_step": 2, "rollouts_per_group": 3} | more.pop("size", {})
        metadata = {"step": step, "group": group, "rollout": rollout, **size, **more.pop("metadata", {})}
        id = receipt if isinstance(receipt, str) else receipt.id
        content = msgspec.json.encode({"score": score, "references": [id], "metadata": metadata, **more})
        return self.desk.report(self.runner.run(run), msgspec.json.decode(content, type=Told), content)

    def grid(self, run: str = "x") -> GridInfo:
        return self.desk.grid(self.runner.run(run))

    def lacks(self) -> list[tuple[int, int]]:
        return [(place.group, place.rollout) for place in self.grid().missing]

    async def fill(self, score: Callable[[int, int], float] = lambda group, rollout: group + 0.5 * rollout) -> None:
        """What the grid in hand lacks, and until the run has taken it."""
        step = self.runner.run("x").step
        for group, rollout in self.lacks():
            self.report(await self.ask(), group, rollout, score(group, rollout))
        await until(lambda: self.runner.run("x").step > step or self.runner.run("x").state == "failed")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(desks, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr("tttdd.runner.BACKOFF_SECONDS", 0.01)
    return Place(tmp_path)


@asynccontextmanager
async def working(place: Place) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(place.runner.work)
        yield
        tasks.cancel_scope.cancel()


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not true():
            await anyio.sleep(0.001)


async def test_a_harness_fills_grid_after_grid_and_the_run_trains_publishes_and_commits_each(place: Place) -> None:
    place.submit()
    async with working(place):
        await place.fill()
        assert place.lacks() == [(group, rollout) for group in range(2) for rollout in range(3)]
        await place.fill()
        await until(lambda: place.runner.run("x").state == "finished")
    rows = place.runner.steps("x")
    assert [(row.phase, row.release, row.proof and row.proof.release) for row in rows] == [
        ("committed", 0, 1),
        ("committed", 1, 2),
    ]
    assert [row.metrics["tttd/reward_max"] for row in rows] == [2.0, 2.0]
    assert place.workshop.trainer.trained == [(0, "x"), (1, "x")]
    assert place.lacks() == []


async def test_what_the_trainer_gets_is_what_was_asked_sampled_and_reported(place: Place) -> None:
    place.submit(steps=1)
    prompts: dict[tuple[int, ...], list[int]] = {}
    async with working(place):
        for group, rollout in [(group, rollout) for group in range(2) for rollout in range(3)]:
            turns = [Turn("user", f"Question {group} {rollout // 2}")]
            receipt = await place.ask(turns=turns)
            prompts.setdefault(tuple(receipt.prompt_ids), []).append(len(prompts))
            place.report(receipt, group, rollout, 5.0 if group == 0 else rollout)
        await until(lambda: place.runner.run("x").state == "finished")
    frozen = batch.read(next((place.state_dir / "runs/x/batches").iterdir()))
    assert [len(group.samples) for group in frozen.groups] == [2, 1], "a group whose rewards are equal teaches nothing"
    assert {tuple(group.prompt_ids) for group in frozen.groups} == set(list(prompts)[2:])
    assert frozen.rollouts_total == 6
    advantages = [sample.advantage for group in frozen.groups for sample in group.samples]
    assert advantages == sorted(advantages) and advantages[0] < 0 < advantages[2]
    (row,) = place.runner.steps("x")
    assert (row.metrics["tttd/training_groups"], row.metrics["tttd/training_rollouts"]) == (1, 3)


async def test_the_best_answer_is_kept_with_what_the_harness_said_of_it_also_where_all_scores_are_negative(
    place: Place,
) -> None:
    place.submit(steps=1)
    assert place.runner.run("x").best is None
    async with working(place):
        for group, rollout in [(group, rollout) for group in range(2) for rollout in range(3)]:
            receipt = await place.ask()
            best = receipt.sampled.text if (group, rollout) == (1, 1) else ""
            place.report(receipt, group, rollout, -5.0 + 2 * bool(best), metadata={"why": "short", "parts": [1, 2]})
            if best:
                answer = best
        await until(lambda: place.runner.run("x").state == "finished")
    found = place.runner.best("x")
    assert (found.program, found.reward, found.certificate) == (answer, -3.0, {"parts": "[1,2]", "why": "short"})
    assert place.runner.steps("x")[0].metrics["archive/best_reward"] == -3.0


async def test_a_receipt_is_stored_before_it_is_given(place: Place) -> None:
    place.submit()
    async with working(place):
        given = await place.ask(stop=("]",), max_new_tokens=40)
        with SqliteStore(place.state_dir)._database._connection as other:
            rows = other.execute("SELECT id, release, length(token_ids), text FROM receipts").fetchall()
    text = given.sampled.text
    assert [tuple(row) for row in rows] == [(given.id, 0, 4 * len(given.sampled.token_ids), text)]
    assert len(given.sampled.token_ids) == len(text) + 1, "the stop text was sampled, and is no part of the content"
    assert place.store.receipt(given.id) == given


async def test_a_run_without_training_is_filled_the_same_way_and_stays_on_the_base(place: Place) -> None:
    place.submit(mode="search")
    async with working(place):
        await place.fill()
        await place.fill()
        await until(lambda: place.runner.run("x").state == "finished")
    assert [(row.release, row.proof) for row in place.runner.steps("x")] == [(0, None), (0, None)]


async def test_a_completion_asked_for_before_there_is_a_release_waits_for_it_and_not_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit()
    monkeypatch.setattr(desks, "PATIENCE_SECONDS", 0.05)
    with pytest.raises(NotYet, match="'x' is queued and has served no release"):
        await place.ask()
    monkeypatch.setattr(desks, "PATIENCE_SECONDS", 5.0)
    found: list[int] = []

    async def ask() -> None:
        found.append((await place.ask()).sampled.release)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.sleep(0.05)
        async with working(place):
            await until(lambda: found == [0])
            trainer = place.workshop.trainer
            trainer.let = anyio.Event()
            tasks.start_soon(place.fill)
            await until(lambda: trainer.held == 1)
            tasks.start_soon(ask)
            await anyio.sleep(0.05)
            assert found == [0], "the next release is being trained"
            trainer.let.set()
            await until(lambda: found == [0, 1])


async def test_a_completion_is_not_sampled_while_the_run_is_paused(place: Place) -> None:
    place.submit()
    async with working(place), anyio.create_task_group() as tasks:
        await place.ask()
        place.runner.pause("x", release_gpus=False)
        tasks.start_soon(place.ask)
        await anyio.sleep(0.05)
        assert len(place.workshop.engine.sampled) == 1
        place.runner.resume("x")
        await until(lambda: len(place.workshop.engine.sampled) == 2)


async def test_a_report_is_taken_while_the_run_is_paused_and_its_workers_are_gone(place: Place) -> None:
    place.submit()
    async with working(place):
        receipts = [await place.ask() for _ in range(6)]
        place.runner.pause("x", release_gpus=True)
        await until(lambda: not place.workshop.live)
        for receipt, (group, rollout) in zip(receipts, place.lacks(), strict=True):
            assert place.report(receipt, group, rollout, rollout).accepted
        assert place.lacks() == [] and place.runner.run("x").step == 0
        place.runner.resume("x")
        await until(lambda: place.runner.run("x").step == 1)


async def test_another_daemon_goes_on_with_the_receipts_and_the_reports_of_the_one_before(place: Place) -> None:
    place.submit()
    async with working(place):
        receipts = [await place.ask() for _ in range(6)]
        for receipt in receipts[:2]:
            place.report(receipt, 0, receipts.index(receipt), 1.0)
    again = Place(place.state_dir)
    async with working(again):
        assert again.lacks() == [(0, 2), (1, 0), (1, 1), (1, 2)]
        for receipt, (group, rollout) in zip(receipts[2:], again.lacks(), strict=True):
            again.report(receipt, group, rollout, rollout)
        await until(lambda: again.runner.run("x").step == 1)


async def test_a_report_of_an_earlier_release_is_refused_and_shown_until_its_coordinate_is_sampled_again(
    place: Place,
) -> None:
    place.submit(steps=3)
    async with working(place):
        spare = await place.ask()
        await place.fill()
        fresh = await place.ask()
        with pytest.raises(Conflict, match="sampled under release 0, but this grid holds release 1") as refused:
            place.report(spare, 1, 2)
        assert refused.value.field == "references"
        (shown,) = place.grid().refused
        assert (shown.group, shown.rollout, shown.releases) == (1, 2, [1, 0]) and (1, 2) in place.lacks()
        reason = place.runner.run("x").reason
        assert "group 1, rollout 2: a report of release 0 was refused in a grid of release 1" in reason
        place.report(fresh, 1, 2)
        assert (place.grid().refused, place.runner.run("x").reason) == ([], "")
        await place.fill()
        rows = place.store._database.all("SELECT DISTINCT step, release FROM rollouts ORDER BY step")
        assert [tuple(row) for row in rows] == [(0, 0), (1, 1)]


async def test_the_first_report_at_a_coordinate_wins_and_the_other_receipt_can_be_reported_elsewhere(
    place: Place,
) -> None:
    place.submit()
    async with working(place):
        first, second = await place.ask(), await place.ask()
        assert place.report(first, 0, 0, 1.0).accepted
        assert not place.report(second, 0, 0, 9.0).accepted
        assert place.report(second, 0, 1, 2.0).accepted
        with pytest.raises(Conflict, match="the receipt is used, at step 0, group 0, rollout 0"):
            place.report(first, 0, 2)
    rewards = {(r.coordinate.group, r.coordinate.rollout): r.verdict.reward for r in place.store.rollouts("x", 0)}
    assert rewards == {(0, 0): 1.0, (0, 1): 2.0}


async def test_the_same_report_again_gets_the_first_answer_also_when_the_step_is_over(place: Place) -> None:
    place.submit()
    async with working(place):
        receipt, other = await place.ask(), await place.ask()
        first = place.report(receipt, 0, 0, 1.0, report_id="r-1")
        late = place.report(other, 0, 0, 1.0, report_id="r-2")
        assert (first.accepted, late.accepted) == (True, False)
        assert place.report(receipt, 0, 0, 1.0, report_id="r-1") == first
        await place.fill()
        assert place.runner.run("x").step == 1
        assert place.report(receipt, 0, 0, 1.0, report_id="r-1", step=0) == first
        assert place.report(other, 0, 0, 1.0, report_id="r-2", step=0) == late
        with pytest.raises(Conflict, match="'r-1' was used for another report") as refused:
            place.report(receipt, 0, 0, 2.0, report_id="r-1", step=0)
        assert refused.value.field == "report_id"
    place.runner.cancel("x")
    assert place.report(receipt, 0, 0, 1.0, report_id="r-1", step=0) == first


REFUSED: list[tuple[dict[str, Any], type[CallerError], str, str]] = [
    ({"group": 2}, Refused, "metadata.group", "metadata.group is 2; there are 2, counted from 0"),
    ({"rollout": 3}, Refused, "metadata.rollout", "metadata.rollout is 3; there are 3, counted from 0"),
    ({"size": {"groups_per_step": 3}}, Refused, "metadata.groups_per_step", "is 3, but the run's grid has 2"),
    ({"size": {"rollouts_per_group": 8}}, Refused, "metadata.rollouts_per_group", "is 8, but the run's grid has 3"),
    ({"step": 1}, Conflict, "metadata.step", "step 1 is not begun: the step in hand is 0"),
    ({"receipt": "receipt-0"}, Refused, "references", "no such receipt was given"),
]


@pytest.mark.parametrize(("wrong", "kind", "field", "said"), REFUSED)
async def test_a_report_that_breaks_a_rule_is_refused_by_its_field_and_changes_nothing(
    place: Place, wrong: dict[str, Any], kind: type[CallerError], field: str, said: str
) -> None:
    place.submit()
    async with working(place):
        receipt = await place.ask()
        right: dict[str, Any] = {"receipt": receipt, "group": 0, "rollout": 0}
        with pytest.raises(kind, match=said) as refused:
            place.report(**{**right, **wrong})
        assert refused.value.field == field
        assert len(place.lacks()) == 6 and place.report(**right).accepted


async def test_a_receipt_of_another_run_is_refused(place: Place) -> None:
    place.submit("x", steps=1)
    place.submit("y", steps=1)
    async with working(place):
        spare = await place.ask()
        await place.fill()
        await place.ask("y")
        with pytest.raises(Refused, match="the receipt is of run 'x', not 'y'"):
            place.report(spare, 0, 0, run="y")
        with pytest.raises(Conflict, match="run 'x' is finished"):
            place.report(spare, 0, 0)
        with pytest.raises(Conflict, match="run 'x' is finished"):
            await place.ask()


async def test_a_completion_under_way_when_the_grid_is_full_is_given_up_and_may_be_asked_for_again(
    place: Place,
) -> None:
    place.submit()
    async with working(place), anyio.create_task_group() as tasks:
        receipts = [await place.ask() for _ in range(6)]
        engine, told = place.workshop.engine, list[str]()
        engine.let = anyio.Event()

        async def too_late() -> None:
            with pytest.raises(NotYet, match="the step ended"):
                await place.ask()
            told.append("not yet")

        tasks.start_soon(too_late)
        await until(lambda: engine.under_way == 1)
        for receipt, (group, rollout) in zip(receipts, place.lacks(), strict=True):
            place.report(receipt, group, rollout, rollout)
        await until(lambda: told == ["not yet"])
        assert engine.given_up == 1
        engine.let.set()
        assert (await place.ask()).sampled.release == 1


async def test_a_harness_that_hangs_up_frees_the_place_of_its_completion(place: Place) -> None:
    place.submit()
    async with working(place):
        await place.ask()
        engine = place.workshop.engine
        engine.let = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(place.ask)
            await until(lambda: engine.under_way == 1)
            tasks.cancel_scope.cancel()
        await until(lambda: engine.under_way == 0)
        engine.let.set()
        assert await place.ask(), "the run goes on"


async def test_an_engine_that_dies_under_a_completion_is_restarted_and_the_grid_keeps_its_reports(
    place: Place,
) -> None:
    place.submit()
    async with working(place):
        place.report(await place.ask(), 0, 0)
        place.workshop.engine.died = WorkerDied("the engine ended: last words")
        with pytest.raises(NotYet, match="or its engine did"):
            await place.ask()
        assert len(place.lacks()) == 5
        await place.fill()
        assert place.workshop.opened == ["x", "x"]


async def test_what_cannot_be_sampled_is_refused_and_no_fault_of_the_run(place: Place) -> None:
    place.submit()
    async with working(place):
        asks: list[tuple[dict[str, Any], str, str]] = [
            ({"turns": []}, "messages", "the model's chat template refuses the conversation"),
            ({"turns": [Turn("user", "x" * 2000)]}, "messages", "and the context 1024 for prompt and answer"),
            ({"turns": [Turn("user", "x" * 700)], "max_new_tokens": 400}, "max_tokens", "the context has 1024"),
            ({"max_new_tokens": 100_000}, "max_tokens", "sampling.max_new_tokens is 500"),
        ]
        for ask, field, said in asks:
            with pytest.raises(Refused, match=said) as refused:
                await place.ask(**ask)
            assert refused.value.field == field
        assert place.workshop.engine.sampled == []
        assert await place.ask(seed=1)
        place.workshop.engine.reproducible = False
        with pytest.raises(Refused, match="knows no seeds"):
            await place.ask(seed=1)
        assert await place.ask(seed=None)


async def test_a_template_that_makes_nothing_of_a_conversation_fails_no_run(place: Place) -> None:
    place.submit()
    async with working(place):
        place.workshop.engine.silent = True
        with pytest.raises(Refused, match="makes no token") as refused:
            await place.ask()
        assert refused.value.field == "messages"
        place.workshop.engine.silent = False
        assert await place.ask() and place.workshop.opened == ["x"]


async def test_an_engine_that_fails_under_a_completion_fails_the_run_with_its_words_and_keeps_the_receipts(
    place: Place,
) -> None:
    """What it serves could be wrong: that is not to be taken for the harness's mistake, and asked for again."""
    place.submit()
    async with working(place):
        given = await place.ask()
        place.workshop.engine.refuses = WorkerFailed("SGLang left out the log-probs of some tokens")
        with pytest.raises(NotYet):
            await place.ask()
        await until(lambda: place.runner.run("x").state == "failed")
        assert "left out the log-probs" in place.runner.run("x").reason
        with pytest.raises(Conflict, match="is failed: SGLang left out"):
            await place.ask()
        place.runner.resume("x")
        assert place.report(given, 0, 0).accepted and await place.ask()


async def test_what_is_said_of_another_run_is_no_word_of_the_harness_of_the_one_in_hand(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "QUIET_SECONDS", 0.1)
    place.submit("x")
    place.submit("y")
    async with working(place):
        await place.ask()
        with anyio.fail_after(3):
            while place.runner.run("x").state == "running":
                with pytest.raises(Refused):
                    place.report("receipt-0", 0, 0, run="y")
                await anyio.sleep(0.02)
        assert place.runner.run("x").state == "waiting"


ODD = {
    "a number beyond floats": "1e999",
    "5000 digits": "9" * 5000,
}


@pytest.mark.parametrize("name", ODD)
async def test_metadata_that_cannot_be_kept_is_refused_by_its_field(place: Place, name: str) -> None:
    place.submit()
    async with working(place):
        receipt = await place.ask()
        size = '"step":0,"group":0,"rollout":0,"groups_per_step":2,"rollouts_per_group":3'
        content = f'{{"score":1,"references":["{receipt.id}"],"metadata":{{{size},"x":{ODD[name]}}}}}'.encode()
        told = msgspec.json.decode(content, type=Told)
        with pytest.raises(Refused, match="metadata: cannot be kept") as refused:
            place.desk.report(place.runner.run("x"), told, content)
        assert refused.value.field == "metadata" and place.report(receipt, 0, 0).accepted


async def test_of_very_many_words_of_a_harness_only_some_are_shown_and_all_are_kept(place: Place) -> None:
    place.submit(steps=1)
    more = {f"k{number:04d}": number for number in range(3000)} | {"x" * 1000: 1}
    async with working(place):
        for group, rollout in [(group, rollout) for group in range(2) for rollout in range(3)]:
            place.report(await place.ask(), group, rollout, rollout, metadata=more)
        await until(lambda: place.runner.run("x").state == "finished")
    shown = place.runner.best("x").certificate
    assert len(shown) == 64 and "k0000" in shown
    ((content,), *_) = place.store._database.all("SELECT content FROM reports")
    assert len(msgspec.json.decode(content)["metadata"]) == 5 + len(more)


async def test_a_run_whose_harness_is_silent_is_waiting_and_says_for_what(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "QUIET_SECONDS", 0.05)
    place.submit()
    async with working(place):
        place.report(await place.ask(), 0, 1)
        assert place.runner.run("x").state == "running"
        seen = await place.board.changed(0)
        while place.runner.run("x").state == "running":
            seen = await place.board.changed(seen)
        run = place.runner.run("x")
        assert (run.state, place.board.snapshot().runs[0].state) == ("waiting", "waiting")
        assert run.reason == ("its harness is silent: 5 of 6 rollouts of step 1 are missing (0/0, 0/2, 1/0, 1/1, 1/2)")
        await place.ask()
        assert place.runner.run("x").state == "running"
        place.runner.pause("x", release_gpus=False)
        assert place.runner.run("x").state == "paused"
        place.runner.cancel("x")
    assert place.runner.run("x").state == "cancelled"


async def test_the_grid_on_the_board_shows_what_was_reported(place: Place) -> None:
    place.submit()
    async with working(place):
        place.report(await place.ask(), 0, 1, 3.0)
        place.report(await place.ask(), 1, 0, -1.0)
        current = place.board.snapshot().current
        assert current and current.cells == [["waiting", "best", "waiting"], ["valid", "waiting", "waiting"]]


async def test_text_is_told_as_it_is_sampled_and_never_more_than_the_answer(place: Place) -> None:
    place.submit()
    async with working(place):
        told: list[str] = []
        receipt = await place.ask(on_text=told.append, stop=("]",))
    assert len(told) > 3 and "".join(told) == receipt.sampled.text


async def test_what_no_harness_can_do_is_refused_when_it_is_submitted_or_asked_for(place: Place) -> None:
    for wrong, field in (
        (Submit(task="../up", kind="external"), "task"),
        (Submit(task="a\n", kind="external"), "task"),
        (Submit(task="a", kind="external", mode="best-of-n"), "mode"),
        (Submit(task="a", kind="external", grid=GridSize(2, 2)), "grid.rollouts"),
    ):
        with pytest.raises(Refused) as refused:
            place.runner.submit(wrong)
        assert refused.value.field == field
    place.submit()
    with pytest.raises(Conflict, match="its harness has judged it"):
        await place.runner.verify("x", None)
    place.runner.submit(Submit(task="t", name="own"))
    with pytest.raises(Conflict, match="run 'own' is not external") as refused:
        await place.ask("own")
    assert refused.value.hint == "tttctl submit NAME --external"
    assert [info.name for info in place.runner.tasks()] == ["t"], "what a harness judges is no task of ours"


async def test_an_external_run_goes_on_from_another_and_not_from_one_of_a_task(place: Place) -> None:
    place.submit(steps=1)
    place.runner.submit(Submit(task="t", name="own"))
    async with working(place):
        await place.fill()
        await until(lambda: place.runner.run("own").state == "finished")
        place.submit("more", steps=1, resume_from="x")
        with pytest.raises(Conflict):
            place.submit("other", resume_from="own")
        assert (await place.ask("more")).sampled.release == 1
        assert place.grid("more").step == 1
