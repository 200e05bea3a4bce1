"""What tttctl shows of itself: help in groups, tables that fit, completion in shells, the configuration's schema."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from fake_daemon import Served, serving

from tttctl import help as texts
from tttctl import render
from tttctl.__main__ import run as tttctl
from tttctl.parser import parser
from tttctl.render import columns, table
from tttctl.verbs import settings
from tttctl.verbs.runs import describe
from tttdd import config, protocol
from tttdd.protocol import Submit

LONG = "a reason that is far longer than what is left of the line, with a verylongwordthatfitsnowhereatall in it"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("daemon") / "s") as served:
        for name in ("first", "fourth"):
            served.runner.submit(Submit(task="erdos_min_overlap", name=name))
        yield served


@pytest.fixture
def served(daemon: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("TTTDD_SOCKET", str(daemon.socket))
    return daemon


def verbs() -> dict[str, Any]:
    action = next(action for action in parser()._actions if action.dest == "verb")
    assert isinstance(action.choices, dict)
    return action.choices


def test_every_verb_stands_in_one_group_of_the_help() -> None:
    told = parser().format_help()
    named = [name for names in texts.GROUPS.values() for name in names]
    assert sorted(named) == sorted(verbs()), "a verb without a group, or a group with a verb that is none"
    assert all(told.count(f"\n    {name} ") == 1 for name in named)
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize("line", [line for lines in texts.EXAMPLES.values() for line in lines])
def test_every_example_of_the_help_is_a_command_line(line: str) -> None:
    words = line.removeprefix("source <(").split(" > ")[0].rstrip(")").split()
    assert words[0] == "tttctl"
    parser().parse_args(words[1:])


def test_examples_stand_in_a_verbs_help() -> None:
    assert "\nexamples:\n  tttctl diff circle_packing_26-1 starter best\n" in verbs()["diff"].format_help()


@pytest.mark.parametrize(("text", "wide"), [("abc", 3), ("重叠-1", 6), ("e\u0301-2", 3), ("a\u200bb", 2), ("é≤", 2)])
def test_a_terminals_columns_are_counted(text: str, wide: int) -> None:
    assert columns(text) == wide


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wide: int | None) -> list[str]:
    monkeypatch.setattr(render, "width", lambda: wide)
    table(
        ["RUN", "STATE", "REASON"], [["重叠-1", "failed", LONG], ["e\u0301-2", "running", ""], ["x" * 30, "", "y\nz"]]
    )
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("wide", [40, 60, 80])
def test_a_table_fits_the_terminal_and_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wide: int
) -> None:
    lines = shown(capsys, monkeypatch, wide)
    assert max(map(columns, lines)) <= wide
    start = columns(lines[0].partition("REASON")[0])
    reasons = [_cut(line, start) for line in lines]
    assert "".join(reasons[1:]).replace(" ", "") == LONG.replace(" ", "") + "yz"


def _cut(line: str, start: int) -> str:
    """From that column on."""
    return next((line[place:] for place in range(len(line)) if columns(line[:place]) == start), "")


def test_a_piped_table_has_a_line_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(capsys, monkeypatch, None)
    assert len(lines) == 4
    assert lines[1].endswith(LONG)
    assert columns(lines[1].partition("failed")[0]) == columns(lines[2].partition("running")[0])


@pytest.mark.parametrize(
    ("environment", "colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_may_have_them(environment: dict[str, str], colours: bool) -> None:
    program = "from tttctl.render import table; table(['STATE'], [['failed']])"
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-c", program], stdout=theirs, env={**plain, "TERM": "xterm", **environment}, check=True
    )
    os.close(theirs)
    text = os.read(ours, 1000)
    os.close(ours)
    assert (b"\x1b[31mfailed\x1b[0m" in text, b"\x1b" in text) == (colours, colours)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("running", "next      tttctl watch first, or tttctl monitor"),
        ("paused", "next      tttctl resume first"),
        ("failed", "next      tttctl logs first"),
        ("finished", "next      tttctl best first, tttctl report first, tttctl export first DIR"),
    ],
)
def test_a_run_says_what_one_would_do_next(
    served: Served, capsys: pytest.CaptureFixture[str], state: protocol.RunState, said: str
) -> None:
    served.runner.become("first", state)
    describe(served.runner.run("first"))
    assert said in capsys.readouterr().out


def test_names_stand_alone(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert tttctl(["runs", "--names"]) == tttctl(["tasks", "--names"]) == 0
    assert capsys.readouterr().out == "first\nfourth\nerdos_min_overlap\n"


BASH = """
source <(tttctl completion bash)
complete -p tttctl
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_tttctl; echo "${COMPREPLY[@]}"; }
complete_words tttctl comp
complete_words tttctl logs --fo
complete_words tttctl watch f
complete_words tttctl best fir
complete_words tttctl submit erd
complete_words tttctl config ""
"""


def in_shell(*command: str) -> list[str]:
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(command, env=os.environ | {"PATH": here}, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.splitlines()


def test_bash_completes_verbs_options_runs_and_tasks(served: Served) -> None:
    registered, *found = in_shell("bash", "-c", BASH)
    assert registered.endswith("_shtab_tttctl tttctl")
    assert [sorted(words.split()) for words in found] == [
        ["compare", "completion"],
        ["--follow"],
        ["first", "fourth"],
        ["first"],
        ["erdos_min_overlap"],
        ["check", "schema", "show"],
    ]


def test_without_a_daemon_bash_completes_no_names_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTTDD_SOCKET", str(tmp_path / "none"))
    words = BASH.replace("complete -p tttctl\n", "").splitlines()
    assert in_shell("bash", "-c", "\n".join([*words[:3], "complete_words tttctl watch f"])) == [""]


@pytest.mark.parametrize(
    ("shell", "check"),
    [("zsh", ["zsh", "-n"]), ("tcsh", ["tcsh", "-f"])],
)
def test_other_shells_take_their_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: str, check: list[str]
) -> None:
    assert tttctl(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "--names" in script.read_text()
    if shutil.which(shell):
        assert in_shell(*check, str(script)) == []


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    from tttctl.verbs.schema import schema

    return json.loads(json.dumps(schema()))


@pytest.mark.parametrize("name", ["tttdd.toml", "tttdd.cpu.toml"])
def test_what_ships_is_valid_by_the_schema(schema: dict[str, Any], name: str) -> None:
    jsonschema_rs.validate(schema, tomllib.loads(config.shipped(name).read_text()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[model]\npath = "x"\n[grid]\nrollout = 3', "'rollout' was unexpected"),
        ('[model]\npath = "x"\n[grid]\ngroups = 0', "0 is less than the minimum of 1"),
        ("[grid]\ngroups = 2", '"model" is a required property'),
    ],
)
def test_the_schema_refuses_what_the_daemon_refuses(schema: dict[str, Any], text: str, said: str) -> None:
    with pytest.raises(jsonschema_rs.ValidationError, match=said):
        jsonschema_rs.validate(schema, tomllib.loads(text))


def test_every_setting_is_described(schema: dict[str, Any]) -> None:
    tables = [(name, table) for name, table in schema["$defs"].items() if name not in ("Config", "Tracking")]
    fields = [(name, key, field) for name, table in tables for key, field in table["properties"].items()]
    assert len(fields) > 50 and [(name, key) for name, key, field in fields if "description" not in field] == []


def test_the_schema_has_the_words_of_the_source(schema: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    described = schema["$defs"]["Trainer"]["properties"]["lr"]
    assert described["description"] == "0 freezes the model: the whole loop runs and every release equals the base."
    assert (described["minimum"], described["default"]) == (0, 4e-5)
    assert tttctl(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema


def test_every_way_to_write_a_key_is_told_with_its_line() -> None:
    text = """engine.devices = [0]
grid = { groups = 4, rollouts = 5 }

[trainer]  # of the model
# lr = 1
targets = [
  "q_proj",
  # steps = 3
]
"lr" = 1e-4
[engine.arguments]
attention_backend = \"\"\"
[judges]
\"\"\"
"""
    found = settings.lines(text)
    keys = ("engine.devices", "grid.rollouts", "trainer.targets", "trainer.lr", "engine.arguments.attention_backend")
    assert [found[key] for key in keys] == [1, 2, 6, 10, 12]
    assert not {"trainer.steps", "judges"} & set(found)


def test_every_setting_is_told_with_where_it_is_from(tmp_path: Path) -> None:
    path = config.shipped("tttdd.cpu.toml")
    values = settings.origins(config.load(path), path)
    given = {f"{table}.{key}" for table, keys in tomllib.loads(path.read_text()).items() for key in keys}
    assert {name for name, at in values.items() if at["from"] != settings.DEFAULT} == given
    for name in given:
        file, _, line = values[name]["from"].rpartition(":")
        assert path.read_text().splitlines()[int(line) - 1].startswith(name.partition(".")[2]), file
