"""What the search has found so far: the best over the steps, how far the target is, the last steps' figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tttctl.monitor.charts import staircase
from tttctl.monitor.text import Line, Span, cut, joined, line, one_line, width_of
from tttctl.render import duration, number
from tttdd.protocol import RunInfo, StepRow

COLUMNS = (
    ("step", 4, "", 0),
    ("best", 10, "archive/best_objective", 8),
    ("reward", 6, "tttd/reward_mean", 4),
    ("valid", 6, "tttd/valid_fraction", 0),
    ("KL", 7, "train/kl_base", 2),
    ("time", 6, "time/step", 0),
    ("gap", 8, "train/sampler_trainer_gap", 2),
)
"""Heading, width, metric, digits; those on the right go first where there is no room."""

DIGITS = (10, 8, 6)
"""Of the best, as many as there is room for."""


def best_lines(run: RunInfo | None, rows: Sequence[StepRow], width: int, height: int) -> list[Line]:
    if run is None:
        return [line(("no run", "dim"))]
    target = run.target if run.best and run.best.objective is not None else None
    last = max(run.steps, run.step)
    return [headline(run, width), *staircase(curve(run, rows), last, target, width, height - 1)]


def headline(run: RunInfo, width: int) -> Line:
    """Where there is no room, digits go, then the end of the objective's name: the target stays."""
    if run.best is None:
        return line(("nothing found yet", "dim"))
    name, value = (
        ("reward", run.best.reward) if run.best.objective is None else (run.objective_name, run.best.objective)
    )
    left = [_distance(run, value, run.target)] if run.target is not None and run.best.objective is not None else []
    room = width - len(one_line(name)) - 1
    told = [joined([line((number(value, digits), "best")), *left]) for digits in DIGITS]
    most = next((tried for tried in told if width_of(tried) <= room), told[-1])
    return line((cut(one_line(name), max(0, width - width_of(most) - 1)) + " ", "dim")) + most


def _distance(run: RunInfo, value: float, target: float) -> Line:
    left = value - target if run.direction == "lower" else target - value
    if left <= 0:
        return line(("★ ", "best"), (f"past the target by {number(-left, 3)}", "good"))
    return line((f"{number(left, 3)} to {number(target, 6)}", "target"))


def curve(run: RunInfo, rows: Sequence[StepRow]) -> tuple[tuple[float, float], ...]:
    """(steps done, best so far), from the starter on."""
    objective = run.best is not None and run.best.objective is not None
    name = "archive/best_objective" if objective else "archive/best_reward"
    points = [(row.step + 1.0, row.metrics[name]) for row in rows if name in row.metrics]
    starter = run.starter.objective if run.starter and objective else run.starter.reward if run.starter else None
    return (((0.0, starter),) if starter is not None and not run.first_step else ()) + tuple(points)


def step_lines(rows: Sequence[StepRow], width: int, height: int) -> list[Line]:
    """The newest at the bottom."""
    columns = [column for i, column in enumerate(COLUMNS) if sum(c[1] + 1 for c in COLUMNS[: i + 1]) - 1 <= width]
    head = line((" ".join(f"{name:>{size}}" for name, size, _, _ in columns), "dim"))
    if not rows:
        return [line(("no step is done yet", "dim"))]
    shown = rows[-max(1, height - 1) :]
    return [head, *(_row(row, columns, row is rows[-1]) for row in shown)]


def _row(row: StepRow, columns: Sequence[tuple[str, int, str, int]], newest: bool) -> Line:
    cells = [f"{_cell(row, name, digits):>{size}}" for name, size, digits in ((c[2], c[1], c[3]) for c in columns)]
    return (Span(" ".join(cells), "strong" if newest else "text"),)


def _cell(row: StepRow, name: str, digits: int) -> str:
    if not name:
        return str(row.step + 1)
    value = row.metrics.get(name)
    if value is None or not math.isfinite(value):
        return "-" if value is None else str(value)
    if name == "tttd/valid_fraction":
        return f"{value:.0%}"
    return duration(value) if name == "time/step" else number(value, digits)
