"""The system calls that Python's standard library lacks, by ctypes: mount, unshare, clone, prctl, capset.

Each raises OSError with the call's name.  Numbers are those of x86_64 and aarch64; other machines get no clone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
MOUNT_RDONLY, MOUNT_NOSUID = 1, 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 8, 22, 38
PR_SET_CHILD_SUBREAPER = 36
CAP_DAC_READ_SEARCH = 1 << 2

MACHINE = platform.machine()
_CLONE = {"x86_64": 56, "aarch64": 220}.get(MACHINE)
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)
_libc_holding_the_gil = ctypes.PyDLL(None, use_errno=True)


def checked(returned: int, what: str) -> int:
    if returned < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return returned


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    checked(libc.mount(*arguments), f"mount {target}")


def set_mount_flags(path: str, add: int = 0, clear: int = 0, recursive: bool = False) -> None:
    """mount_setattr(2), Linux 5.12: changes these flags and no other."""
    attributes = struct.pack("QQQQ", add, clear, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    done = libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, attributes, len(attributes))
    checked(done, f"mount_setattr {path}")


def unmount(path: str) -> None:
    checked(libc.umount2(path.encode(), MNT_DETACH), f"umount {path}")


def pivot_root(new: str, old: str) -> None:
    checked(libc.pivot_root(new.encode(), old.encode()), "pivot_root")


def unshare(flags: int) -> None:
    checked(libc.unshare(flags), "unshare")


def prctl(option: int, value: int) -> None:
    unsigned = ctypes.c_ulong
    checked(libc.prctl(option, unsigned(value), unsigned(0), unsigned(0), unsigned(0)), f"prctl {option}")


def keep_capabilities(mask: int) -> None:
    """Give up every capability that is not in `mask`, for good: nothing here ever calls exec."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    checked(libc.capset(header, struct.pack("6I", mask, mask, 0, 0, 0, 0)), "capset")


def clone(flags: int) -> int:
    """fork(2) into new namespaces.  CPython's own fork hooks run; the process must have one thread only."""
    if not flags:
        return os.fork()
    if _CLONE is None:
        raise OSError(f"clone: not known on {MACHINE}")
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = _libc_holding_the_gil.syscall(_CLONE, ctypes.c_ulong(flags | signal.SIGCHLD), 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return checked(pid, "clone")
