"""A task as a run uses it, and what stands in its place where a harness judges."""

from __future__ import annotations

from typing import Protocol

import msgspec

from tttdd.domain.prompt import TaskPrompt
from tttdd.ports import Judge
from tttdd.protocol import TaskInfo

PROBE_TEXT = """\
A reward says how good an answer is, and nothing says how a better one could look. So the search goes on: many answers
to one question are sampled, each is given its reward, and the model is moved a little towards those that did better
than their neighbours. After some steps the same question is answered by another model than the one that began.

def advantages(rewards):
    \"\"\"How much more likely an answer should become, from its reward and those of its group.\"\"\"
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]

Whether the model that answers is the one that was trained cannot be seen from its answers: a wrong one would give some,
too. So the log-probabilities of a fixed text are compared, as the sampler computes them and as the trainer does. This
is that text. It holds words, numbers such as 0.3809, 2.635 and 1024, and a little code, because the answers do as well.
"""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a run uses it."""

    info: TaskInfo
    prompt: TaskPrompt
    judge: Judge | None
    """None where a harness judges."""
    identity: dict[str, str]
    """What a run remembers of its task: name, and hashes of instruction, judge and starter."""
    starter: str
    """The starter program as it is run; empty if the task has none."""


class Catalog(Protocol):
    def names(self) -> list[str]: ...

    def load(self, name: str) -> Assignment:
        """Raises NotFound with the nearest name, or Refused when the task's files are at fault."""
        ...


def of_harness(name: str) -> Assignment:
    """For an external run: nothing is judged here, and the search begins from nothing."""
    return Assignment(
        info=TaskInfo(
            name=name,
            title=name,
            objective="",
            direction="higher",
            target=None,
            time_limit=0.0,
            entry_point="",
        ),
        prompt=TaskPrompt(instruction=PROBE_TEXT, short_instruction="", style="chat"),
        judge=None,
        identity={"name": name, "kind": "external"},
        starter="",
    )
