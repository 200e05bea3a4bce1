"""Sampling speed of the embedded engine against transformers' generate, in one run on one machine.

    python benchmarks/embedded_engine.py [MODEL] [--groups 4 --rollouts 8 --prompt 250 --new 160 --threads 2]

Same model, same prompts, every sequence to its full length (no end token can stop it), temperature 1.  Without MODEL:
random weights in the shape of SmolLM2-135M.  Prints a table, then one line of JSON; CPU seconds say more than wall
seconds where other work shares the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the engine's worker does; read when torch is loaded

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tttdd.workers.decoder import load, rope_table
from tttdd.workers.decoding import Decoding, Row, uniforms


class Seconds(NamedTuple):
    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(time.perf_counter(), time.process_time())

    def since(self) -> Seconds:
        now = self.now()
        return Seconds(now.wall - self.wall, now.cpu - self.cpu)


def write_random_model(folder: Path) -> Path:
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "vocab_size": 49152,
    }
    heads: dict[str, Any] = {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192}
    LlamaForCausalLM(LlamaConfig(**shape, **heads, tie_word_embeddings=True)).save_pretrained(folder)
    return folder


def ours(model: Path, prompts: list[list[int]], rollouts: int, new: int) -> Seconds:
    """Samples every row."""
    weights = load(model)
    rope = rope_table(weights.shape, len(prompts[0]) + new)
    start = Seconds.now()
    with torch.inference_mode():
        decoding = Decoding(weights, rope)
        for group, prompt in enumerate(prompts):
            for rollout in range(rollouts):
                decoding.join(Row(0, tuple(prompt), 0, (), uniforms(group * rollouts + rollout, new)))
        for _ in range(new - 1):
            decoding.step()
    assert all(len(row.tokens) == new for row in decoding.rows)
    return start.since()


def theirs(model: Path, prompts: list[list[int]], rollouts: int, new: int) -> Seconds:
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor(prompts).repeat_interleave(rollouts, 0)
    settings = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0}
    start = Seconds.now()
    with torch.inference_mode():
        out = network.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, **settings
        )
    assert out.shape[1] == ids.shape[1] + new
    return start.since()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=250)
    parser.add_argument("--new", type=int, default=160)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(100, 40000, (arguments.groups, arguments.prompt), generator=generator).tolist()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or write_random_model(Path(folder))
        work = (model, prompts, arguments.rollouts, arguments.new)
        seconds = {"embedded engine": ours(*work), "transformers generate": theirs(*work)}
    tokens = arguments.groups * arguments.rollouts * arguments.new
    print(f"{'':24}{'seconds':>9}{'tokens/s':>10}{'CPU s':>8}")
    for name, taken in seconds.items():
        print(f"{name:24}{taken.wall:9.1f}{tokens / taken.wall:10.1f}{taken.cpu:8.1f}")
    mine, other = seconds["embedded engine"], seconds["transformers generate"]
    ratios = {"ratio": other.wall / mine.wall, "cpu_ratio": other.cpu / mine.cpu}
    found = {name: taken._asdict() for name, taken in seconds.items()}
    print(json.dumps({"seconds": found, "tokens": tokens, **ratios, "threads": arguments.threads}))


if __name__ == "__main__":
    main()
