"""The kernel's limits on one child: processor time, address space, files, threads, its processors, the OOM order."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from judges.sandbox.messages import Limits

OPEN_FILES = 64


def apply(limits: Limits, may_write: bool, own_user: bool) -> None:
    """Soft limits equal hard ones: process 1 of a namespace never takes the soft CPU limit's signal.

    The thread limit counts all threads of a user, so it can hold only where the user is the program's own.
    """
    for kind, value in (
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.files_bytes if may_write else 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, limits.threads if own_user else resource.RLIM_INFINITY),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        bounds = [bound for bound in (value, hard) if bound != resource.RLIM_INFINITY]
        capped = min(bounds, default=resource.RLIM_INFINITY)
        resource.setrlimit(kind, (capped, capped))


def pin(slot: int, cpus: int) -> None:
    """Run on `cpus` processors, picked by the slot so that neighbours get different ones."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[(slot * cpus + offset) % len(allowed)] for offset in range(cpus)})


def die_first_when_memory_is_short() -> None:
    Path("/proc/self/oom_score_adj").write_text("1000")
