"""What a power cut leaves of a folder: only what was synced, put together from what power.c has kept.

disk = SyncedDisk(root, place)   LD_PRELOAD=disk.shim; the processes write below `root`, and are killed
disk.cut()                       `root` is as the disk has it; the next processes go on from there
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path


class SyncedDisk:
    def __init__(self, root: Path, place: Path) -> None:
        """Raises OSError without a C compiler."""
        self._root, self._kept = root, place / "kept"
        self.shim = place / "power.so"
        place.mkdir()
        defined = [f'-D{name}="{path}"' for name, path in {"ROOT": root, "DISK": self._kept}.items()]
        command = ["cc", "-O1", "-shared", "-fPIC", *defined, "-o", str(self.shim)]
        subprocess.run([*command, str(Path(__file__).with_name("power.c")), "-ldl"], check=True)
        self._names = ctypes.CDLL(str(self.shim))
        root.mkdir(exist_ok=True)
        self._begin()

    def _key(self, path: Path) -> str:
        """As power.c names it."""
        key = ctypes.create_string_buffer(64)
        self._names.key_of_path(str(path).encode(), key)
        return key.value.decode()

    def cut(self) -> None:
        """Nobody may be writing.  What was never synced is gone, also under its new name."""
        aside = self._root.with_name(self._root.name + "-before")
        shutil.rmtree(aside, ignore_errors=True)
        root = self._key(self._root)
        self._root.rename(aside)
        self._root.mkdir()
        self._restore(root, self._root)
        self._begin()

    def _begin(self) -> None:
        """The whole tree as it stands is on the disk."""
        shutil.rmtree(self._kept, ignore_errors=True)
        for name in ("files", "folders"):
            (self._kept / name).mkdir(parents=True)
        for folder in (self._root, *(path for path in self._root.rglob("*") if path.is_dir())):
            entries = [path for path in folder.iterdir() if path.is_dir() or path.is_file()]
            lines = [f"{'d' if path.is_dir() else 'f'} {self._key(path)} {path.name}\n" for path in entries]
            (self._kept / "folders" / self._key(folder)).write_text("".join(lines))
            for path in entries:
                if path.is_file():
                    shutil.copy(path, self._kept / "files" / self._key(path))

    def _restore(self, key: str, folder: Path) -> None:
        listing = self._kept / "folders" / key
        for line in listing.read_text().splitlines() if listing.exists() else ():
            kind, key, name = line.split(" ", 2)
            kept = self._kept / "files" / key
            if kind == "d":
                (folder / name).mkdir()
                self._restore(key, folder / name)
            elif kept.exists():
                shutil.copy(kept, folder / name)
            else:
                (folder / name).touch()
