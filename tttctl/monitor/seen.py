"""What the monitor has seen of the daemon, and what is chosen on the screen: all that the views are made of."""

from __future__ import annotations

import msgspec

from tttdd.protocol import Current, RunInfo, Status, StepRow

AT_WORK = ("running", "waiting")
"""waiting: it would work if its harness said more."""
OPEN = (*AT_WORK, "queued", "paused")
ENDED = ("finished", "failed", "cancelled")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    status: Status | None = None
    steps: dict[str, list[StepRow]] = {}
    """Run -> its rows, of the runs that were shown."""
    chosen: str = ""
    """Run under the cursor; empty: whichever run is in hand."""
    search: str = ""
    """Only runs with this in their name, task, state or reason are listed."""
    lost: str = ""
    """Why there is no connection; empty when there is one."""
    lost_since: float = 0.0
    drained: float | None = None
    """When the last rollout of the grid in hand was seen to be sampled; None while one is missing."""

    @property
    def current(self) -> Current | None:
        return self.status.current if self.status else None

    def listed(self) -> list[RunInfo]:
        """The runs that the queue shows: what works, what is taken next, what is paused, then the newest that ended."""
        runs = [run for run in self.status.runs if matches(run, self.search)] if self.status else []
        name = self.current.run.run if self.current else ""
        ended = [run for run in reversed(runs) if run.state in ENDED and run.run != name]
        return [*sorted((run for run in runs if run not in ended), key=lambda run: _rank(run, name)), *ended]

    def shown(self) -> RunInfo | None:
        """The run that keys act on, and whose curves are drawn: the chosen one, the one in hand, or the newest find."""
        runs = self.listed()
        name = self.chosen or (self.current.run.run if self.current else "")
        idle = not any(run.state in AT_WORK for run in runs)
        found = (run for run in runs if run.state == "finished" and idle)
        return next((run for run in runs if run.run == name), next(found, runs[0] if runs else None))

    def held(self, run: RunInfo) -> bool:
        """It would work if the daemon were not paused."""
        return run.state in AT_WORK and self.status is not None and self.status.paused

    def state(self, run: RunInfo) -> str:
        return "held: the daemon is paused" if self.held(run) else run.state

    def rows(self, run: str) -> list[StepRow]:
        """The committed steps of a run."""
        return [row for row in self.steps.get(run, []) if row.phase == "committed"]


def matches(run: RunInfo, search: str) -> bool:
    words = search.casefold().split()
    text = f"{run.run} {run.task} {run.state} {run.mode} {run.reason}".casefold()
    return all(word in text for word in words)


def _rank(run: RunInfo, in_hand: str) -> tuple[bool, int, int]:
    """As the daemon takes them; of equal ones the one that was submitted first, as it lists them."""
    place = OPEN.index(run.state) if run.state in OPEN else 0
    return run.run != in_hand, place, -run.priority


def told(seen: Seen, status: Status, now: float) -> Seen:
    """What is seen once a snapshot has come."""
    cells = status.current.cells if status.current else []
    sampling = any(cell in ("waiting", "sampling") for row in cells for cell in row)
    drained = None if sampling or not cells else seen.drained or now
    return msgspec.structs.replace(seen, status=status, lost="", drained=drained)


def lost(seen: Seen, why: str, now: float) -> Seen:
    return msgspec.structs.replace(seen, lost=why, lost_since=seen.lost_since if seen.lost else now)


def moved(seen: Seen, by: int) -> Seen:
    """The cursor, `by` runs further down, as far as there are any."""
    runs, shown = seen.listed(), seen.shown()
    if shown is None:
        return seen
    place = next(i for i, run in enumerate(runs) if run.run == shown.run)
    return msgspec.structs.replace(seen, chosen=runs[max(0, min(len(runs) - 1, place + by))].run)
