"""`python -m judges verify`: a program in, the verdict out, to 12 digits and with an exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

VECTORS = Path(__file__).parent / "vectors"


def judges(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "judges", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def verified(tmp_path: Path, task: str, program: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "program.py"
    file.write_text(program)
    done = judges("verify", "--task", task, file, "--json", "--time-limit", "5")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def returning(sequence: object) -> str:
    return (
        f"import numpy as np\ndef run(seed=42, budget_s=1, **k):\n h = np.array({sequence})\n return h, 0.3, len(h)\n"
    )


def circles(name: str, key: str, shift: float) -> str:
    values = json.loads((VECTORS / f"{name}.json").read_text())[key]
    return (
        f"import numpy as np\ndef run_packing():\n c = np.array({values}) + [{shift}, {shift}, 0]\n"
        " return c[:, :2], c[:, 2], c[:, 2].sum()\n"
    )


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("erdos_haugland2016_51", 0.38092685343308713),
        ("erdos_alphaevolve_v2_95", 0.38092303510845016),
        ("erdos_ttt_discover_600", 0.3808753232177187),
        ("erdos_hyra_1024", 0.38085942236531456),
    ],
)
def test_a_program_that_returns_a_published_function_gets_its_value(tmp_path: Path, name: str, bound: float) -> None:
    sequence = json.loads((VECTORS / f"{name}.json").read_text())["sequence"]
    status, verdict = verified(tmp_path, "erdos_min_overlap", returning(sequence))
    assert (status, verdict["valid"], verdict["reason"]) == (0, True, "")
    assert verdict["objective"] == pytest.approx(bound, abs=1e-12)
    assert verdict["reward"] == pytest.approx(1 / (1e-8 + bound), abs=1e-11)


def test_the_published_packing_gets_its_value_and_the_loose_one_is_rejected(tmp_path: Path) -> None:
    good = circles("circle_packing_26_ttt_repo", "circles", 0.0)
    status, verdict = verified(tmp_path, "circle_packing_26", good)
    assert (status, verdict["objective"]) == (0, pytest.approx(2.6359773947542573, abs=1e-12))
    assert verdict["certificate"]["feasible_at_zero_slack"] is True
    loose = circles("circle_packing_26_hyra_centered", "circles_centered", 0.5)
    status, verdict = verified(tmp_path, "circle_packing_26", loose)
    assert (status, verdict["reason"]) == (1, "constraint")
    assert "by 9.8e-10" in verdict["detail"]


def test_a_program_that_returns_a_published_function_gets_its_bound_and_its_exact_recheck(tmp_path: Path) -> None:
    sequence = json.loads((VECTORS / "ac1_thetaevolve_150313_1319.json").read_text())["sequence"]
    program = f"f = {sequence}\ndef propose_candidate(seed, budget_s): return f"
    status, verdict = verified(tmp_path, "autocorrelation_1", program)
    assert (status, verdict["objective"]) == (0, pytest.approx(1.5031324359797773, abs=1e-12))
    assert verdict["certificate"]["exact_agrees"] is True


@pytest.mark.parametrize(
    ("program", "reason", "words"),
    [
        ("def run(:", "syntax", "line 1"),
        ("import no_such_module", "import", "no_such_module"),
        (
            "def run(**k):\n print('\\x1b[2J\\u202ehello')\n raise ValueError('\\x07no')",
            "exception",
            "ValueError: no (line 3)",
        ),
        ("x = bytearray(1 << 50)", "memory", "MemoryError"),
        ("import os\nos._exit(3)", "crash", "exit status 3"),
        ("import ctypes\nctypes.string_at(0)", "crash", "SIGSEGV"),
        ("x = 1", "no result", "no function run"),
        ("def run(**k): return {'h': 1}", "wrong type", "got `object`"),
        ("def run(**k): return [0.9, 0.1, 0.1], 0.4, 3", "constraint", "[0, 1]"),
    ],
)
def test_a_rejection_names_its_class_and_the_cause(tmp_path: Path, program: str, reason: str, words: str) -> None:
    status, verdict = verified(tmp_path, "erdos_min_overlap", program)
    assert (status, verdict["valid"], verdict["reward"], verdict["reason"]) == (1, False, 0.0, reason)
    assert words in verdict["detail"]
    assert not any(bad in verdict["output"] + verdict["detail"] for bad in ("\x1b", "\u202e", "\x07"))


def test_a_program_is_killed_at_the_limit_that_is_given(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("while True: pass")
    done = judges("verify", "--task", "erdos_min_overlap", file, "--time-limit", "0.5")
    assert done.returncode == 1
    assert "rejected: timeout: it ran for more than 0.55 s" in done.stdout


def test_a_person_reads_the_verdict_to_12_digits(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(returning([0.25, 0.75, 0.75, 0.25]))
    done = judges("verify", "--task", "erdos_min_overlap", file)
    assert "valid: C5 0.406250000000 (lower is better)" in done.stdout
    assert "reported by the program 0.300000000000" in done.stdout


def test_bad_usage_is_refused_with_what_is_known(tmp_path: Path) -> None:
    missing = judges("verify", "--task", "erdos_min_overlap", tmp_path / "none.py")
    assert (missing.returncode, "none.py" in missing.stderr) == (2, True)
    unknown = judges("verify", "--task", "nope", tmp_path / "none.py")
    assert (unknown.returncode, "circle_packing_26, circle_packing_32" in unknown.stderr) == (2, True)
    assert judges("verify", "--task", "erdos_min_overlap", "x", "--time-limit", "-1").returncode == 2


def test_the_tasks_are_listed() -> None:
    listed = [json.loads(line) for line in judges("tasks", "--json").stdout.splitlines()]
    assert [task["name"] for task in listed][:2] == ["autocorrelation_1", "autocorrelation_2"]
    assert len(listed) == 5
    assert "erdos_min_overlap" in judges("tasks").stdout


def test_a_weaker_level_is_loud_about_what_it_does_not_contain(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(returning([0.5, 0.5]))
    done = judges("verify", "--task", "erdos_min_overlap", tmp_path / "program.py", "--sandbox", "process", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["valid"]
    assert "judges: not contained at level process: no namespaces (as configured)" in done.stderr


def test_the_sandbox_of_a_level_says_what_it_lacks() -> None:
    told = json.loads(judges("sandbox", "process").stdout)
    assert told["level"] == "process" and "no namespaces" in told["missing"][0]
