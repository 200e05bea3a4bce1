"""The trainer's numbers on this machine's device against references that share no code with it.

    python benchmarks/trainer_parity.py --out benchmarks/results/trainer_parity.json

attention    the packed kernel against float32 SDPA, forward and backward, grouped keys as they are and repeated (CUDA)
long         one sample of 26,000 tokens in a bin of 32,768, in the heads of Qwen3-8B: seconds and memory (CUDA)
models       log-probs and LoRA gradients of a tiny Qwen3 and Llama, float32 and bfloat16, against transformers + peft
repeated     the same pass twice: does it give the same bits, as the trainer sets torch and when torch must (bfloat16)

Random weights, no network, less than a minute.  Prints one JSON and writes it to --out; differences are absolute, those
of gradients relative to the reference's norm.  A section that fails holds its error.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tttdd.domain.batch import Group, Sample, TrainReport
from tttdd.workers import attention, parallel, release
from tttdd.workers.attention import PackedAttention, Spans, spanned
from tttdd.workers.lora import Adapters
from tttdd.workers.model import LanguageModel
from tttdd.workers.packing import Block, lay_out, pack

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BLOCKS = (Block(300, (7, 0, 513, 128)), Block(17, ()), Block(1, (64, 1)), Block(129, (1000,)))
HEADS = {"8 over 2 of 64": (8, 2, 64), "32 over 8 of 128": (32, 8, 128), "9 over 3 of 64": (9, 3, 64)}
FAMILIES: dict[str, Any] = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
SHAPE: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}
NOTHING = TrainReport(
    loss=0.0, ratio_mean=1.0, sampler_trainer_gap=0.0, kl_base=0.0, grad_norm=0.0, tokens=0, seconds=0.0
)


class Heads:
    """As much of a configuration as the attention reads."""

    def __init__(self, size: int) -> None:
        self.kv_channels = size


def heads_of(tokens: int, heads: int, keys: int, size: int, device: torch.device) -> list[torch.Tensor]:
    """Random query, key and value in bfloat16."""
    generator = torch.Generator().manual_seed(7)
    made = [torch.randn(tokens, count, size, generator=generator) for count in (heads, keys, keys)]
    return [tensor.to(device, torch.bfloat16).requires_grad_() for tensor in made]


def with_gradients(attend: Callable[..., torch.Tensor], given: list[torch.Tensor]) -> list[torch.Tensor]:
    out = attend(*given)
    upstream = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).cos()
    return [out.detach(), *torch.autograd.grad(out, given, upstream.to(out.dtype))]


def compare_attention(device: torch.device) -> dict[str, Any]:
    result: dict[str, Any] = {}
    spans = Spans(BLOCKS, device)
    for name, (heads, keys, size) in HEADS.items():
        given = heads_of(len(spans.own_T), heads, keys, size, device)
        exact = [tensor.detach().float().requires_grad_() for tensor in given]
        plain = PackedAttention(Heads(size))
        want = with_gradients(lambda q, k, v, plain=plain: plain(q[:, None], k[:, None], v[:, None], BLOCKS), exact)
        for attention.REPEAT_KEYS in (True, False):
            way = f"{name}, keys {'repeated' if attention.REPEAT_KEYS else 'grouped'}"
            result[way] = attempt(lambda given=given, want=want, size=size: one_way(given, want, spans, size))
    return result


def one_way(given: list[torch.Tensor], want: list[torch.Tensor], spans: Spans, size: int) -> dict[str, Any]:
    """Differences of the packed kernel, in shares of the largest number; bfloat16 itself rounds by up to 4e-3."""
    got = with_gradients(lambda q, k, v: spanned(q, k, v, spans, size**-0.5).flatten(1)[:, None], given)
    names = ("out", "query_gradient", "key_gradient", "value_gradient")
    return {
        n: (a.float() - b).abs().max().item() / b.abs().max().item() for n, a, b in zip(names, got, want, strict=True)
    }


def measure_long(device: torch.device) -> dict[str, Any]:
    spans = Spans((Block(2000, (26000, 1500, 1500)), Block(768, (1000,))), device)
    given = heads_of(len(spans.own_T), 32, 8, 128, device)
    with_gradients(lambda q, k, v: spanned(q, k, v, spans, 128**-0.5), given)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, started = torch.cuda.memory_allocated(), time.perf_counter()
    with_gradients(lambda q, k, v: spanned(q, k, v, spans, 128**-0.5), given)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return {
        "tokens": len(spans.own_T),
        "layer_seconds": seconds,
        "layer_bytes": torch.cuda.max_memory_allocated() - before,
    }


def groups() -> list[Group]:
    draw = torch.Generator().manual_seed(3)

    def ids(count: int) -> list[int]:
        return torch.randint(0, SHAPE["vocab_size"], (count,), generator=draw).tolist()

    return [
        Group(ids(prompt), [Sample(ids(n), [-1.0] * n, [True] * n, 1.0) for n in lengths])
        for prompt, lengths in ((40, (100, 33, 1)), (150, (60, 250)))
    ]


def twin_numbers(folder: Path, adapter: Path, dtype: torch.dtype, device: torch.device) -> list[Any]:
    """Log-probs by transformers and peft, one sequence at a time, and the LoRA gradients of their sum by name."""
    from peft import PeftModel

    base: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    peft = PeftModel.from_pretrained(base.to(device), str(adapter), is_trainable=True).eval()
    logprobs = [sequence(peft, group.prompt_ids, sample.token_ids) for group in groups() for sample in group.samples]
    torch.cat(logprobs).sum().backward()
    found = {name.replace(".default", ""): weight.grad for name, weight in peft.named_parameters()}
    return [torch.cat(logprobs).detach(), {name: grad.float() for name, grad in found.items() if grad is not None}]


def sequence(twin: Any, prompt: list[int], completion: list[int]) -> torch.Tensor:
    logits = twin(torch.tensor([prompt + completion], device=twin.device)).logits[0, len(prompt) - 1 : -1]
    targets = torch.tensor(completion, device=twin.device)[:, None]
    return logits.float().log_softmax(-1).gather(1, targets)[:, 0]


def our_numbers(model: LanguageModel, lora: Adapters) -> list[Any]:
    """The same of ours, all in one bin."""
    (parts,) = pack(groups(), 10_000)
    order = sorted(
        (part.group, sample, place)
        for place, (part, sample) in enumerate((part, sample) for part in parts for sample in part.samples)
    )
    lengths = [len(groups()[part.group].samples[sample].token_ids) for part in parts for sample in part.samples]
    logprobs = model.logprobs(lay_out(groups(), parts), 128)
    gradients = torch.autograd.grad(logprobs.sum(), list(lora.weights.values()))
    pieces = logprobs.detach().split(lengths)
    return [torch.cat([pieces[place] for _, _, place in order]), dict(zip(lora.weights, gradients, strict=True))]


def build(family: str, dtype: torch.dtype, folder: Path, together: parallel.Parallel) -> tuple[LanguageModel, Adapters]:
    """A random model and random LoRA weights, both also on disk."""
    configuration, model = FAMILIES[family]
    torch.manual_seed(1)
    model(configuration(**SHAPE, tie_word_embeddings=family == "llama")).to(dtype).save_pretrained(folder / "model")
    ours = LanguageModel(folder / "model", dtype, together)
    lora = Adapters(ours, 32, 32, TARGETS)
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in lora.weights.values():
            weight.copy_(torch.randn(weight.shape) * 0.02)
    record = release.Record(number=1, parent=0, batch_sha256="", seed=0, report=NOTHING)
    contents = release.Contents(adapter_config=lora.config, adapter=lora.tensors(), optimizer={})
    release.write(folder / "0001", record, contents)
    return ours, lora


def compare_models(together: parallel.Parallel) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for family in FAMILIES:
        for dtype in (torch.float32, torch.bfloat16):
            name = f"{family} {str(dtype).removeprefix('torch.')}"
            result[name] = attempt(lambda family=family, dtype=dtype: compare_model(family, dtype, together))
    return result


def compare_model(family: str, dtype: torch.dtype, together: parallel.Parallel) -> dict[str, Any]:
    """Ours against the twin in the same type; in bfloat16 also both against the twin in float32."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = our_numbers(*build(family, dtype, folder, together))
        theirs = twin_numbers(folder / "model", folder / "0001", dtype, together.device)
        result = {"ours_against_peft": differences(ours, theirs)}
        if dtype != torch.float32:
            exact = twin_numbers(folder / "model", folder / "0001", torch.float32, together.device)
            result["ours_against_float32"] = differences(ours, exact)
            result["peft_against_float32"] = differences(theirs, exact)
    return result


def differences(got: list[Any], want: list[Any]) -> dict[str, float]:
    gap = (got[0] - want[0]).abs()
    assert set(got[1]) == set(want[1])
    shares = [((got[1][name] - grad).norm() / grad.norm()).item() for name, grad in want[1].items()]
    return {
        "logprob_max": gap.max().item(),
        "logprob_mean": gap.mean().item(),
        "gradient_max": max(shares),
        "gradient_mean": sum(shares) / len(shares),
    }


def compare_repeats(together: parallel.Parallel) -> dict[str, Any]:
    """Largest difference of a gradient between two equal passes, by how strictly torch is asked for the same bits."""
    with tempfile.TemporaryDirectory() as name:
        model, lora = build("qwen3", torch.bfloat16, Path(name), together)
    result: dict[str, Any] = {}
    for strict in (False, True):
        torch.use_deterministic_algorithms(strict)
        result["deterministic" if strict else "any kernels"] = attempt(lambda: repeat(model, lora))
    return result


def repeat(model: LanguageModel, lora: Adapters) -> dict[str, float]:
    (_, first), (_, second) = our_numbers(model, lora), our_numbers(model, lora)
    return {"gradient_max": max((first[name] - second[name]).abs().max().item() for name in first)}


def attempt(section: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The section's numbers, or its error; the others go on."""
    try:
        return section()
    except (RuntimeError, ValueError, ImportError, AssertionError) as error:
        return {"error": f"{type(error).__name__}: {str(error)[:500]}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    started, cuda = time.monotonic(), torch.cuda.is_available()
    together = parallel.start(parallel.Seat(), 1, (0,) if cuda else ())
    torch.use_deterministic_algorithms(True)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if cuda:
        result["attention"] = compare_attention(together.device)
        result["long"] = attempt(lambda: measure_long(together.device))
    result["models"] = compare_models(together)
    result["repeated"] = attempt(lambda: compare_repeats(together))
    result["seconds"] = round(time.monotonic() - started, 1)
    text = json.dumps(result, indent=2)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
