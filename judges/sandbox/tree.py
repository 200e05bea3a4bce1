"""A program with every process that came of it, seen from outside: what no filter keeps from forking is still counted.

    memory of the tree = sum over its processes of what each holds in memory

Source: proc(5), /proc/PID/task/TID/children and /proc/PID/statm.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    """Of a process, those that have not ended or that nobody has waited for; none where it is gone."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def processes(pid: int) -> list[int]:
    """A process and all that came of it."""
    found = [pid]
    for each in found:
        found += children(each)
    return found


def resident_bytes(pid: int) -> int:
    """Of a process and all that came of it; pages that several share count for each."""
    return sum(map(_resident_bytes, processes(pid)))


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, IndexError):  # it has ended meanwhile
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0
