"""Landlock: from here on this process reads the paths it is given, writes below one directory, and nothing else.

Also cuts TCP (ABI 4) and signals and abstract sockets to processes outside (ABI 6).  Source: linux/landlock.h.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from judges.sandbox import linux

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_OF_A_FILE = _WRITE_FILE | _READ_FILE | _TRUNCATE


def version() -> int:
    """The kernel's Landlock ABI; 0 or less where there is none."""
    return linux.libc.syscall(_CREATE, None, 0, 1)


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Needs no_new_privs.  Paths that do not exist are skipped.  Raises OSError where the kernel refuses."""
    abi = version()
    handled = _file_rights(abi)
    fields = [handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0][: 3 if abi >= 6 else 2 if abi >= 4 else 1]
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = linux.checked(linux.libc.syscall(_CREATE, attributes, len(attributes), 0), "landlock_create_ruleset")
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR)
    for path in writable:
        _allow(ruleset, path, handled)
    linux.checked(linux.libc.syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _file_rights(abi: int) -> int:
    rights = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):
        rights |= 1 << bit if abi >= since else 0
    return rights


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    granted = rights if os.path.isdir(path) else rights & _OF_A_FILE  # noqa: PTH112
    rule = struct.pack("=Qi", granted, place)
    linux.checked(linux.libc.syscall(_ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    os.close(place)
