"""compare RUN...: runs of one task, grouped by all that makes an experiment but its seed, at equal rollouts.

    runs -> identity without seed and length -> groups -> cut to the rollouts that all have made -> mean, spread, figure

The spread is over seeds: the sample's standard deviation and the range.  One seed has none, and none is shown.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from typing import Any

import msgspec

from tttctl.client import Client, Failed, run_path
from tttctl.render import number, say, show_json, table
from tttdd.protocol import Error, RunInfo, StepRow, Value

Identity = dict[str, Value]
NOT_COMPARED = ("seed", "grid.steps")
"""A longer run is the same experiment: only the rollouts that all have made are compared."""
BEST, REWARD, MEAN = "archive/best_objective", "archive/best_reward", "tttd/reward_mean"
MEASURES = {BEST: "best_objective", REWARD: "best_reward", MEAN: "mean_reward"}


class One(msgspec.Struct, frozen=True):
    """A run with its own committed steps; those of a run that it goes on from are not its own."""

    run: RunInfo
    rows: list[StepRow]
    identity: Identity

    @property
    def size(self) -> int:
        """Rollouts of a step."""
        return self.run.grid.groups * self.run.grid.rollouts

    def values(self, name: str, rollouts: int) -> list[float]:
        """Of the steps within `rollouts`; none where a step does not have it."""
        rows = self.rows[: rollouts // self.size]
        found = [row.metrics[name] for row in rows if name in row.metrics]
        return found if len(found) == len(rows) else []


class Group(msgspec.Struct, frozen=True):
    label: str
    runs: list[One]


class Spread(msgspec.Struct, frozen=True):
    mean: float
    std: float | None
    """Of the sample; None for one seed."""
    min: float
    max: float


def compare(client: Client, options: Namespace) -> int:
    if options.output:
        from tttctl.verbs.figures import destination  # imports matplotlib

        destination(options.output, "-o", "png", "svg")
    found = [_ask(client, name) for name in options.runs]
    _must_compare(found, options.runs)
    groups, rollouts = grouped(found), common_rollouts(found)
    if options.output:
        _draw(options.output, groups, rollouts)
    if options.json:
        show_json(_document(groups, rollouts, options.output))
    else:
        _tell(groups, rollouts)
        if options.output:
            say(f"{options.output}: the figure")
    return 0


def common_rollouts(found: list[One]) -> int:
    """The most rollouts that every run has made.  Raises Failed where that is not one step of each."""
    made = {one.run.run: len(one.rows) * one.size for one in found}
    least = min(made.values())
    for one in found:
        if one.size > least:
            short = min(made, key=lambda name: made[name])
            told = f"run {one.run.run!r} makes {one.size} rollouts a step, run {short!r} has made {least} in all"
            raise Failed(409, Error(error=told, hint=f"compare them when {short} has made {one.size}"))
    return least


def grouped(found: list[One]) -> list[Group]:
    """In the order in which the runs were named; a label has what differs between the groups, and the mode."""
    groups: dict[bytes, list[One]] = {}
    for one in found:
        groups.setdefault(msgspec.json.encode(sorted(_experiment(one).items())), []).append(one)
    experiments = [_experiment(runs[0]) for runs in groups.values()]
    names = sorted({name for fields in experiments for name in fields})
    differing = [name for name in names if len({repr(fields.get(name)) for fields in experiments}) > 1]
    return [Group(_label(_experiment(runs[0]), differing), runs) for runs in groups.values()]


def spread(values: list[float]) -> Spread:
    return Spread(
        statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, min(values), max(values)
    )


def _ask(client: Client, name: str) -> One:
    run = client.get(run_path(name), RunInfo)
    rows = client.get(run_path(name, "/steps"), list[StepRow])
    own = [row for row in rows if row.phase == "committed" and row.step >= run.first_step]
    if not own:
        hint = f"leave it out, or wait for its first step: tttctl watch {name}"
        raise Failed(409, Error(error=f"run {name!r} has no committed step of its own", hint=hint))
    return One(run, own, client.get(run_path(name, "/identity"), Identity))


def _must_compare(found: list[One], names: list[str]) -> None:
    """Raises Failed for runs of several tasks, and for two of which one tells nothing that the other does not."""
    first = found[0].run
    for one in found:
        if one.run.task != first.task:
            told = f"run {one.run.run!r} is of task {one.run.task!r}, run {first.run!r} of task {first.task!r}"
            raise Failed(400, Error(error=told, hint="only runs of one task can be compared"))
    if twice := {name for name in names if names.count(name) > 1}:
        raise Failed(400, Error(error=f"named twice: {', '.join(sorted(twice))}"))
    for group in grouped(found):
        seeds: dict[int, str] = {}
        for one in group.runs:
            other = seeds.setdefault(one.run.seed, one.run.run)
            if other != one.run.run:
                told = f"runs {other!r} and {one.run.run!r} are the same experiment with the same seed {one.run.seed}"
                raise Failed(400, Error(error=told, hint="a spread is over seeds: name one of them"))


def _experiment(one: One) -> Identity:
    own = {name: value for name, value in one.identity.items() if name not in NOT_COMPARED}
    return own | {
        "mode": one.run.mode,
        "grid.groups": one.run.grid.groups,
        "grid.rollouts": one.run.grid.rollouts,
        "resumed from": one.run.resumed_from,
    }


def _label(fields: Identity, differing: list[str]) -> str:
    told = [f"{name} {_short(fields.get(name))}" for name in differing if name != "mode"]
    return ", ".join([str(fields["mode"]), *told])


def _short(value: Value) -> str:
    """Hashes are told apart by their first characters."""
    text = "-" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else text[:12]


def _measured(group: Group, name: str, rollouts: int) -> Spread | None:
    """At the last step within `rollouts`; None where a run does not have it."""
    found = [one.values(name, rollouts) for one in group.runs]
    return spread([values[-1] for values in found]) if all(found) else None


def _document(groups: list[Group], rollouts: int, output: str | None) -> dict[str, Any]:
    run = groups[0].runs[0].run
    return {
        "task": run.task,
        "objective": run.objective_name,
        "direction": run.direction,
        "target": run.target,
        "rollouts": rollouts,
        "groups": [_group(group, rollouts) for group in groups],
        "files": [output] if output else [],
    }


def _group(group: Group, rollouts: int) -> dict[str, Any]:
    size = group.runs[0].size
    return {
        "label": group.label,
        "mode": group.runs[0].run.mode,
        "runs": [one.run.run for one in group.runs],
        "seeds": [one.run.seed for one in group.runs],
        "rollouts": rollouts // size * size,
        **{told: _measured(group, name, rollouts) for name, told in MEASURES.items()},
    }


def _tell(groups: list[Group], rollouts: int) -> None:
    run = groups[0].runs[0].run
    target = "" if run.target is None else f", target {number(run.target)}"
    say(f"{run.task}: {run.objective_name or 'objective'} ({run.direction} is better{target})")
    longest = max(len(one.rows) * one.size for group in groups for one in group.runs)
    say(f"at {rollouts} rollouts a run" + (", the most that all have made" if longest > rollouts else ""))
    say()
    rows: list[list[str]] = []
    for group in groups:
        rows += _rows(group, rollouts)
    table(["SEEDS", "MEASURE", "MEAN", "STD", "MIN", "MAX", "GROUP"], rows)
    if any(len(group.runs) == 1 for group in groups):
        say("\n-: one seed has no spread")
    for group in groups:
        exact = rollouts // group.runs[0].size * group.runs[0].size
        if exact < rollouts:
            say(f"{group.label}: at {exact} rollouts, its last whole step")


def _rows(group: Group, rollouts: int) -> list[list[str]]:
    names = {BEST: "best objective", REWARD: "best reward", MEAN: "mean reward, last step"}
    rows: list[list[str]] = []
    for name, told in names.items():
        if found := _measured(group, name, rollouts):
            figures = [number(value, 7) for value in (found.mean, found.std, found.min, found.max)]
            if len(group.runs) == 1:
                figures[2:] = ["-", "-"]
            rows.append([str(len(group.runs)), told, *figures, group.label])
    return rows


def _draw(output: str, groups: list[Group], rollouts: int) -> None:
    from tttctl.figures import comparison
    from tttctl.verbs.figures import destination, image

    run = groups[0].runs[0].run
    objective = f"{run.objective_name or 'objective'} ({run.direction} is better)"
    measures = [
        comparison.Measure(BEST, "Best objective so far", objective, run.target),
        comparison.Measure(MEAN, "Mean reward of a step", "reward (higher is better)"),
    ]
    measures = [measure for measure in measures if all(_measured(group, measure.name, rollouts) for group in groups)]
    curves = [_curves(group, [measure.name for measure in measures], rollouts) for group in groups]
    below = "lines: mean over seeds; bands: smallest to largest; cut to the rollouts that all have made"
    image(destination(output, "-o", "png", "svg"), lambda: comparison.whole(run.task, below, measures, curves))


def _curves(group: Group, names: list[str], rollouts: int) -> Any:
    from tttctl.figures.comparison import Curves

    size = group.runs[0].size
    count = len(group.runs)
    label = f"{group.label} ({count} seed{'' if count == 1 else 's'})"
    at = [size * (step + 1) for step in range(rollouts // size)]
    return Curves(label, at, {name: [one.values(name, rollouts) for one in group.runs] for name in names})
