"""The model's files: there, whole, and of the size that their own headers tell.  No weight is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tttctl.verbs.checks.finding import Finding, missing, note, ok
from tttdd.config import Config

HEADER_LIMIT = 100 << 20
"""Bytes; the format's own limit."""
INDEX = "model.safetensors.index.json"


def check(settings: Config | None) -> list[Finding]:
    if settings is None:
        return []
    place = folder(settings)
    if place is None:
        found = f"{settings.model.package}: not in {cache_dir(settings)} yet"
        return [note("model", found, "fetched by the first run")]
    try:
        wrong = faults(place)
    except OSError as error:
        told = f"{place}: {error.strerror}"
        return [missing("model", told, "let the daemon's account read it; doctor says more when run as that account")]
    if wrong:
        remedy = "fetch its files again" if settings.model.path else f"delete {place}; the next run fetches it again"
        if not place.is_dir():
            remedy = "set model.path to a transformers directory"
        return [missing("model", f"{place}: {'; '.join(wrong)}", remedy)]
    return [ok("model", str(place))]


def folder(settings: Config) -> Path | None:
    """Where the model's files are, or should be; None before they have been fetched."""
    if settings.model.path:
        return Path(settings.model.path)
    return min((path.parent for path in cache_dir(settings).glob("[!.]*/config.json")), default=None)


def cache_dir(settings: Config) -> Path:
    """Where fetched models are kept (config.Model.cache_dir)."""
    if named := settings.model.cache_dir:
        return Path(named).expanduser()
    if given := os.environ.get("CACHE_DIRECTORY"):
        return Path(given.split(":")[0])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tttdd"


def faults(place: Path) -> list[str]:
    """What is wrong with a model's folder, a file each."""
    if not place.is_dir():
        return ["there is no such folder"]
    wrong = [f"{name} {fault}" for name in ("config.json", "tokenizer.json") if (fault := _json_fault(place / name))]
    if (place / INDEX).exists() and (fault := _json_fault(place / INDEX)):
        return [*wrong, f"{INDEX} {fault}"]
    weights = _weights(place)
    wrong += [] if weights else ["there are no *.safetensors"]
    return wrong + [f"{path.name} {fault}" for path in weights if (fault := weight_fault(path))]


def weight_fault(path: Path) -> str:
    """Of a safetensors file: u64 length | JSON {tensor: {data_offsets, ...}} | data."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or (length <= HEADER_LIMIT and size < 8 + length):
            return f"is cut short ({size} bytes)"
        try:
            tensors: dict[str, Any] = json.loads(file.read(length)) if length <= HEADER_LIMIT else {}
            ends = [tensor.get("data_offsets", [0, 0])[1] for name, tensor in tensors.items() if name != "__metadata__"]
        except (ValueError, AttributeError, LookupError):
            ends = []
    if not ends:
        return "is no safetensors file"
    whole = 8 + length + max(ends)
    return f"is cut short ({size} of {whole} bytes)" if size < whole else ""


def _json_fault(path: Path) -> str:
    try:
        json.loads(path.read_bytes())
    except FileNotFoundError:
        return "is missing"
    except ValueError:
        return "is damaged: no JSON"
    return ""


def _weights(place: Path) -> list[Path]:
    """The files that an index names, else all safetensors."""
    if not (place / INDEX).exists():
        return sorted(place.glob("*.safetensors"))
    named: dict[str, str] = json.loads((place / INDEX).read_bytes()).get("weight_map", {})
    return sorted({place / name for name in named.values()})
