"""Text to tokens and back for the sampler: the tokenizer and chat template of the model's own directory.

Its tokenizer.json is taken as it is.  To find out which class transformers has for a model, AutoTokenizer imports 700
modules more, at two seconds a start; that class then builds the same again (tests/test_text.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

ANSWER = "=answer="


class Text:
    def __init__(self, folder: Path, thinking: bool) -> None:
        self._thinking = thinking
        self._tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        self._special = frozenset(self._tokenizer.all_special_ids)
        self.end_ids = self._end_ids()
        """End of sequence, and what the chat template writes right after an answer."""

    def encode(self, text: str, chat: bool) -> list[int]:
        if not chat:
            return list(self._tokenizer(text).input_ids)
        messages = [{"role": "user", "content": text}]
        rendered = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, enable_thinking=self._thinking
        )
        return list(self._tokenizer(rendered, add_special_tokens=False).input_ids)

    def encode_more(self, text: str) -> list[int]:
        """Of a text behind other tokens: no beginning-of-sequence token."""
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def ends_with(self, ids: list[int], stop: str) -> bool:
        """Whether the text of `ids` has come to contain `stop` by its last token.

        Only the tail is decoded: no visible token is shorter than a byte, and the first few of a tail may decode
        differently than in the middle of a text.
        """
        if ids[-1] in self._special:
            return False
        visible = [token for token in ids[-4 * (len(stop.encode()) + 8) :] if token not in self._special]
        return stop in self.decode(visible[-(len(stop.encode()) + 8) :])

    def _end_ids(self) -> frozenset[int]:
        ends = {self._tokenizer.eos_token_id} - {None}
        if self._tokenizer.chat_template is not None:
            messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
            rendered: str = self._tokenizer.apply_chat_template(messages, tokenize=False)
            after = rendered[rendered.rindex(ANSWER) + len(ANSWER) :]
            following = self._tokenizer(after, add_special_tokens=False).input_ids[:1]
            ends |= {token for token in following if token in self._special}
        return frozenset(ends)
