"""One client's connection: uvicorn's HTTP protocol, knowing who calls, and with an end to all that it leaves endless.

    connected, first byte -HEAD_SECONDS-> head -BODY_SECONDS-> body -> answer, some of it read in READ_SECONDS -> idle

`expire`, called every second or so, ends what is late; the idle time is uvicorn's (timeout_keep_alive).  A client that
closes its half after a whole request gets its answer; uvicorn would drop it.
"""

from __future__ import annotations

import math
import select
import socket
import time
from typing import Any, Literal

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tttdd.api import peer
from tttdd.protocol import Error

HEAD_LIMIT = 1 << 16
"""Bytes of a request's line, headers and trailers together."""
HEAD_SECONDS = 10.0
BODY_SECONDS = 30.0
READ_SECONDS = 60.0
"""Without a byte read of what waits for the client."""
STOP_SECONDS = 1.0
"""READ_SECONDS while the daemon stops."""
CONNECTIONS = 512
"""Open at once; more are told so."""
TOLD = 64
"""Connections above that which are told; more are closed unheard."""
PIPELINED = 16
"""Requests sent ahead of the answer to the one before."""

NOT_HTTP = 400, Error(error="this is not an HTTP/1.1 request", hint="curl --unix-socket SOCKET http://tttdd/v1/status")
TOO_MANY = 400, Error(error=f"more than {PIPELINED} requests ahead of their answers", hint="wait for some answers")
TOO_LONG = 431, Error(error=f"the request's headers are longer than {HEAD_LIMIT} bytes")


class _Unacceptable(Exception):
    """Ends the parsing; what is told of it stands in `_fault`."""


class Connection(HttpToolsProtocol):
    def connection_made(self, transport: Any) -> None:
        sock: socket.socket = transport.get_extra_info("socket")
        self._descriptor = sock.fileno()
        self.app_state = {"peer": peer.credentials(sock)} if sock.family == socket.AF_UNIX else {}
        self._fault = NOT_HTTP
        self._reading: Literal["", "head", "body"] = ""
        self._due = time.monotonic() + HEAD_SECONDS
        """When the client must have sent the rest of what it has begun."""
        self._head = self._unparsed = 0
        self._unread, self._read = 0, time.monotonic()
        """Bytes that waited for the client when last looked at, and when it last had read some."""
        self._half_closed = False
        self._cycles: list[RequestResponseCycle] = []
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS + TOLD:
            transport.abort()
        elif len(self.connections) > CONNECTIONS:
            self.app = _busy

    def data_received(self, data: bytes) -> None:
        if self._due == math.inf and not self._unanswered:
            self._due = time.monotonic() + HEAD_SECONDS  # uvicorn's idle time ends with any byte, empty lines as well
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > HEAD_LIMIT and not self.transport.is_closing():
            self._refuse(*TOO_LONG)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's own type
        self._half_closed = not self._reading and bool(self._unanswered)
        if self._half_closed:
            self.cycle.keep_alive = False
        return self._half_closed  # False closes

    def expire(self, now: float) -> None:
        """End this connection if its client is late with what it has to do."""
        unread = self.transport.get_write_buffer_size()
        if not unread or unread < self._unread:
            self._read = now
        self._unread = unread
        if now - self._read > READ_SECONDS or self._gone():
            self.transport.abort()
        elif now > self._due and not self.flow.read_paused and not self.transport.is_closing():
            self._late()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disregard()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self.flow.write_paused:
            self.loop.call_later(STOP_SECONDS, self.transport.abort)

    # What the parser finds

    def on_message_begin(self) -> None:
        self._reading, self._head, self._due = "head", 0, time.monotonic() + HEAD_SECONDS
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._reading, self._due = "body", time.monotonic() + BODY_SECONDS
        if len(self.pipeline) >= PIPELINED:
            self._fault = TOO_MANY
            raise _Unacceptable
        super().on_headers_complete()
        self._cycles = [*self._unanswered, self.cycle]

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading, self._due, self._unparsed = "", math.inf, 0
        super().on_message_complete()

    # What uvicorn does with what it cannot answer

    def send_400_response(self, msg: str) -> None:
        self._refuse(*self._fault)

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade may be ignored; what follows the request could be of the other protocol."""
        self.cycle.keep_alive = False

    # Parts of the above

    @property
    def _unanswered(self) -> list[RequestResponseCycle]:
        """The request that is being answered, and those behind it."""
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def _disregard(self) -> None:
        """Whatever is answered from now on, nobody hears.  uvicorn tells only the newest of pipelined requests."""
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()

    def _count(self, size: int) -> None:
        self._unparsed = 0
        self._head += size
        if self._head > HEAD_LIMIT:
            self._fault = TOO_LONG
            raise _Unacceptable

    def _late(self) -> None:
        match self._reading:
            case "":
                self.transport.close()
            case "head":
                self._refuse(408, Error(error=f"the request's headers took longer than {HEAD_SECONDS:g} s"))
            case "body":
                self._refuse(408, Error(error=f"the request's body took longer than {BODY_SECONDS:g} s"))

    def _refuse(self, status: int, error: Error) -> None:
        """Close, and say why unless that would end up in the middle of an answer."""
        body = msgspec.json.encode(error)
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        if not any(cycle.response_started for cycle in self._unanswered):
            self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self._disregard()
        self.transport.close()

    def _gone(self) -> bool:
        """Whether a client that we do not read from has closed its whole connection: nothing else would tell."""
        if not (self._half_closed or self.flow.read_paused):
            return False
        looked = select.poll()
        looked.register(self._descriptor, 0)
        return any(event & select.POLLHUP for _, event in looked.poll(0))


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    told = Error(
        error=f"the daemon has {CONNECTIONS} connections open, the most it takes",
        hint="close some (each watch is one), or try again in a few seconds",
    )
    answer = Response(msgspec.json.encode(told), 503, {"connection": "close"}, "application/json")
    await answer(scope, receive, send)
