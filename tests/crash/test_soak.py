"""The short version of benchmarks/soak.py: random kills of real workers with a tiny model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parent.parent.parent / "benchmarks/soak.py"
KILLS, SEED = 5, 49
"""A draw in which everything that runs a model, and the power, has its turn."""


@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the power cut")
def test_random_kills_lose_nothing_and_repeat_nothing() -> None:
    command = [sys.executable, SOAK, "--kills", str(KILLS), "--seed", str(SEED), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    told = json.loads(line)
    assert [told[name] for name in ("kills", "lost", "judged_twice", "trained_twice")] == [KILLS, 0, 0, 0]
    assert told["faults"] == [] and {"daemon", "engine", "trainer", "power"} <= told["by_victim"].keys()
