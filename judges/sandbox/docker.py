"""Level `docker`: a container for each program, through the engine's API; the only file that knows the Docker SDK.

    run: create -> attach -> start -> Order to process 1 (contained.py) -> its Outcome -> the container is gone

The engine closes a container's standard input when we end, however we do, and process 1 ends with it: nothing stays.
What fails on the way (no engine, no image, a container killed by someone) is JudgeDied, never the program's.
"""

from __future__ import annotations

import importlib
import itertools
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import msgspec

from judges.sandbox import contained
from judges.sandbox.client import ENVIRONMENT, START_SECONDS, Ticket
from judges.sandbox.collect import ANSWER_SECONDS, MOST_WAITED, Collector
from judges.sandbox.messages import Entry, Job, JudgeDied, Level, Limits, Outcome
from judges.sandbox.namespaces import SCRATCH

DEFAULT_IMAGE = f"tttdd-judge:{metadata.version('tttdd')}"
LABEL = "tttdd.judge"
RIGHTS = ["KILL", "SETGID", "SETUID"]
"""Of process 1, which gives the program another user.  The program has none."""
ABANDONED_SECONDS = 120.0
"""A container that was made so long ago and never started lost its client in between."""
_OVERHEAD_BYTES = 128 << 20
"""Process 1 with numpy and scipy."""
_OVERHEAD_PROCESSES = 16
_ENGINE_SECONDS = 60.0
_END_SECONDS = 10.0
_OUTPUT = b"\x01"
"""The engine's number of that stream; that of errors is 2."""
_TAIL_BYTES = 1 << 12
_PROBE = Limits(wall_seconds=1.0, cpu_seconds=1, memory_bytes=256 << 20)
T = TypeVar("T")

_LACKS = {
    "MemoryLimit": "this engine limits no memory: only a program's address space is",
    "SwapLimit": "this engine limits no swap: a program can fill the machine's",
    "PidsLimit": "this engine limits no processes: only a program's threads are",
    "CpuCfsQuota": "this engine limits no processor time: a program is held by its affinity alone",
}


class _Container:
    """One container, made and not started yet, and the line to its process 1."""

    def __init__(self, api: Any, number: str) -> None:
        self._api, self._number = api, number
        self._response: Any = None
        self._told, self._complaint = bytearray(), bytearray()
        self._ended = False

    def start(self) -> None:
        """The line first: nothing that is said is lost."""
        line = self._api.attach_socket(self._number, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        self._response, self._socket = line._response, cast("socket.socket", line._sock)
        self._api.start(self._number)

    def hang_up(self) -> None:
        """Process 1 ends, and whoever reads the line is told that it has."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def remove(self) -> None:
        """Kill it now.  It may be gone, or be going, already."""
        with suppress(*_errors(), OSError):
            self._api.remove_container(self._number, force=True)

    def close(self) -> None:
        """The engine removes by itself what has ended by itself."""
        if not self._ended:
            self.remove()
        if self._response is not None:
            self._response.close()

    def send(self, message: msgspec.Struct) -> None:
        with suppress(OSError):  # then process 1 has ended, and its last words say why
            self._socket.sendall(contained.framed(message))

    def hear(self, kind: type[T], seconds: float) -> T:
        """The next message of process 1.  Raises JudgeDied when it has ended or says nothing for so long."""
        deadline = time.monotonic() + seconds
        while (body := self._body()) is None:
            if not self._read_frame(deadline):
                said = bytes(self._complaint).decode(errors="replace").strip().splitlines()
                raise JudgeDied(f"the container of a program ended early: {said[-1] if said else 'killed'}")
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise JudgeDied(f"process 1 of a container speaks another language: {error}") from None

    def wait(self, seconds: float) -> None:
        """For its end, unless that takes too long."""
        deadline = time.monotonic() + seconds
        with suppress(JudgeDied):
            while self._read_frame(deadline):
                pass
            self._ended = True

    def _body(self) -> bytes | None:
        size = contained.LENGTH.size
        if len(self._told) < size:
            return None
        (length,) = contained.LENGTH.unpack_from(self._told)
        if len(self._told) < size + length:
            return None
        body = bytes(self._told[size : size + length])
        del self._told[: size + length]
        return body

    def _read_frame(self, deadline: float) -> bool:
        """One of the engine's frames: stream, three zeros, length, content.  False at the end."""
        header = self._read(8, deadline)
        content = self._read(int.from_bytes(header[4:]), deadline)
        if header[:1] == _OUTPUT:
            self._told += content
        else:
            self._complaint = (self._complaint + content)[-_TAIL_BYTES:]
        return bool(header)

    def _read(self, size: int, deadline: float) -> bytes:
        """`size` bytes, or none at the end of the line."""
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                chunk = self._socket.recv(size - len(data))
            except TimeoutError:
                raise JudgeDied("the container of a program does not answer") from None
            if not chunk:
                return b""
            data += chunk
        return bytes(data)


class _Engine:
    """An engine that answers, with the image as it was found."""

    def __init__(self, image: str, runtime: str | None) -> None:
        self._runtime = runtime
        try:
            client = importlib.import_module("docker").from_env(version="auto", timeout=_ENGINE_SECONDS)
        except _errors() as error:
            raise JudgeDied(f"no Docker engine answers: {error}") from None
        self.api: Any = client.api
        self.api.headers["Connection"] = "close"  # the SDK would keep one for each of the last URLs
        try:
            self.missing = self._examined(image)
        except BaseException:
            self.api.close()
            raise

    def _examined(self, image: str) -> list[str]:
        try:
            self._image = self.api.inspect_image(image)["Id"]
        except _errors() as error:
            raise JudgeDied(f"no judges' image {image}: {error}.  Build it: {build_command(image)}") from None
        self._sweep()
        info: dict[str, Any] = self.api.info()
        self._processors = int(info["NCPU"])
        return [words for name, words in _LACKS.items() if not info.get(name)] + self._probed(image).missing

    def _probed(self, image: str) -> contained.Ready:
        try:
            with self.container(_PROBE) as container:
                ready = container.hear(contained.Ready, START_SECONDS)
            if ready.sources != contained.sources():
                raise JudgeDied("it has other code than this daemon")
        except JudgeDied as error:
            raise JudgeDied(
                f"the image {image} does not fit: {error}.  Build it anew: {build_command(image)}"
            ) from None
        return ready

    def _sweep(self) -> None:
        """What a client left that was killed between making a container and starting it."""
        wanted = {"label": LABEL, "status": "created"}
        for each in self.api.containers(all=True, filters=wanted):
            if time.time() - each["Created"] > ABANDONED_SECONDS:
                with suppress(*_errors()):
                    self.api.remove_container(each["Id"], force=True)

    @contextmanager
    def container(self, limits: Limits) -> Generator[_Container]:
        number: str = self.api.create_container(
            self._image,
            user="0:0",
            environment=ENVIRONMENT,
            labels={LABEL: ""},
            stdin_open=True,
            host_config=self._host_config(limits),
        )["Id"]
        container = _Container(self.api, number)
        try:
            container.start()
            yield container
        finally:
            container.close()

    def _host_config(self, limits: Limits) -> Any:
        files = f"size={limits.files_bytes},nr_inodes=1k,mode=1777,noexec,nosuid,nodev"
        memory = limits.memory_bytes + limits.files_bytes + 2 * limits.result_bytes + _OVERHEAD_BYTES
        return self.api.create_host_config(
            network_mode="none",
            read_only=True,
            tmpfs={SCRATCH: files},
            ipc_mode="none",  # private, and without /dev/shm
            mem_limit=memory,
            memswap_limit=memory,
            pids_limit=limits.threads + _OVERHEAD_PROCESSES,
            nano_cpus=min(limits.cpus, self._processors) * 10**9,
            cap_drop=["ALL"],
            cap_add=RIGHTS,
            security_opt=["no-new-privileges"],
            log_config={"type": "none", "config": {}},
            auto_remove=True,
            runtime=self._runtime,
        )


class DockerSandbox:
    """As Sandbox: `with DockerSandbox() as sandbox: sandbox.run(program, Entry("run"), limits)`.

    The engine is the one of DOCKER_HOST, else this machine's.
    """

    def __init__(self, image: str = DEFAULT_IMAGE, runtime: str | None = None) -> None:
        self._image, self._runtime = image, runtime
        self._engine: _Engine | None = None
        self._closed = False
        self._starting = threading.Lock()
        """Held for as long as a start takes; the other for moments only, so that `cancel` never waits."""
        self._lock = threading.Lock()
        self._slots: set[int] = set()
        self._running: set[_Container] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()

    def start(self) -> None:
        """Look at engine and image unless it is done, by a container that runs nothing.  Raises JudgeDied."""
        with _ours():
            self._found()

    def close(self) -> None:
        """End every container that still runs."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for container in running:
            container.hang_up()
            container.remove()
        with self._starting:
            self._forget()

    @property
    def level(self) -> Level | None:
        return "docker" if self._engine else None

    @property
    def missing(self) -> list[str]:
        """What this engine, image and runtime do not contain, in words."""
        engine = self._engine
        return engine.missing if engine else []

    def run(self, program: str, entry: Entry, limits: Limits, ticket: Ticket | None = None) -> Outcome:
        """Run `program` in a new container and wait for its end, however it comes.  Raises JudgeDied."""
        ticket = ticket or Ticket()
        job = Job(program.encode("utf-8", "surrogatepass"), entry)
        with self._slot() as slot, _ours():
            engine = self._found()
            try:
                return self._run(engine, contained.Order(slot, limits, job), ticket)
            except (*_errors(), OSError):
                with self._starting:
                    if self._engine is engine:
                        self._forget()  # the next run looks anew at what there is
                raise

    def cancel(self, ticket: Ticket) -> None:
        """End the run of `ticket`, or keep it from starting: its Outcome says `cancelled`."""
        with self._lock:
            ticket.cancelled = True
            if ticket.kill is not None:
                ticket.kill()

    def _run(self, engine: _Engine, order: contained.Order, ticket: Ticket) -> Outcome:
        cancelled = Collector(order.limits, lambda: None).outcome("cancelled")
        if ticket.cancelled:
            return cancelled
        with engine.container(order.limits) as container:
            with self._lock:
                if ticket.cancelled:
                    return cancelled
                if self._closed:
                    raise JudgeDied("the sandbox is closed")
                ticket.kill = container.hang_up
                self._running.add(container)
            try:
                return _exchange(container, order)
            except JudgeDied:
                if ticket.cancelled:
                    return cancelled
                raise
            finally:
                with self._lock:
                    ticket.kill = None
                    self._running.remove(container)

    def _found(self) -> _Engine:
        with self._starting:
            if self._closed:
                raise JudgeDied("the sandbox is closed")
            if self._engine is None:
                self._engine = _Engine(self._image, self._runtime)
            return self._engine

    def _forget(self) -> None:
        if self._engine is not None:
            self._engine.api.close()
            self._engine = None

    @contextmanager
    def _slot(self) -> Generator[int]:
        with self._lock:
            slot = next(number for number in itertools.count() if number not in self._slots)
            self._slots.add(slot)
        try:
            yield slot
        finally:
            with self._lock:
                self._slots.remove(slot)


def _exchange(container: _Container, order: contained.Order) -> Outcome:
    """Process 1 keeps the limits; the patience here is for one that hangs."""
    container.hear(contained.Ready, START_SECONDS)
    container.send(order)
    patience = START_SECONDS + order.limits.wall_seconds * (1 + MOST_WAITED) + ANSWER_SECONDS
    outcome = container.hear(Outcome, patience)
    container.wait(_END_SECONDS)
    return outcome


def build_command(image: str) -> str:
    return f"docker build -t {image} {Path(__file__).parent.parent}"


def _errors() -> tuple[type[Exception], ...]:
    """The SDK's own.  Those of the connections below it are OSErrors."""
    return (importlib.import_module("docker.errors").DockerException,)


@contextmanager
def _ours() -> Generator[None]:
    """No failure of engine or connection is the program's."""
    try:
        yield
    except (*_errors(), OSError) as error:
        raise JudgeDied(f"the Docker engine failed: {error}") from error
