"""HTTP/1.1 over the daemon's Unix socket, one connection a call; answers as the protocol's Structs.

Written out, because importing http.client costs a third of what a whole `tttctl status` may take.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from typing import BinaryIO, TypeVar

import msgspec

from tttdd import protocol

DEFAULT_SOCKET = "/run/tttdd/tttdd.sock"
TIMEOUT = 60.0
"""Seconds to wait for an answer; a program that is judged again has its own limit, well below this."""
RESTART_SECONDS = 60.0
"""For a daemon that is started again to be there."""

MOST_BYTES = 1 << 30
"""Of one answer: a length beyond it is no length."""
MOST_HEADERS = 100
STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: .*)?")
UNREADABLE = (msgspec.DecodeError, RecursionError)
"""What decoding raises: JSON that is none, of another shape, or nested without end."""

Answer = TypeVar("Answer")


class NoDaemon(Exception):
    """Nobody answers at the socket."""


class Failed(Exception):
    """The daemon refused or failed; `status` is HTTP's."""

    def __init__(self, status: int, error: protocol.Error) -> None:
        parts = [error.error, f"({error.hint})" if error.hint else ""]
        super().__init__(" ".join(filter(None, parts)))
        self.status = status


class Client:
    def __init__(self, path: str, timeout: float = TIMEOUT) -> None:
        self.path, self._timeout = path, timeout

    def get(self, path: str, kind: type[Answer]) -> Answer:
        return self._call("GET", path, None, kind)

    def post(self, path: str, body: msgspec.Struct | None, kind: type[Answer]) -> Answer:
        return self._call("POST", path, body, kind)

    def events(self) -> Iterator[protocol.Status]:
        """Snapshots until the daemon ends the stream."""
        with self._connect() as sock, sock.makefile("rb") as stream:
            sock.settimeout(None)  # nothing may happen for long; a daemon that dies closes the stream
            try:
                _send(sock, "GET", "/v1/events", None)
                _check(stream)
                while chunk := _chunk(stream):
                    yield _decoded(chunk.removeprefix(b"data: "), protocol.Status)
            except (ConnectionError, EOFError):
                return

    def await_daemon(self, patience: float = RESTART_SECONDS) -> None:
        """Wait for one that is being started again; raises NoDaemon when it stays away for `patience` seconds."""
        deadline = time.monotonic() + patience
        while True:
            try:
                self.get("/v1/health", protocol.Health)
                return
            except NoDaemon:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _call(self, method: str, path: str, body: msgspec.Struct | None, kind: type[Answer]) -> Answer:
        with self._connect() as sock, sock.makefile("rb") as stream:
            try:
                _send(sock, method, path, body)
                return _decoded(_check(stream), kind)
            except TimeoutError:
                raise NoDaemon(f"the daemon at {self.path} does not answer within {self._timeout:g} s") from None
            except (ConnectionError, EOFError):
                raise NoDaemon(f"the daemon at {self.path} ended before it answered") from None

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self._timeout)
        try:
            sock.connect(self.path)
        except PermissionError:
            sock.close()
            told = protocol.Error(error=f"you may not use {self.path}", hint="join the socket's group")
            raise Failed(403, told) from None
        except OSError as error:
            sock.close()
            raise NoDaemon(f"no daemon at {self.path}: {error.strerror or error}") from None
        return sock


def run_path(run: str, rest: str = "") -> str:
    from urllib.parse import quote  # not worth its import time to the verbs that name no run

    return f"/v1/runs/{quote(run, safe='', errors='surrogateescape')}{rest}"


def default_socket() -> str:
    return os.environ.get("TTTDD_SOCKET", DEFAULT_SOCKET)


def _send(sock: socket.socket, method: str, path: str, body: msgspec.Struct | None) -> None:
    data = b"" if body is None else _encoded(body)
    head = f"{method} {path} HTTP/1.1\r\nhost: tttdd\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)


def _encoded(body: msgspec.Struct) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:  # bytes of the command line that were no UTF-8
        raise Failed(
            400, protocol.Error(error=f"{error.object!r} is no UTF-8 text", hint="name it otherwise")
        ) from None


def _check(stream: BinaryIO) -> bytes:
    """The body of an answer that has a length (else empty: it comes in chunks); raises Failed for a refusal."""
    first = _line(stream)
    found = STATUS.fullmatch(first)
    if found is None:
        raise _unreadable(f"it begins with {first[:40]!r}")
    status, length = int(found[1]), _length(stream)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    if status >= 400:
        raise Failed(status, _error(status, body))
    return body


def _length(stream: BinaryIO) -> int:
    """As the headers tell it; they are read to their end."""
    length = 0
    for _ in range(MOST_HEADERS):
        line = _line(stream)
        if not line:
            return length
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = _size(value.strip(), 10)
    raise _unreadable(f"it has more than {MOST_HEADERS} headers")


def _size(text: bytes, base: int) -> int:
    try:
        size = int(text, base)
    except ValueError:
        size = -1
    if not 0 <= size <= MOST_BYTES:
        raise _unreadable(f"its length is {text[:40]!r}")
    return size


def _decoded(body: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise _unreadable(str(error)) from None


def _unreadable(why: str) -> Failed:
    told = protocol.Error(error=f"the daemon's answer cannot be read: {why}", hint="is it of another version?")
    return Failed(500, told)


def _error(status: int, body: bytes) -> protocol.Error:
    try:
        return msgspec.json.decode(body, type=protocol.Error)
    except UNREADABLE:  # not from the API: the server under it has no JSON
        return protocol.Error(error=f"the daemon failed (HTTP {status})", hint="its log says why")


def _line(stream: BinaryIO) -> bytes:
    line = stream.readline(65536)
    if not line.endswith(b"\n"):
        raise EOFError
    return line.strip()


def _chunk(stream: BinaryIO) -> bytes:
    """One chunk; empty at the end, also when the daemon was killed in the middle."""
    size = _size(stream.readline(64).strip() or b"0", 16)
    chunk = stream.read(size + 2)
    return chunk[:size] if len(chunk) == size + 2 else b""
