"""What a figure was measured on, in one line."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from tttdd import gpus

PACKAGES = ("torch", "sglang", "megatron-core", "transformers")


def described() -> str:
    """Devices, processor cores, and the versions that matter."""
    devices = [f"{gpu.name} {gpu.memory_total / 2**30:.0f} GiB" for gpu in gpus.read()]
    versions = [f"{name} {metadata.version(name)}" for name in PACKAGES if _installed(name)]
    cores = f"{os.cpu_count()} cores {platform.machine()}"
    return ", ".join([*devices, cores, *versions, f"Python {platform.python_version()}"])


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
