"""What it costs the daemon to be watched: its processor time with no, one and 200 watchers of /v1/events.

    a real daemon, RUNS paused runs, a call that changes the snapshot CHANGES_HZ times a second
    --against DIRECTORY: the same daemon from the sources there, measured in turns with this one

The calls cost the same whoever watches, so they are subtracted.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import hardware
import msgspec
import psutil

from tttctl.client import Client, NoDaemon

ROOT = Path(__file__).resolve().parent.parent
RUNS, CHANGES_HZ = 20, 10
COUNTS = (0, 1, 200)
"""Of watchers."""


class Submit(msgspec.Struct):
    """No more than every version knows."""

    task: str = "erdos_min_overlap"


@contextmanager
def daemon(sources: Path) -> Iterator[tuple[Client, psutil.Process]]:
    """A daemon of its own, that works on nothing."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/s"
        command = [sys.executable, "-m", "tttdd", "--config", str(sources / "etc/tttdd.cpu.toml")]
        command += ["--socket", address, "--state-dir", f"{folder}/state"]
        environment = os.environ | {"PYTHONPATH": str(sources)}
        with subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.DEVNULL) as process:
            client = Client(address)
            try:
                while not answers(client):
                    time.sleep(0.1)
                client.post("/v1/pause", None, dict)
                for _ in range(RUNS):
                    client.post("/v1/runs", Submit(), dict)
                yield client, psutil.Process(process.pid)
            finally:
                process.terminate()


def answers(client: Client) -> bool:
    try:
        return client.get("/v1/health", dict)["status"] == "ok"
    except NoDaemon:
        return False


class Cost(NamedTuple):
    processor: float
    """Seconds of the daemon per second."""
    snapshots: float
    """Told to each watcher per second: a daemon that is too busy tells fewer."""


def cost(client: Client, process: psutil.Process, watchers: int, seconds: float) -> Cost:
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(watchers):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(client.path)
            sock.sendall(b"GET /v1/events HTTP/1.1\r\nhost: tttdd\r\n\r\n")
            selector.register(sock, selectors.EVENT_READ)
        changed_and_read(client, selector, 1.0)
        before, begun = sum(process.cpu_times()[:2]), time.monotonic()
        told = changed_and_read(client, selector, seconds)
        passed = time.monotonic() - begun
        return Cost((sum(process.cpu_times()[:2]) - before) / passed, told / max(watchers, 1) / passed)


def changed_and_read(client: Client, selector: selectors.BaseSelector, seconds: float) -> int:
    """How many snapshots came."""
    told, due = 0, time.monotonic()
    end = due + seconds
    while (now := time.monotonic()) < end:
        if now >= due:
            client.post("/v1/pause", None, dict)
            due = now + 1 / CHANGES_HZ
        for key, _ in selector.select(max(0.0, due - time.monotonic())):
            assert isinstance(key.fileobj, socket.socket)
            told += key.fileobj.recv(1 << 20).count(b"\ndata: ")
    return told


def measured(sources: dict[str, Path], seconds: float, rounds: int) -> dict[str, dict[int, Cost]]:
    """By name of the sources and number of watchers: the mean over the rounds."""
    with ExitStack() as stack:
        daemons = {name: stack.enter_context(daemon(place)) for name, place in sources.items()}
        found: dict[str, dict[int, list[Cost]]] = {name: {count: [] for count in COUNTS} for name in sources}
        for _ in range(rounds):
            for name, (client, process) in daemons.items():
                for count in COUNTS:
                    found[name][count].append(cost(client, process, count, seconds))
    return {name: {count: mean(each) for count, each in costs.items()} for name, costs in found.items()}


def mean(costs: list[Cost]) -> Cost:
    return Cost(*(sum(values) / len(costs) for values in zip(*costs, strict=True)))


def per_snapshot(costs: dict[int, Cost], count: int) -> float:
    """Milliseconds of processor that each snapshot told to each watcher costs."""
    return 1e3 * (costs[count].processor - costs[0].processor) / (costs[count].snapshots * count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="a checkout of what is to be compared with")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each count of watchers, each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the JSON there")
    options = parser.parse_args()
    sources = {"now": ROOT} | ({"before": options.against.resolve()} if options.against else {})
    found = measured(sources, options.seconds, options.rounds)
    each = {name: {count: per_snapshot(costs, count) for count in COUNTS[1:]} for name, costs in found.items()}
    record = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": hardware.described(),
        "load_at_end": [round(each, 2) for each in os.getloadavg()],
        "runs": RUNS,
        "changes_a_second": CHANGES_HZ,
        "watchers": {
            name: {str(count): rounded(cost) for count, cost in costs.items()} for name, costs in found.items()
        },
        "milliseconds_a_snapshot": {
            name: {str(count): round(cost, 3) for count, cost in costs.items()} for name, costs in each.items()
        },
    }
    if options.against:
        record["times_cheaper_with_200"] = round(each["before"][COUNTS[-1]] / each["now"][COUNTS[-1]], 1)
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


def rounded(cost: Cost) -> dict[str, float]:
    return {name: round(value, 3) for name, value in cost._asdict().items()}


if __name__ == "__main__":
    main()
