"""python -m judges verify --task NAME FILE | tasks | new NAME | check FOLDER | sandbox LEVEL: judging without a daemon.

Exit codes: 0 valid (or done), 1 the program was rejected or the task has faults, 2 bad usage, such as no such file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from judges import check, new
from judges import task as tasks
from judges.evaluate import evaluator
from judges.grader import GraderFailed
from judges.sandbox import JudgeDied, Level, made
from judges.task import Task, TaskError
from judges.verdict import Verdict

VALID, REJECTED, BAD_USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.verb(options)
    except TaskError as error:
        return _refuse(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="judges", description="Judge programs in a sandbox.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    verify = verbs.add_parser("verify", help="run a program and print its verdict")
    verify.add_argument("file", metavar="FILE", type=Path, help="a Python program")
    verify.add_argument("--task", required=True, metavar="NAME", help="a task's name, or its folder")
    verify.add_argument("--time-limit", type=_seconds, metavar="S", help="seconds; default: the task's")
    verify.add_argument("--sandbox", choices=get_args(Level), default="namespaces", help="default: namespaces")
    verify.set_defaults(verb=_verify)
    level = verbs.add_parser("sandbox", help="what contains programs on this machine, and what it lacks, as JSON")
    level.add_argument("level", choices=get_args(Level))
    level.add_argument("--image", help="Docker's; default: the one named after this version")
    level.add_argument("--runtime", help="Docker's; default: the engine's own")
    level.set_defaults(verb=_sandbox)
    listing = verbs.add_parser("tasks", help="list the tasks")
    listing.set_defaults(verb=_tasks)
    _author_verbs(verbs)
    for verb in (verify, listing):
        verb.add_argument("--json", action="store_true", help="one JSON object a line")
        verb.add_argument("--tasks-path", action="append", default=[], type=Path, metavar="DIR", help="look here first")
    return parser


def _author_verbs(verbs: Any) -> None:
    created = verbs.add_parser("new", help="write the folder of a new task")
    created.add_argument("name", metavar="NAME")
    created.add_argument("--dir", type=Path, default=Path(), metavar="DIR", help="directory to write it in; default: .")
    created.add_argument("--json", action="store_true", help="one JSON object")
    created.set_defaults(verb=_new)
    checked = verbs.add_parser(
        "check", help="validate a task's folder and run its own examples; prints one JSON report"
    )
    checked.add_argument("folder", metavar="FOLDER", type=Path)
    checked.add_argument("--time-limit", type=_seconds, metavar="S", help="seconds; default: the task's")
    checked.set_defaults(verb=_check)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError("must be more than 0 and less than a million seconds")
    return seconds


def _verify(options: argparse.Namespace) -> int:
    try:
        task = tasks.load(options.task, options.tasks_path)
    except OSError as error:  # a name that no file can have, or a folder that may not be entered
        return _refuse(f"cannot read the task {options.task}: {error.strerror}")
    try:
        program = options.file.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        return _refuse(f"cannot read {options.file}: {error.strerror}")
    try:
        sandbox = made(options.sandbox)
        with evaluator(task.limited(options.time_limit), sandbox) as judge:
            for lack in sandbox.missing:
                print(f"judges: not contained at level {sandbox.level}: {lack}", file=sys.stderr)
            verdict = judge.grade(program)
    except (JudgeDied, GraderFailed) as error:
        return _refuse(str(error))
    verdict = msgspec.structs.replace(verdict, artifact="")  # a megabyte would bury the rest
    print(msgspec.json.encode(verdict).decode() if options.json else _in_words(task, verdict))
    return VALID if verdict.valid else REJECTED


def _sandbox(options: argparse.Namespace) -> int:
    sandbox = made(options.level, options.image, options.runtime)
    try:
        sandbox.start()
        print(msgspec.json.encode({"level": sandbox.level, "missing": sandbox.missing}).decode())
    except JudgeDied as error:
        return _refuse(str(error))
    finally:
        sandbox.close()
    return VALID


def _in_words(task: Task, verdict: Verdict) -> str:
    if not verdict.valid:
        lines = [f"rejected: {verdict.reason}: {verdict.detail}"]
    else:
        objective = task.objective
        lines = [
            f"valid: {objective.name} {_number(verdict.objective)} ({objective.direction} is better)",
            f"reward {_number(verdict.reward)}",
        ]
        if objective.target is not None:
            lines.append(f"target {objective.target:g}")
    if verdict.reported is not None:
        lines.append(f"reported by the program {_number(verdict.reported)}")
    lines += [f"{name.replace('_', ' ')}: {value}" for name, value in verdict.certificate.items()]
    lines.append(f"{verdict.seconds:.2f} s, {verdict.peak_bytes / 2**20:.0f} MiB")
    return "\n".join([*lines, *(["output:", verdict.output] if verdict.output else [])])


def _number(value: float | None) -> str:
    """To 12 decimal places, which every quoted vector needs."""
    return "none" if value is None else f"{value:.12f}"


def _new(options: argparse.Namespace) -> int:
    folder = new.create(options.name, options.dir)
    words = f"{folder}: edit its files, then run: tttctl task check {folder}"
    print(msgspec.json.encode({"folder": str(folder)}).decode() if options.json else words)
    return VALID


def _check(options: argparse.Namespace) -> int:
    try:
        if not options.folder.is_dir():
            return _refuse(f"{options.folder} is not a folder")
        report = check.check(options.folder, options.time_limit)
    except (JudgeDied, OSError) as error:
        return _refuse(str(error))
    print(msgspec.json.encode(report).decode())
    return REJECTED if report.faults else VALID


def _tasks(options: argparse.Namespace) -> int:
    for name in tasks.names(options.tasks_path):
        task = tasks.load(name, options.tasks_path)
        if options.json:
            print(msgspec.json.encode(_listed(task)).decode())
        else:
            print(f"{task.name:24} {task.objective.direction:7} {task.entry_point:32} {task.title}")
    return VALID


def _listed(task: Task) -> dict[str, str | float | None]:
    return {
        "name": task.name,
        "title": task.title,
        "entry_point": task.entry_point,
        "objective": task.objective.name,
        "direction": task.objective.direction,
        "target": task.objective.target,
        "time_limit": task.limits.seconds,
    }


def _refuse(message: str) -> int:
    print(f"judges: {message}", file=sys.stderr)
    return BAD_USAGE


if __name__ == "__main__":
    sys.exit(main())
