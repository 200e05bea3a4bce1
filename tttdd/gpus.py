"""The NVIDIA devices of this machine, read through NVML: memory, load, and whose processes are on them.

    NVML -> devices -> processes -> session leader's command line -> engine | trainer | another command

A machine without NVML has no devices.  Whatever NVML refuses is left out or None: a gauge never breaks a run.
A call may block for tens of milliseconds, so the daemon reads in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import pynvml  # pyright: ignore[reportMissingTypeStubs]

from tttdd.config import Config, device_fields
from tttdd.protocol import GpuInfo, GpuProcess

NOTICEABLE_BYTES = 64 << 20
NOTICEABLE_LOAD = 0.05
FAULTS: dict[int, str] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "library",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "driver",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "mismatch",
    pynvml.NVML_ERROR_NO_PERMISSION: "permission",
}
WORKERS = {"serve": "engine", "sample": "engine", "train": "trainer"}


class Nvml(Protocol):
    """The part of `pynvml` in use.  All raise pynvml.NVMLError."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetName(self, handle: Any) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]: ...


nvml = cast(Nvml, pynvml)


@contextmanager
def opened() -> Generator[bool]:
    """NVML for a while; whether it is there at all.  It counts: reading inside another `opened` costs no new start."""
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(pynvml.NVMLError):
            nvml.nvmlShutdown()


def read() -> list[GpuInfo]:
    """All devices that can be read, by index."""
    with opened() as there:
        return list(_devices()) if there else []


def fault() -> tuple[str, str] | None:
    """What keeps NVML from working, a word of FAULTS or `other`, and its own words; None where it works."""
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        number = cast(int, error.value)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
        return FAULTS.get(number, "other"), str(error)
    with suppress(pynvml.NVMLError):
        nvml.nvmlShutdown()
    return None


def differ(before: list[GpuInfo], now: list[GpuInfo]) -> bool:
    """Whether a person who watches would want to see the second reading too."""
    return len(before) != len(now) or any(_differ(*pair) for pair in zip(before, now, strict=True))


def without_workers(found: list[GpuInfo]) -> list[GpuInfo]:
    """The devices as if no engine and no trainer were at work: what there is for a run to come."""
    return [_without_workers(gpu) for gpu in found]


def missing(config: Config, gpus: list[GpuInfo]) -> Iterator[tuple[str, str]]:
    """Devices that `config` names and this machine does not have: the field and what is wrong with it."""
    there = [gpu.index for gpu in gpus]
    count = f"this machine has {len(there)} ({', '.join(map(str, there))})"
    for field, devices in device_fields(config).items():
        if absent := [str(device) for device in devices if device not in there]:
            found = count if there else "this machine has no NVIDIA GPU that can be seen"
            yield field, f"there is no GPU {', '.join(absent)}; {found}"


def _without_workers(gpu: GpuInfo) -> GpuInfo:
    workers = sum(process.memory or 0 for process in gpu.processes if process.owner in ("engine", "trainer"))
    return msgspec.structs.replace(gpu, memory_used=max(0, gpu.memory_used - workers))


def _devices() -> Iterator[GpuInfo]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return
    for index in range(count):
        with suppress(pynvml.NVMLError):
            yield _device(index, nvml.nvmlDeviceGetHandleByIndex(index))


def _device(index: int, handle: Any) -> GpuInfo:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return GpuInfo(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        memory_total=memory.total,
        memory_used=memory.used,
        load=_load(handle),
        processes=_processes(handle),
    )


def _load(handle: Any) -> float | None:
    try:
        return nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except pynvml.NVMLError:
        return None


def _processes(handle: Any) -> list[GpuProcess]:
    try:
        found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return []
    processes = [GpuProcess(pid=one.pid, memory=one.usedGpuMemory, owner=owner(one.pid)) for one in found]
    return sorted(processes, key=lambda process: process.pid)


def owner(pid: int) -> str:
    """Whose process that is.  A worker of ours leads its session, so all that it starts is its own."""
    try:
        return _leader(os.getsid(pid)) or Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"


def _leader(pid: int) -> str | None:
    try:
        return worker(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"))
    except OSError:
        return None  # a session led by a process that has ended


def worker(command: str) -> str | None:
    """engine or trainer, when it is `python -m tttdd.workers tttdd.workers.MODULE ...`, divided by NULs."""
    module = next((word for word in command.split("\0") if word.startswith("tttdd.workers.")), "")
    return WORKERS.get(module.split(".")[2]) if module else None


def leaving(found: list[GpuInfo]) -> bool:
    """Whether workers of a daemon that has ended, or earlier ones of this process, are still on a device."""
    return any(_left_behind(process.pid) for gpu in found for process in gpu.processes)


def _left_behind(pid: int) -> bool:
    try:
        words = Path(f"/proc/{os.getsid(pid)}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    if worker("\0".join(words)) is None:
        return False
    place = next(number for number, word in enumerate(words) if word.startswith("tttdd.workers."))
    daemon = int(words[place + 2])  # ... MODULE FD DAEMON OPTIONS
    return daemon == os.getpid() or not Path(f"/proc/{daemon}").exists()


def _differ(before: GpuInfo, now: GpuInfo) -> bool:
    return (
        abs(now.memory_used - before.memory_used) >= NOTICEABLE_BYTES
        or abs((now.load or 0.0) - (before.load or 0.0)) >= NOTICEABLE_LOAD - 1e-9  # 0.05 of hundredths, exactly
        or _holders(before) != _holders(now)
    )


def _holders(gpu: GpuInfo) -> tuple[int, list[tuple[int, str]]]:
    return gpu.index, [(process.pid, process.owner) for process in gpu.processes]
