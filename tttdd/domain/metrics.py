"""The numbers that a full grid says of itself: the `tttd/`, `archive/` and `rollout/` part of a step's metrics row.

Names are the public ones of the API and of the tracker.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec

from tttdd.domain.archive import Archive, normal_form
from tttdd.domain.grid import trainable


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the metrics need of one judged rollout."""

    reward: float
    valid: bool
    reason: str = ""
    """Class of the rejection."""
    program: str | None
    truncated: bool
    tokens: int
    """Length of the response."""


def grid_metrics(step: int, groups: Sequence[Sequence[Outcome]]) -> dict[str, float]:
    """Metrics of a full grid, as groups of rollouts."""
    outcomes = [outcome for group in groups for outcome in group]
    training = trainable([[outcome.reward for outcome in group] for group in groups])
    constant = sum(len({outcome.reward for outcome in group}) == 1 for group in groups)
    return {
        "tttd/step": step,
        "tttd/grid_groups": len(groups),
        "tttd/grid_rollouts": len(outcomes),
        **_rewards([outcome.reward for outcome in outcomes]),
        "tttd/constant_groups": constant,
        "tttd/constant_groups_removed": len(groups) - len(training),
        "tttd/training_groups": len(training),
        "tttd/training_rollouts": sum(len(groups[group]) for group in training),
        "tttd/valid_fraction": statistics.fmean(outcome.valid for outcome in outcomes),
        "tttd/distinct_programs": len({normal_form(o.program) for o in outcomes if o.program is not None}),
        "tttd/truncated_fraction": statistics.fmean(outcome.truncated for outcome in outcomes),
        **_failures(outcomes),
        "rollout/response_length_mean": statistics.fmean(outcome.tokens for outcome in outcomes),
    }


def archive_metrics(archive: Archive) -> dict[str, float]:
    best = archive.best
    row: dict[str, float] = {"archive/size": len(archive), "archive/best_reward": best.reward}
    return row | ({} if best.objective is None else {"archive/best_objective": best.objective})


def _rewards(rewards: Sequence[float]) -> dict[str, float]:
    return {
        "tttd/reward_min": min(rewards),
        "tttd/reward_max": max(rewards),
        "tttd/reward_mean": statistics.fmean(rewards),
        "tttd/reward_std": statistics.pstdev(rewards),
        "tttd/reward_zero_fraction": statistics.fmean(reward == 0 for reward in rewards),
    }


def _failures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    reasons = Counter(outcome.reason for outcome in outcomes if not outcome.valid)
    return {f"tttd/failures/{reason.replace(' ', '_')}": count for reason, count in sorted(reasons.items())}
