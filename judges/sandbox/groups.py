"""Control groups (cgroup v2), where a delegated one is found: the kernel's limits on a program's whole tree.

    unit's group, delegated -> daemon/  (every process of ours: a group with limits below it may hold none itself)
                            -> judges/ZYGOTE-NUMBER/  memory.max, memory.swap.max, pids.max; joined by the child itself

Source: the kernel's cgroup-v2 documentation; systemd marks what it delegates with an extended attribute.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from pathlib import Path

from judges.sandbox.messages import Limits

_WANTED = {"memory", "pids"}
_MARKS = ("user.delegate", "trusted.delegate")
_OURS = "daemon"
_ROUNDS = 100
"""For processes that fork while they are moved."""


class Group:
    """One program's."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        settings = {
            "memory.max": limits.memory_bytes + limits.files_bytes,
            "memory.swap.max": 0,
            "memory.oom.group": 1,
            "pids.max": limits.threads,
        }
        for name, value in settings.items():
            if (folder / name).exists():  # of controllers that are there
                (folder / name).write_text(str(value))
        self.entrance = os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        """The child writes 0 to it, and is inside."""

    def end(self) -> bool:
        """Kill what is left in it.  Whether the kernel has killed for its memory limit."""
        os.close(self.entrance)
        out_of_memory = self._oom_kills() > 0
        with suppress(OSError):  # Linux before 5.14: then a process namespace or the watcher does it
            (self._folder / "cgroup.kill").write_text("1")
        return out_of_memory

    def removed(self) -> bool:
        """Not as long as what was killed has not ended."""
        with suppress(OSError):
            self._folder.rmdir()
        return not self._folder.exists()

    def _oom_kills(self) -> int:
        with suppress(OSError):
            counts = dict(line.split() for line in (self._folder / "memory.events").read_text().splitlines())
            return int(counts.get("oom_kill", 0))
        return 0


class Groups:
    """`base`: a group that is ours to divide."""

    def __init__(self, base: Path) -> None:
        """Raises OSError where the kernel refuses."""
        controllers = _WANTED & set((base / "cgroup.controllers").read_text().split())
        self._judges = base / "judges"
        for folder in (base / _OURS, self._judges):
            folder.mkdir(exist_ok=True)
        _move(base, base / _OURS)
        for group in (base, self._judges):
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(controllers)))
        # What this process can reach by no path, once it has a root of its own, it still reaches by this one.
        self._judges = Path(f"/proc/self/fd/{os.open(self._judges, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)}")
        self._numbers = itertools.count()
        self._ended: list[Group] = []

    def make(self, limits: Limits) -> Group:
        return Group(self._judges / f"{os.getpid()}-{next(self._numbers)}", limits)

    def end(self, group: Group) -> bool:
        """As Group.end; it is taken away now or by a later `sweep`."""
        self._ended.append(group)
        out_of_memory = group.end()
        self.sweep()
        return out_of_memory

    def sweep(self) -> None:
        self._ended = [group for group in self._ended if not group.removed()]


def found(mount: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Groups | None:
    """Where this process's group is delegated with a memory controller; else None."""
    path = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "")
    base = mount / path.lstrip("/")
    base = base.parent if base.name == _OURS else base  # of a zygote before this one
    try:
        if path and is_delegated(base) and "memory" in (base / "cgroup.controllers").read_text().split():
            return Groups(base)
    except OSError:
        pass
    return None


def is_delegated(base: Path) -> bool:
    for mark in _MARKS:
        with suppress(OSError):
            if os.getxattr(base, mark) == b"1":
                return os.access(base / "cgroup.procs", os.W_OK)
    return False


def _move(source: Path, target: Path) -> None:
    for _ in range(_ROUNDS):
        pids = (source / "cgroup.procs").read_text().split()
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                (target / "cgroup.procs").write_text(pid)
