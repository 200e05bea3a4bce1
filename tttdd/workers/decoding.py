"""Continuous batching: rows of one release decode together; they join when asked for and leave when they end.

    prompt -> prefill once -> its last log-probs draw the first token of every row that shares it
    step: last tokens of all rows -> forward -> log-softmax over the vocabulary -> one draw a row

A row draws by inverse CDF from uniforms of its own seeded generator, one a token.  So the same prompt, weights and seed
give the same tokens, alone or in any company, where the log-probs are the same.  Those are because padding keeps each
matrix product in the form whose columns do not depend on each other (see `cache`): tested with the library at hand on
one machine, not promised by it.  Elsewhere a token can differ if its draw falls on the border between two tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tttdd.workers.cache import COLUMNS, SlotCache, attend, lay_out
from tttdd.workers.decoder import Weights, forward, logprobs

if TYPE_CHECKING:
    from tttdd.workers.text import Pieces

SCORE_CHUNK = 256


@dataclass
class Row:
    """A completion in the making."""

    request: int
    prompt: tuple[int, ...]
    release: int
    stop: tuple[str, ...]
    uniforms: list[float]
    """One a token: as many as the completion may have."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    pieces: Pieces | None = None
    """Where somebody listens."""


@dataclass
class Prefix:
    prompt: tuple[int, ...]
    logprobs_1V: Tensor
    rows: int = 0


def uniforms(seed: int, count: int) -> list[float]:
    generator = torch.Generator().manual_seed(seed % 2**63)
    return torch.rand(count, dtype=torch.float64, generator=generator).tolist()


class Decoding:
    """The live rows of one release.  Memory grows with them and goes with this object."""

    def __init__(self, weights: Weights, rope: Tensor) -> None:
        self._weights, self._rope = weights, rope
        self._prefixes: list[Prefix] = []
        self._prefix_cache = SlotCache(weights.shape)
        self._row_cache = SlotCache(weights.shape)
        self._prefix_of: list[Prefix] = []
        self.rows: list[Row] = []

    def join(self, row: Row) -> int:
        """Adds a row and draws its first token; returns the prompt tokens that had to go through the model."""
        prefix = next((prefix for prefix in self._prefixes if prefix.prompt == row.prompt), None)
        known = prefix is not None
        if prefix is None:
            prefix = self._prefill(row.prompt)
        prefix.rows += 1
        self.rows.append(row)
        self._prefix_of.append(prefix)
        _draw(prefix.logprobs_1V, [row])
        return 0 if known else len(row.prompt)

    def leave(self, row: Row) -> None:
        """The last row takes the place of the one that leaves; a prefix that nobody shares goes the same way."""
        slot, prefix = self.rows.index(row), self._prefix_of[self.rows.index(row)]
        self._row_cache_move(slot)
        prefix.rows -= 1
        if not prefix.rows:
            slot = self._prefixes.index(prefix)
            last = self._prefixes.pop()
            if last is not prefix:
                self._prefixes[slot] = last
                self._prefix_cache.move(len(self._prefixes), slot)

    def _row_cache_move(self, slot: int) -> None:
        row, prefix = self.rows.pop(), self._prefix_of.pop()
        if slot < len(self.rows):
            self.rows[slot], self._prefix_of[slot] = row, prefix
            if len(row.tokens) > 1:
                self._row_cache.move(len(self.rows), slot)

    def _prefill(self, prompt: tuple[int, ...]) -> Prefix:
        slot, length = len(self._prefixes), len(prompt)
        self._prefix_cache.reserve(slot + 1, length)
        slots_N, at_N = torch.full((length,), slot), torch.arange(length)

        def attend_and_keep(layer: int, queries_NHC: Tensor, keys_NKC: Tensor, values_NKC: Tensor) -> Tensor:
            self._prefix_cache.write(layer, slots_N, at_N, keys_NKC, values_NKC)
            return _causal(layer, queries_NHC, keys_NKC, values_NKC)

        hidden_DN = forward(self._weights, self._rope, torch.tensor(prompt), at_N, attend_and_keep)
        last_DN = functional.pad(hidden_DN[:, -1:], (0, COLUMNS - 1))
        self._prefixes.append(Prefix(prompt, logprobs(self._weights, last_DN)[:1]))
        return self._prefixes[-1]

    def step(self) -> None:
        """One more token for every row."""
        shape, count = self._weights.shape, len(self.rows)
        index = {id(prefix): number for number, prefix in enumerate(self._prefixes)}
        at = lay_out(
            [index[id(prefix)] for prefix in self._prefix_of],
            [len(prefix.prompt) for prefix in self._prefixes],
            [len(row.tokens) for row in self.rows],
            shape.heads // shape.key_heads,
        )
        before, own = at.prefix_mask_G11P.shape[-1], at.suffix_mask_N11S.shape[-1]
        self._row_cache.reserve(count, own)
        padding = max(COLUMNS - count, 0)

        def attend_both(layer: int, queries_NHC: Tensor, keys_NKC: Tensor, values_NKC: Tensor) -> Tensor:
            self._row_cache.write(layer, at.slots_N, at.last_N, keys_NKC[:count], values_NKC[:count])
            prefixes = self._prefix_cache.view(layer, len(self._prefixes), before)
            suffixes = self._row_cache.view(layer, count, own)
            return functional.pad(attend(queries_NHC[:count], prefixes, suffixes, at), (0, 0, 0, 0, 0, padding))

        tokens_N = torch.tensor([row.tokens[-1] for row in self.rows] + [0] * padding)
        positions = [len(row.prompt) + len(row.tokens) - 1 for row in self.rows]
        hidden_DN = forward(self._weights, self._rope, tokens_N, torch.tensor(positions + [0] * padding), attend_both)
        _draw(logprobs(self._weights, hidden_DN)[:count], self.rows)


def _draw(logprobs_NV: Tensor, rows: list[Row]) -> None:
    """Appends to each row one token, drawn with the row's next uniform from its distribution."""
    cumulative_NV = logprobs_NV.exp().cumsum(-1, dtype=torch.float64)
    uniforms_N1 = torch.tensor([[row.uniforms[len(row.tokens)]] for row in rows], dtype=torch.float64)
    drawn_N1 = torch.searchsorted(cumulative_NV, uniforms_N1 * cumulative_NV[:, -1:], right=True)
    drawn_N1.clamp_(max=logprobs_NV.shape[1] - 1)
    chosen = logprobs_NV.gather(1, drawn_N1).squeeze(1).tolist()
    for row, token, logprob in zip(rows, drawn_N1.squeeze(1).tolist(), chosen, strict=True):
        row.tokens.append(token)
        row.logprobs.append(logprob)


def score(weights: Weights, rope: Tensor, prompt: list[int], completion: list[int]) -> list[float]:
    """Log-probs of the completion's tokens after the prompt, in nats, from one forward pass."""
    tokens_N = torch.tensor(prompt + completion)
    hidden_DN = forward(weights, rope, tokens_N, torch.arange(len(tokens_N)), _causal)
    predicting_DN = hidden_DN[:, len(prompt) - 1 : -1]
    parts = zip(predicting_DN.split(SCORE_CHUNK, 1), torch.tensor(completion).split(SCORE_CHUNK), strict=True)
    return torch.cat([logprobs(weights, part).gather(1, ids.unsqueeze(1)) for part, ids in parts]).squeeze(1).tolist()


def _causal(_: int, queries_NHC: Tensor, keys_NKC: Tensor, values_NKC: Tensor) -> Tensor:
    queries, keys, values = (part.transpose(0, 1).unsqueeze(0) for part in (queries_NHC, keys_NKC, values_NKC))
    attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    return attended[0].transpose(0, 1)
