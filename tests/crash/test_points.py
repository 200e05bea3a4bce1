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
from tests.processes import wait_for
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


@pytest.mark.parametrize(
    "point", [Point.WORKERS_OPEN, Point.PARENTS_SELECTED, Point.ROLLOUT_SAMPLED, Point.STEP_BEGUN, Point.STEP_TRAINED]
)
def test_a_daemon_that_is_interrupted_many_times_stops_well_and_fails_no_run(tmp_path: Path, point: Point) -> None:
    with Harness(tmp_path, light=True) as harness:
        harness.start()
        harness.submit(3, "r")
        assert harness.interrupt_at(point, 10) == 0
        harness.start()
        wait_for(lambda: harness.info().state == "finished", "the end of the run")
        assert harness.faults() == []
