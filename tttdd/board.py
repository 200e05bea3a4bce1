"""The live snapshot: one writer (the runner and the step in hand), whole snapshots for every reader.

A slow or late reader cannot be wrong: it gets the newest `Status`, never a difference.  Moments that are shown are Unix
time; what has passed is taken from the monotonic clock, because the other one can be set.
"""

from __future__ import annotations

import collections
import logging
import os
import time
from collections.abc import Callable, Sequence

import anyio

from tttdd import __version__
from tttdd.domain.grid import Coordinate
from tttdd.protocol import (
    CellState,
    Current,
    GpuInfo,
    GridSize,
    JudgesInfo,
    PhaseInfo,
    PhaseName,
    Proof,
    RunInfo,
    Status,
    StepRow,
)

LOG_LINES = 200


class Board:
    def __init__(
        self, config: str, state_dir: str, runs: Callable[[], list[RunInfo]], judges: Callable[[], JudgesInfo]
    ) -> None:
        self._config, self._state_dir, self._runs, self._judges = config, state_dir, runs, judges
        self._started = time.time()
        self._version, self._news = 0, anyio.Event()
        self._log: collections.deque[str] = collections.deque(maxlen=LOG_LINES)
        self.paused = False
        self.notice = ""
        """What keeps the daemon from working, if anything does that nobody asked for."""
        self.gpus: list[GpuInfo] = []
        """The newest reading; `touch` when it is to be told."""
        self._run: str | None = None
        self._clear()

    def snapshot(self) -> Status:
        runs = self._runs()
        mine = next((run for run in runs if run.run == self._run), None)
        return Status(
            version=__version__,
            pid=os.getpid(),
            started=self._started,
            config=self._config,
            state_dir=self._state_dir,
            paused=self.paused,
            notice=self.notice,
            judges=self._judges(),
            runs=runs,
            current=self._current(mine) if mine else None,
            gpus=self.gpus,
            log=list(self._log),
        )

    async def changed(self, after: int) -> int:
        """Wait until there is a version newer than `after`; returns it."""
        while self._version <= after:
            await self._news.wait()
        return self._version

    def touch(self) -> None:
        """Something that the snapshot shows has changed."""
        self._version += 1
        self._news.set()
        self._news = anyio.Event()

    def log(self, line: str) -> None:
        self._log.append(line)
        self.touch()

    def take(self, run: str | None, grid: GridSize | None = None, steps: Sequence[StepRow] = ()) -> None:
        """A run is in hand from now on, with what it has done so far, or none."""
        self._run = run
        self._clear()
        for row in steps:
            if row.phase == "committed":
                self.committed(row.step, row.metrics)
                self._proof = row.proof
        self._cells = [["waiting"] * grid.rollouts for _ in range(grid.groups)] if grid else []
        self.touch()

    def prepare(self, what: str, progress: float | None) -> None:
        self._preparing, self._progress = what, progress
        self.touch()

    def phase(self, step: int, release: int, phase: PhaseName) -> None:
        now = time.monotonic()
        if phase == "sample":
            self._cells = [["waiting"] * len(row) for row in self._cells]
            self._seconds = {}
        elif self._phase in ("sample", "train", "publish", "prove", "commit"):
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._entered
        self._phase, self._since, self._entered = phase, time.time(), now
        self._preparing, self._progress = "", None
        logging.getLogger("tttdd.step").info("step %d, release %d: %s", step + 1, release, phase)
        self.touch()

    def progress(self, share: float) -> None:
        self._progress = share
        self.touch()

    def cell(self, coordinate: Coordinate, state: CellState) -> None:
        self._cells[coordinate.group][coordinate.rollout] = state
        self.touch()

    def proved(self, proof: Proof) -> None:
        self._proof = proof
        self.touch()

    def committed(self, step: int, metrics: dict[str, float]) -> None:
        self._gap, self._kl = metrics.get("train/sampler_trainer_gap"), metrics.get("train/kl_base")
        self._step_seconds.append(metrics["time/step"])
        self.touch()

    def _clear(self) -> None:
        self._cells: list[list[CellState]] = []
        self._phase: PhaseName = "start"
        self._since, self._entered = time.time(), time.monotonic()
        self._seconds: dict[str, float] = {}
        self._step_seconds: list[float] = []
        self._preparing, self._progress = "", None
        self._gap: float | None = None
        self._kl: float | None = None
        self._proof: Proof | None = None

    def _current(self, run: RunInfo) -> Current:
        return Current(
            run=run,
            phase=PhaseInfo(name=self._phase, since=self._since, seconds=self._seconds, eta_seconds=self._eta(run)),
            cells=self._cells,
            preparing=self._preparing,
            progress=self._progress,
            sampler_trainer_gap=self._gap,
            kl_base=self._kl,
            proof=self._proof,
        )

    def _eta(self, run: RunInfo) -> float | None:
        """Steps left times the mean of this run's steps, less what the step in hand has used."""
        if not self._step_seconds:
            return None
        mean = sum(self._step_seconds) / len(self._step_seconds)
        used = sum(self._seconds.values()) + time.monotonic() - self._entered
        return max(0.0, mean * (run.steps - run.step) - min(used, mean))


class BoardLog(logging.Handler):
    """Shows the daemon's log lines on the board; tracebacks stay in the log."""

    def __init__(self, board: Board) -> None:
        super().__init__(logging.INFO)
        self._board = board

    def emit(self, record: logging.LogRecord) -> None:
        self._board.log(record.getMessage())
