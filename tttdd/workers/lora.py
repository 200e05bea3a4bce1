"""LoRA around megatron's fused linears, one A and B per projection of the transformers model.

    y = base(x) + alpha / rank * (x A^T) B^T          base frozen, A and B float32, B starts at zero

The fused q, k, v and gate, up outputs are put together from their projections' parts, so that export to the PEFT layout
is a rename and `peft` reads what is written here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import linear

from tttdd.workers.model import Architecture, LanguageModel

# Tensor names: R rank, I and O input and output size of a projection, J projections of a fused linear.


class LoraLinear(torch.nn.Module):
    """A megatron linear with LoRA on some of the projections that it fuses.

    `widths` gives each projection's output size; with `blocks` > 1 the fused output repeats [part of each projection]
    that many times, as megatron lays q, k and v out by key-value head.
    """

    def __init__(
        self, base: Any, widths: dict[str, int], blocks: int, rank: int, scale: float, targets: set[str]
    ) -> None:
        super().__init__()
        self.base, self.enabled = base, True
        self._widths, self._blocks, self._rank, self._scale = widths, blocks, rank, scale
        inputs, device = base.weight.shape[1], base.weight.device
        trained = [name for name in widths if name in targets]
        self.A = torch.nn.ParameterDict({name: torch.zeros(rank, inputs, device=device) for name in trained})
        self.B = torch.nn.ParameterDict({name: torch.zeros(widths[name], rank, device=device) for name in trained})

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        y, bias = self.base(x)
        return (y + self._delta(x) if self.enabled else y), bias

    def _delta(self, x: torch.Tensor) -> torch.Tensor:
        down_JR = linear(x, torch.cat(list(self.A.values())).to(x.dtype)) * self._scale
        parts = dict(zip(self.A, down_JR.split(self._rank, -1), strict=True))
        outs = [self._up(name, parts.get(name), x) for name in self._widths]
        if len(outs) == 1:
            return outs[0]
        return torch.cat([out.unflatten(-1, (self._blocks, -1)) for out in outs], -1).flatten(-2)

    def _up(self, name: str, down: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
        if down is None:
            return x.new_zeros(*x.shape[:-1], self._widths[name])
        return linear(down, self.B[name].to(x.dtype))


class Adapters:
    """Every LoRA weight of a model, by its PEFT name.  Puts itself around the linears of `model`.

    Raises ValueError for a target that the model does not have.
    """

    def __init__(self, model: LanguageModel, rank: int, alpha: int, targets: tuple[str, ...]) -> None:
        self._linears: list[LoraLinear] = []
        self.weights: dict[str, torch.nn.Parameter] = {}
        known = {name for _, _, widths, _ in _fused(model.architecture) for name in widths}
        if not targets or set(targets) - known:
            raise ValueError(
                f"LoRA targets {', '.join(targets) or '(none)'}: expected some of {', '.join(sorted(known))}"
            )
        self.config = _peft_config(rank, alpha, targets)
        for number, layer in enumerate(model.layers):
            for block, attribute, widths, blocks in _fused(model.architecture):
                if set(widths) & set(targets):
                    owner = getattr(layer, "self_attention" if block == "self_attn" else block)
                    wrapped = LoraLinear(getattr(owner, attribute), widths, blocks, rank, alpha / rank, set(targets))
                    setattr(owner, attribute, wrapped)
                    self._register(f"base_model.model.model.layers.{number}.{block}", wrapped)

    def _register(self, prefix: str, wrapped: LoraLinear) -> None:
        self._linears.append(wrapped)
        for name in wrapped.A:
            self.weights[f"{prefix}.{name}.lora_A.weight"] = wrapped.A[name]
            self.weights[f"{prefix}.{name}.lora_B.weight"] = wrapped.B[name]

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """The base model, while the context lasts."""
        for wrapped in self._linears:
            wrapped.enabled = False
        try:
            yield
        finally:
            for wrapped in self._linears:
                wrapped.enabled = True

    @torch.no_grad()
    def start(self, seed: int) -> None:
        """Untrained weights: B zero, A uniform as peft draws it, each from its own seed so that no order matters."""
        for name, weight in self.weights.items():
            weight.zero_()
            if ".lora_A." in name:
                digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
                generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))
                weight.copy_((torch.rand(weight.shape, generator=generator) * 2 - 1) / weight.shape[1] ** 0.5)

    @torch.no_grad()
    def load(self, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Raises ValueError for weights of another rank, alpha, target set or model."""
        kept = ("r", "lora_alpha", "target_modules")
        if {key: config.get(key) for key in kept} != {key: self.config[key] for key in kept}:
            raise ValueError(f"the release has {config}, this run trains {self.config}")
        if set(tensors) != set(self.weights):
            raise ValueError("the release's LoRA weights belong to another model")
        for name, weight in self.weights.items():
            weight.copy_(tensors[name])

    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights for a file, in the PEFT layout."""
        return {name: weight.detach().cpu().contiguous() for name, weight in self.weights.items()}


def _fused(shape: Architecture) -> list[tuple[str, str, dict[str, int], int]]:
    """Per fused linear: block of the layer, attribute there, output sizes of its projections, repeated blocks."""
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    wide, hidden = shape.intermediate_size, shape.hidden_size
    qkv = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    return [
        ("self_attn", "linear_qkv", qkv, shape.num_key_value_heads),
        ("self_attn", "linear_proj", {"o_proj": hidden}, 1),
        ("mlp", "linear_fc1", {"gate_proj": wide, "up_proj": wide}, 1),
        ("mlp", "linear_fc2", {"down_proj": hidden}, 1),
    ]


def _peft_config(rank: int, alpha: int, targets: tuple[str, ...]) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(targets),
    }
