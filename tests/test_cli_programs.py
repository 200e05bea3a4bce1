"""show, diff and export over the real API: lineages, what changed, and folders that are whole or not there."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_daemon import Served, serving

from tttctl.__main__ import run as tttctl
from tttctl.verbs import export
from tttctl.verbs.diff import unified
from tttdd.protocol import Best, NodeInfo, StepRow, Submit

STARTER = "def build():\n    return 1\n"


def node(id: int, parent: int, program: str, **more: Any) -> NodeInfo:
    fields: dict[str, Any] = {"reward": id, "objective": 1 / id, "seed": False, "visits": 0, "step": id - 2}
    fields |= {"pruned": False, **more}
    return NodeInfo(node=id, parent=parent, program=program, **fields)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Node 3, the best, comes from 2, which is pruned, and that from the starter."""
    with serving(tmp_path / "tttdd.sock") as served:
        monkeypatch.setenv("TTTDD_SOCKET", str(served.socket))
        served.runner.state_dir = str(tmp_path / "state")
        served.runner.submit(Submit(task="erdos_min_overlap", name="first"))
        two = node(2, 1, "def build():\n    return 2\n", lineage=[1], pruned=True)
        three = node(3, 2, "import math\ndef build():\n    return 3", lineage=[2, 1], artifact_sha256="aa")
        served.runner.others |= {2: two, 3: three}
        best = Best(node=3, reward=3, objective=1 / 3, step=1)
        run = msgspec.structs.replace(served.runner.run("first"), step=3, release=3, best=best)
        served.runner.by_name["first"] = run
        yield served


def out(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert tttctl(list(arguments)) == 0
    return capsys.readouterr().out


def test_a_program_has_a_number_or_a_name(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "show", "first", "best").startswith("node 3 (step 2, child of 2), visits 0\n")
    assert out(capsys, "show", "first", "starter").startswith("node 1 (seed), visits 3\n")
    assert out(capsys, "show", "first", "2").startswith("node 2 (step 1, child of 1), visits 0, pruned\n")
    assert tttctl(["show", "first", "worst"]) == 2
    assert "a whole number from 0, or best, or starter" in capsys.readouterr().err


def test_a_lineage_tells_what_each_program_changed(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    lines = out(capsys, "show", "first", "best", "--lineage").splitlines()[-4:]
    assert [line.split() for line in lines] == [
        ["NODE", "STEP", "OBJECTIVE", "CHANGE", "LINES"],
        ["1", "seed", "0.4"],
        ["2", "1", "0.5", "+0.1", "+1", "-1"],
        ["3", "2", "0.333333333333", "-0.166667", "+2", "-1"],
    ]


def test_a_diff_is_a_patch_with_the_objectives(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "diff", "first", "starter", "best").splitlines() == [
        "- node 1 (seed): C5 0.4, reward 2.5",
        "+ node 3 (step 2, child of 2): C5 0.333333333333, reward 3",
        "--- 1.py",
        "+++ 3.py",
        "@@ -1,2 +1,3 @@",
        "+import math",
        " def build():",
        "-    return 1",
        "+    return 3",
        "\\ No newline at end of file",
    ]
    told = json.loads(out(capsys, "diff", "first", "1", "3", "--json"))
    assert (told["a"]["node"], told["b"]["node"], told["gain"]["reward"]) == (1, 3, 0.5)
    assert told["diff"].startswith("--- 1.py\n+++ 3.py\n@@ ")
    assert "the programs are the same" in out(capsys, "diff", "first", "best", "3")


def test_a_diff_breaks_lines_where_patch_does() -> None:
    a, b = node(1, 0, "x = '\x0c \u2028'\ny\n"), node(2, 1, "x = '\x0c \u2028'\nz\n")
    assert unified(a, b)[3:] == [" x = '\x0c \u2028'", "-y", "+z"]


def test_hostile_programs_do_not_steer_the_terminal(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.runner.others[2] = node(2, 1, "\x1b]0;owned\x07\r\u202e", lineage=[1])
    assert not set(out(capsys, "diff", "first", "1", "2")) & set("\x1b\x07\r\u202e")


def release(tmp_path: Path, number: int) -> Path:
    folder = tmp_path / f"state/runs/first/releases/{number:04d}"
    folder.mkdir(parents=True)
    for name in (*export.ADAPTER, "optimizer.safetensors"):
        (folder / name).write_text(f"{name} {number}")
    return folder


def exported(tmp_path: Path, name: str = "out") -> tuple[Path, dict[str, Any]]:
    folder = tmp_path / name
    assert tttctl(["export", "first", str(folder)]) == 0
    return folder, json.loads((folder / export.MANIFEST).read_text())


def test_an_export_has_everything_and_says_what_by_hash(served: Served, tmp_path: Path) -> None:
    for number in (1, 3):
        release(tmp_path, number)
    folder, manifest = exported(tmp_path)
    archive = {each["node"]: each for each in json.loads((folder / "archive.json").read_text())}
    assert sorted(archive) == [1, 2, 3], "a pruned ancestor belongs to a lineage"
    assert (archive[3]["artifact"], archive[2]["artifact"]) == ([[1.0, 0.0], 0.5, 2], None)
    assert all((folder / f"programs/{id}.py").read_text() == each["program"] for id, each in archive.items())
    raw = (folder / "archive.json").read_text()
    assert '"artifact":[[1.0, 0.0], 0.5, 2]}' in raw, "byte for byte: its sha256 can be checked"
    told = json.loads((folder / "run.json").read_text())
    assert (told["run"]["run"], told["identity"]["task.judge"]) == ("first", "3f5a")
    assert (folder / "adapter/newest/adapter_model.safetensors").read_text() == "adapter_model.safetensors 3"
    assert (folder / "adapter/best/adapter_config.json").read_text() == "adapter_config.json 1"
    assert {name: kept["release"] for name, kept in manifest["adapters"].items()} == {"newest": 3, "best": 1}
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert set(manifest["files"]) == files - {export.MANIFEST}
    for name, of in manifest["files"].items():
        assert of["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_an_export_without_adapters_says_why(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, manifest = exported(tmp_path)
    assert "No such file" in manifest["adapters"]["newest"]["lacks"]
    assert "no adapter of the newest release, 3: " in capsys.readouterr().err
    run = msgspec.structs.replace(served.runner.run("first"), step=0, release=0)
    served.runner.by_name["first"] = run
    folder, manifest = exported(tmp_path, "untrained")
    assert "nothing was trained" in manifest["adapters"]["newest"]["lacks"]
    assert not (folder / "adapter").exists()


def test_adapters_that_may_not_be_read_are_told_with_a_remedy() -> None:
    told = export._remedy(PermissionError(13, "Permission denied"))
    assert told == "export again as the daemon's account or as root"


def test_the_metrics_table_has_every_column_of_any_step() -> None:
    rows = [
        StepRow(step=0, phase="committed", release=0, metrics={"b": 1e-300}),
        StepRow(step=1, phase="pending", release=1, metrics={"a": float("nan"), "b": 2.0}),
    ]
    table = list(csv.DictReader(export.metrics(rows).splitlines()))
    assert table[0] == {"step": "0", "phase": "committed", "release": "0", "a": "", "b": "1e-300"}
    assert table[1]["a"] == "nan" and table[1]["b"] == "2.0"


@pytest.mark.parametrize("broken", ["identity", "steps"])
def test_an_export_that_fails_leaves_nothing(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(served.runner, broken, None)
    (tmp_path / "place").mkdir()
    assert tttctl(["export", "first", str(tmp_path / "place/out")]) == 1
    assert not any((tmp_path / "place").iterdir())


def test_an_export_never_mixes_with_what_is_there(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    exported(tmp_path)
    assert tttctl(["export", "first", str(tmp_path / "out")]) == 2
    assert "is not empty" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert tttctl(["export", "first", str(tmp_path / "file")]) == 2
    assert tttctl(["export", "first", str(tmp_path / "file/below")]) == 2
    assert json.loads(out(capsys, "export", "first", str(tmp_path / "more"), "--json"))["run"] == "first"


def test_a_file_given_to_verify_without_its_task_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.touch()
    assert tttctl(["verify", str(file)]) == 2
    assert f"tttctl verify --task TASK {file}" in capsys.readouterr().err
