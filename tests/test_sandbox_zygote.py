"""The zygote's client and its collector: whatever the zygote does, and at the last moment, no program pays for it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest

from judges.sandbox import Entry, JudgeDied, Level, Limits, Sandbox, Ticket
from judges.sandbox.collect import Collector
from judges.sandbox.messages import Ended, Started

ENTRY = Entry("run")
LIMITS = Limits(wall_seconds=2.0, cpu_seconds=1)
PATIENT = Limits(wall_seconds=15.0, cpu_seconds=10)
MUTE = "def run(): return 1"


@pytest.fixture(scope="module", params=["namespaces", "process"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(request.param) as started:
        if started.level != request.param:
            pytest.skip(f"this machine allows no {request.param}: {started.missing}")
        yield started


def test_a_flood_does_not_keep_the_client_from_its_deadline() -> None:
    """Without any process: what a busy machine adds to a kill is not measured here."""
    killed = threading.Event()
    endless = msgspec.structs.replace(LIMITS, wall_seconds=0.3, output_bytes=1 << 60)

    def flood(descriptor: int, status: int) -> None:
        while not killed.is_set():
            os.write(descriptor, bytes(1 << 16))
        os.write(status, msgspec.json.encode(Ended(time.monotonic(), signal.SIGKILL, 0.3, 0)) + b"\n")

    with Collector(endless, killed.set) as collector:
        started = time.monotonic()
        os.write(collector.ends[2], msgspec.json.encode(Started(started, os.getpid())) + b"\n")
        thread = threading.Thread(target=flood, args=collector.ends[1:])
        thread.start()
        assert collector.collect() == "wall"
        thread.join()
        assert 0.3 <= collector.outcome("wall").seconds < 1.0


def test_a_program_that_ends_by_itself_before_the_kill_reaches_it_keeps_its_result() -> None:
    """The last moment: the deadline has passed, and so has the program's own end."""
    with Collector(LIMITS, lambda: None) as collector:
        result, _, status = collector.ends
        late = time.monotonic() - LIMITS.wall_seconds - 1
        os.write(status, msgspec.json.encode(Started(late, os.getpid())) + b"\n")

        def end() -> None:
            os.write(result, b"R1")
            os.write(status, msgspec.json.encode(Ended(late + 1, 0, 0.3, 0)) + b"\n")

        threading.Timer(0.2, end).start()
        assert collector.collect() == "exited"
        assert collector.outcome("exited").result == b"R1"


def test_a_dead_zygote_is_told_and_replaced(sandbox: Sandbox) -> None:
    assert sandbox.pid is not None
    children: list[psutil.Process] = []

    def kill() -> None:
        zygote = psutil.Process(sandbox.pid)
        while not (found := zygote.children()):
            time.sleep(0.01)
        children.extend(found)
        zygote.kill()

    threading.Thread(target=kill).start()
    with pytest.raises(JudgeDied):
        sandbox.run("while True: pass", ENTRY, PATIENT)
    assert len(children) == 1 and psutil.wait_procs(children, timeout=5)[1] == []
    assert sandbox.run(MUTE, ENTRY, PATIENT).result == b"R1"


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("level", ["namespaces", "process"])
def test_no_program_outlives_its_zygote_however_that_ends_and_however_early(level: Level, end: str) -> None:
    program = "import time\ntime.sleep(1000)"
    for delay in (0.0, 0.002, 0.004, 0.3):
        sandbox = Sandbox(level)
        sandbox.start()
        assert sandbox.pid is not None
        zygote = psutil.Process(sandbox.pid)
        with ThreadPoolExecutor(3) as pool:
            runs = [pool.submit(sandbox.run, program, ENTRY, PATIENT) for _ in range(3)]
            while not (children := zygote.children()):
                time.sleep(0.001)
            time.sleep(delay)
            children = zygote.children() or children
            sandbox.close() if end == "close" else zygote.kill()
            assert all(isinstance(run.exception(), JudgeDied) for run in runs)
        sandbox.close()
        assert psutil.wait_procs(children, timeout=5)[1] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's programs have their user namespace instead")
def test_programs_of_two_sandboxes_count_no_threads_together(sandbox: Sandbox) -> None:
    program = "import os\ndef run(): return os.getuid()"
    with Sandbox("process") as other:
        users = {each.run(program, ENTRY, PATIENT).result for each in (sandbox, other)}
    assert len(users) == 2


def test_few_descriptors_are_no_fault_of_the_program(sandbox: Sandbox) -> None:
    code = (
        "from judges.sandbox import *\nwith Sandbox() as sandbox:\n"
        f" print(sandbox.run({MUTE!r}, Entry('run'), Limits(wall_seconds=15.0, cpu_seconds=10)).result)"
    )
    command = ["/bin/sh", "-c", 'ulimit -Sn 64 && exec "$@"', "sh", sys.executable, "-c", code]
    assert subprocess.check_output(command, timeout=60) == b"b'R1'\n"


def test_a_zygote_that_does_not_answer_is_told_and_replaced(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("judges.sandbox.collect.ANSWER_SECONDS", 0.5)
    assert sandbox.pid is not None
    os.kill(sandbox.pid, signal.SIGSTOP)
    with pytest.raises(JudgeDied, match="does not answer"):
        sandbox.run(MUTE, ENTRY, PATIENT)
    monkeypatch.undo()
    assert sandbox.run(MUTE, ENTRY, PATIENT).result == b"R1"


def test_cancelling_never_waits_for_a_zygote_that_starts() -> None:
    sandbox = Sandbox()
    starting = threading.Thread(target=sandbox.start)
    starting.start()
    while not sandbox._starting.locked():
        time.sleep(0.01)
    sandbox.cancel(Ticket())
    assert starting.is_alive()
    starting.join()
    sandbox.close()


def descriptors_after(count: int) -> int:
    """The number that the next descriptor but `count` would get."""
    opened = [os.dup(0) for _ in range(count + 1)]
    for each in opened:
        os.close(each)
    return opened[-1]


def test_too_many_open_files_are_our_failure_and_leak_none(sandbox: Sandbox) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors_after(0)
    for left in (0, 3, 6):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_after(left), hard))
        try:
            with pytest.raises(JudgeDied):
                sandbox.run(MUTE, ENTRY, LIMITS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert descriptors_after(0) == before


MEMORY_GROUP = Path("/sys/fs/cgroup/memory")


@pytest.mark.skipif(not os.access(MEMORY_GROUP / "memory.limit_in_bytes", os.W_OK), reason="no cgroup v1 of memory")
def test_a_kill_for_lack_of_memory_is_told_apart(sandbox: Sandbox) -> None:
    group = MEMORY_GROUP / f"tttdd-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(256 << 20))
        (group / "cgroup.procs").write_text(str(sandbox.pid))
        outcome = sandbox.run("import numpy as np\na = np.ones(600 << 17)", ENTRY, PATIENT)
    finally:
        (MEMORY_GROUP / "cgroup.procs").write_text(str(sandbox.pid))
        group.rmdir()
    assert outcome.out_of_memory and os.WTERMSIG(outcome.wait_status) == signal.SIGKILL
    assert not sandbox.run("while True: pass", ENTRY, LIMITS).out_of_memory


@pytest.mark.skipif(not os.access(MEMORY_GROUP / "memory.limit_in_bytes", os.W_OK), reason="no cgroup v1 of memory")
def test_another_that_is_killed_for_lack_of_memory_does_not_hide_that_processor_time_was_up(sandbox: Sandbox) -> None:
    group = MEMORY_GROUP / f"tttdd-test-{os.getpid()}-other"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        greedy = "import sys; open(sys.argv[1], 'w').write('0'); bytearray(b'1') * (512 << 20)"
        with ThreadPoolExecutor() as pool:
            spinning = pool.submit(sandbox.run, "while True: pass", ENTRY, LIMITS)
            time.sleep(0.2)
            killed = subprocess.run([sys.executable, "-c", greedy, str(group / "cgroup.procs")])
            assert killed.returncode == -signal.SIGKILL
            outcome = spinning.result()
    finally:
        group.rmdir()
    assert not outcome.out_of_memory and os.WTERMSIG(outcome.wait_status) == signal.SIGKILL


def test_a_child_that_cannot_be_contained_runs_nothing(sandbox: Sandbox) -> None:
    no_processor = msgspec.structs.replace(LIMITS, cpus=0)
    with pytest.raises(JudgeDied, match="cannot contain a program"):
        sandbox.run(MUTE, ENTRY, no_processor)


def test_what_is_not_contained_is_said(sandbox: Sandbox) -> None:
    assert bool(sandbox.missing) == (sandbox.level == "process") or not Path("/sys/kernel/security/landlock").exists()
