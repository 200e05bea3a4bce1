"""A small root that holds the interpreter, its libraries and nothing else, and fresh namespaces for each child.

    zygote, once:  (own user namespace unless root) -> own mounts, no network -> tmpfs as root, binds, old root gone
    child, each:   clone with own user or uid, processes, mounts, IPC, host name -> private folder and /proc

A network of its own costs a child a quarter of its start, so it gets one only where it can open a socket at all: where
no filter of system calls keeps it from that.  The others have the zygote's, which is empty.  As root each slot has a
user id of its own; an ordinary user's child is alone in its user namespace instead.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from judges.sandbox import linux

Owner = Literal["root", "user"]

SLOT_UID = 0x70000000
"""First user id of the slots: systemd's table of user ids leaves this range to nobody."""
SLOT_UIDS = 0x8000000
_FIRST_UID = SLOT_UID + os.getpid() % 0x8000 * 0x1000
"""Of this zygote: the limit on threads counts a user's everywhere, also those of another zygote's programs."""

SCRATCH = "/scratch"
"""A program's private writable folder.  Not /tmp itself: an interpreter can live below that."""

SYSTEM_PATHS = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_CHILD = linux.NEWPID | linux.NEWNS | linux.NEWIPC | linux.NEWUTS | linux.NEWCGROUP
_OLD = "/.old"


def owner() -> Owner | None:
    """How namespaces can be had here; None where they can't.  Tried out in children that end at once."""
    candidates: tuple[Owner, ...] = ("root", "user") if os.geteuid() == 0 else ("user",)
    return next((candidate for candidate in candidates if _works(candidate)), None)


def users() -> bool:
    """Whether this process may become the user of a slot.  Tried out in a child that ends at once."""
    prober = os.fork()
    if prober == 0:
        try:
            become_user_of(0)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(prober, 0)[1] == 0


def become_user_of(slot: int) -> None:
    become(_FIRST_UID + slot)


def become(user: int) -> None:
    """For good, with a group of the same number and no other."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def library_paths() -> list[str]:
    """Everything a program may read: system libraries, the interpreter and its packages, four devices."""
    specs = [importlib.util.find_spec(name) for name in ("numpy", "scipy")]
    packages = [str(Path(spec.origin).parent.parent) for spec in specs if spec and spec.origin]
    # Not the prefixes themselves: only their owner may be able to enter them; what lies above these is made anew.
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [f"{sys.base_prefix}/lib", *installed, *packages]
    real = [str(Path(path).resolve()) for path in folders]
    return _outermost([*SYSTEM_PATHS, *folders, *real]) + list(DEVICES)


def enter_root(owner: Owner, paths: Iterable[str]) -> None:
    """Put this process (the zygote) into a root that holds `paths` read-only, /proc and an empty folder."""
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.NEWNS | linux.NEWNET | (linux.NEWUSER if owner == "user" else 0))
    if owner == "user":
        _keep_own_ids(user, group)
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID, "size=1m,mode=0755")
    Path("/tmp" + _OLD).mkdir()
    linux.pivot_root("/tmp", "/tmp" + _OLD)
    os.chdir("/")
    for path in paths:
        _bind(path)
    Path(SCRATCH).mkdir()
    if not Path("/tmp").exists():
        Path("/tmp").symlink_to(SCRATCH)
    _bind("/proc")
    linux.unmount(_OLD)
    Path(_OLD).rmdir()
    linux.set_mount_flags("/", add=linux.MOUNT_RDONLY | linux.MOUNT_NOSUID, recursive=True)
    linux.set_mount_flags("/proc", clear=linux.MOUNT_RDONLY)


def clone_child(owner: Owner, own_network: bool) -> int:
    return linux.clone(_CHILD | (linux.NEWUSER if owner == "user" else 0) | (linux.NEWNET if own_network else 0))


def settle(owner: Owner, ids: tuple[int, int], files_bytes: int) -> None:
    """In a new child: its user, host name, private folder (the working directory) and /proc."""
    if owner == "user":
        _keep_own_ids(*ids)
    linux.libc.sethostname(b"judge", 5)
    safe = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("tmpfs", SCRATCH, "tmpfs", safe, f"size={files_bytes},nr_inodes=1k,mode=1777")
    try:
        linux.mount("proc", "/proc", "proc", safe)
    except OSError:  # a container that hides parts of /proc allows no second one: none at all, then
        linux.mount("tmpfs", "/proc", "tmpfs", safe | linux.MOUNT_RDONLY, "size=4k")
    os.chdir(SCRATCH)


def _keep_own_ids(user: int, group: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _bind(path: str) -> None:
    """Show a path of the old root at the same place in the new one; symbolic links are made again."""
    old = Path(_OLD + path)
    new = Path(path)
    if old.is_symlink():
        new.parent.mkdir(parents=True, exist_ok=True)
        new.symlink_to(old.readlink())
    elif old.exists():
        _mount_point(old, new)
        linux.mount(str(old), path, "", linux.MS_BIND | linux.MS_REC)


def _mount_point(old: Path, new: Path) -> None:
    if old.is_dir():
        new.mkdir(parents=True, exist_ok=True)
    else:
        new.parent.mkdir(parents=True, exist_ok=True)
        new.touch()


def _outermost(paths: Iterable[str]) -> list[str]:
    """Without duplicates and without what lies below another of them."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(above + "/") for above in kept):
            kept.append(path)
    return kept


def _works(owner: Owner) -> bool:
    paths = library_paths()
    prober = os.fork()
    if prober == 0:
        _probe(owner, paths)
    return os.waitpid(prober, 0)[1] == 0


def _probe(owner: Owner, paths: list[str]) -> None:
    """Ends the calling process: with status 0 when a child could be made and settled."""
    ids = (os.geteuid(), os.getegid())
    try:
        enter_root(owner, paths)
        child = clone_child(owner, own_network=True)
        if child == 0:
            settle(owner, ids, 1 << 20)
            if owner == "root":
                become_user_of(0)
            os._exit(0)
        os._exit(os.waitpid(child, 0)[1] != 0)
    finally:  # also an OSError must not run on as a second zygote
        os._exit(1)
