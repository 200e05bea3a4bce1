"""A release on disk: LoRA weights in the PEFT layout, Adam's state, and the record of how it was made.

    releases/NNNN/ = adapter_model.safetensors + adapter_config.json + optimizer.safetensors + release.json

It is there complete or not at all (tttdd.durable).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tttdd.domain.batch import TrainReport
from tttdd.durable import folder_written


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """release.json"""

    number: int
    parent: int
    batch_sha256: str
    seed: int
    report: TrainReport


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """A release in memory."""

    adapter_config: dict[str, Any]
    adapter: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]


def write(target: Path, record: Record, contents: Contents) -> None:
    """Raises OSError when `target` exists or cannot be written; then nothing of it is there."""
    with folder_written(target) as aside, _disk_errors():
        save_file(contents.adapter, aside / "adapter_model.safetensors", metadata={"format": "pt"})
        save_file(contents.optimizer, aside / "optimizer.safetensors", metadata={"format": "pt"})
        (aside / "adapter_config.json").write_bytes(_json(contents.adapter_config))
        (aside / "release.json").write_bytes(_json(record))


@contextmanager
def _disk_errors() -> Generator[None]:
    """What safetensors could not write, as an OSError like any other."""
    try:
        yield
    except SafetensorError as error:
        number = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else errno.EIO
        raise OSError(number, os.strerror(number), str(error)) from None


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """PEFT's configuration and the weights.  Raises OSError for a file that is missing."""
    config = msgspec.json.decode((folder / "adapter_config.json").read_bytes())
    return config, load_file(folder / "adapter_model.safetensors")


def read_optimizer(folder: Path) -> dict[str, torch.Tensor]:
    """Adam's state.  Raises OSError for a file that is missing."""
    return load_file(folder / "optimizer.safetensors")


def read_record(folder: Path) -> Record:
    """Raises OSError without a release.json, ValueError for one that is none."""
    return msgspec.json.decode((folder / "release.json").read_bytes(), type=Record)


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2)
