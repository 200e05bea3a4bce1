"""A SGLang server under watch: one process tree that is gone when the daemon or the server is.

    daemon --line--> this --standard input--> server -> scheduler, detokenizer
    line ends: server and all that it started are killed          server ends: this ends, with its exit status

SGLang kills every child of its own process, so nothing of ours is in its tree.  Requests: `address`, and by the
model's tokenizer `encode`, `encode_chat`, `encode_more`, `piece` and `ended`.  Options: model, thinking, command,
arguments, environment.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import signal
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from tttdd import wire

if TYPE_CHECKING:
    from tttdd.workers.text import Text

GRACE_SECONDS = 1.0
PR_SET_CHILD_SUBREAPER = 36


class Server:
    """A running server: where it answers, and to whom."""

    def __init__(self, options: dict[str, Any], scratch: str) -> None:
        self.port, self.key = _free_port(), secrets.token_urlsafe(32)
        where = {"host": "127.0.0.1", "port": self.port, "api_key": self.key}
        self.process = subprocess.Popen(
            [*options["command"], str(os.getpid())],
            stdin=subprocess.PIPE,
            env=os.environ | {"TMPDIR": scratch} | options["environment"],
        )
        assert self.process.stdin is not None
        with self.process.stdin as pipe, suppress(BrokenPipeError):  # a server that ended at once is told below
            pipe.write(msgspec.json.encode(options["arguments"] | where))
        self.ended = os.pidfd_open(self.process.pid)
        self.shared = set[Path]()

    def note(self) -> None:
        """What the server has in shared memory by now: one that is killed, with all below it, tells no more."""
        self.shared.update(path for process in _tree() for path in _shared_memory(process.pid))


def main(line: wire.Line, options: dict[str, Any]) -> None:
    """Answer requests until the line ends (EOFError) or the server does (SystemExit)."""
    wire.outlive_parent()  # the line's end tells of the daemon's, and the server must be ended first
    with _running(options) as server:
        loading, waiting = Loading(Path(options["model"]), options["thinking"]), deque[wire.Request]()
        while True:
            ready, _, _ = select.select([line, server.ended], [], [], 0.05 if loading.is_alive() else None)
            if server.ended in ready:
                raise SystemExit(f"the SGLang server ended with exit status {server.process.wait()}")
            if line in ready and isinstance(request := line.receive(), wire.Request) and request.method != "cancel":
                waiting.append(request)
            while waiting and not loading.is_alive():
                if waiting[0].method == "encode" and not server.shared:  # it generates by now, so all is there
                    server.note()
                line.send(_answer(server, loading.text, waiting.popleft()))


class Loading(threading.Thread):
    """The tokenizer takes seconds to come.  Meanwhile the server starts, and the line's end must not go unheard."""

    def __init__(self, model: Path, thinking: bool) -> None:
        super().__init__(daemon=True)
        self._model, self._thinking, self._found = model, thinking, None
        self.start()

    def run(self) -> None:
        from tttdd.workers.text import Text

        self._found = Text(self._model, self._thinking)

    @property
    def text(self) -> Text:
        """Raises SystemExit when it could not be loaded; why stands in the log."""
        if self._found is None:
            raise SystemExit(f"{self._model}: its tokenizer could not be loaded")
        return self._found


def _answer(server: Server, text: Text, request: wire.Request) -> wire.Reply:
    try:
        match request.method:
            case "address":
                ends = sorted(text.end_ids)
                return wire.Reply(request.id, {"port": server.port, "key": server.key, "end_ids": ends})
            case "encode":
                return wire.Reply(request.id, text.encode(**request.params))
            case "encode_chat":
                return wire.Reply(request.id, text.encode_chat(**request.params))
            case "encode_more":
                return wire.Reply(request.id, text.encode_more(**request.params))
            case "piece":
                return wire.Reply(request.id, text.piece(**request.params))
            case "ended":
                return wire.Reply(request.id, _ended(text, **request.params))
            case unknown:
                return wire.Reply(request.id, error=f"no method {unknown!r}")
    except wire.Refusal as refusal:
        return wire.Reply(request.id, error=str(refusal))
    except (ValueError, TypeError, LookupError) as error:
        return wire.Reply(request.id, error=f"{request.method}: {type(error).__name__}: {error}")


def _ended(text: Text, ids: list[int], stops: list[str]) -> dict[str, Any]:
    """A completion up to the token that completes a stop text, if one does: SGLang may have gone on behind it."""
    stopped = text.stopped(ids, stops)
    tokens = len(ids) if stopped is None else stopped
    return {"tokens": tokens, "stopped": stopped is not None, "text": text.decode(ids[:tokens])}


@contextmanager
def _running(options: dict[str, Any]) -> Iterator[Server]:
    """A server, and at the end nothing of what it started, however deep: what loses its parent becomes ours."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="tttdd-engine-") as scratch:  # it leaves its sockets lying about
        server = Server(options, scratch)
        try:
            yield server
        finally:
            server.note()
            with suppress(subprocess.TimeoutExpired):
                server.process.send_signal(signal.SIGTERM)
                server.process.wait(GRACE_SECONDS)
            while rest := _tree():
                for process in rest:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                psutil.wait_procs(rest, timeout=GRACE_SECONDS)
            for path in server.shared:
                path.unlink(missing_ok=True)


def _tree() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _shared_memory(pid: int) -> Iterator[Path]:
    """Files of shared memory that a process would leave: mapped by SGLang, named after it by loky, or semaphores of
    multiprocessing.  Those are made under another name and linked to theirs, so that only the inode tells them."""
    yield from Path("/dev/shm").glob(f"sem.loky-{pid}-*")
    with suppress(OSError):
        rows = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        mapped = {int(row[4]) for row in rows if row[5:] and row[5].startswith("/dev/shm/sem.")}
        yield from (path for path in Path("/dev/shm").glob("sem.mp-*") if path.stat().st_ino in mapped)
        yield from (Path(row[5]) for row in rows if row[5:] and row[5].startswith("/dev/shm/sglang"))


def _free_port() -> int:
    """Below 50000: SGLang adds 10000 for a second port of its own."""
    while True:
        port = 20_000 + secrets.randbelow(30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
