"""python -m tttdd.preview --style S [--time-limit S] < REPORT: the prompt of a task's first rollout, without a daemon.

REPORT is what `python -m judges check` prints.  One JSON object comes out: `text`, as the model gets it, and `stop`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgspec

from judges import task as folders
from judges.evaluate import granted
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
    parser.add_argument("--style", choices=["chat", "completion"], required=True)
    parser.add_argument("--time-limit", type=float)
    options = parser.parse_args()
    report = msgspec.json.decode(sys.stdin.buffer.read(), type=Report)
    task = granted(folders.load(report.folder).limited(options.time_limit), 1)
    shown = prompt.render(prompt_of(task, options.style), _first(report))
    sys.stdout.write(msgspec.json.encode({"text": shown.text, "stop": shown.stop}).decode() + "\n")


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
