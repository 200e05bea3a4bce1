"""Every named point of a run with every victim: the run goes on by itself, and its ledger is whole.

Light workers here; benchmarks/kill_points.py does the same with the real ones.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import get_args

import pytest

from tests.crash.harness import DISKS, Harness, Victim, reachable
from tttdd.failpoint import Point


@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", get_args(Victim))
def test_a_run_goes_on_from_every_point_whatever_is_killed_there(tmp_path: Path, victim: Victim) -> None:
    if victim == "power" and shutil.which("cc") is None:
        pytest.skip("no C compiler")
    if victim == "disk" and os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    with Harness(tmp_path, light=True, disk=DISKS.get(victim, "plain")) as harness:
        harness.start()
        struck = list(harness.strikes(victim))
        assert struck == [*reachable(victim), Point.RUN_DONE] and harness.kills == len(struck)
        assert harness.faults() == []
        assert (harness.lost, harness.judged_twice, harness.trained_twice) == (0, 0, 0)
