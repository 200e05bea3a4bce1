"""What a daemon and all that it started hold at this moment, as numbers by name.

    daemon | engine, trainer (with all below them) | zygote, grader    memory, descriptors, threads, processes
    zombies, mounts      temporary files, shared memory      database, write-ahead log, run's folder, logs      devices

A judged program is nobody's part: it comes and goes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from tttdd import gpus

ROLES = {
    "tttdd.workers.serve": "engine",
    "tttdd.workers.sample": "engine",
    "tttdd.workers.train": "trainer",
    "judges.sandbox.zygote": "zygote",
    "judges.grader": "grader",
}
MIB = 2**20
SHARED_MEMORY = Path("/dev/shm")
REAPING_SECONDS = 0.2
"""A parent may take so long to hear of a child's end."""

Counts = dict[str, float]


def taken(daemon: int, place: Path) -> Counts:
    """Of the daemon with that pid, its state in `place`/state and its temporary files in `place`/tmp."""
    process = psutil.Process(daemon)
    counts: Counts = {}
    for role, members in _roles(process).items():
        counts |= {f"{role} {name}": value for name, value in _held(members).items()}
    counts["zombies"] = _zombies(process)
    counts["mounts"] = _lines(f"/proc/{daemon}/mountinfo")
    counts["temporary files"] = _files(place / "tmp")
    counts["shared memory files"] = _files(SHARED_MEMORY)
    return counts | _stored(place / "state") | _devices(process)


def _roles(daemon: psutil.Process) -> dict[str, list[psutil.Process]]:
    found = {"daemon": [daemon]}
    for child in daemon.children():
        role = _role(child)
        if role is not None:
            below = child.children(recursive=True) if role in ("engine", "trainer") else []
            found.setdefault(role, []).extend([child, *below])
    return found


def _role(process: psutil.Process) -> str | None:
    with suppress(psutil.Error):
        words = process.cmdline()
        return next((role for module, role in ROLES.items() if module in words), None)
    return None


def _held(members: Iterable[psutil.Process]) -> Counts:
    held: Counts = dict.fromkeys(["RSS MiB", "anonymous MiB", "descriptors", "threads", "processes"], 0.0)
    for process in members:
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            held["RSS MiB"] += process.memory_info().rss / MIB
            held["anonymous MiB"] += _anonymous(process.pid) / MIB
            held["descriptors"] += process.num_fds()
            held["threads"] += process.num_threads()
            held["processes"] += 1
    return held


def _anonymous(pid: int) -> int:
    """Resident bytes that no file is behind: what is private changes with who else runs the same program."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def _zombies(daemon: psutil.Process) -> int:
    """Processes that were zombies for a while."""
    first = _dead(daemon)
    if not first:
        return 0
    time.sleep(REAPING_SECONDS)
    return len(first & _dead(daemon))


def _dead(daemon: psutil.Process) -> set[int]:
    found = set[int]()
    for process in daemon.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                found.add(process.pid)
    return found


def _lines(file: str) -> int:
    return len(Path(file).read_text().splitlines())


def _files(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*"))


def _stored(state: Path) -> Counts:
    database = state / "archive.sqlite3"
    files = [(path, _size(path)) for path in (state / "runs").rglob("*")]
    logs = sum(size for path, size in files if path.parent.name == "logs")
    return {
        "database MiB": _size(database) / MIB,
        "write-ahead log MiB": _size(database.with_name("archive.sqlite3-wal")) / MIB,
        "run's files": len(files),
        "run's folder MiB": (sum(size for _, size in files) - logs) / MIB,
        "workers' logs KiB": logs / 1024,
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def _devices(daemon: psutil.Process) -> Counts:
    """Of each device all that is taken, and what NVML says the daemon's workers have."""
    ours = {process.pid for process in daemon.children(recursive=True)}
    counts: Counts = {}
    for gpu in gpus.read():
        mine = sum(process.memory or 0 for process in gpu.processes if process.pid in ours)
        counts[f"GPU {gpu.index} MiB"] = gpu.memory_used / MIB
        counts[f"GPU {gpu.index} ours MiB"] = mine / MIB
    return counts
