"""Answers within a thinking budget: what is forced, what is masked, and when nothing is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import ScriptedEngine
from tttdd.ports import Sampled
from tttdd.thinking import CLOSE, CLOSING, OPEN, Answers, Budget

pytestmark = pytest.mark.anyio
PROMPT = list(b"Q")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def answer(
    engine: ScriptedEngine, budget: Budget, prompt: list[int] = PROMPT, most: int | None = None
) -> Sampled:
    """An answer that is also heard piece by piece."""
    answers, pieces = await Answers.prepare(engine, budget), list[str]()
    sampled = await answers.sample(prompt, release=3, seed=8, stop=(), max_new_tokens=most, on_text=pieces.append)
    assert "".join(pieces) == sampled.text and len(pieces) > 1
    return sampled


async def test_without_a_thinking_budget_an_answer_is_one_call_with_all_tokens():
    engine = ScriptedEngine("<think>a</think>b")
    assert (await answer(engine, Budget(100))).text == "<think>a</think>b"
    assert engine.asked == [(PROMPT, 8, 100)]


async def test_thinking_that_ends_in_time_is_left_alone_and_the_answer_goes_on():
    engine = ScriptedEngine("<think>a</think>answer that is long")
    sampled = await answer(engine, Budget(100, thinking=20))
    assert sampled.text == "<think>a</think>answer that is long"
    assert all(sampled.loss_mask) and len(sampled.token_ids) == len(sampled.text)
    assert [seed for _, seed, _ in engine.asked] == [8, 9]


async def test_thinking_beyond_its_budget_is_closed_by_forced_tokens_that_are_masked_out():
    engine = ScriptedEngine("<think>" + "a" * 50, then="answer")
    sampled = await answer(engine, Budget(200, thinking=20))
    assert sampled.text == "<think>" + "a" * 13 + CLOSING + "answer"
    forced = [token for token, taken in zip(sampled.token_ids, sampled.loss_mask, strict=True) if not taken]
    assert bytes(forced).decode() == CLOSING
    assert len(sampled.logprobs) == len(sampled.token_ids) == len(sampled.loss_mask)
    assert all((logprob == 0) != taken for logprob, taken in zip(sampled.logprobs, sampled.loss_mask, strict=True))
    assert engine.asked[1] == (PROMPT + sampled.token_ids[:-6], 9, 200 - 20 - len(CLOSING))
    assert (sampled.finish_reason, sampled.release) == ("stop", 3)


async def test_a_thinking_that_the_prompt_opened_is_closed_too():
    engine = ScriptedEngine("a" * 50, then="answer")
    sampled = await answer(engine, Budget(200, thinking=20), list(b"Q<think>\n"))
    assert sampled.text == "a" * 20 + CLOSING + "answer"


class TagEngine(ScriptedEngine):
    """Begin and end of a thinking are one token each, as in a model's vocabulary."""

    async def encode_more(self, text: str) -> list[int]:
        return {OPEN: [1], CLOSE: [2]}.get(text) or await super().encode_more(text)


@pytest.mark.parametrize(("tail", "forced"), [([1, 10], True), ([1, 10, 10, 2, 10, 10], False)])
async def test_a_thinking_that_the_prompt_opened_and_closed_is_none(tail: list[int], forced: bool):
    sampled = await answer(TagEngine("a" * 50, then="answer"), Budget(200, thinking=20), [*PROMPT, *tail])
    assert (CLOSING in sampled.text) == forced
    assert all(sampled.loss_mask) != forced


@pytest.mark.parametrize(("most", "asked"), [(None, [20, 80]), (500, [20, 80]), (30, [20, 10]), (20, [20]), (7, [7])])
async def test_a_smaller_limit_bounds_the_whole_answer_and_a_larger_one_nothing(most: int | None, asked: list[int]):
    engine = ScriptedEngine("plain answer of some length, and longer, and longer than any budget" * 2)
    sampled = await answer(engine, Budget(100, thinking=20), most=most)
    assert [tokens for _, _, tokens in engine.asked] == asked
    assert len(sampled.token_ids) == sum(asked)


async def test_an_answer_that_nobody_listens_to_asks_the_engine_for_no_pieces():
    class Deaf(ScriptedEngine):
        async def sample(self, prompt_ids: list[int], **asked: Any) -> Sampled:
            assert asked["on_text"] is None
            return await super().sample(prompt_ids, **asked)

    answers = await Answers.prepare(Deaf("<think>" + "a" * 50, then="answer"), Budget(200, thinking=20))
    assert CLOSING in (await answers.sample(PROMPT, release=3, seed=8, stop=())).text


async def test_an_answer_without_thinking_is_only_continued():
    engine = ScriptedEngine("plain answer of some length")
    sampled = await answer(engine, Budget(100, thinking=10))
    assert sampled.text == "plain answer of some length"
    assert all(sampled.loss_mask)


async def test_an_answer_that_has_no_room_left_is_cut():
    engine = ScriptedEngine("<think>" + "a" * 50, then="answer")
    sampled = await answer(engine, Budget(30, thinking=20))
    assert sampled.finish_reason == "length"
    assert len(sampled.token_ids) == 20
