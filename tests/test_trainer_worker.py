"""The real trainer process through its adapter."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import anyio
import pytest
from trainer_models import make_batch, options, save_model

from tttdd import wire
from tttdd.adapters import worker as workers
from tttdd.adapters.trainer import MegatronTrainer
from tttdd.domain import batch as batches
from tttdd.ports import Probe, Release, WorkerDied, WorkerFailed

pytestmark = pytest.mark.anyio
PROBE = Probe([1, 2, 3], [4, 5, 6])
BASE = Release(0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def trainer(
    folder: Path, steps: list[tuple[int, int]] | None = None, processes: int = 1, **changes: object
) -> MegatronTrainer:
    """A trainer of a model saved to `folder`, with its log there."""
    if not (folder / "model").exists():
        save_model(folder / "model", "qwen3", tied=True)
        (folder / "batch").write_bytes(batches.encode(make_batch()))
    heard: list[tuple[int, int]] = [] if steps is None else steps
    return MegatronTrainer(
        options(folder / "model", **changes),
        folder / "train.log",
        lambda done, total: heard.append((done, total)),
        processes,
    )


async def test_a_step_through_the_process_writes_a_release_that_scores_otherwise_than_the_base(tmp_path: Path):
    steps: list[tuple[int, int]] = []
    first = Release(1, tmp_path / "releases" / "0001")
    async with trainer(tmp_path, steps, backend="megatron", devices=[]) as one:
        report = await one.train(BASE, tmp_path / "batch", first)
        base, trained = await one.score(PROBE, release=BASE), await one.score(PROBE, release=first)
        assert await one.train(BASE, tmp_path / "batch", first) == report
        await refused(one, tmp_path)
    assert report.tokens == sum(
        len(g.prompt_ids) + sum(len(s.token_ids) for s in g.samples) for g in make_batch().groups
    )
    assert len(base) == len(trained) == 3
    assert base != trained
    total = steps[0][1]
    assert steps == [(done, total) for done in range(1, total + 1)]
    assert "Warning" not in (tmp_path / "train.log").read_text()


async def refused(one: MegatronTrainer, root: Path) -> None:
    """Requests that cannot be done are errors, and the process lives on."""
    with pytest.raises(WorkerFailed, match="No such file"):
        await one.train(BASE, root / "nothing", Release(2, root / "releases" / "0002"))
    with pytest.raises(WorkerFailed, match="empty prompt"):
        await one.score(Probe([], [1]), release=BASE)
    assert len(await one.score(PROBE, release=BASE)) == 3


async def test_a_model_that_cannot_be_loaded_is_told_and_is_no_reason_to_start_again(tmp_path: Path):
    with pytest.raises(WorkerFailed, match="the trainer cannot start: LoRA targets lm_head"):
        async with trainer(tmp_path, targets=["lm_head"]) as one:
            await one.score(PROBE, release=BASE)


def test_a_warning_of_the_first_process_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    trainer(tmp_path)._heard(wire.Event("warning", {"text": "out of memory in bins of 40 tokens"}))
    assert ("tttdd.trainer", logging.WARNING, "out of memory in bins of 40 tokens") in caplog.record_tuples


async def test_a_killed_process_is_a_dead_worker_ends_the_others_and_leaves_no_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workers, "STOP_SECONDS", 60.0)
    async with trainer(tmp_path, processes=2) as one:
        await one.score(PROBE, release=BASE)
        os.kill(one.pids[1], signal.SIGSTOP)  # the first one will wait for it
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill, one.pids[1])
            with pytest.raises(WorkerDied):
                await one.train(BASE, tmp_path / "batch", Release(1, tmp_path / "releases" / "0001"))
        with pytest.raises(WorkerDied):
            await one.score(PROBE, release=BASE)
        pids, started = one.pids, time.monotonic()
    assert time.monotonic() - started < workers.STOP_SECONDS
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not (tmp_path / "releases" / "0001").exists()


async def kill(pid: int) -> None:
    await anyio.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
