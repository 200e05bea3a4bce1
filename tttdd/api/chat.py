"""POST /v1/chat/completions: a harness's completion as OpenAI's clients expect it, whole or as server-sent events.

    ChatRequest -> Ask -> desk.complete -> receipt (stored) -> ChatCompletion
                                 | text, piece by piece        -> ChatChunk ... -> the last one has the receipt

A caller that hangs up ends its completion.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

import anyio
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tttdd import harness_protocol as harness
from tttdd.api.events import cancel_at_the_end
from tttdd.errors import CallerError, NotYet, Refused
from tttdd.opening import Ask
from tttdd.ports import Receipt, Turn
from tttdd.protocol import Error, RunInfo

RECEIPT = "x-tttdd-receipt"


class Desk(Protocol):
    """What the API asks of the desk.  All raise errors.CallerError for what cannot be."""

    async def complete(self, run: RunInfo, ask: Ask, on_text: Callable[[str], None] | None = None) -> Receipt: ...

    def report(self, run: RunInfo, report: harness.Report, content: bytes) -> harness.Reported: ...

    def grid(self, run: RunInfo) -> harness.GridInfo: ...


class Completion(Response):
    """Samples when it is sent.  Raises errors.CallerError before the first byte; after it, the stream tells of it."""

    def __init__(self, desk: Desk, run: RunInfo, request: harness.ChatRequest, stopping: anyio.Event) -> None:
        super().__init__()
        self._desk, self._run, self._request, self._stopping = desk, run, request, stopping
        self._ask = as_ask(request, run.run)
        self._id, self._created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        self._fault: CallerError | None = NotYet("the daemon stops", hint="ask again when it is back")
        self._receipt: Receipt | None = None
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:
            cancel_at_the_end(tasks, receive, self._stopping)
            await (self._stream(send) if self._request.stream else self._whole(send))
            tasks.cancel_scope.cancel()
        if self._fault and not self._begun:
            raise self._fault
        if self._fault:
            told = Error(error=self._fault.message, field=self._fault.field, hint=self._fault.hint)
            await self._say(send, harness.ChatError.of(503, told))
        await send({"type": "http.response.body", "body": b""})

    async def _sample(self, pieces: _Pieces | None = None) -> Receipt | None:
        try:
            self._receipt = await self._desk.complete(self._run, self._ask, pieces.add if pieces else None)
            self._fault = None
        except CallerError as fault:
            self._fault = fault
        if pieces:
            pieces.end()
        return self._receipt

    async def _whole(self, send: Send) -> None:
        receipt = await self._sample()
        if receipt:
            body = msgspec.json.encode(self._completion(receipt))
            headers = {"content-length": str(len(body)), RECEIPT: receipt.id}
            await self._begin(send, "application/json", headers)
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _stream(self, send: Send) -> None:
        pieces = _Pieces()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._sample, pieces)
            while piece := await pieces.take():
                await self._say(send, self._chunk(harness.Delta(content=piece)))
        if self._receipt:
            await self._last(send, self._receipt)

    async def _begin(self, send: Send, kind: str, headers: dict[str, str]) -> None:
        pairs = {"content-type": kind, **headers}.items()
        raw = [(name.encode(), value.encode()) for name, value in pairs]
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _last(self, send: Send, receipt: Receipt) -> None:
        options = self._request.stream_options
        last = self._chunk(harness.Delta(), receipt.sampled.finish_reason)
        await self._say(send, msgspec.structs.replace(last, **self._facts(receipt)))
        if options and options.include_usage:
            await self._say(send, msgspec.structs.replace(self._chunk(None), usage=usage(receipt)))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})

    async def _say(self, send: Send, what: harness.ChatChunk | harness.ChatError) -> None:
        if not self._begun:
            await self._begin(send, "text/event-stream", {"cache-control": "no-store"})
            await self._say(send, self._chunk(harness.Delta(role="assistant")))
        event = b"data: " + msgspec.json.encode(what) + b"\n\n"
        await send({"type": "http.response.body", "body": event, "more_body": True})

    def _facts(self, receipt: Receipt) -> dict[str, Any]:
        release = receipt.sampled.release
        return {
            "system_fingerprint": f"release-{release}",
            "receipt": receipt.id,
            "release": release,
            "step": receipt.step,
        }

    def _completion(self, receipt: Receipt) -> harness.ChatCompletion:
        answer = harness.Answer(content=receipt.sampled.text)
        return harness.ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._run.run,
            choices=[harness.Choice(message=answer, finish_reason=receipt.sampled.finish_reason)],
            usage=usage(receipt),
            **self._facts(receipt),
        )

    def _chunk(
        self, delta: harness.Delta | None, finish_reason: Literal["stop", "length"] | None = None
    ) -> harness.ChatChunk:
        """Without a delta: of no choice."""
        choices = [harness.ChunkChoice(delta=delta, finish_reason=finish_reason)] if delta else []
        return harness.ChatChunk(id=self._id, created=self._created, model=self._run.run, choices=choices)


class _Pieces:
    """Text on its way from the engine to a caller, who may be slower."""

    def __init__(self) -> None:
        self._text, self._news, self._ended = "", anyio.Event(), False

    def add(self, piece: str) -> None:
        self._text += piece
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def take(self) -> str:
        """What has come since the last call; empty at the end."""
        await self._news.wait()
        text, self._text = self._text, ""
        if not self._ended:
            self._news = anyio.Event()
        return text


def as_ask(request: harness.ChatRequest, run: str) -> Ask:
    """Raises Refused for fields that do not agree with each other or with the run."""
    if request.model not in (None, run):
        told = f"model: {request.model!r} is not the run that the header names; it serves its newest release only"
        raise Refused(told, field="model", hint=f"{run!r}, or leave it out")
    limits = {limit for limit in (request.max_tokens, request.max_completion_tokens) if limit is not None}
    if len(limits) > 1:
        raise Refused("max_tokens and max_completion_tokens are the same, and differ", field="max_tokens")
    if request.stream_options and not request.stream:
        raise Refused("stream_options: only with stream", field="stream_options")
    stop = request.stop or ()
    template = request.chat_template_kwargs
    return Ask(
        turns=[Turn("system" if each.role == "developer" else each.role, each.text) for each in request.messages],
        thinking=template.enable_thinking if template else None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=request.seed,
        max_new_tokens=max(limits, default=None),
    )


def usage(receipt: Receipt) -> harness.Usage:
    prompt, answer = len(receipt.prompt_ids), len(receipt.sampled.token_ids)
    return harness.Usage(prompt_tokens=prompt, completion_tokens=answer, total_tokens=prompt + answer)
