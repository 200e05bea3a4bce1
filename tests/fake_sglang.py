"""SGLang's HTTP server as the adapter sees it, for machines without a GPU: `python tests/fake_sglang.py PARENT`.

A tiny model really samples and scores, with LoRA weights from the folders it is told to load; the answers have the
form that tests/recordings shows of the real server.  Like that one it has a process beside it, a file of shared memory
and something in TMPDIR, and leaves them.  Its ServerArgs are JSON on standard input; `log_requests` names a file that
gets a line a request; `fault`, or a POST to /fault, makes it go wrong in one of the ways that FAULTS tells.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from tttdd import wire

if TYPE_CHECKING:
    from tests.fake_sglang_model import Model
    from tttdd.workers.decoder import Weights
    from tttdd.workers.decoding import Row

FAULTS = {
    "": "none",
    "no start": "ends at once, with a last word",
    "stale": "a load gets the weights that were loaded before it",
    "nameless": "every request is answered by the base",
    "swapped": "layers 0 and 1 of what is loaded change places",
    "silent": "a completion never ends",
    "abort": "completions are aborted",
    "other ids": "log-probs are of other tokens than the output's",
    "no log-probs": "log-probs are missing",
    "deaf": "SIGTERM is ignored",
    "hangs up": "a streamed answer breaks off",
    "never stops": "stop texts are not seen",
}


class FakeServer:
    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments, self._fault = arguments, arguments.get("fault", "")
        self._folder = Path(arguments["model_path"])
        self._tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        self._context: int = arguments["context_length"]
        self._last_id: int = json.loads((self._folder / "config.json").read_text())["vocab_size"] - 1
        self._loaded: dict[str, Weights] = {}
        self._known: dict[str, str] = {}
        """Every path ever loaded: a name that is not loaded is silently loaded again from there."""
        self._seed = int(arguments["random_seed"])
        self._running = 0

    @cached_property
    def _model(self) -> Model:
        from tests.fake_sglang_model import Model

        return Model(self._folder, self._context)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                self._route("/generate", self.generate),
                self._route("/load_lora_adapter", self.load_lora),
                self._route("/unload_lora_adapter", self.unload_lora),
                self._route("/flush_cache", self.flush),
                self._route("/release_memory_occupation", self.release),
                self._route("/resume_memory_occupation", self.resume),
                self._route("/fault", self.fault),
                Route("/running", self.running),
            ]
        )

    def _route(self, path: str, handler: Any) -> Route:
        async def checked(request: Request) -> Response:
            if request.headers.get("authorization") != f"Bearer {self._arguments['api_key']}":
                return JSONResponse({"error": "Unauthorized"}, 401)
            body = await request.json() if await request.body() else {}
            self._log(f"{path}?{request.url.query}" if request.url.query else path, body)
            return await handler(request, body)

        return Route(path, checked, methods=["POST"])

    def _log(self, path: str, body: dict[str, Any]) -> None:
        if name := self._arguments.get("log_requests"):
            with Path(name).open("a") as log:
                log.write(json.dumps([path, body]) + "\n")

    # What a test asks

    async def running(self, request: Request) -> Response:
        return JSONResponse({"running": self._running})

    async def fault(self, request: Request, body: dict[str, Any]) -> Response:
        self._fault = body["fault"]
        assert self._fault in FAULTS
        if self._fault == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return Response()

    # What the adapter asks

    async def generate(self, request: Request, body: dict[str, Any]) -> Response:
        ids, params, stream = body["input_ids"], body["sampling_params"], bool(body.get("stream"))
        if len(ids) >= self._context - 6:
            return _refused(f"The input ({len(ids)} tokens) is longer than the model's context length", stream)
        if not body.get("return_logprob"):  # the health gate, which needs no model
            return JSONResponse({"output_ids": [7], "meta_info": {"finish_reason": {"type": "length", "length": 1}}})
        if self._fault == "silent":
            await self._say_nothing(request)
            return Response()
        try:
            weights = self._weights(body.get("lora_path"))
        except LookupError as error:
            return _refused(str(error.args[0]), stream)
        if stream:
            assert self._arguments["incremental_streaming_output"]
            return _events(self._stream(request, weights, ids, params))
        scored: list[list[Any]] = []
        if (first := body.get("logprob_start_len", -1)) >= 0:
            values = self._model.score(weights, ids, first) if len(ids) > first + 1 else []
            told = [0 if token == self._last_id else token for token in ids[first:]]  # as 0.5.15 does
            scored = _entries([None, *values], told)
        tokens, values, reason = [], [], {"type": "length", "length": params["max_new_tokens"]}
        async with aclosing(self._sample(request, weights, ids, params)) as rows:
            async for row, ended in rows:
                tokens, values, reason = row.tokens, row.logprobs, ended or reason
        return JSONResponse(self._generated(tokens, scored, _entries(values, tokens), reason))

    async def _stream(
        self, request: Request, weights: Weights, ids: list[int], params: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any]]:
        """What has come since the event before; now and then that is more than a token."""
        told = 0
        async with aclosing(self._sample(request, weights, ids, params)) as rows:
            async for row, ended in rows:
                count = len(row.tokens)
                if ended or count % 3:
                    fresh, values = row.tokens[told:], row.logprobs[told:]
                    yield self._generated(fresh, [], _entries(values, fresh), ended)
                    told = count
                if self._fault == "hangs up" and count > 2:
                    raise OSError("hangs up")

    def _generated(
        self, tokens: list[int], scored: list[Any], sampled: list[Any], reason: dict[str, Any] | None
    ) -> dict[str, Any]:
        if reason and self._fault == "abort":
            reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        if self._fault == "no log-probs":
            scored, sampled = ([[None, *entry[1:]] for entry in entries] for entries in (scored, sampled))
        shift = 1 if self._fault == "other ids" else 0
        scored, sampled = ([[value, token + shift, text] for value, token, text in each] for each in (scored, sampled))
        logprobs = {"input_token_logprobs": scored, "output_token_logprobs": sampled}
        return {"output_ids": tokens, "meta_info": {"finish_reason": reason, **logprobs}}

    async def _sample(
        self, request: Request, weights: Weights, ids: list[int], params: dict[str, Any]
    ) -> AsyncGenerator[tuple[Row, dict[str, Any] | None]]:
        """A token at a time and why it was the last, so that others come in between, and a hang-up is noticed."""
        self._seed += 1
        self._running += 1
        try:
            room = min(params["max_new_tokens"], self._context - len(ids) - 1)
            for row in self._model.sample(weights, ids, self._seed, room):
                if ended := self._ended(row.tokens, params):
                    yield row, {"type": "stop", "matched": ended}
                    return
                full = len(row.tokens) == room
                yield row, {"type": "length", "length": params["max_new_tokens"]} if full else None
                await anyio.sleep(0)
                if await request.is_disconnected():
                    return
        finally:
            self._running -= 1

    async def _say_nothing(self, request: Request) -> None:
        self._running += 1
        while not await request.is_disconnected():
            await anyio.sleep(0.01)
        self._running -= 1

    def _ended(self, tokens: list[int], params: dict[str, Any]) -> int | str | None:
        if tokens[-1] in params.get("stop_token_ids", ()):
            return tokens[-1]
        if self._fault == "never stops":
            return None
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return next((stop for stop in params.get("stop", ()) if stop in text), None)

    def _weights(self, name: str | None) -> Weights:
        if name is None or self._fault == "nameless":
            return self._model.base
        if name not in self._loaded:
            if name not in self._known:
                raise LookupError(f"Got LoRA adapter that has never been loaded: {name}")
            try:
                self._loaded[name] = self._model.merged(Path(self._known[name]))
            except ValueError as error:
                raise LookupError(f"Failed to implicitly load LoRA adapter {name}: {error}") from None
        return self._loaded[name]

    async def load_lora(self, request: Request, body: dict[str, Any]) -> Response:
        name, path = body["lora_name"], Path(body["lora_path"])
        if name in self._loaded:
            return self._done(f"Failed to load LoRA adapter {name} because it is already loaded")
        before = list(self._loaded.values())[-1:]
        try:
            self._loaded[name] = before[0] if before and self._fault == "stale" else self._read(path)
        except ValueError as error:
            return self._done(f"Failed to load LoRA adapter {name}: {error}")
        self._known[name] = str(path)
        return self._done()

    def _read(self, path: Path) -> Weights:
        if self._fault != "swapped":
            return self._model.merged(path)
        from tests.fake_sglang_model import swapped

        with swapped(path) as other:
            return self._model.merged(other)

    async def unload_lora(self, request: Request, body: dict[str, Any]) -> Response:
        if self._loaded.pop(body["lora_name"], None) is None:
            return self._done(f"LoRA with name {body['lora_name']} does not exist. Loaded LoRAs: {list(self._loaded)}")
        return self._done()

    def _done(self, problem: str = "") -> Response:
        loaded = {name: self._known[name] for name in self._loaded}
        answer = {"success": not problem, "error_message": problem, "loaded_adapters": loaded}
        return JSONResponse(answer, 400 if problem else 200)

    async def flush(self, request: Request, body: dict[str, Any]) -> Response:
        with anyio.move_on_after(float(request.query_params.get("timeout", 0))):
            while self._running:
                await anyio.sleep(0.01)
        return Response("Cache flushed.\n", 400 if self._running else 200)

    async def release(self, request: Request, body: dict[str, Any]) -> Response:
        return Response()

    async def resume(self, request: Request, body: dict[str, Any]) -> Response:
        return Response()


def _entries(values: list[Any], tokens: list[int]) -> list[list[Any]]:
    return [[value, token, None] for value, token in zip(values, tokens, strict=True)]


def _refused(message: str, stream: bool = False) -> Response:
    """A streamed answer has begun by the time that the request is looked at."""

    async def alone() -> AsyncGenerator[dict[str, Any]]:
        yield {"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}

    return _events(alone()) if stream else JSONResponse({"error": {"message": message}}, 400)


def _events(events: AsyncGenerator[dict[str, Any]]) -> Response:
    async def written() -> AsyncGenerator[bytes]:
        async with aclosing(events):
            async for event in events:
                yield b"data: " + json.dumps(event).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    return StreamingResponse(written(), media_type="text/event-stream")


SCHEDULER = """
import _multiprocessing, mmap, os, sys, time
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
semaphore = _multiprocessing.SemLock(1, 1, 1, f"/mp-{os.getpid()}", False)
open(f"/dev/shm/sem.loky-{os.getpid()}-fake", "w").close()
time.sleep(1000)
"""


def leave_traces() -> None:
    """What the real server has beside itself, and does not take with it when it is killed."""
    Path(tempfile.gettempdir(), "socket").touch()
    memory = Path(f"/dev/shm/sglang_fake_{os.getpid()}")
    memory.write_bytes(b"\0" * mmap.PAGESIZE)
    scheduler = subprocess.Popen([sys.executable, "-S", "-c", SCHEDULER, str(memory)])
    while not Path(f"/dev/shm/sem.loky-{scheduler.pid}-fake").exists() and scheduler.poll() is None:
        time.sleep(0.001)


def serve(arguments: dict[str, Any]) -> None:
    """Until a signal comes."""
    if arguments.get("fault") == "no start":
        sys.exit("no GPU is left")
    leave_traces()
    app = FakeServer(arguments).app()
    uvicorn.run(app, host=arguments["host"], port=arguments["port"], log_level="warning", lifespan="off")


def main() -> None:
    wire.die_with_parent(int(sys.argv[1]))
    serve(json.load(sys.stdin))


if __name__ == "__main__":
    main()
