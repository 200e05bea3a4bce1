"""The kernel's limits on one child: processor time, address space, files, threads, its processors, the OOM order.

zygote: numerical_threads = find_numerical_threads()      child: pin(processors, numerical_threads)
"""

from __future__ import annotations

import importlib
import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from judges.sandbox.messages import Limits

OPEN_FILES = 64
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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
    ):
        _, hard = resource.getrlimit(kind)
        bounds = [bound for bound in (value, hard) if bound != resource.RLIM_INFINITY]
        capped = min(bounds, default=resource.RLIM_INFINITY)
        resource.setrlimit(kind, (capped, capped))
    with suppress(ValueError):  # gVisor takes no such limit
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))


def find_numerical_threads() -> Any:
    """threadpoolctl's controller of the numerical libraries that this process has loaded, each of one thread so far."""
    return importlib.import_module("threadpoolctl").ThreadpoolController()


def pin(processors: Sequence[int], numerical_threads: Any) -> None:
    """Run on these only, with as many threads in numerical libraries, also in those that are loaded later."""
    os.sched_setaffinity(0, processors)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(len(processors))))
    if len(processors) > 1:
        numerical_threads.limit(limits=len(processors))


def die_first_when_memory_is_short() -> None:
    Path("/proc/self/oom_score_adj").write_text("1000")
