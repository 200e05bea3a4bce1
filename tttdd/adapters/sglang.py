"""SGLang as a port: one HTTP server on loopback for each device, requests by token ids, releases by load id.

    publish   releases/NNNN --hard links--> serving/<load id> --/load_lora_adapter--> every server
    sample    least loaded server, a known prefix preferred --/generate under the load id--> ids and log-probs
    keep      the others unloaded, their folders removed (a server silently loads again what it finds), caches flushed

A request always names its load id, and sampling and scoring build it in the same place, so that the serving proof sees
what sampling sees.  A server that ends raises WorkerDied in every call.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import anyio
import msgspec

from tttdd.adapters.sglang_server import COMMAND, Server, Settings
from tttdd.adapters.sglang_stream import Generated, LogProb, Stream
from tttdd.domain.prompt import Prompt
from tttdd.ports import OnText, Probe, Release, Sampled, Turn, WorkerFailed

AFFINITY = 16
"""Completions that a server may have in hand beyond the least loaded one and still get a prompt that it knows."""
IDLE_SECONDS = 30
"""For completions that were cancelled to leave a server."""
END_OF_CONTEXT = 8
"""Tokens that a server keeps free at the end of its context."""


class Ended(msgspec.Struct, frozen=True):
    """Where a completion ends by our reading of it."""

    tokens: int
    stopped: bool
    """By a stop text."""
    text: str


class SglangEngine:
    """A ports.RolloutEngine.  `folder` holds what is served, `logs` gets engine-<device>.log."""

    reproducible = False

    def __init__(
        self, model: Path, folder: Path, logs: Path, settings: Settings, command: tuple[str, ...] = COMMAND
    ) -> None:
        self._folder, self._settings = folder, settings
        self._last_id: int = json.loads((model / "config.json").read_text())["vocab_size"] - 1
        self._servers = [
            Server(model, place, logs / f"engine-{place.device}.log", settings, command) for place in settings.places
        ]
        self._loads: dict[int, str] = {}
        self._known: dict[int, set[Server]] = {}
        self._resting = False

    async def __aenter__(self) -> Self:
        shutil.rmtree(self._folder, ignore_errors=True)  # what another daemon served
        async with AsyncExitStack() as stack:
            for server in self._servers:
                await stack.enter_async_context(server)
            await self._each(Server.connect)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._stack.__aexit__(kind, error, trace)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def publish(self, release: Release) -> str:
        await self._wake()
        if release.path is None:
            return "base"
        if release.number in self._loads:  # a second attempt
            await self._unload(self._loads.pop(release.number))
        load_id = f"release-{release.number:04d}-{uuid.uuid4().hex[:8]}"
        path = self._stage(release.path, load_id)
        await self._each(lambda server: server.ask("/load_lora_adapter", {"lora_name": load_id, "lora_path": path}))
        self._loads[release.number] = load_id
        return load_id

    async def keep(self, release: int) -> None:
        for number in [number for number in self._loads if number != release]:
            await self._unload(self._loads.pop(number))
        await self._flush()

    async def rest(self) -> None:
        if self._settings.release_kv and not self._resting:
            await self._flush()
            self._resting = True
            await self._each(lambda server: server.post("/release_memory_occupation", {"tags": ["kv_cache"]}))

    async def encode(self, prompt: Prompt) -> list[int]:
        reply = await self._servers[0].worker.call("encode", text=prompt.text, chat=prompt.chat)
        return msgspec.convert(reply, list[int])

    async def encode_chat(self, messages: list[Turn], thinking: bool | None) -> list[int]:
        reply = await self._servers[0].worker.call("encode_chat", messages=messages, thinking=thinking)
        return msgspec.convert(reply, list[int])

    async def encode_more(self, text: str) -> list[int]:
        return msgspec.convert(await self._servers[0].worker.call("encode_more", text=text), list[int])

    async def sample(
        self,
        prompt_ids: list[int],
        *,
        release: int,
        seed: int,
        stop: tuple[str, ...],
        max_new_tokens: int,
        on_text: OnText | None = None,
    ) -> Sampled:
        room = self._settings.context_length - END_OF_CONTEXT - len(prompt_ids)
        if room <= 0:
            return Sampled([], [], [], "", "length", release)
        server = self._route(hash(tuple(prompt_ids)), seed | 1)
        params = {"max_new_tokens": min(max_new_tokens, room), "stop": stop}
        stream = Stream(server, stop, on_text) if on_text is not None else None
        server.in_hand += 1
        try:
            found = await self._generate(server, prompt_ids, release, params, stream=stream)
        finally:
            server.in_hand -= 1
        ids, logprobs, reason = _completion(found, server.end_ids)
        ended = msgspec.convert(await server.worker.call("ended", ids=ids, stops=stop), Ended)
        if stream is not None:
            stream.rest(ended.text)
        count, reason = ended.tokens, "stop" if ended.stopped else reason
        return Sampled(ids[:count], logprobs[:count], [True] * count, ended.text, reason, release)

    async def score(self, probe: Probe, *, release: int) -> list[list[float]]:
        found: dict[Server, list[float]] = {}

        async def one(server: Server) -> None:
            ids, first = probe.prompt_ids + probe.completion_ids, len(probe.prompt_ids) - 1
            reply = await self._generate(server, ids, release, {"max_new_tokens": 0}, logprobs_from=first)
            found[server] = _scored(reply, probe.completion_ids, self._last_id)

        await self._each(one)
        return [found[server] for server in self._servers]

    # Parts of the above

    async def _generate(
        self,
        server: Server,
        ids: list[int],
        release: int,
        params: dict[str, Any],
        logprobs_from: int = -1,
        stream: Stream | None = None,
    ) -> Generated:
        """Every /generate request is made here; one for a release that is not loaded is never sent."""
        if release and release not in self._loads:
            raise WorkerFailed(f"release {release} is not published; served are {sorted({0, *self._loads})}")
        body = {
            "input_ids": ids,
            "sampling_params": {
                "temperature": 1.0,  # what the trainer's importance ratio is taken at
                "top_p": 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "stop_token_ids": server.end_ids,
                **params,
            },
            "return_logprob": True,
            "logprob_start_len": logprobs_from,
            "lora_path": self._loads.get(release),
        }
        if stream is None:
            return msgspec.json.decode(await server.post("/generate", body), type=Generated)
        await server.listen("/generate", body | {"stream": True}, stream.hear)
        return stream.whole()

    def _route(self, *prefixes: int) -> Server:
        """The least loaded server; one that has seen a prefix may be a little busier."""
        knowing = set[Server]().union(*(self._known.get(prefix, ()) for prefix in prefixes))
        chosen = min(self._servers, key=lambda server: server.in_hand - AFFINITY * (server in knowing))
        for prefix in prefixes:
            self._known.setdefault(prefix, set()).add(chosen)
        return chosen

    def _stage(self, source: Path, load_id: str) -> str:
        """A folder of the load's own, which can be removed while the release stays."""
        target = self._folder / load_id
        target.mkdir(parents=True)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            try:
                os.link(source / name, target / name)
            except OSError:  # not on every file system
                shutil.copyfile(source / name, target / name)
        return str(target.absolute())

    async def _unload(self, load_id: str) -> None:
        shutil.rmtree(self._folder / load_id)
        await self._each(lambda server: server.ask("/unload_lora_adapter", {"lora_name": load_id}))

    async def _flush(self) -> None:
        """Cached prefixes of other releases are never taken for this one's, but they take room."""
        self._known = {}
        await self._each(_flush)

    async def _wake(self) -> None:
        if self._resting:
            await self._each(lambda server: server.post("/resume_memory_occupation", {"tags": ["kv_cache"]}))
            self._resting = False

    async def _each(self, work: Callable[[Server], Coroutine[Any, Any, object]]) -> None:
        """On every server at once."""
        async with anyio.create_task_group() as tasks:
            for server in self._servers:
                tasks.start_soon(work, server)


async def _flush(server: Server) -> None:
    await server.post(f"/flush_cache?timeout={IDLE_SECONDS}", {})


def _completion(found: Generated, end_ids: list[int]) -> tuple[list[int], list[float], Literal["stop", "length"]]:
    """Tokens, their log-probs, and why it ended; with an end token it has ended, also where its budget did."""
    reason = (found.meta_info.finish_reason or {}).get("type")
    if reason not in ("stop", "length"):
        raise WorkerFailed(f"SGLang ended a completion with {found.meta_info.finish_reason}")
    ids = [token for _, token, _ in found.meta_info.output_token_logprobs]
    if ids != found.output_ids:
        raise WorkerFailed(f"SGLang gave log-probs of {len(ids)} tokens, but sampled {len(found.output_ids)} others")
    ended: Literal["stop", "length"] = "stop" if ids and ids[-1] in end_ids else reason
    return ids, _numbers(found.meta_info.output_token_logprobs), ended


def _scored(found: Generated, completion_ids: list[int], last_id: int) -> list[float]:
    """SGLang (0.5.15) calls a prompt's last id of the vocabulary 0; the log-prob beside it is the right one."""
    entries = found.meta_info.input_token_logprobs[-len(completion_ids) :]
    told = [token for _, token, _ in entries]
    right = [
        token in ({asked, 0} if asked == last_id else {asked})
        for token, asked in zip(told, completion_ids, strict=False)
    ]
    if len(told) != len(completion_ids) or not all(right):
        raise WorkerFailed("SGLang scored other tokens than it was asked for")
    return _numbers(entries)


def _numbers(entries: list[LogProb]) -> list[float]:
    numbers = [logprob for logprob, _, _ in entries if logprob is not None]
    if len(numbers) != len(entries):
        raise WorkerFailed("SGLang left out the log-probs of some tokens")
    return numbers
