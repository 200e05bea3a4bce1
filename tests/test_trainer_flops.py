"""Useful FLOPs: by hand for a small bin, and against the usual 6 N D rule of thumb for a large model."""

from __future__ import annotations

import pytest
import torch

from tttdd.domain.batch import Group, Sample
from tttdd.workers import flops
from tttdd.workers.architecture import Architecture
from tttdd.workers.packing import lay_out, pack

QWEN3_8B = Architecture(
    model_type="qwen3",
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
)


def bin_of(prompt: int, *lengths: int):
    groups = [Group([1] * prompt, [Sample([1] * n, [-1.0] * n, [True] * n, 0.0) for n in lengths])]
    return lay_out(groups, pack(groups, 10**6)[0])


def test_linears_attention_and_output_layer_are_counted_by_hand():
    layers = 36 * (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 12288)
    layout = bin_of(3, 3, 2)  # tokens 3 + 2 + 1, trained 5; pairs 6 + (4 + 5) + 4
    want = 6 * layers * 6 + 16 * 4096 * 36 * 19 + 6 * 151936 * 4096 * 5
    assert flops.useful(QWEN3_8B, layout) == want


def test_a_short_sequence_of_a_large_model_costs_six_flops_a_weight_and_token():
    weights = 8.19e9 - 151936 * 4096  # the embedding is only looked up
    assert flops.useful(QWEN3_8B, bin_of(1, 1000)) / (6 * weights * 1000) == pytest.approx(1, abs=0.03)


def test_what_a_cpu_could_do_at_most_is_not_known():
    assert flops.peak(torch.device("cpu"), torch.bfloat16) is None


def test_the_peak_is_known_by_the_name_of_the_device_in_bfloat16(monkeypatch: pytest.MonkeyPatch):
    for name, want in (("NVIDIA H200", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA L40S", 362e12), ("T4", None)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert flops.peak(torch.device("cuda", 0), torch.bfloat16) == want
    assert flops.peak(torch.device("cuda", 0), torch.float32) is None
