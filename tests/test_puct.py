"""PUCT: the worked example of the algorithm's page, and a naive reference."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tttdd.domain.archive import Archive, Child, Node
from tttdd.domain.puct import scores, select_parents


def worked_example() -> Archive:
    nodes = [
        Node(id=0, program="s", reward=-0.50, seed=True, visits=3, best_child=-0.40),
        Node(id=1, program="a", reward=-0.40, parent=0, visits=1, best_child=-0.385),
        Node(id=2, program="b", reward=-0.42, parent=0),
        Node(id=3, program="c", reward=-0.385, parent=1),
    ]
    return Archive(nodes, expansions=3, next_id=4)


def test_the_worked_example_comes_out() -> None:
    expected = {0: -0.39825, 1: -0.3745, 2: -0.406, 3: -0.357}
    assert scores(worked_example(), 1.0) == pytest.approx(expected, abs=1e-12)


def test_a_pick_blocks_its_ancestors_and_descendants_but_not_its_cousins() -> None:
    archive = worked_example()
    assert [node.id for node in select_parents(archive, 1, 1.0)] == [3]
    assert [node.id for node in select_parents(archive, 2, 1.0)] == [3, 2]


def test_a_good_descendant_of_a_pick_is_blocked() -> None:
    nodes = [
        Node(id=0, program="a", reward=1.0, seed=True, visits=3, best_child=9.0),
        Node(id=1, program="b", reward=0.0, seed=True),
        Node(id=2, program="c", reward=8.0, parent=0),
        Node(id=3, program="d", reward=7.0, parent=2),
    ]
    archive = Archive(nodes, expansions=3, next_id=4)
    assert [node.id for node in select_parents(archive, 2, 0.0)] == [0, 1]


def test_a_visited_node_without_a_valid_child_keeps_its_own_reward() -> None:
    archive = Archive([Node(id=0, program="", reward=0.25, seed=True, visits=8)], expansions=8, next_id=1)
    assert scores(archive, 0.0) == {0: 0.25}


def test_seeds_alone_set_the_scale_over_all_nodes() -> None:
    archive = Archive()
    archive.seed(2, reward=1.0)
    assert scores(archive, 1.0) == pytest.approx({0: 1 + 1e-6 * 2 / 3, 1: 1 + 1e-6 / 3})


def test_equal_seeds_are_picked_oldest_first() -> None:
    archive = Archive()
    archive.seed(4, program="x = 1", reward=2.0)
    assert [node.id for node in select_parents(archive, 4, 1.0)] == [0, 1, 2, 3]


def naive(archive: Archive, groups: int, c: float) -> list[int]:
    """Section 1 as it is written: argmax over unblocked nodes, then block the pick's whole lineage."""
    nodes = list(archive)
    n = len(nodes)
    pool = [x.reward for x in nodes if not x.seed] or [x.reward for x in nodes]
    scale = max(max(pool) - min(pool), 1e-6)
    rank = {x.id: k for k, x in enumerate(sorted(nodes, key=lambda x: x.reward, reverse=True))}
    score = {}
    for x in nodes:
        q = x.reward if x.visits == 0 or x.best_child is None else x.best_child
        p = (n - rank[x.id]) / (n * (n + 1) / 2)
        score[x.id] = q + c * scale * p * math.sqrt(1 + archive.expansions) / (1 + x.visits)
    up = {x.id: {a.id for a in archive.ancestors(x)} for x in nodes}
    picks, blocked = [], set()
    while len(picks) < groups:
        pick = max((x for x in nodes if x.id not in blocked), key=lambda x: (score[x.id], x.reward, -x.id))
        picks.append(pick.id)
        blocked |= {pick.id} | up[pick.id] | {x.id for x in nodes if pick.id in up[x.id]}
    return picks


@st.composite
def searches(draw: st.DrawFn) -> tuple[Archive, int]:
    """An archive as some steps of a search leave it, and its number of groups."""
    groups, rewards = draw(st.integers(1, 4)), st.integers(0, 30).map(lambda x: x / 10)
    archive = Archive()
    archive.seed(groups, reward=draw(rewards))
    for step in range(draw(st.integers(0, 4))):
        for parent in draw(st.lists(st.sampled_from(sorted(archive.nodes)), unique=True, max_size=groups)):
            found = draw(st.lists(rewards, max_size=3))
            children = [Child(program=f"x = {step, parent, i}", reward=r, step=step) for i, r in enumerate(found)]
            archive.record_group(parent, children, 3)
        archive.prune(draw(st.integers(1, 12)), 2)
    return archive, groups


@given(searches(), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_selection_equals_the_naive_reference(search: tuple[Archive, int], c: float) -> None:
    archive, groups = search
    assert [node.id for node in select_parents(archive, groups, c)] == naive(archive, groups, c)


@pytest.mark.parametrize("seed", range(3))
def test_selection_equals_the_naive_reference_on_deep_lineages_of_many_equal_rewards(seed: int) -> None:
    archive, chance = Archive(), random.Random(seed)
    archive.seed(8, reward=1.0)
    for step in range(40):
        for parent in select_parents(archive, 8, 1.0):
            found = [parent.reward + chance.choice([-0.1, 0.0, 0.0, 0.05]) for _ in range(chance.randrange(5))]
            children = [Child(program=f"x = {step, parent.id, i}", reward=r, step=step) for i, r in enumerate(found)]
            archive.record_group(parent.id, children, 5)
        archive.prune(150, 2)
        assert [node.id for node in select_parents(archive, 8, 1.0)] == naive(archive, 8, 1.0)
    assert max(len(list(archive.ancestors(node))) for node in archive) > 10


@given(searches())
def test_always_as_many_unrelated_parents_as_groups(search: tuple[Archive, int]) -> None:
    archive, groups = search
    picks = select_parents(archive, groups, 1.0)
    assert len({node.id for node in picks}) == groups
    ids = {node.id for node in picks}
    assert not any(ancestor.id in ids for node in picks for ancestor in archive.ancestors(node))
