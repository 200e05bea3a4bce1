"""The best program of a run with its figure, fetched and prepared where it may take its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tttctl.client import Client, Failed, run_path
from tttctl.monitor import figures, source
from tttctl.monitor.text import Line, line, wrapped
from tttdd.protocol import NodeInfo, RunInfo

NOT_FOUND = 404


class Found(msgspec.Struct, frozen=True):
    node: NodeInfo
    program: list[Line]
    figure: figures.Drawable | str
    """Or why there is none."""


class Artifact(msgspec.Struct, frozen=True):
    artifact: Any
    sha256: str = ""


def fetch(client: Client, run: RunInfo) -> Found:
    """Raises what a call raises; a figure that cannot be had is none of that."""
    node = client.get(run_path(run.run, "/best"), NodeInfo)
    program = source.highlighted(source.beginning(node.program.rstrip("\n")))
    return Found(node, program, _figure(client, run, node))


def _figure(client: Client, run: RunInfo, node: NodeInfo) -> figures.Drawable | str:
    if not run.figure:
        return "No figure: what this task's programs return is not drawn."
    try:
        found = client.get(run_path(run.run, f"/nodes/{node.node}/artifact"), Artifact)
        return figures.prepared(run.figure, found.artifact)
    except figures.NotDrawn as error:
        return f"No figure: {error}."
    except Failed as error:
        kept = "what this program returned is not kept" if error.status == NOT_FOUND else "it cannot be had"
        return f"No figure: {kept} ({error})."


def program_lines(found: Found, width: int) -> list[Line]:
    """The program, then what it printed; of each as much as a screen can be made of at once."""
    program, output = found.node.program.rstrip("\n"), found.node.output.rstrip("\n")
    shown = [*source.numbered(found.program, width), *source.left_out(program, "tttctl best RUN -o FILE")]
    if not output.strip():
        return shown
    printed = [
        *wrapped(source.beginning(output), width),
        *source.left_out(output, f"tttctl show RUN {found.node.node}"),
    ]
    return [*shown, (), line(("it printed", "title")), *printed]


def figure_drawer(found: Found) -> Callable[[int, int], list[Line]]:
    def draw(width: int, height: int) -> list[Line]:
        certificate = [
            row for name, value in found.node.certificate.items() for row in wrapped(f"{name} {value}", width)
        ]
        dim = [tuple(span._replace(role="dim") for span in row) for row in certificate]
        room = height - len(dim) - 1 if isinstance(found.figure, str) or height > len(dim) + 12 else height
        return [*figures.drawing(found.figure, width, room), (), *dim]

    return draw
