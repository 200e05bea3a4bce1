"""A Llama model in one GGUF file -> a transformers directory in float32.

    tensors: dequantise, rename, undo the interleaving of query and key rows      -> model.safetensors
    keys:    architecture, tokens and merges (byte-level BPE), chat template       -> config, tokenizer

numpy alone: no torch is needed to fetch a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tttdd.workers.gguf_file import GgufFile

CONTROL = 3
"""GGUF's token type of special tokens."""

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert(source: Path, folder: Path, on_progress: Callable[[float], None]) -> None:
    """Writes `folder`; progress goes from 0 to 1.  Raises ValueError for a file that holds something else."""
    file = GgufFile(source)
    keys = file.keys
    if keys.get("general.architecture") != "llama" or keys.get("tokenizer.ggml.pre") not in ("smollm", "gpt-2"):
        raise ValueError(f"{source.name} is not a Llama model with a byte-level tokenizer")
    folder.mkdir(parents=True)
    weights: dict[str, NDArray[np.float32]] = {}
    for name, weight in _tensors(file, keys):
        weights[name] = weight
        on_progress(len(weights) / len(file))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tied = "lm_head.weight" not in weights
    _write(folder / "config.json", _config(keys, len(weights["model.embed_tokens.weight"]), tied))
    _write(folder / "generation_config.json", {"eos_token_id": _end_ids(keys)})
    _write_tokenizer(keys, folder)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False))


def _tensors(file: GgufFile, keys: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    heads = {"attn_q": keys["llama.attention.head_count"], "attn_k": keys["llama.attention.head_count_kv"]}
    for tensor, weight in file.tensors():
        match tensor.split("."):
            case ["blk", layer, name, "weight"] if name in NAMES:
                rows = _halves(weight, heads[name]) if name in heads else weight
                yield f"model.layers.{layer}.{NAMES[name]}.weight", rows
            case [name, "weight"] if name in OUTER:
                yield f"{OUTER[name]}.weight", weight
            case _:
                raise ValueError(f"unknown tensor {tensor}")


def _halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF keeps the two rows that rotate together side by side; transformers keeps them half a head apart."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def _config(keys: dict[str, Any], vocabulary: int, tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": keys["llama.embedding_length"],
        "intermediate_size": keys["llama.feed_forward_length"],
        "num_hidden_layers": keys["llama.block_count"],
        "num_attention_heads": keys["llama.attention.head_count"],
        "num_key_value_heads": keys["llama.attention.head_count_kv"],
        "max_position_embeddings": keys["llama.context_length"],
        "rms_norm_eps": round(float(keys["llama.attention.layer_norm_rms_epsilon"]), 9),
        "rope_theta": float(keys["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": keys["tokenizer.ggml.bos_token_id"],
        "eos_token_id": keys["tokenizer.ggml.eos_token_id"],
        "pad_token_id": keys["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def _end_ids(keys: dict[str, Any]) -> list[int]:
    """The chat model's end of turn, and the end of a text, which completions run into."""
    tokens = keys["tokenizer.ggml.tokens"]
    ends = [tokens.index("<|endoftext|>")] if "<|endoftext|>" in tokens else []
    return list(dict.fromkeys([keys["tokenizer.ggml.eos_token_id"], *ends]))


def _write_tokenizer(keys: dict[str, Any], folder: Path) -> None:
    tokens: list[str] = keys["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    split: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if keys["tokenizer.ggml.pre"] == "smollm":
        split.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, keys["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in kinds if kind == CONTROL]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[keys["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[keys["tokenizer.ggml.eos_token_id"]],
            "pad_token": tokens[keys["tokenizer.ggml.padding_token_id"]],
            "clean_up_tokenization_spaces": False,
            "model_max_length": keys["llama.context_length"],
            "chat_template": keys["tokenizer.chat_template"],
        },
    )
