"""The line to a worker process when the worker does not do its part."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tttdd.adapters import worker as workers
from tttdd.adapters.worker import Worker

CALLS = 2000
"""Of a kilobyte each: far more than a socket's buffer holds."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_calls_to_a_worker_that_does_not_read_can_be_cancelled_and_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "STOP_SECONDS", 0.1)
    with anyio.fail_after(60):
        async with Worker("tttdd.workers.fetch", {}, tmp_path / "log") as worker:
            os.kill(worker.pid, signal.SIGSTOP)
            with anyio.move_on_after(0.2):
                async with anyio.create_task_group() as tasks:
                    for _ in range(CALLS):
                        tasks.start_soon(lambda: worker.call("prepare", text="x" * 1000))
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


@pytest.mark.anyio
async def test_a_long_log_is_set_aside_when_its_worker_starts_and_a_short_one_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LOG_BYTES", 100)
    log, aside = tmp_path / "engine.log", tmp_path / "engine.log.1"
    for words in ("short, " * 2, "long, " * 20):
        log.write_text(words)
        async with Worker("tttdd.workers.fetch", {}, log):
            pass
        assert (aside.exists(), log.read_text().startswith(words)) == (len(words) > 100, len(words) <= 100)
    assert aside.read_text() == words


@pytest.mark.anyio
async def test_a_worker_may_end_at_the_very_moment_in_which_its_caller_leaves(tmp_path: Path) -> None:
    """Cancelling a read just as something is there to be read would be an error in the event loop's own code."""
    async with Worker("tttdd.workers.fetch", {}, tmp_path / "log") as worker:
        await anyio.sleep(0.05)  # now it reads
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        await anyio.lowlevel.checkpoint()
