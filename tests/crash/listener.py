"""In the daemon and its workers: tells the harness of every point, and waits there until it may go on.

point -> {"pid", "point", "what"} on the harness's socket -> one byte back; none comes when the process is to die there
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from tttdd import failpoint

LIGHT = {f"tttdd.workers.{name}": Path(__file__).with_name(f"light_{name}.py") for name in ("sample", "train")}


class Asking:
    """A failpoint.Listener."""

    def __init__(self, address: str) -> None:
        self._address, self._line, self._turn = address, None, threading.Lock()

    def __call__(self, point: failpoint.Point, what: object) -> None:
        told = str(msgspec.structs.astuple(what)) if isinstance(what, msgspec.Struct) else str(what)
        with self._turn:
            if self._line is None:
                self._line = socket.socket(socket.AF_UNIX)
                self._line.connect(self._address)
            self._line.sendall(json.dumps({"pid": os.getpid(), "point": point.name, "what": told}).encode() + b"\n")
            self._line.recv(1)


class LightWorkers:
    """Finds the light workers under the real ones' names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, LIGHT[name]) if name in LIGHT else None


def install(address: str, *, light: bool) -> None:
    failpoint.listener = Asking(address)
    if light:
        sys.meta_path.insert(0, LightWorkers())  # pyright: ignore[reportArgumentType]
