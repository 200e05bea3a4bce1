"""Daemons for the monitor's tests: made-up snapshots of a run under way, and a socket that answers, hangs or lies."""

from __future__ import annotations

import math
import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tttctl.client import Client, Failed
from tttctl.monitor.feed import News, Rows, Tell
from tttdd import protocol
from tttdd.protocol import Current, GpuInfo, PhaseInfo, Proof, RunInfo, Status, StepRow

NOW = 1_900_000_000.0
STARTER = protocol.Best(node=1, reward=2.0547945, objective=0.486666667, step=-1)
PROGRAM = '''\
"""A step function with a small overlap, by projected descent."""
import numpy as np
from scipy.optimize import minimize

POINTS = 120


def overlap(h):
    # the judge's own formula
    return np.correlate(h, 1 - h, "full").max() * 2 / len(h)


@np.errstate(all="ignore")
def run(seed=42, budget_s=5, **kwargs):
    rng = np.random.default_rng(seed)
    x = np.linspace(-1, 1, POINTS)
    best = 0.5 + 0.45 * np.cos(np.pi * x)
    for step in range(4000):
        h = np.clip(best + rng.normal(0, 1e-3, POINTS), 0, 1)
        h *= POINTS / 2 / h.sum()
        if h.max() <= 1 and overlap(h) < overlap(best):
            best = h
    return best, overlap(best), POINTS
'''


def run(name: str, state: protocol.RunState = "running", **changes: Any) -> RunInfo:
    best = protocol.Best(node=4711, reward=2.6, objective=0.38214907, step=11)
    made = RunInfo(
        run=name,
        task="erdos_min_overlap",
        state=state,
        step=12,
        steps=50,
        release=12,
        grid=protocol.GridSize(8, 64),
        seed=7,
        created=NOW - 3600,
        starter=STARTER,
        best=best,
        target=0.380876,
        objective_name="C5",
        direction="lower",
        figure="overlap",
        state_dir=f"/var/lib/tttdd/runs/{name}",
    )
    return msgspec.structs.replace(made, **changes)


def runs() -> list[RunInfo]:
    packing = {"task": "circle_packing_26", "objective_name": "sum of radii", "direction": "higher", "target": 2.636}
    found = protocol.Best(node=9, reward=2.62, objective=2.6203871, step=40)
    return [
        run("erdos-long"),
        run("packing-2", "queued", step=0, best=None, starter=None, priority=5, created=NOW - 90, **packing),
        run("erdos-frozen", "queued", step=0, best=None, mode="best-of-n", created=NOW - 80),
        run("packing-1", "finished", step=50, best=found, figure="circles", created=NOW - 9000, **packing),
        run("erdos-0", "failed", step=3, reason="Traceback\nOSError: no space left", created=NOW - 8000),
    ]


def cells(done: float, groups: int = 8, rollouts: int = 64, seed: int = 3) -> list[list[protocol.CellState]]:
    """A grid of which the share `done` is judged, the rest under way or waiting."""
    chance = random.Random(seed)
    grid: list[list[protocol.CellState]] = []
    for _ in range(groups):
        row: list[protocol.CellState] = []
        for rollout in range(rollouts):
            place = rollout / rollouts + chance.gauss(0, 0.06)
            row.append(_cell(place - done, chance))
        grid.append(row)
    return grid


def _cell(ahead: float, chance: random.Random) -> protocol.CellState:
    if ahead > 0.2:
        return "waiting"
    if ahead > 0:
        return "judging" if chance.random() < 0.2 else "sampling"
    return "rejected" if chance.random() < 0.28 else "best" if chance.random() < 0.02 else "valid"


def rows(count: int = 12, **changes: float) -> list[StepRow]:
    """Steps of a run that goes well."""
    chance = random.Random(5)
    left, made = 1.0, list[StepRow]()
    for step in range(count):
        left *= 1 - max(0.0, chance.gauss(0.25, 0.2)) if step < count - 1 else 0
        metrics = _metrics(step, 0.38214907 + 0.09 * left, chance) | changes
        made.append(StepRow(step=step, phase="committed", release=step, metrics=metrics))
    return made


def _metrics(step: int, best: float, chance: random.Random) -> dict[str, float]:
    return {
        "archive/best_objective": best,
        "archive/best_reward": 1 / best,
        "tttd/reward_mean": 1 + 1.2 * (1 - math.exp(-step / 4)) + chance.gauss(0, 0.05),
        "tttd/valid_fraction": min(1.0, 0.5 + 0.04 * step),
        "train/sampler_trainer_gap": abs(chance.gauss(1.2e-3, 4e-4)),
        "train/kl_base": 0.0031 * step + abs(chance.gauss(0, 0.001)),
        "time/sample": 74 + chance.gauss(0, 5),
        "time/judge_wait": 12 + chance.gauss(0, 2),
        "time/train": 48 + chance.gauss(0, 2),
        "time/publish": 4 + chance.gauss(0, 0.3),
        "time/prove": 6 + chance.gauss(0, 0.3),
        "time/step": 132 + chance.gauss(0, 5),
    }


PROOF = Proof(
    release=12,
    load_id="r12-1",
    gap=0.00213,
    floor=0.0011,
    limit=0.01,
    trainer_shift=0.041,
    engine_shift=0.0405,
    share=0.98,
    attempts=1,
)


def gpus(count: int = 2) -> list[GpuInfo]:
    return [
        GpuInfo(
            index=index,
            name="NVIDIA H200",
            memory_total=141 << 30,
            memory_used=(91 + 7 * index) % 141 << 30,
            load=(0.93 - 0.31 * index) % 1.0,
            processes=[protocol.GpuProcess(pid=7, memory=1 << 30, owner="trainer" if index % 2 else "engine")],
        )
        for index in range(count)
    ]


def current(done: float = 0.55, phase: protocol.PhaseName = "sample", **changes: Any) -> Current:
    before = {"sample": 81.0, "train": 47.2} if phase in ("publish", "prove") else {"sample": 81.0}
    seconds = {} if phase in ("sample", "start") else before
    made = Current(
        run=runs()[0],
        phase=PhaseInfo(name=phase, since=NOW - 41, seconds=seconds, eta_seconds=4980.0),
        cells=cells(done),
        sampler_trainer_gap=1.2e-3,
        kl_base=0.0341,
        proof=PROOF,
    )
    return msgspec.structs.replace(made, **changes)


def status(**changes: Any) -> Status:
    made = Status(
        version="0.1.0",
        pid=4242,
        started=NOW - 7200,
        config="/etc/tttdd/tttdd.toml",
        state_dir="/var/lib/tttdd",
        paused=False,
        judges=protocol.JudgesInfo(level="namespaces", parallel=16),
        runs=runs(),
        current=current(),
        gpus=gpus(),
        log=[
            "erdos-long: step 11 committed, best C5 0.38214907",
            "retired release 11",
            "step 12, release 12: publish",
            "step 12, release 12: prove",
            "release 12 proved: gap 0.00213 of 0.01 nats, share 0.98",
            "step 12, release 12: sample",
            "a rollout was cut at 26000 tokens",
            "sandbox: 16 judges at work",
        ],
    )
    return msgspec.structs.replace(made, **changes)


def node(**changes: Any) -> protocol.NodeInfo:
    made = protocol.NodeInfo(
        node=4711,
        reward=2.6167799,
        objective=0.38214907,
        parent=4390,
        seed=False,
        visits=128,
        step=11,
        pruned=False,
        program=PROGRAM,
        output="0.4411\n0.3927\n0.38214907\n",
        certificate={"points": 120.0, "reported_agrees": True, "bound_exact": "0.382149072713"},
    )
    return msgspec.structs.replace(made, **changes)


def step_heights(count: int = 120) -> list[Any]:
    """An artifact of figure `overlap`: (heights, bound, count)."""
    x = [2 * i / (count - 1) - 1 for i in range(count)]
    heights = [max(0.0, min(1.0, 0.5 + 0.48 * math.cos(3 * v) + 0.18 * math.cos(9 * v))) for v in x]
    return [heights, 0.38214907, count]


def packing() -> list[Any]:
    """An artifact of figure `circles`: a hexagon of equal circles with small ones in the gaps."""
    circles = [(0.1 + 0.2 * column, 0.1 + 0.2 * row, 0.1) for row in range(5) for column in range(5)]
    circles += [(0.2 + 0.2 * column, 0.2 + 0.2 * row, 0.0414) for row in range(4) for column in range(4)]
    return [[[x, y] for x, y, _ in circles], [r for _, _, r in circles], sum(r for _, _, r in circles)]


class StillSource:
    """A feed without threads: `say` tells, questions are answered on the spot by a client of the test's making."""

    def __init__(self, client: Client | FakeClient, steps: dict[str, list[StepRow]] | None = None) -> None:
        self.client, self.steps = client, {"erdos-long": rows()} if steps is None else steps
        self.stopped = False
        self._tell: Tell | None = None
        self._newest: Status | None = None

    def start(self, tell: Tell) -> None:
        self._tell = tell

    def stop(self) -> None:
        self.stopped = True

    def take(self) -> Status | None:
        newest, self._newest = self._newest, None
        return newest

    def say(self, news: News, snapshot: Status | None = None) -> None:
        self._newest = snapshot
        assert self._tell is not None
        self._tell(news)

    def rows(self, run: str) -> None:
        self.say(Rows(run, self.steps.get(run, [])), self._newest)

    def ask(self, call: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        from tttctl.monitor.feed import TROUBLE, Answer, Refused

        try:
            self.say(Answer(then, call(self.client)), self._newest)
        except TROUBLE as error:
            self.say(Refused(str(error)), self._newest)


class FakeClient:
    """Answers by path; an answer that is an exception is raised.  Remembers what was posted."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.posted = answers, list[tuple[str, Any]]()

    def get(self, path: str, kind: Any) -> Any:
        return self._answer(path, kind)

    def post(self, path: str, body: Any, kind: Any) -> Any:
        self.posted.append((path, body))
        return self._answer(path, kind)

    def _answer(self, path: str, kind: Any) -> Any:
        answer = self.answers.get(path, Failed(404, protocol.Error(error=f"nothing at {path}")))
        if isinstance(answer, Exception):
            raise answer
        return msgspec.convert(msgspec.to_builtins(answer), kind)  # not by way of JSON, which holds no lone surrogate


class Daemon:
    """A socket whose every connection has a thread: `answers` by path, /v1/events with what `publish` is given."""

    def __init__(self, path: Path, answers: dict[str, Any] | None = None) -> None:
        self.path, self.answers = path, answers or {}
        self.hangs = threading.Event()
        self.asked: list[str] = []
        self._news = threading.Condition()
        self._snapshot, self._version, self._open = b"", 0, True
        self._connections: list[socket.socket] = []
        path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def publish(self, snapshot: Status) -> None:
        with self._news:
            self._snapshot, self._version = msgspec.json.encode(snapshot), self._version + 1
            self._news.notify_all()

    def close(self) -> None:
        """As when it is killed: every connection ends."""
        self._open = False
        with self._news:
            self._news.notify_all()
        for sock in (self._listening, *self._connections):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listening.accept()
                self._connections.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError), sock:
            path = sock.recv(65536).split(b" ")[1].decode()
            self.asked.append(path)
            if self.hangs.is_set():
                threading.Event().wait()
            if path == "/v1/events":
                self._stream(sock)
            body = self._snapshot if path == "/v1/status" else msgspec.json.encode(self.answers.get(path, {}))
            state = b"200 OK" if path == "/v1/status" or path in self.answers else b"404 Not Found"
            if state != b"200 OK":
                body = msgspec.json.encode(protocol.Error(error=f"nothing at {path}"))
            sock.sendall(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (state, len(body), body))

    def _stream(self, sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        seen = 0
        while True:
            with self._news:
                while self._version <= seen and self._open:
                    self._news.wait()
                seen, event = self._version, b"data: " + self._snapshot + b"\n\n"
            if not self._open:
                return
            sock.sendall(b"%x\r\n%b\r\n" % (len(event), event))


def task(text: str = "Erdős minimum overlap") -> protocol.TaskInfo:
    return protocol.TaskInfo(
        name="erdos_min_overlap",
        title=text,
        objective="C5",
        direction="lower",
        target=0.380876,
        time_limit=1000,
        entry_point="run",
    )


def answering(path: Path, said: bytes) -> socket.socket:
    """A socket that says the same to everybody, and hangs up."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(16)

    def answer() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(said)

    threading.Thread(target=answer, daemon=True).start()
    return listening
