"""SGLang's HTTP server as the adapter sees it, for machines without a GPU: `python tests/fake_sglang.py PARENT`.

A tiny model really samples and scores, with LoRA weights from the folders it is told to load; what is answered has the
form that `tests/recordings` shows of the real server.  Its ServerArgs are JSON on standard input, and among them may be
`fault`: stale (a load keeps the weights loaded before), nameless (requests are answered by the base), swapped (layers 0
and 1 of what is loaded change places).  `log_requests` names a file that gets a line a request.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import torch
import uvicorn
from safetensors import SafetensorError
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import AutoTokenizer

from tttdd import wire
from tttdd.workers.decoder import Weights, load, merge, rope_table
from tttdd.workers.decoding import Decoding, Row, score, uniforms


class FakeServer:
    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments, self._fault = arguments, arguments.get("fault", "")
        folder = Path(arguments["model_path"])
        self._base, self._tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
        self._context: int = arguments["context_length"]
        self._rope = rope_table(self._base.shape, self._context)
        self._loaded: dict[str, Weights] = {}
        self._known: dict[str, str] = {}
        """Every path ever loaded: a name that is not loaded is silently loaded again from there."""
        self._seed = int(arguments["random_seed"])
        self._running = 0
        self._resting = False

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                self._route("/generate", self.generate),
                self._route("/load_lora_adapter", self.load_lora),
                self._route("/unload_lora_adapter", self.unload_lora),
                self._route("/flush_cache", self.flush),
                self._route("/release_memory_occupation", self.release),
                self._route("/resume_memory_occupation", self.resume),
                Route("/running", self.running),
            ]
        )

    def _route(self, path: str, handler: Any) -> Route:
        async def checked(request: Request) -> Response:
            if request.headers.get("authorization") != f"Bearer {self._arguments['api_key']}":
                return JSONResponse({"error": "Unauthorized"}, 401)
            body = await request.json() if await request.body() else {}
            self._log(path, body)
            return await handler(request, body)

        return Route(path, checked, methods=["POST"])

    def _log(self, path: str, body: dict[str, Any]) -> None:
        if name := self._arguments.get("log_requests"):
            with Path(name).open("a") as log:
                log.write(json.dumps([path, body]) + "\n")

    async def running(self, request: Request) -> Response:
        return JSONResponse({"running": self._running})

    async def generate(self, request: Request, body: dict[str, Any]) -> Response:
        ids, params = body["input_ids"], body["sampling_params"]
        if len(ids) >= self._context - 6:
            return _refused(f"The input ({len(ids)} tokens) is longer than the model's context length")
        weights = self._weights(body.get("lora_path"))
        if weights is None:
            return _refused(f"The following requested LoRA adapters are not loaded: {{{body['lora_path']!r}}}")
        first = body.get("logprob_start_len", -1)
        scored = [[None, ids[first], None]] if first >= 0 else []
        if first >= 0 and len(ids) > first + 1:
            values = score(weights, self._rope, ids[: first + 1], ids[first + 1 :])
            scored += [[value, token, None] for value, token in zip(values, ids[first + 1 :], strict=True)]
        row, reason = await self._sample(request, weights, ids, params)
        logprobs = [[value, token, None] for value, token in zip(row.logprobs, row.tokens, strict=True)]
        return JSONResponse(
            {
                "text": self._tokenizer.decode(row.tokens, skip_special_tokens=True),
                "output_ids": row.tokens,
                "meta_info": {
                    "finish_reason": reason,
                    "prompt_tokens": len(ids),
                    "input_token_logprobs": scored,
                    "output_token_logprobs": logprobs,
                    "completion_tokens": len(row.tokens),
                },
            }
        )

    async def _sample(
        self, request: Request, weights: Weights, ids: list[int], params: dict[str, Any]
    ) -> tuple[Row, dict[str, Any]]:
        """A token at a time, so that others come in between and a caller that hangs up is noticed."""
        self._seed += 1
        room = min(params["max_new_tokens"], self._context - len(ids) - 1)
        row = Row(0, tuple(ids), 0, None, uniforms(self._seed, room))
        decoding = Decoding(weights, self._rope)
        reason: dict[str, Any] = {"type": "length", "length": params["max_new_tokens"]}
        self._running += 1
        try:
            for place in range(room):
                if place:
                    decoding.step()
                else:
                    decoding.join(row)
                if ended := self._ended(row.tokens, params):
                    return row, {"type": "stop", "matched": ended}
                await anyio.sleep(self._arguments.get("token_seconds", 0))
                if await request.is_disconnected():
                    return row, {"type": "abort", "message": "Abort"}
            return row, reason
        finally:
            self._running -= 1

    def _ended(self, tokens: list[int], params: dict[str, Any]) -> int | str | None:
        if tokens[-1] in params.get("stop_token_ids", ()):
            return tokens[-1]
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return next((stop for stop in params.get("stop", ()) if stop in text), None)

    def _weights(self, name: str | None) -> Weights | None:
        if name is None or self._fault == "nameless":
            return self._base
        if name not in self._loaded and name in self._known and Path(self._known[name]).is_dir():
            self._loaded[name] = merge(self._base, Path(self._known[name]))
        return self._loaded.get(name)

    async def load_lora(self, request: Request, body: dict[str, Any]) -> Response:
        name, path = body["lora_name"], Path(body["lora_path"])
        if name in self._loaded:
            return _done(False, f"LoRA adapter '{name}' is already loaded. Please unload it before loading again.")
        if not (path / "adapter_config.json").exists():
            return _done(False, f"{path} has no adapter_config.json")
        kept = list(self._loaded.values())[-1:]
        if self._fault == "swapped":
            swap_layers(path / "adapter_model.safetensors")
        try:
            self._loaded[name] = kept[0] if kept and self._fault == "stale" else merge(self._base, path)
        except (KeyError, SafetensorError) as error:
            return _done(False, f"Failed to load LoRA adapter {name}: {error}")
        self._known[name] = str(path)
        return _done(True, "")

    async def unload_lora(self, request: Request, body: dict[str, Any]) -> Response:
        if self._loaded.pop(body["lora_name"], None) is None:
            return _done(False, f"LoRA adapter with name {body['lora_name']} does not exist.")
        return _done(True, "")

    async def flush(self, request: Request, body: dict[str, Any]) -> Response:
        with anyio.move_on_after(float(request.query_params.get("timeout", 0))):
            while self._running:
                await anyio.sleep(0.01)
        return Response("Cache flushed.\n", 400 if self._running else 200)

    async def release(self, request: Request, body: dict[str, Any]) -> Response:
        self._resting = True
        return Response()

    async def resume(self, request: Request, body: dict[str, Any]) -> Response:
        self._resting = False
        return Response()


def swap_layers(file: Path) -> None:
    """Layers 0 and 1 of a LoRA file change places; the file is written anew, so that a hard link keeps the old one."""
    from safetensors.torch import save_file

    tensors = load_file(file)
    file.unlink()
    other = {"0": "1", "1": "0"}
    moved = {re.sub(r"(?<=layers\.)\d+", lambda found: other[found[0]], name): value for name, value in tensors.items()}
    save_file(moved, file, metadata={"format": "pt"})


def _refused(message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, 400)


def _done(success: bool, message: str) -> Response:
    return JSONResponse({"success": success, "error_message": message}, 200 if success else 400)


def main() -> None:
    wire.die_with_parent(int(sys.argv[1]))
    arguments = json.load(sys.stdin)
    torch.set_num_threads(1)
    if arguments.get("fault") == "no start":
        sys.exit("no GPU is left")
    time.sleep(arguments.get("start_seconds", 0))
    with torch.inference_mode():
        app = FakeServer(arguments).app()
        uvicorn.run(app, host=arguments["host"], port=arguments["port"], log_level="warning")


if __name__ == "__main__":
    main()
