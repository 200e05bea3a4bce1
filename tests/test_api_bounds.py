"""Clients that are slow, endless, half gone or too many: each is ended in time, and the others notice nothing."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from fake_daemon import Served, serving

from tests.test_api import ask
from tttdd.api import connection, events, server

GET = b"GET /v1/health HTTP/1.1\r\nhost: t\r\n"
POST = b"POST /v1/pause HTTP/1.1\r\nhost: t\r\n"
HEALTHY = b'{"status":"ok"'
LONG = b"x" * connection.HEAD_LIMIT


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A daemon that looks often for clients that are late."""
    monkeypatch.setattr(server, "EXPIRE_SECONDS", 0.02)
    monkeypatch.setattr(server, "IDLE_SECONDS", 1)
    with serving(tmp_path / "s") as served:
        yield served
    assert "pause" not in dict(served.runner.asked), "what was not whole changed nothing"


def connected(served: Served) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(20)
    sock.connect(str(served.socket))
    return sock


def told(sock: socket.socket) -> bytes:
    """All that comes until the daemon closes."""
    found = bytearray()
    try:
        while part := sock.recv(1 << 16):
            found += part
    except ConnectionResetError:  # closed while something that was sent had not been read
        pass
    return bytes(found)


def refusal(answer: bytes) -> tuple[int, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    return int(head.split()[1]), json.loads(body)


def said(served: Served, data: bytes) -> bytes:
    with connected(served) as sock:
        sock.sendall(data)
        return told(sock)


def trickled(served: Served, begun: bytes, piece: bytes) -> bytes:
    """What a client hears that begins a request and then sends `piece` after `piece`."""
    with connected(served) as sock:
        sock.sendall(begun)
        sock.settimeout(0.02)
        for _ in range(500):
            try:
                sock.sendall(piece)
                if heard := sock.recv(1 << 16):
                    return heard
                return b""
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                sock.settimeout(20)
                return told(sock)
    raise AssertionError("the daemon still listens")


@pytest.mark.parametrize(
    "request_",
    [
        GET + b"x: " + LONG + b"\r\n\r\n",
        GET + b"x: " + LONG * 5,
        GET + b"x: y\r\n" * 15_000 + b"\r\n",
        b"GET /" + LONG + b" HTTP/1.1\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 15_000,
        POST + b"transfer-encoding: chunked\r\n\r\n2;" + LONG * 5,
    ],
    ids=["a long header", "a header without end", "many headers", "a long path", "trailers", "a chunk's extension"],
)
def test_a_head_over_the_limit_is_refused(served: Served, request_: bytes) -> None:
    status, error = refusal(said(served, request_))
    assert (status, "longer than 65536 bytes" in error["error"]) == (431, True)
    assert ask(served, "GET", "/v1/health")[0] == 200


@pytest.mark.parametrize("piece", [b"a", b"a: b\r\n"])
def test_a_head_that_trickles_in_is_refused_in_time(
    served: Served, monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    status, error = refusal(trickled(served, GET, piece))
    assert (status, error["error"]) == (408, "the request's headers took longer than 0.3 s")


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (b"content-length: 1000\r\n\r\n{", b" "),
        (b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"transfer-encoding: chunked\r\n\r\n", b"f"),
    ],
    ids=["a length", "chunks", "a chunk's length"],
)
def test_a_body_that_trickles_in_is_refused_in_time(
    served: Served, monkeypatch: pytest.MonkeyPatch, begun: bytes, piece: bytes
) -> None:
    monkeypatch.setattr(connection, "BODY_SECONDS", 0.3)
    status, error = refusal(trickled(served, POST + begun, piece))
    assert status in (400, 408), "a chunk's length overflows before the time is over"
    assert error["error"]


@pytest.mark.parametrize(
    "begun", [b"", b"\r\n", GET + b"\r\n", GET + b"\r\n\r\n\r\n"], ids=["new", "new, a line", "used", "used, a line"]
)
def test_a_connection_without_a_request_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    assert said(served, begun).count(b"HTTP/1.1") == begun.count(b"GET")


def test_empty_lines_do_not_keep_a_connection(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    with connected(served) as sock:
        sock.sendall(GET + b"\r\n")
        wait_for(lambda: HEALTHY in sock.recv(1 << 16))
        with pytest.raises(BrokenPipeError):
            for _ in range(500):
                sock.sendall(b"\r\n")
                time.sleep(0.02)


def test_a_call_that_takes_long_is_not_late(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "READ_SECONDS"):
        monkeypatch.setattr(connection, name, 0.1)
    ask(served, "POST", "/v1/runs", {"task": "erdos_min_overlap", "name": "a"})
    slowly(served, monkeypatch, 0.5)
    assert ask(served, "POST", "/v1/runs/a/verify")[0] == 200


def slowly(served: Served, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Verifying takes so long from now on."""
    verify = served.runner.verify

    async def slow(name: str, node: int | None) -> dict[str, object]:
        await anyio.sleep(seconds)
        return await verify(name, node)

    monkeypatch.setattr(served.runner, "verify", slow)


def test_one_connection_too_many_is_told_so_and_the_next_ones_are_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECTIONS", 3)
    monkeypatch.setattr(connection, "TOLD", 1)
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(served)) for _ in range(3)]
        over = stack.enter_context(connected(served))
        assert told(stack.enter_context(connected(served))) == b"", "one more is closed unheard"
        over.sendall(GET + b"\r\n")
        status, error = refusal(told(over))
        assert (status, error["error"]) == (503, "the daemon has 3 connections open, the most it takes")
        assert "close some" in error["hint"]
        idle[0].close()
        assert wait_for_health(served)


def test_connections_that_say_nothing_keep_nobody_out_for_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECTIONS", 3)
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connected(served))
        assert wait_for_health(served)


def wait_for_health(served: Served) -> bool:
    return any(time.sleep(0.02) or ask(served, "GET", "/v1/health")[0] == 200 for _ in range(200))


@pytest.mark.parametrize("count", [1, 3])
def test_a_client_that_has_said_all_gets_its_answers(served: Served, count: int) -> None:
    with connected(served) as sock:
        sock.sendall((GET + b"\r\n") * count)
        sock.shutdown(socket.SHUT_WR)
        assert told(sock).count(HEALTHY) == count


@pytest.mark.parametrize("more", [b"", GET + b"\r\n"], ids=["alone", "with a request behind"])
def test_a_watcher_that_has_said_all_is_told_until_it_leaves(served: Served, more: bytes) -> None:
    with connected(served) as sock:
        sock.sendall(b"GET /v1/events HTTP/1.1\r\nhost: t\r\n\r\n" + more)
        sock.shutdown(socket.SHUT_WR)
        wait_for(lambda: b"version 0" in sock.recv(1 << 16))
        wait_for(served.board.watched)
        served.on_loop(served.board.touch)
        wait_for(lambda: b"version 1" in sock.recv(1 << 16))
        wait_for(served.board.watched)
    wait_for(lambda: not served.board.watched())


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    paths = [b"/v1/health", b"/v1/none", b"/v1/runs"] * 5
    with connected(served) as sock:
        sock.sendall(b"".join(b"GET " + path + b" HTTP/1.1\r\nhost: t\r\n\r\n" for path in paths))
        sock.shutdown(socket.SHUT_WR)
        statuses = [int(part.split()[0]) for part in told(sock).split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 404, 200] * 5


def test_a_flood_of_pipelined_requests_ends_its_connection(served: Served) -> None:
    with connected(served) as sock, pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(1000):
            sock.sendall((GET + b"\r\n") * 1000)


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET\r\n\r\n"])
def test_what_is_no_request_is_a_400_with_a_hint(served: Served, garbage: bytes) -> None:
    status, error = refusal(said(served, garbage))
    assert (status, "hint" in error) == (400, True)


def test_garbage_after_a_request_is_not_told_in_the_middle_of_its_answer(served: Served) -> None:
    with connected(served) as sock:
        sock.sendall(b"GET /v1/events HTTP/1.1\r\nhost: t\r\n\r\n")
        begun = sock.recv(1 << 16)
        sock.sendall(b"\x00\x01\x02\r\n\r\n")
        assert b"HTTP/1.1 400" not in begun + told(sock)


def test_an_upgrade_is_ignored(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    answer = said(served, GET + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: A\r\n\r\n")
    assert HEALTHY in answer
    assert caplog.records == []


def test_a_client_that_reads_no_answer_is_dropped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "READ_SECONDS", 0.3)
    monkeypatch.setattr(events, "COALESCED_HZ", 100)
    grow(served, size=1 << 20)
    with connected(served) as sock:
        sock.sendall(b"GET /v1/events HTTP/1.1\r\nhost: t\r\n\r\n")
        sock.recv(1)
        time.sleep(1)
        assert not told(sock).endswith(b"0\r\n\r\n"), "cut off, not ended"
    wait_for(lambda: not served.board.watched())


def grow(served: Served, size: int) -> None:
    """Snapshots are of so many bytes from now on."""
    ask(served, "POST", "/v1/runs", {"task": "erdos_min_overlap", "name": "big"})
    served.runner.become("big", "failed", "x" * size)


def test_a_client_that_reads_nothing_does_not_hold_up_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 60)  # longer than `serving` waits
    with serving(tmp_path / "s") as served, connected(served) as sock:
        grow(served, size=1 << 20)
        sock.sendall(b"GET /v1/events HTTP/1.1\r\nhost: t\r\n\r\n")
        sock.recv(1)
        served.on_loop(served.board.touch)
        time.sleep(0.3)
    assert not any(record.exc_info for record in caplog.records)
