"""The SGLang adapter against a server that speaks its contract: real processes and HTTP, a tiny model's log-probs.

What every engine must do is tested in test_engine_port.  Starting an engine takes seconds, so most tests share one:
each publishes under numbers of its own, looks at the requests made meanwhile, and POSTs the fault that it needs.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil
import pytest

from tests.fakes import FakeObserver, FixedTrainer
from tests.record_sglang import answer_of, replaced
from tests.test_sampler_model import reference, write_adapter
from tests.tiny_models import write_tiny_model
from tttdd import sglang_version
from tttdd.adapters.sglang import AFFINITY, IDLE_SECONDS, SglangEngine, _completion
from tttdd.adapters.sglang_server import Place, Settings
from tttdd.adapters.sglang_stream import Generated, Meta, Stream
from tttdd.domain.prompt import Prompt
from tttdd.ports import Probe, PublishFailed, Release, Sampled, WorkerDied, WorkerFailed
from tttdd.serving import Serving
from tttdd.sglang_version import WANTED, Unsupported

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")]
COMMAND = (sys.executable, str(Path(__file__).with_name("fake_sglang.py")))
RECORDINGS = sorted(Path(__file__).with_name("recordings").glob("sglang-*.json"))
PROBE = Probe([3, 4, 5], [6, 7, 200])
CONTEXT = 256
NO_TOKEN = 100_000
"""Beyond the tiny model's vocabulary."""
Requests = Callable[[str], list[dict[str, Any]]]
numbers = itertools.count(1)
"""Of releases: each test publishes others."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [write_adapter(model, tmp_path_factory.mktemp("adapter"), seed) for seed in (1, 2)]


def start(model: Path, folder: Path, *, servers: int = 1, **arguments: Any) -> SglangEngine:
    settings = Settings(
        places=tuple(Place(device, 0.5, 16) for device in range(servers)),
        context_length=CONTEXT,
        dtype="float32",
        thinking=False,
        rank=4,
        targets=("q_proj",),
        release_kv=True,
        seed=1,
        arguments={"log_requests": str(folder / "requests"), **arguments},
    )
    return SglangEngine(model, folder / "serving", folder / "logs", settings, COMMAND)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module")
async def engine(model: Path, folder: Path) -> AsyncIterator[SglangEngine]:
    async with start(model, folder, servers=2) as running:
        yield running


def logged(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    file = folder / "requests"
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def requests(engine: SglangEngine, folder: Path) -> Requests:
    """What has been asked of the shared servers at a path since the test began."""
    before = len(logged(folder))
    return lambda path: [body for name, body in logged(folder)[before:] if name == path]


@asynccontextmanager
async def fault(engine: SglangEngine, name: str) -> AsyncIterator[None]:
    """One of tests.fake_sglang.FAULTS, for a while."""
    await set_fault(engine, name)
    try:
        yield
    finally:
        await set_fault(engine, "")


async def set_fault(engine: SglangEngine, name: str) -> None:
    for server in engine._servers:
        await server.post("/fault", {"fault": name})


async def running(engine: SglangEngine) -> int:
    """Completions that the servers are at."""
    return sum([(await server._http.get("/running")).json()["running"] for server in engine._servers])


def processes(folder: Path) -> list[psutil.Process]:
    """What runs for the engine of `folder`: each has its log open as its output."""
    return [one for one in psutil.process_iter() if _output(one).is_relative_to(folder)]


def _output(process: psutil.Process) -> Path:
    try:
        return Path(f"/proc/{process.pid}/fd/1").readlink()
    except OSError:  # another's, or gone
        return Path()


async def sample(engine: SglangEngine, release: int = 0, prompt: tuple[int, ...] = (1, 2), tokens: int = 5) -> Sampled:
    return await engine.sample(list(prompt), release=release, seed=0, stop=(), max_new_tokens=tokens)


async def test_every_server_scores_the_probe_for_itself(engine: SglangEngine, requests: Requests):
    scored = await engine.score(PROBE, release=0)
    assert len(scored) == len(requests("/generate")) == 2


async def test_the_last_id_of_the_vocabulary_is_scored_though_sglang_calls_it_0(engine: SglangEngine, model: Path):
    last = json.loads((model / "config.json").read_text())["vocab_size"] - 1
    for ids in ([last, 6, last], [0, last]):
        for scored in await engine.score(Probe([3, 4], ids), release=0):
            assert len(scored) == len(ids) and all(value < 0 for value in scored)


async def test_requests_are_made_at_temperature_one_untruncated_and_name_their_load(
    engine: SglangEngine, adapters: list[Path], requests: Requests
):
    load_id = await engine.publish(Release(number := next(numbers), adapters[0]))
    await engine.sample([1, 2], release=number, seed=0, stop=("]",), max_new_tokens=5)
    await engine.score(PROBE, release=number)
    sampled, *scored = requests("/generate")
    for body in (sampled, *scored):
        params = body["sampling_params"]
        assert body["lora_path"] == load_id
        assert (params["temperature"], params["top_p"], params["top_k"], params["min_p"]) == (1.0, 1.0, -1, 0.0)
    assert sampled["logprob_start_len"] == -1, "anything else would take the prefix cache away"
    assert sampled["sampling_params"]["stop"] == ["]"]


async def test_a_completion_ends_before_the_room_that_the_server_keeps_free(engine: SglangEngine):
    assert len((await sample(engine, prompt=(5,) * 240, tokens=50)).token_ids) <= CONTEXT - 8 - 240


async def test_the_release_before_is_unloaded_and_cannot_come_back_from_its_folder(
    engine: SglangEngine, adapters: list[Path], folder: Path, requests: Requests
):
    one, two = next(numbers), next(numbers)
    first, second = [await engine.publish(Release(*each)) for each in zip((one, two), adapters, strict=True)]
    await engine.keep(two)
    assert [path.name for path in (folder / "serving").iterdir()] == [second]
    assert requests("/unload_lora_adapter").count({"lora_name": first}) == 2
    engine._loads[one] = first  # a request for the old load, as a bug would make it
    with pytest.raises(WorkerFailed, match="Failed to implicitly load"):
        await sample(engine, one)
    del engine._loads[one]
    assert list(adapters[0].iterdir()), "the release itself stays"


async def test_the_cache_is_flushed_once_the_servers_are_idle(engine: SglangEngine, requests: Requests):
    await engine.keep(0)
    assert requests(f"/flush_cache?timeout={IDLE_SECONDS}") == [{}, {}]


async def test_a_second_attempt_gets_a_fresh_name_and_the_first_is_unloaded(
    engine: SglangEngine, adapters: list[Path], requests: Requests
):
    first = await engine.publish(Release(number := next(numbers), adapters[0]))
    assert await engine.publish(Release(number, adapters[0])) != first
    assert requests("/unload_lora_adapter") == [{"lora_name": first}] * 2


async def test_a_load_that_fails_is_told_and_the_release_before_goes_on_being_served(
    engine: SglangEngine, adapters: list[Path], tmp_path: Path
):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_text("no weights")
    await engine.publish(Release(number := next(numbers), adapters[0]))
    with pytest.raises(ExceptionGroup) as caught:
        await engine.publish(Release(next(numbers), tmp_path))
    assert caught.group_contains(WorkerFailed, match="Failed to load LoRA adapter")
    assert await engine.score(PROBE, release=number)


@pytest.fixture(scope="module")
def trainer(model: Path, adapters: list[Path]) -> FixedTrainer:
    return FixedTrainer(
        {path: reference(model, path, PROBE.prompt_ids, PROBE.completion_ids) for path in (None, *adapters)}
    )


@pytest.mark.parametrize("wrong", ["stale", "nameless", "swapped"])
async def test_a_server_that_serves_something_else_is_caught_with_the_numbers_before_a_rollout(
    engine: SglangEngine, adapters: list[Path], trainer: FixedTrainer, wrong: str
):
    serving = await Serving.start(engine, trainer, FakeObserver(), PROBE)
    good, bad = Release(next(numbers), adapters[0]), Release(next(numbers), adapters[1])
    assert (await serving.publish(0, good)).proof.gap < 1e-4
    async with fault(engine, wrong):
        with pytest.raises(PublishFailed, match=r"engine and trainer differ by \d"):
            await serving.publish(0, bad)
    for scored in await engine.score(PROBE, release=good.number):
        assert scored == pytest.approx(await trainer.score(PROBE, release=good), abs=1e-4)
    assert (await serving.publish(0, bad)).proof.gap < 1e-4, "nothing else was wrong"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("abort", "ended a completion with .*'abort'"),
        ("other ids", r"gave log-probs of \d tokens, but sampled \d others"),
        ("no log-probs", "left out the log-probs"),
    ],
)
@pytest.mark.parametrize("on_text", [None, len], ids=["whole", "streamed"])
async def test_a_completion_that_cannot_be_trained_on_is_a_failure(
    engine: SglangEngine, wrong: str, problem: str, on_text: Any
):
    async with fault(engine, wrong):
        with pytest.raises(WorkerFailed, match=problem):
            await engine.sample([1, 2], release=0, seed=0, stop=(), max_new_tokens=5, on_text=on_text)


async def test_a_streamed_answer_that_breaks_off_is_a_server_s_death_and_a_refused_one_a_failure(engine: SglangEngine):
    pieces: list[str] = []
    async with fault(engine, "hangs up"):
        with pytest.raises(WorkerDied, match="/generate: RemoteProtocolError"):
            await engine.sample([1, 2], release=0, seed=0, stop=(), max_new_tokens=20, on_text=pieces.append)
    stream = Stream(engine._servers[0], (), pieces.append)
    with pytest.raises(WorkerFailed, match=r"SGLang refused /generate: The input .* is longer"):
        await engine._generate(engine._servers[0], [1] * CONTEXT, 0, {"max_new_tokens": 5}, stream=stream)


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_comes_behind_a_stop_text_that_a_server_did_not_see_is_no_part_of_a_completion(
    engine: SglangEngine, streamed: bool
):
    pieces: list[str] = []
    asked: Any = {"release": 0, "seed": 0, "stop": ("§", ", 0."), "max_new_tokens": 200}
    async with fault(engine, "never stops"):
        sampled = await engine.sample([275, 273, 274], **asked, on_text=pieces.append if streamed else None)
    assert sampled.finish_reason == "stop" and ", 0." not in sampled.text[: -len(", 0.0,")]
    assert ", 0." in sampled.text and len(sampled.token_ids) == len(sampled.logprobs) == len(sampled.loss_mask)
    assert "".join(pieces) == (sampled.text if streamed else "")


@pytest.mark.parametrize(
    ("wrong", "problem"), [("other ids", "scored other tokens"), ("no log-probs", "left out the log-probs")]
)
async def test_log_probs_of_anything_but_the_probe_prove_nothing(engine: SglangEngine, wrong: str, problem: str):
    async with fault(engine, wrong):
        with pytest.raises(ExceptionGroup) as caught:
            await engine.score(PROBE, release=0)
    assert caught.group_contains(WorkerFailed, match=problem)


async def test_a_group_goes_to_servers_that_know_its_prompt_and_none_is_left_idle(engine: SglangEngine):
    first, second = engine._servers
    assert [engine._route(1) for _ in range(4)] == [first] * 4, "none has anything in hand: the prompt decides"
    first.in_hand = AFFINITY + 1
    assert engine._route(1) is second
    first.in_hand = 0
    assert engine._route(2, 99) is engine._route(3, 99), "the second phase of a rollout goes where the first was"


@pytest.mark.parametrize("on_text", [None, len], ids=["whole", "streamed"])
async def test_load_is_spread_over_the_servers_and_cancelling_frees_them(engine: SglangEngine, on_text: Any):
    asked: Any = {"release": 0, "stop": (), "max_new_tokens": 9, "on_text": on_text}
    async with fault(engine, "silent"), anyio.create_task_group() as tasks:
        for place in range(2 * AFFINITY + 8):
            tasks.start_soon(lambda seed=2 * place: engine.sample([8], seed=seed, **asked))
        with anyio.fail_after(20):
            while await running(engine) < 2 * AFFINITY + 8:
                await anyio.sleep(0.01)
        assert min(server.in_hand for server in engine._servers) >= AFFINITY // 2
        tasks.cancel_scope.cancel()
    assert [server.in_hand for server in engine._servers] == [0, 0]
    with anyio.fail_after(20):
        while await running(engine):
            await anyio.sleep(0.01)


async def test_the_kv_cache_is_given_back_for_training_and_taken_again_by_the_next_publish(
    engine: SglangEngine, adapters: list[Path], requests: Requests
):
    await engine.rest()
    await engine.rest()
    assert not requests("/resume_memory_occupation")
    await engine.publish(Release(next(numbers), adapters[0]))
    for path in ("/release_memory_occupation", "/resume_memory_occupation"):
        assert requests(path) == [{"tags": ["kv_cache"]}] * 2


async def test_a_caller_without_the_key_is_refused(engine: SglangEngine):
    server = engine._servers[0]
    reply = await server._http.post("/generate", json={}, headers={"Authorization": "Bearer wrong"})
    assert reply.status_code == 401


# What was recorded of the real server

READ = {"output_ids", "meta_info", "finish_reason", "type", "input_token_logprobs", "output_token_logprobs", "success"}
READ |= {"first", "last", "error", "message"}


def form(node: Any) -> Any:
    """Of an answer, what the adapter reads: types, and the words that it decides by."""
    match node:
        case dict():
            return {
                key: value if key in ("type", "success") else form(value) for key, value in node.items() if key in READ
            }
        case list():
            return {repr(form(each)) for each in node}
        case _:
            return type(node).__name__


def without_chance(request: dict[str, Any]) -> dict[str, Any]:
    """A recorded request whose end tokens are none of the tiny model's, which would now and then draw one of them."""
    params = request.get("sampling_params", {})
    if isinstance(params.get("stop_token_ids"), list):
        return request | {"sampling_params": params | {"stop_token_ids": [NO_TOKEN]}}
    return request


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
async def test_the_fake_answers_as_the_real_server_was_recorded_to_answer(
    engine: SglangEngine, adapters: list[Path], tmp_path: Path, recording: Path
):
    values = {"<folder>": str(tmp_path), "<every id>": list(range(300)), "<too many>": [1] * CONTEXT}
    for exchange in json.loads(recording.read_bytes())["exchanges"]:
        body, right = replaced(without_chance(exchange["request"]), values), exchange["status"] == 200
        match exchange["path"]:
            case "/load_lora_adapter" if right:
                shutil.copytree(adapters[0], body["lora_path"])
            case "/unload_lora_adapter":
                shutil.rmtree(tmp_path / body["lora_name"], ignore_errors=True)  # as the adapter does
            case _:
                pass
        http = engine._servers[0]._http
        key = {"Authorization": "Bearer wrong"} if exchange["status"] == 401 else {}
        reply = await http.post(exchange["path"], json=body, headers=key)
        found = (reply.status_code // 100, reply.text)
        assert reply.status_code // 100 == exchange["status"] // 100, (exchange["name"], found)
        if isinstance(exchange["answer"], dict):
            assert form(answer_of(reply)) == form(exchange["answer"]), exchange["name"]
        if exchange["path"] == "/generate" and right:
            msgspec.convert(exchange["answer"], Generated)


def test_there_is_a_recording_of_the_oldest_version_that_is_taken():
    versions = [json.loads(path.read_bytes())["sglang"] for path in RECORDINGS]
    assert any(WANTED.startswith(f"sglang>={version},") for version in versions)


# Processes


@asynccontextmanager
async def start_light(model: Path, folder: Path, **more: Any) -> AsyncIterator[SglangEngine]:
    """Up in a moment: the watchers find another tokenizer than that of transformers, and no model is read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("fake_tokenizer")))
        async with start(model, folder, **more) as engine:
            yield engine


async def test_killed_servers_and_watchers_are_dead_workers_in_every_call_and_leave_no_process(
    model: Path, tmp_path: Path
):
    async with start_light(model, tmp_path, servers=2) as engine:
        await set_fault(engine, "silent")
        watchers = [psutil.Process(server.worker.pid) for server in engine._servers]
        async with anyio.create_task_group() as tasks:
            for prompt in (1, 2):
                tasks.start_soon(expect_death, engine, prompt)
            with anyio.fail_after(20):
                while await running(engine) < 2:
                    await anyio.sleep(0.01)
            servers = [watcher.children()[0] for watcher in watchers]
            files = [shared_memory(server) for server in servers]
            servers[0].kill()
            watchers[1].kill()
        with anyio.fail_after(20), pytest.raises(WorkerDied):
            while await engine.encode(Prompt("x", chat=False)):  # its watcher has yet to hear of it
                await anyio.sleep(0.05)
        with pytest.raises(ExceptionGroup) as caught:
            await engine.score(PROBE, release=0)
        assert caught.group_contains(WorkerDied)
    assert not processes(tmp_path)
    assert not [file for file in files[0] if file.exists()]
    for file in files[1]:  # its watcher was killed: nobody else knew of it
        file.unlink()


def shared_memory(server: psutil.Process) -> list[Path]:
    owners = {str(process.pid) for process in [server, *server.children()]}
    return [file for file in Path("/dev/shm").iterdir() if owners & set(re.split("[_-]", file.name))]


async def expect_death(engine: SglangEngine, prompt: int) -> None:
    with pytest.raises(WorkerDied):
        await engine.sample([prompt], release=0, seed=2 * prompt, stop=(), max_new_tokens=5)


class Traces(msgspec.Struct):
    """What an engine had while it ran."""

    folder: Path
    words: list[str]
    """Of its processes' command lines and environments."""
    key: str
    files: list[Path]
    """Outside its folder."""


@pytest.fixture(scope="module")
async def left(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """Of an engine that was left, while its server did not listen to SIGTERM."""
    folder = tmp_path_factory.mktemp("left")
    async with start_light(model, folder) as engine:
        await set_fault(engine, "deaf")
        found = processes(folder)
        assert len(found) == 3, "watcher, server, and what the server started"
        (server,) = psutil.Process(engine._servers[0].worker.pid).children()
        files = [Path(server.environ()["TMPDIR"]), *shared_memory(server)]
        assert len(files) == 4 and all(file.exists() for file in files)
        words = [word for one in found for word in [*one.cmdline(), *one.environ().values()]]
        key = engine._servers[0]._http.headers["Authorization"].split()[1]
    return Traces(folder, words, key, files)


async def test_no_process_is_left_even_of_a_server_that_does_not_listen_to_sigterm(left: Traces):
    assert not processes(left.folder)


async def test_no_temporary_file_and_no_shared_memory_is_left(left: Traces):
    assert not [file for file in left.files if file.exists()]


async def test_what_a_server_had_in_shared_memory_is_removed_when_it_was_killed_with_all_below_it(
    model: Path, tmp_path: Path
):
    async with start_light(model, tmp_path) as engine:
        await engine.encode(Prompt("x", chat=False))
        (server,) = psutil.Process(engine._servers[0].worker.pid).children()
        files = shared_memory(server)
        for process in [*server.children(), server]:
            process.kill()
    assert len(files) == 3 and not [file for file in files if file.exists()]


async def test_the_key_was_on_no_command_line_and_in_no_environment(left: Traces):
    assert left.key and not [word for word in left.words if left.key in word]


async def test_a_server_that_does_not_start_is_told_in_its_last_words(model: Path, tmp_path: Path):
    with pytest.raises(ExceptionGroup) as caught:
        async with start_light(model, tmp_path, fault="no start"):
            pass
    assert caught.group_contains(WorkerDied, match="no GPU is left")
    assert not processes(tmp_path)


# Versions


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


@pytest.mark.parametrize("found", ["0.5.15", "0.5.15.post1", "0.5.17", "0.5.15+cu130"])
def test_the_versions_in_range_are_taken_and_arguments_of_ours_are_not(monkeypatch: pytest.MonkeyPatch, found: str):
    monkeypatch.setattr(sglang_version.metadata, "version", lambda name: found)
    sglang_version.check(["attention_backend"])
    with pytest.raises(Unsupported, match="tttdd sets api_key, port itself"):
        sglang_version.check(["port", "api_key"])


@pytest.mark.parametrize(("last", "reason"), [(2, "stop"), (7, "length")])
def test_an_answer_that_ends_just_at_its_budget_has_ended(last: int, reason: str):
    meta = Meta(finish_reason={"type": "length"}, output_token_logprobs=[(-1.0, 5, None), (-1.0, last, None)])
    assert _completion(Generated(meta, [5, last]), end_ids=[2])[2] == reason
