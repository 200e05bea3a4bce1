"""diff RUN A B: what the search changed from one program to another, and what that did to the objective."""

from __future__ import annotations

import difflib
import re
from argparse import Namespace

from tttctl.client import Client, run_path
from tttctl.render import clean, coloured, number, say, show_json
from tttctl.verbs.nodes import called, difference, find
from tttdd.protocol import NodeInfo, RunInfo

COLOURS = {"---": "1", "+++": "1", "@@": "36", "-": "31", "+": "32"}
"""Of lines that begin so; the first that fits."""
LINE = re.compile("[^\n]*\n|[^\n]+")
"""Ends at newlines alone, unlike str.splitlines."""
NO_NEWLINE = "\\ No newline at end of file"


def diff(client: Client, options: Namespace) -> int:
    a, b = (find(client, options.run, named) for named in (options.a, options.b))
    lines = unified(a, b)
    if options.json:
        gain = {"reward": b.reward - a.reward, "objective": difference(a, b)}
        show_json({"a": _told(a), "b": _told(b), "gain": gain, "diff": "".join(line + "\n" for line in lines)})
        return 0
    run = client.get(run_path(options.run), RunInfo)
    for sign, node in (("-", a), ("+", b)):
        result = f"{run.objective_name or 'objective'} {number(node.objective, 12)}, reward {number(node.reward, 12)}"
        say(f"{sign} {called(node)}: {result}")
    if not lines:
        say("the programs are the same")
    for line in lines:
        print(coloured(clean(line), _colour(line)))
    return 0


def unified(a: NodeInfo, b: NodeInfo) -> list[str]:
    """Lines that `patch` understands; none where the programs are the same."""
    before, after = (LINE.findall(node.program) for node in (a, b))
    lines: list[str] = []
    for line in difflib.unified_diff(before, after, f"{a.node}.py", f"{b.node}.py"):
        lines += [line[:-1]] if line.endswith("\n") else [line, NO_NEWLINE]
    return lines


def size(a: NodeInfo, b: NodeInfo) -> str:
    """Lines added and taken away, as `+3 -1`."""
    lines = unified(a, b)[2:]
    return " ".join(f"{sign}{sum(line.startswith(sign) for line in lines)}" for sign in "+-")


def _colour(line: str) -> str:
    return next((code for start, code in COLOURS.items() if line.startswith(start)), "")


def _told(node: NodeInfo) -> dict[str, int | float | None]:
    return {"node": node.node, "parent": node.parent, "step": node.step, "reward": node.reward} | {
        "objective": node.objective
    }
