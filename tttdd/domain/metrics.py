"""The metrics row of a step, under the public names of the API and of the tracker.

grid_row + archive_row, when the grid is full;  train_row, when the release is trained
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from tttdd.domain.archive import Archive, normal_form
from tttdd.domain.grid import trainable


class Answer(Protocol):
    """What the metrics need of a sampled completion."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def loss_mask(self) -> Sequence[bool]: ...


class Judged(Protocol):
    """What the metrics need of a verdict."""

    @property
    def valid(self) -> bool: ...
    @property
    def reward(self) -> float: ...
    @property
    def reason(self) -> str: ...


def grid_row(
    step: int, groups: int, rollouts: int, outcomes: Sequence[tuple[Answer, str | None, Judged]]
) -> dict[str, float]:
    """Metrics of a full grid; `outcomes` are (completion, program, verdict) in coordinate order."""
    answers = [answer for answer, _, _ in outcomes]
    verdicts = [verdict for _, _, verdict in outcomes]
    rewards = [verdict.reward for verdict in verdicts]
    by_group = [rewards[group * rollouts : (group + 1) * rollouts] for group in range(groups)]
    return {
        "tttd/step": step,
        "tttd/grid_groups": groups,
        "tttd/grid_rollouts": len(outcomes),
        **_rewards(rewards),
        "tttd/constant_groups": sum(len(set(group)) == 1 for group in by_group),
        "tttd/constant_groups_removed": groups - len(trainable(by_group)),
        "tttd/valid_fraction": statistics.fmean(verdict.valid for verdict in verdicts),
        "tttd/distinct_programs": len({normal_form(program) for _, program, _ in outcomes if program is not None}),
        "tttd/truncated_fraction": statistics.fmean(answer.finish_reason == "length" for answer in answers),
        "tttd/thinking_closed_fraction": statistics.fmean(not all(answer.loss_mask) for answer in answers),
        **_failures(verdicts),
        "rollout/response_length_mean": statistics.fmean(len(answer.token_ids) for answer in answers),
    }


def archive_row(archive: Archive) -> dict[str, float]:
    best = archive.best
    row: dict[str, float] = {"archive/size": len(archive), "archive/best_reward": best.reward}
    return row | ({} if best.objective is None else {"archive/best_objective": best.objective})


def train_row(report: Mapping[str, float | None]) -> dict[str, float]:
    """What the trainer said of its step, by its own names; what it could not tell is left out."""
    return {f"train/{name}": value for name, value in report.items() if value is not None and name != "seconds"}


def _rewards(rewards: Sequence[float]) -> dict[str, float]:
    return {
        "tttd/reward_min": min(rewards),
        "tttd/reward_max": max(rewards),
        "tttd/reward_mean": statistics.fmean(rewards),
        "tttd/reward_std": statistics.pstdev(rewards),
        "tttd/reward_zero_fraction": statistics.fmean(reward == 0 for reward in rewards),
    }


def _failures(verdicts: Sequence[Judged]) -> dict[str, float]:
    reasons = Counter(verdict.reason for verdict in verdicts if not verdict.valid)
    return {f"tttd/failures/{reason.replace(' ', '_')}": count for reason, count in sorted(reasons.items())}
