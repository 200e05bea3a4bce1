"""Packing: each trained sample once, bins within the limit, prompts once per part."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tttdd.domain.batch import Group, Sample
from tttdd.workers.packing import Bin, deal, first_fit, lay_out, pack


def group(prompt: int, lengths: list[int], *, trained: bool = True) -> Group:
    return Group(list(range(prompt)), [Sample([50] * n, [-1.0] * n, [trained] * n, 1.5) for n in lengths])


shapes = st.lists(st.tuples(st.integers(1, 30), st.lists(st.integers(1, 40), min_size=1, max_size=8)), max_size=6)


def size(groups: list[Group], bin_: Bin) -> int:
    return len(lay_out(groups, bin_).tokens_T)


@given(shapes, st.integers(1, 90))
def test_each_sample_is_packed_once_and_only_a_lone_sample_exceeds_the_limit(shape, limit: int):
    groups = [group(prompt, lengths) for prompt, lengths in shape]
    bins = pack(groups, limit)
    packed = sorted((part.group, index) for bin_ in bins for part in bin_ for index in part.samples)
    assert packed == [(g, s) for g, one in enumerate(groups) for s in range(len(one.samples))]
    for bin_ in bins:
        assert size(groups, bin_) <= limit or (len(bin_) == 1 and len(bin_[0].samples) == 1)


@given(shapes)
def test_a_prompt_is_laid_out_once_when_its_group_fits(shape):
    groups = [group(prompt, lengths) for prompt, lengths in shape]
    total = sum(len(g.prompt_ids) + sum(len(s.token_ids) - 1 for s in g.samples) for g in groups)
    bins = pack(groups, 10_000)
    assert len(bins) == (1 if groups else 0)
    assert sum(size(groups, bin_) for bin_ in bins) == total


@given(st.lists(st.integers(0, 20), max_size=20), st.integers(1, 25))
def test_first_fit_opens_a_bin_only_when_no_open_one_has_room(sizes: list[int], capacity: int):
    bins = first_fit(sizes, capacity)
    rooms = [capacity - sum(sizes[i] for i in bin_) for bin_ in bins]
    for later in range(1, len(bins)):
        assert all(rooms[earlier] < sizes[bins[later][0]] for earlier in range(later))


@given(shapes, st.integers(1, 90), st.integers(1, 5))
def test_every_bin_is_dealt_once_and_no_hand_has_more_than_a_bin_too_much(shape, limit: int, hands: int):
    groups = [group(prompt, lengths) for prompt, lengths in shape]
    bins = pack(groups, limit)
    dealt = deal(groups, bins, hands)
    assert len(dealt) == hands
    assert sorted(map(repr, itertools.chain(*dealt))) == sorted(map(repr, bins))
    tokens = [sum(size(groups, bin_) for bin_ in hand) for hand in dealt]
    assert max(tokens) - min(tokens) <= max((size(groups, bin_) for bin_ in bins), default=0)
    assert deal(groups, bins, 1) == [bins]


def test_a_group_larger_than_a_bin_repeats_its_prompt():
    groups = [group(10, [11, 11, 11])]
    assert [[part.samples for part in bin_] for bin_ in pack(groups, 30)] == [[(0, 1)], [(2,)]]


def test_rows_are_those_before_each_trained_token_and_positions_go_on_after_the_prompt():
    sample = Sample([7, 8, 9], [-0.1, -0.2, -0.3], [True, False, True], 2.0)
    groups = [Group([1, 2], [sample, Sample([5], [-0.5], [True], -1.0)])]
    layout = lay_out(groups, pack(groups, 100)[0])
    assert layout.tokens_T.tolist() == [1, 2, 7, 8]
    assert layout.positions_T.tolist() == [0, 1, 2, 3]
    assert layout.rows_N.tolist() == [1, 3, 1]
    assert layout.targets_N.tolist() == [7, 9, 5]
    assert layout.logq_N.tolist() == [-0.1, -0.3, -0.5]
    assert layout.advantage_N.tolist() == [2.0, 2.0, -1.0]


def test_samples_without_a_trained_token_are_left_out():
    groups = [group(3, [4, 4], trained=False), group(3, [4])]
    assert [[part.group for part in bin_] for bin_ in pack(groups, 100)] == [[1]]
    assert pack(groups[:1], 100) == []


def test_what_nothing_can_be_predicted_from_is_refused():
    with pytest.raises(ValueError, match="empty prompt"):
        pack([group(0, [3])], 100)
    with pytest.raises(ValueError, match="different lengths"):
        pack([Group([1], [Sample([1, 2], [-1.0], [True, True], 0.0)])], 100)


def test_the_sampler_logprobs_keep_their_float64_digits():
    exact = -1.2345678901234567
    layout = lay_out([Group([1], [Sample([2], [exact], [True], 0.0)])], pack([group(1, [1])], 9)[0])
    assert layout.logq_N.dtype == torch.float64
    assert layout.logq_N.item() == exact
