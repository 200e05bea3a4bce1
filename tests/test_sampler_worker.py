"""The embedded engine for real: a worker process, its line, and rows that share prompts and releases."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.test_sampler_model import reference, write_adapter
from tests.tiny_models import write_tiny_model
from tttdd.adapters.sampler import EmbeddedEngine
from tttdd.domain.prompt import Prompt
from tttdd.ports import Probe, Release, Sampled, WorkerDied, WorkerFailed

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")]
TEXT = Prompt(text="def steps():\n    h = [", chat=False, stop="]")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(model, tmp_path_factory.mktemp("adapter"))


def start(model: Path, folder: Path) -> EmbeddedEngine:
    return EmbeddedEngine(model, folder / "sample.log", context_length=512, thinking=False, threads=1)


@pytest.fixture(scope="module")
async def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedEngine]:
    async with start(model, tmp_path_factory.mktemp("log")) as running:
        yield running


async def sample_all(
    engine: EmbeddedEngine, prompts: list[list[int]], release: int = 0, stop: str | None = None
) -> list[Sampled]:
    """One completion a prompt, all at once; the seed is the place in the list."""
    results: dict[int, Sampled] = {}

    async def one(seed: int, prompt: list[int]) -> None:
        results[seed] = await engine.sample(prompt, release=release, seed=seed, stop=stop, max_new_tokens=40)

    async with anyio.create_task_group() as tasks:
        for seed, prompt in enumerate(prompts):
            tasks.start_soon(one, seed, prompt)
    return [results[seed] for seed in range(len(prompts))]


async def test_a_completion_ends_at_the_first_token_that_completes_the_stop_text(engine: EmbeddedEngine):
    prompt = await engine.encode(TEXT)
    completions = await sample_all(engine, [prompt] * 8, stop=", 0.")
    stopped = [each for each in completions if ", 0." in each.text]
    assert len(stopped) >= 4
    for each in stopped:
        assert each.finish_reason == "stop"
        assert each.text.index(", 0.") + 4 >= len(each.text) - len(" 0.0,")
        assert len(each.token_ids) == len(each.logprobs) == len(each.loss_mask) and all(each.loss_mask)


async def test_a_completion_without_an_end_stops_at_the_token_budget_or_where_the_context_ends(engine: EmbeddedEngine):
    by_budget, by_context = await sample_all(engine, [[5] * 10, [5] * 500])
    ends = {"stop", "length"}
    assert {by_budget.finish_reason, by_context.finish_reason} <= ends
    assert len(by_context.token_ids) <= 12
    assert any(len(each.token_ids) == 40 for each in await sample_all(engine, [[5] * 10] * 6))


async def test_the_end_of_a_chat_answer_ends_the_completion(engine: EmbeddedEngine):
    completions = await sample_all(engine, [[9, 9, 9]] * 24)
    ended = [each for each in completions if each.finish_reason == "stop"]
    assert ended, "none of 24 rows drew an end token: the tiny model gives it about one chance in 300 a token"
    for each in ended:
        assert each.token_ids[-1] in (278, 280) and "<|im_end|>" not in each.text


async def test_chat_style_wraps_the_text_in_the_chat_template(engine: EmbeddedEngine):
    plain = await engine.encode(Prompt(text="hi", chat=False, stop=None))
    chat = await engine.encode(Prompt(text="hi", chat=True, stop=None))
    assert len(plain) == 2
    assert chat[0] == 279 and 280 in chat and len(chat) > len(plain) + 10


async def test_the_same_requests_give_the_same_tokens_alone_in_company_and_in_another_process(
    engine: EmbeddedEngine, model: Path, tmp_path: Path
):
    prompts = [[seed % 3 + 1, 7, 9] for seed in range(12)]
    together = await sample_all(engine, prompts)
    alone = await engine.sample(prompts[5], release=0, seed=5, stop=None, max_new_tokens=40)
    async with start(model, tmp_path) as other:
        again = await sample_all(other, prompts)
    assert alone == together[5]
    assert again == together
    assert len({tuple(each.token_ids) for each in together}) == 12


async def test_a_group_that_shares_its_prompt_has_it_computed_once(engine: EmbeddedEngine):
    before = await engine.stats()
    await sample_all(engine, [[11] * 100] * 8 + [[12] * 50] * 8)
    after = await engine.stats()
    assert after["prefilled_tokens"] - before["prefilled_tokens"] == 150
    assert after["steps"] - before["steps"] <= 80


async def test_base_and_release_are_sampled_side_by_side_each_with_its_own_log_probs(
    engine: EmbeddedEngine, model: Path, adapter: Path
):
    await engine.publish(Release(1, adapter))
    results: dict[int, Sampled] = {}

    async def one(release: int) -> None:
        results[release] = await engine.sample([3, 4, 5], release=release, seed=7, stop=None, max_new_tokens=40)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one, 0)
        tasks.start_soon(one, 1)
    for release, weights in ((0, None), (1, adapter)):
        expected = reference(model, weights, [3, 4, 5], results[release].token_ids)
        assert results[release].release == release
        assert results[release].logprobs == pytest.approx(expected, abs=1e-4)


async def test_a_published_release_scores_a_probe_as_peft_does_and_gets_a_fresh_load_id(
    engine: EmbeddedEngine, model: Path, adapter: Path
):
    probe = Probe([3, 4, 5], [6, 7, 200])
    first, second = await engine.publish(Release(1, adapter)), await engine.publish(Release(1, adapter))
    assert first != second
    expected = reference(model, adapter, probe.prompt_ids, probe.completion_ids)
    assert (await engine.score(probe, release=1))[0] == pytest.approx(expected, abs=1e-4)


async def test_releases_are_served_side_by_side_until_one_is_kept(model: Path, adapter: Path, tmp_path: Path):
    async with start(model, tmp_path) as engine:
        for number in (1, 2):
            await engine.publish(Release(number, adapter))
        await engine.score(Probe([1], [2]), release=1)
        await engine.keep(2)
        with pytest.raises(WorkerFailed, match=r"release 1 is not published; served are \[0, 2\]"):
            await engine.sample([1, 2], release=1, seed=0, stop=None, max_new_tokens=40)
        assert await engine.score(Probe([1], [2]), release=2)


async def test_a_text_behind_other_tokens_gets_nothing_in_front(engine: EmbeddedEngine):
    assert await engine.encode_more("hi") == (await engine.encode(Prompt(text="hi", chat=False, stop=None)))[-2:]


async def test_cancelling_a_call_frees_its_place(engine: EmbeddedEngine):
    async with anyio.create_task_group() as tasks:
        for seed in range(100):
            tasks.start_soon(lambda s=seed: engine.sample([8] * 300, release=0, seed=s, stop=None, max_new_tokens=40))
        while not (stats := await engine.stats())["rows"]:
            await anyio.sleep(0.005)
        assert stats["rows"] + stats["waiting"] > 0
        tasks.cancel_scope.cancel()
    stats = await engine.stats()
    assert (stats["rows"], stats["waiting"]) == (0, 0)
    assert (await engine.sample([8] * 300, release=0, seed=0, stop=None, max_new_tokens=40)).token_ids


async def test_a_prompt_that_leaves_no_room_is_a_completion_cut_before_its_first_token(engine: EmbeddedEngine):
    sampled = await engine.sample([1] * 600, release=0, seed=0, stop=None, max_new_tokens=40)
    assert (sampled.token_ids, sampled.text, sampled.finish_reason) == ([], "", "length")


async def test_what_cannot_be_served_is_refused_with_the_reason_and_the_engine_goes_on(engine: EmbeddedEngine):
    with pytest.raises(WorkerFailed, match=r"adapter_config\.json"):
        await engine.publish(Release(9, Path("/nonexistent")))
    assert await engine.encode(TEXT)


async def test_calls_of_a_dead_worker_raise_worker_died(model: Path, tmp_path: Path):
    with pytest.raises(WorkerDied):
        async with start(model, tmp_path) as engine:
            await engine.encode(TEXT)
            os.kill(engine.pid, signal.SIGKILL)
            await engine.sample([1, 2], release=0, seed=0, stop=None, max_new_tokens=40)
