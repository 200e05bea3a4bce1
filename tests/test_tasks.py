"""The tasks' numbers: every vector of the specification to 12 digits, every broken rule refused with its reason."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import math
import time
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges import exact
from judges import task as tasks
from judges.promised import beside, promises
from judges.task import TaskError

VECTORS = Path(__file__).parent / "vectors"
BUILT_IN = ["autocorrelation_1", "autocorrelation_2", "circle_packing_26", "circle_packing_32", "erdos_min_overlap"]


@functools.cache
def judge(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, tasks.load(name).judge)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def helpers(name: str) -> Any:
    return beside(str(tasks.load(name).judge))


def grade(name: str, returned: Any) -> Any:
    artifact = returned if isinstance(returned, bytes) else json.dumps(returned).encode()
    return judge(name).grade(artifact)


def erdos(heights: Any, bound: Any = 0.4, points: Any = None) -> Any:
    return grade("erdos_min_overlap", [heights, bound, len(heights) if points is None else points])


def vector(name: str, key: str) -> list[Any]:
    return json.loads((VECTORS / f"{name}.json").read_text())[key]


def packing(circles: list[list[float]]) -> list[Any]:
    return [[[x, y] for x, y, _ in circles], [r for *_, r in circles], 99.0]


@pytest.mark.parametrize(
    ("heights", "bound"),
    [([0.5], 0.5), ([0.5] * 7, 0.5), ([1, 0], 1), ([0, 1, 1, 0], 0.5), ([0.25, 0.75, 0.75, 0.25], 0.40625)],
)
def test_small_step_functions_have_the_overlap_worked_out_by_hand(heights: list[float], bound: float) -> None:
    verdict = erdos(heights)
    assert verdict.valid
    assert verdict.objective == pytest.approx(bound, abs=1e-15)
    assert verdict.reward == pytest.approx(1 / (1e-8 + bound), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("erdos_haugland2016_51", 0.38092685343308713),
        ("erdos_alphaevolve_v2_95", 0.38092303510845016),
        ("erdos_ttt_discover_600", 0.3808753232177187),
        ("erdos_hyra_1024", 0.38085942236531456),
    ],
)
def test_published_step_functions_have_their_published_overlap(name: str, bound: float) -> None:
    assert erdos(vector(name, "sequence")).objective == pytest.approx(bound, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "values", "bound"),
    [
        ("autocorrelation_1", [1.0], 2),
        ("autocorrelation_1", [1] * 7, 2),
        ("autocorrelation_1", [1, 2, 1], 2.25),
        ("autocorrelation_1", [1, 2, 1, -5], 3),
        ("autocorrelation_1", [0.01], 2),
        ("autocorrelation_2", [1.0], 2 / 3),
        ("autocorrelation_2", [1] * 7, 2 / 3),
        ("autocorrelation_2", [1, 2, 1], 0.6805555555555555),
        ("autocorrelation_2", [1, 2, 1, -5], 0.6805555555555555),
    ],
)
def test_small_functions_have_the_bound_worked_out_by_hand(name: str, values: list[float], bound: float) -> None:
    verdict = grade(name, values)
    assert verdict.valid
    assert verdict.objective == pytest.approx(bound, abs=1e-15)
    assert verdict.reward == pytest.approx(1 / (1e-8 + bound) if name.endswith("1") else bound, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("ac1_prev_human_208", 1.5097201507458793),
        ("ac1_ae_v1_600", 1.5052939684401607),
        ("ac1_alphaevolve_v2_150316_1319", 1.5031635546815607),
        ("ac1_thetaevolve_150313_1319", 1.5031324359797773),
    ],
)
def test_published_functions_have_their_published_bound(name: str, bound: float) -> None:
    verdict = grade("autocorrelation_1", vector(name, "sequence"))
    assert verdict.objective == pytest.approx(bound, abs=1e-12)
    assert verdict.certificate["exact_objective"] == pytest.approx(bound, abs=1e-12)
    assert verdict.certificate["exact_agrees"] is True


@pytest.mark.parametrize("name", ["autocorrelation_1", "autocorrelation_2"])
@pytest.mark.parametrize("scale", [2.0**-5, 3.7, 1e161, 1e307])
def test_the_scale_of_a_function_does_not_matter(name: str, scale: float) -> None:
    values = vector("ac1_ae_v1_600", "sequence")
    scaled = [value * scale for value in values]
    assert grade(name, scaled).objective == pytest.approx(grade(name, values).objective, abs=1e-12)


@pytest.mark.parametrize("name", ["autocorrelation_1", "autocorrelation_2"])
@pytest.mark.parametrize(
    ("returned", "reason", "words"),
    [
        ([1e-161] * 3, "constraint", "is 3e-161; it must be at least 0.01"),
        ([5e-324, 0], "constraint", "must be at least 0.01"),
        ([-1.0, -2.0], "constraint", "negatives counted as 0, is 0"),
        ([], "wrong shape", "empty"),
        ([True, 1], "wrong type", "got `bool`"),
        ([[1.0]], "wrong type", "got `array`"),
        ({"f": [1]}, "wrong type", "got `object`"),
        (b"[1, NaN]", "wrong type", "NaN"),
        (b"[1e309]", "wrong type", "out of range"),
    ],
)
def test_a_function_that_breaks_a_rule_is_refused(name: str, returned: Any, reason: str, words: str) -> None:
    verdict = grade(name, returned)
    assert (verdict.valid, verdict.reward, verdict.reason) == (False, 0.0, reason)
    assert words in verdict.detail


def test_the_claimed_bound_is_recorded_and_not_rewarded() -> None:
    verdict = erdos([0.5, 0.5], bound=0.1)
    assert (verdict.objective, verdict.reported) == (0.5, 0.1)
    assert verdict.certificate["reported_agrees"] is False


def test_heights_off_the_mean_are_rescaled() -> None:
    assert erdos([0.1, 0.3, 0.3, 0.1]).objective == pytest.approx(0.40625, abs=1e-12)


@pytest.mark.parametrize(
    ("returned", "reason", "words"),
    [
        ([[0.5] * 4096, 0.5, 4096.9999], "wrong shape", "n_points is 4096.9999"),
        ([[0.1, 0.1, 0.9], 0.5, 3], "constraint", "rescaled to the mean 1/2 must lie in [0, 1]: value 2 is 1.227"),
        ([[1.5, 0.5], 0.5, 2], "constraint", "value 0 is 1.5"),
        ([[-0.1, 0.5], 0.5, 2], "constraint", "value 0 is -0.1"),
        ([[0, 0], 0.5, 2], "constraint", "all h_values are 0"),
        ([[5e-324, 0], 0.5, 2], "constraint", "too small to be rescaled"),
        ([[], 0.5, 0], "wrong shape", "empty"),
        ([[0.5, True], 0.5, 2], "wrong type", "got `bool`"),
        ([[0.5, "0.5"], 0.5, 2], "wrong type", "got `str` at returned[0][1]"),
        ([[[0.5], [0.5]], 0.5, 2], "wrong type", "got `array`"),
        ([[0.5, 0.5], 0.5], "wrong shape", "length 3"),
        ([[0.5, 0.5], 0.5, None], "wrong type", "got `null`"),
        (b"[[0.5, NaN], 0.5, 2]", "wrong type", "a returned number is NaN"),
        (b"[[0.5, 1], -Infinity, 2]", "wrong type", "a returned number is Infinity"),
        (b"[[0.5, 1e999], 0.5, 2]", "wrong type", "out of range"),
        (b"[[0.5," + b"9" * 900_000 + b"], 0.5, 2]", "wrong type", "out of range"),
        (b"[" * 900_000, "wrong type", "expected (h_values, c5_bound, n_points)"),
        (b"", "wrong type", "not JSON"),
    ],
)
def test_a_step_function_that_breaks_a_rule_is_refused(returned: Any, reason: str, words: str) -> None:
    verdict = grade("erdos_min_overlap", returned)
    assert (verdict.valid, verdict.reward, verdict.reason) == (False, 0.0, reason)
    assert words in verdict.detail


@given(st.integers(0, 2**32), st.integers(4097, 6000))
def test_long_step_functions_agree_with_the_direct_sum(seed: int, n: int) -> None:
    heights = np.random.default_rng(seed).random(n)
    direct = np.correlate(heights, 1 - heights, "full").max() * 2 / n
    assert helpers("erdos_min_overlap")._overlap(heights) == pytest.approx(direct, abs=1e-12)


@pytest.mark.parametrize("name", ["autocorrelation_1", "autocorrelation_2"])
def test_long_functions_agree_with_the_exact_value(name: str) -> None:
    for seed, n in enumerate((4097, 5000, 9001)):
        verdict = grade(name, (np.random.default_rng(seed).random(n) ** 3).tolist())
        assert verdict.certificate["exact_agrees"] is True
        assert verdict.objective == pytest.approx(verdict.certificate["exact_objective"], rel=1e-13)


@pytest.mark.parametrize(
    ("name", "bound"), [("erdos_min_overlap", 0.5), ("autocorrelation_1", 2.0), ("autocorrelation_2", 2 / 3)]
)
def test_the_longest_functions_are_graded_in_seconds(name: str, bound: float) -> None:
    n = 500_009
    values = np.random.default_rng(0).uniform(0.4, 0.6, n)
    returned = json.dumps([(values / values.mean() / 2).tolist(), 0, n] if name[0] == "e" else values.tolist()).encode()
    begun = time.process_time()
    verdict = judge(name).grade(returned)
    assert time.process_time() - begun < 6
    assert verdict.objective == pytest.approx(bound, abs=2e-3)
    assert verdict.certificate["exact_recheck"] == "not done: too many digits"


ODD_NUMBERS = [0.0, -0.0, 5e-324, 1e-308, 1e-13, -1e-13, 0.5, 1.0, 1 + 1e-13, 1e308, -1e308, 2**70]
odd = st.sampled_from(ODD_NUMBERS) | st.floats(allow_nan=False, allow_infinity=False)


def finite_or_refused(verdict: Any) -> bool:
    numbers = [verdict.reward, verdict.objective, *verdict.certificate.values()]
    return all(map(math.isfinite, numbers)) if verdict.valid else verdict.reward == 0 and bool(verdict.reason)


@given(st.lists(odd, min_size=1, max_size=5), odd)
def test_no_step_function_of_odd_numbers_breaks_the_judge_or_has_an_endless_reward(values: Any, bound: float) -> None:
    assert finite_or_refused(erdos(values, bound))


@given(st.lists(odd, min_size=1, max_size=5))
def test_no_function_of_odd_numbers_breaks_the_judge_or_has_an_endless_reward(values: Any) -> None:
    for name in ("autocorrelation_1", "autocorrelation_2"):
        verdict = grade(name, values)
        assert finite_or_refused(verdict)
        assert verdict.certificate.get("exact_agrees", True)


numbers = st.lists(st.floats(0, 1) | st.just(0.0) | st.just(1.0), min_size=1, max_size=6)


@given(numbers.filter(any))
def test_exact_sums_are_the_sums_of_the_floats_as_fractions(values: list[float]) -> None:
    scaled = exact.integers(np.array(values))
    assert scaled is not None
    unit = Fraction(max(values)) / max(scaled)
    assert [unit * integer for integer in scaled] == [Fraction(value) for value in values]
    lags = range(2 * len(scaled) - 1)
    pairs = [(i, k - i, k) for k in lags for i in range(len(scaled)) if 0 <= k - i < len(scaled)]
    expected = [sum(scaled[i] * scaled[j] for i, j, at in pairs if at == k) for k in lags]
    assert exact.sums(scaled, scaled) == expected


@given(numbers)
def test_the_exact_overlap_is_that_of_the_rescaled_fractions(values: list[float]) -> None:
    verdict = erdos(values)
    if not verdict.valid:
        return
    n, total = len(values), sum(map(Fraction, values))
    h = [Fraction(value) * n / 2 / total for value in values]
    lags = range(1 - n, n)
    overlap = max(sum(h[x + k] * (1 - h[x]) for x in range(n) if 0 <= x + k < n) for k in lags)
    assert verdict.certificate["exact_objective"] == float(overlap * 2 / n)
    assert verdict.certificate["in_range_exactly"] is (max(h) <= 1)
    assert verdict.certificate["exact_agrees"] is True


def test_a_height_that_only_rounding_keeps_in_range_is_told() -> None:
    certificate = erdos(vector("erdos_haugland2016_51", "sequence")).certificate
    assert certificate["in_range_exactly"] is False
    assert 0 < certificate["exceeds_1_by"] < 1e-16


def test_a_float_that_is_off_by_more_than_rounding_does_not_agree() -> None:
    assert exact.certificate(0.5, Fraction(1, 2) + Fraction(2, 10**12))["exact_agrees"] is False
    assert exact.certificate(0.5, Fraction(1, 2) + Fraction(1, 10**13))["exact_agrees"] is True


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), odd), max_size=6))
def test_no_packing_of_odd_numbers_breaks_the_judge_or_has_an_endless_reward(changes: Any) -> None:
    circles = grid_of_circles(26, 0.0)
    for circle, place, value in changes:
        circles[circle][place] = value
    assert finite_or_refused(grade("circle_packing_26", packing(circles)))


def test_a_center_outside_is_never_feasible_at_zero_slack() -> None:
    for radius in (0.0, 5e-324):
        verdict = grade("circle_packing_26", packing([[-1e-13, 0.5, radius], *grid_of_circles(26, 0.01)[1:]]))
        assert verdict.valid and verdict.certificate["feasible_at_zero_slack"] is False
        assert verdict.certificate["sum_after_shrink"] == 0


def test_the_published_packing_is_valid_even_without_slack() -> None:
    verdict = grade("circle_packing_26", packing(vector("circle_packing_26_ttt_repo", "circles")))
    assert verdict.objective == pytest.approx(2.6359773947542573, abs=1e-12)
    assert verdict.reported == 99.0
    assert verdict.certificate["feasible_at_zero_slack"] is True
    assert verdict.certificate["tolerance_exploitation"] is False


def test_a_packing_that_overlaps_by_a_billionth_is_refused() -> None:
    centered = vector("circle_packing_26_hyra_centered", "circles_centered")
    verdict = grade("circle_packing_26", packing([[x + 0.5, y + 0.5, r] for x, y, r in centered]))
    assert (verdict.valid, verdict.reason) == (False, "constraint")
    assert "by 9.8e-10" in verdict.detail


def test_a_packing_in_another_frame_is_refused() -> None:
    verdict = grade("circle_packing_26", packing(vector("circle_packing_26_hyra_centered", "circles_centered")))
    assert verdict.reason == "constraint"
    assert "leaves the unit square" in verdict.detail


def grid_of_circles(n: int, radius: float) -> list[list[float]]:
    return [[(2 * (i % 6) + 1) / 12, (2 * (i // 6) + 1) / 12, radius] for i in range(n)]


@pytest.mark.parametrize("n", [26, 32])
def test_the_certificate_measures_what_lives_on_slack(n: int) -> None:
    verdict = grade(f"circle_packing_{n}", packing(grid_of_circles(n, 1 / 12 + 4e-13)))
    assert verdict.valid
    assert verdict.certificate["feasible_at_zero_slack"] is False
    assert verdict.certificate["sum_after_shrink"] == pytest.approx(n / 12, abs=1e-13)
    assert verdict.certificate["sum_after_shrink"] < verdict.reward


def test_circles_closer_than_any_square_of_a_float_can_tell_are_certified_at_once() -> None:
    circles = [[1e-170, 1e-170, 5e-13], [1e-170 + 1.75e-174, 1e-170, 5e-13], *[[0.5, 0.5, 0.0]] * 24]
    begun = time.process_time()
    verdict = grade("circle_packing_26", packing(circles))
    assert time.process_time() - begun < 2
    assert verdict.valid is False or verdict.certificate["feasible_at_zero_slack"] is False


@pytest.mark.parametrize(("n", "record"), [(26, 2.635983085), (32, 2.9395727713)])
def test_a_sum_above_the_record_is_marked_as_tolerance_exploitation(n: int, record: float) -> None:
    assert record == judge(f"circle_packing_{n}").BEST_KNOWN
    shared = importlib.import_module("judges.packing")
    returned = json.dumps(packing(grid_of_circles(n, 0.08))).encode()
    rules = helpers(f"circle_packing_{n}")
    assert shared.grade(returned, n, 0.08 * n - 1e-9, rules).certificate["tolerance_exploitation"] is True
    assert shared.grade(returned, n, 0.08 * n + 1e-9, rules).certificate["tolerance_exploitation"] is False


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        (lambda p: [p[0], p[1][:-1], 1.0], "wrong shape", "26 centers and 25 radii"),
        (lambda p: [p[0] + [[0.5, 0.5]], p[1] + [0.0], 1.0], "wrong shape", "27 centers"),
        (lambda p: [[[*c, 0.0] for c in p[0]], p[1], 1.0], "wrong shape", "length 2"),
        (lambda p: [p[0], [[r] for r in p[1]], 1.0], "wrong type", "got `array`"),
        (lambda p: [p[0], [-0.01, *p[1][1:]], 1.0], "constraint", "circle 0 has the negative radius -0.01"),
        (lambda p: [p[0], [0.09, *p[1][1:]], 1.0], "constraint", "circle 0 leaves the unit square by 6.7e-03"),
        (lambda p: [p[0], [*p[1][:14], 0.09, *p[1][15:]], 1.0], "constraint", "overlap of circles 8 and 14 by 3.3e-03"),
        (lambda p: [p[0], [float("nan"), *p[1][1:]], 1.0], "wrong type", "NaN"),
        (lambda p: [[[True, 0.5], *p[0][1:]], p[1], 1.0], "wrong type", "got `bool`"),
        (lambda p: p[:2], "wrong shape", "length 3"),
    ],
)
def test_a_packing_that_breaks_a_rule_is_refused(change: Any, reason: str, words: str) -> None:
    verdict = grade("circle_packing_26", change(packing(grid_of_circles(26, 0.08))))
    assert (verdict.valid, verdict.reward, verdict.reason) == (False, 0.0, reason)
    assert words in verdict.detail


def test_every_built_in_task_loads_with_a_starter_and_one_region() -> None:
    assert tasks.names() == BUILT_IN
    for name in tasks.names():
        task = tasks.load(name)
        assert task.starter and task.starter_program
        assert task.starter.count("⟦") == task.starter.count("⟧") == 1
        assert "⟧]" in task.starter
        compile(task.starter_program, name, "exec")
        assert len(task.starter.splitlines()) <= 25


def test_the_instruction_tells_the_limit_that_is_enforced() -> None:
    task = tasks.load("erdos_min_overlap")
    text = task.limited(5.0).told
    assert "budget_s=5," in text and "killed at 5.5 seconds" in text and "1000" not in text
    assert "{" not in text.replace("{0", "")
    assert task.limited(5.0).call.kwargs == {"seed": 42, "budget_s": 5.0}


def test_an_instruction_shows_the_helpers_that_are_there() -> None:
    for name in BUILT_IN:
        task = tasks.load(name)
        assert "\n    def evaluate(" in task.told and "{helpers}" not in task.told
        assert set(promises(task.helpers)) <= set(vars(helpers(name)))
    assert "\n    initial_h_values: list[float]\n" in tasks.load("erdos_min_overlap").told


def test_helpers_with_the_same_name_are_the_same_code() -> None:
    """A program sees one file only, so that each task has its own copy."""
    for own in ("_sums", "_largest", "_numbers", "_scaled", "_check"):
        found = {definition(tasks.load(name).helpers, own) for name in BUILT_IN} - {None}
        assert len({text.replace("C1", "C2") for text in found if text}) == 1, own


def definition(source: str, name: str) -> str | None:
    found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return ast.unparse(found[0]) if found else None


def copied_task(tmp_path: Path) -> Path:
    folder = tmp_path / "erdos_min_overlap"
    folder.mkdir()
    for file in tasks.load("erdos_min_overlap").folder.glob("*.*"):
        (folder / file.name).write_text(file.read_text())
    return folder


def test_a_task_of_ones_own_comes_before_the_built_in_one(tmp_path: Path) -> None:
    folder = copied_task(tmp_path)
    assert tasks.load("erdos_min_overlap", [tmp_path]).folder == folder
    assert tasks.load(str(folder)).folder == folder
    assert tasks.names([tmp_path]) == tasks.names()


@pytest.mark.parametrize("file", ["instruction.md", "judge.py", "starter.txt", "helpers.py"])
def test_a_changed_file_changes_the_identity(tmp_path: Path, file: str) -> None:
    folder = copied_task(tmp_path)
    assert tasks.load(str(folder)).identity == tasks.load("erdos_min_overlap").identity
    (folder / file).write_text((folder / file).read_text() + "\n")
    changed = tasks.load(str(folder)).identity.items() ^ tasks.load("erdos_min_overlap").identity.items()
    assert {key for key, _ in changed} == {file.partition(".")[0]}


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("task.toml", "seconds = 1000", "secs = 1000", "secs: Object contains unknown field"),
        ("task.toml", 'direction = "lower"', 'direction = "down"', "objective.direction"),
        ("task.toml", 'name = "erdos', 'name = "erdosh', "differs from the folder's"),
        ("task.toml", "[entry]", "[entry", "not valid TOML"),
        ("judge.py", "def grade", "def grades", "defines no function grade"),
        ("judge.py", "def grade(", "def grade(:", "judge.py:24: it is not Python"),
        ("helpers.py", "def evaluate(", "def evaluate(:", "helpers.py:14: it is not Python"),
        ("task.toml", 'helpers = "helpers.py"', 'helpers = "none.py"', "No such file"),
        ("starter.txt", "⟧", "", "at most one editable region"),
    ],
)
def test_a_task_that_cannot_be_used_says_where_and_why(
    tmp_path: Path, file: str, old: str, new: str, words: str
) -> None:
    folder = copied_task(tmp_path)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    with pytest.raises(TaskError) as refused:
        tasks.load(str(folder))
    assert str(folder) in str(refused.value) and words in str(refused.value)


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TaskError, match=r"no task named 'erdos'.*" + ", ".join(BUILT_IN)):
        tasks.load("erdos")
