"""The texts of the dialogs: a run's details, the tasks, the help."""

from __future__ import annotations

from collections.abc import Sequence

from tttctl.monitor.divergence import JUMP
from tttctl.monitor.grid import GLYPHS
from tttctl.monitor.progress import step_lines
from tttctl.monitor.text import Line, Span, line, one_line, sentences, wrapped
from tttctl.render import moment, number
from tttdd.protocol import Best, CellState, NodeInfo, RunInfo, StepRow, TaskInfo

LABEL = 11


def details(run: RunInfo, state: str, rows: Sequence[StepRow], width: int) -> list[Line]:
    facts = [
        ("state", f"{state}, {MODES[run.mode]}"),
        ("kind", "external: a harness samples and judges" if run.kind == "external" else ""),
        ("task", f"{run.task}, seed {run.seed}, grid {run.grid.groups} × {run.grid.rollouts}"),
        ("steps", f"{run.step} of {run.steps} committed, release {run.release}"),
        ("created", moment(run.created)),
        ("starter", _found(run, run.starter)),
        ("best", _found(run, run.best)),
        ("target", f"{run.objective_name} {number(run.target, 12)}, {run.direction} is better" if run.target else ""),
        ("priority", str(run.priority) if run.priority else ""),
        ("goes on", f"from {run.resumed_from}, its first {run.first_step} steps" if run.resumed_from else ""),
        ("waits", "for room on the disk; it goes on by itself" if run.waits_for_room else ""),
        ("kept in", run.state_dir),
    ]
    reason = [(), line(("reason", "title")), *wrapped(run.reason.strip(), width)] if run.reason.strip() else []
    facts_lines = [row for name, value in facts if value for row in _fact(name, value, width)]
    return [*facts_lines, *reason, (), line(("steps", "title")), *step_lines(rows, width, len(rows) + 1)]


MODES = {
    "discover": "search with training",
    "search": "search with the frozen model",
    "best-of-n": "best of n: frozen model, every rollout from the starter",
}


def _found(run: RunInfo, best: Best | None) -> str:
    if best is None:
        return ""
    objective = f"{run.objective_name} {number(best.objective, 12)}, " if best.objective is not None else ""
    return f"{objective}reward {number(best.reward, 12)}, node {best.node}" + (
        f", step {best.step + 1}" if best.step >= 0 else ""
    )


def _fact(name: str, value: str, width: int) -> list[Line]:
    rows = wrapped(one_line(value), max(8, width - LABEL))
    return [(Span(f"{name if i == 0 else '':<{LABEL}}", "dim"), *row) for i, row in enumerate(rows)]


def tasks(found: Sequence[TaskInfo], width: int) -> list[Line]:
    lines: list[Line] = []
    for task in found:
        target = f", target {number(task.target, 10)}" if task.target is not None else ""
        lines += [
            line((one_line(task.name), "title")),
            *wrapped(one_line(task.title), width),
            line((f"{one_line(task.objective)}, {task.direction} is better{target}; {task.time_limit:g} s", "dim")),
            (),
        ]
    return lines or [line(("no tasks", "dim"))]


def about(node: NodeInfo, run: RunInfo) -> str:
    """What matters first: a title is cut at its end."""
    objective = f"{run.objective_name} {number(node.objective, 10)}, " if node.objective is not None else ""
    origin = "starter" if node.seed else f"step {node.step + 1}"
    return f"{objective}node {node.node}, {origin} · {run.run} · reward {number(node.reward, 6)}"


KEYS = (
    ("↑ ↓ j k", "choose a run; a click does, too"),
    ("p  r  c", "pause, resume, cancel (asks) the chosen run"),
    ("P  R", "pause, resume the whole daemon"),
    ("enter", "the chosen run's details; a click on it does, too"),
    ("b", "its best program, with a figure where the task has one"),
    ("t", "the tasks"),
    ("/", "filter the queue by words; esc ends it, and follows the work"),
    ("d", "dark or light"),
    ("?", "this help"),
    ("q", "quit; the daemon works on"),
)
STATES: dict[CellState, str] = {
    "waiting": "not begun",
    "sampling": "the model writes",
    "judging": "the program runs in the sandbox",
    "rejected": "no program, or one that broke a rule",
    "valid": "accepted",
    "best": "better than everything before this step",
}
COARSE = (
    "A grid that is larger than its panel is shown coarser: tile 4×8 says that a tile is 4 groups × 8 rollouts. "
    "It is the best where one of them is, else what most of them are. The counts are always of all rollouts."
)
ALARMS = (
    "sampler–trainer gap: the mean log-probability that the sampler gave to the sampled tokens, less what the trainer "
    "gives them (nats a token). Near zero when both compute the same model. Alarm: above the serving proof's limit, "
    "which the daemon measures: the larger of 0.01 and 3 × the gap under the base model.",
    "KL to the base: how far the model has moved. The daemon sets no limit. Alarm: it had been above the proof's limit "
    "and is now within the measured floor (most likely the base model is served), or it jumped in one step beyond "
    f"{JUMP:g} × its farthest so far.",
    "serving proof: after every publish, engine against trainer on a fixed probe. Alarm: above its limit, or the "
    "engine has made less than half of the trainer's move since the release before; the percentage is how much of it.",
    "A run with a frozen model has none of these.",
)


def help_lines(width: int) -> list[Line]:
    keys = [line((f"{key:<10}", "accent"), what) for key, what in KEYS]
    cells = [line((f"{GLYPHS[state]} ", state), (f"{state:<10}", "dim"), what) for state, what in STATES.items()]
    alarms = [row for part in ALARMS for row in (*sentences(part, width), ())]
    return [
        line(("keys", "title")),
        *keys,
        (),
        line(("the grid: a row for each group, a tile for each rollout", "title")),
        *cells,
        *sentences(COARSE, width),
        (),
        line(("what is alarming", "title")),
        *alarms,
    ]
