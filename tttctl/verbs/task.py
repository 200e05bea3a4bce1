"""task new NAME | task check FOLDER: a problem of one's own, from the first file to what a model will be shown.

    check FOLDER -> python -m judges check -> report -> python -m tttdd.preview -> prompt     neither needs a daemon

Exit status: 0 good, 1 the task has faults, 2 bad usage.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec

from tttctl.client import Client, Failed
from tttctl.render import number, say, show_json
from tttdd.config import Config, ConfigError, default_path, load
from tttdd.protocol import Error

Report = dict[str, Any]


def task(client: Client, options: Namespace) -> int:
    return _new(options) if options.action == "new" else _check(options)


def _new(options: Namespace) -> int:
    """Become the judges' own command; its exit status is ours."""
    command = [sys.executable, "-P", "-m", "judges", "new", options.name, "--dir", options.dir]
    sys.stdout.flush()
    os.execv(sys.executable, [*command, "--json"] if options.json else command)


def _check(options: Namespace) -> int:
    path, config = _configuration()
    limit = [] if config.judges.time_limit is None else ["--time-limit", str(config.judges.time_limit)]
    found = _run(["judges", "check", options.folder, *limit])
    report: Report = msgspec.json.decode(found)
    style = config.prompt.style
    if not report["faults"] and (style == "chat" or report["completion"]):
        shown = msgspec.json.decode(_run(["tttdd.preview", "--config", str(path)], found), type=Report)
        report["told"] = shown.pop("told")
        report["prompt"] = {"config": str(path), **shown}
    if options.json:
        show_json(report)
    else:
        _tell(report, options.folder)
    return 1 if report["faults"] else 0


def _configuration() -> tuple[Path, Config]:
    """What the daemon would read: it sets the time limit and the form of the prompt."""
    path = default_path()
    try:
        return path, load(path)
    except ConfigError as error:
        raise Failed(400, Error(error=str(error))) from None


def _run(arguments: list[str], text: bytes = b"") -> bytes:
    """Output of one of our modules.  Raises Failed with what it said when it has none."""
    done = subprocess.run([sys.executable, "-P", "-m", *arguments], input=text, capture_output=True)
    if done.returncode not in (0, 1) or not done.stdout:
        words = done.stderr.decode(errors="replace").strip().removeprefix("judges: ")
        raise Failed(400 if done.returncode == 2 else 500, Error(error=words))
    return done.stdout


def _tell(report: Report, folder: str) -> None:
    shown = report.get("prompt")
    if report["told"] and not (shown and shown["style"] == "chat"):
        _section("the instruction, as a chat model is told it", report["told"])
    if shown:
        _section(f"a rollout's prompt, style {shown['style']} (of {shown['config']})", shown["text"])
    elif report["starter"]:
        _section("the starter, as it is run", report["starter"])
    for note in report["notes"]:
        say(f"note: {note}")
    for fault in report["faults"]:
        say(": ".join(filter(None, [_place(fault), fault["field"], fault["message"]])))
    if report["faults"]:
        say(f"{folder}: faults: {len(report['faults'])}")
        return
    verdict = report["verdict"]
    if verdict:
        say(f"starter: reward {number(verdict['reward'], 12)}, objective {number(verdict['objective'], 12)}")
    say(f"examples as expected: {report['examples']}; helpers: {', '.join(report['helpers']) or 'none'}")
    say(f"{folder}: good")


def _place(fault: dict[str, Any]) -> str:
    return f"{fault['file']}:{fault['line']}" if fault["line"] else fault["file"]


def _section(title: str, text: str) -> None:
    say(f"--- {title}\n{text.rstrip()}\n")
