"""Core attention over a packed bin: every sample sees its group's prompt and, causally, itself.

    part = [prompt | sample | sample | ...]     prompt: causal     samples of a part: one padded batch against
                                                                   keys [prompt | own tokens]

It takes the place of megatron's DotProductAttention in the local spec and gets the bin's blocks where megatron passes
the attention mask.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from tttdd.workers.packing import Block

# Tensor names: T tokens of a bin or part, S samples, L longest sample, K keys, H query heads, G key heads, d head size.


class PackedAttention(torch.nn.Module):
    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self._scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: tuple[Block, ...],
        **_: Any,
    ) -> torch.Tensor:
        """Query [T, 1, H, d], key and value [T, 1, G, d] -> [T, 1, H d]."""
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


def _padded(tensor: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Stretches of rows as a batch [S, L, ...], zeros behind the shorter ones."""
    return pad_sequence(list(tensor.split(lengths)), batch_first=True)


def _after(prompt_PGd: torch.Tensor, own_SLGd: torch.Tensor) -> torch.Tensor:
    """The prompt's rows in front of each sample's own."""
    return torch.cat([prompt_PGd.expand(len(own_SLGd), *prompt_PGd.shape), own_SLGd], 1)
