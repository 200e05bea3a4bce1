"""A tokenizer of bytes in the place of transformers, whose import takes seconds: for tests of processes alone."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType, SimpleNamespace


class PreTrainedTokenizerFast:
    all_special_ids = (0,)
    eos_token_id = 0
    chat_template = None
    backend_tokenizer = SimpleNamespace(token_to_id=lambda name: None)
    added_tokens_decoder = MappingProxyType[int, object]({})

    @classmethod
    def from_pretrained(cls, folder: Path) -> PreTrainedTokenizerFast:
        return cls()

    def __call__(self, text: str, add_special_tokens: bool = True) -> SimpleNamespace:
        return SimpleNamespace(input_ids=list(text.encode()))
