"""The GPUs: the driver, the devices that the configuration names, and whether the model fits on them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tttctl.verbs.checks import model
from tttctl.verbs.checks.finding import Finding, missing, note, ok
from tttdd.config import Config, device_fields
from tttdd.protocol import GpuInfo

DRIVER = Path("/proc/driver/nvidia/version")
SMALL_SHARED_MEMORY = 64 << 20
"""Docker's default, on which NCCL and SGLang fail."""
WANTED_SHARED_MEMORY = 1 << 30


def check(settings: Config | None) -> tuple[list[Finding], list[str]]:
    """Findings, and the memory plan, a line a device.  Nothing where the configuration names no device."""
    if settings is None or not (named := sum(map(len, device_fields(settings).values()))):
        return [], []
    from tttdd import gpus

    there = gpus.read()
    findings = [driver(gpus.fault(), kernel_driver(), len(there)), *_devices(settings, there)]
    disk = os.statvfs("/dev/shm")
    findings.append(shared_memory(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize, named))
    planned, plan = _memory(settings, there)
    return [*findings, *planned], plan


def kernel_driver() -> str:
    """Version of the driver that the kernel has loaded; empty without one."""
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", DRIVER.read_text()) if DRIVER.exists() else None
    return found.group() if found else ""


def driver(fault: tuple[str, str] | None, kernel: str, devices: int) -> Finding:
    """`fault`: what keeps NVML from working and its own words (tttdd.gpus.fault)."""
    of_kernel = f"; the kernel's driver is {kernel}" if kernel else ""
    match fault:
        case None if devices:
            return ok("driver", kernel or "there")
        case None:
            told = "in a container: run it with --gpus all; else: lspci | grep -i nvidia shows whether there is one"
            return missing("driver", f"it sees no GPU{of_kernel}", told)
        case ("mismatch", words):
            told = "reboot, or unload the kernel's nvidia modules and load them again; in a container: start it anew"
            return missing("driver", f"{words}{of_kernel}: library and kernel are of different versions", told)
        case ("library", words) if kernel:
            told = f"install the libraries of driver {kernel}; in a container: NVIDIA's container toolkit, --gpus all"
            return missing("driver", f"{words} (libnvidia-ml.so.1){of_kernel}", told)
        case ("library" | "driver", words):
            told = "install NVIDIA's driver, then: sudo modprobe nvidia; without a GPU: tttctl demo"
            return missing("driver", f"no GPU: {words}", told)
        case ("permission", words):
            return missing("driver", words, "give this account /dev/nvidia*: ls -l /dev/nvidia*")
        case (_, words):
            return missing("driver", f"{words}{of_kernel}", "nvidia-smi and dmesg say more")


def shared_memory(size: int, free: int, processes: int) -> Finding:
    """Of /dev/shm, through which the `processes` on the devices speak."""
    found = f"{free / 2**20:.0f} of {size / 2**20:.0f} MiB free"
    remedy = "docker run --shm-size 8g, or: sudo mount -o remount,size=8G /dev/shm"
    if free < SMALL_SHARED_MEMORY or (size <= SMALL_SHARED_MEMORY and processes > 1):
        return missing("/dev/shm", found, remedy)
    return ok("/dev/shm", found) if free >= WANTED_SHARED_MEMORY else note("/dev/shm", found, remedy)


def _devices(settings: Config, there: list[GpuInfo]) -> list[Finding]:
    from tttdd import gpus

    findings = [
        missing(field, rule, f"name GPUs in {field} that nvidia-smi lists, or use etc/tttdd.cpu.toml, which needs none")
        for field, rule in gpus.missing(settings, there)
    ]
    for gpu in there:
        memory = f"{gpu.memory_used / 2**30:.1f} of {gpu.memory_total / 2**30:.1f} GiB in use"
        owners = ", ".join(sorted({process.owner for process in gpu.processes}))
        findings.append(ok(f"GPU {gpu.index}", f"{gpu.name}, {memory}{' by ' + owners if owners else ''}"))
    return findings


def _memory(settings: Config, there: list[GpuInfo]) -> tuple[list[Finding], list[str]]:
    if settings.engine.backend != "sglang":
        return [], []
    from tttdd import gpus, memory

    place = model.folder(settings)
    if place is None or not (place / "config.json").exists() or any(gpus.missing(settings, there)):
        return [note("memory plan", "cannot be made without the model's files and the GPUs")], []
    try:
        plan = memory.plan_for(settings, place, gpus.without_workers(there))
    except memory.CannotFit as error:
        return [missing("memory plan", "does not fit", str(error))], []
    except (OSError, ValueError) as error:
        return [missing("memory plan", str(error), "the model's files are damaged or of no known kind")], []
    return [ok("memory plan", f"fits, at bins of {plan.max_tokens_per_gpu} tokens")], plan.lines()
