"""The program in a model's answer.

    chat        the last ```python block outside the thinking, by a scan that knows Python's strings and comments
    completion  fixed head + what came before the stop + fixed tail

None means that the answer holds no program, and the rollout fails with that reason.  Algorithm, section 6.
"""

from __future__ import annotations

import re

from tttdd.domain.prompt import TaskPrompt, split_region

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
# Both take linear time on any text: a run of backticks is tried once, and outside a string, too, a backslash takes the
# next character with it, so that a quote without an end is looked for once a line.
_OPENING = re.compile(r"(?<!`)(`{3,}+)[ \t]*+(?:python|py)[ \t]*+(?:\r?\n|\Z)", re.IGNORECASE)
_STRING_COMMENT_OR_FENCE = re.compile(
    r"\\."
    r"|'''(?:\\.|[^\\])*?'''"
    r'|"""(?:\\.|[^\\])*?"""'
    r"|'(?:\\.|[^\\'\n])*'"
    r'|"(?:\\.|[^\\"\n])*"'
    r"|\#[^\n]*"
    r"|(?P<fence>`{3,})",
    re.DOTALL,
)


def extract(task: TaskPrompt, answer: str) -> str | None:
    """The program to judge, or None."""
    return _completed(task, answer) if task.style == "completion" else _last_block(outside_thinking(answer))


def outside_thinking(answer: str) -> str:
    """The answer without its thinking.  A template may have opened the thinking already, inside the prompt."""
    opened, closed = answer.find("<think>"), answer.find("</think>")
    if closed >= 0 and not 0 <= opened < closed:
        answer = answer[closed + len("</think>") :]
    return _THINKING.sub("", answer)


def _completed(task: TaskPrompt, answer: str) -> str | None:
    region = split_region(task.starter)
    text, stopped, _ = answer.partition(region.stop)
    return region.head + text + region.tail if stopped else None


def _last_block(text: str) -> str | None:
    block, position = "", 0
    while opening := _OPENING.search(text, position):
        position = _closing(text, opening.end(), len(opening[1]))
        block = text[opening.end() : position]
    return block.strip("\r\n") + "\n" if block.strip() else None


def _closing(text: str, start: int, length: int) -> int:
    """Where the code that begins at `start` ends: at a fence outside strings and comments, or with the text."""
    for token in _STRING_COMMENT_OR_FENCE.finditer(text, start):
        if len(token["fence"] or "") >= length:
            return token.start()
    return len(text)
