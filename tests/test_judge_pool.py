"""The daemon's judges: a bounded number at a time, no time lost in the queue, our own failures never a reward of 0."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import psutil
import pytest

from judges import task as tasks
from judges.grader import Grader, GraderFailed
from judges.verdict import Verdict
from tttdd.adapters.judge_pool import JudgePool, TaskJudge
from tttdd.ports import WorkerDied, WorkerFailed

HALVES = "def run(**k): return [0.5, 0.5], 0.5, 2"
SLEEPER = "import time\ndef run(**k):\n time.sleep({})\n return [0.5, 0.5], 0.5, 2"
ERDOS = tasks.load("erdos_min_overlap")


def judging(parallel: int, use: Callable[[JudgePool, TaskJudge], Awaitable[object]], time_limit: float = 5.0) -> None:
    async def main() -> None:
        async with JudgePool(parallel) as pool:
            await use(pool, pool.for_task(ERDOS, time_limit))

    anyio.run(main)


def test_the_pool_starts_in_the_background_and_grades_every_program() -> None:
    async def use(pool: JudgePool, judge: TaskJudge) -> None:
        assert (pool.level, pool.missing, pool.parallel) == ("starting", [], 2)
        verdicts: list[Verdict] = []

        async def one(program: str) -> None:
            verdicts.append(await judge.grade(program))

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(one, HALVES)
        assert [verdict.objective for verdict in verdicts] == [0.5] * 6
        assert pool.level in ("namespaces", "process")

    judging(2, use)


def test_waiting_for_a_place_costs_a_program_no_time() -> None:
    async def use(pool: JudgePool, judge: TaskJudge) -> None:
        verdicts: list[Verdict] = []

        async def one() -> None:
            verdicts.append(await judge.grade(SLEEPER.format(1.0)))

        await judge.grade(HALVES)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(one)
        assert all(verdict.valid and 1.0 <= verdict.seconds < 2.2 for verdict in verdicts), verdicts

    judging(1, use, time_limit=2.0)


def test_cancelling_kills_the_child_and_frees_its_place() -> None:
    async def use(pool: JudgePool, judge: TaskJudge) -> None:
        await judge.grade(HALVES)
        with anyio.move_on_after(0.5) as scope:
            await judge.grade(SLEEPER.format(100))
        assert scope.cancelled_caught
        begun = time.monotonic()
        assert (await judge.grade(HALVES)).valid
        assert time.monotonic() - begun < 3

    judging(1, use, time_limit=60)


def zygotes() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "judges.sandbox.zygote" in each.cmdline()]


def test_a_killed_zygote_costs_a_retry_and_no_verdict() -> None:
    async def use(pool: JudgePool, judge: TaskJudge) -> None:
        await judge.grade(HALVES)

        async def kill() -> None:
            await anyio.sleep(0.3)
            zygotes()[0].kill()

        async with anyio.create_task_group() as group:
            group.start_soon(kill)
            verdict = await judge.grade(SLEEPER.format(0.8))
        assert verdict.valid and verdict.objective == 0.5

    judging(1, use)


def test_judges_that_keep_failing_are_a_dead_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tttdd.adapters.judge_pool._PAUSE_SECONDS", 0.0)

    async def use(pool: JudgePool, judge: TaskJudge) -> None:
        pool._sandbox.close()
        with pytest.raises(WorkerDied, match="failed 4 times"):
            await judge.grade(HALVES)

    judging(1, use)


def test_a_broken_judge_is_told_with_its_traceback(tmp_path: Path) -> None:
    folder = copied(tmp_path, "def grade(artifact):\n    return 1 / 0\n")

    async def main() -> None:
        async with JudgePool(1) as pool:
            with pytest.raises(WorkerFailed, match="ZeroDivisionError"):
                await pool.for_task(tasks.load(str(folder)), 5.0).grade(HALVES)

    anyio.run(main)


def copied(tmp_path: Path, judge: str) -> Path:
    folder = tmp_path / ERDOS.name
    folder.mkdir()
    for name in ("task.toml", "instruction.md", "starter.txt"):
        (folder / name).write_text((ERDOS.folder / name).read_text())
    (folder / "judge.py").write_text(judge)
    return folder


@pytest.mark.parametrize(
    ("body", "reason"),
    [("while True: pass", "timeout"), ("return bytearray(10 << 30)", "memory")],
)
def test_an_artifact_that_is_too_much_to_grade_is_rejected_and_the_grader_goes_on(
    tmp_path: Path, body: str, reason: str
) -> None:
    folder = copied(tmp_path, f"def grade(artifact):\n    {body}\n")
    with Grader(seconds=1.0) as grader:
        verdict = grader.grade(folder / "judge.py", b"[]")
        assert (verdict.valid, verdict.reason) == (False, reason)
        assert grader.grade(ERDOS.judge, b"[[0.5, 0.5], 0.5, 2]").objective == 0.5


def test_a_grader_is_started_again_after_its_death() -> None:
    with Grader() as grader:
        assert grader.grade(ERDOS.judge, b"[[1, 0], 1, 2]").objective == 1
        [process] = [each for each in psutil.Process().children() if "judges.grader" in each.cmdline()]
        os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs([process], timeout=5)
        assert grader.grade(ERDOS.judge, b"[[1, 0], 1, 2]").objective == 1
        with pytest.raises(GraderFailed):
            grader.grade(Path("/nowhere/judge.py"), b"")
