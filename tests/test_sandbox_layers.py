"""Each layer of the sandbox alone: with only this one in force, what it is there for is denied by it and no other.

The attacks of test_sandbox.py are stopped by several layers at once; losing one of them would show only here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from judges.sandbox import Entry, Level, Limits, Sandbox, landlock, seccomp
from judges.sandbox.linux import CAP_DAC_READ_SEARCH, MACHINE

EPERM, EACCES = 1, 13
OUR_SPACES = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("net", "pid", "mnt", "ipc", "uts")]

# fmt: off
LEADS_OUT = {  # from the kernel's table, not from ours
    "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "ptrace": 101, "process_vm_readv": 310,
    "process_vm_writev": 311, "pidfd_open": 434, "pidfd_getfd": 438, "kill": 62, "tkill": 200, "tgkill": 234,
    "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "pidfd_send_signal": 424, "socket": 41, "socketpair": 53,
    "connect": 42, "bind": 49, "mq_open": 240, "shmget": 29, "semget": 64, "msgget": 68, "unshare": 272, "setns": 308,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsmount": 432, "mount_setattr": 442, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "sched_setaffinity": 203, "sched_setscheduler": 144, "setpriority": 141, "memfd_create": 319, "bpf": 321,
    "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "add_key": 248, "request_key": 249, "keyctl": 250, "personality": 135,
    "init_module": 175, "finit_module": 313, "setuid": 105, "setresuid": 117, "setgroups": 116,
}
# fmt: on

ATTEMPT = """
import ctypes, fcntl, json, os, resource, signal, socket, sys, threading
from judges.sandbox import landlock, linux, seccomp
libc = ctypes.CDLL(None, use_errno=True)
def system_call(number, *arguments):
    if libc.syscall(number, *[ctypes.c_long(each) for each in arguments]) < 0:
        raise OSError(ctypes.get_errno(), "")
def attempt(action):
    try:
        action()
    except OSError as error:
        return error.errno
    return 0
"""


def alone(layer: str, *actions: str) -> list[int]:
    """The errno of each action, 0 where it succeeded, in a process of ours that put on this one layer first."""
    program = f"{ATTEMPT}linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)\n{layer}\n"
    program += (
        f"print(json.dumps([attempt(action) for action in [{', '.join('lambda: ' + each for each in actions)}]]))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def denied(layer: str, errno: int, *actions: str) -> None:
    """Each action does something else without the layer, and gives `errno` with it."""
    assert errno not in alone("", *actions)
    assert alone(layer, *actions) == [errno] * len(actions)


@pytest.mark.skipif(not seccomp.supported(), reason="no filter for this processor")
def test_the_system_call_filter_alone_denies_processes_signals_and_sockets() -> None:
    denied(
        "seccomp.install()",
        EPERM,
        "os.fork() or os._exit(0)",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.kill(os.getpid(), 0)",
        "signal.pthread_kill(threading.get_ident(), 0)",
        "signal.raise_signal(signal.SIGCHLD)",
        "socket.socket(socket.AF_UNIX)",
        "socket.socketpair()",
        "os.memfd_create('x')",
        "os.pidfd_open(os.getpid())",
        "fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())",
        "fcntl.fcntl(0, fcntl.F_SETSIG, 9)",
        "os.sched_setaffinity(0, os.sched_getaffinity(0))",
        "os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))",
        "os.setresuid(-1, -1, -1)",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU)",
        "os.execv('/nowhere', ['nowhere'])",
    )


@pytest.mark.skipif(MACHINE != "x86_64", reason="numbers of x86_64")
def test_the_filter_denies_every_call_that_leads_out() -> None:
    """By number, with arguments that would do nothing."""
    actions = [f"system_call({number}, -1, -1, -1, -1, -1, -1)" for number in LEADS_OUT.values()]
    allowed = [name for name, errno in zip(LEADS_OUT, alone("seccomp.install()", *actions), strict=True) if errno != 1]
    assert allowed == []


@pytest.mark.skipif(not seccomp.supported(), reason="no filter for this processor")
def test_the_filter_leaves_threads_and_a_programs_own_limits() -> None:
    assert alone(
        "seccomp.install()",
        "threading.Thread(target=int).start()",
        "resource.prlimit(0, resource.RLIMIT_CPU)",
        "fcntl.fcntl(0, fcntl.F_GETFD)",
        "os.listdir('/')",
    ) == [0, 0, 0, 0]


@pytest.mark.skipif(landlock.version() < 1, reason="no Landlock in this kernel")
def test_landlock_alone_denies_every_path_but_those_given(tmp_path: Path) -> None:
    (tmp_path / "readable").mkdir()
    (tmp_path / "writable").mkdir()
    (tmp_path / "secret").write_text("x")
    layer = f"landlock.restrict(['{tmp_path}/readable'], ['{tmp_path}/writable'])"
    denied(
        layer,
        EACCES,
        f"open('{tmp_path}/secret')",
        f"os.rename('{tmp_path}/secret', '{tmp_path}/secret')",
        f"os.listdir('{tmp_path}')",
        f"open('{tmp_path}/readable/new', 'w')",
        "open('/proc/self/comm', 'w').write('x')",
    )
    assert alone(layer, f"os.listdir('{tmp_path}/readable')", f"open('{tmp_path}/writable/new', 'w')") == [0, 0]


@pytest.mark.skipif(landlock.version() < 6, reason="Landlock before ABI 6 scopes no signals")
def test_landlock_alone_denies_signals_and_abstract_sockets_of_processes_outside() -> None:
    name = f"tttdd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        connect = f"socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        denied("landlock.restrict([], [])", EPERM, "os.kill(os.getppid(), 0)", connect)


@pytest.mark.skipif(landlock.version() < 4, reason="Landlock before ABI 4 knows no TCP")
def test_landlock_alone_denies_tcp() -> None:
    actions = ["socket.socket().bind(('127.0.0.1', 0))", "socket.socket().connect(('127.0.0.1', 9))"]
    denied("landlock.restrict([], [])", EACCES, *actions)


INSIDE = """
import ctypes, os
def code(action):
    try: action()
    except OSError as error: return error.errno
    return 0
def run():
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable, so that its own /proc/self is open to it
    print(open('/proc/self/status').read())
    print('Spaces:\\t', [os.readlink(f'/proc/self/ns/{name}') for name in ('net', 'pid', 'mnt', 'ipc', 'uts')])
    return code(lambda: open('/proc/version')), code(lambda: os.kill(os.getpid(), 0))
"""


@pytest.mark.parametrize("level", ["namespaces", "process"])
def test_a_program_runs_behind_every_layer(level: Level) -> None:
    """What only one layer can cause, seen from inside: no attack would notice if the child forgot one."""
    with Sandbox(level) as sandbox:
        if sandbox.level != level or landlock.version() < 1 or not seccomp.supported():
            pytest.skip(f"this machine allows less: {sandbox.missing}")
        outcome = sandbox.run(INSIDE, Entry("run"), Limits(wall_seconds=30.0, cpu_seconds=10))
    assert outcome.result == f"R[{EACCES}, {EPERM}]".encode(), "Landlock, seccomp"
    status = dict(line.split(":\t", 1) for line in outcome.output.decode().splitlines() if ":\t" in line)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    reads_anywhere = CAP_DAC_READ_SEARCH if level == "process" else 0  # what Landlock leaves of it
    assert (int(status["CapEff"], 16) | int(status["CapPrm"], 16)) & ~reads_anywhere == 0
    if level == "namespaces":
        assert status["Pid"] == "1"
        assert not [name for name in OUR_SPACES if name in status["Spaces"]]
    if os.geteuid() == 0:
        assert "0" not in status["Uid"].split() + status["Gid"].split()
