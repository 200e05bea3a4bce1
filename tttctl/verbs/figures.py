"""What the verbs that draw share: a run's history is asked for, a figure drawn, its file written whole or not at all.

destination (by its ending) -> history, ancestry, artifact (from the daemon) -> tttctl.figures -> write
"""

from __future__ import annotations

import errno
import hashlib
import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
from matplotlib.figure import Figure

from tttctl.client import Client, Failed, run_path
from tttctl.figures import packing, step_function, style
from tttctl.figures.history import History
from tttctl.render import number
from tttdd.protocol import Artifact, Error, NodeInfo, RunInfo, StepRow

STEP_FUNCTION = {"overlap": tuple[list[float], float, int], "autoconvolution": list[float]}
NOT_KEPT = 404


def history(client: Client, name: str) -> History:
    """Raises Failed for a run that has no committed step yet."""
    run = client.get(run_path(name), RunInfo)
    rows = client.get(run_path(name, "/steps"), list[StepRow])
    committed = [row for row in rows if row.phase == "committed"]
    if not committed:
        hint = f"there is something to draw after its first step: tttctl watch {name}"
        raise Failed(409, Error(error=f"run {name!r} has no committed step", hint=hint))
    return History(run, committed)


def ancestry(client: Client, run: str, node: NodeInfo) -> list[NodeInfo]:
    """From the root to the node itself."""
    return [*(client.get(run_path(run, f"/nodes/{id}"), NodeInfo) for id in reversed(node.lineage)), node]


def destination(given: str, option: str, *endings: str) -> Path:
    """Raises Failed for a name whose ending says no format that there is."""
    path = Path(given)
    if path.suffix.lower().removeprefix(".") not in endings:
        listed = " or ".join(f".{ending}" for ending in endings)
        raise Failed(400, Error(error=f"{option}: {given!r} does not end in {listed}", hint="the ending is the format"))
    return path


def image(path: Path, draw: Callable[[], Figure]) -> None:
    write(path, style.render(draw, cast(style.Format, path.suffix.lower().removeprefix("."))))


def write(path: Path, data: bytes) -> None:
    """All of it or nothing, also where a file of that name was."""
    try:
        target = Path(os.path.realpath(path))  # the file behind a link, not the link
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.exists() and not target.is_file():
            raise OSError(0, "it is no file")
        _replace(target, data)
    except OSError as error:
        raise Failed(400, Error(error=f"cannot write {path}: {error.strerror}")) from None


def _replace(target: Path, data: bytes) -> None:
    """By a file whose name nobody can know before, and is short: the target's may be as long as any."""
    partial = target.with_name(f".{os.urandom(8).hex()}")
    file = partial.open("xb")
    try:
        with file:
            file.write(data)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def draw_best(client: Client, options: Namespace, node: NodeInfo) -> list[str]:
    """best --figure and --artifact: the files written."""
    path = destination(options.figure, "--figure", "png", "svg") if options.figure else None
    run = client.get(run_path(options.run), RunInfo)
    if run.kind == "external":
        told = f"run {run.run!r} is external: its answers are texts, and return nothing to keep or draw"
        raise Failed(400, Error(error=told, hint=f"tttctl best {run.run} -o FILE writes the best one"))
    if path:
        _has_figure(run)
    kept = artifact(client, options.run, node)
    if path:
        image(path, drawing(run, node, kept))
    if options.artifact:
        write(Path(options.artifact), kept)
    return [name for name in (options.figure, options.artifact) if name]


def artifact(client: Client, run: str, node: NodeInfo) -> bytes:
    """What the node's program returned, as the judge read it.  Raises Failed where that is not kept."""
    try:
        found = client.get(run_path(run, f"/nodes/{node.node}/artifact"), Artifact)
    except Failed as error:
        if error.status != NOT_KEPT:
            raise
        again = f"the program is kept: tttctl verify {run} {node.node} judges it again"
        raise Failed(404, Error(error=str(error), hint=again)) from None
    kept = bytes(found.artifact)
    if hashlib.sha256(kept).hexdigest() != found.sha256:
        told = f"the artifact of node {node.node} is not what was judged: its SHA-256 is not {found.sha256}"
        raise Failed(500, Error(error=told, hint="is the daemon's disk sound?"))
    return kept


def drawing(run: RunInfo, node: NodeInfo, kept: bytes) -> Callable[[], Figure]:
    """Raises Failed for an artifact that is not what its task's figure shows."""
    _has_figure(run)
    found = f"{run.objective_name or 'objective'} {number(node.objective, 12)}"
    where = f"node {node.node}, step {node.step + 1}" if node.parent is not None else f"node {node.node}, as given"
    below = f"{run.task}: {found}, {where}"
    try:
        if run.figure == "circles":
            circles = packing.checked(msgspec.json.decode(kept, type=packing.Packing))
            return lambda: packing.whole(run.run, below, circles)
        decoded = msgspec.json.decode(kept, type=STEP_FUNCTION[run.figure])
        heights = cast(list[float], decoded[0] if run.figure == "overlap" else decoded)
        shape = step_function.SHAPES[run.figure](heights)
        return lambda: step_function.whole(run.run, below, shape)
    except (msgspec.DecodeError, ValueError) as error:
        told = f"what node {node.node} returned cannot be drawn as {run.figure}: {error}"
        hint = f"tttctl best {run.run} --artifact FILE.json writes it as it is"
        raise Failed(400, Error(error=told, hint=hint)) from None


def _has_figure(run: RunInfo) -> None:
    if not run.figure:
        hint = f"tttctl best {run.run} --artifact FILE.json writes what its program returned"
        raise Failed(400, Error(error=f"--figure: the programs of task {run.task!r} return nothing to draw", hint=hint))
