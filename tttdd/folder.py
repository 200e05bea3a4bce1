"""A run's folder on disk: releases, batches, logs.

<state_dir>/runs/<run>/  releases/NNNN/  batches/NNNN.msgpack  logs/
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from tttdd.ports import Release


class RunFolder(msgspec.Struct, frozen=True):
    path: Path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def release(self, number: int) -> Release:
        return Release(number, self.path / "releases" / f"{number:04d}" if number else None)

    def batch(self, step: int) -> Path:
        return self.path / "batches" / f"{step:04d}.msgpack"

    def retain(self, releases: set[int]) -> None:
        """Delete every release that is not named, and every batch but the newest of the named ones' steps.

        The batch of step s trained release s + 1, so a kept release keeps the batch that made it.
        """
        for folder in (self.path / "releases").glob("[0-9]*"):
            if folder.name.isdigit() and int(folder.name) not in releases:
                shutil.rmtree(folder)
        for batch in (self.path / "batches").glob("[0-9]*.msgpack"):
            if int(batch.stem) + 1 not in releases:
                batch.unlink()
