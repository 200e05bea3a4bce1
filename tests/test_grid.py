"""The barrier's two questions: what is missing, and what can be trained."""

from hypothesis import given
from hypothesis import strategies as st

from tttdd.domain.grid import Coordinate, SecondRelease, missing, trainable

table = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=width, max_size=width), min_size=1)
)


def test_an_empty_grid_misses_every_coordinate_in_order() -> None:
    places = missing(7, 2, 3, set())
    assert places == sorted(places)
    assert [(p.step, p.group, p.rollout) for p in places] == [(7, g, r) for g in range(2) for r in range(3)]


@given(st.integers(1, 5), st.integers(1, 5), st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4))))
def test_recorded_and_missing_make_up_the_grid(groups: int, rollouts: int, taken: set[tuple[int, int]]) -> None:
    recorded = {Coordinate(3, group, rollout) for group, rollout in taken if group < groups and rollout < rollouts}
    rest = set(missing(3, groups, rollouts, recorded))
    assert not rest & recorded
    assert len(rest | recorded) == groups * rollouts


def test_what_was_recorded_of_another_step_fills_nothing() -> None:
    assert len(missing(1, 1, 3, {Coordinate(0, 0, 0)})) == 3


@given(table)
def test_exactly_the_groups_whose_rewards_differ_are_trained_or_group_0_alone(rewards: list[list[float]]) -> None:
    varied = [index for index, row in enumerate(rewards) if len(set(row)) > 1]
    assert trainable(rewards) == (varied or [0])


def test_a_second_release_is_refused_by_name() -> None:
    message = str(SecondRelease(Coordinate(4, 1, 2), 4, 5))
    assert "release 5" in message and "release 4" in message and "step 4, group 1, rollout 2" in message
