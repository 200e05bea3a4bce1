"""The named points of a run at which a test cuts it off: what must survive being killed there is tested there.

    reach(Point.STEP_BEGUN)  ->  the listener, if a test has set one; else nothing

Every point is tried with every victim (tests/crash), so a new one needs no test of its own.  The points stand in the
order in which a step comes by them; those of the trainer's process lie inside its one request.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    RUN_TAKEN = "run taken from the queue"
    PLANTED = "seeds planted"
    WORKERS_OPEN = "workers open"
    RELEASE_LOADED = "release loaded by the engine"
    RELEASE_PROVED = "release proved"
    RELEASE_LIVE = "releases before it unloaded"
    PARENTS_SELECTED = "parents selected"
    ROLLOUT_SAMPLED = "rollout sampled"
    ROLLOUT_JUDGED = "rollout judged"
    ROLLOUT_RECORDED = "rollout recorded"
    GRID_FULL = "grid full"
    FILE_WRITTEN = "batch written aside"
    FILE_SYNCED = "batch synced"
    FILE_IN_PLACE = "batch in its place"
    TRANSACTION_FILLED = "transaction filled, not committed"
    TRANSACTION_COMMITTED = "transaction committed"
    STEP_BEGUN = "step begun"
    ENGINE_RESTS = "engine rests"
    OPTIMIZER_STEPPED = "optimizer stepped"
    FOLDER_FILLED = "release written aside"
    FOLDER_SYNCED = "release synced"
    FOLDER_IN_PLACE = "release in its place"
    STEP_TRAINED = "step trained"
    STEP_COMMITTED = "step committed"
    OLD_RELEASES_DELETED = "old releases deleted"
    RUN_DONE = "last step done"


Listener = Callable[[Point, object], None]

listener: Listener | None = None
"""Set by tests only."""


def reach(point: Point, what: object = "") -> None:
    """`what` says which one, where there are many: a rollout, a release."""
    if listener is not None:
        listener(point, what)
