"""Where the best program comes from: its ancestors from the seed on, each at the step that found it.

In grey the best of the whole archive over the steps: an ancestor need not have been the best of its time.
"""

# matplotlib's types leave **kwargs open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tttctl.figures import labels, style
from tttctl.figures.history import History
from tttdd.protocol import NodeInfo

LABELLED = 24


def whole(history: History, line: Sequence[NodeInfo]) -> Figure:
    """`line`: from the root to the best program."""
    figure = Figure((8.0, 4.4))
    many = len(line) - 1
    style.title(figure, history.run.run, _told(line, many))
    draw(figure.add_subplot(), history, line)
    return figure


def single(history: History, line: Sequence[NodeInfo]) -> Figure:
    """Without a title of its own, wide and low."""
    figure = Figure((9.0, 3.8))
    draw(figure.add_subplot(), history, line)
    return figure


def draw(axes: Axes, history: History, line: Sequence[NodeInfo]) -> None:
    style.heading(axes, "Ancestors of the best program")
    objectives = all(node.objective is not None for node in line)
    values = [_value(node, objectives) for node in line]
    name = history.run.objective_name or "objective"
    around = history.series("archive/best_objective" if objectives else "archive/best_reward")
    axes.plot(
        around.steps, around.values, drawstyle="steps-post", color="#9a9a9a", linewidth=1.2, label="best of the archive"
    )
    looks = style.look(0)
    steps = [node.step + 1 for node in line]
    axes.plot(steps, values, color=looks.color, marker=looks.marker, label="its ancestors")
    star: dict[str, Any] = {"color": style.look(1).color, "marker": "*", "markersize": 12, "linestyle": "none"}
    axes.plot(steps[-1:], values[-1:], label=f"best: node {line[-1].node}, {values[-1]:.8g}", **star)
    style.upward(axes, f"{name} ({history.run.direction} is better)" if objectives else "reward")
    style.steps_axis(axes, history.last, "step that found it (0: given at the start)")
    axes.set_xlim(min(steps[0], history.rows[0].step) - 0.5, history.last + 0.5)
    axes.margins(y=0.16)
    style.legend(axes)
    points = list(zip(steps, values, strict=True))
    order = _by_importance(len(line))
    words = [_words(line[i], values[i]) for i in order]
    corners = list(zip(around.steps, around.values, strict=True))
    labels.label(axes, [points[i] for i in order], words, [points, corners], fontsize=8)


def _by_importance(count: int) -> list[int]:
    """The root, then the rest from the newest on; the best has its words in the legend."""
    return list(range(count - 1))[:1] + list(range(count - 2, 0, -1))[: LABELLED - 1]


def _words(node: NodeInfo, value: float) -> str:
    return f"node {node.node}: {value:.6g}"


def _value(node: NodeInfo, objectives: bool) -> float:
    return node.objective if objectives and node.objective is not None else node.reward


def _told(line: Sequence[NodeInfo], many: int) -> str:
    if not many:
        return f"node {line[-1].node} was given at the start: nothing better was found"
    found = f"node {line[-1].node}, found in step {line[-1].step + 1}"
    return f"{found}, {many} generation{'s' if many > 1 else ''} after node {line[0].node}"
