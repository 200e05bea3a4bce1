"""Where a harness of a researcher's own meets the run in hand, in place of our search.

    fill      the sampling half of an external run: open until every coordinate of the grid has a report
    complete  waits until it is open; samples in the run's own tasks; the receipt is stored, then given
    report    checked, recorded by the store; the last one that was missing ends `fill`

An engine that dies or fails is the run's affair, as in our own search: whoever asked hears that it may ask again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio
import anyio.abc
import msgspec

from tttdd import reporting
from tttdd.domain.grid import Coordinate, SecondRelease, missing
from tttdd.errors import CallerError, Conflict, NotYet, Refused
from tttdd.harness_protocol import GridInfo, Place, RefusedRelease, Report, Reported
from tttdd.opening import Ask, Opening, encode
from tttdd.ports import Receipt
from tttdd.ports import Report as Filed
from tttdd.protocol import RunInfo
from tttdd.run_ports import RunStore
from tttdd.stops import Content

PATIENCE_SECONDS = 300.0
"""That a completion waits for a release to sample from: while workers start, or a release is trained and published."""
LOOK_SECONDS = 1.0
"""Between two looks at a run that is not open."""
QUIET_SECONDS = 10.0
"""Without a word from the harness, after which its run is shown as waiting for it."""
NAMED = 6
"""Missing coordinates that are told by name."""


class _Visit:
    """One completion under way."""

    def __init__(self, ask: Ask, on_text: Callable[[str], None] | None) -> None:
        self.ask, self.on_text = ask, on_text
        self.scope, self.done = anyio.CancelScope(), anyio.Event()
        self.receipt: Receipt | None = None
        self.fault: CallerError | None = None


class _Grid:
    """The grid in hand, open."""

    def __init__(self, opening: Opening, tasks: anyio.abc.TaskGroup) -> None:
        self.opening, self.tasks = opening, tasks
        self.full = anyio.Event()
        self.visits = 0


class Desk:
    """Lives as long as the daemon; `on_change` is called when what a status tells of a harness has changed."""

    def __init__(self, store: RunStore, on_change: Callable[[], None]) -> None:
        self._store, self._on_change = store, on_change
        self._grid: _Grid | None = None
        self._opened = anyio.Event()
        self._heard = time.monotonic()
        self._refused: dict[tuple[str, Coordinate], tuple[int, int]] = {}
        """Coordinates whose report was of another release, with the grid's and the report's."""

    # The run's side

    async def fill(self, opening: Opening) -> None:
        """Returns when the grid is full.  A completion under way then would be of no use: it ends."""
        if not opening.missing:
            return
        async with anyio.create_task_group() as tasks:
            grid = self._grid = _Grid(opening, tasks)
            self._heard = time.monotonic()
            self._opened.set()
            tasks.start_soon(self._watch, opening.run)
            try:
                await grid.full.wait()
            finally:
                self._close(grid)
                tasks.cancel_scope.cancel()

    def waits(self, run: RunInfo) -> str:
        """What the run waits for, if nothing is done until its harness says more; else empty."""
        grid = self._grid
        if grid is None or grid.opening.run != run.run or grid.visits or self._is_fresh():
            return ""
        lacks = sorted(grid.opening.missing)
        names = ", ".join(f"{place.group}/{place.rollout}" for place in lacks[:NAMED])
        more = ", ..." if len(lacks) > NAMED else ""
        total = run.grid.groups * run.grid.rollouts
        count = f"{len(lacks)} of {total} rollouts of step {run.step + 1}"
        told = f"its harness is silent: {count} are missing ({names}{more})"
        return "; ".join(filter(None, [told, self.troubles(run)]))

    def troubles(self, run: RunInfo) -> str:
        """Reports that were refused because their release is not the grid's."""
        return "; ".join(_mixed(each) for each in self._refusals(run))

    # The harness's side

    async def complete(self, run: RunInfo, ask: Ask, on_text: Callable[[str], None] | None = None) -> Receipt:
        """A completion by the run's newest release; `on_text` is told its text piece by piece.

        Raises Refused for what can't be sampled, Conflict for a run that has ended, NotYet while there is no release.
        """
        reporting.must_be_external(run)
        grid, visit = await self._open_grid(run.run), _Visit(ask, on_text)
        with self._visiting(grid):
            grid.tasks.start_soon(self._serve, grid, visit)
            try:
                await visit.done.wait()
            finally:
                visit.scope.cancel()
        if visit.fault:
            raise visit.fault
        if visit.receipt is None:
            raise NotYet("the step ended, or its engine did, while this was sampled", hint="ask again")
        return visit.receipt

    def report(self, run: RunInfo, report: Report, content: bytes) -> Reported:
        """Record a reward; durable when this returns.  `content` is the report as it was sent.

        Raises Refused or Conflict with the field that is wrong.
        """
        reporting.must_be_external(run)
        if self._grid and self._grid.opening.run == run.run:
            self._heard = time.monotonic()
        whole, text = reporting.whole(content)
        if report.report_id and (before := self._store.report(run.run, report.report_id)):
            if before.content != text:
                told = f"report_id {report.report_id!r} was used for another report"
                raise Conflict(told, field="report_id", hint="a report of its own needs an id of its own")
            return _reported(run.run, before)
        reporting.must_be_open(run)
        place = reporting.coordinate(run, report)
        receipt = reporting.redeemed(self._store.receipt(report.references[0]), run)
        filed = Filed(receipt=receipt.id, report_id=report.report_id, content=text, place=place)
        rollout = reporting.rollout(report, whole, receipt, place, self._store.seed(run.run, place.group))
        try:
            accepted = self._store.record(run.run, rollout, filed)
        except SecondRelease as second:
            self._refused[run.run, place] = second.first, second.second
            self._on_change()
            raise Conflict(str(second), field="references", hint="sample that coordinate again") from None
        if accepted:
            self._note(run.run, place, report.score)
        return _reported(run.run, msgspec.structs.replace(filed, accepted=accepted))

    def grid(self, run: RunInfo) -> GridInfo:
        reporting.must_be_external(run)
        done = {place for place, _ in self._store.judged(run.run)}
        lacks = missing(run.step, run.grid.groups, run.grid.rollouts, done) if run.step < run.steps else []
        return GridInfo(
            run=run.run,
            state=run.state,
            step=run.step,
            steps=run.steps,
            release=run.release,
            groups=run.grid.groups,
            rollouts=run.grid.rollouts,
            missing=[Place(group=place.group, rollout=place.rollout) for place in lacks],
            refused=self._refusals(run),
        )

    # Parts of the above

    async def _open_grid(self, run: str) -> _Grid:
        with anyio.move_on_after(PATIENCE_SECONDS):
            while True:
                reporting.must_be_open(self._store.run(run))
                grid = self._grid
                if grid and grid.opening.run == run and not grid.opening.gate.closed:
                    return grid
                with anyio.move_on_after(LOOK_SECONDS):
                    await (anyio.sleep_forever() if grid else self._opened.wait())
        state = self._store.run(run).state
        told = f"run {run!r} is {state} and has served no release for {PATIENCE_SECONDS:g} s"
        raise NotYet(told, hint="ask again; tttctl status tells what it is at")

    @contextmanager
    def _visiting(self, grid: _Grid) -> Generator[None]:
        grid.visits += 1
        try:
            yield
        finally:
            grid.visits -= 1
            self._heard = time.monotonic()

    async def _serve(self, grid: _Grid, visit: _Visit) -> None:
        try:
            with visit.scope:
                visit.receipt = await self._sampled(grid.opening, visit.ask, visit.on_text)
        except CallerError as fault:
            visit.fault = fault
        except BaseException:
            self._close(grid)  # whoever asks now waits for the next one
            raise
        finally:
            visit.done.set()

    def _close(self, grid: _Grid) -> None:
        if self._grid is grid:
            self._grid, self._opened = None, anyio.Event()

    async def _sampled(self, opening: Opening, ask: Ask, on_text: Callable[[str], None] | None) -> Receipt:
        if ask.seed is not None and not opening.engine.reproducible:
            told = "seed: this daemon's engine draws all its completions from one stream, and knows no seeds"
            raise Refused(told, field="seed", hint="leave it out")
        ids = await encode(opening, ask)
        content = Content(ask.stop, on_text)
        sampled = await opening.answers.sample(
            ids,
            release=opening.release.number,
            seed=secrets.randbits(63) if ask.seed is None else ask.seed % 2**63,
            stop=ask.stop,
            max_new_tokens=ask.max_new_tokens,
            on_text=content.add if on_text else None,
        )
        opening.clock.sampled(len(sampled.token_ids))
        receipt = Receipt(
            id=f"receipt-{secrets.token_hex(16)}",
            run=opening.run,
            step=opening.step,
            prompt_ids=ids,
            sampled=msgspec.structs.replace(sampled, text=content.finish(sampled.text)),
        )
        self._store.give(receipt)
        return receipt

    def _note(self, run: str, place: Coordinate, score: float) -> None:
        """A coordinate has its report: the board shows it, and the run goes on with the last one."""
        self._refused.pop((run, place), None)
        grid = self._grid
        if grid and grid.opening.run == run:
            grid.opening.observer.cell(place, "best" if score > grid.opening.best else "valid")
            grid.opening.missing.discard(place)
            if not grid.opening.missing:
                grid.full.set()

    def _refusals(self, run: RunInfo) -> list[RefusedRelease]:
        return [
            RefusedRelease(group=place.group, rollout=place.rollout, releases=list(releases))
            for (name, place), releases in sorted(self._refused.items())
            if (name, place.step) == (run.run, run.step)
        ]

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._heard < QUIET_SECONDS

    async def _watch(self, run: str) -> None:
        """Tell when the run begins to wait for its harness, and when that is over."""
        told = False
        while True:
            await anyio.sleep(LOOK_SECONDS)
            silent = bool(self.waits(self._store.run(run)))
            if silent != told:
                told = silent
                self._on_change()


def _mixed(refused: RefusedRelease) -> str:
    grid, told = refused.releases
    return (
        f"group {refused.group}, rollout {refused.rollout}: a report of release {told} was refused in a grid of "
        f"release {grid}; sample it again"
    )


def _reported(run: str, filed: Filed) -> Reported:
    step, group, rollout = msgspec.structs.astuple(filed.place)
    return Reported(run=run, receipt=filed.receipt, step=step, group=group, rollout=rollout, accepted=filed.accepted)
