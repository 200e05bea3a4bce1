"""The embedded engine as a port: a small model sampled on the CPU by a worker process of ours.

    async with EmbeddedEngine(files.path, log, context_length=2048, thinking=False) as engine: ...

Every call is one request on the worker's line; calls run side by side and decode in one batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tttdd.adapters.worker import Worker
from tttdd.domain.prompt import Prompt
from tttdd.ports import OnText, Probe, Release, Sampled, Turn


class EmbeddedEngine(Worker):
    """A ports.RolloutEngine.  Every call raises WorkerDied when the process is gone, WorkerFailed when it refuses."""

    reproducible = True

    def __init__(
        self, model: Path, log: Path, *, context_length: int, thinking: bool, threads: int | None = None
    ) -> None:
        options: dict[str, Any] = {
            "model": str(model),
            "context_length": context_length,
            "thinking": thinking,
            "threads": threads,
        }
        super().__init__("tttdd.workers.sample", options, log)

    async def publish(self, release: Release) -> str:
        path = str(release.path) if release.path else None
        return msgspec.convert(await self.call("publish", release=release.number, path=path), str)

    async def keep(self, release: int) -> None:
        await self.call("keep", release=release)

    async def rest(self) -> None:
        """Nothing: the trainer's memory is not the engine's."""

    async def encode(self, prompt: Prompt) -> list[int]:
        return msgspec.convert(await self.call("encode", text=prompt.text, chat=prompt.chat), list[int])

    async def encode_chat(self, messages: list[Turn], thinking: bool | None) -> list[int]:
        return msgspec.convert(await self.call("encode_chat", messages=messages, thinking=thinking), list[int])

    async def encode_more(self, text: str) -> list[int]:
        return msgspec.convert(await self.call("encode_more", text=text), list[int])

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
        reply = await self.call(
            "sample",
            on_event=(lambda event: on_text(event.data["text"])) if on_text is not None else None,
            prompt_ids=prompt_ids,
            release=release,
            seed=seed,
            stop=stop,
            max_new_tokens=max_new_tokens,
            stream=on_text is not None,
        )
        return msgspec.convert(reply, Sampled)

    async def score(self, probe: Probe, *, release: int) -> list[list[float]]:
        reply = await self.call(
            "score", prompt_ids=probe.prompt_ids, completion_ids=probe.completion_ids, release=release
        )
        return [msgspec.convert(reply, list[float])]

    async def stats(self) -> dict[str, int]:
        """Counts since the start (prefilled_tokens, sampled_tokens, steps) and what lives now (rows, waiting)."""
        return msgspec.convert(await self.call("stats"), dict[str, int])
