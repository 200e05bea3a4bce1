"""Files and folders that are on the disk complete or not at all, also after a power cut.

    written aside -> every file synced -> renamed into place -> the folder that holds it synced

What a crash leaves aside is taken away by whoever writes the same again; a failure takes it away at once, because a
full disk needs the room.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tttdd.failpoint import Point, reach

ASIDE = ".aside"
"""Ending of what is being written."""


def write_file(path: Path, data: bytes) -> None:
    """Raises OSError; then what was there before is still there."""
    make_folder(path.parent)
    aside = _aside(path)
    try:
        aside.write_bytes(data)
        reach(Point.FILE_WRITTEN)
        _sync(aside)
        reach(Point.FILE_SYNCED)
        aside.rename(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    _sync(path.parent)
    reach(Point.FILE_IN_PLACE, path.name)


@contextmanager
def folder_written(path: Path) -> Generator[Path]:
    """Gives an empty folder aside, to be filled with files; it is `path` when the block has ended.

    Raises OSError when `path` exists or cannot be written; then, as after any error in the block, nothing of it stays.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    make_folder(path.parent)
    aside = _aside(path)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        yield aside
        reach(Point.FOLDER_FILLED)
        for file in aside.iterdir():
            _sync(file)
        _sync(aside)
        reach(Point.FOLDER_SYNCED)
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    _sync(path.parent)
    reach(Point.FOLDER_IN_PLACE, path.name)


def link_folder(source: Path, target: Path) -> None:
    """The files of `source` under a second name, so that they outlive the first.

    Raises OSError as `folder_written` does, and where they are on different disks.
    """
    with folder_written(target) as aside:
        for file in source.iterdir():
            os.link(file, aside / file.name)


def make_folder(path: Path) -> None:
    """With its parents, each of which then knows of it for good; one that is there is taken for durable."""
    if path.is_dir():
        return
    if path.exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _sync(path.parent)


def _aside(path: Path) -> Path:
    return path.with_name(path.name + ASIDE)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
