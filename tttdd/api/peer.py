"""Who is at the other end of the socket, by the kernel's word (SO_PEERCRED, SO_PEERGROUPS), and whether it may use it.

uid 0, the daemon's own uid and processes of the configured group may; the file mode 0660 says the same, but a mode can
be changed by accident.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
from array import array
from typing import NamedTuple

CREDENTIALS = struct.Struct("3i")
SO_PEERGROUPS = 59
"""Of Linux; Python has no name for it."""


class Peer(NamedTuple):
    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()
    """Its supplementary groups."""


def credentials(sock: socket.socket) -> Peer:
    """Who called connect() on `sock`; of a socket that is connected by us: who called listen()."""
    pid, uid, gid = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return Peer(pid, uid, gid, _groups(sock, uid, gid))


def allowed(peer: Peer, group: str) -> bool:
    """Whether `peer` may use the API; an empty `group` leaves it to root and the daemon's account."""
    if peer.uid in (0, os.getuid()):
        return True
    return bool(group) and _member(peer, group)


def _groups(sock: socket.socket, uid: int, gid: int) -> frozenset[int]:
    try:
        return frozenset(array("I", sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)))
    except OSError:  # a kernel before 4.13, or more than 256 groups, which Python does not ask for: by name, then
        try:
            return frozenset(os.getgrouplist(pwd.getpwuid(uid).pw_name, gid))
        except KeyError:
            return frozenset()


def _member(peer: Peer, group: str) -> bool:
    try:
        return grp.getgrnam(group).gr_gid in {peer.gid, *peer.groups}
    except KeyError:  # no such group
        return False
