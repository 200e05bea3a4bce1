"""The daemon's judges: a bounded number at a time, no time lost in the queue, our own failures never a reward of 0."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import psutil
import pytest

from judges import task as tasks
from judges.evaluate import processors
from judges.grader import Grader, GraderFailed
from judges.sandbox import JudgeDied, Sandbox
from judges.verdict import Verdict
from tttdd.adapters.judge_pool import JudgePool, Places, TaskJudge
from tttdd.ports import WorkerDied, WorkerFailed

HALVES = "def run(**k): return [0.5, 0.5], 0.5, 2"
SLEEPER = "import time\ndef run(**k):\n time.sleep({})\n return [0.5, 0.5], 0.5, 2"
ERDOS = tasks.load("erdos_min_overlap")


def judging(parallel: int, use: Callable[[JudgePool, TaskJudge], Awaitable[object]], time_limit: float = 5.0) -> None:
    async def main() -> None:
        async with JudgePool(parallel) as pool:
            await use(pool, pool.for_task(pool.granted(ERDOS.limited(time_limit, cpus=1))))

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


def test_a_pool_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(sandbox: Sandbox) -> None:
        raise JudgeDied("no image: build it")

    monkeypatch.setattr(Sandbox, "start", refused)

    async def main() -> None:
        async with JudgePool(1) as pool:
            while pool.level == "starting":
                await anyio.sleep(0.01)
            assert (pool.level, pool.missing) == ("none", ["no image: build it"])

    anyio.run(main)


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


def test_programs_of_two_processors_each_share_no_processor_and_no_memory() -> None:
    pool = JudgePool()
    wide = ERDOS.limited(cpus=2, memory_gib=1e6)
    assert pool.granted(wide).limits.cpus == min(2, processors())
    alone, shared = JudgePool(1).granted(wide).limits.memory_gib, JudgePool(4).granted(wide).limits.memory_gib
    assert 0.5 <= shared <= alone / 4 and JudgePool(1000).granted(wide).limits.cpus == 1


@pytest.mark.parametrize(("total", "each", "most"), [(4, 2, 2), (5, 2, 2), (2, 1, 2), (3, 3, 1)])
def test_no_more_places_are_taken_than_there_are_and_none_waits_for_ever(total: int, each: int, most: int) -> None:
    async def main() -> None:
        places, inside, seen = Places(total), 0, 0

        async def one(cancelled: bool) -> None:
            nonlocal inside, seen
            with anyio.move_on_after(0 if cancelled else 10):
                async with places.taken(each):
                    inside += 1
                    seen = max(seen, inside)
                    await anyio.sleep(0.01)
                    inside -= 1

        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(one, number % 3 == 1)
        assert (seen, inside) == (most, 0)

    anyio.run(main)


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


KILLED_BY_A_NAMELESS_SIGNAL = """
import ctypes, struct, time
libc, timer = ctypes.CDLL(None), ctypes.c_int()
libc.timer_create(1, ctypes.create_string_buffer(struct.pack('QiI', 0, 40, 0) + bytes(48)), ctypes.byref(timer))
libc.timer_settime(timer, 0, ctypes.create_string_buffer(struct.pack('qqqq', 0, 0, 0, 1000000)), None)
time.sleep(0.2)
"""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os\nos.write(11, b'E{\"x\":' + b'[' * 100000)\nos._exit(0)", "no result"),
        ('import os\nos.write(11, b\'E{"reason":"memory","detail":"\\xff"}\')\nos._exit(0)', "no result"),
        (KILLED_BY_A_NAMELESS_SIGNAL, "crash"),
        ("def run(**k): return [5e-324, 0], 0, 2", "constraint"),
    ],
    ids=["nested failure", "failure in no encoding", "nameless signal", "subnormal sum"],
)
def test_whatever_a_program_writes_or_dies_of_is_its_own_rejection(program: str, reason: str) -> None:
    async def main() -> None:
        async with JudgePool(1, Sandbox("process")) as pool:
            verdict = await pool.for_task(ERDOS.limited(5.0, cpus=1, memory_gib=1)).grade(program)
            assert (verdict.valid, verdict.reward, verdict.reason) == (False, 0.0, reason)

    anyio.run(main)


def test_every_program_gets_its_own_verdict_while_zygote_and_grader_are_killed() -> None:
    async def use(pool: JudgePool, judge: TaskJudge) -> None:
        objectives: dict[int, float | None] = {}

        async def one(number: int) -> None:
            low = number / 100
            program = f"import time\ndef run(**k):\n time.sleep(0.3)\n return [{low}, {1 - low}], 0.5, 2"
            objectives[number] = (await judge.grade(program)).objective

        async def kill() -> None:
            for name in ("judges.sandbox.zygote", "judges.grader"):
                await anyio.sleep(0.7)
                for each in psutil.Process().children():
                    with suppress(psutil.Error):
                        if name in each.cmdline():
                            each.kill()

        async with anyio.create_task_group() as group:
            group.start_soon(kill)
            for number in range(1, 33):
                group.start_soon(one, number)
        lows = [number / 100 for number in range(1, 33)]
        assert objectives == {n: pytest.approx((1 - low) ** 2) for n, low in enumerate(lows, 1)}

    judging(8, use, time_limit=20.0)


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
                await pool.for_task(tasks.load(str(folder)).limited(5.0, cpus=1, memory_gib=1)).grade(HALVES)

    anyio.run(main)


def copied(tmp_path: Path, judge: str) -> Path:
    folder = tmp_path / ERDOS.name
    folder.mkdir()
    for file in ERDOS.folder.glob("*.*"):
        (folder / file.name).write_text(file.read_text())
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


def test_closing_a_grader_does_not_wait_for_the_artifact_in_its_hands(tmp_path: Path) -> None:
    folder = copied(tmp_path, "def grade(artifact):\n    while True: pass\n")
    grader = Grader(seconds=60.0)
    grader.start()
    closing = threading.Timer(1.5, grader.close)
    begun = time.monotonic()
    closing.start()
    with pytest.raises(JudgeDied):
        grader.grade(folder / "judge.py", b"[]")
    closing.join()
    assert time.monotonic() - begun < 20


def test_a_grader_that_reads_nothing_holds_nobody_up_for_ever() -> None:
    with Grader(seconds=1.0) as grader:
        assert grader.grade(ERDOS.judge, b"[[1, 0], 1, 2]").objective == 1
        [process] = [each for each in psutil.Process().children() if "judges.grader" in each.cmdline()]
        process.suspend()
        with pytest.raises(JudgeDied):
            grader.grade(ERDOS.judge, b" " * (8 << 20))
        assert grader.grade(ERDOS.judge, b"[[1, 0], 1, 2]").objective == 1


@pytest.mark.parametrize("number", ["float('nan')", "float('inf')", "1.7e308", "-1.1e100"])
def test_a_reward_that_is_no_finite_number_or_cannot_be_averaged_is_none(tmp_path: Path, number: str) -> None:
    source = "from judges.verdict import Verdict\ndef grade(artifact): return Verdict(valid=True, reward={})\n"
    folder = copied(tmp_path, source.format(number))
    with Grader() as grader:
        verdict = grader.grade(folder / "judge.py", b"[]")
        assert (verdict.valid, verdict.reward, verdict.reason) == (False, 0.0, "constraint")
        (folder / "judge.py").write_text(source.format(7.0))
        assert grader.grade(folder / "judge.py", b"[]").reward == 7, "a judge that was edited is loaded again"


def test_a_grader_works_beyond_the_descriptor_1024() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2048), hard))
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1024):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with Grader() as grader:
            assert grader.grade(ERDOS.judge, b"[[1, 0], 1, 2]").objective == 1


def test_a_grader_is_started_again_after_its_death() -> None:
    with Grader() as grader:
        assert grader.grade(ERDOS.judge, b"[[1, 0], 1, 2]").objective == 1
        [process] = [each for each in psutil.Process().children() if "judges.grader" in each.cmdline()]
        os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs([process], timeout=5)
        assert grader.grade(ERDOS.judge, b"[[1, 0], 1, 2]").objective == 1
        with pytest.raises(GraderFailed):
            grader.grade(Path("/nowhere/judge.py"), b"")
