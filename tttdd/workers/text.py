"""Text to tokens and back for the sampler: the tokenizer and chat template of the model's own directory.

Its tokenizer.json is taken as it is.  To find out which class transformers has for a model, AutoTokenizer imports 700
modules more, at two seconds a start; that class then builds the same again (tests/test_text.py).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from tttdd import wire

ANSWER = "=answer="
HALF = "\N{REPLACEMENT CHARACTER}"
"""How the beginning of a character is decoded."""
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""Names of the tokens that stand for a byte in vocabularies of characters."""
TEMPLATE_ERRORS = (
    *(TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(AssertionError, RuntimeError),
)
"""What a template raises by itself or from the Python in it."""


class Text:
    def __init__(self, folder: Path, thinking: bool) -> None:
        self._thinking = thinking
        self._tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        self._vocabulary: int = json.loads((folder / "config.json").read_text())["vocab_size"]
        self._special = frozenset(self._tokenizer.all_special_ids)
        self._bytes = frozenset(map(self._tokenizer.backend_tokenizer.token_to_id, BYTES)) - {None}
        self._silent = frozenset(
            token for token, added in self._tokenizer.added_tokens_decoder.items() if added.special
        )
        self.end_ids = self._end_ids()
        """End of sequence, and what the chat template writes right after an answer."""

    def encode(self, text: str, chat: bool) -> list[int]:
        if not chat:
            return list(self._tokenizer(text).input_ids)
        return self.encode_chat([{"role": "user", "content": text}], None)

    def encode_chat(self, messages: list[dict[str, str]], thinking: bool | None) -> list[int]:
        """Up to where the answer begins.  `thinking` None: as configured."""
        if self._tokenizer.chat_template is None:
            raise wire.Refusal("the model has no chat template")
        switch = self._thinking if thinking is None else thinking
        try:
            rendered = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, enable_thinking=switch
            )
        except TEMPLATE_ERRORS as error:
            raise wire.Refusal(f"the model's chat template refuses the conversation: {_told(error)}") from None
        ids = self.encode_more(rendered)
        if unknown := [token for token in ids if token >= self._vocabulary]:
            told = f"its tokenizer has token {unknown[0]}, and the model {self._vocabulary} tokens, counted from 0"
            raise wire.Refusal(f"the conversation holds what the model does not know: {told}")
        return ids

    def encode_more(self, text: str) -> list[int]:
        """Of a text behind other tokens: no beginning-of-sequence token."""
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)

    def piece(self, before: list[int], fresh: list[int]) -> str:
        """The text of `fresh` behind `before`; nothing while what comes may still change it.

        `before` is the piece in front of it: some decoders treat what they begin with differently.  A decoder of bytes
        as tokens of their own makes up its mind about a run of them at its end only.
        """
        last = next((token for token in reversed(fresh) if token not in self._silent), None)
        if last is None or last in self._bytes:
            return ""
        text = self.decode(before + fresh)
        return "" if text.endswith(HALF) else text[len(self.decode(before)) :]

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def ends_with(self, ids: list[int], stops: tuple[str, ...]) -> bool:
        """Whether the text of `ids` has come to contain one of `stops` by its last token.

        Only the tail is decoded: no visible token is shorter than a byte, and the first few of a tail may decode
        differently than in the middle of a text.
        """
        if not stops or ids[-1] in self._special:
            return False
        length = max(len(stop.encode()) for stop in stops) + 8
        visible = [token for token in ids[-4 * length :] if token not in self._special]
        tail = self.decode(visible[-length:])
        return any(stop in tail for stop in stops)

    def stopped(self, ids: list[int], stops: list[str]) -> int | None:
        """How many of the tokens it takes to complete one of `stops`; None if all of them do not."""

        def complete(count: int) -> bool:
            text = self.decode(ids[:count])
            return any(stop in text for stop in stops)

        if not (stops and complete(len(ids))):
            return None
        return bisect_left(range(len(ids)), True, key=complete) if complete(len(ids) - 1) else len(ids)

    def _end_ids(self) -> frozenset[int]:
        ends = {self._tokenizer.eos_token_id} - {None}
        if self._tokenizer.chat_template is not None:
            messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
            rendered: str = self._tokenizer.apply_chat_template(messages, tokenize=False)
            after = rendered[rendered.rindex(ANSWER) + len(ANSWER) :]
            following = self._tokenizer(after, add_special_tokens=False).input_ids[:1]
            ends |= {token for token in following if token in self._special}
        return frozenset(ends)


class Pieces:
    """The text of a completion in whole characters, as its tokens come.  Joined they are `decode` of all of them."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._before: list[int] = []
        self._fresh: list[int] = []
        self._told = 0

    def add(self, token: int) -> str:
        self._fresh.append(token)
        if piece := self._text.piece(self._before, self._fresh):
            self._before, self._fresh = self._fresh, []
            self._told += len(piece)
        return piece

    def rest(self, whole: str) -> str:
        """What of the whole text was held back."""
        return whole[self._told :]


def _told(error: Exception) -> str:
    """A template's own words; what Python says needs the kind of error to be understood."""
    return str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
