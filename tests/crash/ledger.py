"""What must be true of a run on disk, whatever was killed on the way: `faults` names all that is not.

rollouts -> archive, advantages -> batch -> release chain -> metrics: each is computed again from the one before
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

from tttdd.domain import advantage, batch
from tttdd.domain.archive import normal_form
from tttdd.domain.grid import trainable

Row = dict[str, Any]


def faults(state_dir: Path, run: str) -> list[str]:
    database = sqlite3.connect(f"file:{state_dir}/archive.sqlite3?mode=ro", uri=True)
    database.row_factory = sqlite3.Row
    try:
        return list(Ledger(database, state_dir / "runs" / run, run).faults())
    finally:
        database.close()


class Ledger:
    def __init__(self, database: sqlite3.Connection, folder: Path, run: str) -> None:
        self._database, self._folder = database, folder
        self._run: Row = self._all("SELECT * FROM runs WHERE name = ?", run)[0]
        self._name = run

    def faults(self) -> Iterator[str]:
        yield from self._damage()
        yield from self._chain()
        for row in self._all("SELECT * FROM steps WHERE run = ? ORDER BY step", self._name):
            for fault in self._step(row):
                yield f"step {row['step']}: {fault}"
        yield from self._archive()
        yield from self._leftovers()

    def _all(self, query: str, *values: object) -> list[Row]:
        return [dict(row) for row in self._database.execute(query, values)]

    def _damage(self) -> Iterator[str]:
        (told,) = self._database.execute("PRAGMA integrity_check").fetchone()
        if told != "ok":
            yield f"database: {told}"
        if self._database.execute("PRAGMA foreign_key_check").fetchall():
            yield "database: a row refers to one that is not there"

    def _chain(self) -> Iterator[str]:
        """Steps and releases count up without a gap, one release a step."""
        at, pending = self._run["step"], self._run["phase"] == "pending"
        steps = self._all("SELECT step, phase, release, metrics FROM steps WHERE run = ? ORDER BY step", self._name)
        phases = ["committed"] * at + ["pending"] * pending
        if [(row["step"], row["phase"]) for row in steps] != list(enumerate(phases)):
            yield f"steps are {[(row['step'], row['phase']) for row in steps]}, the run is at {at}"
        if [json.loads(row["metrics"])["tttd/step"] for row in steps] != list(range(len(steps))):
            yield "metrics rows are not in the order of the steps"
        releases = self._all("SELECT number, step FROM releases WHERE run = ? ORDER BY number", self._name)
        if [(row["number"], row["step"]) for row in releases] != [(n, n - 1) for n in range(at + 1)]:
            yield f"releases are {[(row['number'], row['step']) for row in releases]}, the run is at {at}"

    def _step(self, row: Row) -> Iterator[str]:
        step, groups, rollouts = row["step"], self._run["groups"], self._run["rollouts"]
        judged = self._all(
            "SELECT * FROM rollouts WHERE run = ? AND step = ? ORDER BY grid_group, rollout", self._name, step
        )
        places = [(group, rollout) for group in range(groups) for rollout in range(rollouts)]
        if [(each["grid_group"], each["rollout"]) for each in judged] != places:
            yield f"{len(judged)} rollouts, {len(places)} coordinates"
            return
        if {each["release"] for each in judged} != {step}:
            yield "sampled under another release"
        if row["phase"] == "committed" and json.loads(row["proof"])["release"] != step + 1:
            yield "the proof is another release's"
        if any(json.loads(each["verdict"]).get("reason") in ("memory", "crash", "timeout") for each in judged):
            yield "a program was blamed for what was done to it"
        rewards = [json.loads(each["verdict"])["reward"] for each in judged]
        if json.loads(row["metrics"])["tttd/reward_mean"] != statistics.fmean(rewards):
            yield "the metrics are not those of its rollouts"
        file = self._folder / row["batch"]
        if file.exists():
            yield from self._batch(file, step, [judged[group * rollouts :][:rollouts] for group in range(groups)])
        elif row["phase"] == "pending":
            yield "its batch is missing"

    def _batch(self, file: Path, step: int, grid: list[list[Row]]) -> Iterator[str]:
        frozen = batch.read(file)
        rewards = [[json.loads(each["verdict"])["reward"] for each in group] for group in grid]
        wanted = [
            (each["tokens"], a)
            for index in trainable(rewards)
            for each, a in zip(grid[index], advantage.entropic(rewards[index]), strict=True)
        ]
        found = [(len(sample.token_ids), sample.advantage) for group in frozen.groups for sample in group.samples]
        if found != wanted or frozen.release != step:
            yield "its batch is not made of its rollouts"
        release = self._folder / "releases" / f"{step + 1:04d}"
        if release.exists():
            yield from self._release(release, step, hashlib.sha256(file.read_bytes()).hexdigest())

    def _release(self, folder: Path, step: int, sha256: str) -> Iterator[str]:
        record = json.loads((folder / "release.json").read_text())
        if (record["number"], record["parent"], record["batch_sha256"]) != (step + 1, step, sha256):
            yield f"release {step + 1} was trained from release {record['parent']} and another batch"
        if (optimizer := folder / "optimizer.safetensors").exists():
            with safe_open(optimizer, "numpy") as tensors:
                taken = int(tensors.get_tensor("step"))
            if taken != step + 1:
                yield f"release {step + 1} has {taken} steps of the optimizer in it"

    def _archive(self) -> Iterator[str]:
        """Every valid program of the archived steps is a node, and every node such a program."""
        archived = self._run["step"] + (self._run["phase"] == "pending")
        judged = self._all(
            "SELECT step, parent, verdict, source FROM rollouts JOIN programs ON program = sha256"
            " WHERE run = ? AND step < ?",
            *(self._name, archived),
        )
        nodes = self._all(
            "SELECT nodes.*, source FROM nodes JOIN programs ON program = sha256 WHERE run = ?", self._name
        )
        valid = [(each, json.loads(each["verdict"])) for each in judged if json.loads(each["verdict"])["valid"]]
        forms = {node["form"] for node in nodes}
        if missing := [each["step"] for each, _ in valid if normal_form(each["source"]) not in forms]:
            yield f"valid programs of steps {missing} are not in the archive"
        known = {(each["step"], each["parent"], each["source"], verdict["reward"]) for each, verdict in valid}
        found = [(n["step"], n["parent"], n["source"], n["reward"]) for n in nodes if not n["seed"]]
        if strangers := [node[0] for node in found if node not in known]:
            yield f"nodes of steps {strangers} are no rollout's"
        if self._run["expansions"] != archived * self._run["groups"] * self._run["rollouts"]:
            yield f"{self._run['expansions']} visits were counted in {archived} steps"

    def _leftovers(self) -> Iterator[str]:
        last = self._run["step"] + (self._run["phase"] == "pending")
        names = [path.name for path in (self._folder / "releases").glob("*")]
        if strange := [name for name in names if not name.isdigit() or int(name) > last]:
            yield f"releases on disk that no step has made: {strange}"
