"""The trainer's model against transformers, with prompts shared and unshared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from trainer_models import TARGETS, VOCABULARY, make_batch, plain_logprobs, save_model

from tttdd.domain.batch import Batch, Group, Sample
from tttdd.workers.architecture import read_architecture
from tttdd.workers.lora import Adapters
from tttdd.workers.model import LanguageModel
from tttdd.workers.packing import lay_out, pack
from tttdd.workers.parallel import Seat, start


def ours(folder: Path) -> LanguageModel:
    return LanguageModel(folder, torch.float32, start(Seat(), 1, ()))


def all_trained(batch: Batch) -> list[Group]:
    def sample(one: Sample) -> Sample:
        return Sample(one.token_ids, one.logprobs, [True] * len(one.token_ids), one.advantage)

    return [Group(group.prompt_ids, [sample(one) for one in group.samples]) for group in batch.groups]


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_logprobs_equal_those_of_transformers(tmp_path: Path, family: str, tied: bool):
    twin, groups = save_model(tmp_path, family, tied=tied), all_trained(make_batch())
    model = ours(tmp_path)
    with torch.no_grad():
        layout = lay_out([Group([3, 1, 4, 1, 5], [Sample([9, 2], [0.0] * 2, [True] * 2, 0.0)])], pack_one())
        logits = model._hidden(layout) @ model.output_VD.T
        torch.testing.assert_close(logits, twin(torch.tensor([[3, 1, 4, 1, 5, 9]])).logits[0], atol=1e-5, rtol=0)
        for parts in pack(groups, 40):
            got = model.logprobs(lay_out(groups, parts), 7)
            pairs = [
                (groups[part.group], groups[part.group].samples[index]) for part in parts for index in part.samples
            ]
            want = torch.cat([plain_logprobs(twin, group.prompt_ids, one.token_ids) for group, one in pairs])
            torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def pack_one():
    return pack([Group([0] * 5, [Sample([0, 0], [0.0] * 2, [True] * 2, 0.0)])], 100)[0]


def test_weights_in_several_files_are_read_through_their_index(tmp_path: Path):
    twin = save_model(tmp_path, "qwen3", tied=False, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    place = ours(tmp_path).gpt.decoder.layers[1].mlp.linear_fc2.weight
    assert torch.equal(place, twin.state_dict()["model.layers.1.mlp.down_proj.weight"])


def test_rope_theta_is_read_from_old_and_new_configurations(tmp_path: Path):
    save_model(tmp_path, "llama", tied=True)
    config = json.loads((tmp_path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    for changed in ({"rope_theta": 5e5}, {"rope_parameters": {**rope, "rope_theta": 5e5}}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
        assert read_architecture(tmp_path).rope_theta == 5e5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}}, "RoPE scaling"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None}, "RoPE scaling"),
        ({"attention_bias": True}, "attention biases"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_what_is_not_implemented_is_refused(tmp_path: Path, change: dict, words: str):
    save_model(tmp_path, "llama", tied=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ValueError, match=words):
        read_architecture(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("model.norm.weight"), "missing: model.norm.weight"),
        (lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(4)}), "no place"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), "expected"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, change, words: str):
    save_model(tmp_path, "llama", tied=True)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=words):
        ours(tmp_path)


class Largest(TorchDispatchMode):
    """Notes the most numbers that any tensor made under it has."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, list | tuple) else (out,):
            if isinstance(tensor, torch.Tensor) and func is not torch.ops.aten.t.default:
                self.numbers = max(self.numbers, tensor.numel())
        return out


def test_no_tensor_of_all_tokens_by_the_vocabulary_is_ever_made(tmp_path: Path):
    save_model(tmp_path, "llama", tied=True)
    model, groups = ours(tmp_path), all_trained(make_batch(samples=8))
    layout = lay_out(groups, pack(groups, 1000)[0])
    assert len(layout.rows_N) > 60
    hidden = torch.randn(len(layout.rows_N), 48, requires_grad=True)
    model._hidden = lambda layout: hidden.new_zeros(len(layout.tokens_T), 48).index_put((layout.rows_N,), hidden)
    with Largest() as largest:
        model.logprobs(layout, 5).sum().backward()
    assert hidden.grad is not None
    assert largest.numbers <= max(5 * VOCABULARY, len(layout.tokens_T) * 48, VOCABULARY * 48)
    assert len(layout.rows_N) * VOCABULARY > largest.numbers


def test_a_layer_is_computed_again_to_its_end_so_that_it_holds_on_to_nothing(tmp_path: Path):
    save_model(tmp_path, "qwen3", tied=True)
    model, groups = ours(tmp_path), all_trained(make_batch())
    Adapters(model, 4, 8, TARGETS).start(0)
    ended: list[int] = []
    for number, layer in enumerate(model.layers):
        layer.register_forward_hook(lambda *_, number=number: ended.append(number))
    model.logprobs(lay_out(groups, pack(groups, 1000)[0]), 100).sum().backward()
    assert ended == [0, 1, 1, 0]
