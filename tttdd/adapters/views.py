"""What the API and the CLI are shown of the state database: runs, steps, nodes, releases.

Reading only.  `SqliteStore` adds what the algorithm reads and everything that writes.
"""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from typing import Any

from judges.verdict import Verdict
from tttdd.adapters import rows
from tttdd.adapters.database import Database
from tttdd.domain.grid import Coordinate
from tttdd.domain.identity import Value
from tttdd.ports import Receipt, Report, StoreError
from tttdd.protocol import Best, NodeInfo, RunInfo, StepRow

NOTHING = hashlib.sha256(b"").hexdigest()
"""The program of a seed that starts from nothing."""


class Views:
    def __init__(self, database: Database, state_dir: Path) -> None:
        self._database, self._state_dir = database, state_dir

    def runs(self) -> list[RunInfo]:
        """All runs, in the order of their submission."""
        return [self._run_info(row) for row in self._database.all("SELECT * FROM runs ORDER BY number")]

    def run(self, run: str) -> RunInfo:
        return self._run_info(self._row(run))

    def is_free(self, run: str) -> bool:
        """Whether there is neither a run nor a folder of that name."""
        folder = self._state_dir / "runs" / run
        return not folder.exists() and not self._database.one("SELECT 1 FROM runs WHERE name = ?", run)

    def paused(self) -> bool:
        return bool(self._one("SELECT paused FROM daemon")["paused"])

    def identity(self, run: str) -> dict[str, Value]:
        return rows.from_json(self._row(run), "identity", dict[str, Value])

    def judged(self, run: str) -> list[tuple[Coordinate, bool]]:
        found = self._database.all(
            "SELECT rollouts.step, grid_group, rollout, verdict FROM rollouts JOIN runs ON name = run"
            " WHERE run = ? AND rollouts.step = runs.step",
            run,
        )
        verdicts = [rows.from_json(row, "verdict", Verdict) for row in found]
        return [(Coordinate(*tuple(row)[:3]), verdict.valid) for row, verdict in zip(found, verdicts, strict=True)]

    def steps(self, run: str) -> list[StepRow]:
        return [
            rows.step_row(row) for row in self._database.all("SELECT * FROM steps WHERE run = ? ORDER BY step", run)
        ]

    def nodes(self, run: str, limit: int = 100) -> list[NodeInfo]:
        """Nodes of the archive, best first, without their programs."""
        found = self._database.all(
            "SELECT * FROM nodes WHERE run = ? AND NOT pruned ORDER BY reward DESC, id LIMIT ?", run, limit
        )
        return [rows.node_info(row) for row in found]

    def node(self, run: str, node: int) -> NodeInfo | None:
        """One node, pruned or not, with its program, its output and its lineage through pruned nodes."""
        row = self._database.one(
            "SELECT nodes.*, source FROM nodes JOIN programs ON program = sha256 WHERE run = ? AND id = ?", run, node
        )
        if row is None:
            return None
        lineage = self._lineage(run, row["parent"])
        return rows.node_info(row, program=row["source"], output=row["output"], lineage=lineage)

    def artifact(self, run: str, sha256: str) -> str | None:
        row = self._database.one("SELECT json FROM artifacts WHERE run = ? AND sha256 = ?", run, sha256)
        return rows.artifact(row) if row else None

    def receipt(self, id: str) -> Receipt | None:
        row = self._database.one("SELECT * FROM receipts WHERE id = ?", id)
        return rows.receipt(row) if row else None

    def seed(self, run: str, group: int) -> int:
        """Id of the seed that stands for a group of an external run."""
        row = self._one("SELECT id FROM nodes WHERE run = ? AND seed ORDER BY id LIMIT 1 OFFSET ?", run, group)
        return row["id"]

    def report(self, run: str, report_id: str) -> Report | None:
        row = self._database.one("SELECT * FROM reports WHERE run = ? AND report_id = ?", run, report_id)
        return rows.report(row) if row else None

    def best(self, run: str) -> Best | None:
        """The best program ever found; a starter's, if nothing beat it; None before there is a program."""
        row = self._database.one(
            "SELECT * FROM nodes WHERE run = ? AND NOT (seed AND program = ?) ORDER BY reward DESC, id LIMIT 1",
            *(run, NOTHING),
        )
        return rows.best(row) if row else None

    def starter(self, run: str) -> Best | None:
        """The starter program's result; None when the run began from nothing."""
        row = self._database.one(
            "SELECT nodes.* FROM nodes JOIN programs ON program = sha256"
            " WHERE run = ? AND seed AND source != '' ORDER BY id LIMIT 1",
            run,
        )
        return rows.best(row) if row else None

    def _one(self, query: str, *values: Any) -> sqlite3.Row:
        row = self._database.one(query, *values)
        if row is None:
            raise StoreError(f"the state database lacks a row: {query} {values}")
        return row

    def _row(self, run: str) -> sqlite3.Row:
        row = self._database.one("SELECT * FROM runs WHERE name = ?", run)
        if row is None:
            raise StoreError(f"there is no run named {run!r}")
        return row

    def _run_info(self, row: sqlite3.Row) -> RunInfo:
        return rows.run_info(row, self.starter(row["name"]), self.best(row["name"]), str(self._state_dir))

    def _lineage(self, run: str, parent: int | None) -> list[int]:
        found = self._database.all(
            "WITH RECURSIVE up (id, depth) AS (VALUES (?, 0) UNION ALL"
            " SELECT parent, depth + 1 FROM up JOIN nodes USING (id) WHERE run = ? AND parent NOTNULL)"
            " SELECT id FROM up WHERE id NOTNULL ORDER BY depth",
            *(parent, run),
        )
        return [row["id"] for row in found]
