"""What the queue needs of the world, beyond the ports of one run.

RunStore  every run: its record, its state, and what is shown of it
Room      space on the disk
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tttdd.domain.archive import Archive
from tttdd.domain.grid import Coordinate
from tttdd.domain.identity import Value
from tttdd.ports import Receipt, Report, Store
from tttdd.protocol import GridSize, Kind, Mode, NodeInfo, RunInfo, RunState, StepRow


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is opened with."""

    name: str
    task: str
    seed: int
    steps: int
    grid: GridSize
    identity: dict[str, Value]
    created: float
    """Unix time, seconds."""
    priority: int = 0
    """Of the queued runs the highest is taken first."""
    mode: Mode = "discover"
    kind: Kind = "task"
    origin: str | None = None
    """Run whose newest committed release and archive it goes on from; `steps` counts that run's, too."""


class RunStore(Store, Protocol):
    """What the queue needs beyond one run's memory."""

    def open_run(self, record: RunRecord) -> None:
        """A new run, queued, with release 0 and an empty archive; or with those of its origin."""
        ...

    def plant(self, run: str, archive: Archive, identity: dict[str, Value], artifact: str = "") -> None:
        """The run's seeds and its whole identity, at once, before its first step."""
        ...

    def is_free(self, run: str) -> bool:
        """Whether a run of that name can be opened: nothing of that name is kept."""
        ...

    def set_state(self, run: str, state: RunState, reason: str = "", *, waits: bool = False) -> None:
        """`waits`: paused until there is room on the disk."""
        ...

    def set_paused(self, paused: bool) -> None:
        """Whether the whole daemon is paused, also after its next start."""
        ...

    def paused(self) -> bool: ...

    def runs(self) -> list[RunInfo]:
        """All runs, in the order of their submission."""
        ...

    def run(self, run: str) -> RunInfo: ...

    def identity(self, run: str) -> dict[str, Value]: ...

    def judged(self, run: str) -> list[tuple[Coordinate, bool]]:
        """The coordinates of the step in hand that are recorded, and whether their programs are valid."""
        ...

    def give(self, receipt: Receipt) -> None:
        """Keep a completion, durably, so that its receipt can be given."""
        ...

    def receipt(self, id: str) -> Receipt | None: ...

    def seed(self, run: str, group: int) -> int:
        """Id of the seed that stands for a group of an external run."""
        ...

    def report(self, run: str, report_id: str) -> Report | None: ...

    def steps(self, run: str) -> list[StepRow]: ...

    def nodes(self, run: str, limit: int) -> list[NodeInfo]:
        """The archive's best nodes, without their programs."""
        ...

    def node(self, run: str, node: int) -> NodeInfo | None:
        """One node, pruned or not, with its program, output and lineage."""
        ...

    def artifact(self, run: str, sha256: str) -> str | None:
        """JSON that a program of the archive returned; None where it is not kept."""
        ...


class Room(Protocol):
    """On the disk, for a run to go on."""

    def needed(self, run: str) -> int:
        """Bytes."""
        ...

    def enough(self, run: str) -> bool:
        """Whether that much is free.  May take a while."""
        ...
