"""The embedded engine's process: samples from a small model on a CPU, base and releases side by side.

    line -> publish, encode, score: answered at once;  sample: waits for a place among the decoding rows
    loop: take in what the line holds (wait for it only when no row lives), one decoding step, answer what ended

Every release in use decodes in a batch of its own; its matrices are merged when first needed and dropped when another
release needs the memory.  Options: model (directory), context_length, thinking, threads (None: torch's default).
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: threads that spin would steal the judges' cores

import torch
from safetensors import SafetensorError

from tttdd import wire
from tttdd.workers.decoder import Weights, load, merge, rope_table
from tttdd.workers.decoding import Decoding, Row, score, uniforms
from tttdd.workers.text import Pieces, Text

ROWS = 64
"""Rows that decode at once; more wait for a place."""


class Served(NamedTuple):
    """A published release."""

    load_id: str
    path: Path | None


class Sampler:
    def __init__(self, line: wire.Line, options: dict[str, Any]) -> None:
        folder = Path(options["model"])
        self._line, self._text = line, Text(folder, options["thinking"])
        self._base = load(folder)
        self._context = min(options["context_length"], self._base.shape.context)
        self._ends = self._base.shape.end_ids | self._text.end_ids
        self._rope = rope_table(self._base.shape, self._context)
        self._served = {0: Served(uuid.uuid4().hex, None)}
        self._merged: dict[str, Weights] = {}
        self._waiting: deque[Row] = deque()
        self._decoding: dict[str, Decoding] = {}
        self._counts = {"prefilled_tokens": 0, "sampled_tokens": 0, "steps": 0}

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._decoding)

    def handle(self, request: wire.Message) -> None:
        """Answers a request, or keeps it; what the caller got wrong is an error reply."""
        assert isinstance(request, wire.Request)
        try:
            match request.method:
                case "sample":
                    self._accept(self._row(request.id, **request.params))
                case "cancel":
                    self._cancel(request.params["id"])
                case "publish":
                    self._reply(request.id, self._publish(**request.params))
                case "encode":
                    self._reply(request.id, self._text.encode(**request.params))
                case "encode_chat":
                    self._reply(request.id, self._text.encode_chat(**request.params))
                case "encode_more":
                    self._reply(request.id, self._text.encode_more(**request.params))
                case "keep":
                    self._reply(request.id, self._keep(**request.params))
                case "score":
                    self._reply(request.id, self._score(**request.params))
                case "stats":
                    rows = sum(len(decoding.rows) for decoding in self._decoding.values())
                    self._reply(request.id, self._counts | {"rows": rows, "waiting": len(self._waiting)})
                case _:
                    raise ValueError(f"no method {request.method!r}")
        except wire.Refusal as refusal:
            self._line.send(wire.Reply(request.id, error=str(refusal)))
        except (ValueError, TypeError, LookupError, OSError, SafetensorError) as error:
            self._line.send(wire.Reply(request.id, error=f"{request.method}: {type(error).__name__}: {error}"))

    def step(self) -> None:
        """Rows that wait join, every row gets a token, rows that ended leave."""
        self._admit()
        for load_id, decoding in list(self._decoding.items()):
            if decoding.rows:
                self._counts["steps"] += 1
                self._counts["sampled_tokens"] += len(decoding.rows)
                decoding.step()
                self._retire(decoding, list(decoding.rows))
            if not decoding.rows:
                del self._decoding[load_id]

    def _row(
        self,
        request: int,
        prompt_ids: list[int],
        release: int,
        seed: int,
        stop: list[str],
        max_new_tokens: int,
        stream: bool,
    ) -> Row:
        self._find(release)
        if not prompt_ids:
            raise ValueError("a prompt needs at least one token")
        budget = max(0, min(max_new_tokens, self._context - len(prompt_ids)))
        pieces = Pieces(self._text) if stream else None
        return Row(request, tuple(prompt_ids), release, tuple(stop), uniforms(seed, budget), pieces=pieces)

    def _accept(self, row: Row) -> None:
        """A prompt that leaves no room is a completion cut before its first token: the search turns elsewhere."""
        if row.uniforms:
            self._waiting.append(row)
        else:
            self._reply(row.request, self._sampled(row, "length"))

    def _find(self, release: int) -> Served:
        if release not in self._served:
            raise ValueError(f"release {release} is not published; served are {sorted(self._served)}")
        return self._served[release]

    def _admit(self) -> None:
        places = ROWS - sum(len(decoding.rows) for decoding in self._decoding.values())
        while self._waiting and places > 0:
            row = self._waiting.popleft()
            served = self._served.get(row.release)
            if served is None:
                self._line.send(wire.Reply(row.request, error=f"release {row.release} is no longer served"))
                continue
            if served.load_id not in self._decoding:
                self._decoding[served.load_id] = Decoding(self._weights(served), self._rope)
            decoding = self._decoding[served.load_id]
            self._counts["prefilled_tokens"] += decoding.join(row)
            self._counts["sampled_tokens"] += 1
            self._retire(decoding, [row])
            places -= 1

    def _retire(self, decoding: Decoding, rows: list[Row]) -> None:
        for row in rows:
            reason = self._finish(row)
            if row.pieces is not None:
                self._tell(row, row.pieces.add(row.tokens[-1]))
            if reason is not None:
                decoding.leave(row)
                self._reply(row.request, self._sampled(row, reason))

    def _finish(self, row: Row) -> str | None:
        if row.tokens[-1] in self._ends or self._text.ends_with(row.tokens, row.stop):
            return "stop"
        return "length" if len(row.tokens) == len(row.uniforms) else None

    def _tell(self, row: Row, piece: str) -> None:
        if piece:
            self._line.send(wire.Event("text", {"text": piece}, row.request))

    def _sampled(self, row: Row, reason: str) -> dict[str, Any]:
        text = self._text.decode(row.tokens)
        if row.pieces is not None:
            self._tell(row, row.pieces.rest(text))
        return {
            "token_ids": row.tokens,
            "logprobs": row.logprobs,
            "loss_mask": [True] * len(row.tokens),
            "text": text,
            "finish_reason": reason,
            "release": row.release,
        }

    def _cancel(self, request: int) -> None:
        self._waiting = deque(row for row in self._waiting if row.request != request)
        for load_id, decoding in list(self._decoding.items()):
            for row in [row for row in decoding.rows if row.request == request]:
                decoding.leave(row)
            if not decoding.rows:
                del self._decoding[load_id]

    def _publish(self, release: int, path: str | None) -> str:
        """Load a release from its folder, always afresh; the others stay served."""
        if (release == 0) != (path is None):
            raise ValueError("release 0 is the base and has no folder; every other release has one")
        served = Served(uuid.uuid4().hex, Path(path) if path else None)
        self._weights(served)
        self._served[release] = served
        return served.load_id

    def _keep(self, release: int) -> None:
        self._find(release)
        self._served = {number: self._served[number] for number in {0, release}}

    def _weights(self, served: Served) -> Weights:
        if served.path is None:
            return self._base
        if served.load_id not in self._merged:
            self._merged = {load_id: self._merged[load_id] for load_id in self._merged.keys() & self._decoding.keys()}
            self._merged[served.load_id] = merge(self._base, served.path)
        return self._merged[served.load_id]

    def _score(self, prompt_ids: list[int], completion_ids: list[int], release: int) -> list[float]:
        length = len(prompt_ids) + len(completion_ids)
        if not (prompt_ids and completion_ids and length <= self._context):
            raise ValueError(f"a probe of {length} tokens does not fit the context of {self._context}")
        return score(self._weights(self._find(release)), self._rope, prompt_ids, completion_ids)

    def _reply(self, request: int, result: Any) -> None:
        self._line.send(wire.Reply(request, result))


def main(line: wire.Line, options: dict[str, Any]) -> None:
    """Serve until the line ends."""
    if options.get("threads"):
        torch.set_num_threads(options["threads"])
    with torch.inference_mode():
        sampler = Sampler(line, options)
        while True:
            while sampler.idle or line.poll():
                sampler.handle(line.receive())
            sampler.step()
