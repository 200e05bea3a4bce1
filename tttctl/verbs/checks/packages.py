"""Python and the packages that the configuration needs: there, and of a version that this code speaks to."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata

from tttctl.verbs.checks.finding import Finding, missing, ok
from tttdd import sglang_version
from tttdd.config import Config

PACKAGES = {
    "cpu": ("torch", "megatron-core", "transformers", "tokenizers", "safetensors", "triton"),
    "gpu": ("torch", "sglang", "megatron-core", "peft", "transformers", "tokenizers", "safetensors", "triton"),
}
OLDEST = {"megatron-core": "0.16.1"}
"""Versions below are of another interface."""

Versions = Callable[[str], str]
"""Distribution's name -> version; raises PackageNotFoundError."""


def check(settings: Config | None, version: Versions = metadata.version) -> list[Finding]:
    """SGLang and what goes with it only where that is the engine."""
    extra = "gpu" if settings and settings.engine.backend == "sglang" else "cpu"
    convert = ("gguf",) if settings and settings.model.package else ()
    return [python(sys.version_info[:2]), *(package(name, extra, version) for name in (*PACKAGES[extra], *convert))]


def python(version: tuple[int, ...]) -> Finding:
    found = platform.python_version()
    return ok("python", found) if version >= (3, 11) else missing("python", found, "use 3.11 or newer")


def package(name: str, extra: str, version: Versions = metadata.version) -> Finding:
    try:
        found = version(name)
    except metadata.PackageNotFoundError:
        return missing(name, "not installed", f"in a checkout: pip install '.[{extra}]'")
    if name == "sglang" and not sglang_version.supported(found):
        return missing(name, f"{found} is not supported", f"pip install '{sglang_version.WANTED}'")
    if name in OLDEST and numbers(found) < numbers(OLDEST[name]):
        return missing(name, f"{found} is too old", f"pip install '{name}>={OLDEST[name]}'")
    return ok(name, found)


def numbers(version: str) -> list[int]:
    """Of the release: `0.16.1rc2+local` is 0, 16, 1."""
    release = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in release.group().split(".")] if release else []
