"""Where each panel lies, for any size: a pure function, so that no size can make panels overlap or leave the screen.

compact: header, phases, devices, grid, best | divergence, queue | log      rules for titles
narrow:  what is wanted, in words
roomy:   header, phases, then grid, best, log | devices, divergence, queue, steps      boxes
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

ROOMY_WIDTH, ROOMY_HEIGHT = 116, 33
WANTED = (80, 24)
"""Columns and rows of a terminal; a few less will do, so that a border or a line of tmux does not count."""
LEAST_WIDTH, LEAST_HEIGHT = 76, 18
"""Below it panels would be without what they are for.  The height is without the keys and the filter."""
RIGHT = 48
"""Columns that the right side needs: a gauge with its limit, five columns of the steps."""
LEGEND = 16
"""Cells that the grid's legend takes."""
PANELS = ("header", "banner", "phases", "devices", "grid", "best", "divergence", "queue", "steps", "log", "narrow")


class Place(NamedTuple):
    x: int
    y: int
    width: int
    height: int


class Needs(msgspec.Struct, frozen=True):
    """What the size of the panels depends on."""

    groups: int = 0
    rollouts: int = 0
    devices: int = 0
    runs: int = 0
    banner: bool = False


def roomy(width: int, height: int) -> bool:
    return width >= ROOMY_WIDTH and height >= ROOMY_HEIGHT


def narrow(width: int, height: int) -> bool:
    """Too small for the dashboard."""
    return width < LEAST_WIDTH or height < LEAST_HEIGHT


def plan(width: int, height: int, needs: Needs) -> dict[str, Place]:
    """Panel -> place; a panel that is not in it has no room."""
    if narrow(width, height):
        return {"narrow": Place(0, 0, width, height)} if width > 0 and height > 0 else {}
    top = 2 if needs.banner else 1
    places = {"header": Place(0, 0, width, 1)} | ({"banner": Place(0, 1, width, 1)} if needs.banner else {})
    rest = _roomy(width, height, top, needs) if roomy(width, height) else _compact(width, height, top, needs)
    inside = {name: _inside(place, height) for name, place in (places | rest).items()}
    return {name: place for name, place in inside.items() if place.height > 0 and place.width > 0}


def _inside(place: Place, height: int) -> Place:
    return place._replace(height=max(0, min(place.height, height - place.y)))


def _compact(width: int, height: int, top: int, needs: Needs) -> dict[str, Place]:
    devices = device_rows(needs.devices, width)
    places = {"phases": Place(0, top, width, 1), "devices": Place(0, top + 1, width, devices)}
    y = top + 1 + devices
    left = height - y
    grid = 1 + min(grid_rows(needs), max(3, left - 11))
    places["grid"] = Place(0, y, width, grid)
    y, left = y + grid, left - grid
    upper = (left + 1) // 2
    half, other = (width - 1) // 2, width - 1 - (width - 1) // 2
    return places | {
        "best": Place(0, y, half, upper),
        "divergence": Place(half + 1, y, other, upper),
        "queue": Place(0, y + upper, half, left - upper),
        "log": Place(half + 1, y + upper, other, left - upper),
    }


def grid_rows(needs: Needs) -> int:
    """A row for each group, six for the legend; one where there is no grid."""
    return max(needs.groups, 6) if needs.groups else 1


def device_rows(devices: int, width: int) -> int:
    """Rows of the devices' panel where rows are dear: at most two."""
    return 1 if devices <= max(1, width // 38) else 2


def _roomy(width: int, height: int, top: int, needs: Needs) -> dict[str, Place]:
    left = _left_width(width, needs)
    right = width - left
    y = top + 4
    room = height - y
    grid = min(2 + grid_rows(needs), max(8, room // 2))
    log = max(5, min(14, (room - grid) // 3))
    devices = min(2 + max(1, needs.devices), 10)
    divergence = 9 if room >= 40 else 7
    queue = max(4, min(2 + max(needs.runs, 2), (room - devices - divergence) // 2))
    steps = room - devices - divergence - queue
    return {
        "phases": Place(0, top, width, 4),
        **_stack(0, y, left, {"grid": grid, "best": room - grid - log, "log": log}),
        **_stack(left, y, right, {"devices": devices, "divergence": divergence, "queue": queue, "steps": steps}),
    }


def _stack(x: int, y: int, width: int, heights: dict[str, int]) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for name, height in heights.items():
        places[name] = Place(x, y, width, height)
        y += height
    return places


def _left_width(width: int, needs: Needs) -> int:
    """As wide as the widest tiles of the grid need, as long as the other column keeps its own."""
    widest = min(width - RIGHT, max(width * 18 // 25, width - 64)) if width < 160 else width - RIGHT
    fits = [
        need for tile in (3, 2, 1) if (need := needs.rollouts * tile + LEGEND + 5 + len(str(needs.groups))) <= widest
    ]
    return max(fits[0] if fits else widest, width * 11 // 20)
