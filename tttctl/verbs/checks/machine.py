"""The machine apart from its devices: memory, disk, clock."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from tttctl.verbs.checks import model
from tttctl.verbs.checks.finding import Finding, missing, note, ok
from tttdd.config import Config
from tttdd.memory import lora_parameters
from tttdd.shape import shape

GIB = 2**30
MEMORY_GIB = 4.0
FETCHED_GIB = 3.0
"""For a model that is fetched and converted, and for what that leaves in temporary files meanwhile."""
SPARE_BYTES = GIB
RELEASE_BYTES = 12
"""A LoRA parameter on disk: the weight and two Adam moments, float32 each."""
TOKEN_BYTES = 13
"""A sampled token on disk: id, log-prob, mask, text."""
PROGRAM_BYTES = 8 << 10
"""A rollout in the database, when its tokens are gone."""
BEHIND_SECONDS = 60.0
"""A clock that is so much older than the newest file has been set back."""
UNSYNCHRONISED = 0x40
"""STA_UNSYNC of <sys/timex.h>."""


def check(settings: Config | None) -> list[Finding]:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    findings = [machine(len(os.sched_getaffinity(0)), pages), *_disks(settings)]
    state = Path(settings.daemon.state_dir) if settings else None
    return [*findings, clock(time.time(), newest(state) if state else None, synchronised())]


def machine(cores: int, memory: int) -> Finding:
    found = f"{cores} cores, {memory / GIB:.1f} GiB memory"
    if memory >= MEMORY_GIB * GIB:
        return ok("machine", found)
    return note("machine", found, f"the CPU default wants {MEMORY_GIB:g} GiB")


def disk(name: str, path: Path, free: int, needed: int) -> Finding:
    found = f"{free / GIB:.1f} GiB free at {path}, {needed / GIB:.1f} wanted"
    if free >= needed:
        return ok(f"disk: {name}", found)
    return missing(f"disk: {name}", found, f"free at least {(needed - free) / GIB:.1f} GiB, or name another place")


def run_bytes(settings: Config, parameters: int) -> int:
    """What one run of the configured grid takes at most; `parameters`: of its LoRA."""
    grid, kept = settings.grid, settings.checkpoints.keep + 2  # the best step's, and the one that is being written
    batch = grid.groups * grid.rollouts * settings.sampling.max_new_tokens * TOKEN_BYTES
    programs = grid.groups * grid.rollouts * grid.steps * PROGRAM_BYTES
    return kept * (parameters * RELEASE_BYTES + batch) + programs + SPARE_BYTES


def clock(now: float, newest: float | None, synchronised: bool | None) -> Finding:
    """`newest`: when the newest file of the state was written.  Durations are safe from clocks; moments are not."""
    if newest is not None and newest > now + BEHIND_SECONDS:
        told = f"{newest - now:.0f} s behind the newest file of the state"
        return note("clock", told, "set it: timedatectl set-ntp true; runs keep their order, but their moments lie")
    if synchronised is False:
        return note("clock", "not synchronised", "timedatectl set-ntp true, or start chrony")
    return ok("clock", "synchronised" if synchronised else "as late as the state")


def newest(state: Path) -> float | None:
    """Unix time of the state database's last change; None without one that can be seen."""
    times: list[float] = []
    for name in ("archive.sqlite3", "archive.sqlite3-wal"):
        with suppress(OSError):
            times.append((state / name).stat().st_mtime)
    return max(times, default=None)


def synchronised() -> bool | None:
    """By the kernel's word; None where it gives none."""
    state = ctypes.create_string_buffer(512)  # struct timex, with room to spare: modes = 0 changes nothing
    if ctypes.CDLL(None).adjtimex(state) < 0:
        return None
    status = int.from_bytes(state.raw[40:44], "little")  # after modes, offset, freq, maxerror, esterror
    return not status & UNSYNCHRONISED


def _disks(settings: Config | None) -> list[Finding]:
    places = {"temporary files": (Path(os.environ.get("TMPDIR", "/tmp")), SPARE_BYTES)}
    if settings is not None:
        fetched = model.folder(settings)
        places["state"] = Path(settings.daemon.state_dir), run_bytes(settings, _parameters(settings, fetched))
        if settings.model.package:
            wanted = 0 if fetched else int(FETCHED_GIB * GIB)
            places["model cache"] = model.cache_dir(settings), wanted
    return [disk(name, path, _free(path), needed) for name, (path, needed) in places.items()]


def _parameters(settings: Config, place: Path | None) -> int:
    """Of the LoRA; 0 while the model is not there to tell."""
    try:
        found = shape(place, settings.model.dtype) if place else None
    except (OSError, ValueError):
        return 0
    return lora_parameters(found, settings.trainer.rank, settings.trainer.targets) if found else 0


def _free(path: Path) -> int:
    """On the disk of the nearest folder that is there."""
    for place in (path.absolute(), *path.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0
