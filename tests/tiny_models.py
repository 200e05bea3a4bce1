"""Tiny random transformers directories, written in milliseconds: config, weights, byte-level tokenizer, chat template.

The weights are random but for one hidden direction, in which the tokens " 0.0," ... " 0.9," and "]" are long: whatever
it is shown, the model mostly writes lists of numbers like `0.3, 0.7, 0.1]`, so that an end-to-end test sees valid
programs.  Sizes: hidden 64, 2 layers, 4 heads, 2 key/value heads; llama is untied, qwen3 tied with query/key norms.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Architecture = Literal["llama", "qwen3"]
Weights = dict[str, NDArray[np.float32]]

HIDDEN, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT = 64, 2, 4, 2, 128, 4096
HEAD_DIM = {"llama": 16, "qwen3": 32}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: Path, architecture: Architecture = "llama", seed: int = 0) -> Path:
    """A model directory at `folder` (made if missing) that transformers and every backend of ours can load."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {token: number for token in SPECIAL if (number := tokenizer.token_to_id(token)) is not None}
    _write(folder / "tokenizer_config.json", _tokenizer_config())
    _write(folder / "config.json", _config(architecture, tokenizer.get_vocab_size(), ids))
    _write(folder / "generation_config.json", {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]})
    weights = _weights(architecture, tokenizer, np.random.default_rng(seed))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1))


def _tokenizer() -> Tokenizer:
    """Bytes, and the merges that make " 0.3," one token."""
    space = "Ġ"
    merges = [(space, "0"), (f"{space}0", ".")]
    merges += [(f"{space}0.", digit) for digit in "0123456789"]
    merges += [(f"{space}0.{digit}", ",") for digit in "0123456789"]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }


def _config(architecture: Architecture, vocabulary: int, ids: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[architecture]],
        "model_type": architecture,
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM[architecture],
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": architecture == "qwen3",
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "dtype": "float32",
    }


def _weights(architecture: Architecture, tokenizer: Tokenizer, random: np.random.Generator) -> Weights:
    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    embedding = (0.1 * random.standard_normal((tokenizer.get_vocab_size(), HIDDEN))).astype(np.float32)
    embedding[:, 0] = _favour(tokenizer)
    weights: Weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": _norm(random, HIDDEN)}
    weights["model.norm.weight"][0] = 2.5
    if architecture == "llama":
        weights["lm_head.weight"] = (embedding + 0.1 * matrix(len(embedding), HIDDEN)).astype(np.float32)
    width, kv_width = HEADS * HEAD_DIM[architecture], KV_HEADS * HEAD_DIM[architecture]
    for layer in range(LAYERS):
        block: Weights = {
            "input_layernorm": _norm(random, HIDDEN),
            "post_attention_layernorm": _norm(random, HIDDEN),
            "self_attn.q_proj": matrix(width, HIDDEN),
            "self_attn.k_proj": matrix(kv_width, HIDDEN),
            "self_attn.v_proj": matrix(kv_width, HIDDEN),
            "self_attn.o_proj": matrix(HIDDEN, width) / np.float32(10),
            "mlp.gate_proj": matrix(FEED_FORWARD, HIDDEN),
            "mlp.up_proj": matrix(FEED_FORWARD, HIDDEN),
            "mlp.down_proj": matrix(HIDDEN, FEED_FORWARD) / np.float32(10),
        }
        if architecture == "qwen3":
            block["self_attn.q_norm"] = block["self_attn.k_norm"] = _norm(random, HEAD_DIM[architecture])
        weights |= {f"model.layers.{layer}.{name}.weight": weight.copy() for name, weight in block.items()}
    return weights


def _norm(random: np.random.Generator, width: int) -> NDArray[np.float32]:
    return (1 + 0.1 * random.standard_normal(width)).astype(np.float32)


def _favour(tokenizer: Tokenizer) -> NDArray[np.float32]:
    """Length of each token's embedding in the favoured direction."""
    favour = np.full(tokenizer.get_vocab_size(), 0.4, np.float32)
    for token in ["]", *(f"Ġ0.{digit}," for digit in "0123456789")]:
        favour[tokenizer.token_to_id(token)] = 1.0
    favour[tokenizer.token_to_id("<|im_end|>")] = 0.7
    return favour
