"""A long run's state database, made without a model and without judges.

    planted -> Search.step, Search.step, ...     through the store's own methods, as the daemon's steps are
    copied                                       ten such runs as one, by SQL: other programs, steps and nodes

Programs are about 3 KB; seven of ten are valid, one of ten is its neighbour's again.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from judges.verdict import Verdict
from tttdd.adapters.store import SqliteStore
from tttdd.domain import puct
from tttdd.domain.archive import Archive, Child, Node, normal_form
from tttdd.domain.grid import Coordinate
from tttdd.domain.identity import Value
from tttdd.ports import Pending, Release, Rollout, Sampled
from tttdd.protocol import GridSize, Proof
from tttdd.run_ports import RunRecord

RUN, TASK = "circle-1", "circle_packing_26"
GRID = GridSize(8, 64)
CHILDREN_KEPT = 3
"""One more than the default, with which 50 steps of eight groups would leave 808 nodes and not 1,000."""

Times = dict[str, list[float]]
"""Milliseconds, by what was done."""


def timed(times: Times, name: str, way: Callable[..., Any], *arguments: Any) -> Any:
    begun = time.perf_counter()
    result = way(*arguments)
    times.setdefault(name, []).append((time.perf_counter() - begun) * 1e3)
    return result


def planted(store: SqliteStore, steps: int) -> None:
    archive = Archive()
    archive.seed(GRID.groups, program=program("starter"), output="0.9", reward=0.9, objective=0.9)
    identity: dict[str, Value] = {"model.revision": "r"}
    store.open_run(RunRecord(name=RUN, task=TASK, seed=0, steps=steps, grid=GRID, identity=identity, created=1.0))
    store.plant(RUN, archive, identity)


class Search:
    rows = 2
    """Of code in each program."""

    def __init__(self, store: SqliteStore, state_dir: Path, max_nodes: int, tokens: int) -> None:
        self._store, self._folder = store, state_dir / "runs" / RUN
        self._max_nodes, self._random, self._tokens = max_nodes, random.Random(1), tokens
        self._ids, self._logprobs, self._mask = list(range(tokens)), [-0.125] * tokens, [True] * tokens

    def step(self, times: Times) -> None:
        state = self._store.state(RUN)
        assert not isinstance(state, Pending)
        archive = timed(times, "load_archive", self._store.archive, RUN)
        parents = timed(times, "select_parents", puct.select_parents, archive, GRID.groups, 1.0)
        naive = timed(times, "select_naively", select_naively, archive, GRID.groups, 1.0)
        assert [node.id for node in parents] == naive
        groups = [
            [self._rollout(state.step, state.release.number, group, number, parent) for number in range(GRID.rollouts)]
            for group, parent in enumerate(parents)
        ]
        self._record(times, groups)
        self._close(times, state.step, state.release.number, archive, parents, groups)

    def _record(self, times: Times, groups: list[list[Rollout]]) -> None:
        for group in groups:
            for rollout in group:
                timed(times, "record_a_rollout", self._store.record, RUN, rollout)

    def _close(
        self, times: Times, step: int, number: int, archive: Archive, parents: list[Node], groups: list[list[Rollout]]
    ) -> None:
        children = [[child(rollout) for rollout in group if rollout.verdict.valid] for group in groups]
        normal_form.cache_clear()
        forms = timed(times, "normal_forms_alone", lambda: [normal_form(c.program) for each in children for c in each])
        timed(times, "scan_of_all_forms", lambda: [any(node.form == form for node in archive) for form in forms])
        timed(times, "record_and_prune", self._grow, archive, parents, children)
        batch = self._folder / "batches" / f"{step:04d}.msgpack"
        timed(times, "begin", self._store.begin, RUN, step, archive, batch, row(step))
        release = Release(number + 1, self._folder / "releases" / f"{number + 1:04d}")
        timed(times, "commit", self._store.commit, RUN, step, release, proof(number + 1), row(step))

    def _grow(self, archive: Archive, parents: list[Node], children: list[list[Child]]) -> None:
        for parent, group in zip(parents, children, strict=True):
            archive.record_group(parent.id, group, GRID.rollouts)
        archive.prune(self._max_nodes, CHILDREN_KEPT)

    def _rollout(self, step: int, release: int, group: int, number: int, parent: Node) -> Rollout:
        valid, repeated = self._random.random() < 0.7, self._random.random() < 0.1 and number > 0
        reward = max(0.01, parent.reward + self._random.gauss(-0.02, 0.02)) if valid else 0.0
        text = program((step, group, number - repeated), self.rows)
        sampled = Sampled(self._ids, self._logprobs, self._mask, "word" * self._tokens, "stop", release)
        return Rollout(Coordinate(step, group, number), parent.id, text, sampled, verdict(reward))


def program(mark: object, rows: int = 2) -> str:
    """About 3 KB, another for another mark: 17 `rows` of code are what models write, fewer are parsed sooner."""
    source = random.Random(str(mark))
    lines = ["import numpy as np", "", "def construct_packing(seed=42):", f"    # attempt {mark}", "    rows = []"]
    for index in range(rows):
        x, y, r = (round(source.random(), 9) for _ in range(3))
        lines += [
            f"    if len(rows) < {index + 1}:  # row {index}",
            f"        rows.append(np.array([{x}, {y}]) * (1.0 - {r}) + {r} * np.clip(rows[-1:] or [0.5, 0.5], 0, 1))",
        ]
    text = " ".join(f"{source.random():.9f}" for _ in range(240 - 13 * rows))
    return "\n".join([*lines, f"    return rows, np.fromstring('{text}', sep=' ')", ""])


def verdict(reward: float) -> Verdict:
    if reward == 0:
        overlap = "circles 3 and 7 overlap by 0.001234567" * 2
        return Verdict(valid=False, reason="constraint", detail=overlap, output="x" * 200, seconds=1.5)
    return Verdict(
        valid=True,
        reward=reward,
        objective=reward,
        output="radius 0.1\n" * 40,
        seconds=1.5,
        peak_bytes=1 << 26,
        artifact_sha256="0" * 64,
        certificate={"exact": True, "slack": "1/1000000000000", "circles": 26.0},
    )


def child(rollout: Rollout) -> Child:
    told, step = rollout.verdict, rollout.coordinate.step
    return Child(
        program=rollout.program or "",
        output=told.output,
        reward=told.reward,
        objective=told.objective,
        step=step,
        certificate=told.certificate,
    )


def row(step: int) -> dict[str, float]:
    names = ["train/sampler_trainer_gap", "train/kl_base", "time/step", *(f"tttd/metric_{n}" for n in range(40))]
    return dict.fromkeys(names, step + 0.123456789)


def proof(release: int) -> Proof:
    load_id, shift = f"load-{release}", 0.1
    return Proof(
        release=release,
        load_id=load_id,
        gap=1e-6,
        floor=1e-7,
        limit=0.01,
        trainer_shift=shift,
        engine_shift=shift,
        share=1.0,
        attempts=1,
    )


def select_naively(archive: Archive, groups: int, c: float) -> list[int]:
    """The rule as it is written (algorithm, section 1): argmax over the unblocked, block the pick's lineage, again."""
    score = puct.scores(archive, c)
    up = {node.id: {ancestor.id for ancestor in archive.ancestors(node)} for node in archive}
    blocked: set[int] = set()
    picks: list[int] = []
    for _ in range(groups):
        free = (node for node in archive if node.id not in blocked)
        pick = max(free, key=lambda node: (score[node.id], node.reward, -node.id)).id
        picks.append(pick)
        blocked |= {pick} | up[pick] | {node for node, above in up.items() if pick in above}
    return picks


def copied(one: Path, ten: Path, copies: int) -> None:
    """`one` and its shifted copies in one database, under the same seeds."""
    ten.mkdir()
    shutil.copy(one / "archive.sqlite3", ten / "archive.sqlite3")
    with closing(sqlite3.connect(ten / "archive.sqlite3", isolation_level=None)) as database:
        database.create_function("digest", 1, _digest, deterministic=True)
        database.execute("PRAGMA synchronous = OFF")
        database.execute("ATTACH ? AS one", (str(one / "archive.sqlite3"),))
        (steps,) = database.execute("SELECT step FROM one.runs").fetchone()
        (nodes,) = database.execute("SELECT max(id) + 1 FROM one.nodes").fetchone()
        database.execute("BEGIN")
        for k in range(1, copies):
            _shifted(database, k * steps, k * nodes, mark=f"# {k}")
        columns = ("step", "release", "steps", "expansions")
        database.execute("UPDATE runs SET " + ", ".join(f"{column} = {copies} * {column}" for column in columns))
        database.execute("COMMIT")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _shifted(database: sqlite3.Connection, steps: int, nodes: int, mark: str) -> None:
    source, parent = f"source || '{mark}'", f"coalesce(t.parent + {nodes}, 0)"
    program = f"(SELECT digest({source}) FROM one.programs AS p WHERE p.sha256 = t.program)"
    later = {"step": f"step + {steps}", "release": f"release + {steps}"}
    ours = {"parent": parent, "program": program}
    node = {"id": f"id + {nodes}", "seed": "0", "form": f"form || '{mark}'", "step": later["step"]}
    _copy(database, "programs", {"sha256": f"digest({source})", "source": source})
    _copy(database, "releases WHERE number > 0", {"number": f"number + {steps}", "step": later["step"]})
    _copy(database, "steps", later)
    _copy(database, "nodes", ours | node)
    _copy(database, "rollouts", ours | later)


def _copy(database: sqlite3.Connection, rows: str, changed: dict[str, str]) -> None:
    """All columns of `rows` ("table" or "table WHERE ..."), some changed."""
    table, _, where = rows.partition(" ")
    columns: list[str] = [name for _, name, *_ in database.execute(f"PRAGMA one.table_info({table})")]
    values = ", ".join(changed.get(name) or name for name in columns)
    database.execute(f"INSERT INTO main.{table} ({', '.join(columns)}) SELECT {values} FROM one.{table} AS t {where}")
