"""A run in hand is paused, paused with its devices released, or cancelled at every named point of its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_runner import Place, settle, until

from tttdd import failpoint
from tttdd import runner as runners
from tttdd.failpoint import Point

pytestmark = pytest.mark.anyio

ELSEWHERE = {Point.OPTIMIZER_STEPPED, Point.FOLDER_FILLED, Point.FOLDER_SYNCED, Point.FOLDER_IN_PLACE}
"""In the trainer's process: tests/crash."""
IN_TRANSACTION = {Point.TRANSACTION_FILLED}
"""Where the event loop cannot turn to anybody else."""
IN_THREAD = {Point.FILE_WRITTEN, Point.FILE_SYNCED, Point.FILE_IN_PLACE}
AT_THE_END = {Point.RUN_DONE}
HERE = [point for point in Point if point not in ELSEWHERE | IN_TRANSACTION | IN_THREAD]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(runners, "BACKOFF_SECONDS", 0.0)
    return Place(tmp_path)


class At:
    """Does something once, when a point is reached for the `time`th time."""

    def __init__(self, point: Point, act: Callable[[], None], time: int = 1) -> None:
        self._point, self._act, self._left = point, act, time

    def __call__(self, point: Point, what: object) -> None:
        if point == self._point and self._left:
            self._left -= 1
            if not self._left:
                self._act()

    @property
    def came(self) -> bool:
        return not self._left


def recorded(place: Place) -> set[tuple[object, ...]]:
    query = "SELECT step, grid_group, rollout, recorded FROM rollouts WHERE run = 'a'"
    return {tuple(row) for row in place.store._database.all(query)}


@pytest.mark.parametrize("release", [False, True], ids=["kept", "released"])
@pytest.mark.parametrize("point", HERE)
async def test_a_run_paused_anywhere_goes_on_and_repeats_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, point: Point, release: bool
) -> None:
    pause = At(point, lambda: place.runner.pause("a", release_gpus=release))
    place.submit("a")
    monkeypatch.setattr(failpoint, "listener", pause)
    async with place.at_work():
        await until(lambda: pause.came)
        if point not in AT_THE_END:
            await until(lambda: not release or not place.workshop.live)
            await settle()
            assert (place.state(), bool(place.workshop.live)) == ("paused", not release and bool(place.workshop.opened))
            place.runner.resume("a")
        before = recorded(place)
        await until(lambda: place.state() == "finished")
    steps = place.store.steps("a")
    assert [(row.step, row.phase, row.release) for row in steps] == [(0, "committed", 0), (1, "committed", 1)]
    assert before <= recorded(place) and len(recorded(place)) == 16
    assert place.workshop.trainer.trained == [(0, "a"), (1, "a")]


@pytest.mark.parametrize("point", HERE)
async def test_a_run_cancelled_anywhere_ends_its_workers_and_the_next_one_starts(
    place: Place, monkeypatch: pytest.MonkeyPatch, point: Point
) -> None:
    cancel = At(point, lambda: place.runner.cancel("a"))
    place.submit("a", "b")
    monkeypatch.setattr(failpoint, "listener", cancel)
    async with place.at_work():
        assert await place.ends("b") == "finished"
    assert cancel.came and (place.state(), place.reason()) == ("cancelled", "cancelled by a user")
    assert place.workshop.live == set()
