"""Is this a whole transformers directory, and which one: checks before use, and a revision over the contents.

config.json, tokenizer.json, safetensors (single or by index)  -> complete, or ValueError naming what is wrong
sha256 of each file -> revision: sha256 of those
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

MANIFEST = "manifest.json"


def check(folder: Path) -> None:
    """Raises ValueError naming each file of a model directory that is missing or cut short."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such model directory; set [model] path to a transformers directory")
    wrong = [f"{name} is missing" for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    wrong += [f"{name} {fault}" for name in _weight_files(folder) if (fault := _fault(folder / name))]
    if wrong:
        raise ValueError(f"{folder} is not a complete model: {'; '.join(wrong)}")


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    return sorted(set(json.loads(index.read_text())["weight_map"].values()))


def _fault(path: Path) -> str | None:
    """What is wrong with a safetensors file, as far as its header and size tell."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            return f"is cut short ({size} bytes)"
        header = json.loads(file.read(length))
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    return f"is cut short ({size} of {8 + length + end} bytes)" if size < 8 + length + end else None


def digests(folder: Path, on_progress: Callable[[float], None] = lambda _: None) -> dict[str, str]:
    """sha256 of every file that makes the model: its JSON and its weights."""
    names = sorted({path.name for path in folder.glob("*.json")} - {MANIFEST} | set(_weight_files(folder)))
    result: dict[str, str] = {}
    for done, name in enumerate(names):
        on_progress(done / len(names))
        with (folder / name).open("rb") as file:
            result[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return result


def revision(files: dict[str, str]) -> str:
    """One name for the contents, 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]


def seal(folder: Path) -> None:
    """Writes the manifest that `sealed` checks."""
    (folder / MANIFEST).write_text(json.dumps(digests(folder), indent=1))


def sealed(folder: Path, on_progress: Callable[[float], None]) -> dict[str, str] | None:
    """The digests of a folder whose contents are what its manifest says, else None."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        found = digests(folder, on_progress)
    except (OSError, ValueError):
        return None
    return found if found == manifest else None
