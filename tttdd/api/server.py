"""The API's listening Unix socket and the uvicorn server on it.

    bind(path, group) | from_systemd() -> socket -> serve(socket, app, ready)

We bind the socket ourselves, because uvicorn makes its own 0666.  A cancelled serve() stops gracefully: event streams
are told to end, other answers get STOP_SECONDS.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import anyio
import uvicorn.config
import uvicorn.server

from tttdd.api import peer
from tttdd.api.connection import Connection
from tttdd.api.routing import App

STOP_SECONDS = 3
IDLE_SECONDS = 5
"""Between two requests on one connection."""
EXPIRE_SECONDS = 1.0
FIRST_FD = 3
"""systemd's SD_LISTEN_FDS_START."""


class SocketInUse(RuntimeError):
    """Another daemon listens there.  The message names its pid."""


class OwnSocket(socket.socket):
    """A socket that removes its file when it is closed."""

    file: Path | None = None
    inode = 0

    def own(self, file: Path) -> None:
        self.file, self.inode = file, file.stat().st_ino

    def close(self) -> None:
        super().close()
        file, self.file = self.file, None
        with contextlib.suppress(FileNotFoundError):
            if file is not None and file.stat().st_ino == self.inode:
                file.unlink()


def bind(path: Path, group: str) -> socket.socket:
    """Listen on `path`, mode 0660, owned by `group` (empty: the daemon's own); a dead daemon's socket is replaced.

    Raises SocketInUse when a live daemon has it, LookupError when there is no such group, OSError as bind() does.
    """
    owner = _gid(group) if group else -1
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear(path)
    sock = OwnSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)  # never wider than 0660, not even between bind and chmod
    try:
        sock.bind(str(path))
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.own(path.absolute())
    os.chown(path, -1, owner)
    sock.listen(128)
    sock.setblocking(False)
    return sock


def from_systemd() -> socket.socket | None:
    """The socket that systemd opened for us, if it did (LISTEN_FDS, LISTEN_PID)."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS", "0") == "0":
        return None
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)  # children must not take it for theirs
    os.set_inheritable(FIRST_FD, False)
    sock = socket.socket(fileno=FIRST_FD)
    sock.setblocking(False)
    return sock


async def serve(sock: socket.socket, app: App, *, ready: Callable[[], None]) -> None:
    """Answer on `sock` until cancelled; `ready` is called once connections are accepted.  Closes `sock`."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = _Server(app, ready)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.run_shielded, sock)
        tasks.start_soon(server.expire)
        try:
            await anyio.sleep_forever()
        finally:
            app.stopping.set()
            server.should_exit = True


class _Server(uvicorn.server.Server):
    """uvicorn without its signal handlers: signals belong to the daemon."""

    def __init__(self, app: Any, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.config.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def expire(self) -> None:
        while True:
            await anyio.sleep(EXPIRE_SECONDS)
            for connection in cast("set[Connection]", self.server_state.connections).copy():
                connection.expire(time.monotonic())

    async def run_shielded(self, sock: socket.socket) -> None:
        with anyio.CancelScope(shield=True):
            await self.serve([sock])


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on; raises SocketInUse otherwise."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise SocketInUse(f"{path}: the socket is in use: {error.strerror or error}") from None
        raise SocketInUse(
            f"{path}: a daemon already listens there (pid {peer.credentials(probe).pid}); "
            "stop it first, or give another socket with --socket"
        )


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise LookupError(
            f"daemon.group = {group!r}: no such group; create it (groupadd --system {group}) or set it to ''"
        ) from None
