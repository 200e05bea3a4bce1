"""Programs by what people call them: a node's number, `best` or `starter`."""

from __future__ import annotations

from tttctl.client import Client, Failed, run_path
from tttdd.protocol import Error, NodeInfo, RunInfo


def find(client: Client, run: str, named: str) -> NodeInfo:
    """Raises Failed for a program that is not there."""
    if named == "best":
        return client.get(run_path(run, "/best"), NodeInfo)
    if named == "starter":
        starter = client.get(run_path(run), RunInfo).starter
        if starter is None:
            raise Failed(404, Error(error=f"run {run!r} has no starter program"))
        named = str(starter.node)
    if not (named.isascii() and named.isdigit()):
        raise Failed(400, Error(error=f"{named!r} is no node", hint="a whole number from 0, or best, or starter"))
    return client.get(run_path(run, f"/nodes/{named}"), NodeInfo)


def called(node: NodeInfo) -> str:
    """Where it comes from, in words."""
    if node.parent is None:
        return f"node {node.node} (seed)"
    return f"node {node.node} (step {node.step + 1}, child of {node.parent})"


def difference(a: NodeInfo, b: NodeInfo) -> float | None:
    """Of the objectives; None where one has none."""
    return None if a.objective is None or b.objective is None else b.objective - a.objective
