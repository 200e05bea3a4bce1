"""Which programs to improve next: PUCT over the whole archive, one lineage each.

    Q_i     = best_child_i if visited and a valid child was reported, else reward_i
    P_i     = (N - rank_i) / (N (N + 1) / 2)           rank 0 = highest reward
    score_i = Q_i + c * scale * P_i * sqrt(1 + T) / (1 + n_i)

`scale` is the spread of the rewards of non-seed nodes.  Algorithm, section 1 (TTT-Discover, arXiv:2601.16175).
"""

from __future__ import annotations

import heapq
import math

from tttdd.domain.archive import Archive, Node

MIN_SCALE = 1e-6


def select_parents(archive: Archive, groups: int, c: float) -> list[Node]:
    """The `groups` parents of a step, best score first; no pick is another's ancestor.

    The archive must hold at least `groups` roots: a pick blocks its own tree alone.
    """
    score = scores(archive, c)
    queue = [(-score[node.id], -node.reward, node.id) for node in archive]
    heapq.heapify(queue)  # a few of the best are looked at, seldom all
    picks: dict[int, Node] = {}
    above: set[int] = set()
    while queue and len(picks) < groups:
        node = archive.nodes[heapq.heappop(queue)[-1]]
        lineage = {ancestor.id for ancestor in archive.ancestors(node)}
        if node.id not in above and lineage.isdisjoint(picks):
            picks[node.id] = node
            above |= lineage
    assert len(picks) == groups, f"{len(picks)} unrelated nodes for {groups} groups"
    return list(picks.values())


def scores(archive: Archive, c: float) -> dict[int, float]:
    """PUCT score of every node, by id."""
    ranked, size = archive.ranked(), len(archive)
    explore = c * _scale(ranked) * math.sqrt(1 + archive.expansions)
    priors = size * (size + 1) / 2
    return {
        node.id: _value(node) + explore * ((size - rank) / priors) / (1 + node.visits)
        for rank, node in enumerate(ranked)
    }


def _value(node: Node) -> float:
    return node.best_child if node.visits and node.best_child is not None else node.reward


def _scale(ranked: list[Node]) -> float:
    rewards = [node.reward for node in ranked if not node.seed] or [node.reward for node in ranked]
    return max(rewards[0] - rewards[-1], MIN_SCALE)
