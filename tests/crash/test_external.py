"""A harness whose daemon is killed again and again: no receipt that it holds is lost, no report counts twice."""

from __future__ import annotations

import http.client
import json
import random
import socket
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.crash.harness import GRID, Harness
from tests.processes import wait_for
from tttdd.failpoint import Point
from tttdd.protocol import RunInfo, Submit

STEPS, KILLS, SEED = 2, 4, 5
POINTS = (Point.TRANSACTION_FILLED, Point.TRANSACTION_COMMITTED)


class Line(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("tttdd", timeout=30)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Stubborn:
    """Asks until it is answered; keeps what it heard."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.receipts: list[str] = []
        self.reported: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        """Report and answer, by report_id."""
        self.unheard = 0
        """Requests whose answer did not come."""
        self.thread = threading.Thread(target=self._work, daemon=True)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        while True:
            with suppress(OSError, http.client.HTTPException), closing(Line(self._path)) as line:
                line.request(method, path, json.dumps(body) if body else None, {"x-tttdd-run": "x"})
                answer = line.getresponse()
                told = answer.read()
                if answer.status != 503:
                    return answer.status, json.loads(told)
            self.unheard += 1
            time.sleep(0.02)

    def _work(self) -> None:
        while (grid := self.ask("GET", "/v1/runs/x/grid")[1])["state"] != "finished":
            for place in grid["missing"]:
                self._fill(grid["step"], place)
            time.sleep(0.01)

    def _fill(self, step: int, place: dict[str, int]) -> None:
        body = {"messages": [{"role": "user", "content": f"group {place['group']}"}]}
        status, told = self.ask("POST", "/v1/chat/completions", body)
        if status != 200:
            return
        self.receipts.append(told["receipt"])
        id = f"{step}-{place['group']}-{place['rollout']}-{told['receipt']}"
        size = {"groups_per_step": GRID.groups, "rollouts_per_group": GRID.rollouts}
        report = {"score": float(len(self.receipts)), "references": [told["receipt"]], "report_id": id}
        report["metadata"] = {"step": step, **place, **size}
        status, told = self.ask("POST", "/v1/runs/x/reports", report)
        if status == 200:
            self.reported[id] = report, told


def rows(state: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{state}/archive.sqlite3?mode=ro", uri=True) as database:
        return database.execute(query).fetchall()


def kill_a_few_transactions_on(harness: Harness, draw: random.Random) -> None:
    """At a random one of the next transactions, on either side of its commit."""
    point, left, down = draw.choice(POINTS), draw.randrange(1, 5), threading.Event()

    def act() -> None:
        nonlocal left
        left -= 1
        if left:
            harness.points.stop_at(point, act)
        else:
            harness.kill_all()
            down.set()

    harness.points.stop_at(point, act)
    wait_for(lambda: down.is_set() or harness._ended(), "the next transactions")
    if down.is_set():
        harness.start()


@pytest.mark.timeout(200)
def test_no_receipt_is_lost_and_no_report_counts_twice_however_often_the_daemon_is_killed(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    with Harness(tmp_path, light=True) as harness:
        harness.start()
        harness.client.post(
            "/v1/runs", Submit(task="digits", name="x", kind="external", steps=STEPS, grid=GRID), RunInfo
        )
        harness._runs.append("x")
        other = Stubborn(tmp_path / "s")
        other.thread.start()
        for _ in range(KILLS):
            kill_a_few_transactions_on(harness, draw)
        other.thread.join(120)
        assert harness.info().state == "finished"
        stored = {row[0] for row in rows(harness.state, "SELECT id FROM receipts")}
        assert set(other.receipts) <= stored and other.unheard > 0
        for report, answer in other.reported.values():
            assert other.ask("POST", "/v1/runs/x/reports", report) == (200, answer)
        accepted = {
            (told["step"], told["group"], told["rollout"]): report["score"]
            for report, told in other.reported.values()
            if told["accepted"]
        }
        kept = rows(harness.state, "SELECT step, grid_group, rollout, json_extract(verdict, '$.reward') FROM rollouts")
        assert len(kept) == STEPS * GRID.groups * GRID.rollouts
        assert {place: score for place, score in accepted.items() if (*place, score) not in kept} == {}
        assert rows(harness.state, "SELECT count(*) FROM receipts WHERE grid_group NOTNULL") == [(len(kept),)]
        assert harness.faults() == [] and harness.trained_twice == 0
