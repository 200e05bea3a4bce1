"""The queue and the run in hand over fakes and the real store: order, pause, resume, cancel, restarts, reasons."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import msgspec
import pytest

from tests.fakes import FakeCatalog, FakeJudge, FakeRoom, FakeWorkshop
from tttdd import runner as runners
from tttdd.adapters.store import SqliteStore
from tttdd.board import Board
from tttdd.config import Config, Engine, Grid, Model, Prompting, Trainer
from tttdd.desk import Desk
from tttdd.errors import CallerError, Conflict, NotFound, Refused
from tttdd.ports import PublishFailed, StoreUnusable, WorkerDied, WorkerFailed
from tttdd.protocol import GridSize, JudgesInfo, RunState, Submit
from tttdd.runner import Runner

CONFIG = Config(
    model=Model(path="m", dtype="float32"),
    engine=Engine(backend="torch"),
    grid=Grid(groups=2, rollouts=4, steps=2),
    prompt=Prompting(style="completion"),
)
DIED = WorkerDied("the trainer ended: last words")
FULL = WorkerFailed("train: [Errno 28] No space left on device: 'releases'")
DIED_OF_FULL = WorkerDied(
    "the trainer ended: Traceback\n  line 7\nSafetensorError: No space left on device (os error 28)\n"
)
QUOTA = OSError(122, "Disk quota exceeded")

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Place:
    """A runner at its place of work; `again` is the next daemon on the same state."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir, self.store = state_dir, SqliteStore(state_dir)
        self.catalog = FakeCatalog(FakeJudge())
        self.workshop = FakeWorkshop(self.store, state_dir)
        judges = JudgesInfo(level="process", parallel=1)
        self.board = Board("c", str(state_dir), lambda: self.runner.runs(), lambda: judges)
        self.room = FakeRoom()
        self.configure(CONFIG)

    def configure(self, config: Config) -> None:
        self.desk = Desk(self.store, self.board.touch)
        self.runner = Runner(config, self.store, self.board, self.catalog, self.workshop, self.room, self.desk)

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
            tasks.start_soon(self.runner.await_room)
            yield
            tasks.cancel_scope.cancel()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(runners, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(runners, "ROOM_SECONDS", 0.01)
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


@pytest.mark.parametrize("fault", [FULL, DIED_OF_FULL, QUOTA, DIED])
async def test_a_full_disk_pauses_the_run_at_once_and_holds_the_queue_until_there_is_room(
    place: Place, fault: Exception
) -> None:
    place.workshop.trainer.faults += [fault]
    place.room.free = False
    place.submit("a", "b")
    async with place.at_work():
        assert await place.ends() == "paused"
        await settle()
        run = place.store.run("a")
        assert (run.waits_for_room, run.step, place.workshop.opened, place.state("b")) == (True, 0, ["a"], "queued")
        assert run.reason.count("\n") == 0 and run.reason.endswith("; it goes on by itself when 7 MiB are free")
        place.room.free = True
        assert await place.ends("b") == "finished"
    assert (place.state(), place.workshop.opened) == ("finished", ["a", "a", "b"])
    assert not place.store.run("a").waits_for_room


async def test_a_run_for_which_there_is_never_room_is_tried_less_and_less_often(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "ROOM_SECONDS", 0.02)
    place.workshop.trainer.faults += [FULL] * 1000
    place.submit("a")
    async with place.at_work():
        with anyio.move_on_after(1.5):
            await anyio.sleep_forever()
    assert 2 < len(place.workshop.opened) < 9, "after 0.02 s, 0.04 s, 0.08 s and so on"


async def test_a_run_that_waits_for_room_waits_on_in_the_next_daemon(place: Place, tmp_path: Path) -> None:
    place.workshop.trainer.faults += [FULL]
    place.room.free = False
    place.submit("a")
    async with place.at_work():
        await place.ends()
    place.store.close()
    again = Place(tmp_path)
    async with again.at_work():
        await until(lambda: again.state() == "finished")


@pytest.mark.parametrize("resumed", [True, False])
async def test_whoever_waits_for_room_can_be_resumed_or_paused_for_good(place: Place, resumed: bool) -> None:
    place.workshop.trainer.faults += [FULL]
    place.room.free = False
    place.submit("a")
    async with place.at_work():
        await place.ends()
        place.runner.resume("a") if resumed else place.runner.pause("a", release_gpus=False)
        place.room.free = True
        if resumed:
            await until(lambda: place.state() == "finished")
        await settle()
        assert place.state() == ("finished" if resumed else "paused")


LOCKED = StoreUnusable("database is locked")


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("set_state", OSError(28, "No space left on device")),
        ("set_state", LOCKED),
        ("record", LOCKED),
        ("begin", LOCKED),
        ("commit", LOCKED),
    ],
)
async def test_a_state_that_cannot_be_kept_stops_everything_until_it_can(
    place: Place, monkeypatch: pytest.MonkeyPatch, method: str, fault: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise fault

    place.submit("a", "b")
    place.room.free = False
    with monkeypatch.context() as unusable:
        unusable.setattr(place.store, method, refuse)
        async with place.at_work():
            await until(lambda: bool(place.board.snapshot().notice))
            assert str(fault) in place.board.snapshot().notice and not place.board.snapshot().paused
            assert str(fault) in place.runner.run("b").reason
            await settle()
            assert (place.state("b"), place.workshop.live) == ("queued", set())
            unusable.undo()
            place.room.free = True
            assert await place.ends("b") == "finished"
    assert (place.state(), place.board.snapshot().notice) == ("finished", "")


async def test_a_state_that_is_locked_by_another_process_for_a_while_fails_no_run(place: Place, tmp_path: Path) -> None:
    place.submit("a")
    with closing(sqlite3.connect(tmp_path / "archive.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with place.at_work():
            await until(lambda: bool(place.board.snapshot().notice))
            other.execute("COMMIT")
            assert await place.ends() == "finished"


async def test_a_state_that_is_taken_away_is_told_and_nothing_is_done_in_it(place: Place, tmp_path: Path) -> None:
    (tmp_path / "archive.sqlite3").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnusable, match="was removed or replaced"):
        place.submit("a")
    (tmp_path / "elsewhere").rename(tmp_path / "archive.sqlite3")
    place.submit("a")


async def test_a_resume_of_a_stalled_daemon_tries_again_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.submit("a")
    async with place.at_work():
        place.room.free = False
        place.runner._stall("locked")
        place.runner.resume(None)
        assert await place.ends() == "finished"


async def test_why_nothing_is_done_is_told_of_every_run_that_waits(place: Place) -> None:
    place.submit("a")
    place.runner.pause(None, release_gpus=False)
    assert "the daemon is paused" in place.runner.run("a").reason
    assert [run.reason for run in place.runner.runs()] == [place.runner.run("a").reason]
    place.runner.resume(None)
    assert place.runner.run("a").reason == ""


async def test_a_name_whose_folder_holds_something_is_not_taken(place: Place, tmp_path: Path) -> None:
    kept = tmp_path / "runs/t-1/releases/0001/release.json"
    kept.parent.mkdir(parents=True)
    kept.touch()
    with pytest.raises(Conflict, match="is there already"):
        place.submit("t-1")
    assert place.runner.submit(Submit(task="t")).run == "t-2"
    assert kept.exists()


async def test_a_release_that_is_not_there_cannot_be_gone_on_from(place: Place, tmp_path: Path) -> None:
    await finished(place)
    shutil.rmtree(tmp_path / "runs/a/releases/0002")
    with pytest.raises(Conflict, match="release 2 of run 'a' is not there"):
        place.runner.submit(Submit(task="t", name="b", resume_from="a"))
    assert not (tmp_path / "runs/b").exists()


async def test_a_paused_daemon_is_paused_in_its_next_life_too(place: Place, tmp_path: Path) -> None:
    place.submit("a")
    place.runner.pause(None, release_gpus=False)
    place.store.close()
    again = Place(tmp_path)
    async with again.at_work():
        await settle()
        assert again.board.snapshot().paused and again.workshop.opened == []
        again.runner.resume(None)
        assert await again.ends() == "finished"
    again.store.close()
    assert not Place(tmp_path).board.snapshot().paused


async def test_of_the_queued_runs_the_highest_priority_is_taken_first(place: Place) -> None:
    for name, priority in {"a": 0, "b": -1, "c": 5, "d": 5}.items():
        place.runner.submit(Submit(task="t", name=name, priority=priority))
    async with place.at_work():
        await place.ends("b")
    assert place.workshop.opened == ["c", "d", "a", "b"]


async def test_a_clock_that_jumps_back_does_not_turn_the_queue_round(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, now in {"a": 2e9, "b": 1e9, "c": 3e9}.items():
        monkeypatch.setattr("time.time", lambda now=now: now)
        place.submit(name)
    async with place.at_work():
        await place.ends("c")
    assert place.workshop.opened == ["a", "b", "c"]
    assert [run.run for run in place.runner.runs()] == ["a", "b", "c"]


async def test_a_run_whose_task_changed_while_the_daemon_was_away_is_paused_naming_what_changed(place: Place) -> None:
    place.submit("a")
    place.catalog.instruction = "Make the sum small."
    async with place.at_work():
        assert await place.ends() == "paused"
    assert "task.instruction" in place.reason() and place.workshop.opened == []


async def test_a_resume_of_a_run_whose_task_changed_is_refused_naming_what_changed(place: Place) -> None:
    place.submit("a")
    place.runner.pause("a", release_gpus=False)
    place.catalog.instruction = "Make the sum small."
    with pytest.raises(Conflict, match=r"task\.instruction"):
        place.runner.resume("a")
    assert (place.state(), place.reason()) == ("paused", "paused by a user")
    place.catalog.instruction = "Make the sum large."
    place.runner.resume("a")
    assert place.state() == "queued"


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


async def finished(place: Place, name: str = "a") -> None:
    place.submit(name)
    async with place.at_work():
        await place.ends(name)


async def test_a_run_goes_on_from_the_release_and_the_archive_of_another(place: Place) -> None:
    await finished(place)
    run = place.runner.submit(Submit(task="t", name="b", seed=5, steps=3, resume_from="a"))
    assert (run.step, run.first_step, run.steps, run.release, run.resumed_from) == (2, 2, 5, 2, "a")
    assert place.runner.archive("b", 100) == place.runner.archive("a", 100)
    async with place.at_work():
        assert await place.ends("b") == "finished"
    assert [row.step for row in place.runner.steps("b")] == [2, 3, 4]
    assert place.workshop.trainer.trained[2:] == [(2, "b"), (3, "b"), (4, "b")]
    assert place.store.run("a").release == 2 and len(place.runner.steps("a")) == 2


async def test_a_release_outlives_the_run_that_it_was_taken_from(place: Place, tmp_path: Path) -> None:
    await finished(place)
    place.runner.submit(Submit(task="t", name="b", steps=1, resume_from="a"))
    shutil.rmtree(tmp_path / "runs/a")
    async with place.at_work():
        assert await place.ends("b") == "finished"


def another_instruction(place: Place) -> Submit:
    place.catalog.instruction = "Make the sum small."
    return Submit(task="t", resume_from="a")


def a_run_that_never_started(place: Place) -> Submit:
    place.submit("new")
    return Submit(task="t", resume_from="new")


@pytest.mark.parametrize(
    ("request_for", "field", "message"),
    [
        (lambda place: Submit(task="t", resume_from="aa"), "resume_from", "no run named 'aa'"),
        (a_run_that_never_started, "resume_from", "run 'new' has no program yet"),
        (another_instruction, "resume_from", "run 'a' differs in task.instruction"),
        (lambda place: Submit(task="t", resume_from="a", grid=GridSize(3, 4)), "grid.groups", "3 groups are too many"),
        (lambda place: Submit(task="t", resume_from="a", mode="search"), "resume_from", "has trained its model"),
    ],
)
async def test_a_run_that_does_not_fit_to_its_origin_is_refused_and_nothing_is_kept_of_it(
    place: Place, request_for: Callable[[Place], Submit], field: str, message: str
) -> None:
    await finished(place)
    asked = request_for(place)
    before = [run.run for run in place.runner.runs()]
    with pytest.raises(CallerError) as caught:
        place.runner.submit(asked)
    assert (caught.value.field, [run.run for run in place.runner.runs()]) == (field, before)
    assert message in caught.value.message


async def test_a_run_trains_on_what_a_search_has_found(place: Place) -> None:
    place.runner.submit(Submit(task="t", name="a", mode="search"))
    async with place.at_work():
        assert await place.ends() == "finished"
    assert (place.runner.run("a").release, place.runner.identity("a")["mode"]) == (0, "search")
    place.runner.submit(Submit(task="t", name="b", steps=1, resume_from="a"))
    async with place.at_work():
        assert await place.ends("b") == "finished"
    assert place.workshop.trainer.trained == [(0, "b")] and place.runner.run("b").mode == "discover"


async def test_what_a_program_of_the_archive_returned_can_be_had_also_by_the_run_that_goes_on(place: Place) -> None:
    await finished(place)
    place.runner.submit(Submit(task="t", name="b", steps=1, resume_from="a"))
    for run in "ab":
        best = place.runner.best(run)
        kept = place.runner.artifact(run, best.node)
        assert sum(msgspec.json.decode(kept.artifact)) == best.reward and kept.sha256 == best.artifact_sha256
        assert sum(msgspec.json.decode(place.runner.artifact(run, 0).artifact)) == place.runner.node(run, 0).reward


async def test_what_is_not_kept_of_a_program_is_not_found(place: Place) -> None:
    await finished(place)
    with closing(sqlite3.connect(place.state_dir / "archive.sqlite3")) as database:
        database.execute("DELETE FROM artifacts")
        database.commit()
    with pytest.raises(NotFound, match="node 0 of run 'a' returned is not kept"):
        place.runner.artifact("a", 0)


async def test_another_learning_rate_is_no_reason_to_refuse_a_release(place: Place) -> None:
    await finished(place)
    changed = msgspec.structs.replace(CONFIG, trainer=Trainer(lr=1e-5), grid=Grid(groups=1, rollouts=8, steps=1))
    place.configure(changed)
    place.runner.submit(Submit(task="t", name="b", resume_from="a"))
    async with place.at_work():
        assert await place.ends("b") == "finished"
    place.configure(msgspec.structs.replace(CONFIG, trainer=Trainer(rank=8)))
    with pytest.raises(Conflict, match=r"trainer\.rank"):
        place.runner.submit(Submit(task="t", name="c", resume_from="a"))


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


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET identity = '{broken' WHERE name = 'a'",
        "UPDATE nodes SET certificate = '{broken' WHERE run = 'a'",
        "UPDATE rollouts SET verdict = '{broken' WHERE run = 'a'",
        "UPDATE steps SET metrics = '{broken' WHERE run = 'a'",
        "UPDATE steps SET batch = CAST(x'ff' AS TEXT) WHERE run = 'a'",
    ],
)
async def test_a_run_whose_rows_cannot_be_read_fails_and_the_next_one_is_taken(
    place: Place, tmp_path: Path, damage: str
) -> None:
    place.workshop.trainer.faults += [OSError(5, "Input/output error")]
    await finished(place)  # failed with a pending step
    with closing(sqlite3.connect(tmp_path / "archive.sqlite3")) as database:
        assert database.execute(damage).rowcount > 0
        database.execute("UPDATE runs SET state = 'queued'")
        database.commit()
    place.submit("b")
    async with place.at_work():
        assert await place.ends("b") == "finished"
    names = {run.run: (run.state, run.reason) for run in place.board.snapshot().runs}
    if "rollouts" not in damage:  # a full grid is read no more
        assert names["a"][0] == "failed" and names["a"][1]


async def test_a_broken_task_does_not_hide_the_others(place: Place) -> None:
    place.catalog.broken = ["spoilt"]
    assert [task.name for task in place.runner.tasks()] == ["t"]
