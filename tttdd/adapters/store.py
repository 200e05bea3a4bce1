"""The port `Store` on SQLite: a run's only memory, kept in <state_dir>/archive.sqlite3.

    open_run -> Ready -> record, record, ... -> begin -> Pending -> commit -> Ready ...

Every method that writes is one durable transaction and refuses what does not follow from the stored state, so a
caller that crashed and comes back can only go on.  Paths are kept relative to <state_dir>/runs/<run>/: a state_dir
can be moved.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from tttdd.adapters import inserts, rows
from tttdd.adapters.database import Database
from tttdd.adapters.views import Views
from tttdd.domain.archive import Archive
from tttdd.domain.grid import Coordinate, SecondRelease
from tttdd.domain.identity import Value
from tttdd.durable import link_folder, make_folder
from tttdd.errors import Conflict
from tttdd.ports import Pending, Ready, Receipt, Release, Report, Rollout, StoreError
from tttdd.protocol import Proof, RunState
from tttdd.run_ports import RunRecord

__all__ = ["SqliteStore", "StoreError"]


class SqliteStore(Views):
    def __init__(self, state_dir: Path) -> None:
        """Opens or creates the database; raises StoreError when it is newer than this program or no database."""
        make_folder(state_dir)
        super().__init__(Database(state_dir / "archive.sqlite3"), state_dir)

    def close(self) -> None:
        self._database.close()

    # Writing: one transaction each

    def open_run(self, record: RunRecord) -> None:
        """A new run, queued, with release 0 and an empty archive, or with those of its origin.

        Raises StoreError when the name is taken, Conflict where its folder is there or the origin's release is not.
        """
        folder = self._folder(record.name)
        if self._database.one("SELECT 1 FROM runs WHERE name = ?", record.name):
            raise StoreError(f"a run named {record.name!r} exists already")
        if folder.exists():
            told = f"{folder} is there already"
            raise Conflict(told, field="name", hint="choose another name, or move the folder away")
        with _removed_unless_good(folder), self._database.transaction():
            (number,) = self._one("SELECT coalesce(max(number), -1) + 1 FROM runs")
            self._database.change(
                "INSERT INTO runs"
                " (name, task, state, seed, steps, groups, rollouts, identity, created, number, priority, mode, kind)"
                " VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                *(record.name, record.task, record.seed, record.steps, record.grid.groups, record.grid.rollouts),
                *(rows.to_json(record.identity), record.created, number, record.priority, record.mode, record.kind),
            )
            self._add_release(record.name, Release(0), step=-1, load_id="")
            make_folder(folder)
            if record.origin is not None:
                self._go_on_from(record.name, record.origin)

    def plant(self, run: str, archive: Archive, identity: dict[str, Value], artifact: str = "") -> None:
        """The run's seeds, what they returned and its whole identity, at once; raises StoreError when it has seeds."""
        with self._database.transaction():
            if self._database.one("SELECT 1 FROM nodes WHERE run = ?", run):
                raise StoreError(f"run {run} is planted already")
            self._database.change("UPDATE runs SET identity = ? WHERE name = ?", rows.to_json(identity), run)
            inserts.archive(self._database, run, archive)
            inserts.artifact(self._database, run, archive.seeds[0].artifact_sha256, artifact)

    def set_state(self, run: str, state: RunState, reason: str = "", *, waits: bool = False) -> None:
        self._row(run)
        with self._database.transaction():
            self._database.change(
                "UPDATE runs SET state = ?, reason = ?, waits = ? WHERE name = ?", state, reason, waits, run
            )

    def set_paused(self, paused: bool) -> None:
        with self._database.transaction():
            self._database.change("UPDATE daemon SET paused = ?", paused)

    def record(self, run: str, rollout: Rollout, report: Report | None = None) -> bool:
        """Keep a judged rollout, and the report that a harness made of it; False if its coordinate was taken already
        (the first one stays).

        Raises SecondRelease for a rollout of another release than the run's, StoreError for one outside the grid
        that is being sampled.
        """
        with self._database.transaction():
            row, place = self._row(run), rollout.coordinate
            added = not self._is_taken(run, place)
            if added:
                self._check_place(row, place)
                if rollout.sampled.release != row["release"]:
                    raise SecondRelease(place, row["release"], rollout.sampled.release)
                inserts.rollout(self._database, run, rollout)
                inserts.sample(self._database, run, rollout)
            if report and (added or report.report_id is not None):
                inserts.report(self._database, run, replace(report, accepted=added))
        return added

    def give(self, receipt: Receipt) -> None:
        """Keep a completion, durably, so that its receipt can be given."""
        with self._database.transaction():
            inserts.receipt(self._database, receipt)

    def begin(self, run: str, step: int, archive: Archive, batch: Path | None, metrics: dict[str, float]) -> None:
        """Ready -> Pending: archive, visits, pruning, batch reference and the grid's metrics, at once."""
        with self._database.transaction():
            row = self._row(run)
            self._expect(row, step, "ready")
            self._check_full(row)
            inserts.archive(self._database, run, archive)
            self._database.change(
                "DELETE FROM artifacts WHERE run = ?1"
                " AND sha256 NOT IN (SELECT artifact FROM nodes WHERE run = ?1 AND NOT pruned)",
                run,
            )
            self._database.change(
                "INSERT INTO steps (run, step, phase, release, batch, metrics) VALUES (?, ?, 'pending', ?, ?, ?)",
                *(run, step, row["release"], self._relative(run, batch) if batch else "", rows.to_json(metrics)),
            )
            self._database.change("UPDATE runs SET phase = 'pending' WHERE name = ?", run)

    def commit(self, run: str, step: int, release: Release, proof: Proof | None, metrics: dict[str, float]) -> None:
        """Pending -> Ready(step + 1, release): release, proof and the step's whole metrics row, at once.  Without a
        proof the release is the one that the step began with: nothing was trained."""
        with self._database.transaction():
            row = self._row(run)
            self._expect(row, step, "pending")
            proved = proof.release if proof else row["release"]
            if release.number != proved or proved != row["release"] + (proof is not None):
                raise StoreError(
                    f"run {run}: step {step} was sampled under release {row['release']}; it cannot end with release "
                    f"{release.number}, proved {proof and proof.release}"
                )
            if proof:
                self._add_release(run, release, step=step, load_id=proof.load_id)
            self._database.change(
                "UPDATE steps SET phase = 'committed', metrics = ?, proof = ? WHERE run = ? AND step = ?",
                *(rows.to_json(metrics), proof and rows.to_json(proof), run, step),
            )
            self._database.change(
                "UPDATE runs SET phase = 'ready', step = step + 1, release = ? WHERE name = ?", release.number, run
            )
            self._database.change("DELETE FROM samples WHERE run = ? AND step = ?", run, step)
            inserts.forget_receipts(self._database, run, release.number)

    # Reading: what the algorithm goes on from

    def state(self, run: str) -> Ready | Pending:
        row = self._row(run)
        release = self._release(run, row["release"])
        if row["phase"] == "ready":
            return Ready(row["step"], release)
        step = self._one("SELECT batch, metrics FROM steps WHERE run = ? AND step = ?", run, row["step"])
        metrics = rows.from_json(step, "metrics", dict[str, float])
        batch = self._folder(run) / step["batch"] if step["batch"] else None
        return Pending(row["step"], release, batch, metrics)

    def archive(self, run: str) -> Archive:
        row = self._row(run)
        births = self._database.all("SELECT parent, reward, id FROM nodes WHERE run = ? AND parent NOTNULL", run)
        (last,) = self._one("SELECT coalesce(max(id), -1) FROM nodes WHERE run = ?", run)
        nodes = self._database.all(
            "SELECT nodes.*, source FROM nodes JOIN programs ON program = sha256"
            " WHERE run = ? AND NOT pruned ORDER BY id",
            run,
        )
        return Archive(
            map(rows.node, nodes),
            expansions=row["expansions"],
            next_id=last + 1,
            births=((birth["parent"], birth["reward"], birth["id"]) for birth in births),
        )

    def rollouts(self, run: str, step: int) -> list[Rollout]:
        """What was recorded of an uncommitted `step`, in coordinate order."""
        recorded = self._database.all(
            "SELECT rollouts.*, token_ids, logprobs, loss_mask, text, prompt_ids, source"
            " FROM rollouts JOIN samples USING (run, step, grid_group, rollout) LEFT JOIN programs ON program = sha256"
            " WHERE run = ? AND step = ? ORDER BY grid_group, rollout",
            *(run, step),
        )
        return [rows.rollout(row) for row in recorded]

    def kept_releases(self, run: str, keep: int) -> set[int]:
        """Numbers of the `keep` newest committed releases and of the one that sampled the best program."""
        newest = self._database.all("SELECT number FROM releases WHERE run = ? ORDER BY number DESC LIMIT ?", run, keep)
        top = self.best(run)
        step = top.step if top else -1
        sampled = self._database.all("SELECT release FROM steps WHERE run = ? AND step = ?", run, step)
        return {row["number"] for row in newest} | {row["release"] for row in sampled}

    # Parts of the above

    def _expect(self, row: sqlite3.Row, step: int, phase: str) -> None:
        if (row["step"], row["phase"]) != (step, phase):
            raise StoreError(f"run {row['name']} is at step {row['step']}, {row['phase']}; not at step {step}, {phase}")

    def _check_place(self, row: sqlite3.Row, place: Coordinate) -> None:
        self._expect(row, place.step, "ready")
        if not (0 <= place.group < row["groups"] and 0 <= place.rollout < row["rollouts"]):
            raise StoreError(
                f"run {row['name']} has {row['groups']} x {row['rollouts']} rollouts; no place for {place}"
            )

    def _is_taken(self, run: str, place: Coordinate) -> bool:
        return None is not self._database.one(
            "SELECT 1 FROM rollouts WHERE run = ? AND step = ? AND grid_group = ? AND rollout = ?",
            *(run, place.step, place.group, place.rollout),
        )

    def _check_full(self, row: sqlite3.Row) -> None:
        recorded = self._database.all(
            "SELECT release, count(*) AS count FROM rollouts WHERE run = ? AND step = ? GROUP BY release",
            *(row["name"], row["step"]),
        )
        if [(r["release"], r["count"]) for r in recorded] != [(row["release"], row["groups"] * row["rollouts"])]:
            held = ", ".join(f"{r['count']} rollouts of release {r['release']}" for r in recorded) or "no rollout"
            raise StoreError(
                f"run {row['name']}: the grid of step {row['step']} holds {held}; it takes {row['groups']} x "
                f"{row['rollouts']} of release {row['release']}"
            )

    def _add_release(self, run: str, release: Release, *, step: int, load_id: str) -> None:
        path = None if release.path is None else self._relative(run, release.path)
        self._database.change(
            "INSERT INTO releases (run, number, step, path, load_id, created) VALUES (?, ?, ?, ?, ?, ?)",
            *(run, release.number, step, path, load_id, time.time()),
        )

    def _go_on_from(self, run: str, origin: str) -> None:
        """Release and archive of `origin`, its ids and numbers kept; the release's files are shared with it."""
        row = self._row(origin)
        release = self._release(origin, row["release"])
        if release.path is not None:
            if not (release.path / "release.json").is_file():
                told = f"release {release.number} of run {origin!r} is not there: {release.path}"
                raise Conflict(told, field="resume_from")
            shared = self._folder(run) / release.path.relative_to(self._folder(origin))
            link_folder(release.path, shared)
            self._add_release(run, Release(release.number, shared), step=row["step"] - 1, load_id="")
        self._database.change(
            "INSERT INTO nodes SELECT ?, id, parent, seed, pruned, program, form, output, reward, objective, visits,"
            " best_child, step, certificate, artifact FROM nodes WHERE run = ? ORDER BY id",
            *(run, origin),
        )
        self._database.change("INSERT INTO artifacts SELECT ?, sha256, json FROM artifacts WHERE run = ?", run, origin)
        self._database.change(
            "UPDATE runs SET step = ?, first_step = ?, release = ?, expansions = ?, origin = ? WHERE name = ?",
            *(row["step"], row["step"], row["release"], row["expansions"], origin, run),
        )

    def _release(self, run: str, number: int) -> Release:
        row = self._one("SELECT path FROM releases WHERE run = ? AND number = ?", run, number)
        return Release(number, None if row["path"] is None else self._folder(run) / row["path"])

    def _folder(self, run: str) -> Path:
        return self._state_dir / "runs" / run

    def _relative(self, run: str, path: Path) -> str:
        return str(path.relative_to(self._folder(run)))


@contextmanager
def _removed_unless_good(folder: Path) -> Generator[None]:
    """A folder that was not there before the block, and is not wanted where the block fails."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
