"""Groups of runs over the rollouts they have made: the mean over seeds as a line, smallest to largest as a band.

A group of one seed is a line without a band.
"""

# matplotlib's types leave **kwargs open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import statistics

import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tttctl.figures import style

MANY_WORDS = 76
"""Characters of a legend's row."""


class Curves(msgspec.Struct, frozen=True):
    """One group's: by measure, the values of each of its runs at `rollouts`."""

    label: str
    rollouts: list[int]
    runs: dict[str, list[list[float]]]


class Measure(msgspec.Struct, frozen=True):
    name: str
    """Of the metric."""
    title: str
    unit: str
    target: float | None = None


def whole(heading: str, below: str, measures: list[Measure], groups: list[Curves]) -> Figure:
    figure = Figure((9.6, 4.7 + 0.16 * len(groups)))
    style.title(figure, heading, below)
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    for axes, measure in zip(panels, measures, strict=True):
        _draw(axes, measure, groups)
    handles, labels = panels[0].get_legend_handles_labels()
    room = max(map(len, labels), default=1) + 6
    figure.legend(handles, labels, loc="outside lower left", ncols=max(1, min(len(labels), 2 * MANY_WORDS // room)))
    return figure


def _draw(axes: Axes, measure: Measure, groups: list[Curves]) -> None:
    style.heading(axes, measure.title, legend=False)
    for index, group in enumerate(groups):
        _one(axes, group, group.runs[measure.name], style.look(index, len(groups)))
    if measure.target is not None:
        style.level(axes, measure.target, f"target {measure.target:.6g}")
    axes.set_xlim(0, None)
    axes.set_xlabel("rollouts made")
    style.upward(axes, measure.unit)


def _one(axes: Axes, group: Curves, runs: list[list[float]], looks: style.Look) -> None:
    columns = list(zip(*runs, strict=True))
    style.curve(axes, group.rollouts, [statistics.fmean(values) for values in columns], group.label, looks, zorder=3)
    if len(runs) < 2:
        return
    low, high = [min(values) for values in columns], [max(values) for values in columns]
    axes.fill_between(group.rollouts, low, high, facecolor=looks.color, alpha=0.13, linewidth=0)
    for edge in (low, high):
        axes.plot(group.rollouts, edge, color=looks.color, linestyle=looks.line, linewidth=0.6, alpha=0.75)
