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
from tttdd import sglang_version
from tttdd.config import Config, ConfigError, Judges, default_path, device_fields, load
from tttdd.protocol import GpuInfo, Health

PACKAGES = {
    "cpu": ("torch", "megatron-core", "transformers", "tokenizers", "safetensors", "triton"),
    "gpu": ("torch", "sglang", "megatron-core", "peft", "transformers", "tokenizers", "safetensors", "triton"),
}
DISK_GIB = 3.0
MEMORY_GIB = 4.0


class Finding(msgspec.Struct, frozen=True):
    what: str
    state: Literal["ok", "missing", "note"]
    found: str
    do: str = ""


def doctor(client: Client, options: Namespace) -> int:
    settings, finding = _configuration()
    gpus = _gpus(settings)
    memory, plan = _memory(settings, gpus)
    findings = [_python(), *_packages(settings), finding, *_model(settings), *_devices(settings, gpus), *memory]
    findings += [_sandbox(settings), *_room(settings), _machine(), _daemon(client)]
    healthy = all(finding.state != "missing" for finding in findings)
    if options.json:
        show_json({"healthy": healthy, "findings": findings, "plan": plan})
    else:
        _tell(findings, plan, healthy)
    return 0 if healthy else 1


def _tell(findings: list[Finding], plan: list[str], healthy: bool) -> None:
    table(["WHAT", "STATE", "FOUND"], [[finding.what, finding.state, finding.found] for finding in findings])
    if plan:
        say("\nmemory plan")
    for line in plan:
        say("  " + line)
    say("\nready" if healthy else "\nnot ready: do what is said of the lines that say missing")
    for finding in findings:
        if finding.do:
            say(f"  {finding.what}: {finding.do}")


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    return Finding(
        "python", "ok" if good else "missing", platform.python_version(), "" if good else "use 3.11 or newer"
    )


def _packages(settings: Config | None) -> list[Finding]:
    """What the configuration needs: SGLang and what goes with it only where that is the engine."""
    extra = "gpu" if settings and settings.engine.backend == "sglang" else "cpu"
    convert = ("gguf",) if settings and settings.model.package else ()
    return [_package(name, extra) for name in (*PACKAGES[extra], *convert)]


def _package(name: str, extra: str) -> Finding:
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "not installed", f"pip install 'tttdd[{extra}]'")
    if name == "sglang" and not sglang_version.supported(found):
        return Finding(name, "missing", f"{found} is not supported", f"pip install '{sglang_version.WANTED}'")
    return Finding(name, "ok", found)


def _configuration() -> tuple[Config | None, Finding]:
    path = default_path()
    try:
        return load(path), Finding("config", "ok", str(path))
    except ConfigError as error:
        return None, Finding("config", "missing", str(error), "correct it, then: tttctl config check")


def _model(settings: Config | None) -> list[Finding]:
    if settings is None:
        return []
    if folder := _folder(settings):
        return [Finding("model", "ok", str(folder))]
    if settings.model.path:
        return [Finding("model", "missing", settings.model.path, "set model.path to a transformers directory")]
    found = f"{settings.model.package}: not in {cache_dir(settings)} yet"
    return [Finding("model", "note", found, "fetched by the first run")]


def _folder(settings: Config) -> Path | None:
    """Where the model's files are, if they are."""
    if settings.model.path:
        return Path(settings.model.path) if Path(settings.model.path, "config.json").exists() else None
    return min((path.parent for path in cache_dir(settings).glob("[!.]*/config.json")), default=None)


def _gpus(settings: Config | None) -> list[GpuInfo]:
    """This machine's devices, where the configuration names any."""
    if settings is None or not any(device_fields(settings).values()):
        return []
    from tttdd import gpus

    return gpus.read()


def _devices(settings: Config | None, there: list[GpuInfo]) -> list[Finding]:
    findings = [Finding(field, "missing", rule, f"correct {field}") for field, rule in _absent(settings, there)]
    for gpu in there:
        memory = f"{gpu.memory_used / 2**30:.1f} of {gpu.memory_total / 2**30:.1f} GiB in use"
        owners = ", ".join(sorted({process.owner for process in gpu.processes}))
        findings.append(Finding(f"GPU {gpu.index}", "ok", f"{gpu.name}, {memory}{' by ' + owners if owners else ''}"))
    return findings


def _absent(settings: Config | None, there: list[GpuInfo]) -> list[tuple[str, str]]:
    if settings is None:
        return []
    from tttdd import gpus

    return list(gpus.missing(settings, there))


def _memory(settings: Config | None, there: list[GpuInfo]) -> tuple[list[Finding], list[str]]:
    """Whether the model fits on the devices, and the plan, a line a device."""
    if settings is None or settings.engine.backend != "sglang":
        return [], []
    from tttdd import gpus, memory

    folder = _folder(settings)
    if folder is None or _absent(settings, there):
        return [Finding("memory plan", "note", "cannot be made without the model's files and the GPUs")], []
    try:
        plan = memory.plan_for(settings, folder, gpus.without_workers(there))
    except memory.CannotFit as error:
        return [Finding("memory plan", "missing", "does not fit", str(error))], []
    except (OSError, ValueError) as error:
        return [Finding("memory plan", "missing", str(error), "the model's files are damaged or of no known kind")], []
    return [Finding("memory plan", "ok", f"fits, at bins of {plan.max_tokens_per_gpu} tokens")], plan.lines()


def cache_dir(settings: Config) -> Path:
    """Where fetched models are kept (config.Model.cache_dir)."""
    if named := settings.model.cache_dir or os.environ.get("CACHE_DIRECTORY"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tttdd"


def _sandbox(settings: Config | None) -> Finding:
    judges = settings.judges if settings else Judges()
    command = [sys.executable, "-m", "judges", "sandbox", judges.sandbox]
    for option, value in (("--image", judges.docker_image), ("--runtime", judges.docker_runtime)):
        command += [option, value] if value else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        return Finding("sandbox", "missing", done.stderr.strip().splitlines()[-1], "no program can be judged")
    found = json.loads(done.stdout)
    level, missing = found["level"], found["missing"]
    return Finding(
        "sandbox", "note" if missing else "ok", level + (f"; not contained: {'; '.join(missing)}" if missing else "")
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
