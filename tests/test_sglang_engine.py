"""The SGLang adapter against a server that speaks its contract: real processes and HTTP, a tiny model's log-probs."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from tests.fakes import FakeObserver, FixedTrainer
from tests.test_sampler_model import reference, write_adapter
from tests.tiny_models import write_tiny_model
from tttdd import sglang_version
from tttdd.adapters.sglang import AFFINITY, SglangEngine
from tttdd.adapters.sglang_server import Place, Settings
from tttdd.domain.prompt import Prompt
from tttdd.ports import Probe, PublishFailed, Release, Sampled, WorkerDied, WorkerFailed
from tttdd.serving import Serving
from tttdd.sglang_version import Unsupported

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")]
FAKE = Path(__file__).with_name("fake_sglang.py")
COMMAND = (sys.executable, str(FAKE))
PROBE = Probe([3, 4, 5], [6, 7, 200])


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [write_adapter(model, tmp_path_factory.mktemp("adapter"), seed) for seed in (1, 2)]


def start(model: Path, folder: Path, *, servers: int = 1, release_kv: bool = False, **arguments: Any) -> SglangEngine:
    settings = Settings(
        places=tuple(Place(device, 0.5, 16) for device in range(servers)),
        context_length=256,
        dtype="float32",
        thinking=False,
        rank=4,
        targets=("q_proj",),
        release_kv=release_kv,
        seed=1,
        arguments={"log_requests": str(folder / "requests"), **arguments},
    )
    return SglangEngine(model, folder / "serving", folder / "logs", settings, COMMAND)


def requests(folder: Path, path: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "requests").read_text().splitlines()]
    return [body for name, body in lines if name == path]


def processes(folder: Path) -> list[psutil.Process]:
    """What runs for the engine of `folder`: each has the log open as its output."""
    found: list[psutil.Process] = []
    for one in psutil.process_iter(["cmdline"]):
        if any("fake_sglang" in word or "tttdd.workers.serve" in word for word in one.info["cmdline"] or []):
            logs = Path(f"/proc/{one.pid}/fd/1")
            if logs.exists() and str(logs.resolve()).startswith(str(folder)):
                found.append(one)
    return found


@pytest.fixture(scope="module")
async def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SglangEngine]:
    async with start(model, tmp_path_factory.mktemp("engine"), servers=2) as running:
        yield running


async def sample_all(
    engine: SglangEngine, prompts: list[list[int]], release: int = 0, tokens: int = 20
) -> list[Sampled]:
    found: dict[int, Sampled] = {}

    async def one(place: int, prompt: list[int]) -> None:
        found[place] = await engine.sample(prompt, release=release, seed=2 * place, stop=None, max_new_tokens=tokens)

    async with anyio.create_task_group() as tasks:
        for place, prompt in enumerate(prompts):
            tasks.start_soon(one, place, prompt)
    return [found[place] for place in range(len(prompts))]


async def test_completions_carry_the_log_probs_of_the_weights_that_were_named(
    engine: SglangEngine, model: Path, adapters: list[Path]
):
    await engine.publish(Release(1, adapters[0]))
    for release, weights in ((0, None), (1, adapters[0])):
        (sampled,) = await sample_all(engine, [[3, 4, 5]], release)
        assert sampled.release == release
        assert sampled.logprobs == pytest.approx(reference(model, weights, [3, 4, 5], sampled.token_ids), abs=1e-4)
        assert len(sampled.token_ids) == len(sampled.loss_mask) > 0


async def test_every_server_scores_the_probe_under_the_release_as_peft_does(
    engine: SglangEngine, model: Path, adapters: list[Path]
):
    await engine.publish(Release(1, adapters[0]))
    scored = await engine.score(PROBE, release=1)
    assert len(scored) == 2
    for each in scored:
        assert each == pytest.approx(reference(model, adapters[0], PROBE.prompt_ids, PROBE.completion_ids), abs=1e-4)


async def test_a_completion_ends_with_its_stop_text_and_has_it_in_its_tokens(engine: SglangEngine):
    prompt = await engine.encode(Prompt("def steps():\n    h = [", chat=False, stop="]"))
    sampled = await engine.sample(prompt, release=0, seed=0, stop=", 0.", max_new_tokens=200)
    assert sampled.finish_reason == "stop"
    assert ", 0." in sampled.text


async def test_a_prompt_that_leaves_no_room_is_a_completion_cut_before_its_first_token(engine: SglangEngine):
    sampled = await engine.sample([1] * 300, release=0, seed=0, stop=None, max_new_tokens=5)
    assert (sampled.token_ids, sampled.finish_reason) == ([], "length")
    short = await engine.sample([1] * 240, release=0, seed=0, stop=None, max_new_tokens=50)
    assert len(short.token_ids) == 256 - 8 - 240


async def test_a_release_that_is_not_published_is_never_asked_for(engine: SglangEngine):
    with pytest.raises(WorkerFailed, match=r"release 7 is not published; served are \[0"):
        await engine.sample([1, 2], release=7, seed=0, stop=None, max_new_tokens=5)


async def test_requests_are_made_at_temperature_one_untruncated_and_name_their_load(
    model: Path, adapters: list[Path], tmp_path: Path
):
    async with start(model, tmp_path) as engine:
        load_id = await engine.publish(Release(1, adapters[0]))
        await engine.sample([1, 2], release=1, seed=0, stop="]", max_new_tokens=5)
        await engine.score(PROBE, release=1)
        sampled, scored = requests(tmp_path, "/generate")[-2:]
    assert sampled["lora_path"] == scored["lora_path"] == load_id
    for body in (sampled, scored):
        params = body["sampling_params"]
        assert (params["temperature"], params["top_p"], params["top_k"], params["min_p"]) == (1.0, 1.0, -1, 0.0)
    assert sampled["logprob_start_len"] == -1, "anything else would take the prefix cache away"
    assert sampled["sampling_params"]["stop"] == ["]"]


async def test_the_release_before_is_unloaded_and_cannot_come_back_from_its_folder(
    model: Path, adapters: list[Path], tmp_path: Path
):
    async with start(model, tmp_path) as engine:
        first = await engine.publish(Release(1, adapters[0]))
        second = await engine.publish(Release(2, adapters[1]))
        await engine.keep(2)
        assert [path.name for path in (tmp_path / "serving").iterdir()] == [second]
        assert requests(tmp_path, "/unload_lora_adapter") == [{"lora_name": first}]
        assert requests(tmp_path, "/flush_cache")
        engine._loads[1] = first  # a request for the old load, as a bug would make it
        with pytest.raises(WorkerFailed, match="not loaded"):
            await engine.sample([1, 2], release=1, seed=0, stop=None, max_new_tokens=5)
    assert adapters[0].exists(), "the release itself stays"


async def test_a_second_attempt_gets_a_fresh_name_and_the_first_is_unloaded(
    model: Path, adapters: list[Path], tmp_path: Path
):
    async with start(model, tmp_path) as engine:
        first = await engine.publish(Release(1, adapters[0]))
        assert await engine.publish(Release(1, adapters[0])) != first
        assert requests(tmp_path, "/unload_lora_adapter") == [{"lora_name": first}]


async def test_a_load_that_fails_is_told_and_the_release_before_goes_on_being_served(
    model: Path, adapters: list[Path], tmp_path: Path
):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "adapter_config.json").write_text("{}")
    (empty / "adapter_model.safetensors").write_text("no weights")
    async with start(model, tmp_path) as engine:
        await engine.publish(Release(1, adapters[0]))
        with pytest.raises(ExceptionGroup) as caught:
            await engine.publish(Release(2, empty))
        assert caught.group_contains((WorkerFailed, WorkerDied))
        assert await engine.score(PROBE, release=1)


@pytest.mark.parametrize("fault", ["stale", "nameless", "swapped"])
async def test_a_server_that_serves_something_else_is_caught_with_the_numbers_before_a_rollout(
    model: Path, adapters: list[Path], tmp_path: Path, fault: str
):
    trainer = FixedTrainer(
        {None: reference(model, None, PROBE.prompt_ids, PROBE.completion_ids)}
        | {path: reference(model, path, PROBE.prompt_ids, PROBE.completion_ids) for path in adapters}
    )
    async with start(model, tmp_path) as right:
        serving = await Serving.start(right, trainer, FakeObserver(), PROBE)
        for number, path in enumerate(adapters, 1):
            assert (await serving.publish(0, Release(number, path))).proof.gap < 1e-4
    async with start(model, tmp_path, fault=fault) as wrong:
        serving = await Serving.start(wrong, trainer, FakeObserver(), PROBE)
        with pytest.raises(PublishFailed, match=r"engine and trainer differ by \d"):
            for number, path in enumerate(adapters, 1):
                await serving.publish(0, Release(number, path))


async def test_a_group_goes_to_servers_that_know_its_prompt_and_none_is_left_idle(engine: SglangEngine):
    first, second = engine._servers
    assert [engine._route(1) for _ in range(4)] == [first] * 4, "none has anything in hand: the prompt decides"
    first.in_hand = AFFINITY + 1
    assert engine._route(1) is second
    first.in_hand = 0
    assert engine._route(2, 99) is engine._route(3, 99), "the second phase of a rollout goes where the first was"


async def test_load_is_spread_over_the_servers(engine: SglangEngine):
    await sample_all(engine, [[group + 1, 9] for group in range(2) for _ in range(40)], tokens=3)
    assert [server.in_hand for server in engine._servers] == [0, 0]


async def test_cancelling_a_call_frees_its_place(model: Path, tmp_path: Path):
    async with start(model, tmp_path, token_seconds=0.02) as engine:
        (server,) = engine._servers
        async with anyio.create_task_group() as tasks:
            for seed in range(4):
                tasks.start_soon(
                    lambda s=2 * seed: engine.sample([1, 2], release=0, seed=s, stop="never", max_new_tokens=200)
                )
            with anyio.fail_after(10):
                while await running(engine) < 4:
                    await anyio.sleep(0.01)
            assert server.in_hand == 4
            tasks.cancel_scope.cancel()
        assert server.in_hand == 0
        with anyio.fail_after(10):
            while await running(engine):
                await anyio.sleep(0.01)


async def running(engine: SglangEngine) -> int:
    return (await engine._servers[0]._http.get("/running")).json()["running"]


async def test_the_kv_cache_is_given_back_for_training_and_taken_again_by_the_next_publish(
    model: Path, adapters: list[Path], tmp_path: Path
):
    async with start(model, tmp_path, release_kv=True) as engine:
        await engine.rest()
        await engine.rest()
        await engine.publish(Release(1, adapters[0]))
    for path in ("/release_memory_occupation", "/resume_memory_occupation"):
        assert requests(tmp_path, path) == [{"tags": ["kv_cache"]}]


@pytest.mark.parametrize("victim", ["server", "watcher"])
async def test_a_killed_server_is_a_dead_worker_in_every_call_and_leaves_no_process(
    model: Path, tmp_path: Path, victim: str
):
    with pytest.raises((WorkerDied, ExceptionGroup)) as caught:
        async with start(model, tmp_path, token_seconds=0.05) as engine:
            watcher = psutil.Process(engine._servers[0].worker.pid)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: engine.sample([1], release=0, seed=0, stop="never", max_new_tokens=200))
                await anyio.sleep(0.2)
                os.kill((watcher.children() if victim == "server" else [watcher])[0].pid, signal.SIGKILL)
    assert caught.type is WorkerDied or caught.group_contains(WorkerDied)
    assert not processes(tmp_path)


async def test_leaving_the_engine_leaves_no_process_and_no_key_was_on_a_command_line(model: Path, tmp_path: Path):
    async with start(model, tmp_path) as engine:
        key = engine._servers[0]._http.headers["Authorization"].split()[1]
        found = processes(tmp_path)
        assert len(found) == 2
        assert not any(key in word for one in found for word in [*one.cmdline(), *one.environ().values()])
    assert not processes(tmp_path)


async def test_a_server_that_does_not_start_is_told_in_its_last_words(model: Path, tmp_path: Path):
    with pytest.raises(ExceptionGroup) as caught:
        async with start(model, tmp_path, fault="no start"):
            pass
    assert caught.group_contains(WorkerDied, match="no GPU is left")
    assert not processes(tmp_path)


async def test_a_caller_without_the_key_is_refused(engine: SglangEngine):
    server = engine._servers[0]
    reply = await server._http.post("/generate", json={}, headers={"Authorization": "Bearer wrong"})
    assert reply.status_code == 401


@pytest.mark.parametrize(
    ("found", "problem"),
    [(None, "is not installed; pip install 'sglang>=0.5.15,<0.5.18'"), ("0.4.9", "0.4.9 is"), ("0.5.18", "0.5.18 is")],
)
def test_another_version_of_sglang_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, found: str | None, problem: str
):
    def version(name: str) -> str:
        if found is None:
            raise sglang_version.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(sglang_version.metadata, "version", version)
    with pytest.raises(Unsupported, match=problem.replace("'", ".")):
        sglang_version.check([])


@pytest.mark.parametrize("found", ["0.5.15", "0.5.15.post1", "0.5.17"])
def test_the_versions_in_range_are_taken_and_arguments_of_ours_are_not(monkeypatch: pytest.MonkeyPatch, found: str):
    monkeypatch.setattr(sglang_version.metadata, "version", lambda name: found)
    sglang_version.check(["attention_backend"])
    with pytest.raises(Unsupported, match="tttdd sets api_key, port itself"):
        sglang_version.check(["port", "api_key"])
