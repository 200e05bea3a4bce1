"""Core attention over a packed bin: every sample sees its group's prompt and, causally, itself.

    part = [prompt | sample | sample | ...]     prompt: causal     sample: causal over keys [prompt | own tokens]

It takes the place of megatron's DotProductAttention in the local spec and gets the bin where megatron passes the
attention mask: as `Spans` for torch's variable-length flash kernel (CUDA, bfloat16), whose memory grows with the tokens
alone; as plain blocks for SDPA, one padded batch a part, elsewhere.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from tttdd.workers.packing import Block

# Tensor names: T tokens of a bin or part, S samples, L longest sample, P prompt, K keys (a prompt's once a sample),
# H query heads, G key heads, d head size.

CAUSAL = (-1, 0)
"""As a window: all keys to the left, none to the right of the query, the last query at the last key."""
REPEAT_KEYS = False
"""Whether the flash kernel needs a key head for every query head; benchmarks/trainer_parity.py tells."""
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
"""Newer releases of torch want to be told that there are fewer key heads; older ones take them as they are."""


class Spans:
    """A bin's sequences as tensors of the device: made once for all layers and their recomputation.

    The queries lie one sequence after the other in the bin's own rows; the keys are gathered, the prompt's again for
    each of its samples.
    """

    def __init__(self, blocks: tuple[Block, ...], device: torch.device) -> None:
        sequences = list(_sequences(blocks))
        queries, keys = ([len(rows) for rows in side] for side in zip(*sequences, strict=True))
        starts = [0, *accumulate(keys)]
        own = [torch.arange(end - length, end) for length, end in zip(queries, starts[1:], strict=True)]
        self.rows_K = torch.cat([rows for _, rows in sequences]).to(device)
        self.own_T = torch.cat(own).to(device)
        """Place among the keys of each row's own key; those in front of a sample are copies of its prompt's."""
        copies: dict[int, list[int]] = {}
        for (_, rows), query, length, start in zip(sequences, queries, keys, starts[:-1], strict=True):
            if query < length:
                copies.setdefault(int(rows[0]), []).append(start)
        prompts = _prompts(blocks)
        self._shared = [
            (
                slice(first, first + prompts[first]),
                (torch.tensor(at)[:, None] + torch.arange(prompts[first])).to(device),
            )
            for first, at in copies.items()
        ]
        self.query_ends, self.key_ends = _ends(queries, device), _ends(keys, device)
        self.longest_query, self.longest_key = max(queries), max(keys)

    def gather(self, tensor_TGd: torch.Tensor) -> torch.Tensor:
        """[T, G, d] -> [K, G, d]"""
        return _Gather.apply(tensor_TGd, self)

    def gathered_gradient(self, grad_KGd: torch.Tensor) -> torch.Tensor:
        """The gradient [T, G, d] of what was gathered.  No atomic additions: the same sum in every run."""
        grad_TGd = grad_KGd.index_select(0, self.own_T)
        for prompt, places_SP in self._shared:
            copies = grad_KGd.index_select(0, places_SP.flatten()).unflatten(0, places_SP.shape)
            grad_TGd[prompt] += copies.sum(0)
        return grad_TGd


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor_TGd, spans):
        ctx.spans = spans
        return tensor_TGd.index_select(0, spans.rows_K)

    @staticmethod
    def backward(ctx, grad_KGd):
        return ctx.spans.gathered_gradient(grad_KGd), None


class PackedAttention(torch.nn.Module):
    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self._scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: tuple[Block, ...] | Spans,
        **_: Any,
    ) -> torch.Tensor:
        """Query [T, 1, H, d], key and value [T, 1, G, d] -> [T, 1, H d]."""
        if isinstance(attention_mask, Spans):
            return spanned(query[:, 0], key[:, 0], value[:, 0], attention_mask, self._scale).flatten(1)[:, None]
        lengths = [block.tokens for block in attention_mask]
        pieces = zip(attention_mask, *(tensor[:, 0].split(lengths) for tensor in (query, key, value)), strict=True)
        out_THd = torch.cat([out for block, q, k, v in pieces for out in self._part(block, q, k, v)])
        return out_THd.flatten(1)[:, None]

    def _part(self, block: Block, q_THd: torch.Tensor, k_TGd: torch.Tensor, v_TGd: torch.Tensor) -> list[torch.Tensor]:
        """Outputs of a part's stretches, in their order."""
        prompt, lengths = block.prompt, [length for length in block.samples if length]
        q_prompt, k_prompt, v_prompt = q_THd[:prompt], k_TGd[:prompt], v_TGd[:prompt]
        out = [self._attend(q_prompt[None], k_prompt[None], v_prompt[None])[0]]
        if lengths:
            q_SLHd, k_SLGd, v_SLGd = (_padded(tensor[prompt:], lengths) for tensor in (q_THd, k_TGd, v_TGd))
            out_SLHd = self._attend(q_SLHd, _after(k_prompt, k_SLGd), _after(v_prompt, v_SLGd))
            out += [rows[:length] for rows, length in zip(out_SLHd, lengths, strict=True)]
        return out

    def _attend(self, q_SLHd: torch.Tensor, k_SKGd: torch.Tensor, v_SKGd: torch.Tensor) -> torch.Tensor:
        """Causal, the last query at the last key.  Padding lies behind each sample's end, so causality hides it."""
        q, k, v = (tensor.transpose(1, 2) for tensor in (q_SLHd, k_SKGd, v_SKGd))
        queries, keys = q.shape[2], k.shape[2]
        square = queries == keys  # then no mask has to be made
        mask_LK = None if square else torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        out = scaled_dot_product_attention(q, k, v, mask_LK, is_causal=square, scale=self._scale, enable_gqa=True)
        return out.transpose(1, 2)


def spanned(q_THd: torch.Tensor, k_TGd: torch.Tensor, v_TGd: torch.Tensor, spans: Spans, scale: float) -> torch.Tensor:
    """Attention [T, H, d] over the sequences of `spans` by the variable-length flash kernel."""
    k_KGd, v_KGd = spans.gather(k_TGd), spans.gather(v_TGd)
    if REPEAT_KEYS:
        k_KGd, v_KGd = (x.repeat_interleave(q_THd.shape[1] // x.shape[1], 1) for x in (k_KGd, v_KGd))
    return varlen_attn(
        q_THd,
        k_KGd,
        v_KGd,
        spans.query_ends,
        spans.key_ends,
        spans.longest_query,
        spans.longest_key,
        scale=scale,
        window_size=CAUSAL,
        **GROUPED,
    )  # pyright: ignore[reportReturnType]  # a tuple only when asked for one


def _sequences(blocks: tuple[Block, ...]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Rows of the bin that ask, and that are asked: of each prompt, then of each of its samples."""
    start = 0
    for block in blocks:
        prompt = torch.arange(start, start + block.prompt)
        start += block.prompt
        yield prompt, prompt
        for length in filter(None, block.samples):
            own = torch.arange(start, start + length)
            start += length
            yield own, torch.cat([prompt, own])


def _prompts(blocks: tuple[Block, ...]) -> dict[int, int]:
    """Length of each prompt by its first row."""
    starts = accumulate((block.tokens for block in blocks), initial=0)
    return {start: block.prompt for start, block in zip(starts, blocks, strict=False)}


def _ends(lengths: list[int], device: torch.device) -> torch.Tensor:
    """[0, end of the first sequence, end of the second, ...], int32."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def _padded(tensor: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Stretches of rows as a batch [S, L, ...], zeros behind the shorter ones."""
    return pad_sequence(list(tensor.split(lengths)), batch_first=True)


def _after(prompt_PGd: torch.Tensor, own_SLGd: torch.Tensor) -> torch.Tensor:
    """The prompt's rows in front of each sample's own."""
    return torch.cat([prompt_PGd.expand(len(own_SLGd), *prompt_PGd.shape), own_SLGd], 1)
