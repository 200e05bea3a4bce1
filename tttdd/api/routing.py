"""HTTP in the API's words: a table of typed routes over ASGI.

    scope -> peer check -> route -> typed parameters, query and bounded body -> handler -> Struct -> JSON

Every error is a protocol.Error with the right status.  Hand-written, because importing Litestar and building its
application costs more than the daemon's whole start may take.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import anyio
import msgspec

from tttdd import errors, protocol
from tttdd.api.peer import Peer, allowed

BODY_LIMIT = 1 << 20
DRAIN_LIMIT = 1 << 26
STATUS: dict[type[errors.CallerError], int] = {errors.Refused: 400, errors.NotFound: 404, errors.Conflict: 409}
JSON = b"application/json"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_log = logging.getLogger(__name__)


class Call(NamedTuple):
    """One request, checked."""

    path: dict[str, Any]
    """Parameters of the route's path."""
    query: Any
    body: Any


class Events(NamedTuple):
    """An answer without end: one server-sent event an item."""

    items: AsyncIterator[msgspec.Struct]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    """`{run}` is text, `{node}` a node's id."""
    handler: Callable[[Call], Awaitable[Any]]
    gives: Any
    """Type of the answer."""
    takes: type[msgspec.Struct] = protocol.Nothing
    """Type of the body."""
    query: type[msgspec.Struct] = protocol.Nothing
    status: int = 200
    summary: str

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)


class HttpError(Exception):
    """An answer other than the route's."""

    def __init__(self, status: int, error: protocol.Error, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(error.error)
        self.status, self.error, self.headers = status, error, headers


class App:
    """The ASGI application.  `stop` ends the event streams, so that a server can shut down."""

    def __init__(self, routes: list[Route], group: str) -> None:
        self.routes = routes
        self._group = group
        self._patterns = [re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", route.path)) for route in routes]
        self._stopped = anyio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return None
        try:
            route, answer = await self._answer(scope, receive)
        except HttpError as error:
            return await _reply(send, error.status, msgspec.json.encode(error.error), error.headers)
        if isinstance(answer, Events):
            return await self._stream(answer, receive, send)
        return await _reply(send, route.status, msgspec.json.encode(answer))

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[Route, Any]:
        caller = self._admit(scope)
        route, texts = self._find(scope["method"], scope["path"])
        try:
            call = Call(
                {name: _parameter(name, text) for name, text in texts.items()},
                _query(scope["query_string"], route.query),
                _decode(await _body(receive), route.takes) if route.method == "POST" else None,
            )
            answer = await route.handler(call)
        except errors.CallerError as error:
            told = protocol.Error(error=error.message, field=error.field, hint=error.hint)
            raise HttpError(STATUS[type(error)], told) from None
        if route.method == "POST":
            _log.info("%s %s by uid %d (pid %d)", route.method, scope["path"], caller.uid, caller.pid)
        return route, answer

    def _admit(self, scope: Scope) -> Peer:
        caller: Peer | None = scope.get("state", {}).get("peer")
        if caller is not None and allowed(caller, self._group):
            return caller
        hint = f"ask for membership in the group {self._group!r}" if self._group else "use the daemon's account"
        who = f"uid {caller.uid}" if caller else "an unknown account"
        raise HttpError(403, protocol.Error(error=f"{who} may not use this socket", hint=hint))

    def _find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        matches = [(route, pattern.fullmatch(path)) for route, pattern in zip(self.routes, self._patterns, strict=True)]
        there = [(route, match) for route, match in matches if match]
        for route, match in there:
            if route.method == method:
                return route, match.groupdict()
        if not there:
            near = difflib.get_close_matches(path, [route.path for route in self.routes], n=1)
            hint = f"did you mean {near[0]}?" if near else "GET /v1/openapi.json lists all paths"
            raise HttpError(404, protocol.Error(error=f"no such path: {path}", hint=hint))
        methods = ", ".join(sorted({route.method for route, _ in there}))
        told = protocol.Error(error=f"{method} is not allowed on {path}", hint=f"allowed: {methods}")
        raise HttpError(405, told, ((b"allow", methods.encode()),))

    async def _stream(self, events: Events, receive: Receive, send: Send) -> None:
        await send(_start(200, b"text/event-stream", ((b"cache-control", b"no-store"),)))
        async with anyio.create_task_group() as tasks:

            async def end_on(event: Callable[[], Awaitable[object]]) -> None:
                await event()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_on, self._stopped.wait)
            tasks.start_soon(end_on, lambda: _disconnected(receive))
            async for item in events.items:
                await send(_part(b"data: " + msgspec.json.encode(item) + b"\n\n", more=True))
            tasks.cancel_scope.cancel()
        await send(_part(b"", more=False))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    """The whole body, or a 413.  What is too long is read on, to DRAIN_LIMIT, so that its sender hears the answer."""
    body, length, more = bytearray(), 0, True
    while more and length <= DRAIN_LIMIT:
        message = await receive()
        part = message.get("body", b"")
        length += len(part)
        body += part if length <= BODY_LIMIT else b""
        more = message.get("more_body", False)
    if length > BODY_LIMIT:
        error = protocol.Error(error=f"the body is longer than {BODY_LIMIT} bytes")
        raise HttpError(413, error, ((b"connection", b"close"),))
    return bytes(body)


def _parameter(name: str, text: str) -> Any:
    if name != "node":
        return text
    try:
        return msgspec.convert(text, protocol.Node, strict=False)
    except msgspec.ValidationError:
        raise errors.Refused(f"{text!r} is not a node's id", field="node", hint="a whole number from 0") from None


def _query(query: bytes, kind: type[msgspec.Struct]) -> Any:
    pairs = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    try:
        return msgspec.convert(pairs, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), kind) from None


def _decode(body: bytes, kind: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), kind) from None
    except msgspec.DecodeError as error:
        raise errors.Refused(f"the body is not valid JSON: {error}") from None


def _refusal(message: str, kind: type[msgspec.Struct]) -> errors.Refused:
    """msgspec's message, with the field it is about and, for an unknown one, the nearest that exists."""
    rule, _, place = message.partition(" - at `$.")
    path = place.rstrip("`")
    named = re.search(r"field `(.*?)`", rule)
    if named is None:
        return errors.Refused(f"{path}: {rule}" if path else rule, field=path or None)
    field = f"{path}.{named.group(1)}" if path else named.group(1)
    if "unknown" not in rule:
        return errors.Refused(f"{field} is required", field=field)
    return errors.Refused(f"unknown field {field!r}", field=field, hint=None if path else _nearest(field, kind))


def _nearest(name: str, kind: type[msgspec.Struct]) -> str:
    known = [field.name for field in msgspec.structs.fields(kind)]
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(known) or 'none'}"


async def _reply(send: Send, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    await send(_start(status, JSON, (*headers, (b"content-length", str(len(body)).encode()))))
    await send(_part(body, more=False))


def _start(status: int, kind: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind), *headers]}


def _part(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}
