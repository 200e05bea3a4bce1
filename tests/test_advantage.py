"""Entropic advantages: the vectors of the algorithm's page, and what must hold of any rewards."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tttdd.domain.advantage import TARGET, beta, divergence, entropic

VECTORS = {
    "ladder": ([0, 1, 2, 3], 1.4458592238, [-0.969633, -0.866698, -0.338701, 8.865418]),
    "one winner of four": ([0, 0, 0, 1], 2.5532449092, [-0.797963] * 3 + [11.848729]),
    "one winner of 64": ([0] * 63 + [2.6], 1.2922611821, [-0.306058] * 63 + [27.785710]),
    "three of four tie": ([1, 1, 1, 0], 2.0**20, [0.5, 0.5, 0.5, -1]),
    "40 of 64 tie": ([2.6] * 40 + [0] * 24, 2.0**20, [0.615385] * 40 + [-1] * 24),
    "close race": (
        [0, 0, 2.5, 2.6, 2.61, 2.62, 2.6205, 2.6206],
        119.40116848,
        [-1, -1, -0.999999, -0.81311, -0.342848, 1.76614, 2.00947, 2.06143],
    ),
}

rewards = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=3, max_size=20)
unequal = rewards.filter(lambda row: min(row) < max(row))


@pytest.mark.parametrize("name", VECTORS)
def test_the_published_vectors_come_out(name: str) -> None:
    given_rewards, expected_beta, expected = VECTORS[name]
    assert beta(given_rewards) == pytest.approx(expected_beta, rel=1e-9, abs=1e-9)
    assert entropic(given_rewards) == pytest.approx(expected, rel=3e-6, abs=1e-6)


def test_equal_rewards_have_no_advantage() -> None:
    assert entropic([1.0] * 4) == pytest.approx([-1e-12] * 4, rel=1e-3)
    assert beta([1.0] * 4) == 2.0**20


@pytest.mark.parametrize("bad", [[], [0, 1], [0, 1, math.nan], [0, 1, math.inf]])
def test_too_few_or_infinite_rewards_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="at least 3 finite"):
        entropic(bad)


@given(unequal)
def test_the_weights_are_ln_2_from_uniform_unless_no_beta_gets_there(row: list[float]) -> None:
    found = beta(row)
    if found < 2.0**20:
        assert divergence(found, row) == pytest.approx(TARGET, abs=1e-9)
    else:
        assert divergence(found, row) <= TARGET or row.count(max(row)) * 2 == len(row)


@given(unequal)
def test_a_higher_reward_never_has_a_lower_advantage(row: list[float]) -> None:
    pairs = sorted(zip(row, entropic(row), strict=True))
    assert all(a <= b + 1e-9 * abs(b) for (_, a), (_, b) in itertools.pairwise(pairs))
    assert min(row) < max(row) and pairs[-1][1] > 0 > pairs[0][1]


@given(unequal, st.integers(-1000, 1000))
def test_a_common_shift_of_the_rewards_changes_nothing(row: list[float], shift: int) -> None:
    if beta(row) < 1e3:
        assert entropic([reward + shift for reward in row]) == pytest.approx(entropic(row), rel=1e-4, abs=1e-4)


@given(unequal, st.randoms(use_true_random=False))
def test_the_order_of_the_rollouts_is_irrelevant(row: list[float], random) -> None:
    order = random.sample(range(len(row)), len(row))
    plain, shuffled = entropic(row), entropic([row[i] for i in order])
    assert shuffled == pytest.approx([plain[i] for i in order], rel=1e-9)
