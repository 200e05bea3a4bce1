"""Training batches as packed bins in which a group's prompt is computed once for all its samples in the bin.

    groups --split, first fit decreasing--> bins of parts --lay out--> token rows

    bin = [prompt of group 3 | sample | sample | sample][prompt of group 0 | sample | ...]

A part is one prompt with some of its samples; `max_tokens_per_gpu` bounds a bin, and a sample that is longer alone
gets a bin of its own.  A sample's last token predicts nothing, so it is never an input.
"""

from __future__ import annotations

import msgspec
import torch

from tttdd.domain.batch import Group, Sample


class Part(msgspec.Struct, frozen=True):
    """Samples that share one copy of their group's prompt; both are indexes into the batch."""

    group: int
    samples: tuple[int, ...]


Bin = tuple[Part, ...]


class Block(msgspec.Struct, frozen=True):
    """Lengths of a part's stretches of tokens, in the order in which they lie in the bin."""

    prompt: int
    samples: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.prompt + sum(self.samples)


class Layout(msgspec.Struct, frozen=True):
    """A bin as tensors.  T: tokens that go through the model; N: sampled tokens that take part in the loss."""

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    """Place in its own sequence: samples count on from the end of their prompt."""
    blocks: tuple[Block, ...]
    rows_N: torch.Tensor
    """Row of the token before each trained token: the one whose hidden state predicts it."""
    targets_N: torch.Tensor
    logq_N: torch.Tensor
    """The sampler's log-probs, float64."""
    advantage_N: torch.Tensor


def pack(groups: list[Group], limit: int) -> list[Bin]:
    """Every trained sample of `groups` in exactly one bin of at most `limit` tokens, where that can be.

    Samples without a single trained token are left out: they take no part in the loss.
    Raises ValueError for a sample that cannot be trained on.
    """
    parts = [part for index, group in enumerate(groups) for part in _split(index, group, limit)]
    sizes = [_block(groups[part.group], part).tokens for part in parts]
    return [tuple(parts[index] for index in chosen) for chosen in first_fit(sizes, limit)]


def first_fit(sizes: list[int], capacity: int) -> list[list[int]]:
    """First fit decreasing: indexes of `sizes` by bin; what exceeds `capacity` alone lies alone."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        place = next((place for place, room in enumerate(rooms) if sizes[index] <= room), len(bins))
        if place == len(bins):
            bins.append([])
            rooms.append(capacity)
        bins[place].append(index)
        rooms[place] -= sizes[index]
    return bins


def deal(groups: list[Group], bins: list[Bin], hands: int) -> list[list[Bin]]:
    """Every bin to one of `hands`, the largest first to the one with the fewest tokens; in their old order there."""
    sizes = [sum(_block(groups[part.group], part).tokens for part in parts) for parts in bins]
    dealt: list[list[int]] = [[] for _ in range(hands)]
    tokens = [0] * hands
    for index in sorted(range(len(bins)), key=lambda index: -sizes[index]):
        hand = tokens.index(min(tokens))
        dealt[hand].append(index)
        tokens[hand] += sizes[index]
    return [[bins[index] for index in sorted(chosen)] for chosen in dealt]


def lay_out(groups: list[Group], parts: Bin) -> Layout:
    """The tensors of one bin."""
    tokens: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    trained: list[tuple[int, float, float]] = []
    for part in parts:
        group = groups[part.group]
        prompt = len(group.prompt_ids)
        last = len(tokens) + prompt - 1
        tokens += group.prompt_ids
        positions += range(prompt)
        for sample in (group.samples[index] for index in part.samples):
            before = [last, *range(len(tokens), len(tokens) + _width(sample))]
            rows += [row for row, taken in zip(before, sample.loss_mask, strict=True) if taken]
            trained += _trained(sample)
            tokens += sample.token_ids[:-1]
            positions += range(prompt, prompt + _width(sample))
    targets, logq, advantage = zip(*trained, strict=True) if trained else ((), (), ())
    return Layout(
        tokens_T=torch.tensor(tokens),
        positions_T=torch.tensor(positions),
        blocks=tuple(_block(groups[part.group], part) for part in parts),
        rows_N=torch.tensor(rows, dtype=torch.long),
        targets_N=torch.tensor(targets, dtype=torch.long),
        logq_N=torch.tensor(logq, dtype=torch.float64),
        advantage_N=torch.tensor(advantage, dtype=torch.float64),
    )


def _split(index: int, group: Group, limit: int) -> list[Part]:
    """A group as one part, or as several that repeat the prompt when it does not fit into one bin."""
    _check(group)
    kept = [number for number, sample in enumerate(group.samples) if any(sample.loss_mask)]
    widths = [_width(group.samples[number]) for number in kept]
    room = limit - len(group.prompt_ids)
    chosen = [list(range(len(kept)))] if sum(widths) <= room else first_fit(widths, room)
    return [Part(index, tuple(sorted(kept[place] for place in places))) for places in chosen if places]


def _check(group: Group) -> None:
    if not group.prompt_ids:
        raise ValueError("a group of the batch has an empty prompt: nothing predicts its first sampled token")
    for sample in group.samples:
        if not len(sample.token_ids) == len(sample.logprobs) == len(sample.loss_mask):
            raise ValueError("a sample of the batch has token, log-prob and mask lists of different lengths")


def _block(group: Group, part: Part) -> Block:
    return Block(len(group.prompt_ids), tuple(_width(group.samples[index]) for index in part.samples))


def _width(sample: Sample) -> int:
    return len(sample.token_ids) - 1


def _trained(sample: Sample) -> list[tuple[int, float, float]]:
    """Token, sampler's log-prob and advantage of each token whose mask is set."""
    tokens = zip(sample.token_ids, sample.logprobs, sample.loss_mask, strict=True)
    return [(token, logprob, sample.advantage) for token, logprob, taken in tokens if taken]
