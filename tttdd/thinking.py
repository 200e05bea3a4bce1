"""A whole answer from a model that thinks first: thinking under its own budget, then the answer in what is left.

    prompt -> at most thinking_budget tokens -> still thinking? the closing text is forced -> the answer

Forced tokens stand in the answer with loss mask 0 and log-prob 0.  Without a thinking budget an answer is one call.
Algorithm, section 5.
"""

from __future__ import annotations

import msgspec

from tttdd.ports import OnText, RolloutEngine, Sampled

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

    def __init__(
        self, engine: RolloutEngine, budget: Budget, opening: list[int], closed: list[int], closing: list[int]
    ) -> None:
        self._engine, self._budget = engine, budget
        self._opening, self._closed, self._closing = opening, closed, closing

    @classmethod
    async def prepare(cls, engine: RolloutEngine, budget: Budget) -> Answers:
        return cls(engine, budget, *[await engine.encode_more(text) for text in (OPEN, CLOSE, CLOSING)])

    async def sample(
        self,
        prompt_ids: list[int],
        *,
        release: int,
        seed: int,
        stop: tuple[str, ...],
        max_new_tokens: int | None = None,
        on_text: OnText | None = None,
    ) -> Sampled:
        """A whole answer; `max_new_tokens` can make the budget smaller.  `on_text` as the engine's, for all of it."""
        total = (
            self._budget.max_new_tokens if max_new_tokens is None else min(max_new_tokens, self._budget.max_new_tokens)
        )
        first_budget = min(self._budget.thinking or total, total)
        first = await self._engine.sample(
            prompt_ids, release=release, seed=seed, stop=stop, max_new_tokens=first_budget, on_text=on_text
        )
        forced = self._closing if self._thinks(prompt_ids, first) else []
        left = total - len(first.token_ids) - len(forced)
        if first.finish_reason == "stop" or first_budget == total or left <= 0:
            return first
        if forced and on_text is not None:
            on_text(CLOSING)
        rest = await self._engine.sample(
            [*prompt_ids, *first.token_ids, *forced],
            release=release,
            seed=seed ^ 1,
            stop=stop,
            max_new_tokens=left,
            on_text=on_text,
        )
        return _joined(first, forced, CLOSING if forced else "", rest)

    def _thinks(self, prompt_ids: list[int], first: Sampled) -> bool:
        """Whether what was sampled ends inside the thinking."""
        return CLOSE not in first.text and (OPEN in first.text or self._opened(prompt_ids[-TAIL:]))

    def _opened(self, tail: list[int]) -> bool:
        """Whether a prompt ends inside a thinking: a template that is told not to think opens one and closes it."""
        return _last(tail, self._opening) > _last(tail, self._closed)


def _last(ids: list[int], part: list[int]) -> int:
    """Where `part` begins for the last time in `ids`; -1 if it is not in there."""
    places = [start for start in range(len(ids) - len(part) + 1) if ids[start : start + len(part)] == part]
    return max(places, default=-1)


def _joined(first: Sampled, forced: list[int], text: str, rest: Sampled) -> Sampled:
    nothing = len(forced)
    return msgspec.structs.replace(
        rest,
        token_ids=[*first.token_ids, *forced, *rest.token_ids],
        logprobs=[*first.logprobs, *[0.0] * nothing, *rest.logprobs],
        loss_mask=[*first.loss_mask, *[False] * nothing, *rest.loss_mask],
        text=first.text + text + rest.text,
    )
