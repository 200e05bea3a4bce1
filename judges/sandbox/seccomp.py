"""A seccomp filter that leaves a program what computing needs: no processes, sockets, signals, mounts or tracing.

    wrong architecture -> kill;  denied call -> EPERM;  clone3 -> ENOSYS, so that libc falls back to clone;
    clone -> threads only;  prlimit -> on itself only;  fcntl -> no signal when a descriptor is ready
    prctl -> not the signal of its parent's death;  close_range -> no flags
    anything else -> allowed

Sources: linux/seccomp.h, linux/filter.h, the syscall tables of x86_64 and of the generic ABI (aarch64).
"""

from __future__ import annotations

import ctypes
import errno
import struct

from judges.sandbox import linux

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32_BIT = 0x40000000
_CLONE_THREAD = 0x10000
_SECCOMP_MODE_FILTER = 2

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}

_DENIED: dict[str, tuple[int | None, int | None]] = {
    # processes
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    # signals
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    # network and other ways to talk
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "mq_open": (240, 180),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    # users, namespaces and mounts
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setgroups": (116, 159),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # what is not its own: Landlock guards contents, not these
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    # its share of the machine
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # the kernel's large or privileged surfaces
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "personality": (135, 92),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "syslog": (103, 116),
}
_CLONE, _CLONE3, _PRLIMIT, _FCNTL = (56, 220), (435, 435), (302, 261), (72, 25)
_CLOSE_RANGE, _PRCTL = (436, 436), (157, 167)
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15


def supported() -> bool:
    return linux.MACHINE in _ARCHITECTURES


def install() -> None:
    """Filter this process for good.  Needs no_new_privs.  Raises OSError where the kernel has no seccomp."""
    buffer = ctypes.create_string_buffer(_PROGRAM, len(_PROGRAM))
    header = struct.pack("HxxxxxxQ", len(_PROGRAM) // 8, ctypes.addressof(buffer))
    done = linux.libc.prctl(linux.PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, 0, 0)
    linux.checked(done, "seccomp")


def _program(machine: str) -> bytes:
    column = _COLUMN[machine]
    denied = [numbers[column] for numbers in _DENIED.values()]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL),
    ]
    for number in denied:
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    steps += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    steps += _unless(_CLONE[column], 0, (_ANY_BIT, 1, 0, _CLONE_THREAD))
    steps += _unless(_PRLIMIT[column], 0, (_EQUAL, 1, 0, 0))
    steps += _unless(_CLOSE_RANGE[column], 2, (_EQUAL, 1, 0, 0))  # no table of descriptors for each thread
    steps += _unless(_PRCTL[column], 0, (_EQUAL, 0, 1, linux.PR_SET_PDEATHSIG))  # it ends with its judge
    for command in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX):  # any signal to any process of its user
        steps += _unless(_FCNTL[column], 1, (_EQUAL, 0, 1, command))
    steps += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _unless(number: int, argument: int, allowed: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """Deny call `number` unless its argument (counted from 0, the low 32 bits, on these little-endian machines)
    passes `allowed`, a test that skips one step when the call may go on."""
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * argument),
        allowed,
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
    ]


_PROGRAM = _program(linux.MACHINE) if supported() else b""
"""Made once, when the zygote starts."""
