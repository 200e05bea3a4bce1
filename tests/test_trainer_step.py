"""An optimizer step as a function on files: repeatable, resumable, all or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from trainer_models import make_batch, options, plain_logprobs, save_model

from tttdd.domain import batch as batches
from tttdd.domain.batch import Batch, Group, Sample, TrainReport
from tttdd.workers import release
from tttdd.workers.train import Options, ScoreRequest, Trainer, TrainRequest

FILES = ("adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "release.json")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "llama", tied=True)
    return folder


def trainer(model: Path, **changes: Any) -> Trainer:
    return Trainer(msgspec.convert(options(model, **changes), Options))


def train(one: Trainer, root: Path, number: int, batch: Batch | None = None, name: str = "") -> TrainReport:
    """Train `batch` from release `number` into number + 1 (or `name`) under `root`."""
    (root / f"batch{number}").write_bytes(batches.encode(batch or make_batch(number, release=number)))
    request = TrainRequest(
        release=number,
        release_path=root / f"{number:04}" if number else None,
        batch=root / f"batch{number}",
        target=root / (name or f"{number + 1:04}"),
        target_number=number + 1,
    )
    return one.train(request, lambda event: None)


def test_a_batch_trained_twice_gives_the_same_release_bit_for_bit(model: Path, tmp_path: Path):
    train(trainer(model), tmp_path, 0)
    train(trainer(model), tmp_path, 0, name="again")
    for file in FILES[:3]:
        assert (tmp_path / "0001" / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file
    first, again = (json.loads((tmp_path / folder / FILES[3]).read_text()) for folder in ("0001", "again"))
    for field in ("seconds", "base_seconds", "grad_seconds"):
        assert first["report"].pop(field) > 0 < again["report"].pop(field)
    assert first == again
    assert sorted(path.name for path in (tmp_path / "0001").iterdir()) == sorted(FILES)


def test_steps_by_new_processes_equal_an_uninterrupted_run(model: Path, tmp_path: Path):
    """Adam's state comes back from the release: with a fresh Adam the second step would differ."""
    for number in range(2):
        train(trainer(model), tmp_path, number)
    got = load_file(tmp_path / "0002" / FILES[0])
    assert_equals_plain_adam(model, tmp_path, got)
    assert load_file(tmp_path / "0002" / FILES[2])["step"].item() == 2


def assert_equals_plain_adam(model: Path, root: Path, got: dict[str, torch.Tensor]) -> None:
    """Two steps of one torch Adam that lives on, over transformers and peft, prompts unshared."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    one = trainer(model)
    one._restore(None)
    start = release.Contents(adapter_config=one._lora.config, adapter=one._lora.tensors(), optimizer={})
    release.write(root / "start", release.read_record(root / "0001"), start)
    twin = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    peft = PeftModel.from_pretrained(twin, root / "start", is_trainable=True)
    weights = {name.replace(".default", ""): w for name, w in peft.named_parameters() if w.requires_grad}
    adam = torch.optim.Adam(weights.values(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    for number in range(2):
        adam.zero_grad()
        naive_loss(peft, make_batch(number, release=number)).backward()
        adam.step()
    for name, weight in got.items():
        torch.testing.assert_close(weight, weights[name].detach(), atol=2e-4, rtol=1e-3)


def naive_loss(peft: Any, batch: Batch) -> torch.Tensor:
    """The loss as its formula reads, one sequence at a time."""
    pairs = [(group.prompt_ids, sample) for group in batch.groups for sample in group.samples]
    logp = [plain_logprobs(peft, prompt, sample.token_ids).double() for prompt, sample in pairs]
    with torch.no_grad(), peft.disable_adapter():
        base = [plain_logprobs(peft, prompt, sample.token_ids).double() for prompt, sample in pairs]
    logq = [torch.tensor(sample.logprobs, dtype=torch.float64) for _, sample in pairs]
    mask = [torch.tensor(sample.loss_mask, dtype=torch.float64) for _, sample in pairs]
    mean = torch.cat([m * (q - b) for m, q, b in zip(mask, logq, base, strict=True)]).sum() / torch.cat(mask).sum()
    terms = [
        m * (p - q).exp() * (sample.advantage + 0.1 * (mean - (q - b)))
        for (_, sample), p, q, b, m in zip(pairs, logp, logq, base, mask, strict=True)
    ]
    return -torch.cat(terms).sum() / batch.rollouts_total


def test_the_report_holds_the_numbers_of_the_formula(model: Path, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    batch, twin = make_batch(), AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    report = train(trainer(model), tmp_path, 0, batch)
    taken = [torch.tensor(s.loss_mask) for g in batch.groups for s in g.samples]
    logq = [torch.tensor(s.logprobs, dtype=torch.float64) for g in batch.groups for s in g.samples]
    with torch.no_grad():
        logp = [plain_logprobs(twin, g.prompt_ids, s.token_ids).double() for g in batch.groups for s in g.samples]
    gap = torch.cat([(q - p)[m] for q, p, m in zip(logq, logp, taken, strict=True)])
    assert report.sampler_trainer_gap == pytest.approx(gap.mean().item(), abs=1e-5)
    assert report.kl_base == report.sampler_trainer_gap  # release 0 is the base
    assert report.ratio_mean == pytest.approx((-gap).exp().mean().item(), rel=1e-5)
    assert report.tokens == sum(len(g.prompt_ids) + sum(len(s.token_ids) for s in g.samples) for g in batch.groups)
    assert report.grad_norm > 0


def test_what_forced_tokens_are_worth_changes_nothing(model: Path, tmp_path: Path):
    def other(sample: Sample) -> Sample:
        logprobs = [q if taken else -77.0 for q, taken in zip(sample.logprobs, sample.loss_mask, strict=True)]
        return msgspec.structs.replace(sample, logprobs=logprobs)

    batch = make_batch()
    changed = [Group(group.prompt_ids, [other(sample) for sample in group.samples]) for group in batch.groups]
    first = train(trainer(model), tmp_path, 0, batch)
    second = train(trainer(model), tmp_path, 0, msgspec.structs.replace(batch, groups=changed), "other")
    assert (first.loss, first.kl_base) == (second.loss, second.kl_base)
    assert (tmp_path / "0001" / FILES[0]).read_bytes() == (tmp_path / "other" / FILES[0]).read_bytes()


def test_a_release_that_is_there_is_reported_and_not_trained(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = trainer(model)
    report = train(one, tmp_path, 0)
    monkeypatch.setattr(one, "_step", None)
    assert train(one, tmp_path, 0) == report


def test_a_target_made_from_something_else_is_refused(model: Path, tmp_path: Path):
    one = trainer(model)
    train(one, tmp_path, 0)
    with pytest.raises(ValueError, match="exists, but was trained from"):
        train(one, tmp_path, 0, make_batch(9))


def test_a_batch_of_another_release_is_refused(model: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="sampled under release 3"):
        train(trainer(model), tmp_path, 0, make_batch(release=3))


def test_a_failure_while_writing_leaves_nothing_and_the_step_can_be_taken_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = trainer(model)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(release, "_json", full)
        with pytest.raises(OSError, match="No space"):
            train(one, tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["batch0"]
    train(one, tmp_path, 0)


def test_learning_rate_zero_leaves_the_base(model: Path, tmp_path: Path):
    one = trainer(model, lr=0.0)
    for number in range(2):
        train(one, tmp_path, number)
    weights = load_file(tmp_path / "0002" / FILES[0])
    assert not any(weight.any() for name, weight in weights.items() if ".lora_B." in name)
    assert score(one, tmp_path / "0002") == pytest.approx(score(one, None), abs=1e-6)


def score(one: Trainer, path: Path | None) -> list[float]:
    return one.score(ScoreRequest(release_path=path, prompt_ids=[1, 2, 3], completion_ids=[4, 5, 6, 7]))


def test_score_tells_releases_apart_and_keeps_none(model: Path, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    one, twin = trainer(model), AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    train(one, tmp_path, 0)
    base, trained = score(one, None), score(one, tmp_path / "0001")
    assert base == pytest.approx(plain_logprobs(twin, [1, 2, 3], [4, 5, 6, 7]).tolist(), abs=1e-5)
    assert max(abs(a - b) for a, b in zip(base, trained, strict=True)) > 1e-3
    assert score(one, None) == base


def test_a_batch_without_a_trained_token_gives_an_unchanged_release(model: Path, tmp_path: Path):
    silent = Group([1, 2], [Sample([3], [-1.0], [False], 1.0)])
    report = train(trainer(model), tmp_path, 0, msgspec.structs.replace(make_batch(), groups=[silent]))
    assert (report.loss, report.grad_norm, report.kl_base) == (0.0, 0.0, 0.0)
    assert load_file(tmp_path / "0001" / FILES[2])["step"].item() == 1


def test_a_gradient_that_is_not_finite_is_refused_and_leaves_no_release(model: Path, tmp_path: Path):
    sample = Sample([5, 6], [-1e4, -1e4], [True, True], 1.0)
    batch = Batch(run="r", step=0, release=0, rollouts_total=1, groups=[Group([1, 2], [sample])])
    with pytest.raises(ValueError, match="gradient has the norm"):
        train(trainer(model), tmp_path, 0, batch)
    assert not (tmp_path / "0001").exists()


def test_a_batch_without_a_sampled_token_trains_without_signal(model: Path, tmp_path: Path):
    empty = Sample(token_ids=[], logprobs=[], loss_mask=[], advantage=0.0)
    batch = Batch(run="r", step=0, release=0, rollouts_total=3, groups=[Group([1, 2], [empty] * 3)])
    report = train(trainer(model), tmp_path, 0, batch)
    assert (report.loss, report.grad_norm) == (0.0, 0.0)
    assert (tmp_path / "0001" / "adapter_model.safetensors").is_file()
