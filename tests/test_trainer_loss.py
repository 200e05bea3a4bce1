"""The loss against its formula in plain float64, and the chunked log-probs against the naive ones."""

from __future__ import annotations

import math

import pytest
import torch

from tttdd.workers.loss import chunked_logprobs, policy_loss


def rows(seed: int = 0, count: int = 13) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 6, generator=generator)
    return hidden, torch.randn(40, 6, generator=generator), torch.randint(0, 40, (count,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 5, 13, 100])
def test_chunked_logprobs_and_their_gradient_equal_the_naive_ones(chunk: int):
    hidden, weight, targets = rows()
    chunked, naive = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    got = chunked_logprobs(chunked, weight, targets, chunk)
    want = (naive @ weight.T).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    upstream = torch.linspace(-1, 2, len(targets))
    (got * upstream).sum().backward()
    (want * upstream).sum().backward()
    torch.testing.assert_close(chunked.grad, naive.grad, atol=1e-5, rtol=1e-5)


def test_logprobs_of_very_large_logits_stay_finite():
    hidden, weight, targets = rows()
    assert torch.isfinite(chunked_logprobs(hidden * 1e4, weight, targets, 4)).all()


def test_the_loss_is_the_formula_summed_over_bins():
    logp, logq, base = [[-1.0, -2.5], [-0.3]], [[-1.2, -2.0], [-0.4]], [[-1.5, -2.25], [-0.7]]
    advantage, k, total = [[2.0, 2.0], [-0.5]], 0.1, 6
    diffs = [[q - b for q, b in zip(*pair, strict=True)] for pair in zip(logq, base, strict=True)]
    mean = math.fsum(d for bin_ in diffs for d in bin_) / 3
    want = 0.0
    for b in range(2):
        for t in range(len(logp[b])):
            weight = advantage[b][t] + k * (mean - diffs[b][t])
            want -= math.exp(logp[b][t] - logq[b][t]) * weight / total
    tensors = [[torch.tensor(x[b], dtype=torch.float64) for x in (logp, logq, diffs, advantage)] for b in range(2)]
    got = sum(policy_loss(*bin_, mean=mean, kl_coef=k, rollouts_total=total).item() for bin_ in tensors)
    assert got == pytest.approx(want, abs=1e-14)


def test_the_gradient_by_a_logprob_is_minus_ratio_times_weight():
    logp = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    logq, diff = torch.tensor([-1.5, -2.0]).double(), torch.tensor([0.25, -0.25]).double()
    policy_loss(logp, logq, diff, torch.tensor([3.0, 3.0]).double(), mean=0.0, kl_coef=0.4, rollouts_total=4).backward()
    want = torch.tensor([-math.exp(0.5) * (3 - 0.1) / 4, -(3 + 0.1) / 4], dtype=torch.float64)
    torch.testing.assert_close(logp.grad, want)
