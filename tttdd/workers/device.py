"""What differs between a CUDA device and the CPU, but for the attention: choosing it, sharing it, measuring it."""

from __future__ import annotations

import os

import torch
from torch.utils import deterministic


def take(devices: tuple[int, ...], index: int, count: int) -> torch.device:
    """The device of process `index` of `count`, made the current one; the CPU when none is named.

    Raises ValueError for devices that are not there.
    """
    if not devices:
        return torch.device("cpu")
    if len(devices) != count or devices[index] >= torch.cuda.device_count():
        raise ValueError(
            f"trainer.devices = {list(devices)}: {torch.cuda.device_count()} CUDA devices are there, "
            f"and {count} trainer processes"
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts; for deterministic products
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # else what is freed stays in pieces
    torch.cuda.set_device(devices[index])
    return torch.device("cuda", devices[index])


def compute_alike() -> None:
    """The same bits in every run: kernels that cannot promise that are not used."""
    torch.use_deterministic_algorithms(True)
    # Filling costs time.  torch gives its module the property in a way that types cannot see.
    deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


def give_back(device: torch.device) -> None:
    """Free what torch only keeps for later: an engine on the same device may need it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak_bytes(device: torch.device) -> int | None:
    """Most memory that tensors took since the last call; None on the CPU."""
    if device.type != "cuda":
        return None
    most = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return most
