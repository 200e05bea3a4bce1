"""The API over its real socket: every route, every refusal by name, who may call, and a stop that does not hang."""

from __future__ import annotations

import grp
import http.client
import json
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from fake_daemon import FakeBoard, FakeDesk, FakeRunner, Served, serving
from starlette.requests import empty_receive

from tests.fakes import FakeNvml
from tttdd import gpus
from tttdd.api import app, peer, server
from tttdd.api.peer import Peer
from tttdd.ports import StoreError

US = Peer(os.getpid(), os.getuid(), os.getgid())


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("tttdd", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(str(self.path))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("api") / "deep" / "tttdd.sock") as served:
        ask(served, "POST", "/v1/runs", {"task": "erdos_min_overlap", "name": "first"})
        yield served


def ask(served: Served, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = UnixConnection(served.socket)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body)
    connection.request(method, path, data)
    reply = connection.getresponse()
    answer = json.loads(reply.read())
    connection.close()
    return reply.status, answer


def test_health_tells_the_version(served: Served) -> None:
    assert ask(served, "GET", "/v1/health") == (200, {"status": "ok", "version": app.__version__})


@pytest.mark.parametrize(
    "path", ["/v1/status", "/v1/tasks", "/v1/gpus", "/v1/runs", "/v1/runs/first", "/v1/runs/first/steps"]
)
def test_reading_paths_answer(served: Served, path: str) -> None:
    assert ask(served, "GET", path)[0] == 200


def test_the_devices_are_read_anew(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml({"total": 9, "used": 5})
    monkeypatch.setattr(gpus, "nvml", fake)
    fake.devices[0]["used"] = 7
    status, (device,) = ask(served, "GET", "/v1/gpus")
    assert (status, device["memory_used"], device["load"], device["processes"]) == (200, 7, 0.0, [])


def test_the_socket_is_for_its_group_alone(served: Served) -> None:
    assert stat.S_IMODE(served.socket.stat().st_mode) == 0o660


def test_a_submitted_run_is_created_and_can_be_read(served: Served) -> None:
    request = {"task": "erdos_min_overlap", "steps": 3, "grid": {"groups": 2, "rollouts": 4}, "seed": 7}
    status, run = ask(served, "POST", "/v1/runs", request)
    assert (status, run["steps"], run["grid"], run["seed"]) == (201, 3, {"groups": 2, "rollouts": 4}, 7)
    assert ask(served, "GET", f"/v1/runs/{run['run']}") == (200, run)


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"task": "erdos_min_overlap", "stepz": 3}, "stepz", "did you mean 'steps'?"),
        ({"task": "erdos_min_overlap", "grid": {"groups": 1, "rollouts": 0}}, "grid.rollouts", ">= 1"),
        ({"task": "erdos_min_overlap", "grid": {"groups": 1, "rollouts": 3, "x": 1}}, "grid.x", "unknown field"),
        ({"task": "erdos_min_overlap", "steps": 10**30}, "steps", "<= 1000000"),
        ({"task": "erdos_min_overlap", "seed": True}, "seed", "int"),
        ({"task": "erdos_min_overlap", "name": "../x"}, "name", "regex"),
        ({"task": "erdos_min_overlap", "name": "x\n"}, "name", "regex"),
        ({}, "task", "required"),
    ],
)
def test_a_body_that_breaks_a_rule_is_refused_with_the_field_and_the_rule(
    served: Served, body: dict[str, Any], field: str, said: str
) -> None:
    status, error = ask(served, "POST", "/v1/runs", body)
    assert (status, error["field"]) == (400, field)
    assert said in error["error"] + error.get("hint", "")


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b'{"task": "\\ud800"}', b"[]", b"null"])
def test_a_body_that_is_no_object_of_valid_json_is_a_400(served: Served, body: bytes) -> None:
    assert ask(served, "POST", "/v1/runs", body)[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "hint"),
    [
        ("POST", "/v1/runs", {"task": "erdos"}, 404, "did you mean 'erdos_min_overlap'?"),
        ("GET", "/v1/runs/nobody", None, 404, "first"),
        ("GET", "/v1/runs/first/nodes/7", None, 404, ""),
        ("GET", "/v1/runs/first/nodes/one", None, 400, "whole number"),
        ("GET", f"/v1/runs/first/nodes/{2**63}", None, 400, "whole number"),
        ("GET", "/v1/runs/first/archive?limit=0", None, 400, ""),
        ("GET", "/v1/runs/first/archive?limits=1", None, 400, "did you mean 'limit'?"),
        ("POST", "/v1/runs", {"task": "erdos_min_overlap", "name": "first"}, 409, ""),
        ("GET", "/v1/stats", None, 404, "did you mean /v1/status?"),
        ("DELETE", "/v1/runs", None, 405, "allowed: GET, POST"),
        ("GET", "/v1/runs/", None, 404, "did you mean /v1/runs?"),
        ("POST", "/v1/runs/first/resume", {"now": 1}, 400, "known fields: none"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    served: Served, method: str, path: str, body: Any, status: int, hint: str
) -> None:
    answered, error = ask(served, method, path, body)
    assert answered == status
    assert error["error"]
    assert hint in error.get("hint", "")


def test_pause_resume_and_cancel_reach_the_runner(served: Served) -> None:
    ask(served, "POST", "/v1/runs", {"task": "erdos_min_overlap", "name": "tossed"})
    assert ask(served, "POST", "/v1/runs/tossed/pause", {"release_gpus": True})[1]["state"] == "paused"
    assert ("pause", ("tossed", True)) in served.runner.asked
    assert ask(served, "POST", "/v1/runs/tossed/resume")[1]["state"] == "running"
    assert ask(served, "POST", "/v1/runs/tossed/cancel")[1]["state"] == "cancelled"
    assert ask(served, "POST", "/v1/runs/tossed/cancel")[0] == 409


def test_the_whole_daemon_pauses_and_resumes(served: Served) -> None:
    assert ask(served, "POST", "/v1/pause")[0] == ask(served, "POST", "/v1/resume", {})[0] == 200
    assert ("pause", (None, False)) in served.runner.asked
    assert ("resume", None) in served.runner.asked


def test_programs_are_listed_shown_and_judged_again(served: Served) -> None:
    (listed,) = ask(served, "GET", "/v1/runs/first/archive?limit=5")[1]
    assert listed["program"] == ""
    assert ask(served, "GET", "/v1/runs/first/best") == ask(served, "GET", "/v1/runs/first/nodes/1")
    status, verdict = ask(served, "POST", "/v1/runs/first/verify", {"node": 1})
    assert (status, verdict["node"], verdict["valid"], verdict["reward"]) == (200, 1, True, 2.5)


def test_a_body_over_the_limit_is_cut_off(served: Served) -> None:
    assert ask(served, "POST", "/v1/runs", b" " * (2 << 20))[0] == 413


def test_a_chunked_body_over_the_limit_is_cut_off(served: Served) -> None:
    connection = UnixConnection(served.socket)
    connection.request("POST", "/v1/runs", iter([b" " * 0x10000] * 17), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_body_without_end_loses_its_connection(served: Served) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(served.socket))
        sock.sendall(b"POST /v1/runs HTTP/1.1\r\nhost: t\r\ncontent-length: 99999999999\r\n\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(2000):
                sock.sendall(b" " * (1 << 20))


def test_a_body_that_ends_early_changes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as served:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(served.socket))
            sock.sendall(b"POST /v1/pause HTTP/1.1\r\nhost: t\r\ncontent-length: 10\r\n\r\n{}")
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
        assert ask(served, "GET", "/v1/health")[0] == 200
        assert served.runner.asked == []


def test_a_defect_is_told_as_the_daemons_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "s") as served:
        monkeypatch.setattr(served.runner, "best", None)
        told = {"error": "the daemon failed (HTTP 500)", "hint": "its log says why"}
        assert ask(served, "GET", "/v1/runs/first/best") == (500, told)
    assert any(record.exc_info and record.exc_info[0] is TypeError for record in caplog.records)


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        (OSError(28, "No space left on device"), 507, "nothing was changed: [Errno 28] No space left on device"),
        (StoreError("column 'metrics' cannot be read"), 500, "column 'metrics' cannot be read"),
        (OSError(5, "Input/output error"), 500, "Input/output error"),
    ],
)
def test_a_state_that_cannot_be_kept_or_read_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, said: str
) -> None:
    def fails(*_: object) -> None:
        raise fault

    with serving(tmp_path / "s") as served:
        monkeypatch.setattr(served.runner, "pause", fails)
        answered, error = ask(served, "POST", "/v1/pause")
        assert answered == status and said in error["error"]
        assert ask(served, "GET", "/v1/health")[0] == 200


def test_events_are_whole_snapshots_coalesced(served: Served) -> None:
    connection = UnixConnection(served.socket)
    connection.request("GET", "/v1/events")
    stream = connection.getresponse()
    first = event(stream)
    for _ in range(50):
        served.on_loop(served.board.touch)
    second = event(stream)
    assert first["log"] != second["log"]
    assert second["pid"] == os.getpid()
    served.on_loop(served.board.touch)
    third = event(stream)
    assert int(third["log"][0].split()[1]) >= 51, "fifty changes became one or two snapshots"
    connection.sock.close()


def event(stream: http.client.HTTPResponse) -> Any:
    line = stream.readline()
    assert line.startswith(b"data: ")
    assert stream.readline() == b"\n"
    return json.loads(line[6:])


def test_an_open_event_stream_does_not_hold_up_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 60)  # longer than `serving` waits
    with serving(tmp_path / "s") as served:
        connection = UnixConnection(served.socket)
        connection.request("GET", "/v1/events")
        stream = connection.getresponse()
        event(stream)
    assert stream.read() == b"", "the stream ends properly, not in the middle of a chunk"
    connection.close()
    assert not served.socket.exists()


def test_a_call_in_flight_gets_its_answer_before_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[int] = []
    with serving(tmp_path / "s") as served:
        ask(served, "POST", "/v1/runs", {"task": "erdos_min_overlap", "name": "a"})
        begun = threading.Event()

        async def slow(name: str, node: int | None) -> dict[str, object]:
            begun.set()
            await anyio.sleep(0.5)
            return {"node": 1, "valid": True, "reward": 1.0, "objective": None, "reason": "", "detail": ""}

        monkeypatch.setattr(served.runner, "verify", slow)
        caller = threading.Thread(target=lambda: answers.append(ask(served, "POST", "/v1/runs/a/verify")[0]))
        caller.start()
        begun.wait(5)
    caller.join(5)
    assert answers == [200]


def test_a_socket_in_use_is_refused_with_the_pid(served: Served) -> None:
    with pytest.raises(server.SocketInUse, match=rf"pid {os.getpid()}\b"):
        server.bind(served.socket, "")
    assert ask(served, "GET", "/v1/health")[0] == 200


def test_a_dead_daemons_socket_is_replaced(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "s"))
    dead.close()
    bound = server.bind(tmp_path / "s", "")
    bound.close()
    assert not (tmp_path / "s").exists()


def test_a_group_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no-such-group"):
        server.bind(tmp_path / "s", "no-such-group")
    assert not (tmp_path / "s").exists()


def test_a_socket_of_systemd_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.from_systemd() is None
    monkeypatch.setenv("LISTEN_PID", "1")
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert server.from_systemd() is None, "meant for another process"


def test_root_the_daemons_account_and_the_group_may_call() -> None:
    group = grp.getgrall()[-1]
    stranger = 54321
    assert peer.allowed(Peer(1, 0, 0), "")
    assert peer.allowed(US, "")
    assert peer.allowed(Peer(1, stranger, group.gr_gid), group.gr_name)
    assert not peer.allowed(Peer(1, stranger, stranger), group.gr_name)
    assert not peer.allowed(Peer(1, stranger, group.gr_gid), "")
    assert not peer.allowed(Peer(1, stranger, stranger), "no-such-group")


@pytest.mark.parametrize("state", [{}, {"peer": Peer(1, 54321, 54321)}])
def test_a_stranger_gets_a_403_whatever_he_asks(state: dict[str, Peer]) -> None:
    runner = FakeRunner()
    application = app.build(runner, FakeBoard(runner), FakeDesk(), group="root")
    sent: list[Any] = []

    async def call() -> None:
        scope = {"type": "http", "method": "GET", "path": "/v1/status", "state": state, "query_string": b""}

        async def send(message: Any) -> None:
            sent.append(message)

        await application(scope, empty_receive, send)

    anyio.run(call)
    assert sent[0]["status"] == 403
    assert "group 'root'" in json.loads(sent[1]["body"])["hint"]


def test_a_call_that_changes_something_is_logged_with_the_uid(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tttdd"):
        ask(served, "GET", "/v1/status")
        ask(served, "POST", "/v1/runs/first/pause")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("tttdd.api")] == [
        f"POST /v1/runs/first/pause by uid {os.getuid()} (pid {os.getpid()})"
    ]


def test_the_description_forbids_what_the_api_refuses(served: Served) -> None:
    schemas = ask(served, "GET", "/v1/openapi.json")[1]["components"]["schemas"]
    assert schemas["Submit"]["additionalProperties"] is False
    assert "additionalProperties" not in schemas["Status"]
