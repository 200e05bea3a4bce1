"""`tttctl task new` and `task check`: a folder that works, every mistake told plainly, a task outside the package in
the daemon, and what tasks promise their programs, called in the real sandbox."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from judges import evaluate, new
from judges import task as tasks
from judges.check import Report, check
from judges.evaluate import Evaluator, granted
from judges.grader import Grader, GraderFailed
from judges.sandbox import Sandbox
from judges.task import TaskError
from tttctl.client import Client
from tttctl.verbs import demo
from tttdd.adapters.catalog import JudgeCatalog
from tttdd.adapters.judge_pool import JudgePool
from tttdd.config import Config, Model, Tasks
from tttdd.protocol import TaskInfo

VECTORS = Path(__file__).parent / "vectors"


def tttctl(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tttctl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ | environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new.create("mine", tmp_path)


def changed(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))


def only_fault(report: Report) -> str:
    (fault,) = report.faults
    return f"{fault.file.rpartition('/')[2]}:{fault.line}: {fault.field}: {fault.message}"


def test_a_new_task_is_good_and_shows_what_a_rollout_would_see(tmp_path: Path) -> None:
    made = tttctl("task", "new", "mine", "--dir", tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    done = tttctl("task", "check", tmp_path / "mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"helpers: evaluate\n{tmp_path / 'mine'}: good\n")
    assert "It may use 1 CPU" in done.stdout and "def evaluate(points" in done.stdout
    assert "style completion" in done.stdout and "## Program 1, reward 0.30000" in done.stdout


def test_the_prompt_is_shown_in_the_form_and_with_the_limit_that_the_configuration_asks_for(
    folder: Path, tmp_path: Path
) -> None:
    config = tmp_path / "tttdd.toml"
    config.write_text('[model]\npath = "/x"\n[prompt]\nstyle = "chat"\n[judges]\ntime_limit = 7\nmemory_gib = 0.75\n')
    done = tttctl("task", "check", folder, "--json", TTTDD_CONFIG=str(config))
    report = json.loads(done.stdout)
    assert (done.returncode, report["faults"], report["prompt"]["style"]) == (0, [], "chat")
    assert "The program has 7 seconds" in report["prompt"]["text"] and "0.75 GiB" in report["told"]
    assert "has reward 0.3 (higher is better), smallest distance = 0.3" in report["prompt"]["text"]


def test_bad_usage_is_refused_and_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    (folder / "judge.py").write_text("mine")
    again = tttctl("task", "new", "mine", "--dir", tmp_path)
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    assert (folder / "judge.py").read_text() == "mine"
    with pytest.raises(TaskError, match="small letters"):
        new.create("Mine", tmp_path)
    none = tttctl("task", "check", tmp_path / "none")
    assert (none.returncode, "is not a folder" in none.stderr) == (2, True)


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("task.toml", "title =", "tittle =", "task.toml:3: tittle: Object contains unknown field `tittle`"),
        ("task.toml", "seconds = 60 ", 'seconds = "60"', "task.toml:16: limits.seconds: Expected `float`, got `str`"),
        ("task.toml", 'name = "mine"', 'name = "ours"', "task.toml:2: name: 'ours' differs from the folder's name"),
        ("task.toml", '"starter.txt"', '"none.txt"', "none.txt:None: : cannot read it: No such file or directory"),
        ("judge.py", "def grade", "def grades", "judge.py:None: : defines no function grade"),
        ("examples.json", '"objective": 0.5', '"objektive": 0.5', "unknown field `objektive`"),
        ("examples.json", '"objective": 0.5,', "", 'example 1 needs "returned" with "objective" or "reason"'),
        ("examples.json", '"why": "five', '"why" "five', "examples.json:2: : not valid JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_place(
    folder: Path, file: str, old: str, new: str, told: str
) -> None:
    changed(folder, file, old, new)
    assert told in only_fault(check(folder))


@pytest.mark.parametrize("file", ["task.toml", "instruction.md", "judge.py", "helpers.py"])
def test_a_missing_file_is_told(folder: Path, file: str) -> None:
    (folder / file).unlink()
    assert only_fault(check(folder)) == f"{file}:None: : cannot read it: No such file or directory"


def test_all_that_goes_wrong_in_one_check_is_told_at_once(folder: Path) -> None:
    changed(folder, "instruction.md", "{helpers}", "evaluate")
    changed(folder, "instruction.md", "{time_limit}", "60")
    changed(folder, "instruction.md", "place_points", "put")
    changed(folder, "starter.txt", "0, 1)", "0, 3)")
    changed(folder, "starter.txt", "0.5⟧", "9.5⟧")
    changed(folder, "examples.json", '"objective": 0.5', '"objective": 0.6')
    changed(
        folder, "examples.json", '"reason": "wrong type", "returned": "seven"', '"objective": 1, "returned": "seven"'
    )
    changed(folder, "examples.json", '"gives": 0.5', '"gives": 0.7')
    changed(folder, "examples.json", '"raises": "ValueError"', '"raises": "KeyError"')
    report = check(folder)
    told = [f"{fault.file.rpartition('/')[2]}: {fault.message}" for fault in report.faults]
    assert told[:3] == [
        "instruction.md: does not say that the program has to define place_points",
        "instruction.md: does not tell the time limit; write {time_limit} where the number belongs",
        "instruction.md: does not show the helpers; write {helpers} on a line of its own",
    ]
    assert "is rejected: constraint: point 2 lies outside the unit square: (0.12, 3)" in told[3]
    assert "example 1 (five on a cross, two on the border): expected objective 0.6, got objective 0.5" in told[4]
    assert "example 5 (no points at all): expected objective 1.0, got 'wrong type': Expected `array`" in told[5]
    assert "expected 0.7, got 0.5" in told[6]
    assert "expected KeyError raised, got ValueError: 2 points; expected 7" in told[7]
    assert report.examples == 3


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        (
            "judge.py",
            "    try:\n        points = decode",
            "    1 / 0\n    try:\n        points = decode",
            "judge.py:19: : raised an exception, which would end a run: ZeroDivisionError: division by zero",
        ),
        ("judge.py", "reward=distance", "reward=float('nan')", "reward or objective is not a finite number"),
        (
            "judge.py",
            "reward=distance",
            "reward=-distance",
            "judge.py:None: : rewards the starter with -0.3: a rejection",
        ),
        ("judge.py", ", objective=distance", "", "judge.py:None: : its verdict on the starter is valid but has no obj"),
        (
            "helpers.py",
            "import math",
            "import maths",
            "task.toml:None: helpers: cannot be run in a program's namespace: ModuleNotFound",
        ),
    ],
)
def test_what_would_go_wrong_in_a_run_goes_wrong_in_the_check(
    folder: Path, file: str, old: str, new: str, told: str
) -> None:
    changed(folder, file, old, new)
    (folder / "examples.json").unlink()
    assert told in only_fault(check(folder))


def test_a_judge_that_breaks_its_contract_is_told_and_numpys_numbers_are_numbers(tmp_path: Path) -> None:
    def graded(expression: str) -> Any:
        (tmp_path / "judge.py").write_text(
            f"import numpy as np\nfrom judges.verdict import Verdict\ndef grade(artifact):\n return {expression}\n"
        )
        return grader.grade(tmp_path / "judge.py", b"1")

    with Grader() as grader:
        verdict = graded("Verdict(valid=np.True_, reward=np.float64(2), certificate={'n': np.float32(1)})")
        assert (verdict.valid, verdict.reward, verdict.certificate) == (True, 2.0, {"n": 1.0})
        assert graded("Verdict(valid=True, reward=np.nan)").reason == "constraint"
        for expression, words in [
            ("None", "grade returned None in place of a Verdict"),
            ("{'reward': 1}", "in place of a Verdict"),
            ("Verdict(valid=True, reward='much')", "Expected `float`, got `str` - at `$.reward`"),
            ("Verdict(valid=True, objective=[1])", "at `$.objective`"),
        ]:
            with pytest.raises(GraderFailed) as failed:
                graded(expression)
            assert words in str(failed.value)


# A task outside the package


@contextmanager
def daemon_with(place: Path) -> Iterator[Client]:
    """The demo's private daemon: the real one."""
    with tempfile.TemporaryDirectory() as state, demo.private_daemon(Path(state), place) as client:
        yield client


def test_a_daemon_lists_a_task_of_ones_own_and_tells_what_is_wrong_with_another(folder: Path) -> None:
    broken = new.create("broken", folder.parent)
    changed(broken, "task.toml", "title =", "tittle =")
    with daemon_with(folder.parent) as client:
        found = {task.name: task for task in client.get("/v1/tasks", list[TaskInfo])}
        assert (found["mine"].objective, found["mine"].time_limit) == ("smallest distance", 5.0)
        assert "erdos_min_overlap" in found and "broken" not in found


def test_the_daemons_judges_run_a_task_of_ones_own_with_its_helpers(folder: Path) -> None:
    settings = Config(model=Model(path="/x"), tasks=Tasks(path=(str(folder.parent),)))

    async def main() -> None:
        async with JudgePool(1) as pool:
            assignment = JudgeCatalog(settings, pool).load("mine")
            assert "def evaluate(points" in assignment.prompt.instruction and assignment.judge
            assert (await assignment.judge.grade(assignment.starter)).objective == pytest.approx(0.3)
            asking = "def place_points(): return [[evaluate([[k / 6, 0] for k in range(7)]), k / 6] for k in range(7)]"
            assert (await assignment.judge.grade(asking)).objective == pytest.approx(1 / 6)

    anyio.run(main)


def test_a_program_is_verified_for_a_task_by_its_folder(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "def place_points():\n p = [[i % 3 / 2, i // 3 / 2] for i in range(7)]\n assert evaluate(p) == .5\n return p"
    )
    done = tttctl("verify", "--task", folder, program)
    assert done.stdout.startswith("valid: smallest distance 0.500000000000 (higher is better)"), done.stderr


# What is promised is there


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader


def numbers(name: str, key: str = "sequence") -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())[key]


ERDOS = ["erdos_haugland2016_51", "erdos_alphaevolve_v2_95", "erdos_ttt_discover_600", "erdos_hyra_1024"]
AUTOCORRELATION = [
    "ac1_prev_human_208",
    "ac1_ae_v1_600",
    "ac1_alphaevolve_v2_150316_1319",
    "ac1_thetaevolve_150313_1319",
]
PRELUDE = "import numpy as np\nv = {values!r}\n"
PACKING = " c = np.array(v)\n return c[:, :2], c[:, 2], evaluate(c[:, :2], c[:, 2])"
RETURNING = {
    "erdos_min_overlap": "def run(seed, budget_s): return v, evaluate(v), len(v)",
    "autocorrelation_1": "def propose_candidate(seed, budget_s):\n print(repr(evaluate(np.array(v))))\n return v",
    "autocorrelation_2": "def construct_function():\n print(repr(evaluate(v)))\n return v",
    "circle_packing_26": f"def run_packing():\n{PACKING}",
    "circle_packing_32": f"def run_packing():\n{PACKING}",
}
GRID = [[(2 * (i % 6) + 1) / 12, (2 * (i // 6) + 1) / 12, 0.08] for i in range(32)]
CASES = [
    *[("erdos_min_overlap", numbers(name)) for name in ERDOS],
    *[("autocorrelation_1", numbers(name)) for name in AUTOCORRELATION],
    *[("autocorrelation_2", numbers(name)) for name in AUTOCORRELATION],
    ("circle_packing_26", numbers("circle_packing_26_ttt_repo", "circles")),
    ("circle_packing_32", GRID),
]


def judged(name: str, program: str, sandbox: Sandbox, grader: Grader) -> Any:
    return Evaluator(granted(tasks.load(name).limited(10), 1), sandbox, grader).grade(program)


@pytest.mark.parametrize(("name", "values"), CASES)
def test_a_promised_evaluate_agrees_with_the_judge(name: str, values: Any, sandbox: Sandbox, grader: Grader) -> None:
    verdict = judged(name, PRELUDE.format(values=values) + RETURNING[name], sandbox, grader)
    assert verdict.valid, verdict.detail + verdict.output
    told = float(verdict.output) if verdict.reported is None else verdict.reported
    assert told == verdict.objective


def test_a_promised_evaluate_refuses_what_the_judge_refuses(sandbox: Sandbox, grader: Grader) -> None:
    loose = [[x + 0.5, y + 0.5, r] for x, y, r in numbers("circle_packing_26_hyra_centered", "circles_centered")]
    cases: list[tuple[str, Any]] = [("circle_packing_26", loose), ("circle_packing_32", GRID[1:])]
    cases += [
        ("erdos_min_overlap", values) for values in ([0.1, 0.1, 0.9], [], [2.0], [0.0], [True, 0.5], ["0.5", 0.5])
    ]
    cases += [(f"autocorrelation_{k}", values) for k in (1, 2) for values in ([1e-161], [], [10**400], [True], [[1.0]])]
    for name, values in cases:
        program = PRELUDE.format(values=values) + RETURNING[name]
        refused = judged(name, program, sandbox, grader)
        assert (refused.reason, refused.detail.partition(":")[0]) == ("exception", "ValueError"), (name, values)
        asked_no_helper = "evaluate = lambda *_: 0\n" + program
        verdict = judged(name, asked_no_helper, sandbox, grader)
        assert (verdict.valid, verdict.reason != "exception") == (False, True), (name, values)


def test_the_promised_start_is_valid_and_no_record(sandbox: Sandbox, grader: Grader) -> None:
    program = "def run(seed, budget_s): h = initial_h_values; return h, evaluate(h), len(h)"
    verdict = judged("erdos_min_overlap", program, sandbox, grader)
    assert verdict.valid and verdict.reported == verdict.objective == pytest.approx(0.39, abs=1e-3)


def test_a_verdict_carries_what_a_valid_program_returned_unless_that_is_too_large(
    sandbox: Sandbox, grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "def run(seed, budget_s): return [0.25, 0.75, 0.75, 0.25], 0.5, 4"
    verdict = judged("erdos_min_overlap", program, sandbox, grader)
    assert json.loads(verdict.artifact) == [[0.25, 0.75, 0.75, 0.25], 0.5, 4]
    assert verdict.artifact_sha256 == hashlib.sha256(verdict.artifact.encode()).hexdigest()
    rejected = judged("erdos_min_overlap", program.replace("], 0.5, 4", "], 0.5, 5"), sandbox, grader)
    assert (rejected.valid, rejected.artifact, rejected.artifact_sha256) == (False, "", "")
    monkeypatch.setattr(evaluate, "ARTIFACT_BYTES", 20)
    large = judged("erdos_min_overlap", program, sandbox, grader)
    assert (large.artifact, large.artifact_sha256) == ("", verdict.artifact_sha256)


def test_a_program_may_shadow_its_helpers_without_harm_to_the_judge(sandbox: Sandbox, grader: Grader) -> None:
    program = (
        "import numpy as np\ndef evaluate(h): return -1.0\ndef _largest(*a): return 0.0\n_rescaled = _sums = None\n"
        "np.correlate = lambda *a: np.zeros(7)\n"
        "def run(seed, budget_s): return [0.25, 0.75, 0.75, 0.25], evaluate(0), 4"
    )
    verdict = judged("erdos_min_overlap", program, sandbox, grader)
    assert (verdict.objective, verdict.reported) == (0.40625, -1.0)


def test_every_file_of_the_template_is_in_a_new_folder(folder: Path) -> None:
    assert {file.name for file in folder.iterdir()} == {file.name for file in new.TEMPLATE.glob("*.*")}
    assert tasks.load(str(folder)).name == "mine"
