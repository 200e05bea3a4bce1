"""What the model is shown: the task, the parent program and what is known of it.

    chat        instruction, reward, program, output, a request for a better one   -> a user message
    completion  ... program 1 in full, then program 2 up to its region             -> raw text to go on with

A task's starter program marks its editable region with ⟦ and ⟧, as in `h = [⟦0.1, 0.3⟧]`; neither is ever shown or
run.  In completion style everything around the region is fixed, and the first character behind it is the stop.
Algorithm, section 6.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from tttdd.domain.archive import Node

REGION_OPEN, REGION_CLOSE = "⟦", "⟧"
OUTPUT_CHARACTERS = 500


class Prompt(msgspec.Struct, frozen=True):
    text: str
    """A user message (chat), or raw text that the model continues."""
    chat: bool
    stop: tuple[str, ...] = ()
    """Texts of which the first ends the completion."""


class TaskPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """What rendering and extraction need of a task."""

    instruction: str
    """For chat style, with the time limit filled in."""
    short_instruction: str
    """For completion style: one or two lines."""
    style: Literal["chat", "completion"]
    objective_name: str = ""
    """The quoted number, for instance C5; empty if the task quotes none."""
    direction: Literal["lower", "higher"] = "higher"
    """Which way the objective is better."""
    starter: str = ""
    """Program with region marks.  Completion style needs one."""


class Region(msgspec.Struct, frozen=True):
    """A starter program in three parts; only `text` is the model's to write."""

    head: str
    text: str
    tail: str

    @property
    def stop(self) -> str:
        return self.tail[0]


def split_region(starter: str) -> Region:
    """Cut a starter at its marks; raises ValueError unless there is one region with text behind it."""
    head, opened, rest = starter.partition(REGION_OPEN)
    text, closed, tail = rest.partition(REGION_CLOSE)
    if not (opened and closed and tail) or {REGION_OPEN, REGION_CLOSE} & set(head + text + tail):
        raise ValueError(
            f"a starter needs exactly one region, marked {REGION_OPEN}...{REGION_CLOSE}, with code behind it"
        )
    return Region(head, text, tail)


def starter_program(starter: str) -> str:
    """The starter as it is run: without marks."""
    return starter.replace(REGION_OPEN, "").replace(REGION_CLOSE, "")


def render(task: TaskPrompt, node: Node) -> Prompt:
    """The prompt that asks for a better program than `node`'s."""
    return _completion(task, node) if task.style == "completion" else _chat(task, node)


def written_part(task: TaskPrompt, node: Node) -> str:
    """What a model would have to answer to bring `node`'s program again."""
    if task.style == "chat":
        return _fenced(node.program or starter_program(task.starter) or task.instruction)
    region = split_region(task.starter)
    written = node.program.removeprefix(region.head).removesuffix(region.tail) if node.program else region.text
    return written + region.stop


def _chat(task: TaskPrompt, node: Node) -> Prompt:
    parts = [task.instruction.strip()]
    if node.program.strip():
        parts += [_standing(task, node), _fenced(node.program)]
        if tail := node.output[-OUTPUT_CHARACTERS:].strip():
            parts.append(f"The end of what it printed:\n--- output ---\n{tail}\n--- end of output ---")
        parts.append("Write an improved program, complete, in one ```python block.")
    else:
        parts.append("Write a program that solves this, complete, in one ```python block.")
    return Prompt("\n\n".join(parts), chat=True)


def _standing(task: TaskPrompt, node: Node) -> str:
    text = f"The program below has reward {node.reward:.10g} (higher is better)"
    if task.objective_name and node.objective is not None:
        text += f", {task.objective_name} = {node.objective:.10g} ({task.direction} is better)"
    return text + "."


def _completion(task: TaskPrompt, node: Node) -> Prompt:
    region = split_region(task.starter)
    parent = node.program or starter_program(task.starter)
    text = (
        f"# {task.short_instruction.strip()}\n\n"
        f"## Program 1, reward {node.reward:.5f}\n\n{_fenced(parent)}\n\n"
        f"## Program 2, higher reward, same code with better numbers\n\n```python\n{region.head}"
    )
    return Prompt(text, chat=False, stop=(region.stop,))


def _fenced(program: str) -> str:
    """A fence longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall("`+", program)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{program.strip()}\n{fence}"
