"""A whole answer from a model that thinks first: thinking under its own budget, then the answer in what is left.

    prompt -> at most thinking_budget tokens -> still thinking? the closing text is forced -> the answer

Forced tokens stand in the answer with loss mask 0 and log-prob 0.  Without a thinking budget an answer is one call.
Algorithm, section 5.
"""

from __future__ import annotations

import msgspec

from tttdd.ports import RolloutEngine, Sampled

OPEN, CLOSE = "<think>", "</think>"
CLOSING = f"\n\nMy time to think is over: I answer with the best that I have.\n{CLOSE}\n\n"
TAIL = 8
"""Tokens at a prompt's end among which a chat template may have opened the thinking."""


class Budget(msgspec.Struct, frozen=True):
    """Tokens that an answer may have."""

    max_new_tokens: int
    thinking: int | None = None
    """Of these, before the thinking is closed."""


class Answers:
    """Samples answers within a budget.  Made by `prepare`, which asks the engine for the closing text's tokens."""

    def __init__(self, engine: RolloutEngine, budget: Budget, opening: list[int], closing: list[int]) -> None:
        self._engine, self._budget = engine, budget
        self._opening, self._closing = opening, closing

    @classmethod
    async def prepare(cls, engine: RolloutEngine, budget: Budget) -> Answers:
        return cls(engine, budget, await engine.encode_more(OPEN), await engine.encode_more(CLOSING))

    async def sample(self, prompt_ids: list[int], *, release: int, seed: int, stop: tuple[str, ...]) -> Sampled:
        total = self._budget.max_new_tokens
        first_budget = min(self._budget.thinking or total, total)
        first = await self._engine.sample(
            prompt_ids, release=release, seed=seed, stop=stop, max_new_tokens=first_budget
        )
        forced = self._closing if self._thinks(prompt_ids, first) else []
        left = total - len(first.token_ids) - len(forced)
        if first.finish_reason == "stop" or first_budget == total or left <= 0:
            return first
        rest = await self._engine.sample(
            [*prompt_ids, *first.token_ids, *forced], release=release, seed=seed ^ 1, stop=stop, max_new_tokens=left
        )
        return _joined(first, forced, CLOSING if forced else "", rest)

    def _thinks(self, prompt_ids: list[int], first: Sampled) -> bool:
        """Whether what was sampled ends inside the thinking."""
        return CLOSE not in first.text and (OPEN in first.text or _holds(prompt_ids[-TAIL:], self._opening))


def _holds(ids: list[int], part: list[int]) -> bool:
    return any(ids[start : start + len(part)] == part for start in range(len(ids) - len(part) + 1))


def _joined(first: Sampled, forced: list[int], text: str, rest: Sampled) -> Sampled:
    nothing = len(forced)
    return msgspec.structs.replace(
        rest,
        token_ids=[*first.token_ids, *forced, *rest.token_ids],
        logprobs=[*first.logprobs, *[0.0] * nothing, *rest.logprobs],
        loss_mask=[*first.loss_mask, *[False] * nothing, *rest.loss_mask],
        text=first.text + text + rest.text,
    )
