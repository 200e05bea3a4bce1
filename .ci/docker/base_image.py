"""A base image for judges/Dockerfile where no registry can be reached: the running Python, as a tar on standard output.

    interpreter + standard library + the packages of the image + the shared libraries of these, each at its own path

Everything is world-readable, and nothing else of this machine goes in.  Use: base_image.py | docker import - NAME
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path

PACKAGES = ("numpy", "scipy", "msgspec", "threadpoolctl")
UNUSED = {"tests", "test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data", "site-packages"}
UNUSED_FOLDERS = re.compile(r"config-3\.\d+-.*")
UNUSED_FILES = re.compile(r".*\.(a|h|pyi|opt-[12]\.pyc)|_tkinter.*|libpython.*")
"""libpython lies here in Debian: where it is needed it is found again as a shared library."""
SHOWN_AS = "/usr/local/bin/python"
"""Where official images have it, too."""
ABSOLUTE = re.compile(r"(?:=> |^\s*)(/\S+)", re.MULTILINE)


def standard_library() -> Iterator[Path]:
    for folder, below, names in os.walk(sysconfig.get_path("stdlib")):
        below[:] = [name for name in below if name not in UNUSED and not UNUSED_FOLDERS.fullmatch(name)]
        yield from (Path(folder, name) for name in names if not UNUSED_FILES.fullmatch(name))


def packages() -> Iterator[tuple[Path, str]]:
    """Installed files, and where the interpreter without its virtual environment looks for them."""
    ask = "import site; print(site.getsitepackages()[0])"
    site = subprocess.check_output([sys._base_executable, "-I", "-c", ask], text=True).strip()
    for package in PACKAGES:
        for file in files(package) or []:
            kept = not UNUSED.intersection(file.parts) and not UNUSED_FILES.fullmatch(file.name)
            if kept and ".." not in file.parts:
                yield Path(str(file.locate())), f"{site}/{file}"


def shared_libraries(binaries: list[str]) -> set[str]:
    told = subprocess.run(["ldd", *binaries], capture_output=True, text=True).stdout
    return {os.path.normpath(path) for path in ABSOLUTE.findall(told) if not path.endswith(":")}


class Image:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._folders: set[Path] = {Path("/")}

    def add(self, source: Path, path: str) -> None:
        self._folder(Path(path).parent)
        with source.open("rb") as file:
            entry = self._tar.gettarinfo(arcname=path, fileobj=file)
            entry.type, entry.mode, entry.size = tarfile.REGTYPE, 0o755, os.fstat(file.fileno()).st_size
            self._tar.addfile(_roots(entry), file)

    def link(self, path: str, target: str) -> None:
        self._folder(Path(path).parent)
        entry = tarfile.TarInfo(path)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def _folder(self, path: Path) -> None:
        if path not in self._folders:
            self._folder(path.parent)
            self._folders.add(path)
            entry = tarfile.TarInfo(str(path))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            self._tar.addfile(entry)


def _roots(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main() -> None:
    interpreter = str(Path(sys._base_executable).resolve())
    content = {interpreter: Path(interpreter)}
    content |= {str(path): path for path in standard_library()}
    content |= {path: file for file, path in packages()}
    binaries = [str(file) for file in content.values() if ".so" in file.suffixes] + [interpreter]
    inside = {file.resolve() for file in content.values()}
    content |= {path: Path(path) for path in shared_libraries(binaries) if Path(path).resolve() not in inside}
    content["/etc/ld.so.cache"] = Path("/etc/ld.so.cache")
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
        image = Image(tar)
        for path, source in content.items():
            image.add(source, path)
        if interpreter != SHOWN_AS:
            image.link(SHOWN_AS, interpreter)


main()
