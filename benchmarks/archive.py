"""What the archive of a long run costs: queries, selection, saving and size, at the reference size and at ten times it.

    python benchmarks/archive.py [--out benchmarks/results/archive.json]

1x: 50 steps of 8 x 64 programs through the store's own methods, 1,000 nodes alive at the end; the last steps are
measured.  10x: that database ten times over in one (copied by SQL), then steps measured in the same way.  Requests go
through the daemon's own API on a Unix socket.  Each figure at 10x stands beside the same at 1x, with the growth to
expect; selection stands beside the rule done naively, and recording beside a scan of the whole archive for each child.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import sqlite3
import statistics
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

sys.path.append(sys.path.pop(0))  # a file beside this one has the name of a package

from hardware import described
from long_run import GRID, RUN, Search, Times, copied, planted, timed

from tttdd import config
from tttdd.adapters.catalog import JudgeCatalog
from tttdd.adapters.judge_pool import JudgePool
from tttdd.adapters.store import SqliteStore
from tttdd.adapters.workshop import LocalWorkshop
from tttdd.api import app, server
from tttdd.board import Board
from tttdd.desk import Desk
from tttdd.protocol import JudgesInfo
from tttdd.room import DiskRoom
from tttdd.runner import Runner

STEPS, MEASURED, COPIES = 50, 10, 10
LONGEST_ANSWER = 26_000
"""Tokens: sampling.max_new_tokens of the reference."""
EXPECTED = {
    "snapshot_as_json": "1",
    "GET /status": "1",
    "GET /archive?limit=20": "1",
    "GET /best": "1",
    "GET /nodes/{id}": "1",
    "GET /steps": "steps",
    "select_parents": "n log n",
    "select_naively": "n log n",
    "load_archive": "n",
    "normal_forms_alone": "1",
    "record_and_prune": "1 + n",
    "scan_of_all_forms": "n",
    "record_a_rollout": "1",
    "begin": "n",
    "commit": "1",
}
"""What is measured, and how it may grow: n nodes."""


async def requests(store: SqliteStore, state_dir: Path, times: Times) -> None:
    """What a user waits for, while a grid is in hand."""
    settings = config.load(Path(__file__).parent.parent / "etc/tttdd.cpu.toml")
    async with JudgePool() as judges, anyio.create_task_group() as tasks:
        while judges.level == "starting":
            await anyio.sleep(0.1)
        told = JudgesInfo(level=judges.level, missing=judges.missing, parallel=judges.parallel)
        board = Board("tttdd.toml", str(state_dir), lambda: runner.runs(), lambda: told)
        workshop = LocalWorkshop(settings, store, state_dir)
        catalog, room, desk = JudgeCatalog(settings, judges), DiskRoom(state_dir), Desk(store, board.touch)
        runner = Runner(settings, store, board, catalog, workshop, room, desk)
        fill(board, store)
        for _ in range(100):
            timed(times, "snapshot_as_json", lambda: msgspec.json.encode(board.snapshot()))
        address, up = state_dir / "api.sock", anyio.Event()
        tasks.start_soon(partial(server.serve, server.bind(address, ""), app.build(runner, board, desk), ready=up.set))
        await up.wait()
        await anyio.to_thread.run_sync(ask_all, address, deepest(store), times)
        tasks.cancel_scope.cancel()


def fill(board: Board, store: SqliteStore) -> None:
    """A grid in hand and a full log."""
    board.take(RUN, GRID, store.steps(RUN))
    for line in range(200):
        board.log(f"a line of the daemon's log, number {line}, of about the usual length")


def deepest(store: SqliteStore) -> int:
    """The node of the longest lineage."""
    archive = store.archive(RUN)
    return max(archive, key=lambda node: len(list(archive.ancestors(node)))).id


def ask_all(address: Path, node: int, times: Times) -> None:
    for name in [name for name in EXPECTED if name.startswith("GET /")]:
        path = name.removeprefix("GET ").replace("{id}", str(node))
        path = "/v1/status" if path == "/status" else f"/v1/runs/{RUN}{path}"
        for _ in range(50):
            timed(times, name, get, address, path)


def get(address: Path, path: str) -> None:
    """As tttctl asks: a connection each."""
    connection = http.client.HTTPConnection("tttdd")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(address))
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    assert answer.status == 200, body


def size(state_dir: Path) -> dict[str, float]:
    """MB of the database, and how much of them is free for the next steps."""
    with closing(sqlite3.connect(state_dir / "archive.sqlite3")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, free, page = (
            database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return {"mb": round(pages * page / 1e6, 1), "free_mb": round(free * page / 1e6, 1)}


def counts(state_dir: Path) -> dict[str, int]:
    tables = {"nodes_alive": "nodes WHERE NOT pruned", "nodes": "nodes", "rollouts": "rollouts", "programs": "programs"}
    with closing(sqlite3.connect(state_dir / "archive.sqlite3")) as database:
        return {name: database.execute(f"SELECT count(*) FROM {rows}").fetchone()[0] for name, rows in tables.items()}


def percentiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return {"p50_ms": round(cuts[9], 3), "p95_ms": round(cuts[18], 3), "measured": len(values)}


def measured(state_dir: Path, store: SqliteStore, search: Search, steps: int) -> dict[str, Any]:
    """`steps` steps, of which the last are measured, then the requests."""
    times: Times = {}
    for _ in range(steps - MEASURED):
        search.step({})
    before, search.rows = size(state_dir), 17
    for _ in range(MEASURED):
        search.step(times)
    after = size(state_dir)
    anyio.run(requests, store, state_dir, times)
    grown = after["mb"] - after["free_mb"] - before["mb"] + before["free_mb"]
    return {
        "counts": counts(state_dir),
        "size": {**after, "growth_mb_a_step": round(grown / MEASURED, 2)},
        "times": {name: percentiles(times[name]) for name in EXPECTED},
    }


def of_the_longest_answers(state_dir: Path, store: SqliteStore) -> dict[str, Any]:
    """One step of answers of the reference's full length: what they leave behind, being deleted at commit."""
    times: Times = {}
    Search(store, state_dir, 1000, LONGEST_ANSWER).step(times)
    recorded = percentiles(times["record_a_rollout"])
    return {"tokens": LONGEST_ANSWER, "size": size(state_dir), "record": recorded, "commit_ms": times["commit"][0]}


def run(tokens: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tttdd-archive-") as folder:
        once, often = Path(folder, "once"), Path(folder, "often")
        with closing(SqliteStore(once)) as store:
            planted(store, STEPS)
            one = measured(once, store, Search(store, once, 1000, tokens), STEPS)
        copied(once, often, COPIES)
        with closing(SqliteStore(often)) as store:
            ten = measured(often, store, Search(store, often, 1000 * COPIES, tokens), MEASURED)
        with closing(SqliteStore(once)) as store:
            longest = of_the_longest_answers(once, store)
    ratios = {name: round(ten["times"][name]["p50_ms"] / one["times"][name]["p50_ms"], 2) for name in EXPECTED}
    ratios["size"] = round(ten["size"]["mb"] / one["size"]["mb"], 2)
    return {"1x": one, "10x": ten, "ratios": ratios, "a_step_of_the_longest_answers": longest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1000, help="of each answer")
    parser.add_argument("--out", type=Path, help="write the JSON there")
    options = parser.parse_args()
    figures = run(options.tokens)
    told = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": described(),
        "load_at_end": [round(each, 2) for each in os.getloadavg()],
        "tokens_an_answer": options.tokens,
        "expected_growth": {**EXPECTED, "size": "n"},
    }
    table(figures)
    print(json.dumps(told | figures))
    if options.out:
        options.out.write_text(json.dumps(told | figures, indent=1) + "\n")


def table(figures: dict[str, Any]) -> None:
    one, ten = figures["1x"], figures["10x"]
    print(f"{'ms':24}{'1x p50':>10}{'p95':>10}{'10x p50':>10}{'p95':>10}{'ratio':>8}  expected")
    for name, growth in EXPECTED.items():
        told = [each["times"][name][key] for each in (one, ten) for key in ("p50_ms", "p95_ms")]
        print(f"{name:24}{''.join(f'{value:10.3f}' for value in told)}{figures['ratios'][name]:8.2f}  {growth}")
    for each in (one, ten, figures["a_step_of_the_longest_answers"]):
        print({name: value for name, value in each.items() if name != "times"})


if __name__ == "__main__":
    main()
