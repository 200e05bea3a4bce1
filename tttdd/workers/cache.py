"""Keys and values of decoding rows: a group's prompt once, each row's own tokens beside it, one softmax over both.

    scores = [ queries of a group @ its prefix | query of a row @ its suffix ] -> softmax -> split -> values of each

Slots 0..used-1 are live; a slot that ends takes the last one's place, so that live slots are always one view.
Sizes are rounded up (padding is masked to zero weight): with at least 16 columns a matrix product computes each column
alike whatever stands beside it, which makes a row's numbers independent of its neighbours.

Shape suffixes: G prefixes, R rows of a prefix (padded), N rows, H query heads, K key heads, Q queries a key head,
C head size, P prefix length, S suffix length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tttdd.workers.decoder import Shape

COLUMNS = 16
LENGTHS = 64


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class SlotCache:
    """Keys and values, each [layers, slots, key heads, length, head size]."""

    def __init__(self, shape: Shape) -> None:
        self._keys = torch.zeros(shape.layers, 0, shape.key_heads, 0, shape.head_size)
        self._values = self._keys.clone()

    def reserve(self, slots: int, length: int) -> None:
        """Room for that many; grows by at least half, so that growing stays rare."""
        _, have_slots, _, have_length, _ = self._keys.shape
        if slots > have_slots or length > have_length:
            slots = have_slots if slots <= have_slots else max(slots, have_slots * 3 // 2)
            length = have_length if length <= have_length else round_up(max(length, have_length * 3 // 2), LENGTHS)
            grow = (0, 0, 0, length - have_length, 0, 0, 0, slots - have_slots)
            self._keys, self._values = functional.pad(self._keys, grow), functional.pad(self._values, grow)

    def view(self, layer: int, slots: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `slots`, flattened to [slots * key heads, length, head size]."""
        keys, values = self._keys[layer, :slots], self._values[layer, :slots]
        return keys.flatten(0, 1)[:, :length], values.flatten(0, 1)[:, :length]

    def write(self, layer: int, slots_N: Tensor, at_N: Tensor, keys_NKC: Tensor, values_NKC: Tensor) -> None:
        self._keys[layer][slots_N, :, at_N] = keys_NKC
        self._values[layer][slots_N, :, at_N] = values_NKC

    def move(self, source: int, target: int) -> None:
        self._keys[:, target] = self._keys[:, source]
        self._values[:, target] = self._values[:, source]


class Layout(NamedTuple):
    """Where the rows of one decoding step stand."""

    gather_GR: Tensor
    """Row in each place of the padded groups, flattened; row 0 where a place is empty."""
    place_N: Tensor
    """Place of each row among the padded groups."""
    prefix_mask_G11P: Tensor
    suffix_mask_N11S: Tensor
    slots_N: Tensor
    last_N: Tensor
    """Suffix position that this step writes."""


def lay_out(prefix_of_row: list[int], prefix_lengths: list[int], suffix_lengths: list[int], group: int) -> Layout:
    """`suffix_lengths` count the token of this step; `group` is the number of query heads a key head serves."""
    members: list[list[int]] = [[] for _ in prefix_lengths]
    for row, prefix in enumerate(prefix_of_row):
        members[prefix].append(row)
    width = round_up(max(map(len, members)), -(-COLUMNS // group))
    place_N = torch.empty(len(prefix_of_row), dtype=torch.int64)
    for prefix, rows in enumerate(members):
        place_N[rows] = torch.arange(len(rows)) + prefix * width
    return Layout(
        torch.tensor([rows + [0] * (width - len(rows)) for rows in members]).flatten(),
        place_N,
        _mask(prefix_lengths),
        _mask(suffix_lengths),
        torch.arange(len(prefix_of_row)),
        torch.tensor(suffix_lengths) - 1,
    )


def _mask(lengths: list[int]) -> Tensor:
    inside = torch.arange(round_up(max(lengths), LENGTHS)) < torch.tensor(lengths).unsqueeze(1)
    return torch.zeros(inside.shape).masked_fill_(~inside, float("-inf"))[:, None, None]


def attend(queries_NHC: Tensor, prefixes: tuple[Tensor, Tensor], suffixes: tuple[Tensor, Tensor], at: Layout) -> Tensor:
    """Each row over its group's prefix and its own suffix, [N, H, C]."""
    groups, rows = len(at.prefix_mask_G11P), len(queries_NHC)
    size = queries_NHC.shape[-1]
    heads = prefixes[0].shape[0] // groups
    queries = (queries_NHC * size**-0.5).view(rows, heads, -1, size)
    before = _grouped(queries, at, groups) @ prefixes[0].transpose(1, 2)
    before = before.view(groups, heads, -1, before.shape[-1]) + at.prefix_mask_G11P
    own = torch.bmm(queries.flatten(0, 1), suffixes[0].transpose(1, 2))
    own = own.view(rows, heads, -1, own.shape[-1]) + at.suffix_mask_N11S
    weights = torch.cat([_ungrouped(before, at, queries.shape[2]), own], -1).softmax(-1)
    before, own = weights.split([before.shape[-1], own.shape[-1]], -1)
    from_prefix = (_grouped(before, at, groups) @ prefixes[1]).view(groups, heads, -1, size)
    from_suffix = torch.bmm(own.flatten(0, 1), suffixes[1]).view_as(queries)
    return from_suffix.add_(_ungrouped(from_prefix, at, queries.shape[2])).view(rows, -1, size)


def _grouped(rows_NKQX: Tensor, at: Layout, groups: int) -> Tensor:
    """[N, K, Q, X] -> [G K, R Q, X]: the rows of a group side by side, ready for its prefix."""
    _, heads, group, width = rows_NKQX.shape
    placed = rows_NKQX.index_select(0, at.gather_GR).view(groups, -1, heads, group, width)
    return placed.transpose(1, 2).reshape(groups * heads, -1, width)


def _ungrouped(grouped_GKXX: Tensor, at: Layout, group: int) -> Tensor:
    """[G, K, R Q, X] -> [N, K, Q, X]"""
    groups, heads, _, width = grouped_GKXX.shape
    placed = grouped_GKXX.view(groups, heads, -1, group, width).transpose(1, 2)
    return placed.reshape(-1, heads, group, width).index_select(0, at.place_N)
