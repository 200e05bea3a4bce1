"""The API on Starlette: a table of typed routes; msgspec checks what comes in and writes what goes out.

    peer check -> Starlette's routes -> typed parameters, query and bounded body -> handler -> Struct -> JSON

Every error is a protocol.Error with the right status, a defect of ours too.  Starlette, because importing Litestar and
building its application costs more than the daemon's whole start may take.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import anyio
import msgspec
import starlette.routing
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tttdd import errors, protocol
from tttdd.api.peer import Peer, allowed
from tttdd.harness_protocol import ChatError
from tttdd.ports import StoreError
from tttdd.room import NO_ROOM

BODY_LIMIT = 1 << 20
DRAIN_LIMIT = 1 << 26
STATUS: dict[type[errors.CallerError], int] = {
    errors.Refused: 400,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.NotYet: 503,
}
RETRY = {"retry-after": "1"}
"""Header of an answer that will be another by itself."""
FINAL = {"x-should-retry": "false"}
"""Of one that will not, a client's mistake: OpenAI's clients would ask again after every 409."""
OPENAI = "OpenAI/"
"""In the user agent of OpenAI's clients, which show no error of another shape: not even its status tells them more."""
FAILS = "tttdd.fails"
"""Key of a request's scope: its route's `fails`."""
HANDLED = (HTTPException, errors.CallerError, StoreError, OSError)
"""Errors that an answer tells of; others are raised again, so that the server logs them."""

_log = logging.getLogger(__name__)


class Call(NamedTuple):
    """One request, checked."""

    path: dict[str, Any]
    """Parameters of the route's path."""
    query: Any
    body: Any
    content: bytes
    """The body as it was sent."""
    header: str
    """Value of the route's header."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    """`{run}` is text, `{node}` a node's id."""
    handler: Callable[[Call], Awaitable[Any]]
    """Gives what is told as JSON, or a whole Response."""
    gives: Any
    """Type of the answer."""
    takes: type[msgspec.Struct] = protocol.Nothing
    """Type of the body."""
    query: type[msgspec.Struct] = protocol.Nothing
    header: str = ""
    """Name of a header that the call needs."""
    status: int = 200
    kind: str = "application/json"
    """Media type of the answer; where it is another, `gives` is text."""
    fails: type[protocol.Error] | type[ChatError] = protocol.Error
    """How an error is told."""
    logged: int = logging.INFO
    """Level at which a POST is logged with its caller."""
    summary: str

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)


class App(Starlette):
    """The application; `stopping`, once set, ends the event streams, so that a server can shut down."""

    def __init__(self, routes: list[Route], group: str, stopping: anyio.Event) -> None:
        endpoints: dict[str, _Endpoint] = {}
        for route in routes:
            endpoints.setdefault(route.path, _Endpoint())[route.method] = route
        super().__init__(
            routes=[starlette.routing.Route(path, endpoint) for path, endpoint in endpoints.items()],
            middleware=[Middleware(_Admission, group=group)],
            exception_handlers=dict.fromkeys((*HANDLED, Exception), _told),
        )
        self.router.redirect_slashes = False
        self.stopping = stopping


class _Admission:
    """Middleware: who may call at all."""

    def __init__(self, app: ASGIApp, group: str) -> None:
        self._app, self._group = app, group

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Peer | None = scope.get("state", {}).get("peer")
        if caller is not None and allowed(caller, self._group):
            return await self._app(scope, receive, send)
        hint = f"ask for membership in the group {self._group!r}" if self._group else "use the daemon's account"
        who = f"uid {caller.uid}" if caller else "an unknown account"
        told = protocol.Error(error=f"{who} may not use this socket", hint=hint)
        refusal = _json(403, told, {"connection": "close"})
        return await refusal(scope, receive, send)


class _Endpoint(dict[str, Route]):
    """One path's routes by method, as an ASGI application: a function's route in Starlette would answer HEAD too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method not in self:
            raise HTTPException(405, headers={"allow": ", ".join(sorted(self))})
        scope[FAILS] = self[request.method].fails
        response = await _answer(self[request.method], request)
        await response(scope, receive, send)


async def _answer(route: Route, request: Request) -> Response:
    content = await _body(request) if route.method == "POST" else b""
    call = Call(
        {name: _parameter(name, text) for name, text in request.path_params.items()},
        _query(dict(request.query_params), route.query),
        _decode(content, route.takes) if route.method == "POST" else None,
        content,
        _header(request, route.header),
    )
    answer = await route.handler(call)
    if route.method == "POST":
        caller: Peer = request.scope["state"]["peer"]
        _log.log(route.logged, "POST %s by uid %d (pid %d)", request.scope["path"], caller.uid, caller.pid)
    return answer if isinstance(answer, Response) else _json(route.status, answer)


def _json(status: int, answer: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(answer), status, headers, "application/json")


async def _told(request: Request, error: Exception) -> Response:
    status, told, headers = _answer_to(request, error)
    headers = {**(headers or {}), **(FINAL if status < 500 else {})}
    as_openai = OPENAI in request.headers.get("user-agent", "")
    fails = ChatError if as_openai else request.scope.get(FAILS, protocol.Error)
    return _json(status, told if fails is protocol.Error else fails.of(status, told), headers)


def _answer_to(request: Request, error: Exception) -> tuple[int, protocol.Error, Mapping[str, str] | None]:
    path = request.scope["path"]
    match error:
        case errors.CallerError():
            told = protocol.Error(error=error.message, field=error.field, hint=error.hint)
            return STATUS[type(error)], told, RETRY if isinstance(error, errors.NotYet) else None
        case HTTPException(status_code=404):
            near = difflib.get_close_matches(path, [route.path for route in request.app.routes], n=1)
            hint = f"did you mean {near[0]}?" if near else "GET /v1/openapi.json lists all paths"
            return 404, protocol.Error(error=f"no such path: {path}", hint=hint), None
        case HTTPException(status_code=405, headers=headers):
            told, hint = f"{request.method} is not allowed on {path}", f"allowed: {(headers or {})['allow']}"
            return 405, protocol.Error(error=told, hint=hint), headers
        case StoreError():
            _log.error("%s: %s", path, error)
            return 500, protocol.Error(error=str(error), hint="the runs that can be read go on"), None
        case OSError(errno=number) if number in NO_ROOM:
            return 507, protocol.Error(error=f"nothing was changed: {error}", hint="make room on the disk"), None
        case OSError():
            _log.error("%s", path, exc_info=error)
            return 500, protocol.Error(error=f"the daemon failed (HTTP 500): {error}", hint="its log says why"), None
        case HTTPException():
            return error.status_code, protocol.Error(error=error.detail), error.headers
        case _:
            return 500, protocol.Error(error="the daemon failed (HTTP 500)", hint="its log says why"), None


async def _body(request: Request) -> bytes:
    """The whole body, or a 413.  What is too long is read on, to DRAIN_LIMIT, so that its sender hears the answer."""
    body, length = bytearray(), 0
    try:
        async for part in request.stream():
            length += len(part)
            body += part if length <= BODY_LIMIT else b""
            if length > DRAIN_LIMIT:
                break
    except ClientDisconnect:
        raise errors.Refused("the body ended early") from None
    if length > BODY_LIMIT:
        raise HTTPException(413, f"the body is longer than {BODY_LIMIT} bytes", {"connection": "close"})
    return bytes(body)


def _parameter(name: str, text: str) -> Any:
    if name != "node":
        return text
    try:
        return msgspec.convert(text, protocol.Node, strict=False)
    except msgspec.ValidationError:
        raise errors.Refused(f"{text!r} is not a node's id", field="node", hint="a whole number from 0") from None


def _header(request: Request, name: str) -> str:
    values = request.headers.getlist(name) if name else []
    if len(values) > 1:
        raise errors.Refused(f"the header {name} is there {len(values)} times", field=name, hint="name one run")
    value = "".join(values).strip()
    if name and not value:
        raise errors.Refused(f"the header {name} is required", field=name, hint="the run's name")
    return value


def _query(pairs: dict[str, str], kind: type[msgspec.Struct]) -> Any:
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
    except RecursionError:
        raise errors.Refused("the body is nested too deeply") from None


def _refusal(message: str, kind: type[msgspec.Struct]) -> errors.Refused:
    """msgspec's message, with the field it is about and, for an unknown one, the nearest that exists."""
    rule, _, place = message.partition(" - at `$.")
    path = place.rstrip("`")
    named = re.search(r"field `(.*?)`", rule)
    if named is None:
        hints: dict[str, str] = getattr(kind, "hints", {})
        return errors.Refused(f"{path}: {rule}" if path else rule, field=path or None, hint=hints.get(path))
    field = f"{path}.{named.group(1)}" if path else named.group(1)
    if "unknown" not in rule:
        return errors.Refused(f"{field} is required", field=field)
    return errors.Refused(f"unknown field {field!r}", field=field, hint=None if path else _nearest(field, kind))


def _nearest(name: str, kind: type[msgspec.Struct]) -> str:
    known = [field.name for field in msgspec.structs.fields(kind)]
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(known) or 'none'}"
