"""Every attack of attacks.py at every level that this machine allows, several at a time: contained, nothing is left."""

from __future__ import annotations

from collections.abc import Mapping

import psutil
import pytest

from judges.grader import Grader
from judges.sandbox import AnySandbox, Entry, Limits
from judges.verdict import Verdict
from tests.attack_table import outcomes
from tests.attacks import ATTACKS

MUTE = "def run(): return 1"
LIMITS = Limits(wall_seconds=15.0, cpu_seconds=10)


@pytest.fixture(scope="module")
def verdicts(every_sandbox: AnySandbox, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Verdict]:
    secret = tmp_path_factory.mktemp("daemon") / "archive.sqlite3"
    secret.write_text("hunter2")
    secret.chmod(0o644)
    with Grader() as grader:
        return outcomes(every_sandbox, grader, str(secret))


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_contained(verdicts: Mapping[str, Verdict], name: str) -> None:
    assert ATTACKS[name].contained(verdicts[name]), verdicts[name]


def test_what_programs_print_is_text_without_commands(verdicts: Mapping[str, Verdict]) -> None:
    shown = [verdict.detail + verdict.output for verdict in verdicts.values()]
    assert not [text for text in shown if any(bad in text for bad in "\x1b\x07\u202e\ud800")]
    assert all(len(verdict.output) <= 2000 for verdict in verdicts.values())


def test_no_process_is_left_and_the_next_program_runs(
    every_sandbox: AnySandbox, verdicts: Mapping[str, Verdict]
) -> None:
    assert verdicts
    outcome = every_sandbox.run(MUTE, Entry("run"), LIMITS)
    assert (outcome.ending, outcome.result) == ("exited", b"R1")
    pid = getattr(every_sandbox, "pid", None)
    left = psutil.Process(pid).children(recursive=True) if pid else []
    assert psutil.wait_procs(left, timeout=5)[1] == []
