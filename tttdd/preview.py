"""python -m tttdd.preview --config FILE < REPORT: the prompt of a task's first rollout, without a daemon.

REPORT is what `python -m judges check` prints.  One JSON object comes out: `style`, `text` as the model gets it, `stop`
and `told`, the instruction; all under the limits that a daemon with this configuration would grant here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from judges import task as folders
from judges.evaluate import at_once, granted
from tttdd import config
from tttdd.adapters.catalog import prompt_of
from tttdd.domain import prompt
from tttdd.domain.archive import Node


class Report(msgspec.Struct, frozen=True):
    """What is needed of it."""

    folder: str
    starter: str = ""
    verdict: dict[str, Any] | None = None


def main() -> None:
    parser = argparse.ArgumentParser(prog="tttdd.preview")
    parser.add_argument("--config", type=Path, required=True)
    settings = config.load(parser.parse_args().config)
    report = msgspec.json.decode(sys.stdin.buffer.read(), type=Report)
    judges, style = settings.judges, settings.prompt.style
    task = folders.load(report.folder).limited(judges.time_limit, judges.cpus, judges.memory_gib)
    task = granted(task, at_once(task, judges.parallel))
    shown = prompt.render(prompt_of(task, style), _first(report))
    answer = {"style": style, "text": shown.text, "stop": shown.stop, "told": task.told}
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")


def _first(report: Report) -> Node:
    """The archive's first node: the starter with its verdict, or nothing."""
    verdict = report.verdict or {"reward": 0.0}
    return Node(
        id=0,
        program=report.starter,
        output=verdict.get("output", ""),
        reward=verdict["reward"],
        objective=verdict.get("objective"),
        seed=True,
    )


if __name__ == "__main__":
    main()
