"""A Docker engine and its containers, in the few words that the judges need; the only file that knows the Docker SDK.

    Engine.container: create -> attach -> start -> messages to and from process 1 (contained.py) -> gone

The engine closes a container's standard input when we end, however we do, and process 1 ends with it: nothing stays.
"""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from judges.sandbox import contained
from judges.sandbox.client import ENVIRONMENT, START_SECONDS
from judges.sandbox.messages import JudgeDied, Limits
from judges.sandbox.namespaces import SCRATCH

LABEL = "tttdd.judge"
RIGHTS = ["KILL", "SETGID", "SETUID"]
"""Of process 1, which gives the program another user.  The program has none."""
ABANDONED_SECONDS = 120.0
"""A container that was made so long ago and never started lost its client in between."""
_OVERHEAD_BYTES = 128 << 20
"""Process 1 with numpy and scipy."""
_OVERHEAD_PROCESSES = 16
_ENGINE_SECONDS = 60.0
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


class Container:
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
        with suppress(*errors(), OSError):
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


class Engine:
    """An engine that answers, with the image as it was found."""

    def __init__(self, image: str, runtime: str | None) -> None:
        self._runtime = runtime
        try:
            client = importlib.import_module("docker").from_env(version="auto", timeout=_ENGINE_SECONDS)
        except errors() as error:
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
        except errors() as error:
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
                with suppress(*errors()):
                    self.api.remove_container(each["Id"], force=True)

    @contextmanager
    def container(self, limits: Limits) -> Generator[Container]:
        number: str = self.api.create_container(
            self._image,
            user="0:0",
            environment=ENVIRONMENT,
            labels={LABEL: ""},
            stdin_open=True,
            host_config=self._host_config(limits),
        )["Id"]
        container = Container(self.api, number)
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


def build_command(image: str) -> str:
    return f"docker build -t {image} {Path(__file__).parent.parent}"


def errors() -> tuple[type[Exception], ...]:
    """The SDK's own.  Those of the connections below it are OSErrors."""
    return (importlib.import_module("docker.errors").DockerException,)
