"""Useful floating-point operations of an optimizer step, and what a device could do at most.

    linears    2 P a token and pass, 3 passes (base, forward, gradient of the inputs)     P: weights of the layers
    attention  4 H d a query-key pair and layer, 4 passes' worth (base, forward, backward counts twice)
    output     2 V D a trained token and pass, 3 passes

Recomputation and LoRA's own products are not counted: MFU is the useful operations a second over all devices' peak.
"""

from __future__ import annotations

import torch

from tttdd.workers.architecture import Architecture
from tttdd.workers.packing import Layout

PEAKS = {
    "GB200": 2.5e15,
    "B200": 2.25e15,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
}
"""Dense bfloat16 FLOP/s by a part of the device's name, as in NVIDIA's data sheets; the first that fits counts."""


def useful(shape: Architecture, layout: Layout) -> float:
    """Operations of a step on one bin: base pass, forward and backward."""
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    attention = shape.hidden_size * (2 * queries + 2 * keys)
    layer = attention + 3 * shape.hidden_size * shape.intermediate_size
    linears = 3 * 2 * layer * shape.num_hidden_layers * len(layout.tokens_T)
    pairs = 4 * 4 * queries * shape.num_hidden_layers * _pairs(layout)
    return linears + pairs + 3 * 2 * shape.vocab_size * shape.hidden_size * len(layout.rows_N)


def peak(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s of a device; None where it is not known."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def _pairs(layout: Layout) -> int:
    """Query-key pairs that attention looks at."""
    triangle = sum(block.prompt * (block.prompt + 1) // 2 for block in layout.blocks)
    samples = [(block.prompt, length) for block in layout.blocks for length in block.samples]
    return triangle + sum(length * prompt + length * (length + 1) // 2 for prompt, length in samples)
