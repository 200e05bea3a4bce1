"""What a tracker is told, whatever breaks: every committed row once and in order, the best, the end; no run waits.

The tracker here is a fake that keeps what it is told as a server would; tests/test_tracking_wandb.py uses the real one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from tttdd import tracking
from tttdd.ports import Release, StoreError, WorkerDied, WorkerFailed
from tttdd.protocol import Best, GridSize, RunInfo, RunState, StepRow, Value
from tttdd.tracking import Opening, Tracker

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "PACE_SECONDS", 0.001)
    monkeypatch.setattr(tracking, "BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(tracking, "BACKOFF_MOST_SECONDS", 0.002)


class FakeStore:
    """Runs and their rows; whatever changes is told as the board does."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.by_name: dict[str, RunInfo] = {}
        self.rows: dict[str, list[StepRow]] = {}
        self.broken = False
        self._version, self._news = 0, anyio.Event()

    def submit(self, name: str = "r", state: RunState = "running", **more: Any) -> None:
        about: dict[str, Any] = {"task": "t", "step": 0, "steps": 9, "release": 0, "grid": GridSize(2, 4), "seed": 0}
        self.by_name[name] = RunInfo(run=name, state=state, created=1e9, **(about | more))
        self.rows[name] = []
        (self.state_dir / "runs" / name).mkdir(parents=True, exist_ok=True)
        self._touch()

    def commit(self, name: str = "r", times: int = 1, **more: float) -> None:
        for _ in range(times):
            run = self.by_name[name]
            metrics = {"tttd/step": float(run.step), "time/step": 1.5, **more}
            row = StepRow(step=run.step, phase="committed", release=run.release, metrics=metrics)
            self.rows[name].append(row)
            self.change(name, step=run.step + 1, release=run.release + 1)

    def change(self, name: str = "r", **fields: Any) -> None:
        self.by_name[name] = msgspec.structs.replace(self.by_name[name], **fields)
        self._touch()

    def _touch(self) -> None:
        self._version += 1
        self._news.set()
        self._news = anyio.Event()

    async def changed(self, after: int) -> int:
        while self._version <= after:
            await self._news.wait()
        return self._version

    def runs(self) -> list[RunInfo]:
        if self.broken:
            raise StoreError("the disk is gone")
        return list(self.by_name.values())

    def run(self, run: str) -> RunInfo:
        return self.by_name[run]

    def steps(self, run: str) -> list[StepRow]:
        pending = StepRow(step=self.by_name[run].step, phase="pending", release=0, metrics={})
        return [*self.rows[run], pending]

    def identity(self, run: str) -> dict[str, Value]:
        return {"grid.rollouts": 4, "model.revision": None if self.by_name[run].best is None else "abc"}


class Service:
    """Keeps runs by id.  `faults`: raised, one a call; `unsent`: rows that a session which breaks takes with it."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.config: dict[str, dict[str, Value]] = {}
        self.summary: dict[str, dict[str, Value]] = {}
        self.exits: dict[str, list[int]] = {}
        self.adapters: dict[str, list[tuple[int, str]]] = {}
        self.opened: list[str] = []
        self.faults: list[Exception | None] = []
        self.unsent = 0
        self.hangs = False

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncGenerator[FakeSession]:
        self.opened.append(opening.run.run)
        self.fail()
        rows = self.rows.setdefault(opening.id, [])
        try:
            yield FakeSession(self, opening.id, rows[-1] + 1 if rows else 0)
        except BaseException:
            del rows[len(rows) - self.unsent :]
            raise

    def fail(self) -> None:
        if self.faults and (fault := self.faults.pop(0)):
            raise fault

    @property
    def only(self) -> str:
        (id,) = self.rows
        return id


class FakeSession:
    def __init__(self, service: Service, id: str, next: int) -> None:
        self._service, self._id, self.next = service, id, next

    async def tell(self, rows: Any, config: Any, summary: Any) -> None:
        if self._service.hangs:
            await anyio.sleep_forever()
        for step, metrics in rows:
            self._service.fail()
            assert metrics["tttd/step"] == step
            self._service.rows[self._id].append(step)
        self._service.fail()
        self._service.config[self._id], self._service.summary[self._id] = config, summary

    async def adapter(self, release: Release, aliases: list[str]) -> None:
        self._service.adapters.setdefault(self._id, []).append((release.number, aliases[0]))

    async def finish(self, exit_code: int) -> None:
        self._service.fail()
        self._service.exits.setdefault(self._id, []).append(exit_code)


class Place:
    def __init__(self, state_dir: Path) -> None:
        self.store, self.service, self.state_dir = FakeStore(state_dir), Service(), state_dir

    @asynccontextmanager
    async def tracking(self, *, adapters: bool = False) -> AsyncGenerator[None]:
        tracker = Tracker(self.store, self.store, self.state_dir, self.service.open, adapters=adapters)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tracker.track)
            await anyio.sleep(0.001)
            yield
            tasks.cancel_scope.cancel()

    async def told(self, rows: int, ended: bool = False) -> None:
        """Until exactly the first `rows` rows are there, once each, and perhaps the end."""
        with anyio.fail_after(10):
            while [*self.service.rows.values()] != [list(range(rows))] or ended > len(self.service.exits):
                await anyio.sleep(0.002)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def settle() -> None:
    """Long enough for anything that is not held to have happened."""
    await anyio.sleep(0.05)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.002)


async def test_a_run_is_told_row_by_row_with_what_it_is_its_best_and_its_end(place: Place) -> None:
    async with place.tracking():
        place.store.submit()
        await until(lambda: "r" in place.service.opened)
        place.store.change(best=Best(node=3, reward=2.5, objective=0.4, step=0))
        place.store.commit()
        await place.told(1)
        place.store.commit()
        place.store.change(state="finished")
        await place.told(2, ended=True)
    id = place.service.only
    assert place.service.config[id].items() >= {"grid.rollouts": 4, "model.revision": "abc", "run.task": "t"}.items()
    assert place.service.summary[id] == {
        "state": "finished",
        "best/reward": 2.5,
        "best/objective": 0.4,
        "best/node": 3,
        "best/step": 0,
    }
    assert (place.service.exits[id], place.service.opened) == ([0], ["r"])


@pytest.mark.parametrize(("state", "code"), [("failed", 1), ("cancelled", 255)])
async def test_how_a_run_ended_is_told(place: Place, state: RunState, code: int) -> None:
    async with place.tracking():
        place.store.submit()
        place.store.commit()
        await place.told(1)
        place.store.change(state=state)
        await place.told(1, ended=True)
    assert place.service.exits == {place.service.only: [code]}


@pytest.mark.parametrize("unsent", [0, 1])
@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        *((calls, WorkerDied("kill -9")) for calls in range(8)),
        *((2, fault) for fault in (WorkerFailed("no"), OSError(28, "full"), StoreError("gone"))),
    ],
)
async def test_a_failure_at_any_call_loses_no_row_and_repeats_none(
    place: Place, calls: int, fault: Exception, unsent: int
) -> None:
    place.service.faults, place.service.unsent = [None] * calls + [fault], unsent
    async with place.tracking():
        place.store.submit()
        for _ in range(3):
            place.store.commit()
            await anyio.sleep(0.003)
        place.store.change(state="finished")
        await place.told(3, ended=True)
    assert place.service.faults == [] and len(place.service.opened) == 2


@pytest.mark.parametrize("rows", range(4))
async def test_a_daemon_that_starts_again_goes_on_with_the_same_run(place: Place, rows: int) -> None:
    async with place.tracking():
        place.store.submit()
        place.store.commit(times=rows)
        await place.told(rows)
    place.store.commit()  # committed, and killed before it was told
    async with place.tracking():
        place.store.commit()
        place.store.change(state="finished")
        await place.told(rows + 2, ended=True)


async def test_an_end_that_is_told_is_not_told_again(place: Place) -> None:
    for _ in range(2):
        async with place.tracking():
            if not place.service.opened:
                place.store.submit()
                place.store.change(state="finished")
            await settle()
    assert (place.service.opened, place.service.exits) == (["r"], {place.service.only: [0]})


async def test_an_end_that_a_crash_kept_from_being_told_is_told_by_the_next_daemon(place: Place) -> None:
    async with place.tracking():
        place.store.submit()
        place.store.commit()
        await place.told(1)
        place.service.hangs = True
        place.store.change(state="failed")
        await settle()
    place.service.hangs = False
    async with place.tracking():
        await place.told(1, ended=True)


async def test_a_failed_run_that_goes_on_is_told_on_under_its_id(place: Place) -> None:
    async with place.tracking():
        place.store.submit()
        place.store.commit()
        place.store.change(state="failed")
        await place.told(1, ended=True)
        place.store.change(state="running")
        place.store.commit()
        place.store.change(state="finished")
        await until(lambda: place.service.exits == {place.service.only: [1, 0]})
        await place.told(2)


async def test_what_had_ended_before_anybody_wanted_it_and_what_never_began_is_not_told(place: Place) -> None:
    place.store.submit("old", "finished", step=3)
    async with place.tracking():
        place.store.submit("waiting", "queued")
        place.store.submit("given-up", "cancelled")
        await settle()
    assert place.service.opened == []


async def test_a_run_that_begins_and_ends_unseen_is_told_whole(place: Place) -> None:
    async with place.tracking():
        place.store.submit()
        place.store.commit(times=450)
        place.store.change(state="finished")
        await place.told(450, ended=True)


async def test_a_paused_run_makes_room_for_the_next_and_comes_back(place: Place) -> None:
    async with place.tracking():
        place.store.submit("a")
        place.store.commit("a")
        await place.told(1)
        place.store.change("a", state="paused")
        place.store.submit("b")
        await until(lambda: place.service.opened == ["a", "b"])
        place.store.change("b", state="finished")
        place.store.change("a", state="running")
        place.store.commit("a")
        place.store.change("a", state="finished")
        await until(lambda: sorted(map(len, place.service.exits.values())) == [1, 1])
    assert sorted(place.service.rows.values()) == [[], [0, 1]]


async def test_a_run_that_cannot_be_told_does_not_hold_up_the_others(place: Place) -> None:
    def refuses(opening: Opening) -> Any:
        if opening.run.run == "a":
            raise WorkerFailed("a is refused")
        return place.service.open(opening)

    for name in ("a", "b"):
        place.store.submit(name, "paused")
    tracker = Tracker(place.store, place.store, place.state_dir, refuses, adapters=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tracker.track)
        await until(lambda: place.service.opened == ["b"])
        tasks.cancel_scope.cancel()


async def test_failures_in_a_row_are_logged_once_and_their_end_is(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    place.service.faults = [WorkerFailed(f"no {number}") for number in range(5)]
    async with place.tracking():
        place.store.submit()
        place.store.change(state="finished")
        await until(lambda: bool(place.service.exits))
    assert caplog.messages == ["tracking: no 0; no run waits for it, it is tried again", "tracking goes on"]


async def test_a_store_that_cannot_be_read_is_waited_for(place: Place) -> None:
    async with place.tracking():
        place.store.submit()
        place.store.broken = True
        place.store.commit()
        await settle()
        place.store.broken = False
        place.store.change(state="finished")
        await place.told(1, ended=True)


async def test_a_tracker_that_hangs_lets_the_daemon_end(place: Place) -> None:
    place.service.hangs = True
    with anyio.fail_after(2):
        async with place.tracking():
            place.store.submit()
            await settle()


async def test_a_note_that_is_no_note_is_written_anew(place: Place) -> None:
    place.store.submit()
    (place.state_dir / "runs/r" / tracking.NOTE).write_bytes(b"{")
    async with place.tracking():
        place.store.commit()
        await place.told(1)


async def test_the_adapters_that_sampled_the_best_and_came_last_are_kept_once(place: Place) -> None:
    for number in (1, 2, 3):
        (place.state_dir / f"runs/r/releases/{number:04d}").mkdir(parents=True)
    async with place.tracking(adapters=True):
        place.store.submit()
        place.store.change(best=Best(node=1, reward=1.0, objective=None, step=-1))
        place.store.commit(times=2)
        place.store.change(best=Best(node=3, reward=2.0, objective=None, step=1))  # sampled by release 1
        await until(lambda: bool(place.service.adapters))
        place.store.commit()
        place.store.change(state="finished")
        await place.told(3, ended=True)
    assert place.service.adapters == {place.service.only: [(1, "best"), (3, "last")]}
