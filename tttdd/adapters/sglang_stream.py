"""A completion of SGLang's as it comes.

    event = tokens, their log-probs, in the end why it ended --> ids --our tokenizer--> whole characters --> on_text

SGLang's own text is not used: it leaves the stop text out.  A stop text that comes in more tokens than its own encoding
has is not seen by SGLang; it is here, and the rest of the completion is not waited for.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tttdd.adapters.sglang_server import Server
from tttdd.ports import OnText, WorkerFailed

LogProb = tuple[float | None, int, str | None]
"""Log-prob, token, text."""


class Meta(msgspec.Struct, frozen=True):
    finish_reason: dict[str, Any] | None = None
    output_token_logprobs: list[LogProb] = []
    input_token_logprobs: list[LogProb] = []


class Generated(msgspec.Struct, frozen=True):
    """What is read of a /generate answer, or of one event of a streamed one."""

    meta_info: Meta = Meta()
    output_ids: list[int] = []
    error: dict[str, Any] | None = None
    """A streamed answer has begun well before it can be refused."""


class Stream:
    """What has come of one completion."""

    def __init__(self, server: Server, stops: tuple[str, ...], on_text: OnText) -> None:
        self._server, self._stops, self._on_text = server, stops, on_text
        self._ids: list[int] = []
        self._logprobs: list[LogProb] = []
        self._reason: dict[str, Any] | None = None
        self._before: list[int] = []
        self._fresh: list[int] = []
        self._told = ""

    async def hear(self, event: bytes) -> bool:
        """Takes the data of one event; whether more is wanted."""
        if event == b"[DONE]":
            return True
        delta = msgspec.json.decode(event, type=Generated)
        if delta.error is not None:
            raise WorkerFailed(f"SGLang refused /generate: {delta.error.get('message') or delta.error}")
        self._ids += delta.output_ids
        self._logprobs += delta.meta_info.output_token_logprobs
        self._reason = delta.meta_info.finish_reason
        self._fresh += delta.output_ids
        return self._tell(await self._piece())

    def whole(self) -> Generated:
        """All of it, in the form of an answer that was not streamed."""
        return Generated(Meta(self._reason, self._logprobs), self._ids)

    def rest(self, text: str) -> None:
        """Tells what was held back of the whole text."""
        if text[len(self._told) :]:
            self._on_text(text[len(self._told) :])

    async def _piece(self) -> str:
        if not self._fresh:
            return ""
        call = self._server.worker.call("piece", before=self._before, fresh=self._fresh)
        return msgspec.convert(await call, str)

    def _tell(self, piece: str) -> bool:
        """False if a stop text is complete: the piece may go on behind it, and is held back."""
        if not piece:
            return True
        reach = max((len(stop) for stop in self._stops), default=1) - 1
        seen = self._told[len(self._told) - min(reach, len(self._told)) :] + piece
        if any(stop in seen for stop in self._stops):
            self._reason = {"type": "stop"}
            return False
        self._before, self._fresh = self._fresh, []
        self._told += piece
        self._on_text(piece)
        return True
