"""The sampler's own decoder against transformers and peft."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from tests.tiny_models import Architecture, write_tiny_model
from tttdd.config import LORA_TARGETS
from tttdd.workers.decoder import load, merge, read_shape, rope_table
from tttdd.workers.decoding import Decoding, Row, score, uniforms

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
PROMPTS = [list(range(10, 47)), [5, 250, 281 - 4, 17]]
ARCHITECTURES: list[Architecture] = ["llama", "qwen3"]


def write_adapter(model: Path, folder: Path, seed: int = 1) -> Path:
    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(LORA_TARGETS), init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(model), config).save_pretrained(str(folder))
    return folder


def reference(model: Path, adapter: Path | None, prompt: list[int], completion: list[int]) -> list[float]:
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter:
        network = PeftModel.from_pretrained(network, adapter)
    with torch.inference_mode():
        logits = network(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


def decode(decoding: Decoding, rows: list[Row]) -> None:
    """Rows join one step apart and leave when they are full."""
    for row in rows:
        decoding.join(row)
        decoding.step()
        leave_full(decoding)
    while decoding.rows:
        decoding.step()
        leave_full(decoding)


def leave_full(decoding: Decoding) -> None:
    for row in [row for row in decoding.rows if len(row.tokens) == len(row.uniforms)]:
        decoding.leave(row)


def make_rows() -> list[Row]:
    return [Row(n, tuple(PROMPTS[n % 2]), 0, (), uniforms(n, 12 + 7 * (n % 3))) for n in range(10)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("adapted", [False, True])
def test_the_log_probs_of_rows_that_come_and_go_equal_a_fresh_forward_pass(
    tmp_path: Path, architecture: Architecture, adapted: bool
):
    model = write_tiny_model(tmp_path / "model", architecture)
    adapter = write_adapter(model, tmp_path / "adapter") if adapted else None
    with torch.inference_mode():
        weights = merge(load(model), adapter) if adapter else load(model)
        rows = make_rows()
        decode(Decoding(weights, rope_table(weights.shape, 256)), rows)
    for row in rows:
        expected = reference(model, adapter, list(row.prompt), row.tokens)
        assert row.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scoring_a_probe_equals_transformers_with_and_without_an_adapter(tmp_path: Path, architecture: Architecture):
    model = write_tiny_model(tmp_path / "model", architecture)
    adapter = write_adapter(model, tmp_path / "adapter")
    prompt, completion = PROMPTS[0], [1, 200, 33, 4]
    with torch.inference_mode():
        base = load(model)
        rope = rope_table(base.shape, 64)
        plain, adapted = (score(weights, rope, prompt, completion) for weights in (base, merge(base, adapter)))
    assert plain == pytest.approx(reference(model, None, prompt, completion), abs=1e-4)
    assert adapted == pytest.approx(reference(model, adapter, prompt, completion), abs=1e-4)
    assert plain != pytest.approx(adapted, abs=1e-3)


def test_a_row_alone_draws_the_same_tokens_and_log_probs_to_the_last_bit_as_in_company(tmp_path: Path):
    weights = load(write_tiny_model(tmp_path))
    rope = rope_table(weights.shape, 256)
    with torch.inference_mode():
        together, alone = make_rows(), make_rows()
        decode(Decoding(weights, rope), together)
        for row in alone:
            decode(Decoding(weights, rope), [row])
    assert [row.tokens for row in together] == [row.tokens for row in alone]
    assert [row.logprobs for row in together] == [row.logprobs for row in alone]


def test_draws_follow_the_distribution(tmp_path: Path):
    weights = load(write_tiny_model(tmp_path))
    with torch.inference_mode():
        decoding = Decoding(weights, rope_table(weights.shape, 64))
        rows = [Row(n, tuple(PROMPTS[0]), 0, (), uniforms(n, 1)) for n in range(2000)]
        for row in rows:
            decoding.join(row)
    favourite = max({row.tokens[0] for row in rows}, key=lambda token: sum(row.tokens[0] == token for row in rows))
    drawn = [row for row in rows if row.tokens[0] == favourite]
    probability = torch.tensor(drawn[0].logprobs[0]).exp().item()
    assert len(drawn) / len(rows) == pytest.approx(probability, abs=4 * (probability / len(rows)) ** 0.5)


def test_an_architecture_that_is_not_computed_is_refused_by_name(tmp_path: Path):
    config = write_tiny_model(tmp_path) / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"model_type": "llama"', '"model_type": "mamba"'))
    with pytest.raises(ValueError, match="'mamba'"):
        read_shape(tmp_path)
    config.write_text(text.replace('"attention_bias": false', '"attention_bias": true'))
    with pytest.raises(ValueError, match="attention_bias"):
        read_shape(tmp_path)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path):
    adapter = write_adapter(write_tiny_model(tmp_path / "qwen3", "qwen3"), tmp_path / "adapter")
    with pytest.raises(ValueError, match="does not fit this model"), torch.inference_mode():
        merge(load(write_tiny_model(tmp_path / "llama")), adapter)
