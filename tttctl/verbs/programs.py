"""Verbs about programs: best, show, verify."""

from __future__ import annotations

import itertools
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import NoReturn

from tttctl.client import Client, Failed, run_path
from tttctl.render import number, say, show_json, table
from tttctl.verbs.nodes import called, difference, find
from tttdd.protocol import Error, NodeInfo, Verified, Verify


def best(client: Client, options: Namespace) -> int:
    node = client.get(run_path(options.run, "/best"), NodeInfo)
    files: list[str] = []
    if options.figure or options.artifact:
        from tttctl.verbs.figures import draw_best  # imports matplotlib

        files = draw_best(client, options, node)
    if options.output:
        _write(Path(options.output), node.program)
        files.append(options.output)
    if options.json:
        show_json(node)
    elif not files:
        say(node.program.rstrip("\n"))
    for file in [] if options.json else files:
        say(f"{file}: node {node.node}, objective {number(node.objective, 12)}, reward {number(node.reward)}")
    return 0


def show(client: Client, options: Namespace) -> int:
    node = find(client, options.run, options.node)
    parents = [_node(client, options.run, id) for id in node.lineage] if options.lineage else []
    if options.json:
        show_json({"node": node, "ancestors": parents} if options.lineage else node)
        return 0
    _describe(node)
    if options.lineage:
        _tell_lineage([*reversed(parents), node])
    return 0


def verify(client: Client, options: Namespace) -> int:
    if options.task:
        _judge_file(options)
    if _is_file(options.what):
        told = f"{options.what} is a file: say for which task it is to be judged"
        raise Failed(400, Error(error=told, hint=f"tttctl verify --task TASK {options.what}"))
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


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # longer than a name may be, or in a folder that may not be entered
        return False


def _node(client: Client, run: str, id: int) -> NodeInfo:
    return client.get(run_path(run, f"/nodes/{id}"), NodeInfo)


def _describe(node: NodeInfo) -> None:
    say(f"{called(node)}, visits {node.visits}{', pruned' if node.pruned else ''}")
    say(f"objective {number(node.objective, 12)}, reward {number(node.reward, 12)}")
    for name, value in node.certificate.items():
        say(f"{name}: {value}")
    say("\n" + node.program.rstrip("\n") + "\n")
    if node.output:
        say("it printed:\n" + node.output)


def _tell_lineage(line: list[NodeInfo]) -> None:
    """From the seed down to the program itself: what each changed, in the objective and in lines."""
    from tttctl.verbs.diff import size  # not worth its import time to the other verbs

    rows = [[str(line[0].node), "seed", number(line[0].objective, 12), "", ""]]
    for before, node in itertools.pairwise(line):
        gain = difference(before, node)
        change = "-" if gain is None else f"{gain:+.6g}"
        rows.append([str(node.node), str(node.step + 1), number(node.objective, 12), change, size(before, node)])
    table(["NODE", "STEP", "OBJECTIVE", "CHANGE", "LINES"], rows)


def _write(path: Path, program: str) -> None:
    try:
        path.write_bytes(program.encode())
    except OSError as error:
        raise Failed(400, Error(error=f"cannot write {path}: {error.strerror}")) from None
