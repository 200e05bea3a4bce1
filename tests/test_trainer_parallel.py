"""Several processes as one trainer: the same step whether the bins or the model are divided among them, or neither."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from trainer_models import make_batch, options, plain_logprobs, save_model

from tttdd.adapters.trainer import MegatronTrainer
from tttdd.domain import batch as batches
from tttdd.domain.batch import TrainReport
from tttdd.ports import Probe, Release, WorkerFailed
from tttdd.workers.architecture import read_architecture, refuse_shards
from tttdd.workers.parallel import Seat, start
from tttdd.workers.train import Options, Trainer, TrainRequest

pytestmark = pytest.mark.anyio
BASE = Release(0)
DEVICES = [0, 1] if torch.cuda.device_count() >= 2 else []
"""Of the two processes: over NCCL where that is possible, else over gloo."""
BATCH = make_batch(2, prompts=(7, 12, 5), samples=5)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With batches 0 and 1 beside it, and releases 1 and 2 that one process made of them."""
    root = tmp_path_factory.mktemp("parallel")
    save_model(root / "model", "qwen3", tied=True)
    one = Trainer(msgspec.convert(options(root / "model"), Options))
    for number in range(2):
        (root / f"batch{number}").write_bytes(batches.encode(msgspec.structs.replace(BATCH, release=number)))
        one.train(request(root, number, root / "alone" / f"{number + 1}"), lambda event: None)
    return root


def request(root: Path, number: int, target: Path) -> TrainRequest:
    """Train batch `number` from what one process made."""
    path = root / "alone" / f"{number}" if number else None
    return TrainRequest(
        release=number, release_path=path, batch=root / f"batch{number}", target=target, target_number=number + 1
    )


def pair(root: Path, name: str, **changes: Any) -> MegatronTrainer:
    return MegatronTrainer(
        options(root / "model", devices=DEVICES, **changes), root / name / "trainer.log", processes=2
    )


@pytest.fixture(scope="module")
async def shards(model: Path) -> AsyncGenerator[MegatronTrainer]:
    async with pair(model, "shards", tensor_parallel=2) as trainer:
        yield trainer


@pytest.fixture(scope="module")
async def replicas(model: Path) -> AsyncGenerator[MegatronTrainer]:
    async with pair(model, "replicas") as trainer:
        yield trainer


async def step(one: MegatronTrainer, root: Path, number: int, start: Path | None, target: Path) -> TrainReport:
    return await one.train(Release(number, start), root / f"batch{number}", Release(number + 1, target))


def assert_alike(root: Path, number: int, folder: Path, report: TrainReport) -> None:
    """A release and its report against those of one process, within float32 rounding."""
    alone = root / "alone" / f"{number}"
    for file, tolerance in (("adapter_model.safetensors", 2e-4), ("optimizer.safetensors", 1e-4)):
        want, got = load_file(alone / file), load_file(folder / file)
        assert set(want) == set(got)
        for name, tensor in want.items():
            torch.testing.assert_close(got[name], tensor, atol=tolerance, rtol=1e-3, msg=name)
    stored = msgspec.json.decode((alone / "release.json").read_bytes())["report"]
    for field in ("loss", "ratio_mean", "sampler_trainer_gap", "kl_base", "grad_norm", "tokens"):
        assert getattr(report, field) == pytest.approx(stored[field], rel=1e-4, abs=1e-6), field


async def test_shards_of_a_model_make_the_same_releases_as_the_whole(shards: MegatronTrainer, model: Path):
    first, second = model / "shards" / "1", model / "shards" / "2"
    assert_alike(model, 1, first, await step(shards, model, 0, None, first))
    assert_alike(model, 2, second, await step(shards, model, 1, first, second))


async def test_a_release_of_the_whole_model_goes_on_in_shards(shards: MegatronTrainer, model: Path):
    target = model / "mixed" / "2"
    assert_alike(model, 2, target, await step(shards, model, 1, model / "alone" / "1", target))


async def test_shards_score_as_transformers_with_peft(shards: MegatronTrainer, model: Path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    twin = AutoModelForCausalLM.from_pretrained(model / "model", dtype=torch.float32)
    prompt, completion = [3, 1, 4, 1, 5], [9, 2, 159, 0, 80]
    base = await shards.score(Probe(prompt, completion), release=BASE)
    assert base == pytest.approx(plain_logprobs(twin, prompt, completion).tolist(), abs=2e-5)
    trained = await shards.score(Probe(prompt, completion), release=Release(1, model / "alone" / "1"))
    peft = PeftModel.from_pretrained(twin, model / "alone" / "1").eval()
    assert trained == pytest.approx(plain_logprobs(peft, prompt, completion).tolist(), abs=2e-5)
    assert trained != pytest.approx(base, abs=1e-3)


async def test_replicas_make_the_same_releases_as_one_process(replicas: MegatronTrainer, model: Path):
    first, second = model / "replicas" / "1", model / "replicas" / "2"
    assert_alike(model, 1, first, await step(replicas, model, 0, None, first))
    assert_alike(model, 2, second, await step(replicas, model, 1, first, second))


async def test_a_replica_without_a_bin_takes_part(replicas: MegatronTrainer, model: Path):
    group = make_batch().groups[0]
    (model / "small").write_bytes(batches.encode(msgspec.structs.replace(BATCH, groups=[group])))
    report = await replicas.train(BASE, model / "small", Release(1, model / "small-1"))
    assert report.grad_norm > 0
    assert report.tokens == len(group.prompt_ids) + sum(len(sample.token_ids) for sample in group.samples)


async def test_what_only_the_first_process_cannot_write_is_refused_by_all(replicas: MegatronTrainer, model: Path):
    (model / "file").write_text("no folder")
    with pytest.raises(WorkerFailed, match="Not a directory"):
        await replicas.train(BASE, model / "batch0", Release(1, model / "file" / "1"))
    assert await replicas.score(Probe([1], [2]), release=BASE), "one that had not refused would be taken for dead"


async def test_the_other_processes_log_beside_the_first(replicas: MegatronTrainer, model: Path):
    await replicas.score(Probe([1], [2]), release=BASE)
    for name in ("trainer.log", "trainer-1.log"):
        assert "loaded" in (model / "replicas" / name).read_text()


def short(root: Path, name: str, rounds: list[dict[int, int]], tensor_parallel: int) -> list[dict[str, Any]]:
    """What the first of two processes says of a step, each round with room for so many tokens in some processes."""
    words = [msgspec.json.encode(request(root, 0, root / name / f"{number}"), enc_hook=str) for number in range(9)]
    rest = [f"[{b','.join(words[: len(rounds)]).decode()}]", json.dumps(rounds)]
    seats = [{"index": index, "count": 2, "rendezvous": str(root / f"{name}.rendezvous")} for index in range(2)]
    settings = {"devices": DEVICES, "tensor_parallel": tensor_parallel}
    given = [json.dumps(options(root / "model", seat=seat, **settings)) for seat in seats]
    script = [sys.executable, str(Path(__file__).with_name("trainer_ranks.py"))]
    with (
        subprocess.Popen([*script, given[1], *rest], stdout=subprocess.DEVNULL) as other,
        subprocess.Popen([*script, given[0], *rest], stdout=subprocess.PIPE) as first,
    ):
        said = first.communicate()[0]
        other.kill()  # it may hang, as the first one's adapter would have it ended
    return json.loads(said)


def test_out_of_memory_in_one_replica_halves_the_bins_of_all_once_and_says_so(model: Path):
    halved, refused = short(model, "short", [{1: 20}, {1: 5}], 1)
    assert_alike(model, 1, model / "short" / "0", msgspec.convert(halved["report"], TrainReport))
    assert halved["report"]["max_tokens_per_gpu"] == 20
    (warning,) = halved["warnings"]
    assert "out of memory in bins of 40 tokens; the step is done again in bins of 20" in warning
    assert "out of memory in bins of 20 tokens, as before in bins of 40" in refused["error"]
    assert not (model / "short" / "1").exists()


def test_shards_halve_the_bins_when_all_are_out_of_memory_and_end_when_one_is(model: Path):
    halved, refused = short(model, "shards-short", [{0: 20, 1: 20}, {0: 5}], 2)
    assert_alike(model, 1, model / "shards-short" / "0", msgspec.convert(halved["report"], TrainReport))
    assert "out of memory on one shard of the model and not on the others" in refused["error"]


@pytest.mark.parametrize("shards", [4, 8])
def test_what_cannot_be_divided_is_refused_with_the_numbers(model: Path, shards: int):
    with pytest.raises(
        ValueError, match=rf"tensor_parallel = {shards} .* key-value heads \(2\), attention heads \(6\)"
    ):
        refuse_shards(read_architecture(model / "model"), shards)


def test_devices_and_processes_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match=r"trainer.devices = \[99\]: \d+ CUDA devices are there"):
        start(Seat(), 1, (99,))
    with pytest.raises(ValueError, match="tensor_parallel = 2 does not divide 3 processes"):
        start(Seat(index=0, count=3), 2, ())
