"""The queue and the run in hand over fakes and the real store: order, pause, resume, cancel, restarts, reasons."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.fakes import FakeCatalog, FakeJudge, FakeWorkshop
from tttdd import runner as runners
from tttdd.adapters.store import SqliteStore
from tttdd.board import Board
from tttdd.config import Config, Engine, Grid, Model, Prompting
from tttdd.errors import CallerError, Conflict, NotFound, Refused
from tttdd.ports import PublishFailed, WorkerDied, WorkerFailed
from tttdd.protocol import GridSize, JudgesInfo, RunState, Submit
from tttdd.runner import Runner

CONFIG = Config(
    model=Model(path="m", dtype="float32"),
    engine=Engine(backend="torch"),
    grid=Grid(groups=2, rollouts=4, steps=2),
    prompt=Prompting(style="completion"),
)
DIED = WorkerDied("the trainer ended: last words")

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Place:
    """A runner at its place of work; `again` is the next daemon on the same state."""

    def __init__(self, state_dir: Path) -> None:
        self.store = SqliteStore(state_dir)
        self.catalog = FakeCatalog(FakeJudge())
        self.workshop = FakeWorkshop(self.store, state_dir)
        judges = JudgesInfo(level="process", parallel=1)
        self.board = Board("c", str(state_dir), lambda: self.runner.runs(), lambda: judges)
        self.runner = Runner(CONFIG, self.store, self.board, self.catalog, self.workshop)

    def submit(self, *names: str) -> None:
        for name in names:
            self.runner.submit(Submit(task="t", name=name))

    def state(self, name: str = "a") -> RunState:
        return self.store.run(name).state

    def reason(self, name: str = "a") -> str:
        return self.store.run(name).reason

    async def ends(self, name: str = "a") -> RunState:
        await until(lambda: self.state(name) not in ("queued", "running"))
        return self.state(name)

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.runner.work)
            yield
            tasks.cancel_scope.cancel()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(runners, "BACKOFF_SECONDS", 0.0)
    return Place(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.002)


async def settle() -> None:
    """Long enough for anything that is not held to have happened."""
    await anyio.sleep(0.1)


async def test_runs_are_taken_one_at_a_time_in_the_order_of_their_submission(place: Place) -> None:
    place.submit("b", "a", "c")
    async with place.at_work():
        assert await place.ends("c") == "finished"
    assert place.workshop.opened == ["b", "a", "c"]
    assert [(run.state, run.step, run.release) for run in place.runner.runs()] == [("finished", 2, 2)] * 3


async def test_a_new_daemon_goes_on_with_what_was_running_before_older_runs(place: Place) -> None:
    place.submit("a", "b")
    place.store.set_state("b", "running")
    async with place.at_work():
        await place.ends("a")
    assert place.workshop.opened == ["b", "a"]


async def test_a_stopped_daemon_leaves_its_run_to_the_next(place: Place, tmp_path: Path) -> None:
    place.submit("a")
    place.workshop.start.close()
    async with place.at_work():
        await until(lambda: bool(place.workshop.live))
    assert (place.state(), place.workshop.live) == ("running", set())
    place.store.close()
    again = Place(tmp_path)
    async with again.at_work():
        assert await again.ends() == "finished"


async def test_a_paused_run_in_the_queue_is_passed_over_until_it_is_resumed(place: Place) -> None:
    place.submit("a", "b")
    place.runner.pause("a", release_gpus=False)
    async with place.at_work():
        assert await place.ends("b") == "finished"
        assert (place.state(), place.reason()) == ("paused", "paused by a user")
        place.runner.resume("a")
        assert await place.ends() == "finished"


async def test_a_paused_run_in_hand_keeps_its_workers_and_samples_nothing_until_it_is_resumed(place: Place) -> None:
    place.submit("a", "b")
    place.workshop.start.close()
    async with place.at_work():
        await until(lambda: bool(place.workshop.live))
        place.runner.pause("a", release_gpus=False)
        place.workshop.start.open()
        await settle()
        assert place.workshop.live == {"a"} and place.store.rollouts("a", 0) == []
        place.runner.resume("a")
        assert await place.ends() == "finished"
    assert place.workshop.opened[0] == "a" and place.workshop.opened.count("a") == 1


async def test_a_pause_that_releases_the_devices_lets_the_next_run_start(place: Place) -> None:
    place.submit("a", "b")
    place.workshop.start.close()
    async with place.at_work():
        await until(lambda: place.workshop.live == {"a"})
        place.runner.pause("a", release_gpus=True)
        await until(lambda: place.workshop.live == {"b"})
        assert place.state() == "paused"


async def test_a_run_resumed_while_its_workers_still_end_goes_on(place: Place) -> None:
    place.submit("a")
    place.workshop.start.close()
    place.workshop.end.close()
    async with place.at_work():
        await until(lambda: bool(place.workshop.live))
        place.runner.pause("a", release_gpus=True)
        await settle()
        place.runner.resume("a")
        place.workshop.start.open()
        place.workshop.end.open()
        assert await place.ends() == "finished"
    assert place.workshop.opened == ["a", "a"]


async def test_a_paused_daemon_and_a_paused_run_need_both_to_be_resumed(place: Place) -> None:
    place.submit("a")
    place.workshop.start.close()
    async with place.at_work():
        await until(lambda: bool(place.workshop.live))
        place.runner.pause("a", release_gpus=False)
        place.runner.pause(None, release_gpus=False)
        place.workshop.start.open()
        place.runner.resume("a")
        await settle()
        assert place.store.rollouts("a", 0) == [] and place.board.snapshot().paused
        place.runner.resume(None)
        assert await place.ends() == "finished"


async def test_a_paused_daemon_releases_its_devices_and_starts_nothing(place: Place) -> None:
    place.submit("a", "b")
    place.workshop.start.close()
    async with place.at_work():
        await until(lambda: bool(place.workshop.live))
        place.runner.pause(None, release_gpus=True)
        await settle()
        assert (place.workshop.opened, place.workshop.live) == (["a"], set())
        place.workshop.start.open()
        place.runner.resume(None)
        assert await place.ends("b") == "finished"
    assert place.workshop.opened == ["a", "a", "b"]


async def test_a_run_cancelled_while_its_model_is_prepared_opens_no_workers(place: Place) -> None:
    place.submit("a", "b")
    place.workshop.model.close()
    async with place.at_work():
        await until(lambda: place.board.snapshot().current is not None)
        place.runner.cancel("a")
        place.workshop.model.open()
        assert await place.ends("b") == "finished"
    assert (place.state(), place.workshop.opened) == ("cancelled", ["b"])


async def test_a_run_cancelled_while_its_workers_end_stays_cancelled(place: Place) -> None:
    place.submit("a", "b")
    place.workshop.end.close()
    async with place.at_work():
        await until(lambda: place.store.run("a").step == 2)
        await settle()
        place.runner.cancel("a")
        place.workshop.end.open()
        await place.ends("b")
    assert (place.state(), place.reason()) == ("cancelled", "cancelled by a user")


async def test_dead_workers_are_replaced_three_times_without_a_commit_in_between(place: Place) -> None:
    place.workshop.trainer.faults += [DIED, DIED, DIED, None, DIED, DIED, DIED]
    place.submit("a")
    async with place.at_work():
        assert await place.ends() == "finished"
    assert len(place.workshop.opened) == 7


async def test_the_fourth_death_fails_the_run_with_the_last_words_and_it_can_be_resumed(place: Place) -> None:
    place.workshop.trainer.faults += [None, DIED, DIED, DIED, DIED]
    place.submit("a")
    async with place.at_work():
        assert await place.ends() == "failed"
        assert (place.reason(), place.store.run("a").step) == (str(DIED), 1)
        place.runner.resume("a")
        assert await place.ends() == "finished"
    assert len(place.workshop.opened) == 5


@pytest.mark.parametrize("fault", [WorkerFailed("no such model"), PublishFailed("gap 0.5 nats"), KeyError("a defect")])
async def test_any_other_error_fails_the_run_with_its_message_and_the_next_one_starts(
    place: Place, fault: Exception
) -> None:
    place.workshop.trainer.faults += [fault]
    place.submit("a", "b")
    async with place.at_work():
        assert await place.ends("b") == "finished"
    assert (place.state(), place.reason()) == ("failed", str(fault))
    assert place.workshop.opened == ["a", "b"]


async def test_a_full_disk_pauses_the_run_and_a_resume_loses_nothing(place: Place) -> None:
    place.workshop.trainer.faults += [WorkerFailed("train: [Errno 28] No space left on device: 'releases'")]
    place.submit("a")
    async with place.at_work():
        assert await place.ends() == "paused"
        assert "No space left on device" in place.reason()
        place.runner.resume("a")
        assert await place.ends() == "finished"


async def test_a_disk_too_full_for_the_runs_state_pauses_the_daemon(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit("a")
    with monkeypatch.context() as full:
        full.setattr(place.store, "set_state", refuse)
        async with place.at_work():
            await until(lambda: place.board.snapshot().paused)
            full.undo()
            place.runner.resume(None)
            assert await place.ends() == "finished"


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


async def test_a_run_whose_task_changed_is_paused_naming_what_changed(place: Place) -> None:
    place.submit("a")
    place.runner.pause("a", release_gpus=False)
    place.catalog.instruction = "Make the sum small."
    async with place.at_work():
        place.runner.resume("a")
        assert await place.ends() == "paused"
    assert "task.instruction" in place.reason() and place.workshop.opened == []


async def test_a_starter_that_its_own_judge_rejects_fails_the_run_and_plants_nothing(place: Place) -> None:
    place.catalog.starter = "h = [⟦0.1, 0.1⟧]\n"
    place.submit("a")
    async with place.at_work():
        assert await place.ends() == "failed"
    assert place.reason() == "the starter of 't' is rejected by its own judge: 0.1 is too small"
    assert len(place.store.archive("a")) == 0


async def test_every_group_starts_from_the_judged_starter(place: Place) -> None:
    place.submit("a")
    async with place.at_work():
        await place.ends()
    seeds = place.store.archive("a").seeds
    assert [(seed.program, seed.reward) for seed in seeds] == [("h = [0.4, 0.1]\n", 0.5)] * 2


def submit_again(place: Place) -> None:
    place.submit("a")


def take_away_the_region(place: Place) -> None:
    place.catalog.starter = "h = [0.4, 0.1]\n"
    place.submit("b")


def end_with_the_region(place: Place) -> None:
    place.catalog.starter = "h = ⟦0.4⟧"
    place.submit("b")


@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [
        (submit_again, Conflict, "there is a run named 'a' already"),
        (take_away_the_region, Refused, "cannot be used in completion style: a starter needs exactly one region"),
        (end_with_the_region, Refused, "cannot be used in completion style: a starter needs exactly one region"),
        (lambda place: place.runner.submit(Submit(task="x")), NotFound, "no task named 'x'"),
        (lambda place: place.runner.submit(Submit(task="t", grid=GridSize(2, 2))), Refused, "2 rollouts a group"),
        (lambda place: place.runner.submit(Submit(task="t", grid=GridSize(900, 900))), Refused, "too many"),
        (lambda place: place.runner.resume("a"), Conflict, "run 'a' is queued"),
        (lambda place: place.runner.cancel("aa"), NotFound, "no run named 'aa'"),
        (lambda place: place.runner.best("a"), Conflict, "has no program yet"),
    ],
)
async def test_what_cannot_be_done_is_refused_and_changes_nothing(
    place: Place, act: Callable[[Place], object], kind: type[CallerError], message: str
) -> None:
    place.submit("a")
    with pytest.raises(kind) as caught:
        act(place)
    assert message in caught.value.message
    assert [(run.run, run.state) for run in place.runner.runs()] == [("a", "queued")]


async def test_a_program_is_judged_again_as_it_was(place: Place) -> None:
    place.submit("a")
    async with place.at_work():
        await place.ends()
    best = place.runner.best("a")
    told = await place.runner.verify("a", None)
    assert (told["node"], told["valid"], told["reward"]) == (best.node, True, best.reward)


async def test_a_snapshot_of_many_runs_reads_each_task_once(place: Place) -> None:
    place.submit(*"abcdefgh")
    place.catalog.loads = 0
    assert [run.target for run in place.board.snapshot().runs] == [9.5] * 8
    assert place.catalog.loads == 1


async def test_a_run_paused_while_it_waits_to_restart_stays_paused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "BACKOFF_SECONDS", 0.05)
    place.workshop.trainer.faults += [DIED]
    place.submit("a")
    async with place.at_work():
        await until(lambda: len(place.workshop.opened) == 1 and not place.workshop.trainer.faults)
        await anyio.sleep(0.02)
        place.runner.pause("a", release_gpus=False)
        await settle()
        assert (place.state(), len(place.workshop.opened)) == ("paused", 1)


async def test_a_broken_task_does_not_hide_the_others(place: Place) -> None:
    place.catalog.broken = ["spoilt"]
    assert [task.name for task in place.runner.tasks()] == ["t"]
