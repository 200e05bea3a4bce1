"""Secrets planted wherever one could be: after a run, a killed worker and refused requests none is written or told.

One daemon on a tiny model does it all.  Its task's starter program prints its environment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from judges.task import BUILT_IN
from tests.processes import wait_for
from tests.test_end_to_end import GRID, Daemon
from tttdd.adapters import worker
from tttdd.protocol import RunInfo, Submit

MARK = "hunter2-do-not-tell"
ENVIRONMENT = {
    **{name: f"{MARK}-{name}" for name in ("HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY")},
    **{
        name: f"http://user:{MARK}-{name}@127.0.0.1:9/simple"
        for name in ("HTTPS_PROXY", "PIP_INDEX_URL", "HF_ENDPOINT")
    },
    "SOME_LOGIN": f"{MARK}-SOME_LOGIN",
}
PATHS = ("status", "runs", "runs/r", "runs/r/steps", "runs/r/archive", "runs/r/nodes/0", "runs/r/best", "tasks", "gpus")

pytestmark = pytest.mark.timeout(300)


class Told:
    """Everything that the daemon, its processes and its command line have said."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.words: dict[str, str] = {}

    def processes(self) -> None:
        """Command lines and environments of all that runs below the daemon."""
        for child in self.daemon.children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                line = " ".join(child.cmdline())
                self.words[f"process {line} ({len(self.words)})"] = f"{line} {child.environ()}"

    def asked(self, request: str, body: str = "") -> None:
        """An answer, with a secret in a header of the request."""
        head = f"{request} HTTP/1.1\r\nhost: t\r\nconnection: close\r\nauthorization: Bearer {MARK}-header\r\n"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(self.daemon.client.path)
            sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            with sock.makefile("rb") as stream:
                self.words[f"{request} {body}"] = stream.read().decode()

    def ran(self, *command: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            capture_output=True,
            text=True,
            env=os.environ | ENVIRONMENT | {"TTTDD_SOCKET": self.daemon.client.path},
            timeout=100,
        )
        self.words[" ".join(command)] = done.stdout + done.stderr

    def files(self) -> None:
        """Log, state and the workers' logs."""
        for file in [self.daemon.folder / "log", *(self.daemon.folder / "state").rglob("*")]:
            if file.is_file():
                self.words[str(file)] = file.read_bytes().decode(errors="replace")


def telltale(folder: Path) -> Path:
    """A task like erdos_min_overlap whose starter tells its environment."""
    shutil.copytree(BUILT_IN / "erdos_min_overlap", folder / "telltale")
    description, starter = folder / "telltale/task.toml", folder / "telltale/starter.txt"
    description.write_text(description.read_text().replace('"erdos_min_overlap"', '"telltale"'))
    starter.write_text("import os\nprint('environment:', dict(os.environ))\n" + starter.read_text())
    return folder


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("secrets")
    credentials = tmp_path_factory.mktemp("credentials")
    (credentials / "wandb").write_text(f"{MARK}-credential")
    daemon = Daemon(folder, environment=ENVIRONMENT | {"CREDENTIALS_DIRECTORY": str(credentials)})
    with (folder / "tttdd.toml").open("a") as config:
        config.write(f'[tasks]\npath = ["{telltale(tmp_path_factory.mktemp("tasks"))}"]\n')
    daemon.start()
    told = Told(daemon)
    try:
        a_run_whose_engine_is_killed(told)
        refused_requests(told)
        for path in PATHS:
            told.asked(f"GET /v1/{path}")
        the_command_line(told, folder)
    finally:
        daemon.stop()
    told.files()
    yield told


def a_run_whose_engine_is_killed(told: Told) -> None:
    daemon = told.daemon
    daemon.client.post("/v1/runs", Submit(task="telltale", steps=1, grid=GRID, name="r"), RunInfo)
    wait_for(lambda: daemon.phase() == (0, "sample"), "sampling", 120)
    told.processes()
    for engine in daemon.workers("tttdd.workers.sample"):
        os.kill(engine.pid, signal.SIGKILL)
    assert daemon.finish().state == "finished", daemon.run().reason


def refused_requests(told: Told) -> None:
    told.asked("POST /v1/runs", f'{{"task": "telltale", "api_key": "{MARK}-unknown"}}')
    told.asked("POST /v1/runs", f'{{"task": "telltale", "seed": "{MARK}-seed"}}')
    told.asked("POST /v1/runs", f'{{"task": "telltale", {MARK}-syntax}}')
    told.asked("POST /v1/runs/r/cancel", f'"{MARK}-body"')


def the_command_line(told: Told, folder: Path) -> None:
    good = str(folder / "tttdd.toml")
    told.ran("tttctl", "config", "show", "--file", good)
    told.ran("tttctl", "doctor")
    told.ran("tttctl", "status", "r")
    for name, line in {
        "unknown": 'api_key = "{}"',
        "type": 'port = 1\n[trainer]\nlr = "{}"',
        "syntax": "key = {}",
    }.items():
        bad = folder / f"{name}.toml"
        bad.write_text("[tracking]\n" + line.format(f"{MARK}-toml-{name}") + "\n")
        told.ran("tttctl", "config", "check", "--file", str(bad))
    told.ran("tttdd", "--config", str(bad))


def test_no_secret_is_written_or_told(told: Told) -> None:
    assert [place for place, words in told.words.items() if MARK in words] == []


def test_it_was_looked_for_in_the_right_places(told: Told) -> None:
    places = "\n".join(told.words)
    for part in (
        "tttdd.workers.sample",
        "tttdd.workers.train",
        "judges",
        "archive.sqlite3",
        "logs/",
        "/log\n",
        "doctor",
    ):
        assert part in places
    daemons = told.words[str(told.daemon.folder / "log")]
    assert "tttdd.workers.sample ended" in daemons, "a killed worker's last words are among it"
    assert all("HTTP/1.1 400" in words for place, words in told.words.items() if MARK in place and "POST" in place)


def test_a_judged_program_sees_nothing_of_the_daemons_environment(told: Told) -> None:
    node = told.words["GET /v1/runs/r/nodes/0 "]
    assert "environment: {" in node
    assert "HF_TOKEN" not in node and "SOME_LOGIN" not in node


@pytest.mark.parametrize("module", ["tttdd.workers.sample", "tttdd.workers.train", "tttdd.workers.serve"])
def test_a_worker_inherits_what_it_needs_and_no_secret(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = (
        "PATH",
        "PYTHONPATH",
        "LD_PRELOAD",
        "CUDA_HOME",
        "NCCL_DEBUG",
        "OMP_NUM_THREADS",
        "TOKENIZERS_PARALLELISM",
    )
    for name, value in {**ENVIRONMENT, **dict.fromkeys(needed, "x"), "CUDA_VISIBLE_DEVICES": "1"}.items():
        monkeypatch.setenv(name, value)
    passed = worker._environment(module)
    assert set(needed) <= set(passed)
    assert set(ENVIRONMENT) & set(passed) == set()
    assert (passed["CUDA_DEVICE_ORDER"], "CUDA_VISIBLE_DEVICES" in passed) == ("PCI_BUS_ID", False)


def test_what_fetches_models_knows_the_way_to_the_index_and_no_other_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    passed = worker._environment("tttdd.workers.fetch")
    assert set(ENVIRONMENT) & set(passed) == {"HTTPS_PROXY", "PIP_INDEX_URL"}
