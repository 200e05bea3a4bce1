"""What `tttctl monitor` costs: process CPU while 512 cells change at 5 Hz, and the time until it has painted.

The monitor runs as users run it, `python -m tttctl monitor` under a pseudo-terminal, against a socket that sends a
whole snapshot five times a second in which about a tenth of the cells have moved on.  CPU is user + system time of that
process alone (/proc/PID/stat), between two moments well after its start; the terminal's own work is not in it.

    python benchmarks/monitor.py [--seconds 30] [-o benchmarks/results/monitor.json]
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import pty
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import fake_monitor  # noqa: E402
from tttdd.protocol import CellState, Status  # noqa: E402

HERTZ = 5
MOVED = 0.1
"""Share of the cells that a change moves on."""
SETTLE_SECONDS = 5.0
PAINTED = b"512 judged"
"""Only in the panel that shows the grid."""
NEXT: dict[CellState, CellState] = {"waiting": "sampling", "sampling": "judging", "judging": "valid"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each soak")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("-o", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, changing(Path(folder) / "tttdd.sock") as socket:
        result = {
            "cells": 512,
            "changes_per_second": HERTZ,
            "cells_moved_a_change": MOVED,
            "seconds": options.seconds,
            "soak": {
                f"{columns}x{rows}": soak(socket, columns, rows, options.seconds)
                for columns, rows in ((80, 24), (200, 60))
            },
            "first_paint": first_paints(socket, options.starts),
            "python": platform.python_version(),
            "machine": f"{processor()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}",
        }
    text = json.dumps(result, indent=2)
    print(text)
    if options.o:
        options.o.write_text(text + "\n")


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


class Grid:
    """Cells that move on, and begin anew after their end."""

    def __init__(self) -> None:
        self._chance = random.Random(1)
        self._cells: list[list[CellState]] = [["waiting"] * 64 for _ in range(8)]

    def snapshot(self) -> Status:
        for row in self._cells:
            row[:] = [self._after(cell) if self._chance.random() < MOVED else cell for cell in row]
        current = fake_monitor.current(cells=self._cells)
        phase = msgspec.structs.replace(current.phase, since=time.time() - 41)
        log = [f"rollout {self._chance.random()} judged" for _ in range(200)]
        return fake_monitor.status(current=msgspec.structs.replace(current, phase=phase), log=log)

    def _after(self, cell: CellState) -> CellState:
        rejected = cell == "judging" and self._chance.random() < 0.3
        return "rejected" if rejected else NEXT.get(cell, "waiting")


@contextmanager
def changing(socket: Path) -> Iterator[Path]:
    """A daemon's socket that tells of a change HERTZ times a second."""
    steps = {"/v1/runs/erdos-long/steps": fake_monitor.rows()}
    daemon = fake_monitor.Daemon(socket, {"/v1/health": {"status": "ok", "version": "0"}, **steps})
    grid, ended = Grid(), threading.Event()

    def change() -> None:
        while not ended.wait(1 / HERTZ):
            daemon.publish(grid.snapshot())

    daemon.publish(grid.snapshot())
    changer = threading.Thread(target=change)
    changer.start()
    try:
        yield socket
    finally:
        ended.set()
        changer.join()
        daemon.close()


class Terminal:
    """A monitor under a pseudo-terminal of its own; what it writes is read at once."""

    def __init__(self, socket: Path, columns: int, rows: int) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.started = time.monotonic()
        environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tttctl", "--socket", str(socket), "monitor"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)
        self.written, self.painted = 0, threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        before = b""
        with suppress(OSError):  # the other side is closed
            while data := os.read(self._mine, 1 << 16):
                self.written += len(data)
                if PAINTED in before + data:
                    self.painted.set()
                before = data[-len(PAINTED) :]

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def quit(self) -> None:
        os.write(self._mine, b"q")
        assert self.process.wait(20) == 0, "the monitor did not end well"
        os.close(self._mine)


def soak(socket: Path, columns: int, rows: int, seconds: float) -> dict[str, float]:
    """CPU seconds a second, and how much was painted meanwhile."""
    terminal = Terminal(socket, columns, rows)
    assert terminal.painted.wait(30), "nothing was painted"
    time.sleep(SETTLE_SECONDS)
    spent, started, written = terminal.cpu_seconds(), time.monotonic(), terminal.written
    time.sleep(seconds)
    passed = time.monotonic() - started
    share, painted = (terminal.cpu_seconds() - spent) / passed, (terminal.written - written) / passed
    terminal.quit()
    return {"cpu_share_of_one_core": round(share, 4), "bytes_painted_a_second": round(painted)}


def first_paints(socket: Path, starts: int) -> dict[str, float]:
    """From the start of the process to the grid's first bytes; CPU seconds do not depend on what else is running."""
    times = [first_paint(socket) for _ in range(starts)]
    return {
        "starts": starts,
        "seconds_median": round(statistics.median(seconds for seconds, _ in times), 3),
        "seconds_least": round(min(seconds for seconds, _ in times), 3),
        "cpu_seconds_median": round(statistics.median(spent for _, spent in times), 3),
    }


def first_paint(socket: Path) -> tuple[float, float]:
    terminal = Terminal(socket, 80, 24)
    assert terminal.painted.wait(30), "nothing was painted"
    times = time.monotonic() - terminal.started, terminal.cpu_seconds()
    terminal.quit()
    return times


if __name__ == "__main__":
    main()
