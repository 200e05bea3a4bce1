"""The monitor's screens as pictures, of a clock and data that stand still; --snapshot-update takes new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import fake_monitor as fake
from tttctl.monitor.app import Monitor
from tttdd.protocol import Status

Compare = Callable[..., bool]


def monitor(look: str, status: Status | None = None) -> Monitor:
    answers: dict[str, Any] = {
        "/v1/runs/erdos-long/best": fake.node(),
        "/v1/runs/erdos-long/nodes/4711/artifact": {"artifact": fake.step_heights()},
    }
    source = fake.StillSource(fake.FakeClient(answers))
    return Monitor(source, status or fake.status(), look, clock=lambda: fake.NOW)


@pytest.mark.parametrize("look", ["dark", "light"])
@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=["80x24", "200x60"])
def test_the_dashboard(snap_compare: Compare, size: tuple[int, int], look: str) -> None:
    assert snap_compare(monitor(look), terminal_size=size)


def test_the_best_program(snap_compare: Compare) -> None:
    assert snap_compare(monitor("dark"), press=["b"], terminal_size=(120, 40))


def test_a_daemon_that_waits_for_room_on_a_cpu(snap_compare: Compare) -> None:
    status = fake.status(notice="No space left on device", gpus=[], current=None)
    assert snap_compare(monitor("dark", status), terminal_size=(80, 24))
