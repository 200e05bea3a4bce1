"""The metrics row under its public names, and what makes two runs the same."""

from typing import Literal

import pytest

from judges.verdict import Reason, Verdict
from tttdd.config import Grid, Trainer
from tttdd.domain import metrics
from tttdd.domain.archive import Archive
from tttdd.domain.identity import differences, identity
from tttdd.ports import Sampled


def outcome(
    reward: float, program: str | None, reason: Reason = "", finish: Literal["stop", "length"] = "stop", tokens=4
):
    sampled = Sampled([1] * tokens, [-1.0] * tokens, [tokens < 10] + [True] * (tokens - 1), "", finish, 0)
    return sampled, program, Verdict(valid=not reason, reward=reward, reason=reason)


def test_a_grid_tells_its_rewards_its_failures_and_its_lengths() -> None:
    row = metrics.grid_row(
        *(5, 2, 3),
        [
            outcome(2.0, "x = 1"),
            outcome(4.0, "x = 1 # again"),
            outcome(0.0, None, "no code", "length", 10),
            *[outcome(0.0, "y", "wrong type")] * 3,
        ],
    )
    assert {name.removeprefix("tttd/"): value for name, value in row.items()} == {
        "step": 5,
        "grid_groups": 2,
        "grid_rollouts": 6,
        "reward_min": 0.0,
        "reward_max": 4.0,
        "reward_mean": 1.0,
        "reward_std": pytest.approx((14 / 6) ** 0.5),
        "reward_zero_fraction": pytest.approx(4 / 6),
        "constant_groups": 1,
        "constant_groups_removed": 1,
        "valid_fraction": pytest.approx(2 / 6),
        "distinct_programs": 2,
        "thinking_closed_fraction": pytest.approx(1 / 6),
        "truncated_fraction": pytest.approx(1 / 6),
        "failures/no_code": 1,
        "failures/wrong_type": 3,
        "rollout/response_length_mean": 5.0,
    }


def test_of_constant_groups_alone_one_is_not_removed() -> None:
    row = metrics.grid_row(0, 2, 3, [outcome(1.0, "x")] * 6)
    assert (row["tttd/constant_groups"], row["tttd/constant_groups_removed"]) == (2, 1)


def test_an_archive_without_an_objective_tells_none() -> None:
    archive = Archive()
    archive.seed(2, reward=1.5)
    assert metrics.archive_row(archive) == {"archive/size": 2, "archive/best_reward": 1.5}


def test_what_the_trainer_cannot_tell_is_left_out() -> None:
    assert metrics.train_row({"loss": 0.5, "mfu": None, "seconds": 3.0}) == {"train/loss": 0.5}


def this_run(judge: str = "grade", rollouts: int = 8, rank: int = 32, packed: int = 4096):
    settings = {"grid": Grid(rollouts=rollouts), "trainer": Trainer(rank=rank, max_tokens_per_gpu=packed)}
    return identity(task={"judge": judge}, model={"revision": "abc"}, settings=settings, seed=1)


def test_the_same_experiment_on_other_devices_is_the_same() -> None:
    assert differences(this_run(packed=4096), this_run(packed=8192)) == []


def test_differences_are_named() -> None:
    assert differences(this_run(), this_run(judge="other", rollouts=16)) == ["grid.rollouts", "task.judge"]
    assert differences({"a": None}, {}) == ["a"]
