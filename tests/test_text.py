"""The sampler's tokens: those of the class that transformers' AutoTokenizer takes seconds to find for a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, Qwen2Tokenizer

from tests.tiny_models import CHAT_TEMPLATE, write_tiny_model
from tttdd import wire
from tttdd.workers.text import BYTES, Pieces, Text

PIECES = [
    "<|im_end|>",
    "<think>",
    " 0.3,",
    "é",
    "Å",
    "ﬁ",
    "中文",
    "🙂",
    "\0",
    "\n\n",
    "  ",
    "'ll",
    "123",
    "def f(x):\n\t",
]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=8).map("".join)
THINKING = "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"


def write_qwen(folder: Path) -> Path:
    """A tiny model whose tokenizer has Qwen's normalizer and its way to split a text, and names Qwen's class."""
    model = json.loads((write_tiny_model(folder, "qwen3") / "tokenizer.json").read_text())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Qwen2Tokenizer(vocab=model["vocab"], merges=merges, additional_special_tokens=special)  # pyright: ignore[reportArgumentType]
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.eos_token, tokenizer.chat_template = "<|im_end|>", CHAT_TEMPLATE + THINKING
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": len(tokenizer)}))
    return folder


def write_sentencepiece(folder: Path) -> Path:
    """A tiny model whose tokenizer knows some characters, and the others by their bytes; spaces are written as ▁."""
    write_tiny_model(folder)
    words = ["<unk>", "</s>", *BYTES, *"▁abé中-", "▁a", "中é", "▁▁"]
    tokenizer = Tokenizer(models.BPE({word: place for place, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "</s>", "pad_token": "</s>"}))
    return folder


@pytest.fixture(scope="module", params=[write_tiny_model, write_qwen])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def known(model: Path) -> Any:
    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="module", params=[False, True])
def ours(model: Path, request: pytest.FixtureRequest) -> Text:
    return Text(model, thinking=request.param)


@settings(max_examples=25)
@given(text=TEXTS)
def test_a_text_has_the_tokens_that_the_model_s_own_class_gives_it_and_they_give_it_back(
    text: str, ours: Text, known: Any
):
    ids = known(text).input_ids
    assert ours.encode(text, chat=False) == ids
    assert ours.encode_more(text) == known(text, add_special_tokens=False).input_ids
    assert ours.decode(ids) == known.decode(ids, skip_special_tokens=True)


@settings(max_examples=25)
@given(text=TEXTS)
def test_a_prompt_is_wrapped_in_the_model_s_chat_template(text: str, ours: Text, known: Any):
    messages = [{"role": "user", "content": text}]
    wrapped = known.apply_chat_template(messages, add_generation_prompt=True, enable_thinking=ours._thinking)
    assert ours.encode(text, chat=True) == wrapped["input_ids"]


def test_an_answer_ends_with_the_end_of_its_turn(ours: Text, known: Any):
    assert ours.end_ids == {known.convert_tokens_to_ids("<|im_end|>")}


@pytest.fixture(scope="module", params=[write_tiny_model, write_qwen, write_sentencepiece])
def streamed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Text:
    return Text(request.param(tmp_path_factory.mktemp("model")), thinking=False)


def in_pieces(text: Text, ids: list[int]) -> list[str]:
    """As the sampler tells them: one a token, and what was held back."""
    pieces = Pieces(text)
    return [*map(pieces.add, ids), pieces.rest(text.decode(ids))]


@settings(max_examples=150)
@given(data=st.data())
def test_a_text_in_pieces_is_the_text_of_all_its_tokens(data: st.DataObject, streamed: Text):
    token = st.integers(0, len(streamed._tokenizer) - 1)
    written = TEXTS.map(streamed.encode_more)
    ids = [each for part in data.draw(st.lists(st.one_of(st.lists(token), written), max_size=4)) for each in part]
    assert "".join(in_pieces(streamed, ids)) == streamed.decode(ids)


@given(text=st.lists(st.sampled_from("aé中🙂 👩🏽ﬁ"), min_size=1).map("".join))
def test_no_piece_ends_inside_a_character_or_waits_longer_than_for_its_end(text: str, ours: Text):
    ids, pieces, said = ours.encode_more(text), Pieces(ours), ""
    for place, token in enumerate(ids, 1):
        said += pieces.add(token)
        assert said == ours.decode(ids[:place]).rstrip("\N{REPLACEMENT CHARACTER}")


def test_a_character_whose_end_never_comes_is_told_at_the_end(ours: Text):
    ids = [*ours.encode_more("a中"), *ours.encode_more("中")[:-1]]
    assert in_pieces(ours, ids)[-1] == "\N{REPLACEMENT CHARACTER}"
    assert "".join(in_pieces(ours, ids)) == "a中\N{REPLACEMENT CHARACTER}"


def test_stop_texts_are_found_where_a_token_completes_one_whatever_their_length(ours: Text):
    ids = ours.encode_more("aé中🙂, ﬁ")
    for stops, text in ((("🙂", "中🙂,"), "aé中🙂"), (("é🙂", "中🙂,"), "aé中🙂,"), (("🙂", "中", "中🙂"), "aé中")):
        ended = (count for count in range(1, len(ids) + 1) if ours.ends_with(ids[:count], stops))
        assert ours.decode(ids[: next(ended)]) == text
    assert not ours.ends_with(ids, ("b", "é🙂")) and not ours.ends_with(ids, ())


def test_a_model_without_a_chat_template_says_so(tmp_path: Path):
    text = Text(write_tiny_model(tmp_path), thinking=False)
    text._tokenizer.chat_template = None
    with pytest.raises(wire.Refusal, match="no chat template"):
        text.encode("hi", chat=True)


def test_a_token_that_the_model_has_no_row_for_is_refused_before_it_is_sampled_from(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] - 1}))
    with pytest.raises(wire.Refusal, match="the conversation holds what the model does not know"):
        Text(folder, thinking=False).encode_chat([{"role": "user", "content": "hello"}], None)
