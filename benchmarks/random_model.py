"""A model with the shape of Qwen3-8B and random weights: right for speed and memory, useless for quality."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 151645,
    "bos_token_id": 151643,
}
"""Qwen/Qwen3-8B's config.json."""


def write_model(folder: Path, tokenizer: Path) -> None:
    """Random weights, a safetensors shard for every nine layers."""
    if (folder / "model.safetensors.index.json").exists():
        return
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    places: dict[str, str] = {}
    for number, names in enumerate(_shards(), 1):
        tensors = {
            name: (torch.ones(size) if len(size) == 1 else torch.randn(size, device=device) * 0.02)
            .to(torch.bfloat16)
            .cpu()
            for name, size in names.items()
        }
        file = f"model-{number}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _shards() -> list[dict[str, tuple[int, ...]]]:
    hidden, wide, head = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["head_dim"]
    queries, keys = SHAPE["num_attention_heads"] * head, SHAPE["num_key_value_heads"] * head
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    ends: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (SHAPE["vocab_size"], hidden),
        "lm_head.weight": (SHAPE["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    layers = range(SHAPE["num_hidden_layers"])
    parts = [
        {
            f"model.layers.{number}.{name}.weight": size
            for number in layers[start : start + 9]
            for name, size in layer.items()
        }
        for start in layers[::9]
    ]
    return [ends, *parts]
