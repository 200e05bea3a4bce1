"""What the trainer's tests share: tiny random models with their transformers twins, batches, plain references."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from tttdd.domain.batch import Batch, Group, Sample

VOCABULARY = 160
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
FAMILIES: dict[str, Any] = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def save_model(folder: Path, family: str, *, tied: bool, seed: int = 0, **saving: Any) -> PreTrainedModel:
    """A random model with no trivial weight, saved to `folder` and returned."""
    config, model = FAMILIES[family]
    torch.manual_seed(seed)
    twin = model(config(**SHAPE, tie_word_embeddings=tied)).eval()
    with torch.no_grad():
        for weight in twin.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    twin.save_pretrained(folder, **saving)
    return twin


def make_batch(seed: int = 0, *, prompts: tuple[int, ...] = (7, 12), samples: int = 4, release: int = 0) -> Batch:
    """Groups of random tokens, samples of 1 to 9 tokens, some tokens forced."""
    draw = random.Random(seed)
    groups = [
        Group([draw.randrange(VOCABULARY) for _ in range(prompt)], [_sample(draw) for _ in range(samples)])
        for prompt in prompts
    ]
    return Batch(run="r", step=0, release=release, rollouts_total=len(prompts) * samples + samples, groups=groups)


def _sample(draw: random.Random) -> Sample:
    length = draw.randint(1, 9)
    return Sample(
        token_ids=[draw.randrange(VOCABULARY) for _ in range(length)],
        logprobs=[-draw.uniform(4, 6) for _ in range(length)],
        loss_mask=[draw.random() < 0.8 for _ in range(length)],
        advantage=draw.uniform(-1, 4),
    )


def plain_logprobs(twin: torch.nn.Module, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Log-probs of a completion, one sequence through transformers, nothing shared."""
    logits = twin(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def options(model: Path, **changes: Any) -> dict[str, Any]:
    """Options of the trainer's worker."""
    return {
        "model_path": str(model),
        "dtype": "float32",
        "seed": 5,
        "rank": 4,
        "alpha": 8,
        "targets": list(TARGETS),
        "lr": 1e-2,
        "betas": [0.9, 0.95],
        "eps": 1e-8,
        "kl_coef": 0.1,
        "max_tokens_per_gpu": 40,
        "logprob_chunk": 7,
        "threads": 1,
        **changes,
    }
