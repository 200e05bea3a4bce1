"""The warm process: has imported numpy and scipy, and clones one contained child per program.

    control socket: Launch + descriptors -> clone -> Started on the status pipe;  Kill -> SIGKILL
    SIGCHLD: reap, end what is left of the child's tree, Ended on the status pipe
    meanwhile: a tree that holds more memory than its limit, and processes that have left their tree, are killed

One thread, no secret, a clean environment.  Ends when its control socket or its parent does; its children die
with it.  (No parent-death signal: that follows the client's thread, which may be a short-lived one.)
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from types import FrameType

import msgspec

from judges.sandbox import child, groups, landlock, limits, linux, namespaces, seccomp, tree
from judges.sandbox.groups import Group, Groups
from judges.sandbox.messages import Ended, Hello, Kill, Launch, Limits, Refused, Request, Started

DESCRIPTORS = 4
PACKET_BYTES = 1 << 16
WATCH_SECONDS = 0.2
_SEED = 42
_decoder = msgspec.json.Decoder(Request)


class Running(msgspec.Struct):
    id: int
    status: int
    """Write end of the client's status pipe."""
    limits: Limits
    oom_kills: int
    """The machine's count when it started."""
    group: Group | None
    over: bool = False
    """Its tree was killed for its memory."""


class Zygote:
    def __init__(self, control: socket.socket, containment: child.Containment, groups: Groups | None) -> None:
        self._control, self._containment, self._groups = control, containment, groups
        self._running: dict[int, Running] = {}
        self._watch_at = 0.0
        self._pidfd = os.pidfd_open(os.getpid())
        """By which a child sees that this process has ended."""

    def serve(self, parent: int) -> None:
        """Until the client closes the socket or ends; then no program is left."""
        try:
            self._serve(parent)
        finally:
            for pid in self._running:
                self._kill(pid)
            for pid in self._running:  # its end is not told: it was not its own
                os.waitpid(pid, 0)

    def _serve(self, parent: int) -> None:
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _wake)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poll = select.poll()
        for descriptor in (self._control.fileno(), woken, parent):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll(1000 * WATCH_SECONDS if self._running else None)]
            if time.monotonic() >= self._watch_at:
                self._watch()
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            if parent in ready or (self._control.fileno() in ready and not self._obey()):
                return

    def _obey(self) -> bool:
        """One request of the client's; False at the end."""
        packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, DESCRIPTORS)
        if not packet:
            return False
        match _decoder.decode(packet):
            case Launch() as launch:
                self._launch(launch, descriptors)
            case Kill(id=number):
                for pid in [pid for pid, running in self._running.items() if running.id == number]:
                    self._kill(pid)
        return True

    def _launch(self, launch: Launch, descriptors: list[int]) -> None:
        status = descriptors[-1]
        kills = oom_kills()
        started = time.monotonic()
        group: Group | None = None
        try:
            group = self._groups and self._groups.make(launch.limits)
            pid = self._clone()
        except OSError as error:
            self._out_of_memory(group)
            child.report(status, Refused(f"cannot start a child: {error}"))
            _close(descriptors)
            return
        if pid == 0:
            child.main(launch, [*descriptors, self._pidfd, *([group.entrance] if group else [])], self._containment)
        _close(descriptors[:-1])
        self._running[pid] = Running(launch.id, status, launch.limits, kills, group)
        child.report(status, Started(started, pid))

    def _clone(self) -> int:
        owner, seccomp_is_on = self._containment.owner, self._containment.seccomp
        return os.fork() if owner is None else namespaces.clone_child(owner, own_network=not seccomp_is_on)

    def _kill(self, pid: int) -> None:
        """In namespaces the child is process 1 of its own: all others end with it.  Else its session is all."""
        for send in (os.killpg, os.kill):  # the child may not lead its session yet
            with suppress(ProcessLookupError):
                send(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._kill(ended.si_pid)  # what is left of its session, while its number can't be another's
                _, status, usage = os.wait4(ended.si_pid, 0)
                if running := self._running.pop(ended.si_pid, None):
                    self._end_strays()
                    child.report(running.status, self._ended(running, status, usage))
                    os.close(running.status)

    def _ended(self, running: Running, status: int, usage: resource.struct_rusage) -> Ended:
        at = time.monotonic()
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        cpu_seconds = usage.ru_utime + usage.ru_stime
        if running.group:
            short = self._out_of_memory(running.group)
        else:  # the machine's count: another's death may have raised it
            short = oom_kills() > running.oom_kills and not running.limits.processor_time_is_up(cpu_seconds)
        out_of_memory = running.over or (killed and short)
        return Ended(at, status, cpu_seconds, usage.ru_maxrss * 1024, out_of_memory)

    def _out_of_memory(self, group: Group | None) -> bool:
        """Whether the kernel killed in a program's group, which ends with this."""
        return bool(self._groups and group and self._groups.end(group))

    def _watch(self) -> None:
        self._watch_at = time.monotonic() + WATCH_SECONDS
        for pid, running in self._running.items():
            if tree.resident_bytes(pid) > running.limits.memory_bytes:
                running.over = True
                for each in tree.processes(pid):
                    self._kill(each)
        if self._groups:
            self._groups.sweep()
        self._end_strays()

    def _end_strays(self) -> None:
        """Without a process namespace, what outlives its parent becomes our child: no program may leave anything."""
        if self._containment.owner is None:
            for stray in set(tree.children(os.getpid())) - set(self._running):
                self._kill(stray)


def oom_kills() -> int:
    """Processes that this kernel has killed for lack of memory since it started; 0 where it does not tell."""
    with suppress(OSError), open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def _wake(number: int, frame: FrameType | None) -> None:
    """Python writes to the wake-up pipe only for signals that have a handler."""


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def warm_up() -> None:
    """Import and call once what programs use, with a fixed state of the global random generators."""
    import random

    import numpy as np

    for name in ("fft", "linalg", "optimize", "sparse", "spatial"):
        importlib.import_module(f"scipy.{name}")
    np.linalg.svd(np.eye(4))
    sys.modules["scipy.optimize"].linprog([1.0], A_ub=[[-1.0]], b_ub=[-1.0])
    random.seed(_SEED)
    np.random.seed(_SEED)
    gc.collect()
    gc.freeze()


def contain(wanted: str, divided: bool) -> tuple[child.Containment, Hello]:
    """The strongest containment this machine allows, and an honest word on what is missing."""
    owner = namespaces.owner() if wanted == "namespaces" else None
    found = child.Containment(
        owner=owner,
        users=owner != "user" and namespaces.users(),
        landlock=landlock.version() >= 1,
        seccomp=seccomp.supported(),
        groups=divided,
        readable=namespaces.library_paths(),
        ids=(os.geteuid(), os.getegid()),
        numerical_threads=limits.find_numerical_threads(),
    )
    if owner is not None:
        namespaces.enter_root(owner, found.readable)
    return found, Hello("process" if owner is None else "namespaces", missing(found, wanted))


def missing(found: child.Containment, wanted: str) -> list[str]:
    lacks: list[str] = []
    if found.owner is None:
        why = "this machine refuses namespaces" if wanted == "namespaces" else "as configured"
        lacks.append(
            f"no namespaces ({why}): programs see the host's processes and what files it has, and share its IPC"
        )
        lacks.append("no private /tmp: programs cannot write files")
        if not found.users:
            lacks.append("no user of their own: programs run as the daemon's")
    if not found.seccomp:
        lacks.append("no seccomp filter for this processor: programs can start processes and open sockets")
    if not found.landlock:
        lacks.append("no Landlock in this kernel" + ("" if found.owner else ": programs read what their user can"))
    return lacks


def main() -> None:
    descriptor, parent, wanted = sys.argv[1:]
    control = socket.socket(fileno=int(descriptor))
    watched = os.pidfd_open(int(parent))
    if os.getppid() != int(parent):
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    warm_up()
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    divided = groups.found()  # before the root that shows no control groups
    containment, hello = contain(wanted, divided is not None)
    with suppress(BrokenPipeError):  # killed meanwhile: `watched` tells
        control.send(msgspec.json.encode(hello))
    Zygote(control, containment, divided).serve(watched)


if __name__ == "__main__":
    main()
