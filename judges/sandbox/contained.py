"""Process 1 of a container that runs one program: contains it once more, watches it, and has the last word.

    standard input  <- Order, then nothing until the client is gone: its end is the end of this process and so of all
    standard output -> Ready at once, then the Outcome, when every other process is dead

What the program writes goes to pipes of this process, never to the container's streams, and as it has another user it
cannot open those either (by /proc/1/fd, where a runtime has no Landlock): it forges nothing.  This process has root's
name for that and of root's rights only the three to give the program its user and to end it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import random
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from judges.sandbox import child, landlock, limits, linux, namespaces, seccomp
from judges.sandbox.child import report
from judges.sandbox.client import ENVIRONMENT
from judges.sandbox.collect import Collector
from judges.sandbox.messages import Ended, Job, Limits, Outcome, Refused, Started
from judges.sandbox.zygote import warm_up

FIRST_USER, USERS = 60_706, 478
"""User ids of the slots, as the limit on threads counts a user's in all containers.  systemd's table of user ids leaves
them to nobody, and engines that map users into a namespace of 65,536 have them."""
LENGTH = struct.Struct("!I")
_ABOVE = 200
_SEED = 42
_OOM_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")
"""Of this container by cgroup v2 or v1; of the machine."""


class Ready(msgspec.Struct, frozen=True):
    sources: str
    """Digest of the code in the image."""
    missing: list[str]
    """What cannot be put on a program inside the container, in words."""


class Order(msgspec.Struct, frozen=True):
    slot: int
    """Picks the program's user and its processors."""
    limits: Limits
    job: Job


def sources() -> str:
    """Digest of this package's files: the same in an image as outside, or they may not understand each other."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def missing() -> list[str]:
    lacks: list[str] = []
    if not seccomp.supported():
        lacks.append("no seccomp filter of ours for this processor: programs can start processes in their container")
    if landlock.version() < 1:
        lacks.append("no Landlock in the containers: programs can read their whole image, and /proc and /sys there")
    return lacks


def framed(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def main() -> None:
    """Exits when the program has ended or the client is gone.  A failure of ours is a traceback on standard error."""
    assert os.getpid() == 1, "outside of a container this would end every process of its user"
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    _tell(Ready(sources(), missing()))
    order = _order()
    _prepare(order.job.program)
    _tell(_watched(order))


def _tell(message: msgspec.Struct) -> None:
    sys.stdout.buffer.write(framed(message))
    sys.stdout.buffer.flush()


def _order() -> Order:
    (length,) = LENGTH.unpack(_read(LENGTH.size))
    return msgspec.msgpack.decode(_read(length), type=Order)


def _read(size: int) -> bytes:
    data = sys.stdin.buffer.read(size)
    if len(data) < size:
        os._exit(0)  # the client had no program
    return data


def _prepare(program: bytes) -> None:
    """What it is going to import costs it no time, as in the zygote.  Of the environment only ours is left."""
    for name in set(os.environ) - set(ENVIRONMENT):
        del os.environ[name]
    if b"scipy" in program:
        warm_up()
    elif b"numpy" in program:
        importlib.import_module("numpy").random.seed(_SEED)
    random.seed(_SEED)


def _watched(order: Order) -> Outcome:
    kills = _oom_kills()
    readable = namespaces.library_paths()
    with Collector(order.limits, lambda: _kill(pid)) as collector:
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _be_the_program(order, collector.ends, readable)
        status = os.dup(collector.ends[2])
        report(status, Started(started, pid))
        for target, arguments in ((_await, (pid, status, kills)), (_leave_with_the_client, ())):
            threading.Thread(target=target, args=arguments, daemon=True).start()
        collector.close_ends()
        return collector.outcome(collector.collect())


def _await(pid: int, status: int, kills: int) -> None:
    """Until the program has ended; then everything that it left behind, and only then its end is told."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    _kill(-1)
    _, wait_status, usage = os.wait4(pid, 0)
    killed = os.WIFSIGNALED(wait_status) and os.WTERMSIG(wait_status) == signal.SIGKILL
    used = usage.ru_utime + usage.ru_stime
    report(status, Ended(time.monotonic(), wait_status, used, usage.ru_maxrss * 1024, killed and _oom_kills() > kills))
    os.close(status)


def _leave_with_the_client() -> None:
    os.read(0, 1)
    os._exit(1)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _oom_kills() -> int:
    for path in _OOM_COUNTS:
        with suppress(OSError):
            counts = [line.split() for line in Path(path).read_text().splitlines()]
            return next((int(each[1]) for each in counts if each[0] == "oom_kill"), 0)
    return 0


def _be_the_program(order: Order, ends: Sequence[int], readable: Sequence[str]) -> NoReturn:
    """In the new child, which ends here whatever happens."""
    status = ends[2]
    try:
        try:
            _take_descriptors(ends)
            status = child.STATUS
            _contain(order, readable)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is ours and not the program's
            report(status, Refused(f"cannot contain a program: {type(error).__name__}: {error}"))
            os._exit(1)
        os.close(child.STATUS)
        os._exit(child.run(order.job))
    finally:  # a program's exception can fail in its own __str__
        os._exit(1)


def _take_descriptors(ends: Sequence[int]) -> None:
    """As every child has them; whatever else this process had open is closed."""
    result, output, status = (fcntl.fcntl(each, fcntl.F_DUPFD, _ABOVE) for each in ends)
    for source, target in ((output, 1), (output, 2), (result, child.RESULT), (status, child.STATUS)):
        os.dup2(source, target)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, child.RESULT)
    os.closerange(child.STATUS + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _contain(order: Order, readable: Sequence[str]) -> None:
    os.setsid()
    os.umask(0o077)
    limits.die_first_when_memory_is_short()
    limits.pin(_processors(order), limits.find_numerical_threads())
    limits.apply(order.limits, may_write=True, own_user=True)
    namespaces.become(FIRST_USER + order.slot % USERS)
    linux.keep_capabilities(0)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if landlock.version() >= 1:
        writable = [os.devnull, namespaces.SCRATCH]
        landlock.restrict([*readable, "/proc/self", "/proc/cpuinfo", "/proc/meminfo"], writable)
    if seccomp.supported():
        seccomp.install()


def _processors(order: Order) -> list[int]:
    """Neighbours get different ones, as far as there are."""
    allowed = sorted(os.sched_getaffinity(0))
    first = order.slot * order.limits.cpus
    return sorted({allowed[(first + offset) % len(allowed)] for offset in range(order.limits.cpus)})


if __name__ == "__main__":
    main()
