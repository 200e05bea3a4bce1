"""watch RUN, and what submit --wait and demo share: follow a run's snapshots to its end.

    /v1/events -> Status -> Progress (bars on a terminal, a line per change elsewhere); a new row of /steps -> a line

A daemon that restarts is waited for: the run goes on by itself.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from tttctl.client import RESTART_SECONDS, Client, run_path
from tttctl.render import clean, complain, duration, number, show_json
from tttctl.verbs.runs import best_found, describe
from tttdd.protocol import Current, RunInfo, Status, StepRow

ENDED = ("finished", "failed", "cancelled")


def watch(client: Client, options: Namespace) -> int:
    client.get(run_path(options.run), RunInfo)
    return follow_to_end(client, options.run, as_json=options.json, quiet=False)


def follow_to_end(client: Client, name: str, *, as_json: bool, quiet: bool) -> int:
    """Wait for a run's end and show how it ended; 0 if it finished."""
    try:
        run = wait(client, name) if quiet else follow(client, name)
    except KeyboardInterrupt:
        complain(f"{name} goes on without you; follow it with: tttctl watch {name}")
        raise
    if as_json:
        show_json(run)
    else:
        describe(run)
    return 0 if run.state == "finished" else 1


def wait(client: Client, name: str) -> RunInfo:
    return next(run for run, _ in snapshots(client, name) if run.state in ENDED)


def follow(client: Client, name: str, patience: float = RESTART_SECONDS) -> RunInfo:
    """Show progress on stderr until the run ends; a daemon that is gone is waited for `patience` seconds."""
    known = len(client.get(run_path(name, "/steps"), list[StepRow]))
    with Meter() as meter:
        for run, current in snapshots(client, name, patience):
            meter.update(run, current)
            if run.step > known or run.state in ENDED:
                rows = client.get(run_path(name, "/steps"), list[StepRow])
                committed = [row for row in rows if row.phase == "committed"]
                for row in committed[known:]:
                    meter.line(_row(row, run))
                known = max(known, len(committed))
            if run.state in ENDED:
                return run
    raise AssertionError("snapshots end with the run")


def snapshots(client: Client, name: str, patience: float = RESTART_SECONDS) -> Iterator[tuple[RunInfo, Current | None]]:
    """The run in every snapshot, across restarts of the daemon; raises NoDaemon when it stays away."""
    while True:
        client.await_daemon(patience)
        for status in client.events():
            run = next((run for run in status.runs if run.run == name), None)
            if run is not None:
                yield run, _current(status, name)


def _current(status: Status, name: str) -> Current | None:
    return status.current if status.current and status.current.run.run == name else None


class Meter:
    """Progress on stderr: bars on a terminal, else a line whenever what is being done changes."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(None),
            TextColumn("{task.fields[note]}", markup=False),
        ]
        self._bars = Progress(*columns, console=self._console, disable=not self._live)
        self._grid = self._bars.add_task("starting", total=1.0, note="")
        self._steps = self._bars.add_task("steps", total=1.0, note="")
        self._last = self._reason = ""

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def line(self, text: str) -> None:
        self._console.print(clean(text), soft_wrap=not self._console.is_terminal)  # a terminal's lines break at words

    def update(self, run: RunInfo, current: Current | None) -> None:
        eta = duration(current.phase.eta_seconds) if current and run.state != "waiting" else "-"
        self._bars.update(self._steps, total=run.steps, completed=run.step, note=f"{run.step}/{run.steps}, ETA {eta}")
        if run.reason not in ("", self._reason):
            self.line(f"{run.run} {run.state}: {run.reason}")  # in full: a bar's description is cut to fit
        self._reason = run.reason
        if current is None:
            self._doing(run.state, 0.0, "")
        elif current.preparing:
            share = "" if current.progress is None else f"{current.progress:.0%}"
            self._doing(f"preparing {current.preparing}", current.progress, share)
        else:
            self._sampling(run, current)

    def _sampling(self, run: RunInfo, current: Current) -> None:
        cells = [cell for row in current.cells for cell in row]
        judged = [cell for cell in cells if cell in ("rejected", "valid", "best")]
        valid = f"{sum(cell != 'rejected' for cell in judged) / len(judged):.0%} valid, " if judged else ""
        note = f"{len(judged)}/{len(cells)} judged, {valid}best {number(best_found(run), 8)}"
        paused = f", {run.state}" if run.state != "running" else ""
        share = len(judged) / max(1, len(cells)) if current.progress is None else current.progress
        self._doing(f"step {min(run.step + 1, run.steps)} {current.phase.name}{paused}", share, note)

    def _doing(self, what: str, share: float | None, note: str) -> None:
        self._bars.update(self._grid, description=clean(what), total=1.0, completed=share or 0.0, note=clean(note))
        if what != self._last and not self._live:
            self.line(what)
        self._last = what


def _row(row: StepRow, run: RunInfo) -> str:
    m = row.metrics
    best = f"{run.objective_name} {number(m.get('archive/best_objective'), 10)}"
    if run.kind == "external":
        best = f"reward {number(m.get('archive/best_reward'), 10)}"
    return (
        f"step {row.step + 1}/{run.steps}: mean reward {number(m.get('tttd/reward_mean'), 5)}, "
        f"valid {m.get('tttd/valid_fraction', 0.0):.0%}, "
        f"best {best}, "
        f"gap {number(m.get('train/sampler_trainer_gap'), 2)}, KL {number(m.get('train/kl_base'), 3)}, "
        f"{duration(m.get('time/step'))}"
    )
