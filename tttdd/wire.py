"""Framed messages between the daemon and its worker processes, over a socketpair.

    frame = 4-byte big-endian length + msgpack of Request | Reply | Event

A worker may answer requests in any order; `Event` is a word in between, for instance progress.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
from typing import Any

import msgspec

HEADER = struct.Struct(">I")
PR_SET_PDEATHSIG = 1


class Request(msgspec.Struct, frozen=True, tag="request"):
    id: int
    method: str
    params: dict[str, Any] = {}


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    id: int
    result: Any = None
    error: str | None = None


class Refusal(ValueError):
    """What a worker raises when its words are a whole answer to whoever asked."""


class Event(msgspec.Struct, frozen=True, tag="event"):
    name: str
    data: dict[str, Any] = {}
    id: int = 0
    """Of the request that it belongs to; 0 where it belongs to none."""


Message = Request | Reply | Event

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> Message:
    return _decoder.decode(body)


class Line:
    """The worker's end: blocking, one thread.  Raises EOFError when the daemon is gone."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        self._socket.sendall(encode(message))

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether a message (or the end) can be read within `timeout` seconds."""
        return bool(select.select([self._socket], [], [], timeout)[0])

    def receive(self) -> Message:
        (length,) = HEADER.unpack(self._exactly(HEADER.size))
        return decode(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise EOFError("the daemon closed its end")
            parts += part
        return bytes(parts)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, even by kill -9 (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take `die_with_parent` back, for a process that has something to end before itself."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
