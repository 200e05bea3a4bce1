"""A private daemon for a benchmark: its own socket and state, its configuration a file with some values replaced."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tttctl.client import Client, NoDaemon, run_path
from tttdd import protocol

START_SECONDS = 60.0


def configure(place: Path, base: Path, model: Path | None, arguments: list[str], **values: object) -> Path:
    """`base` written to `place`, with its own socket and state; `values` replace keys of any table, by name."""
    text = base.read_text()
    text = text.replace("[daemon]\n", f'[daemon]\nsocket = "{place}/s"\nstate_dir = "{place}/state"\n', 1)
    for name, value in values.items():
        text, found = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.M)
        if not found:
            raise ValueError(f"{base} has no line {name} = ... to be replaced")
    if model:
        text = re.sub(r"^package = .*$", f'path = "{model}"', text, count=1, flags=re.M)
    if arguments:
        pairs = [item.partition("=") for item in arguments]
        text += "\n[engine.arguments]\n" + "".join(f"{name} = {toml(value)}\n" for name, _, value in pairs)
    file = place / "tttdd.toml"
    file.write_text(text)
    return file


def toml(value: str) -> str:
    return value if value in ("true", "false") or value.replace(".", "", 1).isdigit() else f'"{value}"'


class Daemon:
    """`with` starts it; at the end it gets SIGTERM, unless it has ended."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.client = Client(str(place / "s"))

    def __enter__(self) -> Self:
        with (self._place / "daemon.log").open("ab") as log:
            command = [sys.executable, "-m", "tttdd", "--config", str(self._place / "tttdd.toml")]
            self.process = subprocess.Popen(command, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon did not start: {self.log()}")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.log(), file=sys.stderr)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def _answers(self) -> bool:
        try:
            self.client.get("/v1/health", protocol.Health)
        except NoDaemon:
            return False
        return True

    def status(self) -> protocol.Status:
        return self.client.get("/v1/status", protocol.Status)

    def run(self, name: str) -> protocol.RunInfo:
        return self.client.get(run_path(name), protocol.RunInfo)

    def wait_for_phase(self, *phases: str, seconds: float = 900.0) -> str:
        """Until the run in hand is in one of `phases`; returns it.  RuntimeError when the run ends before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            status = self.status()
            if status.current and status.current.phase.name in phases:
                return status.current.phase.name
            if ended := [run for run in status.runs if run.state == "failed"]:
                raise RuntimeError(f"{ended[-1].run}: {ended[-1].reason}")
            time.sleep(0.05)
        raise RuntimeError(f"not in {phases} after {seconds:g} s: {self.log()}")

    def finish(self, name: str) -> protocol.RunInfo:
        """Until the run has ended; RuntimeError unless it is finished."""
        run = self.run(name)
        while run.state in ("queued", "running"):
            time.sleep(0.5)
            run = self.run(name)
        if run.state != "finished":
            raise RuntimeError(f"{name}: {run.state}: {run.reason}; {self.log()}")
        return run

    def log(self) -> str:
        return (self._place / "daemon.log").read_text(errors="replace")[-4000:]
