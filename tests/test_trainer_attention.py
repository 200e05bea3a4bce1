"""The packed attention of CUDA, its kernel played by a plain loop: the same numbers as the CPU's own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_trainer_lora import build, randomise
from torch.nn.functional import scaled_dot_product_attention
from trainer_models import make_batch, save_model

from tttdd.domain.batch import Batch
from tttdd.workers import attention
from tttdd.workers.attention import Spans
from tttdd.workers.packing import Block, lay_out, pack

CPU = torch.device("cpu")
BLOCKS = (Block(3, (2, 0, 4)), Block(2, ()), Block(1, (0,)), Block(4, (5,)))


def varlen(q: Any, k: Any, v: Any, queries: Any, keys: Any, *_: int, scale: float, window_size: Any, **__: Any) -> Any:
    """What the flash kernel does, sequence by sequence; causal from the bottom right."""
    assert window_size == (-1, 0)
    out = []
    for start, end, first, last in zip(queries, queries[1:], keys, keys[1:], strict=False):
        q_HLd, k_GKd, v_GKd = q[start:end].transpose(0, 1), k[first:last].transpose(0, 1), v[first:last].transpose(0, 1)
        mask = torch.ones(end - start, last - first, dtype=torch.bool).tril(last - first - (end - start))
        out.append(
            scaled_dot_product_attention(q_HLd, k_GKd, v_GKd, mask, scale=scale, enable_gqa=True).transpose(0, 1)
        )
    return torch.cat(out)


def test_each_sequence_asks_its_own_rows_and_sees_its_prompt_and_itself():
    spans = Spans(BLOCKS, CPU)
    assert spans.query_ends.tolist() == [0, 3, 5, 9, 11, 12, 16, 21]
    assert spans.key_ends.tolist() == [0, 3, 8, 15, 17, 18, 22, 31]
    keys = spans.rows_K.tolist()
    assert keys[:15] == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 8]
    assert keys[22:] == [12, 13, 14, 15, 16, 17, 18, 19, 20]
    assert (spans.longest_query, spans.longest_key) == (5, 9)
    assert torch.equal(spans.rows_K[spans.own_T], torch.arange(21))


def test_the_gradient_of_gathered_keys_is_that_of_plain_indexing():
    spans = Spans(BLOCKS, CPU)
    ours, plain = (torch.zeros(21, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    upstream = torch.randn(31, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (spans.gather(ours) * upstream).sum().backward()
    (plain[spans.rows_K] * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, plain.grad)


@pytest.mark.parametrize("repeat", [False, True])
def test_logprobs_and_gradients_by_spans_equal_those_by_padded_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeat: bool
):
    save_model(tmp_path / "m", "qwen3", tied=True)
    model, lora = build(tmp_path / "m")
    randomise(lora)
    monkeypatch.setattr(attention, "varlen_attn", varlen)
    monkeypatch.setattr(attention, "REPEAT_KEYS", repeat)
    results = []
    for model.flash in (False, True):
        (logprobs, *gradients) = run(model, list(lora.weights.values()), make_batch(samples=6))
        results.append([logprobs, *gradients])
    for padded, spanned in zip(*results, strict=True):
        torch.testing.assert_close(spanned, padded, atol=2e-5, rtol=1e-4)


def run(model: Any, weights: list[torch.nn.Parameter], batch: Batch) -> list[torch.Tensor]:
    """Log-probs of a batch in one bin, and the gradients of their sum."""
    (parts,) = pack(batch.groups, 1000)
    logprobs = model.logprobs(lay_out(batch.groups, parts), 7)
    return [logprobs.detach(), *torch.autograd.grad(logprobs.sum(), weights)]
