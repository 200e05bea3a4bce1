"""What is on the disk complete or not at all.  Power cuts are in tests/crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from tttdd.durable import ASIDE, folder_written, write_file


def test_a_file_is_written_into_folders_that_were_not_there(tmp_path: Path) -> None:
    write_file(tmp_path / "a/b/file", b"new")
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["file"]
    assert (tmp_path / "a/b/file").read_bytes() == b"new"


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    write_file(tmp_path / "file", b"old")
    (tmp_path / f"file{ASIDE}").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_what_a_crash_left_aside_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / f"file{ASIDE}").write_bytes(b"half")
    (tmp_path / f"folder{ASIDE}").mkdir()
    (tmp_path / f"folder{ASIDE}" / "left over").touch()
    write_file(tmp_path / "file", b"new")
    with folder_written(tmp_path / "folder") as aside:
        (aside / "x").write_bytes(b"new")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "x"]


def test_a_folder_is_there_when_its_block_has_ended_and_not_before(tmp_path: Path) -> None:
    with folder_written(tmp_path / "a/folder") as aside:
        (aside / "x").touch()
        assert not (tmp_path / "a/folder").exists()
    assert (tmp_path / "a/folder/x").exists()


def test_a_folder_whose_block_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), folder_written(tmp_path / "folder") as aside:
        (aside / "x").touch()
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileExistsError), folder_written(tmp_path / "folder"):
        raise AssertionError("the block must not be entered")
