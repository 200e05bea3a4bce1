"""The grid as a heat map: a row of tiles for each group, a tile for each rollout, and how many are in which state.

A grid larger than its panel is shown coarser, and says so: a tile then stands for a block of neighbours, and is `best`
where any of them is, else what most of them are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tttctl.monitor.plan import LEGEND
from tttctl.monitor.text import Line, Span, fit
from tttdd.protocol import CellState

GLYPHS: dict[CellState, str] = {
    "waiting": "·",
    "sampling": "░",
    "judging": "▒",
    "rejected": "×",
    "valid": "■",
    "best": "★",
}
ORDER = tuple(GLYPHS)


class Scale(NamedTuple):
    """How the cells become tiles."""

    groups: int
    rollouts: int
    """Groups and rollouts to a tile, 1 and 1 where each has its own."""
    width: int
    """Columns of a tile."""
    labels: int
    """Columns of the groups' numbers, 0 where there is no room."""


def scale(groups: int, rollouts: int, width: int, height: int) -> Scale:
    """For a grid in `width` x `height` cells, the legend's left out."""
    labels = len(str(groups)) + 1
    labels = labels if width - labels >= rollouts else 0
    room = max(1, width - labels)
    tile = next((tile for tile in (3, 2) if rollouts * tile <= room), 1)
    return Scale(math.ceil(groups / max(1, height)), math.ceil(rollouts / room), tile, labels)


def heat_map(cells: Sequence[Sequence[CellState]], width: int, height: int) -> list[Line]:
    """Tiles on the left, the legend with its counts on the right, where there is room for it."""
    if not cells or height < 1:
        return []
    beside = legend_beside(cells, width, height)
    room = width - LEGEND if beside else width
    sized = scale(len(cells), len(cells[0]), room, height)
    rows = [_row(cells, sized, first) for first in range(0, len(cells), sized.groups)]
    if not beside:
        return rows
    counts = counted(cells)
    legend = [_entry(state, counts[state]) for state in ORDER]
    return [
        (*fit(rows[y] if y < len(rows) else (), room), *(legend[y] if y < len(legend) else ()))
        for y in range(max(len(rows), len(legend)))
    ]


def legend_beside(cells: Sequence[Sequence[CellState]], width: int, height: int) -> bool:
    """Whether there is room for the legend; a tile for each rollout goes before."""
    rollouts = len(cells[0]) if cells else 0
    return height >= len(ORDER) and width >= LEGEND + 20 and not width - LEGEND < rollouts <= width


def counted(cells: Sequence[Sequence[CellState]]) -> Counter[CellState]:
    counts: Counter[CellState] = Counter()
    for row in cells:
        counts.update(row)
    return counts


def coarseness(cells: Sequence[Sequence[CellState]], width: int, height: int) -> str:
    """What a tile stands for, where that is more than one rollout."""
    if not cells:
        return ""
    beside = legend_beside(cells, width, height)
    sized = scale(len(cells), len(cells[0]), width - LEGEND if beside else width, height)
    many = sized.groups * sized.rollouts
    return f"tile {sized.groups}×{sized.rollouts}: best or most" if many > 1 else ""


def _row(cells: Sequence[Sequence[CellState]], sized: Scale, first: int) -> Line:
    tiles = _tiles(tuple(map(tuple, cells[first : first + sized.groups])), sized.rollouts, sized.width)
    label = (Span(f"{first + 1:>{sized.labels - 1}} ", "dim"),) if sized.labels else ()
    return (*label, *tiles)


@lru_cache(maxsize=256)
def _tiles(block: tuple[tuple[CellState, ...], ...], rollouts: int, width: int) -> Line:
    """One row of tiles, neighbours of one state as one span; cached, since most rows do not change."""
    row: Sequence[CellState] = block[0]
    if len(block) > 1 or rollouts > 1:
        row = tuple(
            summary([state for group in block for state in group[start : start + rollouts]])
            for start in range(0, len(row), rollouts)
        )
    spans: list[Span] = []
    start = 0
    for end in range(1, len(row) + 1):
        if end == len(row) or row[end] != row[start]:
            spans.append(Span(_tile(row[start], width) * (end - start), row[start]))
            start = end
    return tuple(spans)


def summary(states: Sequence[CellState]) -> CellState:
    """What stands for them: `best` where any is, else the most frequent, of equal ones the one that is further."""
    if "best" in states:
        return "best"
    counts = Counter(states)
    return max(ORDER, key=lambda state: (counts[state], ORDER.index(state)))


def _tile(state: CellState, width: int) -> str:
    return GLYPHS[state] if width == 1 else GLYPHS[state] * (width - 1) + " "


def _entry(state: CellState, count: int) -> Line:
    return (
        Span(f"{count:>5} ", "text" if count else "dim"),
        Span(f"{GLYPHS[state]} ", state),
        Span(state, "dim"),
    )
