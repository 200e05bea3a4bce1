"""The program in an answer: chat's last fence, completion's region."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tttdd.domain.archive import Node
from tttdd.domain.extract import extract
from tttdd.domain.prompt import TaskPrompt, render, written_part

CHAT = TaskPrompt(instruction="", short_instruction="", style="chat")
COMPLETION = TaskPrompt(
    instruction="", short_instruction="", style="completion", starter="def f():\n    h = [⟦0.1, 0.3⟧]\n    return h\n"
)


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("Here:\n```Py\nx = 1\n```\nDone.", "x = 1\n"),
        ("Here: ```PYTHON  \r\nx = 1\r\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nbetter:\n```python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\n```text\nx = 2\n```", "x = 1\n"),
        ("```python\nx = 1\n```\n```python\nx = 3", "x = 3\n"),
        ("```python\ns = '```'\ny = 2\n```\nend", "s = '```'\ny = 2\n"),
        ('```python\ns = """\n```python\nz\n```\n"""\ny = 2\n```\nend', 's = """\n```python\nz\n```\n"""\ny = 2\n'),
        ("```python\nx = 1  # don't ``` stop\ny = 2\n```", "x = 1  # don't ``` stop\ny = 2\n"),
        ("```python\ns = 'it\\'s ```'\n```", "s = 'it\\'s ```'\n"),
        ("```python\ns = 'broken\n```\nIt's done", "s = 'broken\n"),
        ("````python\ns = 1\n```\n````", "s = 1\n```\n"),
    ],
)
def test_the_last_python_fence_is_the_program(answer: str, program: str) -> None:
    assert extract(CHAT, answer) == program


@pytest.mark.parametrize(
    "answer", ["", "x = 1", "```\nx = 1\n```", "```python\n\n```", "```text\nx\n```", "```pyx\nx\n```"]
)
def test_an_answer_without_a_python_fence_holds_no_program(answer: str) -> None:
    assert extract(CHAT, answer) is None


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("<think>```python\nx = 1\n```</think>", None),
        ("<think>```python\nx = 1\n```", None),
        ("thinking ```python\nx = 1\n```</think>done", None),
        ("<think>```python\nx = 1</think>```python\nx = 2\n```", "x = 2\n"),
        ("opened in the prompt</think>```python\nx = 2\n```<think>```python\nx = 3\n```", "x = 2\n"),
    ],
)
def test_a_program_in_the_thinking_does_not_count(answer: str, program: str | None) -> None:
    assert extract(CHAT, answer) == program


def test_a_completion_is_put_between_the_fixed_parts() -> None:
    assert extract(COMPLETION, "0.5, 0.5] and more]") == "def f():\n    h = [0.5, 0.5]\n    return h\n"


def test_a_completion_that_never_stops_is_no_program() -> None:
    assert extract(COMPLETION, "0.5, 0.5, 0.5,") is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_a_parent_written_again_is_the_parent(numbers: list[float]) -> None:
    program = f"def f():\n    h = [{', '.join(map(repr, numbers))}]\n    return h\n"
    node = Node(id=0, program=program, reward=1.0)
    for task in (CHAT, COMPLETION):
        assert extract(task, written_part(task, node)) == program


odd = st.text("`'\"#\\\nx ", max_size=30)


@given(odd, odd.map(lambda text: text.replace("\n", "")))
def test_a_valid_program_that_chat_shows_is_found_whole(text: str, comment: str) -> None:
    program = f"s = {text!r}  # {comment}\nt = '''\n{text.translate({39: None, 92: None})}'''\n"
    shown = render(CHAT, Node(id=0, program=program, reward=1.0)).text.rpartition("\n\nWrite an")[0]
    assert extract(CHAT, shown) == program


@pytest.mark.parametrize("piece", ["`", '\\"', "\\'", '"\\\n\\', "'''\\"])
def test_a_model_that_repeats_itself_does_not_hold_up_the_daemon(piece: str) -> None:
    started = time.process_time()
    extract(CHAT, "```python\n'''" + piece * 20_000)
    assert time.process_time() - started < 2
