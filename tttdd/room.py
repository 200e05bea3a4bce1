"""Is there room on the disk for a run to go on?  Asked of the disk itself, by taking the room for a moment.

That also sees what a count of free blocks does not: quotas, reserved blocks, no inode left.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ROOM_BYTES = 64 << 20
"""For logs, the database and small batches."""


def enough(state_dir: Path, run: str) -> bool:
    """Whether the largest release of `run` fits once more, and ROOM_BYTES beside it."""
    releases = (state_dir / "runs" / run / "releases").glob("*")
    return _can_take(state_dir / "room", ROOM_BYTES + max(map(_size, releases), default=0))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _can_take(file: Path, count: int) -> bool:
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(handle, 0, count)
        finally:
            os.close(handle)
    except OSError:
        return False
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)
    return True
