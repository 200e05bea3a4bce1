"""Checks a task's folder as a whole: all that would go wrong in a run goes wrong here, and is told with its place.

    files -> Task -> rules -> starter, examples, helpers in the sandbox -> Report

examples.json, if there: [{"returned": ANY, "objective": 0.5} | {"returned": ANY, "reason": "constraint"}
| {"call": "evaluate([1])", "gives": 0.5} | {"call": ..., "raises": "ValueError"}], each with a "why" if wanted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from judges import task as tasks
from judges.evaluate import Evaluator, evaluator, granted, limits_of
from judges.grader import GraderFailed
from judges.promised import promises
from judges.sandbox import Sandbox
from judges.sandbox.messages import Entry, Failure
from judges.task import REGION_OPEN, Task, TaskError
from judges.verdict import Reason, Verdict

EXAMPLES = "examples.json"
BETTER = "would be as good; give valid programs more, for instance 1 / x where lower is better"
TOLERANCE = 1e-9
"""Relative where the value is above 1."""


class Fault(msgspec.Struct, frozen=True):
    file: str
    message: str
    line: int | None = None
    field: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    folder: str
    faults: list[Fault]
    told: str = ""
    """The instruction with limits and helpers filled in."""
    starter: str = ""
    """The starter program as it is run."""
    completion: bool = False
    """Prompts of style completion are possible."""
    verdict: Verdict | None = None
    """Of the starter."""
    examples: int = 0
    """That came out as expected."""
    helpers: list[str] = []
    """Names that every program has."""
    notes: list[str] = []


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    why: str = ""
    returned: Any = UNSET
    objective: float | UnsetType = UNSET
    reason: Reason | UnsetType = UNSET
    call: str | UnsetType = UNSET
    gives: Any = UNSET
    raises: str | UnsetType = UNSET


def check(folder: Path, seconds: float | None = None) -> Report:
    """Raises JudgeDied when a process of ours fails."""
    try:
        task = tasks.load(str(folder.resolve()))
        examples = _examples(task.folder / EXAMPLES)
    except TaskError as error:
        fault = Fault(str(error.file or folder), error.message, error.line, error.field)
        return Report(task=folder.resolve().name, folder=str(folder), faults=[fault])
    task = granted(task.limited(seconds), 1)
    faults = [*_rules(task)]
    trial = _Trial(task)
    trial.run(examples)
    return Report(
        task=task.name,
        folder=str(task.folder),
        faults=faults + trial.faults,
        told=task.told,
        starter=task.starter_program or "",
        verdict=trial.verdict,
        examples=trial.passed,
        helpers=sorted(promises(task.helpers)),
        completion=_completable(task),
        notes=[*_notes(task, examples)],
    )


def _rules(task: Task) -> Iterator[Fault]:
    """What can be told without running anything."""
    file = str(task.folder / "instruction.md")
    if task.entry.function not in task.instruction:
        yield Fault(file, f"does not say that the program has to define {task.entry.function}")
    if "{time_limit}" not in task.instruction:
        yield Fault(file, "does not tell the time limit; write {time_limit} where the number belongs")
    if task.helpers and "{helpers}" not in task.instruction:
        yield Fault(file, "does not show the helpers; write {helpers} on a line of its own")
    if "{helpers}" in task.instruction and not task.helpers:
        yield Fault(file, 'shows {helpers}, but task.toml names none; add helpers = "helpers.py" or take it out')
    for name, text in promises(task.helpers).items():
        if '"""' not in text:
            yield Fault(
                str(task.folder / "task.toml"), f"{name} has no docstring for the instruction to show", field="helpers"
            )


def _completable(task: Task) -> bool:
    return bool(task.starter and REGION_OPEN in task.starter and task.completion_header)


def _notes(task: Task, examples: list[Example]) -> Iterator[str]:
    if not _completable(task):
        yield 'prompt.style = "completion" needs a starter with a marked region and a completion_header: chat only'
    if not examples:
        yield f"no {EXAMPLES}: nothing was compared with a value that you know"


def _examples(file: Path) -> list[Example]:
    """Raises TaskError.  Python's JSON, so that an example may return NaN."""
    if not file.exists():
        return []
    try:
        found = msgspec.convert(json.loads(file.read_text()), list[Example])
    except json.JSONDecodeError as error:
        raise TaskError(f"not valid JSON: {error.msg}", file, error.lineno) from None
    except RecursionError:
        raise TaskError("nested too deeply", file) from None
    except (msgspec.ValidationError, OSError, ValueError) as error:
        raise TaskError(str(error), file) from None
    for number, example in enumerate(found, 1):
        given = {name for name in example.__struct_fields__ if getattr(example, name) is not UNSET} - {"why"}
        if given not in ({"returned", "objective"}, {"returned", "reason"}, {"call", "gives"}, {"call", "raises"}):
            message = (
                f'example {number} needs "returned" with "objective" or "reason", or "call" with "gives" or "raises"'
            )
            raise TaskError(message, file)
    return found


class _Trial:
    """A task's own programs, run: the starter, the examples, a look at the helpers."""

    def __init__(self, task: Task) -> None:
        self._task, self._sandbox = task, Sandbox()
        self.faults: list[Fault] = []
        self.verdict: Verdict | None = None
        self.passed = 0

    def run(self, examples: list[Example]) -> None:
        with evaluator(self._task, self._sandbox) as judge:
            missing = self._called(
                f"[name for name in {sorted(promises(self._task.helpers))} if name not in globals()]"
            )
            if missing != [True, []]:
                self._fault("helpers", f"cannot be run in a program's namespace: {missing[1]}")
                return
            try:
                self._start(judge)
                for number, example in enumerate(examples, 1):
                    self._compare(judge, number, example)
            except GraderFailed as error:
                self._judge_failed(str(error))

    def _start(self, judge: Evaluator) -> None:
        if self._task.starter_program is None:
            return
        self.verdict = judge.grade(self._task.starter_program)
        if not self.verdict.valid:
            self._fault("starter", f"is rejected: {self.verdict.reason}: {self.verdict.detail}")
        elif self.verdict.objective is None:
            self._fault("judge.py", "its verdict on the starter is valid but has no objective")
        elif self.verdict.reward <= 0:
            worth = f"rewards the starter with {self.verdict.reward:g}: a rejection, worth 0, {BETTER}"
            self._fault("judge.py", worth)

    def _compare(self, judge: Evaluator, number: int, example: Example) -> None:
        if example.call is not UNSET:
            met, expected, got = _call_met(example, self._called(example.call))
        else:
            met, expected, got = _grade_met(example, judge.grade(_returning(self._task, example.returned)))
        self.passed += met
        if not met:
            why = f" ({example.why})" if example.why else ""
            self._fault(EXAMPLES, f"example {number}{why}: expected {expected}, got {got}")

    def _called(self, expression: str) -> list[Any]:
        """[True, value] or [False, "ExceptionClass: words"] of an expression in a program's namespace."""
        program = (
            f"def probe():\n try: return [True, eval({expression!r})]\n"
            " except Exception as error: return [False, f'{type(error).__name__}: {error}']\n"
        )
        entry = Entry("probe", helpers=self._task.helpers)
        outcome = self._sandbox.run(program, entry, limits_of(self._task))
        if outcome.ending != "exited" or not outcome.result:
            return [False, f"it ended without a result ({outcome.ending})"]
        if outcome.result.startswith(b"E"):
            return [False, msgspec.json.decode(outcome.result[1:], type=Failure).detail]
        try:
            return json.loads(outcome.result[1:])
        except ValueError:
            return [False, "it wrote something of its own in place of a result"]

    def _judge_failed(self, text: str) -> None:
        lines = re.findall(rf'{re.escape(str(self._task.judge))}", line (\d+)', text)
        message = f"raised an exception, which would end a run: {text.strip().splitlines()[-1]}"
        self.faults.append(Fault(str(self._task.judge), message, int(lines[-1]) if lines else None))

    def _fault(self, file: str, message: str) -> None:
        """`file`, or the field of task.toml that names one."""
        name, field = (file, "") if "." in file else ("task.toml", file)
        self.faults.append(Fault(str(self._task.folder / name), message, field=field))


def _returning(task: Task, value: Any) -> str:
    return f"import json\ndef {task.entry.function}(**_):\n return json.loads({json.dumps(value)!r})\n"


def _grade_met(example: Example, verdict: Verdict) -> tuple[bool, str, str]:
    """Whether an example came out as expected, what was expected, what came."""
    came = f"objective {verdict.objective}" if verdict.valid else f"{verdict.reason!r}: {verdict.detail}"
    if example.objective is UNSET:
        return not verdict.valid and verdict.reason == example.reason, f"a rejection as {example.reason!r}", came
    return verdict.valid and _close(verdict.objective, example.objective), f"objective {example.objective}", came


def _call_met(example: Example, answer: list[Any]) -> tuple[bool, str, str]:
    returned, value = answer
    if example.raises is UNSET:
        return returned and _close(value, example.gives), str(example.gives), str(value)
    return not returned and value.partition(":")[0] == example.raises, f"{example.raises} raised", str(value)


def _close(value: Any, expected: Any) -> bool:
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return value == expected
