"""A program's whole tree under control where nothing keeps it from forking: real attacks without the filter, control
groups in the kernel's own hierarchy, and in folders that look like one with controllers that this machine may lack.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from judges.sandbox import Entry, Limits, Sandbox, groups, tree
from judges.sandbox.groups import Group, Groups

ENTRY = Entry("run")
LIMITS = Limits(wall_seconds=3.0, cpu_seconds=3, memory_bytes=400 << 20, threads=24)
FORKING_ALLOWED = "seccomp.supported = lambda: False"
IN_GROUPS = "groups.found = lambda: groups.Groups(pathlib.Path({base!r}))"


def unfiltered(monkeypatch: pytest.MonkeyPatch, level: str, *changes: str) -> Sandbox:
    """A sandbox whose zygote finds no seccomp, as on a processor that has no filter."""
    lines = ["import pathlib", "from judges.sandbox import groups, seccomp, zygote", FORKING_ALLOWED, *changes]
    monkeypatch.setattr("judges.sandbox.client.ZYGOTE", ("-c", "\n".join([*lines, "zygote.main()"])))
    return Sandbox(level)  # type: ignore[arg-type]


@pytest.fixture(params=["namespaces", "process"])
def sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    with unfiltered(monkeypatch, request.param) as started:
        if started.level != request.param:
            pytest.skip(f"this machine allows no {request.param}")
        assert any("no seccomp" in words for words in started.missing)
        yield started
        assert started.pid is not None
        left = psutil.Process(started.pid).children(recursive=True)
        assert psutil.wait_procs(left, timeout=5)[1] == []


HOARD = (
    "import os, time\ndef run():\n"
    " for _ in range(6):\n  if os.fork() == 0:\n   b = bytearray(b'x') * (100 << 20)\n   time.sleep(60)\n"
    " time.sleep(60)"
)


def test_a_tree_that_holds_more_than_its_memory_is_killed(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    outcome = sandbox.run(HOARD, ENTRY, LIMITS)
    assert outcome.out_of_memory and outcome.ending == "exited"
    assert time.monotonic() - begun < LIMITS.wall_seconds


def test_a_fork_bomb_ends_with_its_program(sandbox: Sandbox) -> None:
    program = "import os\ndef run():\n try:\n  while True: os.fork()\n except OSError: pass\n while True: pass"
    sandbox.run(program, ENTRY, LIMITS)
    assert sandbox.run("def run(): return 1", ENTRY, LIMITS).result == b"R1"


def test_a_child_that_leaves_session_and_parent_does_not_outlive_the_program(sandbox: Sandbox) -> None:
    program = (
        "import os, time\ndef run():\n if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(1000)\n"
        "  os._exit(0)\n time.sleep(0.5)\n return 1"
    )
    assert sandbox.run(program, ENTRY, LIMITS).result == b"R1"


def test_programs_that_can_open_sockets_share_no_network(sandbox: Sandbox) -> None:
    """Else two of them could talk by an abstract socket."""
    program = (
        "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\ndef run():\n time.sleep(0.7)\n"
        " return int(os.readlink('/proc/self/ns/net')[5:-1])"
    )
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(sandbox.run, program, ENTRY, LIMITS) for _ in range(2)]
        spaces = {run.result().result for run in runs}
    assert all(space.startswith(b"R4") for space in spaces), spaces
    assert len(spaces) == (2 if sandbox.level == "namespaces" else 1)


def test_the_tree_of_a_process_holds_its_childrens_memory() -> None:
    program = (
        "import os, time\nif os.fork() == 0: b = bytearray(b'x') * (64 << 20)\nprint(1, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"1\n"]
        assert len(tree.processes(process.pid)) == 2
        assert tree.resident_bytes(process.pid) > 64 << 20 > tree._resident_bytes(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
    assert tree.resident_bytes(process.pid) == 0


def pretended(base: Path, controllers: str) -> Path:
    """Files as the kernel makes them in a new group."""
    base.mkdir(parents=True)
    (base / "cgroup.controllers").write_text(controllers)
    for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.kill"):
        (base / name).write_text("")
    if "memory" in controllers:
        (base / "memory.events").write_text("low 0\noom 0\noom_kill 0\n")
        for name in ("memory.max", "memory.swap.max", "memory.oom.group"):
            (base / name).write_text("max\n")
    if "pids" in controllers:
        (base / "pids.max").write_text("max\n")
    return base


def test_a_programs_group_limits_memory_swap_and_processes(tmp_path: Path) -> None:
    folder = pretended(tmp_path / "slot", "memory pids")
    group = Group(folder, LIMITS)
    values = {name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")}
    assert values == {
        "memory.max": str(LIMITS.memory_bytes + LIMITS.files_bytes),
        "memory.swap.max": "0",
        "pids.max": "24",
    }
    assert not group.end()
    (folder / "memory.events").write_text("oom 2\noom_kill 1\n")
    assert Group(folder, LIMITS).end()


@pytest.mark.parametrize(
    ("path", "controllers", "delegated", "divided"),
    [
        ("unit", "cpu memory pids", True, True),
        ("unit/daemon", "memory", True, True),
        ("unit", "cpu memory pids", False, False),
        ("unit", "hugetlb", True, False),
    ],
    ids=["a delegated unit", "a zygote after the first", "not delegated", "no memory controller"],
)
def test_only_a_delegated_group_with_memory_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, controllers: str, delegated: bool, divided: bool
) -> None:
    base = pretended(tmp_path / "mount" / "unit", controllers)
    for name in ("daemon", "judges"):
        pretended(base / name, controllers)
    (tmp_path / "own").write_text(f"4:memory:/x\n0::/{path}\n")
    monkeypatch.setattr(groups, "is_delegated", lambda folder: delegated and folder == base)  # pyright: ignore
    assert (groups.found(tmp_path / "mount", tmp_path / "own") is not None) == divided
    wanted = " ".join(f"+{name}" for name in ("memory", "pids") if name in controllers) if divided else ""
    assert (base / "cgroup.subtree_control").read_text() == wanted
    assert (base / "judges" / "cgroup.subtree_control").read_text() == wanted


def test_a_machine_without_cgroup2_has_no_groups(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("4:memory:/x\n")
    assert groups.found(tmp_path, tmp_path / "own") is None
    assert not groups.is_delegated(tmp_path)


@pytest.fixture
def hierarchy() -> Iterator[Path]:
    """A group of our own in the kernel's cgroup2 hierarchy."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    base = next((Path(mount[1]) / f"tttdd-test-{os.getpid()}" for mount in mounts if mount[2] == "cgroup2"), None)
    try:
        assert base
        base.mkdir()
    except (AssertionError, OSError) as error:
        pytest.skip(f"no cgroup2 hierarchy that this user may write to: {error}")
    yield base
    for folder in [*sorted(base.rglob("*/"), reverse=True), base]:
        if folder.is_dir():
            folder.rmdir()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@pytest.mark.parametrize("level", ["namespaces", "process"])
def test_programs_run_in_groups_of_their_own_which_end_with_them(
    hierarchy: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """In the real kernel; which controllers it has there does not matter to this."""
    program = "import os, time\ndef run():\n if os.fork() == 0: time.sleep(1000)\n time.sleep(1)\n return 1"
    with unfiltered(monkeypatch, level, IN_GROUPS.format(base=str(hierarchy))) as sandbox:
        if sandbox.level != level:
            pytest.skip(f"this machine allows no {level}")
        folder = hierarchy / "judges" / f"{sandbox.pid}-0"
        seen: list[int] = []

        def look() -> None:
            seen.extend(map(int, (folder / "cgroup.procs").read_text().split()))

        threading.Timer(0.6, look).start()
        assert sandbox.run(program, ENTRY, LIMITS).result == b"R1"
        assert len(seen) == 2 and sandbox.pid not in seen
        until(lambda: not any(map(psutil.pid_exists, seen)))
        assert sandbox.run("def run(): return 2", ENTRY, LIMITS).result == b"R2"
        until(lambda: not folder.exists())


def test_our_own_processes_make_room_in_a_group_that_is_divided(hierarchy: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (hierarchy / "cgroup.procs").write_text(str(process.pid))
        Groups(hierarchy)
        assert (hierarchy / "cgroup.procs").read_text() == ""
        assert (hierarchy / "daemon" / "cgroup.procs").read_text().split() == [str(process.pid)]
        process.kill()
