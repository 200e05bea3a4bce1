"""Verbs about programs: best, show, verify."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import NoReturn

from tttctl.client import Client, Failed, run_path
from tttctl.render import number, say, show_json, table
from tttdd.protocol import Error, NodeInfo, Verified, Verify


def best(client: Client, options: Namespace) -> int:
    node = client.get(run_path(options.run, "/best"), NodeInfo)
    if options.output:
        _write(Path(options.output), node.program)
    if options.json:
        show_json(node)
    elif options.output:
        say(f"{options.output}: node {node.node}, objective {number(node.objective, 12)}, reward {number(node.reward)}")
    else:
        say(node.program.rstrip("\n"))
    return 0


def show(client: Client, options: Namespace) -> int:
    node = client.get(run_path(options.run, f"/nodes/{options.node}"), NodeInfo)
    parents = [_node(client, options.run, id) for id in node.lineage] if options.lineage else []
    if options.json:
        show_json({"node": node, "ancestors": parents} if options.lineage else node)
        return 0
    _describe(node)
    if options.lineage:
        rows = [[str(n.node), str(n.step), number(n.reward), number(n.objective, 12)] for n in [node, *parents]]
        table(["NODE", "STEP", "REWARD", "OBJECTIVE"], rows)
    return 0


def verify(client: Client, options: Namespace) -> int:
    if options.task:
        _judge_file(options)
    verdict = client.post(run_path(options.what, "/verify"), Verify(node=options.node), Verified)
    if options.json:
        show_json(verdict)
    elif verdict.valid:
        say(
            f"node {verdict.node} is valid: objective {number(verdict.objective, 15)}, "
            f"reward {number(verdict.reward, 15)}"
        )
        for name, value in verdict.certificate.items():
            say(f"  {name}: {value}")
    else:
        say(f"node {verdict.node} is rejected ({verdict.reason}): {verdict.detail}")
    return 0 if verdict.valid else 1


def _judge_file(options: Namespace) -> NoReturn:
    """Become the judges' own command: no daemon is needed, and its exit status is ours."""
    if options.node is not None:
        raise Failed(400, Error(error="with --task there is one FILE and no NODE"))
    command = [sys.executable, "-P", "-m", "judges", "verify", "--task", options.task, options.what]
    if options.time_limit is not None:
        command += ["--time-limit", str(options.time_limit)]
    if options.sandbox is not None:
        command += ["--sandbox", options.sandbox]
    sys.stdout.flush()
    os.execv(sys.executable, [*command, "--json"] if options.json else command)


def _node(client: Client, run: str, id: int) -> NodeInfo:
    return client.get(run_path(run, f"/nodes/{id}"), NodeInfo)


def _describe(node: NodeInfo) -> None:
    origin = "seed" if node.seed else f"child of {node.parent}, step {node.step}"
    say(f"node {node.node}: {origin}, visits {node.visits}{', pruned' if node.pruned else ''}")
    say(f"objective {number(node.objective, 12)}, reward {number(node.reward, 12)}")
    for name, value in node.certificate.items():
        say(f"{name}: {value}")
    say("\n" + node.program.rstrip("\n") + "\n")
    if node.output:
        say("it printed:\n" + node.output)


def _write(path: Path, program: str) -> None:
    try:
        path.write_bytes(program.encode())
    except OSError as error:
        raise Failed(400, Error(error=f"cannot write {path}: {error.strerror}")) from None
