"""A worker process of ours and the line to it: its own session, dies with the daemon, answers out of order.

    async with Worker("tttdd.workers.train", {...}, log) as worker:
        await worker.call("train", batch=...)

A worker module has `main(line, options)`.  A dead worker raises WorkerDied in every call, with its last words.
One task writes, so that a cancelled call leaves no half message and never waits for a worker that does not read.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
import msgspec

from tttdd import wire
from tttdd.ports import WorkerDied, WorkerFailed

STOP_SECONDS = 5.0
LOG_BYTES = 4 << 20
"""A longer log is set aside as NAME.1 when its worker starts, in place of what was set aside before."""
PLAIN = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_", "TZ", "TERM", "TMPDIR", "XDG_", "VIRTUAL_ENV"),
    *("LD_", "LIBRARY_PATH", "PYTHON", "MALLOC_", "SSL_CERT_", "REQUESTS_CA_BUNDLE"),
)
PASSED = (
    *PLAIN,
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CC", "CXX"),
    *("CUDA", "CUBLAS", "CUDNN", "NVIDIA", "NVTE_", "NCCL_", "UCX_", "GLOO_", "TORCH", "PYTORCH", "TRITON"),
    *(
        "SGLANG",
        "SGL_",
        "FLASHINFER",
        "DG_",
        "NVCC_",
        "CUTLASS_",
        "MAX_JOBS",
        "OMP_",
        "GOMP_",
        "KMP_",
        "MKL_",
        "OPENBLAS_",
        "NUMEXPR_",
    ),
    *("HF_", "TRANSFORMERS_", "TOKENIZERS_", "TTTDD_"),
)
"""Beginnings of names in a worker's environment."""
TRACKING = (*PLAIN, "WANDB_")
"""The same for the tracker's."""
SECRET = re.compile("KEY|TOKEN(?!IZERS)|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
PASSWORD = re.compile(r"://[^/\s]*@")
FETCHING = re.compile("PIP_|(HTTPS?|ALL|NO)_PROXY$|NETRC$", re.IGNORECASE)
SENDING = re.compile("(HTTPS?|ALL|NO)_PROXY$", re.IGNORECASE)
WAYS = {"tttdd.workers.fetch": FETCHING, "tttdd.workers.track": SENDING}
"""Names that only those workers get which have to reach something outside, with the passwords in them."""


class _Waiting:
    """A call's place until its reply comes.  It hears of its events in its own task, which may fail by them."""

    def __init__(self) -> None:
        self.events: list[wire.Event] = []
        self.reply: wire.Reply | None = None
        self._over, self._news = False, anyio.Event()

    @property
    def over(self) -> bool:
        return self._over

    def tell(self, event: wire.Event) -> None:
        self.events.append(event)
        self._news.set()

    def end(self, reply: wire.Reply | None) -> None:
        self.reply, self._over = reply, True
        self._news.set()

    async def until_over(self, on_event: Callable[[wire.Event], None] | None) -> None:
        while self.events or not self._over:
            await self._news.wait()
            if not self._over:
                self._news = anyio.Event()
            events, self.events = self.events, []
            if on_event is not None:
                for event in events:
                    on_event(event)


class Worker:
    def __init__(
        self,
        module: str,
        options: dict[str, Any],
        log: Path,
        on_event: Callable[[wire.Event], None] | None = None,
    ) -> None:
        self._module, self._options, self._log, self._on_event = module, options, log, on_event
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._outbox, self._outgoing = anyio.create_memory_object_stream[bytes](math.inf)
        self._dead = False
        self._silent = anyio.Event()
        self._writing = anyio.CancelScope()

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        _bound(self._log)
        with theirs, self._log.open("ab") as log:
            command = [
                sys.executable,
                "-P",
                "-m",
                "tttdd.workers",
                self._module,
                str(theirs.fileno()),
                str(os.getpid()),
            ]
            self._process = subprocess.Popen(
                [*command, msgspec.json.encode(self._options).decode()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=_environment(self._module),
                start_new_session=True,
            )
        self._stream = await anyio.abc.UNIXSocketStream.from_socket(ours)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._talk)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with contextlib.suppress(OSError):
            self._stream.extra(anyio.abc.SocketAttribute.raw_socket).shutdown(socket.SHUT_RD)  # ends `_read`
        self._writing.cancel()
        with anyio.CancelScope(shield=True):
            await self._silent.wait()  # the stream must not be closed under a task that waits for it
            self._outbox.close()
            self._outgoing.close()
            await self._stream.aclose()
            await anyio.to_thread.run_sync(self._stop)
        if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
            return await self._tasks.__aexit__(kind, error, trace)
        await self._tasks.__aexit__(None, None, None)
        return None  # the body's own error goes on as it is, not in a group

    @property
    def log(self) -> Path:
        return self._log

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(self, method: str, on_event: Callable[[wire.Event], None] | None = None, **params: Any) -> Any:
        """The worker's answer; `on_event` gets what it tells of it before.  Cancelling tells it to drop the call.

        Raises WorkerDied when the process is gone and WorkerFailed when it answers with an error.
        """
        number, waiting = next(self._ids), _Waiting()
        self._waiting[number] = waiting
        try:
            self._send(wire.Request(number, method, params))
            await waiting.until_over(on_event)
        finally:
            del self._waiting[number]
            if not (waiting.over or self._dead):
                self._send(wire.Request(0, "cancel", {"id": number}))
        if waiting.reply is None:
            raise WorkerDied(self.last_words())
        if waiting.reply.error is not None:
            raise WorkerFailed(waiting.reply.error)
        return waiting.reply.result

    def last_words(self) -> str:
        """The tail of the worker's log, for messages."""
        tail = self._log.read_text(errors="replace")[-1500:].strip()
        code = self._process.poll()
        return f"{self._module} ended ({'exit status ' + str(code) if code is not None else 'pipe closed'}): {tail}"

    def _send(self, message: wire.Message) -> None:
        if self._dead:
            raise WorkerDied(self.last_words())
        self._outbox.send_nowait(wire.encode(message))

    async def _talk(self) -> None:
        """Never cancelled: a read that is, just as something is there, is an error in the event loop's own code."""
        try:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read)
                    tasks.start_soon(self._write)
        finally:
            self._silent.set()

    async def _write(self) -> None:
        with self._writing, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # `_read` tells
            async for frame in self._outgoing:
                await self._stream.send(frame)

    async def _read(self) -> None:
        buffer = bytearray()
        try:
            while True:
                buffer += await self._stream.receive()
                for message in _frames(buffer):
                    self._deliver(message)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._dead = True
            for waiting in self._waiting.values():
                waiting.end(None)

    def _deliver(self, message: wire.Message) -> None:
        match message:
            case wire.Reply(id=number) if number in self._waiting:
                self._waiting[number].end(message)
            case wire.Event(id=number) if number in self._waiting:
                self._waiting[number].tell(message)
            case wire.Event(id=0) if self._on_event is not None:
                self._on_event(message)
            case _:
                pass

    def _stop(self) -> None:
        """EOF on the line asks the worker to end; what is left of its session after a while is killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _bound(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))


def _environment(module: str) -> dict[str, str]:
    """What workers are known to need, and no secret: neither by its name nor in an address.

    A list of what passes, because a secret can have any name; within it by pattern, because of the likes of HF_TOKEN.
    Only what fetches models gets the ways to the package index, and what sends to a tracker the ways out, with their
    passwords.
    """
    passed = TRACKING if module == "tttdd.workers.track" else PASSED
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(passed) and not SECRET.search(name) and not PASSWORD.search(value)
    }
    if way := WAYS.get(module):
        kept |= {name: value for name, value in os.environ.items() if way.match(name)}
    kept.pop("CUDA_VISIBLE_DEVICES", None)  # devices are numbered as NVML and nvidia-smi do
    return kept | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _frames(buffer: bytearray) -> list[wire.Message]:
    """Take the whole frames off the front of `buffer`."""
    messages: list[wire.Message] = []
    while len(buffer) >= wire.HEADER.size:
        (length,) = wire.HEADER.unpack_from(buffer)
        end = wire.HEADER.size + length
        if len(buffer) < end:
            break
        messages.append(wire.decode(bytes(buffer[wire.HEADER.size : end])))
        del buffer[:end]
    return messages
