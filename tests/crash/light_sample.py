"""The embedded engine's protocol without a model: a second instead of six to start.  Log-probs know the release."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tttdd import wire


def number(*parts: object) -> float:
    """A reproducible number in (0, 1)."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big") / 2**48


def logprobs(ids: list[int], folder: str | None) -> list[float]:
    mark = json.loads((Path(folder) / "release.json").read_text())["number"] if folder else 0
    return [-1.0 - 0.1 * mark * number(token) for token in ids]


class Engine:
    def __init__(self) -> None:
        self.served: dict[int, str | None] = {0: None}

    def publish(self, release: int, path: str | None) -> str:
        self.served[release] = path
        return f"load-{release}"

    def keep(self, release: int) -> None:
        self.served = {number: path for number, path in self.served.items() if number in (0, release)}

    def encode(self, text: str, chat: bool) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: list[dict[str, str]], thinking: bool | None) -> list[int]:
        return list("".join(turn["content"] for turn in messages).encode())

    def encode_more(self, text: str) -> list[int]:
        return list(text.encode())

    def sample(
        self, prompt_ids: list[int], release: int, seed: int, stop: list[str], max_new_tokens: int, stream: bool
    ) -> dict[str, Any]:
        assert release in self.served and not stream
        numbers = ", ".join(f"{number(seed, place):.3f}" for place in range(6))
        end = stop[0] if stop else ""
        text = (numbers if seed % 4 else "nothing" + end) + end
        ids = list(text.encode())
        return {
            "token_ids": ids,
            "logprobs": [-number(seed, place) for place in range(len(ids))],
            "loss_mask": [True] * len(ids),
            "text": text,
            "finish_reason": "stop",
            "release": release,
        }

    def score(self, prompt_ids: list[int], completion_ids: list[int], release: int) -> list[float]:
        return logprobs(completion_ids, self.served[release])


def main(line: wire.Line, options: dict[str, Any]) -> None:
    engine = Engine()
    while True:
        request = line.receive()
        if isinstance(request, wire.Request) and request.method != "cancel":
            line.send(wire.Reply(request.id, getattr(engine, request.method)(**request.params)))
