"""The embedded engine for real: a worker process, its line, and rows that share prompts.  See also test_engine_port."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.tiny_models import write_tiny_model
from tttdd.adapters.sampler import EmbeddedEngine
from tttdd.domain.prompt import Prompt
from tttdd.ports import Release, Sampled, WorkerDied, WorkerFailed

pytestmark = pytest.mark.anyio
TEXT = Prompt(text="def steps():\n    h = [", chat=False, stop=("]",))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def start(model: Path, folder: Path) -> EmbeddedEngine:
    return EmbeddedEngine(model, folder / "sample.log", context_length=512, thinking=False, threads=1)


@pytest.fixture(scope="module")
async def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedEngine]:
    async with start(model, tmp_path_factory.mktemp("log")) as running:
        yield running


@pytest.fixture(scope="module")
async def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedEngine]:
    """A second process, which the last test kills."""
    async with start(model, tmp_path_factory.mktemp("log")) as running:
        yield running


async def sample_all(engine: EmbeddedEngine, prompts: list[list[int]]) -> list[Sampled]:
    """One completion a prompt, all at once; the seed is the place in the list."""
    results: dict[int, Sampled] = {}

    async def one(seed: int, prompt: list[int]) -> None:
        results[seed] = await engine.sample(prompt, release=0, seed=seed, stop=(), max_new_tokens=40)

    async with anyio.create_task_group() as tasks:
        for seed, prompt in enumerate(prompts):
            tasks.start_soon(one, seed, prompt)
    return [results[seed] for seed in range(len(prompts))]


async def test_the_end_of_a_chat_answer_ends_the_completion(engine: EmbeddedEngine):
    completions = await sample_all(engine, [[9, 9, 9]] * 24)
    ended = [each for each in completions if each.finish_reason == "stop"]
    assert ended, "none of 24 rows drew an end token: the tiny model gives it about one chance in 300 a token"
    for each in ended:
        assert each.token_ids[-1] in (278, 280) and "<|im_end|>" not in each.text


async def test_the_same_requests_give_the_same_tokens_alone_in_company_and_in_another_process(
    engine: EmbeddedEngine, other: EmbeddedEngine
):
    prompts = [[seed % 3 + 1, 7, 9] for seed in range(12)]
    together = await sample_all(engine, prompts)
    alone = await engine.sample(prompts[5], release=0, seed=5, stop=(), max_new_tokens=40)
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


async def test_what_cannot_be_served_is_refused_with_the_reason_and_the_engine_goes_on(engine: EmbeddedEngine):
    with pytest.raises(WorkerFailed, match=r"adapter_config\.json"):
        await engine.publish(Release(9, Path("/nonexistent")))
    assert await engine.encode(TEXT)


async def test_calls_of_a_dead_worker_raise_worker_died(other: EmbeddedEngine):
    assert await other.encode(TEXT)
    os.kill(other.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        await other.sample([1, 2], release=0, seed=0, stop=(), max_new_tokens=40)
