"""One SGLang server as the adapter sees it: which versions, how it is started, and requests over loopback HTTP.

    tttdd.workers.serve (a worker) --starts--> SGLang's server <--HTTP, API key-- Server

A request to a server that is gone raises WorkerDied with its last words, one that it refuses WorkerFailed with its own.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import anyio
import httpx
import msgspec

from tttdd.adapters.worker import Worker
from tttdd.ports import WorkerDied, WorkerFailed

COMMAND = (sys.executable, "-P", "-m", "tttdd.workers.sglang_server")
START_SECONDS = 1800.0
"""To the first generated token: reading weights, compiling kernels, capturing graphs."""
ENVIRONMENT = {
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",  # a server whose scheduler has failed is to end at once, not after a minute
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
}
logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log every rollout
CONNECTIONS = 1000
"""To one server; further completions wait for one.  More than it decodes at once, less than a process may have open."""
JSON = {"Content-Type": "application/json"}


class Place(msgspec.Struct, frozen=True):
    """Where a server runs and what it may take there."""

    device: int
    mem_fraction: float
    """Weights and KV cache, of the memory that is free as the server starts."""
    max_running_requests: int


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the servers are started, apart from the model."""

    places: tuple[Place, ...]
    """One server each."""
    context_length: int
    dtype: str
    thinking: bool
    """For the chat template."""
    rank: int
    targets: tuple[str, ...]
    release_kv: bool
    """Whether the KV cache's memory is given back while the trainer works."""
    seed: int
    arguments: dict[str, str | int | float | bool] = {}
    """More of SGLang's ServerArgs, by name; none of OURS."""


class Server:
    """`async with` starts the process; `connect` waits until it generates."""

    def __init__(self, model: Path, place: Place, log: Path, settings: Settings, command: tuple[str, ...]) -> None:
        self.worker = Worker("tttdd.workers.serve", _options(model, place, settings, command), log)
        self.in_hand = 0
        """Completions that it is at."""
        self.end_ids: list[int] = []
        """Tokens that end an answer."""

    async def __aenter__(self) -> Self:
        await self.worker.__aenter__()
        # Without a timeout: an answer takes as long as it takes, and a dead server closes the connection.
        # Connections are dropped before the server would, which could be just as one is taken up again.
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=64, keepalive_expiry=2)
        self._http = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with anyio.CancelScope(shield=True):
            await self._http.aclose()
        return await self.worker.__aexit__(kind, error, trace)

    async def connect(self) -> None:
        """Returns when a token has been generated; raises WorkerDied if that never happens."""
        address = await self.worker.call("address")
        self.end_ids = address["end_ids"]
        self._http.base_url = f"http://127.0.0.1:{address['port']}"
        self._http.headers["Authorization"] = f"Bearer {address['key']}"
        with anyio.move_on_after(START_SECONDS):
            while not await self._generates():
                await anyio.sleep(0.2)
            return
        raise WorkerFailed(f"SGLang generated no token in {START_SECONDS:g} s; its log: {self.worker.log}")

    async def _generates(self) -> bool:
        await self.worker.call("encode_more", text="")  # raises WorkerDied once the server has ended
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
        try:
            reply = await self._http.post("/generate", content=msgspec.json.encode(body), headers=JSON)
        except httpx.TransportError:
            return False
        if reply.is_client_error:
            raise WorkerFailed(f"SGLang refused to generate ({reply.status_code}): {reply.text[:500]}")
        return reply.is_success

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        """The answer's body."""
        with self._alive(path):
            reply = await self._http.post(path, content=msgspec.json.encode(body), headers=JSON)
        _check(path, reply)
        return reply.content

    async def listen(self, path: str, body: dict[str, Any], hear: Callable[[bytes], Awaitable[bool]]) -> None:
        """The data of each event of the answer, until it ends or `hear` wants no more: the server is then told so."""
        request = self._http.build_request("POST", path, content=msgspec.json.encode(body), headers=JSON)
        with self._alive(path):
            reply = await self._http.send(request, stream=True)
            try:
                if reply.is_error:
                    await reply.aread()
                    _check(path, reply)
                await _each_event(reply, hear)
            finally:
                with anyio.CancelScope(shield=True):
                    await reply.aclose()

    @contextmanager
    def _alive(self, path: str) -> Generator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise WorkerDied(f"{path}: {type(error).__name__}: {self.worker.last_words()}") from None

    async def ask(self, path: str, body: dict[str, Any]) -> None:
        """A request whose answer says whether it did anything."""
        answer = msgspec.json.decode(await self.post(path, body), type=dict[str, Any])
        if not answer.get("success", False):
            raise WorkerFailed(f"SGLang refused {path}: {answer.get('error_message') or answer}")


def _check(path: str, reply: httpx.Response) -> None:
    if reply.is_server_error:
        raise WorkerDied(f"SGLang failed at {path} ({reply.status_code}): {reply.text[:500]}")
    if reply.is_error:
        raise WorkerFailed(f"SGLang refused {path} ({reply.status_code}): {reply.text[:500]}")


async def _each_event(reply: httpx.Response, hear: Callable[[bytes], Awaitable[bool]]) -> None:
    """By bytes: httpx ends a line at any of Unicode's line separators, which stand in texts as they are."""
    begun = b""
    async with aclosing(cast(AsyncGenerator[bytes], reply.aiter_bytes())) as parts:
        async for part in parts:
            *events, begun = (begun + part).split(b"\n\n")
            for event in events:
                if not await hear(event.removeprefix(b"data: ")):
                    return


def _options(model: Path, place: Place, settings: Settings, command: tuple[str, ...]) -> dict[str, Any]:
    """Of the worker."""
    arguments = {
        "model_path": str(model),
        "context_length": settings.context_length,
        "dtype": settings.dtype,
        "mem_fraction_static": place.mem_fraction,
        "max_running_requests": place.max_running_requests,
        "enable_lora": True,
        "max_lora_rank": settings.rank,
        "lora_target_modules": list(settings.targets),
        "max_loras_per_batch": 2,  # the base takes one
        "max_loaded_loras": 3,
        "enable_memory_saver": settings.release_kv,
        "skip_server_warmup": True,
        "incremental_streaming_output": True,  # else each event has all that came before, too
        "sleep_on_idle": True,  # else an idle scheduler keeps a core that judges and trainer could use
        "random_seed": (settings.seed + place.device) % 2**31,
        "log_level": "warning",
    }
    return {
        "model": str(model),
        "thinking": settings.thinking,
        "command": command,
        "arguments": settings.arguments | arguments,
        "environment": ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": str(place.device)},
    }
