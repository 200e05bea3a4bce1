"""LoRA around megatron's fused linears, one A and B per projection of the transformers model.

    y = base(x) + alpha / rank * (x A^T) B^T          base frozen, A and B float32, B starts at zero

The fused q, k, v and gate, up outputs are put together from their projections' parts, so that export to the PEFT layout
is a rename and `peft` reads what is written here.  Of a model in shards, a linear that divides its outputs divides B,
one that divides its inputs divides A, and only the narrow x A^T is exchanged; files hold the whole either way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch.nn.functional import linear

from tttdd.workers.architecture import Architecture
from tttdd.workers.model import LanguageModel
from tttdd.workers.parallel import Group, sparingly

with sparingly():
    from megatron.core.tensor_parallel import (
        copy_to_tensor_model_parallel_region,
        reduce_from_tensor_model_parallel_region,
    )

# Tensor names: R rank, I and O input and output size of a linear (of this shard), J trained projections of it.


class Fused(msgspec.Struct, frozen=True, kw_only=True):
    """A megatron linear and the projections of the transformers model that it computes at once."""

    block: str
    """Part of the layer, in PEFT's names."""
    attribute: str
    widths: dict[str, int]
    """Output size of each projection, in a shard."""
    repeats: int = 1
    """How often the outputs repeat [part of each projection]: q, k and v lie by key-value head."""
    cuts_outputs: bool
    """Whether shards divide the outputs; else they divide the inputs."""


class LoraLinear(torch.nn.Module):
    """A megatron linear with LoRA on some of the projections that it fuses."""

    def __init__(self, base: Any, fused: Fused, rank: int, scale: float, targets: set[str]) -> None:
        super().__init__()
        self.base, self.enabled = base, True
        self._widths, self._scale, self._cuts_outputs = fused.widths, scale, fused.cuts_outputs
        inputs, device = base.weight.shape[1], base.weight.device
        trained = {name: width for name, width in fused.widths.items() if name in targets}
        self._trained = tuple(trained)  # a ParameterDict has an order of its own
        self.A = torch.nn.ParameterDict({name: torch.zeros(rank, inputs, device=device) for name in trained})
        self.B = torch.nn.ParameterDict({name: torch.zeros(trained[name], rank, device=device) for name in trained})
        self._order = _fused_order(fused).to(device)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        y, bias = self.base(x)
        if not self.enabled:
            return y, bias
        up_OJR = self._up(x.dtype)  # one product for all projections, added to y as it is made: y can be 2 GB
        out = torch.addmm(y.flatten(0, -2), self._down(x).flatten(0, -2), up_OJR.T)
        return out.view(y.shape), bias

    def _down(self, x: torch.Tensor) -> torch.Tensor:
        """[..., J R], the whole of it on every shard, and its gradient as well."""
        down = linear(x, torch.cat([self.A[name] for name in self._trained]).to(x.dtype))
        if self._cuts_outputs:
            return copy_to_tensor_model_parallel_region(down) * self._scale
        return reduce_from_tensor_model_parallel_region(down) * self._scale

    def _up(self, dtype: torch.dtype) -> torch.Tensor:
        """[O, J R]: B of each projection on its own columns, its rows where the fused linear has them."""
        none = self.B[self._trained[0]].new_empty
        blocks = [self.B[name] if name in self._trained else none(width, 0) for name, width in self._widths.items()]
        return torch.block_diag(*blocks).index_select(0, self._order).to(dtype)


def _fused_order(fused: Fused) -> torch.Tensor:
    """For each output of the fused linear, its place when the projections lie one after the other."""
    places = torch.arange(sum(fused.widths.values())).split(list(fused.widths.values()))
    return torch.cat([part.unflatten(0, (fused.repeats, -1)) for part in places], 1).flatten()


class Adapters:
    """Every LoRA weight of a model, by its PEFT name.  Puts itself around the linears of `model`.

    Raises ValueError for a target that the model does not have.
    """

    def __init__(self, model: LanguageModel, rank: int, alpha: int, targets: tuple[str, ...]) -> None:
        self.shards: Group = model.parallel.shards
        self._linears: list[LoraLinear] = []
        self.weights: dict[str, torch.nn.Parameter] = {}
        self.cuts: dict[str, int | None] = {}
        """Dimension along which the shards divide a weight; None where each has the whole."""
        fusions = _fusions(model.architecture, self.shards.size)
        known = {name for fused in fusions for name in fused.widths}
        if not targets or set(targets) - known:
            raise ValueError(
                f"LoRA targets {', '.join(targets) or '(none)'}: expected some of {', '.join(sorted(known))}"
            )
        self.config = _peft_config(rank, alpha, targets)
        for number, layer in enumerate(model.layers):
            for fused in fusions:
                if set(fused.widths) & set(targets):
                    owner = getattr(layer, "self_attention" if fused.block == "self_attn" else fused.block)
                    wrapped = LoraLinear(getattr(owner, fused.attribute), fused, rank, alpha / rank, set(targets))
                    setattr(owner, fused.attribute, wrapped)
                    self._register(f"base_model.model.model.layers.{number}.{fused.block}", wrapped, fused.cuts_outputs)

    def _register(self, prefix: str, wrapped: LoraLinear, cuts_outputs: bool) -> None:
        self._linears.append(wrapped)
        for name in wrapped.A:
            down, up = f"{prefix}.{name}.lora_A.weight", f"{prefix}.{name}.lora_B.weight"
            self.weights |= {down: wrapped.A[name], up: wrapped.B[name]}
            self.cuts |= {down: None, up: 0} if cuts_outputs else {down: 1, up: None}

    def cut(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """This shard's part of something of a weight's shape, on the weight's device."""
        return self.shards.cut(whole, self.cuts[name]).to(self.weights[name].device)

    def whole(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """What `cut` was given, for a file; all shards must ask for it."""
        return self.shards.join(part.detach(), self.cuts[name]).cpu().contiguous()

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
                rank, inputs = weight.shape
                inputs *= self.shards.size if self.cuts[name] == 1 else 1
                drawn = (torch.rand((rank, inputs), generator=generator) * 2 - 1) / inputs**0.5
                weight.copy_(self.cut(name, drawn))

    def forget_gradients(self) -> None:
        for weight in self.weights.values():
            weight.grad = None

    @torch.no_grad()
    def load(self, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Raises ValueError for weights of another rank, alpha, target set or model."""
        kept = ("r", "lora_alpha", "target_modules")
        if {key: config.get(key) for key in kept} != {key: self.config[key] for key in kept}:
            raise ValueError(f"the release has {config}, this run trains {self.config}")
        if set(tensors) != set(self.weights):
            raise ValueError("the release's LoRA weights belong to another model")
        for name, weight in self.weights.items():
            weight.copy_(self.cut(name, tensors[name]))

    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights for a file, in the PEFT layout; all shards must ask for them."""
        return {name: self.whole(name, weight) for name, weight in self.weights.items()}


def _fusions(shape: Architecture, shards: int) -> list[Fused]:
    """The fused linears of a layer."""
    queries = shape.num_attention_heads * shape.head_dim // shards
    keys = shape.num_key_value_heads * shape.head_dim // shards
    wide, hidden = shape.intermediate_size // shards, shape.hidden_size
    return [
        Fused(
            block="self_attn",
            attribute="linear_qkv",
            widths={"q_proj": queries, "k_proj": keys, "v_proj": keys},
            repeats=shape.num_key_value_heads // shards,
            cuts_outputs=True,
        ),
        Fused(block="self_attn", attribute="linear_proj", widths={"o_proj": hidden}, cuts_outputs=False),
        Fused(block="mlp", attribute="linear_fc1", widths={"gate_proj": wide, "up_proj": wide}, cuts_outputs=True),
        Fused(block="mlp", attribute="linear_fc2", widths={"down_proj": hidden}, cuts_outputs=False),
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
