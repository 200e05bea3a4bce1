"""A real daemon that is stopped at named points, where something is killed or taken from it, and what it did.

    with Harness(folder, light=True) as harness:     light: workers without a model (light_*.py)
        harness.start()
        for point in harness.strikes("engine"): ...     at every point kills, and sees the run go on
        harness.faults() of the ledger; harness.lost, .judged_twice, .trained_twice

Every process asks at every point (listener.py) and waits for the answer, so a victim dies exactly there.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import psutil

from tests.crash import ledger
from tests.crash.points import Points, twice
from tests.crash.power import SyncedDisk
from tests.processes import alive, wait_for, words
from tests.tiny_config import tiny_config
from tests.tiny_models import write_tiny_model
from tttctl.client import Client, NoDaemon
from tttdd.failpoint import Point
from tttdd.protocol import GridSize, Health, RunInfo, Status, Submit

Victim = Literal["daemon", "engine", "trainer", "zygote", "grader", "judge", "power", "disk"]
ZYGOTE = "judges.sandbox.zygote"
Disk = Literal["plain", "power", "small"]
DISKS: dict[Victim, Disk] = {"power": "power", "disk": "small"}
PROCESSES = {
    "engine": "tttdd.workers.sample",
    "trainer": "tttdd.workers.train",
    "zygote": ZYGOTE,
    "grader": "judges.grader",
}
DISK_MIB = 24
PATIENCE_SECONDS = 60.0
GRID = GridSize(2, 3)


class Harness:
    def __init__(self, folder: Path, *, light: bool, disk: Disk = "plain") -> None:
        """`disk`: "power" keeps what is synced, "small" can be filled (needs root)."""
        self.folder, self.client = folder, Client(str(folder / "s"))
        self.state = folder / "disk/state"
        self._small, self._ballast = disk == "small", folder / "disk/ballast"
        (folder / "disk").mkdir(parents=True)
        if self._small:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tttdd", folder / "disk"], check=True)
        self._power = SyncedDisk(folder / "disk", folder / "power") if disk == "power" else None
        write_tiny_model(folder / "model")
        configured = {"judges": {"parallel": 2}, "checkpoints": {"keep": 100_000}}
        (folder / "tttdd.toml").write_text(tiny_config(folder, self.state, **configured))
        site = folder / "site"
        site.mkdir()
        install = f"from tests.crash import listener\nlistener.install({str(folder / 'points')!r}, light={light})\n"
        (site / "sitecustomize.py").write_text(install)
        root = Path(__file__).resolve().parent.parent.parent
        self._environment = os.environ | {"PYTHONPATH": f"{site}:{root}"}
        if self._power:
            self._environment["LD_PRELOAD"] = str(self._power.shim)
        self._judge = threading.Thread()
        self._runs: list[str] = []
        self.points = Points(folder / "points")
        self.seconds = 0.0
        """Until the run had gone on, the last time."""
        self.kills = self.lost = self.judged_twice = self.trained_twice = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.log())
        self.points.close()
        with suppress(AttributeError, psutil.NoSuchProcess):
            self.kill_all()
        if self._small:
            subprocess.run(["umount", "-l", self.folder / "disk"], check=True)

    # The daemon

    def start(self) -> None:
        command = [sys.executable, Path(__file__).with_name("launch.py"), self.folder / "tttdd.toml"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, start_new_session=True, env=self._environment)
        self._down = False
        wait_for(self._answers, "the daemon")
        if not self._runs:
            wait_for(lambda: self.client.get("/v1/status", Status).judges.level != "starting", "judges")

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def submit(self, steps: int, run: str) -> None:
        self._runs.append(run)
        self.points.forget()
        request = Submit(task="erdos_min_overlap", steps=steps, grid=GRID, name=run)
        self.client.post("/v1/runs", request, RunInfo)

    @property
    def run(self) -> str:
        """The newest."""
        return self._runs[-1]

    def info(self) -> RunInfo:
        return self.client.get(f"/v1/runs/{self.run}", RunInfo)

    def interrupt_at(self, point: Point, times: int) -> int:
        """SIGINT, again and again, from a point of the run in hand on; returns the daemon's exit status."""
        hit = threading.Event()
        self.points.stop_at(point, hit.set)
        wait_for(hit.is_set, f"{point.name} ({point.value})")
        for _ in range(times):
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        return self.process.wait(60)

    def cancel(self) -> None:
        self.client.post(f"/v1/runs/{self.run}/cancel", None, RunInfo)

    def faults(self) -> list[str]:
        """Stop the daemon, and say what is wrong with what it left."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.take_stock()
        return [f"{run}: {fault}" for run in self._runs for fault in ledger.faults(self.state, run)]

    def kill_all(self) -> None:
        """kill -9 of the daemon, and see that nothing of it stays."""
        children = self._children()
        self._down = True
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not any(map(alive, children)), "what the daemon started to die with it")

    # What is done to it

    def strikes(self, victim: Victim) -> Iterator[Point]:
        """At each point of a long run, then at the end of a short one."""
        yield from self.strikes_at(reachable(victim), victim, "long", 1000)
        self.cancel()
        yield from self.strikes_at([Point.RUN_DONE], victim, "short", 1)
        wait_for(lambda: self.info().state == "finished", "the end of the run")

    def strike(self, point: Point, victim: Victim, delay: float) -> None:
        """Of the run in hand: at the next `point`, or so many seconds later, once the victim is there."""
        hit = threading.Event()

        def act() -> None:
            if self._strike(victim):
                hit.set()
            else:
                self.points.stop_at(point, come)

        def come() -> None:
            threading.Timer(delay, act).start() if delay else act()

        self.points.stop_at(point, come)
        wait_for(hit.is_set, f"{point.name} ({point.value})")
        self._go_on(victim)
        self.kills += 1

    def strikes_at(self, points: Sequence[Point], victim: Victim, run: str, steps: int) -> Iterator[Point]:
        """At each of `points` in turn, as soon as the victim is there; yields when the run has gone on."""
        struck = 0
        left = list(points)

        def act() -> None:
            nonlocal struck
            done = self._strike(victim)
            if done:
                left.pop(0)
            if left:
                self.points.stop_at(left[0], act)
            struck += done

        self.points.stop_at(points[0], act)
        self.submit(steps, run)
        for number, point in enumerate(points):
            wait_for(lambda number=number: struck > number, f"{point.name} ({point.value})")
            self._go_on(victim)
            self.kills += 1
            yield point

    def _strike(self, victim: Victim) -> bool:
        match victim:
            case "daemon" | "power":
                self.kill_all()
            case "disk":
                if self._ballast.exists():
                    return False
                self._fill()
            case "judge":
                if self._judge.is_alive():
                    return False
                self._judge = threading.Thread(target=self._kill_a_judge)
                self._judge.start()
            case _:
                found = [one for one in self._children() if PROCESSES[victim] in words(one)]
                for one in found[:1]:  # the programs of a zygote look like it, and come after it
                    one.kill()
                return bool(found)
        return True

    def _go_on(self, victim: Victim) -> None:
        seen, started = self.points.count, time.monotonic()
        if victim in ("daemon", "power"):
            if self._power:
                self._power.cut()
            self.take_stock()
            self.start()
        elif victim == "disk":
            self._free_when_it_waits()
        elif victim == "judge":
            self._judge.join()
        wait_for(lambda: self.points.count > seen or self._ended(), "the run to go on")
        self.seconds = time.monotonic() - started

    def _fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def _free_when_it_waits(self) -> None:
        wait_for(lambda: self._waits() or self._ended(), "the run to wait for room")
        self._ballast.unlink()
        struck_again = self._ballast.exists
        wait_for(lambda: not self._waits() or struck_again(), "the run to take the room")

    def _waits(self) -> bool:
        status = self.client.get("/v1/status", Status)
        return bool(status.notice) or any(run.waits_for_room for run in status.runs)

    def _kill_a_judge(self) -> None:
        """The next program, a clone of the zygote; then wait until it must have been judged again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and not self._ended():
            with suppress(psutil.NoSuchProcess):
                for child in self._children():
                    if ZYGOTE in words(child) and ZYGOTE in words(child.parent()):
                        child.kill()
                        self._wait_for_judging(3)
                        return

    def _wait_for_judging(self, count: int) -> None:
        enough = self.points.judged + count
        wait_for(lambda: self.points.judged >= enough or self._ended(), "judging")

    # What it did

    def take_stock(self) -> None:
        """Compare what is stored of the newest run with what the points told of."""
        with sqlite3.connect(f"file:{self.state}/archive.sqlite3?mode=ro", uri=True) as database:
            query = "SELECT step, grid_group, rollout FROM rollouts WHERE run = ?"
            stored = {str(tuple(row)) for row in database.execute(query, (self.run,))}
        told = self.points.told
        self.lost += len({what for point, what in told if point is Point.ROLLOUT_RECORDED} - stored)
        self.judged_twice += twice(told, Point.ROLLOUT_RECORDED, Point.ROLLOUT_JUDGED)
        self.trained_twice += twice(told, Point.FOLDER_IN_PLACE, Point.OPTIMIZER_STEPPED)

    def _ended(self) -> bool:
        with suppress(NoDaemon):
            return self.info().state in ("finished", "failed", "cancelled")
        return False

    def _answers(self) -> bool:
        """Whether it does; or has been struck before it could."""
        if self._down:
            return True
        assert self.process.poll() is None, self.log()
        with suppress(NoDaemon):
            return self.client.get("/v1/health", Health).status == "ok"
        return False

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def reachable(victim: Victim) -> list[Point]:
    """Points at which it can be there, in their order, without RUN_DONE.

    What has been killed among the judges is started when a program needs it; two judges are not killed in a row.
    """
    never: dict[Victim, set[Point]] = {
        "engine": {Point.RUN_TAKEN, Point.PLANTED},
        "trainer": {Point.RUN_TAKEN, Point.PLANTED},
        "zygote": {Point.WORKERS_OPEN},
        "grader": {Point.WORKERS_OPEN},
        "judge": {Point.PLANTED, Point.WORKERS_OPEN},
    }
    return [point for point in Point if point not in never.get(victim, set()) | {Point.RUN_DONE}]
