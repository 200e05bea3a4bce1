"""The serving proof (algorithm, section 7): each way to fail, and what must not fail."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from tttdd.domain.proof import Evidence, distance, fault

BASE = [-1.0 - 0.01 * (place % 7) for place in range(400)]
MOVE = [0.003 * math.sin(place) for place in range(400)]
MOVED = [a + b for a, b in zip(BASE, MOVE, strict=True)]
FLOOR = 1e-6
ROUNDING = 0.002
GOOD = Evidence(
    engine=MOVED,
    trainer=MOVED,
    engine_base=BASE,
    trainer_base=BASE,
    engine_previous=BASE,
    trainer_previous=BASE,
    floor=FLOOR,
)


def rounded(logprobs: list[float], seed: int, times: float = 1.0) -> list[float]:
    """As bfloat16 would have it, so that a move is mostly noise in every token."""
    draw = random.Random(seed)
    return [value + draw.gauss(0, times * ROUNDING) for value in logprobs]


def but(**changes: object) -> Evidence:
    return msgspec.structs.replace(GOOD, **changes)


def test_an_engine_that_agrees_with_the_trainer_is_proved() -> None:
    assert fault(GOOD) is None


def test_an_engine_that_serves_the_base_is_caught_even_inside_the_limit() -> None:
    assert but(engine=BASE).gap < GOOD.limit
    assert "answers like the base" in (fault(but(engine=BASE)) or "")


def test_an_engine_that_kept_the_previous_release_is_caught_even_inside_the_limit() -> None:
    previous = [a + 0.8 * b for a, b in zip(BASE, MOVE, strict=True)]
    stuck = but(engine=previous, engine_previous=previous, trainer_previous=previous)
    assert stuck.gap < stuck.limit
    assert "the release before" in (fault(stuck) or "")


def noisy(release: list[float], served: list[float], seed: int) -> Evidence:
    """Engine and trainer of a large probe, each pass with rounding of its own."""
    passes = {
        "engine_base": rounded(BASE * 5, seed),
        "trainer_base": rounded(BASE * 5, seed + 100),
        "engine": rounded(served * 5, seed + 200),
        "trainer": rounded(release * 5, seed + 300),
    }
    floor = distance(passes["engine_base"], passes["trainer_base"])
    base = {"engine_previous": passes["engine_base"], "trainer_previous": passes["trainer_base"]}
    return Evidence(floor=floor, **passes, **base)


@pytest.mark.parametrize("seed", range(5))
def test_a_move_as_small_as_rounding_is_still_seen_over_many_tokens(seed: int) -> None:
    moved = [a + 1.5 * b for a, b in zip(BASE, MOVE, strict=True)]
    right = noisy(moved, moved, seed)
    assert right.since_base.value == pytest.approx(1, abs=0.2)
    assert fault(right) is None
    stale = noisy(moved, BASE, seed)
    assert stale.gap < stale.limit
    assert "answers like the base" in (fault(stale) or "")


@pytest.mark.parametrize("seed", range(20))
def test_rounding_in_the_trainer_is_never_taken_for_an_engine_that_stayed(seed: int) -> None:
    for size in (0.1, 0.3, 0.6, 1.0):
        moved = [a + size * b for a, b in zip(BASE, MOVE, strict=True)]
        assert fault(noisy(moved, moved, seed)) is None


@pytest.mark.parametrize("seed", range(20))
def test_rounding_that_has_grown_with_what_was_learned_is_not_taken_for_a_part_of_the_move(seed: int) -> None:
    """Seen on a GPU in a run's 497th step: a right release was refused."""
    learned = [a + 0.3 * math.sin(2 * place) for place, a in enumerate(BASE)]

    def later(size: float, served_share: float) -> Evidence:
        moved, served = (
            [a + size * share * b for a, b in zip(learned, MOVE, strict=True)] for share in (1, served_share)
        )
        passes = {"engine": served, "trainer": moved, "engine_previous": learned, "trainer_previous": learned}
        noise = {name: rounded(each * 5, seed + 400 + 100 * k, 2) for k, (name, each) in enumerate(passes.items())}
        return msgspec.structs.replace(noisy(BASE, BASE, seed), **noise)

    assert [fault(later(size, 1)) for size in (1, 2, 4)] == [None] * 3
    assert later(4, 0).gap < later(4, 0).limit
    assert "the release before" in (fault(later(4, 0)) or "")


def test_a_move_that_cannot_be_told_from_rounding_is_not_held_against_the_engine() -> None:
    tiny = [a + 1e-6 * math.sin(place) for place, a in enumerate(BASE)]
    evidence = but(engine=rounded(BASE, 1), trainer=tiny, floor=0.005)
    assert not evidence.since_base.believed
    assert fault(evidence) is None


def test_a_gap_above_the_limit_is_caught_with_both_numbers() -> None:
    message = fault(but(engine=[value - 0.02 for value in MOVED])) or ""
    assert "0.02" in message and "0.01" in message


def test_log_probs_that_are_not_numbers_are_caught() -> None:
    assert fault(but(engine=[float("nan"), *MOVED[1:]])) is not None


def test_weights_that_did_not_move_need_no_shift() -> None:
    assert fault(but(engine=BASE, trainer=BASE)) is None


def test_a_coarse_floor_widens_the_limit() -> None:
    assert but(floor=0.05).limit == 0.15000000000000002


def test_an_engine_that_has_made_only_part_of_a_plain_move_is_caught_inside_the_limit() -> None:
    part = [a + 0.6 * b for a, b in zip(BASE, MOVE, strict=True)]
    assert but(engine=part).gap < GOOD.limit
    assert "it has made 0.6" in (fault(but(engine=part)) or "")
