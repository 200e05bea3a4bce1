"""plot RUN: its curves in one figure, or one of them, or where its best program comes from."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from matplotlib.figure import Figure

from tttctl.client import Client, run_path
from tttctl.figures import curves, lineage
from tttctl.figures.history import History
from tttctl.render import say, show_json
from tttctl.verbs.figures import ancestry, destination, history, image
from tttdd.protocol import NodeInfo


def plot(client: Client, options: Namespace) -> int:
    name = options.figure
    default = f"{options.run}.png" if name == "run" else f"{options.run}-{name}.png"
    path = destination(options.output or default, "-o", "png", "svg")
    found = history(client, options.run)
    image(path, _drawing(client, name, found))
    if options.json:
        show_json({"run": found.run.run, "figure": name, "files": [str(path)]})
    else:
        say(f"{path}: {found.run.run}, {name}, {len(found.rows)} step{'' if len(found.rows) == 1 else 's'}")
    return 0


def _drawing(client: Client, name: str, found: History) -> Callable[[], Figure]:
    if name == "run":
        return lambda: curves.whole(found)
    if name == "lineage":
        best = client.get(run_path(found.run.run, "/best"), NodeInfo)
        line = ancestry(client, found.run.run, best)
        return lambda: lineage.whole(found, line)
    return lambda: curves.single(name, found)
