"""What kind of model a transformers directory holds, and whether the trainer computes exactly that.

config.json -> Architecture      dense Qwen3 and Llama, tied and untied; everything else is refused
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """What a dense Qwen3 or Llama is, in the words of its config.json."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool = False


def read_architecture(folder: Path) -> Architecture:
    """Raises ValueError for a model that is not implemented, OSError for a folder without a config.json."""
    config = json.loads((folder / "config.json").read_text())
    if config.get("model_type") not in ("qwen3", "llama"):
        raise ValueError(f"{folder}: model_type {config.get('model_type')!r} is not supported; qwen3 and llama are")
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    _refuse_variants(folder, config, rope)
    heads = config.get("num_attention_heads", 1)
    derived = {
        "head_dim": config.get("head_dim") or config.get("hidden_size", 0) // heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "rope_theta": rope.get("rope_theta") or config.get("rope_theta") or 10000.0,
    }
    try:
        return msgspec.convert({**config, **derived}, Architecture)
    except msgspec.ValidationError as error:
        raise ValueError(f"{folder}/config.json: {error}") from None


def _refuse_variants(folder: Path, config: dict[str, Any], rope: dict[str, Any]) -> None:
    """Options of these architectures that change the computation and are not implemented here."""
    plain = {
        "RoPE scaling": rope.get("rope_type", rope.get("type", "default")) == "default",
        "a partial rotary factor": rope.get("partial_rotary_factor", 1.0) == 1.0,
        "attention biases": not config.get("attention_bias"),
        "MLP biases": not config.get("mlp_bias"),
        "sliding windows": not config.get("use_sliding_window"),
        "quantised weights": not config.get("quantization_config"),
        f"activation {config.get('hidden_act')!r}": config.get("hidden_act", "silu") == "silu",
    }
    if found := [name for name, absent in plain.items() if not absent]:
        raise ValueError(f"{folder}: not supported: {', '.join(found)}")


def refuse_shards(shape: Architecture, shards: int) -> None:
    """Raises ValueError, with the numbers, for a model that cannot be divided into so many equal shards."""
    sizes = {
        "key-value heads": shape.num_key_value_heads,
        "attention heads": shape.num_attention_heads,
        "intermediate size": shape.intermediate_size,
        "vocabulary": shape.vocab_size,
    }
    if found := [f"{name} ({size})" for name, size in sizes.items() if size % shards]:
        raise ValueError(f"trainer.tensor_parallel = {shards} does not divide the model's {', '.join(found)}")
