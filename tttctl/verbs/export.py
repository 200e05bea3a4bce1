"""export RUN DIR: everything that a run has found, as files that need no daemon.

    run.json  archive.json  programs/NODE.py  metrics.csv  adapter/{newest,best}/  MANIFEST.json (with every sha256)

Written beside DIR and renamed: DIR is whole, or is not there.  The adapters are copied from the daemon's state_dir; who
may not read it gets everything else, and is told.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tttctl.client import Client, Failed, run_path
from tttctl.render import complain, say, show_json
from tttdd import __version__
from tttdd.protocol import Artifact, Error, NodeInfo, RunInfo, StepRow

MOST_NODES = 10_000
"""That one answer lists; an archive keeps fewer."""
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
"""PEFT's layout."""
BASE = "it is the base model itself: nothing was trained before it"
MANIFEST = "MANIFEST.json"


class Kept(msgspec.Struct, frozen=True):
    """What one adapter folder holds, or why it is not there."""

    release: int
    folder: str = ""
    lacks: str = ""


def export(client: Client, options: Namespace) -> int:
    run = client.get(run_path(options.run), RunInfo)
    target = Path(options.dir).absolute()
    with whole_folder(target) as aside:
        rows = client.get(run_path(run.run, "/steps"), list[StepRow])
        nodes = list(_nodes(client, run.run))
        _write_run(client, run, aside)
        _write_archive(client, run, nodes, aside)
        (aside / "metrics.csv").write_text(metrics(rows), encoding="utf-8")
        adapters = {"newest": _copy(run, run.release, aside / "adapter/newest")}
        adapters["best"] = _best_adapter(run, rows, aside, adapters["newest"])
        manifest = _manifest(run, adapters, aside)
        (aside / MANIFEST).write_bytes(_json(manifest))
    if options.json:
        show_json({"directory": str(target), **manifest})
    else:
        _tell(target, len(nodes), len(rows), adapters)
    return 0


@contextmanager
def whole_folder(target: Path) -> Generator[Path]:
    """A folder beside `target` that becomes it when the block has ended well.  Raises Failed where that cannot be."""
    aside = target.with_name(f".{os.urandom(8).hex()}")  # short, as the target's name may be as long as any
    try:
        if target.is_dir() and any(target.iterdir()):
            raise Failed(400, Error(error=f"{target} is not empty", hint="name a new directory"))
        aside.mkdir(parents=True)
        yield aside
        for path in [*aside.rglob("*"), aside]:
            _sync(path)
        aside.rename(target)
    except OSError as error:
        raise Failed(400, Error(error=f"cannot write {target}: {error.strerror or error}")) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def metrics(rows: list[StepRow]) -> str:
    """CSV, a line a step, with every column that any step has; empty where one has none."""
    names = sorted({name for row in rows for name in row.metrics})
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", "phase", "release", *names])
    for row in rows:
        table.writerow([row.step, row.phase, row.release, *(row.metrics.get(name, "") for name in names)])
    return text.getvalue()


def _nodes(client: Client, run: str) -> Iterator[NodeInfo]:
    """The archive with its programs, best first, then the ancestors that are pruned."""
    listed = client.get(run_path(run, f"/archive?limit={MOST_NODES}"), list[NodeInfo])
    waiting, seen = [node.node for node in listed], {node.node for node in listed}
    for id in waiting:
        node = client.get(run_path(run, f"/nodes/{id}"), NodeInfo)
        older = [ancestor for ancestor in node.lineage if ancestor not in seen]
        waiting += older
        seen |= set(older)
        yield node


def _write_run(client: Client, run: RunInfo, aside: Path) -> None:
    identity = client.get(run_path(run.run, "/identity"), dict[str, Any])
    (aside / "run.json").write_bytes(_json({"run": run, "identity": identity}))


def _write_archive(client: Client, run: RunInfo, nodes: list[NodeInfo], aside: Path) -> None:
    """A line a node; an artifact as the daemon has it, so that its sha256 can be checked."""
    told: list[bytes] = []
    ending = "py" if run.kind == "task" else "txt"
    (aside / "programs").mkdir()
    for node in nodes:
        (aside / "programs" / f"{node.node}.{ending}").write_bytes(node.program.encode())
        told.append(msgspec.json.encode(msgspec.to_builtins(node) | {"artifact": _artifact(client, run.run, node)}))
    (aside / "archive.json").write_bytes(b"[\n" + b",\n".join(told) + b"\n]\n")


def _artifact(client: Client, run: str, node: NodeInfo) -> msgspec.Raw | None:
    """What its program returned, where that is kept."""
    if not node.artifact_sha256:
        return None
    try:
        return client.get(run_path(run, f"/nodes/{node.node}/artifact"), Artifact).artifact
    except Failed as error:
        if error.status != 404:
            raise
        return None  # let go since it was listed


def _best_adapter(run: RunInfo, rows: list[StepRow], aside: Path, newest: Kept) -> Kept:
    """Of the release that sampled the best program."""
    release = next((row.release for row in rows if run.best and row.step == run.best.step), 0)
    return newest if release == newest.release else _copy(run, release, aside / "adapter/best")


def _copy(run: RunInfo, release: int, target: Path) -> Kept:
    if release == 0:
        return Kept(0, lacks=BASE)
    source = Path(run.state_dir, "runs", run.run, "releases", f"{release:04d}")
    try:
        target.mkdir(parents=True)
        for name in ADAPTER:
            shutil.copyfile(source / name, target / name)
    except (PermissionError, FileNotFoundError) as error:
        shutil.rmtree(target)
        return Kept(release, lacks=f"{error.filename}: {error.strerror}; {_remedy(error)}")
    return Kept(release, folder=f"adapter/{target.name}")


def _remedy(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "export again as the daemon's account or as root"
    return "it is no longer kept, or the daemon runs on another file system"


def _manifest(run: RunInfo, adapters: dict[str, Kept], aside: Path) -> dict[str, Any]:
    files = sorted(path for path in aside.rglob("*") if path.is_file())
    return {
        "run": run.run,
        "tttdd": __version__,
        "exported": time.time(),
        "adapters": adapters,
        "files": {
            str(path.relative_to(aside)): {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in files
        },
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _tell(target: Path, nodes: int, steps: int, adapters: dict[str, Kept]) -> None:
    say(f"{target}: programs: {nodes}, steps: {steps}; {MANIFEST} has every file's sha256")
    for name, kept in adapters.items():
        if kept.folder:
            say(f"adapter of the {name} release, {kept.release}: {kept.folder}")
        elif kept.release == 0:
            say(f"adapter of the {name} release: none, {kept.lacks}")
        else:
            sys.stdout.flush()
            complain(f"no adapter of the {name} release, {kept.release}: {kept.lacks}")
