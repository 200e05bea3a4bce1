"""The loss of one optimizer step (TTT-Discover, arXiv:2601.16175; importance-weighted policy gradient with a base KL).

    diff_t = logq_t - logp_base_t          mean = average of diff over the trained tokens of the whole batch
    A'_t   = A + k (mean - diff_t)         constant with respect to the weights
    loss   = - sum_t exp(logp_t - logq_t) A'_t / (G R)

Only rows that predict a trained token reach the output layer, and those in chunks: the widest tensor is
[chunk, vocabulary], also for the gradient, which is taken while a chunk's logits are at hand.  The vocabulary may be
divided among shards; they then put the softmax together from each one's maximum, sum and share of the gradient.
"""

from __future__ import annotations

import torch

from tttdd.workers.parallel import ALONE, Group

# Tensor names: N trained tokens, C rows of a chunk, D hidden size, V vocabulary.


def chunked_logprobs(
    hidden_ND: torch.Tensor, weight_VD: torch.Tensor, targets_N: torch.Tensor, chunk: int, shards: Group = ALONE
) -> torch.Tensor:
    """Log-probs [N], float32, of `targets_N` under softmax(hidden @ weight.T); the weight gets no gradient.

    Each of `shards` holds its equal part of the weight's rows, and all of the rest; all get the same result.
    """
    return _ChunkedLogprobs.apply(hidden_ND, weight_VD, targets_N, chunk, shards)


class _ChunkedLogprobs(torch.autograd.Function):
    """d logp / d hidden = weight[target] - softmax @ weight: one row of D numbers a token is all that is kept."""

    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, targets_N, chunk, shards):
        parts = zip(hidden_ND.split(chunk), targets_N.split(chunk), strict=True)
        results = [_chunk(hidden, weight_VD, targets, ctx.needs_input_grad[0], shards) for hidden, targets in parts]
        ctx.save_for_backward(*(slope for _, slope in results if slope is not None))
        return torch.cat([logprobs for logprobs, _ in results])

    @staticmethod
    def backward(ctx, grad_N):
        slope_ND = torch.cat(ctx.saved_tensors)
        return (slope_ND * grad_N[:, None]).to(slope_ND.dtype), None, None, None, None


def _chunk(
    hidden_CD: torch.Tensor, weight_VD: torch.Tensor, targets_C: torch.Tensor, slope: bool, shards: Group
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs of one chunk and, when asked for, their derivative by the hidden rows."""
    rows_C, ours_C = _own_rows(targets_C, len(weight_VD), shards)
    logits_CV = _logits(hidden_CD, weight_VD)
    chosen_C = logits_CV.gather(1, rows_C[:, None])[:, 0] * ours_C
    top_C = shards.largest(logits_CV.amax(1))
    exp_CV = logits_CV.sub_(top_C[:, None]).exp_()  # in place: the logits are the largest tensor there is
    chosen_C, total_C = shards.sum(torch.stack([chosen_C, exp_CV.sum(1)]))
    logprobs_C = chosen_C - top_C - total_C.log()
    if not slope:
        return logprobs_C, None
    softmax_CV = exp_CV.div_(total_C[:, None]).to(weight_VD.dtype)
    return logprobs_C, shards.sum(weight_VD[rows_C] * ours_C[:, None] - softmax_CV @ weight_VD)


def _logits(hidden_CD: torch.Tensor, weight_VD: torch.Tensor) -> torch.Tensor:
    """In float32 from the start: bfloat16 would round a logit near 16 by up to 0.06, more than a step may move it."""
    if hidden_CD.device.type == "cuda" and weight_VD.dtype == torch.bfloat16:
        return torch.mm(hidden_CD, weight_VD.T, out_dtype=torch.float32)
    return torch.nn.functional.linear(hidden_CD.float(), weight_VD.float())


def _own_rows(targets_C: torch.Tensor, rows: int, shards: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """Row of each target among this shard's `rows`, and whether it is there at all."""
    places_C = targets_C - shards.index * rows
    ours_C = (places_C >= 0) & (places_C < rows)
    return places_C.clamp(0, rows - 1), ours_C


def policy_loss(
    logp_N: torch.Tensor,
    logq_N: torch.Tensor,
    diff_N: torch.Tensor,
    advantage_N: torch.Tensor,
    *,
    mean: float,
    kl_coef: float,
    rollouts_total: int,
) -> torch.Tensor:
    """One bin's share of the loss; the shares of a batch add up.  In float64, as the inputs but `logp_N` are."""
    weight_N = advantage_N + kl_coef * (mean - diff_N)
    ratio_N = (logp_N.double() - logq_N).exp()
    return -(ratio_N * weight_N).sum() / rollouts_total
