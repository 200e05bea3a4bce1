"""What every RolloutEngine must do, whichever it is: the embedded one, and SGLang's adapter over the fake server."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests import test_sglang_engine as sglang
from tests.test_sampler_model import reference, write_adapter
from tests.test_text import THINKING
from tests.tiny_models import write_tiny_model
from tttdd.adapters.sampler import EmbeddedEngine
from tttdd.adapters.sglang import SglangEngine
from tttdd.domain.prompt import Prompt
from tttdd.ports import Probe, Release, RolloutEngine, Sampled, Turn, WorkerFailed

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")]
PROMPT = [3, 4, 5]
TEXT = Prompt("def steps():\n    h = [", chat=False, stop=("]",))
REFUSING = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ 1 // 0 }}{% endif %}"
    "{% if loop.previtem and loop.previtem.role == message.role %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{% endfor %}"
)
"""Refuses with words of its own, or fails."""
numbers = itertools.count(1)
"""Of releases: each test publishes others."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = REFUSING + config["chat_template"] + THINKING
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(model, tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module", params=["embedded", "sglang"])
async def engine(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RolloutEngine]:
    folder = tmp_path_factory.mktemp(request.param)
    match request.param:
        case "embedded":
            started = EmbeddedEngine(model, folder / "log", context_length=sglang.CONTEXT, thinking=False, threads=1)
        case _:
            started = sglang.start(model, folder)
    async with started as running:
        yield running


async def in_hand(engine: RolloutEngine) -> int:
    """Completions that the engine is at."""
    if isinstance(engine, SglangEngine):
        return await sglang.running(engine)
    assert isinstance(engine, EmbeddedEngine)
    stats = await engine.stats()
    return stats["rows"] + stats["waiting"]


async def freed(engine: RolloutEngine) -> None:
    """The embedded engine hears of a cancelled call before the next: a completion has no time to end by itself."""
    with anyio.fail_after(20):
        while await in_hand(engine):
            assert isinstance(engine, SglangEngine)
            await anyio.sleep(0.01)


async def sample_all(
    engine: RolloutEngine, asked: list[tuple[list[int], int]], stop: tuple[str, ...] = ()
) -> list[Sampled]:
    """A completion of each prompt under its release, all at once."""
    found: dict[int, Sampled] = {}

    async def one(place: int, prompt: list[int], release: int) -> None:
        found[place] = await engine.sample(prompt, release=release, seed=2 * place, stop=stop, max_new_tokens=40)

    async with anyio.create_task_group() as tasks:
        for place, (prompt, release) in enumerate(asked):
            tasks.start_soon(one, place, prompt, release)
    return [found[place] for place in range(len(asked))]


async def test_completions_carry_the_log_probs_of_the_weights_that_were_named(
    engine: RolloutEngine, model: Path, adapter: Path
):
    await engine.publish(Release(number := next(numbers), adapter))
    weights = {0: None, number: adapter}
    for sampled, release in zip(await sample_all(engine, [(PROMPT, 0), (PROMPT, number)]), weights, strict=True):
        expected = reference(model, weights[release], PROMPT, sampled.token_ids)
        assert sampled.release == release
        assert sampled.logprobs == pytest.approx(expected, abs=1e-4)
        assert sampled.loss_mask == [True] * len(sampled.token_ids) != []


async def test_each_process_scores_a_probe_as_peft_does(engine: RolloutEngine, model: Path, adapter: Path):
    await engine.publish(Release(number := next(numbers), adapter))
    probe = Probe(PROMPT, [6, 7, 200])
    for release, weights in ((0, None), (number, adapter)):
        (scored,) = await engine.score(probe, release=release)
        assert scored == pytest.approx(reference(model, weights, PROMPT, probe.completion_ids), abs=1e-4)


async def test_a_completion_ends_at_the_first_token_that_completes_the_stop_text(engine: RolloutEngine):
    completions = await sample_all(engine, [(await engine.encode(TEXT), 0)] * 8, (", 0.",))
    stopped = [each for each in completions if ", 0." in each.text]
    assert len(stopped) >= 4
    for each in stopped:
        assert each.finish_reason == "stop"
        assert each.text.index(", 0.") + 4 >= len(each.text) - len(" 0.0,")
        assert len(each.token_ids) == len(each.logprobs) == len(each.loss_mask)


async def test_of_several_stop_texts_the_first_to_be_completed_ends_a_completion(engine: RolloutEngine):
    stops = (", 0.7", "2, 0.", "].", ", 0.", "é中")
    completions = await sample_all(engine, [(await engine.encode(TEXT), 0)] * 8, stops)
    stopped = [each for each in completions if any(stop in each.text for stop in stops)]
    assert len(stopped) >= 4
    for each in stopped:
        assert each.finish_reason == "stop"
        before = each.text[: -len(" 0.0,")]
        assert not any(stop in before for stop in stops)


async def test_a_completion_without_an_end_stops_at_the_token_budget_or_where_the_context_ends(engine: RolloutEngine):
    whole = await sample_all(engine, [([5] * 10, 0)] * 6)
    assert {len(each.token_ids) for each in whole if each.finish_reason == "length"} == {40}
    (cut,) = await sample_all(engine, [([5] * (sglang.CONTEXT - 12), 0)])
    assert 0 < len(cut.token_ids) <= 12


async def test_a_prompt_that_leaves_no_room_is_a_completion_cut_before_its_first_token(engine: RolloutEngine):
    sampled = await engine.sample([1] * (sglang.CONTEXT + 9), release=0, seed=0, stop=(), max_new_tokens=5)
    assert (sampled.token_ids, sampled.text, sampled.finish_reason) == ([], "", "length")


async def test_releases_are_served_side_by_side_until_one_is_kept(engine: RolloutEngine, adapter: Path):
    one, two = next(numbers), next(numbers)
    for number in (one, two):
        await engine.publish(Release(number, adapter))
        assert await engine.score(Probe([1], [2]), release=one)
    await engine.keep(two)
    with pytest.raises(WorkerFailed, match=rf"release {one} is not published; served are \[0, {two}\]"):
        await engine.sample([1, 2], release=one, seed=0, stop=(), max_new_tokens=5)
    assert await engine.score(Probe([1], [2]), release=two)


async def test_each_publish_gets_a_fresh_load_id(engine: RolloutEngine, adapter: Path):
    release = Release(next(numbers), adapter)
    assert await engine.publish(release) != await engine.publish(release)
    assert await engine.score(Probe([1], [2]), release=release.number)


async def test_a_text_behind_other_tokens_gets_nothing_in_front(engine: RolloutEngine):
    assert await engine.encode_more("hi") == (await engine.encode(Prompt("hi", chat=False)))[-2:]


async def test_chat_style_wraps_the_text_in_the_chat_template(engine: RolloutEngine):
    plain, chat = [await engine.encode(Prompt("hi", chat=chat)) for chat in (False, True)]
    assert len(plain) == 2
    assert chat[0] == 279 and 280 in chat and len(chat) > len(plain) + 10


TURNS = [Turn("system", "Be brief."), Turn("user", "hi"), Turn("assistant", "hello"), Turn("user", "é中🙂")]


async def test_a_conversation_is_written_as_the_model_s_chat_template_does(engine: RolloutEngine):
    written = "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in TURNS)
    expected = await engine.encode_more(f"{written}<|im_start|>assistant\n")
    assert await engine.encode_chat(TURNS, True) == expected
    one = [Turn("user", "hi")]
    assert await engine.encode_chat(one, None) == await engine.encode(Prompt("hi", chat=True))


async def test_a_conversation_opens_the_answer_with_thinking_or_without(engine: RolloutEngine):
    """The fixtures' engines are configured without."""
    with_it, without, configured = [await engine.encode_chat(TURNS, thinking) for thinking in (True, False, None)]
    nothing = await engine.encode_more("<think>\n\n</think>\n\n")
    assert without == configured == with_it + nothing


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([], "refuses the conversation"),
        ([Turn("user", "a"), Turn("user", "b")], "refuses the conversation: roles must alternate$"),
        ([Turn("tool", "1")], "refuses the conversation: ZeroDivisionError"),
    ],
)
async def test_a_conversation_that_the_template_refuses_is_told_and_ends_nothing(
    engine: RolloutEngine, turns: list[Turn], words: str
):
    with pytest.raises(WorkerFailed, match=f"^the model's chat template {words}"):
        await engine.encode_chat(turns, None)
    assert await engine.encode_chat(TURNS, None)


@pytest.mark.parametrize("stop", [(), ("7, 0.", ", 0.3,")])
async def test_pieces_of_a_text_come_while_it_is_sampled_and_join_to_it(
    engine: RolloutEngine, adapter: Path, stop: tuple[str, ...]
):
    await engine.publish(Release(number := next(numbers), adapter))
    prompt = await engine.encode(TEXT)
    pieces: list[str] = []
    running: list[bool] = []

    async def watch() -> None:
        while True:
            running.append(bool(pieces) and await in_hand(engine) > 0)
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        asked: Any = {"release": number, "seed": 4, "stop": stop, "max_new_tokens": 100}
        sampled = await engine.sample(prompt, **asked, on_text=pieces.append)
        tasks.cancel_scope.cancel()
    assert "".join(pieces) == sampled.text and len(pieces) > 3 and all(pieces)
    assert any(running), "pieces came only at the end"
    assert len(sampled.token_ids) == len(sampled.logprobs) == len(sampled.loss_mask)
    if isinstance(engine, EmbeddedEngine):
        assert await engine.sample(prompt, **asked) == sampled


async def test_a_listener_that_fails_ends_its_call_alone(engine: RolloutEngine):
    def listen(piece: str) -> None:
        raise BrokenPipeError(piece)

    with pytest.raises(BrokenPipeError):
        await engine.sample(PROMPT, release=0, seed=0, stop=(), max_new_tokens=200, on_text=listen)
    await freed(engine)
    assert (await engine.sample(PROMPT, release=0, seed=0, stop=(), max_new_tokens=5)).token_ids


async def test_streams_of_many_completions_are_not_mixed_up(engine: RolloutEngine):
    async def one(seed: int) -> None:
        pieces: list[str] = []
        asked: Any = {"release": 0, "seed": seed, "stop": (), "max_new_tokens": 30}
        assert (await engine.sample(PROMPT, **asked, on_text=pieces.append)).text == "".join(pieces)

    async with anyio.create_task_group() as tasks:
        for place in range(20):
            tasks.start_soon(one, 2 * place)


@pytest.mark.parametrize("on_text", [None, len], ids=["whole", "streamed"])
async def test_cancelling_a_call_frees_its_place(engine: RolloutEngine, on_text: Any):
    async with anyio.create_task_group() as tasks:
        for seed in range(100):
            tasks.start_soon(
                lambda s=2 * seed: engine.sample(
                    [8] * 200, release=0, seed=s, stop=(), max_new_tokens=40, on_text=on_text
                )
            )
        while not await in_hand(engine):
            await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()
    await freed(engine)
    assert (await engine.sample([8] * 200, release=0, seed=0, stop=(), max_new_tokens=5)).token_ids
