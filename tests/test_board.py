"""The live snapshot's times: what has passed does not depend on what the wall clock is set to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tttdd import board as boards
from tttdd.board import Board
from tttdd.protocol import Current, GridSize, JudgesInfo, PhaseName, RunInfo, StepRow

DAY = 86_400.0
RUN = RunInfo(run="r", task="t", state="running", step=1, steps=4, release=1, grid=GridSize(1, 3), seed=0, created=0.0)
METRICS = {"train/sampler_trainer_gap": 0.0, "train/kl_base": 0.0, "time/step": 100.0}
PHASES: tuple[PhaseName, ...] = ("sample", "train", "publish", "prove")


class Clocks:
    """Both clocks of the board's module; the one on the wall can be set."""

    def __init__(self) -> None:
        self.now, self.wall = 50.0, 1.8e9

    def pass_(self, seconds: float) -> None:
        self.now, self.wall = self.now + seconds, self.wall + seconds

    def module(self) -> SimpleNamespace:
        return SimpleNamespace(time=lambda: self.wall, monotonic=lambda: self.now)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(boards, "time", clocks.module())
    return clocks


def in_hand(board: Board) -> Current:
    current = board.snapshot().current
    assert current is not None
    return current


@pytest.mark.parametrize("jump", [0.0, DAY, -DAY])
def test_seconds_and_eta_are_those_that_passed_whatever_the_wall_clock_is_set_to(clocks: Clocks, jump: float) -> None:
    board = Board("", "", lambda: [RUN], lambda: JudgesInfo(level="process", parallel=1))
    board.take("r", RUN.grid, [StepRow(step=0, phase="committed", release=0, metrics=METRICS)])
    for phase in PHASES:
        board.phase(1, 1, phase)
        clocks.pass_(10.0)
        clocks.wall += jump
    phase = in_hand(board).phase
    assert phase.seconds == dict.fromkeys(PHASES[:-1], 10.0)
    assert phase.eta_seconds == 3 * 100.0 - 40.0
    assert phase.since == clocks.wall - jump - 10.0, "shown as Unix time"


def test_a_step_slower_than_the_ones_before_promises_no_negative_time(clocks: Clocks) -> None:
    board = Board("", "", lambda: [RUN], lambda: JudgesInfo(level="process", parallel=1))
    board.take("r", RUN.grid, [StepRow(step=0, phase="committed", release=0, metrics=METRICS)])
    board.phase(1, 1, "sample")
    clocks.pass_(5000.0)
    assert in_hand(board).phase.eta_seconds == 2 * 100.0
