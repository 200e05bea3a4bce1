"""The serving proof (algorithm, section 7): each way to fail, and what must not fail."""

from __future__ import annotations

import msgspec

from tttdd.domain.proof import Evidence, fault

BASE = [-1.0, -2.0, -3.0]
MOVED = [-1.001, -2.002, -2.997]
FLOOR = 1e-6
GOOD = Evidence(engine=MOVED, trainer=MOVED, engine_base=BASE, trainer_base=BASE, trainer_previous=BASE, floor=FLOOR)


def but(**changes: object) -> Evidence:
    return msgspec.structs.replace(GOOD, **changes)


def test_an_engine_that_agrees_with_the_trainer_is_proved() -> None:
    assert fault(GOOD) is None


def test_an_engine_that_serves_the_base_is_caught_even_inside_the_limit() -> None:
    assert but(engine=BASE).gap < GOOD.limit
    assert "answers like the base" in (fault(but(engine=BASE)) or "")


def test_an_engine_that_kept_the_previous_release_is_caught_even_inside_the_limit() -> None:
    previous = [-1.002, -2.001, -2.998]
    assert "previous release" in (fault(but(engine=previous, trainer_previous=previous)) or "")


def test_a_gap_above_the_limit_is_caught_with_both_numbers() -> None:
    message = fault(but(engine=[value - 0.02 for value in MOVED])) or ""
    assert "0.02" in message and "0.01" in message


def test_log_probs_that_are_not_numbers_are_caught() -> None:
    assert fault(but(engine=[float("nan"), -2.0, -3.0])) is not None


def test_weights_that_did_not_move_need_no_shift() -> None:
    assert fault(but(engine=BASE, trainer=BASE)) is None


def test_a_coarse_floor_widens_the_limit() -> None:
    assert but(floor=0.05).limit == 0.15000000000000002
