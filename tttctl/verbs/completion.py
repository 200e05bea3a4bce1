"""completion SHELL: a script that completes the verbs, their options, and the names of runs and tasks.

shtab makes it from the parser; the names come from `tttctl runs --names` at the moment they are asked for.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from typing import cast

import shtab

from tttctl.client import Client
from tttctl.parser import parser
from tttctl.render import show_json

NAMES = {"run": "runs", "runs": "runs", "resume_from": "runs", "task": "tasks"}
"""Argument -> verb that lists what it can be."""
FILES = ("output", "file", "socket", "what", "artifact")
FOLDERS = ("dir", "state_dir", "folder")
BASH = """
_tttctl_names() { tttctl "$1" --names 2>/dev/null; }
_tttctl_runs() { compgen -W "$(_tttctl_names runs)" -- "$1"; }
_tttctl_tasks() { compgen -W "$(_tttctl_names tasks)" -- "$1"; }
"""
ZSH = """
_tttctl_names() { local -a names; names=(${(f)"$(tttctl $1 --names 2>/dev/null)"}); compadd -a names; }
_tttctl_runs() { _tttctl_names runs }
_tttctl_tasks() { _tttctl_names tasks }
"""


def completion(client: Client, options: Namespace) -> int:
    top = parser()
    for action in _actions(top):
        if verb := NAMES.get(action.dest):
            by_shell = {"bash": f"_tttctl_{verb}", "zsh": f"_tttctl_{verb}", "tcsh": f"`tttctl {verb} --names`"}
            action.complete = by_shell  # pyright: ignore[reportAttributeAccessIssue]  # where shtab looks for it
        elif action.dest in (*FILES, *FOLDERS):
            action.complete = shtab.FILE if action.dest in FILES else shtab.DIRECTORY  # pyright: ignore[reportAttributeAccessIssue]
    script = shtab.complete(top, options.shell, preamble={"bash": BASH, "zsh": ZSH})  # pyright: ignore[reportArgumentType]
    show_json({"shell": options.shell, "script": script}) if options.json else print(script)
    return 0


def _actions(of: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of a parser and of all its verbs."""
    for action in of._actions:  # pyright: ignore[reportPrivateUsage]  # argparse tells them in no other way
        yield action
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            verbs = cast(dict[str, argparse.ArgumentParser], action.choices)  # pyright: ignore[reportUnknownMemberType]
            for verb in verbs.values():
                yield from _actions(verb)
