"""Which programs to improve next: PUCT over the whole archive, one lineage each.

    Q_i     = best_child_i if visited and a valid child was reported, else reward_i
    P_i     = (N - rank_i) / (N (N + 1) / 2)           rank 0 = highest reward
    score_i = Q_i + c * scale * P_i * sqrt(1 + T) / (1 + n_i)

`scale` is the spread of the rewards of non-seed nodes.  Algorithm, section 1 (TTT-Discover, arXiv:2601.16175).
"""

from __future__ import annotations

import math

from tttdd.domain.archive import Archive, Node

MIN_SCALE = 1e-6


def select_parents(archive: Archive, groups: int, c: float) -> list[Node]:
    """The `groups` parents of a step, best score first; no pick is another's ancestor.

    The archive must hold at least `groups` roots: a pick blocks its own tree alone.
    """
    score = scores(archive, c)
    picks: dict[int, Node] = {}
    above: set[int] = set()
    for node in sorted(archive, key=lambda node: (-score[node.id], -node.reward, node.id)):
        lineage = {ancestor.id for ancestor in archive.ancestors(node)}
        if node.id in above or lineage & picks.keys():
            continue
        picks[node.id] = node
        above |= lineage
        if len(picks) == groups:
            break
    assert len(picks) == groups, f"{len(picks)} unrelated nodes for {groups} groups"
    return list(picks.values())


def scores(archive: Archive, c: float) -> dict[int, float]:
    """PUCT score of every node, by id."""
    size = len(archive)
    explore = c * _scale(archive) * math.sqrt(1 + archive.expansions)
    result: dict[int, float] = {}
    for rank, node in enumerate(sorted(archive, key=lambda node: (-node.reward, node.id))):
        prior = (size - rank) / (size * (size + 1) / 2)
        result[node.id] = _value(node) + explore * prior / (1 + node.visits)
    return result


def _value(node: Node) -> float:
    return node.best_child if node.visits and node.best_child is not None else node.reward


def _scale(archive: Archive) -> float:
    rewards = [node.reward for node in archive if not node.seed] or [node.reward for node in archive]
    return max(max(rewards) - min(rewards), MIN_SCALE)
