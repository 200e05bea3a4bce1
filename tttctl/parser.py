"""The command line as argparse sees it; each verb names the module that carries it out."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from tttctl.help import Help, examples
from tttdd import __version__

ABOUT = "Talk to the tttdd daemon, which trains a language model on one hard problem while it searches for a solution."
MORE = "tttctl VERB --help says more; every verb takes --json"
SEED = "of the sampling: another seed is another run of the same experiment (default: 0)"
NAMES = "nothing but the names, a line each"
NODE = "a node's number, best, or starter"

COUNT = (1, 1_000_000)
NATURAL = (0, 2**63 - 1)
PRIORITIES = (-1000, 1000)
"""Smallest and largest of what the daemon takes."""

FIGURES = ("run", "rewards", "objective", "valid", "time", "divergence", "proof", "lineage")


class Parser(argparse.ArgumentParser):
    def _check_value(self, action: argparse.Action, value: str) -> None:
        """A misspelt verb has one that was meant; a list of them all would hide it."""
        if action.choices is not None and value not in action.choices:
            import difflib  # not worth its import time to who makes no mistake

            if near := difflib.get_close_matches(value, list(map(str, action.choices)), 1):
                raise argparse.ArgumentError(action, f"there is no {value!r}; did you mean {near[0]!r}?")
        super()._check_value(action, value)


def filled(text: str) -> str:
    """A variable of a script that has no value is no name: it would mean the default, or the whole daemon."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def whole(bounds: tuple[int, int]) -> Callable[[str], int]:
    least, most = bounds

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more")
        if value > most:
            raise argparse.ArgumentTypeError(f"must be {most} or less")
        return value

    return read


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="tttctl", description=ABOUT, epilog=MORE, formatter_class=Help)
    top.add_argument("--version", action="version", version=f"tttctl {__version__}")
    top.add_argument(
        "--socket", type=filled, metavar="PATH", help="the daemon's socket (default: $TTTDD_SOCKET, else the system's)"
    )
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True, dest="verb", prog="tttctl")
    _submit_verb(verbs)
    _run_verbs(verbs)
    _program_verbs(verbs)
    _drawing_verbs(verbs)
    _other_verbs(verbs)
    return top


if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[Parser]  # pyright: ignore[reportPrivateUsage]


def _submit_verb(verbs: Verbs) -> None:
    submit = _verb(verbs, "submit", "runs", "submit a run of a task, or of a harness of your own")
    submit.add_argument("task", help="a task's name; with --external any name")
    sizes = {
        "--steps": "training steps",
        "--groups": "groups a step; with --rollouts",
        "--rollouts": "rollouts a group; with --groups",
    }
    for name, what in sizes.items():
        submit.add_argument(name, type=whole(COUNT), metavar="N", help=f"{what} (default: the daemon's configuration)")
    submit.add_argument("--seed", type=whole(NATURAL), default=0, metavar="S", help=SEED)
    submit.add_argument("--name", help="name of the run (default: the task's name and a number)")
    submit.add_argument(
        "--priority",
        type=whole(PRIORITIES),
        default=0,
        metavar="N",
        help="-1000 to 1000: of the queued runs the highest is first (default: 0)",
    )
    submit.add_argument(
        "--mode",
        choices=["discover", "search", "best-of-n"],
        default="discover",
        help="search: no training; best-of-n: nor any search, each program starts from the starter (default: discover)",
    )
    submit.add_argument(
        "--no-train", action="store_const", dest="mode", const="search", help="the same as --mode search"
    )
    submit.add_argument(
        "--external",
        action="store_const",
        dest="kind",
        const="external",
        default="task",
        help="your own harness samples and judges; tttctl client RUN tells it how",
    )
    submit.add_argument("--resume-from", metavar="RUN", help="go on from its newest weights and its archive")
    submit.add_argument("--wait", action="store_true", help="wait for the end; exit status 1 if the run failed")
    submit.add_argument("--watch", action="store_true", help="the same, with progress")


def _run_verbs(verbs: Verbs) -> None:
    _verb(verbs, "runs", "runs", "list the runs").add_argument("--names", action="store_true", help=NAMES)
    _verb(verbs, "status", "runs", "what the daemon does now").add_argument("run", nargs="?")
    _verb(verbs, "watch", "watch", "follow a run to its end").add_argument("run")
    monitor = _verb(verbs, "monitor", "monitor", "the daemon's work on one screen, with keys and mouse")
    monitor.add_argument("--look", choices=["dark", "light"], help="default: what $COLORFGBG tells, else dark")
    logs = _verb(verbs, "logs", "logs", "what a run's workers and the daemon say")
    logs.add_argument("run")
    logs.add_argument("--source", action="append", metavar="NAME", help="only this log, for instance trainer.log")
    logs.add_argument(
        "-f", "--follow", action="store_true", help="go on until the run has ended; with --json a document a line"
    )
    logs.add_argument("-n", "--lines", type=int, default=100, metavar="N", help="newest lines of each (default: 100)")
    pause = _verb(verbs, "pause", "runs", "pause a run, or the daemon")
    pause.add_argument("run", nargs="?")
    pause.add_argument(
        "--release-gpus",
        action="store_true",
        help="also end the workers: the devices' memory is free, the next run can start",
    )
    _verb(verbs, "resume", "runs", "resume a run, or the daemon").add_argument("run", nargs="?")
    _verb(verbs, "cancel", "runs", "cancel a run").add_argument("run")
    harness = _verb(verbs, "client", "harness", "how your harness reaches an external run, and what its grid lacks")
    harness.add_argument("run")


def _program_verbs(verbs: Verbs) -> None:
    best = _verb(verbs, "best", "programs", "print a run's best program")
    best.add_argument("run")
    best.add_argument("-o", metavar="FILE", dest="output", help="write the program there, byte for byte")
    best.add_argument("--figure", metavar="FILE", help="draw what it returned: a .png or .svg")
    best.add_argument("--artifact", metavar="FILE", help="write what it returned there, as JSON")
    show = _verb(verbs, "show", "programs", "one program with its verdict")
    show.add_argument("run")
    show.add_argument("node", metavar="NODE", help=NODE)
    show.add_argument("--lineage", action="store_true", help="also its ancestors, and what each changed")
    diff = _verb(verbs, "diff", "diff", "what changed from one program to another")
    diff.add_argument("run")
    diff.add_argument("a", metavar="A", help=NODE)
    diff.add_argument("b", metavar="B", help=NODE)
    export = _verb(verbs, "export", "export", "all that a run has found, as files: programs, metrics, adapters")
    export.add_argument("run")
    export.add_argument("dir", metavar="DIR", help="a new directory, or an empty one")
    verify = _verb(verbs, "verify", "programs", "judge a program again, in a fresh sandbox")
    verify.add_argument("--task", help="judge FILE for this task, a name or a folder; needs no daemon")
    verify.add_argument("--time-limit", type=float, metavar="S", help="with --task: seconds; default: the task's")
    verify.add_argument(
        "--sandbox", choices=["namespaces", "docker", "process"], help="with --task; default: namespaces"
    )
    verify.add_argument("what", metavar="RUN|FILE")
    verify.add_argument("node", nargs="?", type=whole(NATURAL), metavar="NODE", help="default: the run's best")
    _verb(verbs, "tasks", "runs", "the tasks that can be run").add_argument("--names", action="store_true", help=NAMES)
    own = verbs.add_parser("task", help="a task of your own: new, check", formatter_class=Help)
    actions = own.add_subparsers(metavar="ACTION", required=True, dest="action", prog="tttctl task")
    new = _verb(actions, "new", "task", "write the folder of a new task, a small problem that works")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--dir", default=".", metavar="DIR", help="directory to write the folder in (default: this one)")
    check = _verb(
        actions, "check", "task", "validate a task's folder, run its own examples, show what a model is shown"
    )
    check.add_argument("folder", metavar="FOLDER")


def _drawing_verbs(verbs: Verbs) -> None:
    plot = _verb(verbs, "plot", "plot", "draw a run's curves")
    plot.add_argument("run")
    plot.add_argument("-o", metavar="FILE", dest="output", help="a .png or .svg (default: RUN.png)")
    plot.add_argument("--figure", choices=FIGURES, default="run", help="one of them alone (default: run, most in one)")
    report = _verb(verbs, "report", "report", "a run in one HTML file that needs no network")
    report.add_argument("run")
    report.add_argument("-o", metavar="FILE", dest="output", help="default: RUN.html")
    report.add_argument("--verify", action="store_true", help="judge the best program again, and report that, too")
    compare = _verb(verbs, "compare", "compare", "runs of one task: mean and spread over their seeds")
    compare.add_argument("runs", nargs="+", metavar="RUN")
    compare.add_argument("-o", metavar="FILE", dest="output", help="also draw it: a .png or .svg")


def _other_verbs(verbs: Verbs) -> None:
    config = _verb(verbs, "config", "settings", "show or check the configuration, or tell its schema")
    config.add_argument("action", choices=["show", "check", "schema"])
    config.add_argument("--file", metavar="FILE", help="default: the file that the daemon would read")
    _verb(verbs, "doctor", "doctor", "what works here, what does not, what to do")
    completion = _verb(verbs, "completion", "completion", "a script that completes tttctl's words in a shell")
    completion.add_argument("shell", choices=["bash", "zsh", "tcsh"])
    demo = _verb(verbs, "demo", "demo", "the whole loop on this machine, in a private daemon")
    demo.add_argument("task", nargs="?", default="erdos_min_overlap", help="a task's name, or its folder")
    demo.add_argument(
        "--steps", type=whole(COUNT), metavar="N", help="training steps (default: the shipped configuration's)"
    )
    demo.add_argument("--seed", type=whole(NATURAL), default=0, metavar="S", help=SEED)
    demo.add_argument("--state-dir", "--keep", metavar="DIR", help="where all is kept (default: a new directory)")


def _verb(verbs: Verbs, name: str, module: str, summary: str) -> argparse.ArgumentParser:
    """Every verb takes --json, and --socket also after its name."""
    described = f"{summary[0].upper()}{summary[1:]}."
    verb = verbs.add_parser(name, help=summary, description=described, epilog=examples(name), formatter_class=Help)
    verb.register("type", None, filled)
    verb.set_defaults(module=f"tttctl.verbs.{module}")
    verb.add_argument("--socket", metavar="PATH", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    verb.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return verb
