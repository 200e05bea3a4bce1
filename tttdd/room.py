"""Is there room on the disk for a run to go on?  Asked of the disk itself, by taking the room for a moment.

That also sees what a count of free blocks does not: quotas, reserved blocks, no inode left.  Implements ports.Room.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a write for which there is no room."""
LEAST_BYTES = 64 << 20
"""For logs, the database and small batches; on a small disk a twentieth of it."""


class DiskRoom:
    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def needed(self, run: str) -> int:
        """Bytes: as much as the largest release of `run`, and LEAST_BYTES beside it."""
        disk = os.statvfs(self._state_dir)
        releases = (self._state_dir / "runs" / run / "releases").glob("*") if run else ()
        return min(LEAST_BYTES, disk.f_blocks * disk.f_frsize // 20) + max(map(_size, releases), default=0)

    def enough(self, run: str) -> bool:
        """Whether that much can be had.  An empty `run`: enough to write down what happens."""
        file = self._state_dir / "room"
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.posix_fallocate(handle, 0, self.needed(run))
            finally:
                os.close(handle)
        except OSError:
            return False
        finally:
            with suppress(OSError):
                file.unlink(missing_ok=True)
        return True


def lacks_room(message: str) -> bool:
    """Of whichever process met it."""
    return any(os.strerror(number) in message for number in NO_ROOM)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir()) if folder.is_dir() else 0
