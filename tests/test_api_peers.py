"""Who may call: real processes of other accounts at the real socket."""

from __future__ import annotations

import grp
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_daemon import Served, serving

STRANGER = 54_321
"""Nobody's uid and gid."""
CALL = """
import os, socket, sys
path, uid, gid, *groups = sys.argv[1:]
sock = socket.socket(socket.AF_UNIX)
os.setgroups([int(group) for group in groups])
os.setgid(int(gid))
os.setuid(int(uid))
try:
    sock.connect(path)
except PermissionError as error:
    sys.exit(error.strerror)
sock.sendall(b"GET /v1/status HTTP/1.1\\r\\nhost: t\\r\\nconnection: close\\r\\n\\r\\n")
print(sock.makefile("rb").read().decode())
"""

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")


@pytest.fixture(scope="module")
def group() -> grp.struct_group:
    return next(entry for entry in grp.getgrall() if entry.gr_gid not in (0, STRANGER))


@pytest.fixture(scope="module")
def served(group: grp.struct_group) -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # pytest's own folders are closed to others
        with serving(Path(folder) / "s", group=group.gr_name) as served:
            yield served


def called(served: Served, uid: int, gid: int, *groups: int) -> str:
    """What a process of that account hears, or why it cannot connect."""
    command = [sys.executable, "-c", CALL, str(served.socket), *map(str, (uid, gid, *groups))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout or done.stderr.strip()


def test_a_stranger_cannot_connect(served: Served) -> None:
    assert called(served, STRANGER, STRANGER) == "Permission denied"


def test_a_stranger_is_refused_even_where_the_socket_lets_everybody_connect(served: Served) -> None:
    served.socket.chmod(0o666)
    try:
        answer = called(served, STRANGER, STRANGER)
    finally:
        served.socket.chmod(0o660)
    assert answer.startswith("HTTP/1.1 403 ")
    assert f"uid {STRANGER} may not use this socket" in answer
    assert "ask for membership in the group" in answer


def test_a_process_of_the_group_is_let_in(served: Served, group: grp.struct_group) -> None:
    assert called(served, STRANGER, group.gr_gid).startswith("HTTP/1.1 200 ")


def test_a_process_with_the_group_among_its_others_is_let_in(served: Served, group: grp.struct_group) -> None:
    others = (STRANGER, group.gr_gid, STRANGER + 1)
    assert called(served, STRANGER, STRANGER, *others).startswith("HTTP/1.1 200 ")


def test_root_is_let_in_without_the_group(served: Served) -> None:
    assert called(served, 0, 0).startswith("HTTP/1.1 200 ")
