"""Tasks are folders: `task.toml`, `instruction.md`, `judge.py`, and, if named, a starter program and promised helpers.

    load("erdos_min_overlap", [Path("my/tasks")]) -> Task          directories given come before the built-in ones

A task's limits are told to the model, given to the program (the seconds, as `budget_s`) and enforced (the seconds times
KILL_FACTOR): one record for all three.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from judges.promised import shown
from judges.sandbox.messages import Entry
from judges.syntax import parse

KILL_FACTOR = 1.1
"""A program is killed at this multiple of the time limit that it is told."""
Figure = Literal["", "circles", "overlap", "autoconvolution"]  # how what a program returns is drawn
SEED = 42
REGION_OPEN, REGION_CLOSE = "⟦", "⟧"

BUILT_IN = Path(__file__).parent / "tasks"

Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class TaskError(ValueError):
    """A task that cannot be used.  Says in which file, line and field, and what to do."""

    def __init__(self, message: str, file: Path | None = None, line: int | None = None, field: str = "") -> None:
        self.message, self.file, self.line, self.field = message, file, line, field
        place = f"{file}:{line}" if line else str(file or "")
        super().__init__(": ".join(filter(None, (place, field, message))))


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of task.toml."""


class TaskLimits(Table, frozen=True, kw_only=True):
    seconds: Annotated[float, Meta(gt=0, le=1e6)]
    """Time limit told to the program where no setting gives another."""
    cpus: Annotated[int, Meta(ge=1, le=4096)]
    memory_gib: Annotated[float, Meta(ge=0.5, le=65536)]


class Objective(Table, frozen=True, kw_only=True):
    name: str
    direction: Literal["lower", "higher"]
    unit: str = ""
    target: float | None = None
    record: float | None = None
    """Best value known to us."""


class EntryPoint(Table, frozen=True, kw_only=True):
    function: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*$")]
    arguments: tuple[Literal["seed", "budget_s"], ...] = ()


class Description(Table, frozen=True, kw_only=True):
    """task.toml."""

    name: Name
    title: str
    entry: EntryPoint
    limits: TaskLimits
    objective: Objective
    reward: str
    """The rule from objective to reward, in words."""
    libraries: tuple[str, ...] = ()
    starter: str | None = None
    helpers: str | None = None
    """File whose functions every program has (see judges.promised)."""
    figure: Figure = ""
    completion_header: str = ""
    """What a completion-style prompt says of the problem, short."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    folder: Path
    entry: EntryPoint
    limits: TaskLimits
    objective: Objective
    libraries: tuple[str, ...]
    figure: Figure
    completion_header: str
    instruction: str
    """With the placeholders that `told` fills in."""
    starter: str | None
    """The starter program; its editable region lies between REGION_OPEN and REGION_CLOSE."""
    helpers: str
    """Source that runs in every program's namespace before it; often empty."""
    instruction_sha256: str
    judge_sha256: str
    """Of judge.py and of the modules of `judges` that it imports."""
    starter_sha256: str
    helpers_sha256: str

    @property
    def judge(self) -> Path:
        return self.folder / "judge.py"

    @property
    def starter_program(self) -> str | None:
        """The starter as it is run and shown: without the region's marks."""
        return self.starter and self.starter.replace(REGION_OPEN, "").replace(REGION_CLOSE, "")

    @property
    def entry_point(self) -> str:
        """The function's signature, for people."""
        defaults = {"seed": f"seed={SEED}", "budget_s": "budget_s=..."}
        return f"{self.entry.function}({', '.join([defaults[name] for name in self.entry.arguments])})"

    @property
    def identity(self) -> dict[str, str]:
        """What a run remembers of its task."""
        return {
            "task": self.name,
            "entry": self.entry_point,
            "limits": f"{self.limits.cpus} CPUs, {self.limits.memory_gib:g} GiB",
            "header": self.completion_header,
            "instruction": self.instruction_sha256,
            "judge": self.judge_sha256,
            "starter": self.starter_sha256,
            "helpers": self.helpers_sha256,
        }

    def limited(self, seconds: float | None = None, cpus: int | None = None, memory_gib: float | None = None) -> Task:
        """The same task under other limits, where given: told to the model, given to the program and enforced."""
        own = self.limits
        limits = TaskLimits(
            seconds=seconds or own.seconds, cpus=cpus or own.cpus, memory_gib=memory_gib or own.memory_gib
        )
        return msgspec.structs.replace(self, limits=limits)

    @property
    def call(self) -> Entry:
        values: dict[str, int | float] = {"seed": SEED, "budget_s": self.limits.seconds}
        return Entry(self.entry.function, {name: values[name] for name in self.entry.arguments}, self.helpers)

    @property
    def told(self) -> str:
        """The instruction with the limits that are in force and the helpers that are there."""
        filled = {
            "{time_limit}": f"{self.limits.seconds:g}",
            "{kill_limit}": f"{self.limits.seconds * KILL_FACTOR:g}",
            "{cpus}": str(self.limits.cpus),
            "{memory_gib}": f"{self.limits.memory_gib:g}",
            "{libraries}": ", ".join(self.libraries),
            "{helpers}": shown(self.helpers),
        }
        text = self.instruction
        for placeholder, value in filled.items():
            text = text.replace(placeholder, value)
        return text


def names(search_path: Iterable[Path] = ()) -> list[str]:
    """Names of all tasks that can be loaded, sorted."""
    return sorted({file.parent.name for place in (*search_path, BUILT_IN) for file in place.glob("*/task.toml")})


def load(name: str, search_path: Iterable[Path] = ()) -> Task:
    """A task by its name, or by the path of its folder.  Raises TaskError."""
    places = [*search_path, BUILT_IN]
    folder = Path(name) if "/" in name else _found(name, places)
    text = _read(folder / "task.toml")
    description = _description(folder / "task.toml", text)
    if description.name != folder.resolve().name:
        told = f"{description.name!r} differs from the folder's name {folder.resolve().name!r}; make them the same"
        raise TaskError(told, folder / "task.toml", _line(text, "name"), "name")
    return _task(folder, description)


def _found(name: str, places: list[Path]) -> Path:
    for place in places:
        if (place / name / "task.toml").is_file():
            return place / name
    known = ", ".join(names(places[:-1]))
    looked = ", ".join(str(place) for place in places)
    raise TaskError(f"no task named {name!r}; known tasks: {known} (looked in {looked})")


def _task(folder: Path, description: Description) -> Task:
    instruction = _read(folder / "instruction.md")
    starter = _starter(folder, description.starter)
    helpers = _helpers(folder, description.helpers)
    return Task(
        name=description.name,
        title=description.title,
        folder=folder.resolve(),
        entry=description.entry,
        limits=description.limits,
        objective=description.objective,
        libraries=description.libraries,
        figure=description.figure,
        completion_header=description.completion_header,
        instruction=instruction,
        starter=starter,
        helpers=helpers,
        instruction_sha256=_sha256(instruction),
        judge_sha256=_sha256(_judge_sources(folder / "judge.py")),
        starter_sha256=_sha256(starter or ""),
        helpers_sha256=_sha256(helpers),
    )


def _starter(folder: Path, file: str | None) -> str | None:
    if file is None:
        return None
    text = _read(folder / file)
    regions = re.findall(f"[{REGION_OPEN}{REGION_CLOSE}]", text)
    if regions not in ([], [REGION_OPEN, REGION_CLOSE]):
        raise TaskError(f"mark at most one editable region, {REGION_OPEN} before {REGION_CLOSE}", folder / file)
    return text


def _helpers(folder: Path, file: str | None) -> str:
    if file is None:
        return ""
    text = _read(folder / file)
    _parsed(folder / file, text)
    return text


def _judge_sources(judge: Path) -> str:
    """judge.py and, as it decides the reward as well, what it imports from this package."""
    text = _read(judge)
    tree = _parsed(judge, text)
    if not any(isinstance(node, ast.FunctionDef) and node.name == "grade" for node in tree.body):
        raise TaskError("defines no function grade; add `def grade(artifact: bytes) -> Verdict:`", judge)
    return text + "".join(_read(file) for file in _imported(tree))


def _imported(tree: ast.Module) -> list[Path]:
    """Files of this package that a judge imports by `from judges...`, sorted."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    dotted = [f"{node.module}.{each.name}" for node in nodes if node.module == "judges" for each in node.names]
    dotted += [node.module for node in nodes if node.module and node.module.startswith("judges.")]
    package = Path(__file__).parent.parent
    return sorted(package / (name.replace(".", "/") + ".py") for name in dotted if name != "judges.verdict")


def _parsed(file: Path, text: str) -> ast.Module:
    try:
        return parse(text)
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        line = error.lineno if isinstance(error, SyntaxError) else None
        raise TaskError(f"it is not Python: {error.args[0]}", file, line) from None


def _description(file: Path, text: str) -> Description:
    try:
        tables: dict[str, Any] = tomllib.loads(text)
        description = msgspec.convert(tables, Description, strict=True)
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"not valid TOML: {error}", file) from None
    except msgspec.ValidationError as error:
        message = str(error)
        field = (re.findall(r"unknown field `(\w+)`", message) or re.findall(r"`\$\.([\w.]+)", message) or [""])[0]
        raise TaskError(message, file, _line(text, field), field or "task") from None
    if not math.isfinite(description.limits.seconds):
        raise TaskError("must be finite", file, _line(text, "seconds"), "limits.seconds")
    return description


def _line(text: str, field: str) -> int:
    """Line of a field's last name, or 1."""
    key = re.escape(field.rpartition(".")[2])
    for number, line in enumerate(text.splitlines(), 1):
        if key and re.match(rf"\s*\[?\s*{key}\s*[\]=]", line):
            return number
    return 1


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise TaskError(f"cannot read it: {error.strerror}", file) from None
    except UnicodeDecodeError:
        raise TaskError("it is not UTF-8 text", file) from None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
