"""A transformers checkpoint's tensors, read straight into the parameters of a model or of one shard of it.

    *.safetensors --get_slice: this shard's rows or columns--> view of a megatron parameter, on its device

At most one tensor's part is held besides the model, so a model is never in the host's memory as a whole.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open

from tttdd.workers.architecture import Architecture
from tttdd.workers.parallel import Group


class Home(msgspec.Struct, frozen=True):
    """Where a tensor of the checkpoint goes."""

    place: torch.Tensor
    """View of the model's own parameter."""
    cut: int | None = None
    """Dimension of the checkpoint's tensor along which the shards divide it; None: each holds the whole."""


def load(folder: Path, homes: dict[str, Home], shards: Group) -> None:
    """Fill every home from the folder's safetensors files.

    Raises ValueError for a set of weights that does not fit, OSError for files that are missing.
    """
    missing = set(homes)
    for path in _files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                if name in homes:
                    _fill(homes[name], file.get_slice(name), f"{path}: {name}", shards)
                    missing.discard(name)
                elif name != "lm_head.weight" and not name.endswith("rotary_emb.inv_freq"):  # copies, where present
                    raise ValueError(f"{path}: {name} has no place in this architecture")
    if missing:
        raise ValueError(f"{folder}: weights are missing: {', '.join(sorted(missing)[:5])} ({len(missing)} in all)")


def homes(gpt: Any, shape: Architecture, shards: Group) -> dict[str, Home]:
    """The homes of a dense Qwen3's or Llama's tensors in megatron's GPTModel, or in this shard of it."""
    found = {
        "model.embed_tokens.weight": Home(gpt.embedding.word_embeddings.weight.data, 0),
        "model.norm.weight": Home(gpt.decoder.final_layernorm.weight.data),
    }
    if not shape.tie_word_embeddings:
        found["lm_head.weight"] = Home(gpt.output_layer.weight.data, 0)
    for number, layer in enumerate(gpt.decoder.layers):
        found |= {f"model.layers.{number}.{name}": home for name, home in _layer(layer, shape, shards).items()}
    return found


def _layer(layer: Any, shape: Architecture, shards: Group) -> dict[str, Home]:
    """Megatron fuses q, k and v rows by key-value head, [q..q k v], and lays gate over up."""
    attention, mlp, groups = layer.self_attention, layer.mlp, shape.num_key_value_heads // shards.size
    queries = shape.num_attention_heads // shape.num_key_value_heads
    fused = attention.linear_qkv.weight.data.view(groups, queries + 2, shape.head_dim, shape.hidden_size)
    gate, up = mlp.linear_fc1.weight.data.chunk(2)
    found = {
        "self_attn.q_proj.weight": Home(fused[:, :queries], 0),
        "self_attn.k_proj.weight": Home(fused[:, queries], 0),
        "self_attn.v_proj.weight": Home(fused[:, queries + 1], 0),
        "self_attn.o_proj.weight": Home(attention.linear_proj.weight.data, 1),
        "mlp.gate_proj.weight": Home(gate, 0),
        "mlp.up_proj.weight": Home(up, 0),
        "mlp.down_proj.weight": Home(mlp.linear_fc2.weight.data, 1),
        "input_layernorm.weight": Home(layer.input_layernorm.weight.data),
        "post_attention_layernorm.weight": Home(layer.pre_mlp_layernorm.weight.data),
    }
    if shape.model_type == "qwen3":
        found["self_attn.q_norm.weight"] = Home(attention.q_layernorm.weight.data)
        found["self_attn.k_norm.weight"] = Home(attention.k_layernorm.weight.data)
    return found


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return [folder / "model.safetensors"]


def _fill(home: Home, stored: Any, name: str, shards: Group) -> None:
    """Copy this shard's part of a stored tensor to its place."""
    shape, place = list(stored.get_shape()), home.place
    columns = place.shape[-1] * (shards.size if home.cut == 1 else 1)
    numbers = place.numel() * (1 if home.cut is None else shards.size)
    if shape[-1] != columns or numbers != torch.Size(shape).numel():
        raise ValueError(f"{name} has shape {tuple(shape)}, expected {numbers // columns} rows of {columns}")
    part = [slice(None)] * len(shape)
    if home.cut is not None:
        part[home.cut] = shards.part(shape[home.cut])
    place.copy_(stored[tuple(part)].view(place.shape))
