"""Who is at the other end of the socket, by the kernel's word (SO_PEERCRED), and whether that account may use it.

uid 0, the daemon's own uid and members of the configured group may; the file mode 0660 says the same, but a mode can
be changed by accident.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
from typing import NamedTuple

CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    pid: int
    uid: int
    gid: int


def credentials(sock: socket.socket) -> Peer:
    """Who called connect() on `sock`; of a socket that is connected by us: who called listen()."""
    return Peer(*CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)))


def allowed(peer: Peer, group: str) -> bool:
    """Whether `peer` may use the API; an empty `group` leaves it to root and the daemon's account."""
    if peer.uid in (0, os.getuid()):
        return True
    return bool(group) and _member(peer, group)


def _member(peer: Peer, group: str) -> bool:
    try:
        entry = grp.getgrnam(group)
        return peer.gid == entry.gr_gid or pwd.getpwuid(peer.uid).pw_name in entry.gr_mem
    except KeyError:  # no such group or no name for this uid
        return False
