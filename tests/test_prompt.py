"""What the model is shown, in both styles."""

import pytest

from tttdd.domain.archive import Node
from tttdd.domain.prompt import TaskPrompt, render, split_region, starter_program, written_part

STARTER = "def steps():\n    h = [⟦0.1, 0.3⟧]\n    return h\n"
CHAT = TaskPrompt(
    instruction="Minimise C5 in 5 s.\n", short_instruction="", style="chat", objective_name="C5", direction="lower"
)
COMPLETION = TaskPrompt(instruction="", short_instruction="Find h.", style="completion", starter=STARTER)
PARENT = "def steps():\n    h = [0.25, 0.75]\n    return h\n"


def node(**fields) -> Node:
    return Node(**{"id": 0, "program": PARENT, "reward": 2.0, **fields})


def test_a_chat_prompt_has_its_parts_in_order() -> None:
    prompt = render(CHAT, node(program="x = 1\n", output="n = 3\n", reward=2.62531234567891, objective=0.380907123456))
    assert prompt.chat and prompt.stop == ()
    assert prompt.text == (
        "Minimise C5 in 5 s.\n\n"
        "The program below has reward 2.625312346 (higher is better), C5 = 0.3809071235 (lower is better).\n\n"
        "```python\nx = 1\n```\n\n"
        "The end of what it printed:\n--- output ---\nn = 3\n--- end of output ---\n\n"
        "Write an improved program, complete, in one ```python block."
    )


def test_a_seed_without_a_program_asks_for_one() -> None:
    text = render(CHAT, node(program="", reward=0.0)).text
    assert text == "Minimise C5 in 5 s.\n\nWrite a program that solves this, complete, in one ```python block."


def test_only_the_last_500_characters_of_the_output_are_shown() -> None:
    text = render(CHAT, node(output="a" * 600 + "b" * 499)).text
    assert "\na" + "b" * 499 + "\n" in text


def test_silence_is_not_quoted() -> None:
    assert "printed" not in render(CHAT, node(output=" \n")).text


def test_a_program_with_a_fence_in_it_gets_a_longer_one() -> None:
    assert "````python\ns = '```'\n````" in render(CHAT, node(program="s = '```'")).text


def test_a_completion_prompt_ends_inside_the_region() -> None:
    prompt = render(COMPLETION, node())
    assert not prompt.chat and prompt.stop == ("]",)
    assert prompt.text == (
        "# Find h.\n\n## Program 1, reward 2.00000\n\n"
        "```python\ndef steps():\n    h = [0.25, 0.75]\n    return h\n```\n\n"
        "## Program 2, higher reward, same code with better numbers\n\n```python\ndef steps():\n    h = ["
    )


@pytest.mark.parametrize("program", [PARENT, ""])
def test_region_marks_are_never_shown(program: str) -> None:
    assert not set("⟦⟧") & set(render(COMPLETION, node(program=program)).text)
    assert starter_program(STARTER) == "def steps():\n    h = [0.1, 0.3]\n    return h\n"


def test_the_written_part_is_the_region_and_its_stop() -> None:
    assert written_part(COMPLETION, node()) == "0.25, 0.75]"
    assert written_part(COMPLETION, node(program="")) == "0.1, 0.3]"
    assert written_part(CHAT, node(program="x = 1\n")) == "```python\nx = 1\n```"


@pytest.mark.parametrize("bad", ["h = [1]", "h = [⟦1]", "h = [1⟧]", "⟧h = ⟦1", "h = [⟦1⟧", "[⟦1⟧, ⟦2⟧]", "[⟦⟦1⟧⟧]"])
def test_a_starter_without_exactly_one_closed_region_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="exactly one region"):
        split_region(bad)
