"""A dense decoder for inference on a CPU: Qwen3 and Llama, float32, one function for prefill, decoding and scoring.

    tokens -> embed -> layers x (norm, qkv, rope, attend, out; norm, gate/up, down) -> norm -> head

Who calls decides what `attend` is: a causal prompt, or rows that each look at a shared prefix and their own suffix.
Activations are feature-major, because `weight @ x_DN` is the fastest form of these products for few columns.

Shape suffixes: D hidden, E heads x head size, F feed-forward, V vocabulary, N tokens or rows, H query heads,
K key heads, C head size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries_NHC, keys_NKC, values_NKC) -> attended_NHC"""


class Shape(msgspec.Struct, frozen=True):
    """What a config.json says of the architecture."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_size: int
    context: int
    eps: float
    rope_theta: float
    end_ids: frozenset[int]
    """Tokens that end a completion."""


class Layer(NamedTuple):
    attention_norm_D: Tensor
    qkv_ED: Tensor
    qk_norm_HC: Tensor | None
    """Norm weights of the query heads, then of the key heads (Qwen3)."""
    out_DE: Tensor
    feed_norm_D: Tensor
    gate_up_FD: Tensor
    down_DF: Tensor


class Weights(NamedTuple):
    shape: Shape
    embedding_VD: Tensor
    layers: list[Layer]
    norm_D: Tensor
    head_VD: Tensor


def read_shape(folder: Path) -> Shape:
    """Raises ValueError for an architecture that this decoder does not compute."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    _refuse_other_architectures(config, rope)
    heads = config["num_attention_heads"]
    return Shape(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        key_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        context=config["max_position_embeddings"],
        eps=config["rms_norm_eps"],
        rope_theta=rope.get("rope_theta") or config.get("rope_theta", 10000.0),
        end_ids=_end_ids(folder, config),
    )


def _refuse_other_architectures(config: dict[str, Any], rope: dict[str, Any]) -> None:
    kind = config.get("model_type")
    if kind not in ("llama", "qwen3"):
        raise ValueError(f"the embedded engine serves llama and qwen3 models, not {kind!r}")
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling != "default":
        raise ValueError(f"the embedded engine does not compute rope scaling {scaling!r}")
    for switch in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if config.get(switch):
            raise ValueError(f"the embedded engine does not compute {switch}")


def _end_ids(folder: Path, config: dict[str, Any]) -> frozenset[int]:
    generation = folder / "generation_config.json"
    settings = [config, json.loads(generation.read_text()) if generation.exists() else {}]
    ids: set[int] = set()
    for setting in settings:
        end = setting.get("eos_token_id")
        ids |= set(end if isinstance(end, list) else [] if end is None else [end])
    return frozenset(ids)


def load(folder: Path) -> Weights:
    """The base model of a transformers directory, in float32."""
    shape = read_shape(folder)
    tensors = _tensors(folder)

    def take(*names: str) -> Tensor:
        return torch.cat([tensors.pop(f"{name}.weight") for name in names]).float()

    layers = [_layer(take, f"model.layers.{index}", shape, tensors) for index in range(shape.layers)]
    embedding = take("model.embed_tokens")
    head = take("lm_head") if "lm_head.weight" in tensors else embedding
    return Weights(shape, embedding, layers, take("model.norm"), head)


def _tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for part in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(part)
    return tensors


def _layer(take: Callable[..., Tensor], name: str, shape: Shape, tensors: dict[str, Tensor]) -> Layer:
    attention, feed = f"{name}.self_attn", f"{name}.mlp"
    qk_norm = None
    if f"{attention}.q_norm.weight" in tensors:
        query_C, key_C = take(f"{attention}.q_norm"), take(f"{attention}.k_norm")
        qk_norm = torch.cat([query_C.expand(shape.heads, -1), key_C.expand(shape.key_heads, -1)])
    return Layer(
        take(f"{name}.input_layernorm"),
        take(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
        qk_norm,
        take(f"{attention}.o_proj"),
        take(f"{name}.post_attention_layernorm"),
        take(f"{feed}.gate_proj", f"{feed}.up_proj"),
        take(f"{feed}.down_proj"),
    )


def merge(base: Weights, folder: Path) -> Weights:
    """The base with a PEFT adapter added to copies of its matrices: W + (alpha / rank) B A.

    Merged, a release decodes as fast as the base; norms, embedding and head stay shared.
    Raises ValueError where the adapter does not fit this model.
    """
    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    if config.get("use_rslora") or config.get("use_dora"):
        raise ValueError(f"{folder}: only plain LoRA adapters are served")
    tensors = load_file(folder / "adapter_model.safetensors")
    layers = [
        layer._replace(
            qkv_ED=layer.qkv_ED.clone(),
            out_DE=layer.out_DE.clone(),
            gate_up_FD=layer.gate_up_FD.clone(),
            down_DF=layer.down_DF.clone(),
        )
        for layer in base.layers
    ]
    merged = base._replace(layers=layers)
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        down, up = tensors.pop(name), tensors.pop(name.replace("lora_A", "lora_B"))
        part = _part(merged, name.removesuffix(".lora_A.weight"))
        if part.shape != (up.shape[0], down.shape[1]):
            raise ValueError(f"{folder}: {name} does not fit this model")
        part.addmm_(up.float(), down.float(), alpha=scale)
    if tensors:
        raise ValueError(f"{folder}: unknown weights {', '.join(sorted(tensors)[:3])}")
    return merged


def _part(weights: Weights, name: str) -> Tensor:
    """The rows of a fused matrix that PEFT calls `base_model.model.model.layers.3.self_attn.q_proj`."""
    *_, index, block, projection = name.split(".")
    if not index.isdigit() or int(index) >= len(weights.layers):
        raise ValueError(f"no matrix {name} in this model")
    layer, shape = weights.layers[int(index)], weights.shape
    queries, keys = shape.heads * shape.head_size, shape.key_heads * shape.head_size
    gates = layer.gate_up_FD.shape[0] // 2
    parts = {
        "self_attn.q_proj": layer.qkv_ED[:queries],
        "self_attn.k_proj": layer.qkv_ED[queries : queries + keys],
        "self_attn.v_proj": layer.qkv_ED[queries + keys :],
        "self_attn.o_proj": layer.out_DE,
        "mlp.gate_proj": layer.gate_up_FD[:gates],
        "mlp.up_proj": layer.gate_up_FD[gates:],
        "mlp.down_proj": layer.down_DF,
    }
    if f"{block}.{projection}" not in parts:
        raise ValueError(f"no matrix {name} in this model")
    return parts[f"{block}.{projection}"]


def rope_table(shape: Shape, context: int) -> Tensor:
    """cos and signed sin of each position, [2, context, 1, head size]: rotated = x cos + roll(x, half) sin."""
    half = shape.head_size // 2
    frequencies = 1.0 / shape.rope_theta ** (torch.arange(half, dtype=torch.float32) * 2 / shape.head_size)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)]).unsqueeze(2)


def forward(weights: Weights, rope: Tensor, tokens_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
    """Final hidden states, [hidden, N], normalised: `head_VD @ hidden_DN` are the logits."""
    shape = weights.shape
    turning = shape.heads + shape.key_heads
    cos_N1C, sin_N1C = rope[:, positions_N]
    x_DN = weights.embedding_VD[tokens_N].t().contiguous()
    for index, layer in enumerate(weights.layers):
        qkv_EN = layer.qkv_ED @ _norm(x_DN, layer.attention_norm_D, shape.eps)
        heads_NHC = qkv_EN.t().reshape(len(tokens_N), turning + shape.key_heads, shape.head_size)
        qk_NHC = heads_NHC[:, :turning]
        if layer.qk_norm_HC is not None:
            qk_NHC = functional.rms_norm(qk_NHC, (shape.head_size,), eps=shape.eps) * layer.qk_norm_HC
        qk_NHC = torch.addcmul(qk_NHC * cos_N1C, qk_NHC.roll(shape.head_size // 2, -1), sin_N1C)
        attended_NHC = attend(index, qk_NHC[:, : shape.heads], qk_NHC[:, shape.heads :], heads_NHC[:, turning:])
        x_DN = x_DN + layer.out_DE @ attended_NHC.flatten(1).t()
        gate_FN, up_FN = (layer.gate_up_FD @ _norm(x_DN, layer.feed_norm_D, shape.eps)).chunk(2)
        x_DN = x_DN + layer.down_DF @ functional.silu(gate_FN).mul_(up_FN)
    return _norm(x_DN, weights.norm_D, shape.eps)


def _norm(x_DN: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    scale_N = (x_DN * x_DN).mean(0).add_(eps).rsqrt_()
    return (x_DN * scale_N).mul_(weight_D.unsqueeze(1))


def logprobs(weights: Weights, hidden_DN: Tensor) -> Tensor:
    """Log-softmax over the full vocabulary, [N, V], float32, in nats."""
    return (weights.head_VD @ hidden_DN).t().contiguous().log_softmax(-1)
