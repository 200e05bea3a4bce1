"""doctor: what works on this machine, what does not, and what to do about it.

Every finding is `ok`, `missing` (the loop cannot run without it) or `note`; nothing heavy is imported to find out.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from argparse import Namespace
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from tttctl.client import Client, Failed, NoDaemon
from tttctl.render import say, show_json, table
from tttdd.config import Config, ConfigError, default_path, load
from tttdd.protocol import Health

CPU_PACKAGES = ("torch", "megatron-core", "transformers", "tokenizers", "safetensors", "gguf", "triton")
DISK_GIB = 3.0
MEMORY_GIB = 4.0
SANDBOX = """
import json
from judges.sandbox import Sandbox
with Sandbox() as sandbox:
    print(json.dumps([sandbox.level, sandbox.missing]))
"""


class Finding(msgspec.Struct, frozen=True):
    what: str
    state: Literal["ok", "missing", "note"]
    found: str
    do: str = ""


def doctor(client: Client, options: Namespace) -> int:
    settings, finding = _configuration()
    findings = [_python(), *map(_package, CPU_PACKAGES), finding, *_model(settings), _sandbox()]
    findings += [*_room(settings), _machine(), _daemon(client)]
    healthy = all(finding.state != "missing" for finding in findings)
    if options.json:
        show_json({"healthy": healthy, "findings": findings})
    else:
        _tell(findings, healthy)
    return 0 if healthy else 1


def _tell(findings: list[Finding], healthy: bool) -> None:
    table(["WHAT", "STATE", "FOUND"], [[finding.what, finding.state, finding.found] for finding in findings])
    say("\nready" if healthy else "\nnot ready: do what is said of the lines that say missing")
    for finding in findings:
        if finding.do:
            say(f"  {finding.what}: {finding.do}")


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    return Finding(
        "python", "ok" if good else "missing", platform.python_version(), "" if good else "use 3.11 or newer"
    )


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "not installed", "pip install 'tttdd[cpu]'")


def _configuration() -> tuple[Config | None, Finding]:
    path = default_path()
    try:
        return load(path), Finding("config", "ok", str(path))
    except ConfigError as error:
        return None, Finding("config", "missing", str(error), "correct it, then: tttctl config check")


def _model(settings: Config | None) -> list[Finding]:
    if settings is None:
        return []
    if settings.model.path:
        there = Path(settings.model.path, "config.json").exists()
        advice = "" if there else "set model.path to a transformers directory"
        return [Finding("model", "ok" if there else "missing", settings.model.path, advice)]
    cache = cache_dir(settings)
    found = sorted(path.parent for path in cache.glob("**/config.json"))
    if found:
        return [Finding("model", "ok", str(found[0]))]
    return [Finding("model", "note", f"{settings.model.package}: not in {cache} yet", "fetched by the first run")]


def cache_dir(settings: Config) -> Path:
    """Where fetched models are kept (config.Model.cache_dir)."""
    if named := settings.model.cache_dir or os.environ.get("CACHE_DIRECTORY"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tttdd"


def _sandbox() -> Finding:
    done = subprocess.run([sys.executable, "-c", SANDBOX], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return Finding("sandbox", "missing", done.stderr.strip().splitlines()[-1], "no program can be judged")
    level, missing = json.loads(done.stdout)
    return Finding(
        "sandbox", "note" if missing else "ok", level + (f"; not contained: {', '.join(missing)}" if missing else "")
    )


def _room(settings: Config | None) -> list[Finding]:
    places = {"temporary files": Path(os.environ.get("TMPDIR", "/tmp"))}
    if settings is not None:
        places |= {"state": Path(settings.daemon.state_dir), "model cache": cache_dir(settings)}
    return [_disk(name, path) for name, path in places.items()]


def _disk(name: str, path: Path) -> Finding:
    there = next(place for place in (path, *path.parents) if place.exists())
    free = shutil.disk_usage(there).free / 2**30
    found = f"{free:.1f} GiB free at {path}"
    return (
        Finding(f"disk: {name}", "ok", found)
        if free >= DISK_GIB
        else Finding(f"disk: {name}", "missing", found, f"free at least {DISK_GIB:g} GiB")
    )


def _machine() -> Finding:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = f"{len(os.sched_getaffinity(0))} cores, {memory:.1f} GiB memory"
    return (
        Finding("machine", "ok", found)
        if memory >= MEMORY_GIB
        else Finding("machine", "note", found, f"the CPU default wants {MEMORY_GIB:g} GiB")
    )


def _daemon(client: Client) -> Finding:
    try:
        return Finding("daemon", "ok", f"{client.path}: version {client.get('/v1/health', Health).version}")
    except NoDaemon as error:
        return Finding("daemon", "note", str(error), "systemctl start tttdd, or tttctl demo for a private one")
    except Failed as error:
        return Finding("daemon", "note", str(error))
