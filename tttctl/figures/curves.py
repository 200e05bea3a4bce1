"""What a run does over its steps: one panel a question, alone or all six in one figure.

    rewards   objective        what was found          valid   time       how the steps went
    divergence   proof         how far the weights moved, and whether the engine serves them

A run whose model stays as it is has nothing to show in the last two, and says so.
"""

# matplotlib's types leave **kwargs open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tttctl.figures import style
from tttctl.figures.history import FROZEN, History, Series

PHASES = ("sample", "judge_wait", "train", "publish", "prove", "retire")
WORDS = {"judge_wait": "judge", "retire": "unload"}
SEPARATED = 60
"""Steps up to which a line is left between their columns."""
WIDE = 30
"""Times that one value is another, from which an axis that shows both is logarithmic."""
SMALL = 0.01
"""Phases that never take more than this share of a step are shown as one."""


def whole(history: History) -> Figure:
    """All panels in one figure."""
    figure = Figure((9.6, 10.2))
    run = history.run
    below = f"{run.task}, {run.mode}, seed {run.seed}, {run.grid.groups} x {run.grid.rollouts} rollouts a step, "
    style.title(figure, run.run, below + f"{run.step} of {run.steps} steps, {run.state}")
    for place, panel in enumerate(PANELS.values()):
        panel(figure.add_subplot(3, 2, place + 1), history)
    return figure


def single(name: str, history: History) -> Figure:
    figure = Figure((5.6, 3.5))
    PANELS[name](figure.add_subplot(), history)
    return figure


def rewards(axes: Axes, history: History) -> None:
    style.heading(axes, "Reward of a step's rollouts")
    names = {"tttd/reward_mean": "mean", "tttd/reward_max": "best of the step", "archive/best_reward": "best so far"}
    _curves(axes, history, names, "this run has no rewards")
    style.upward(axes, "reward (higher is better)")


def objective(axes: Axes, history: History) -> None:
    run = history.run
    name = run.objective_name or "objective"
    style.heading(axes, f"Best {name} against its target")
    found = history.series("archive/best_objective")
    if not found:
        style.absent(axes, "no objective was measured")
        return
    style.upward(axes, f"{name} ({run.direction} is better)")
    style.curve(axes, found.steps, found.values, "best so far", style.look(0), drawstyle="steps-post")
    if run.starter and run.starter.objective is not None:
        style.level(axes, run.starter.objective, f"starter {run.starter.objective:.6g}", (0, (6, 2)), style.SOFT)
    if run.target is not None:
        style.level(axes, run.target, f"target {run.target:.6g}")
    _finish(axes, history)


def valid(axes: Axes, history: History) -> None:
    style.heading(axes, "Share of valid programs")
    names = {"tttd/valid_fraction": "valid", "tttd/truncated_fraction": "answer cut at its token budget"}
    _curves(axes, history, names, "this run has no shares")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(-0.03, 1.03)
    style.upward(axes, "share of the rollouts")


def divergence(axes: Axes, history: History) -> None:
    """Both are estimates of a divergence by a mean, which can be below 0 where it is small."""
    style.heading(axes, "Divergence of the weights")
    names = {"train/kl_base": "trainer from base", "train/sampler_trainer_gap": "sampler from trainer"}
    found = {label: history.series(name) for name, label in names.items()}
    if not any(series and any(series.values) for series in found.values()):
        style.absent(axes, _nothing(history, "no divergence was measured"))
        return
    for index, (label, series) in enumerate(found.items()):
        _magnitudes(axes, series, label, style.look(index, len(found)))
    limits = history.proofs("limit")
    if limits:
        style.levels(axes, limits.steps, limits.values, "sampler limit")
    style.log_scale(axes)
    below = any(value < 0 for series in found.values() for value in series.values)
    style.upward(axes, "KL in nats" + (", hollow: below 0" if below else ""))
    _finish(axes, history)


def proof(axes: Axes, history: History) -> None:
    style.heading(axes, "Does the engine serve the weights?")
    gaps, limits = history.proofs("gap"), history.proofs("limit")
    if not gaps:
        style.absent(axes, _nothing(history, "no step has a proof yet"))
        return
    style.curve(axes, gaps.steps, gaps.values, "gap", style.look(0))
    floors = history.proofs("floor")
    style.levels(axes, floors.steps, floors.values, "floor", color=style.SOFT, linestyle=(0, (6, 2)))
    style.levels(axes, limits.steps, limits.values, "limit")
    top = _scaled(axes, gaps.values + floors.values + limits.values)
    beyond: dict[str, Any] = {
        "facecolor": "#f0f0f0",
        "edgecolor": "#c4c4c4",
        "linewidth": 0.0,
        "hatch": "///",
        "zorder": 0.5,
    }
    edges = style.step_edges(limits.steps)
    axes.stairs([top] * len(limits.steps), edges, baseline=limits.values, fill=True, **beyond)
    axes.set_ylim(0, top)
    style.upward(axes, "mean |log-prob gap| in nats")
    _finish(axes, history)


def time(axes: Axes, history: History) -> None:
    style.heading(axes, "Time of a step by phase")
    layers = _phases(history)
    if not layers:
        style.absent(axes, "no time was measured")
        return
    edges = [history.rows[0].step + 0.5, *(row.step + 1.5 for row in history.rows)]
    below = [0.0] * len(history.rows)
    for index, (phase, seconds) in enumerate(layers.items()):
        above = [a + b for a, b in zip(below, seconds, strict=True)]
        looks = style.look(index)
        stack = partial(
            axes.stairs, above, edges, baseline=below, fill=True, linewidth=0.5 if len(history.rows) < SEPARATED else 0
        )
        stack(facecolor=looks.color, edgecolor=style.PAPER, hatch=looks.hatch, label=WORDS.get(phase, phase))
        below = above
    axes.set_ylim(0, None)
    style.upward(axes, "seconds")
    _finish(axes, history)


PANELS: dict[str, Callable[[Axes, History], None]] = {
    "rewards": rewards,
    "objective": objective,
    "valid": valid,
    "time": time,
    "divergence": divergence,
    "proof": proof,
}


def _curves(axes: Axes, history: History, names: dict[str, str], nothing: str) -> None:
    found = {label: history.series(name) for name, label in names.items()}
    if not any(found.values()):
        style.absent(axes, nothing)
        return
    for index, (label, series) in enumerate(found.items()):
        if series:
            style.curve(axes, series.steps, series.values, label, style.look(index, len(found)))
    _finish(axes, history)


def _magnitudes(axes: Axes, series: Series, label: str, looks: style.Look) -> None:
    """Sizes on a log scale; an estimate below 0 is a hollow mark, one of exactly 0 has no place."""
    found = [(step, value) for step, value in zip(series.steps, series.values, strict=True) if value]
    style.curve(axes, [step for step, _ in found], [abs(value) for _, value in found], label, looks)
    below = [(step, -value) for step, value in found if value < 0]
    if below:
        hollow: dict[str, Any] = {
            "color": looks.color,
            "markerfacecolor": style.PAPER,
            "linestyle": "none",
            "markersize": looks.size,
        }
        xs, ys = zip(*below, strict=True)
        axes.plot(xs, ys, marker=looks.marker, markevery=-(-len(xs) // style.MARKS), **hollow)


def _scaled(axes: Axes, values: list[float]) -> float:
    """The top of an axis from 0, logarithmic where some of `values` could not be told from 0 otherwise."""
    most = max(values)
    if not any(0 < WIDE * value < most for value in values):
        return 1.18 * most
    style.log_scale_to_0(axes, values)
    return 3 * most


def _phases(history: History) -> dict[str, list[float]]:
    """Seconds of each phase that some step has; the wait for the judges is a part of sampling."""
    found = {phase: [row.metrics.get(f"time/{phase}", 0.0) for row in history.rows] for phase in PHASES}
    waits = found["judge_wait"]
    found["sample"] = [max(0.0, whole - wait) for whole, wait in zip(found["sample"], waits, strict=True)]
    totals = [math.fsum(seconds) for seconds in zip(*found.values(), strict=True)]
    large, small = dict[str, list[float]](), list[list[float]]()
    for phase, seconds in found.items():
        if any(part > SMALL * total for part, total in zip(seconds, totals, strict=True)):
            large[phase] = seconds
        else:
            small.append(seconds)
    rest = [math.fsum(seconds) for seconds in zip(*small, strict=True)]
    return large | ({"rest": rest} if large and any(rest) else {})


def _nothing(history: History, otherwise: str) -> str:
    return otherwise if history.trains else FROZEN


def _finish(axes: Axes, history: History) -> None:
    first = history.rows[0].step
    style.steps_axis(axes, history.last)
    axes.set_xlim(first + 0.5, history.last + 0.5)
    style.legend(axes)
