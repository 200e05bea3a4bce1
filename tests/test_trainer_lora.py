"""LoRA: the same numbers as peft in both directions, and the base untouched when it is off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from trainer_models import TARGETS, make_batch, plain_logprobs, save_model

from tttdd.domain.batch import Group, TrainReport
from tttdd.workers import release
from tttdd.workers.lora import Adapters
from tttdd.workers.model import LanguageModel
from tttdd.workers.packing import lay_out, pack
from tttdd.workers.parallel import Seat, start

REPORT = TrainReport(
    loss=0.0, ratio_mean=1.0, sampler_trainer_gap=0.0, kl_base=0.0, grad_norm=0.0, tokens=0, seconds=0.0
)


def build(folder: Path, targets: tuple[str, ...] = TARGETS) -> tuple[LanguageModel, Adapters]:
    model = LanguageModel(folder, torch.float32, start(Seat(), 1, ()))
    return model, Adapters(model, 4, 8, targets)


def randomise(lora: Adapters) -> None:
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in lora.weights.values():
            weight.normal_(0, 0.1)


def write(folder: Path, lora: Adapters) -> None:
    record = release.Record(number=1, parent=0, batch_sha256="", seed=0, report=REPORT)
    contents = release.Contents(adapter_config=lora.config, adapter=lora.tensors(), optimizer={})
    release.write(folder, record, contents)


def both(model: LanguageModel, twin: Any, groups: list[Group]) -> tuple[torch.Tensor, torch.Tensor]:
    """Our log-probs of the trained tokens, and transformers'."""
    (parts,) = pack(groups, 10_000)
    pairs = [(groups[part.group], groups[part.group].samples[index]) for part in parts for index in part.samples]
    want = [plain_logprobs(twin, g.prompt_ids, s.token_ids)[torch.tensor(s.loss_mask)] for g, s in pairs]
    return model.logprobs(lay_out(groups, parts), 7), torch.cat(want)


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("targets", [TARGETS, ("q_proj", "v_proj", "up_proj")])
def test_peft_reads_what_is_written_and_computes_the_same(tmp_path: Path, family: str, targets: tuple[str, ...]):
    twin, (model, lora) = save_model(tmp_path / "m", family, tied=True), build(tmp_path / "m", targets)
    randomise(lora)
    write(tmp_path / "0001", lora)
    base = both(model, twin, make_batch().groups)[1]
    ours, theirs = both(model, PeftModel.from_pretrained(twin, tmp_path / "0001").eval(), make_batch().groups)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert (theirs - base).abs().max() > 1e-2


@torch.no_grad()
def test_what_peft_writes_is_read_and_computes_the_same(tmp_path: Path):
    twin, (model, lora) = save_model(tmp_path / "m", "qwen3", tied=False), build(tmp_path / "m")
    peft = get_peft_model(twin, LoraConfig(r=4, lora_alpha=8, target_modules=list(TARGETS), init_lora_weights=False))
    peft.save_pretrained(str(tmp_path / "p"))
    config = {**lora.config}
    lora.load(config, load_file(tmp_path / "p" / "adapter_model.safetensors"))
    ours, theirs = both(model, peft.eval(), make_batch().groups)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@torch.no_grad()
def test_switched_off_it_is_the_base(tmp_path: Path):
    twin, (model, lora) = save_model(tmp_path, "llama", tied=False), build(tmp_path)
    randomise(lora)
    with lora.switched_off():
        ours, base = both(model, twin, make_batch().groups)
    torch.testing.assert_close(ours, base, atol=1e-5, rtol=0)
    assert (both(model, twin, make_batch().groups)[0] - base).abs().max() > 1e-2


def test_gradients_equal_those_of_peft_and_do_not_depend_on_recompute(tmp_path: Path):
    twin, (model, lora) = save_model(tmp_path / "m", "llama", tied=True), build(tmp_path / "m")
    randomise(lora)
    write(tmp_path / "0001", lora)
    peft = PeftModel.from_pretrained(twin, tmp_path / "0001", is_trainable=True)
    gradients = []
    for recompute in (True, False):
        model.recompute = recompute
        ours, theirs = both(model, peft, make_batch().groups)
        gradients.append(torch.autograd.grad(ours.sum(), list(lora.weights.values())))
    theirs.sum().backward()
    twins = {name.replace(".default", ""): weight.grad for name, weight in peft.named_parameters()}
    for name, with_recompute, without in zip(lora.weights, *gradients, strict=True):
        assert torch.equal(with_recompute, without), name
        torch.testing.assert_close(with_recompute, twins[name], atol=1e-4, rtol=1e-4)


def test_the_first_weights_depend_on_seed_and_name_alone(tmp_path: Path):
    save_model(tmp_path, "llama", tied=True)
    few, many = build(tmp_path, ("v_proj",))[1], build(tmp_path)[1]
    few.start(1)
    many.start(1)
    for name, weight in few.weights.items():
        assert torch.equal(weight, many.weights[name])
        assert bool(weight.any()) == (".lora_A." in name)
    many.start(2)
    assert not any(torch.equal(few.weights[name], many.weights[name]) for name in few.weights if ".lora_A." in name)


def test_weights_of_other_settings_are_refused(tmp_path: Path):
    save_model(tmp_path, "llama", tied=True)
    _, lora = build(tmp_path)
    with pytest.raises(ValueError, match="this run trains"):
        lora.load({**lora.config, "r": 8}, lora.tensors())
    with pytest.raises(ValueError, match="another model"):
        lora.load(lora.config, {})
    with pytest.raises(ValueError, match="LoRA targets lm_head"):
        build(tmp_path, ("lm_head",))
