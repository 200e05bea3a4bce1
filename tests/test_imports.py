"""The tree's promises about who imports whom: the contracts of pyproject.toml, and what is loaded at run time.

A contract names what is forbidden; the allow-lists here name all that is allowed, for the parts that are to stay pure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "sglang", "megatron", "peft", "transformers", "gguf", "safetensors", "triton"}


def test_the_import_contracts_hold() -> None:
    linter = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert linter.returncode == 0, linter.stdout
    assert " 0 broken" in linter.stdout


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("tttdd.domain", {"msgspec", "tttdd.domain", "judges.syntax"}),
        (
            "tttctl",
            {
                "tttctl",
                "tttdd",
                *(f"tttdd.{name}protocol" for name in ("", "harness_", "log_")),
                *(f"tttdd.{name}" for name in ("config", "gpus", "memory", "sglang_version", "shape")),
                "matplotlib",
                "msgspec",
                "numpy",
                "pygments",
                "rich",
                "shtab",
                "textual",
            },
        ),
        ("judges", {"judges", "numpy", "scipy", "msgspec"}),
    ],
)
def test_a_pure_part_imports_nothing_but(package: str, allowed: set[str]) -> None:
    assert imported_by(package) - sys.stdlib_module_names - allowed == set()


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("tttdd.daemon", HEAVY),
        ("tttctl.__main__", HEAVY | {"numpy", "matplotlib", "scipy", "rich", "uvicorn", "httpx", "textual", "docker"}),
    ],
)
def test_importing_leaves_out_what_is_slow_or_holds_a_device(module: str, unwanted: set[str]) -> None:
    program = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert module in loaded
    assert loaded & unwanted == set()


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import asyncio", "TID251"),
        ("from pickle import loads", "TID251"),
        ("from unittest import mock", "TID251"),
        ("from unittest.mock import patch", "TID251"),
        ("print(1)", "T201"),
        ("try:\n    f()\nexcept Exception:\n    pass", "BLE001"),
        ("try:\n    f()\nexcept:\n    pass", "E722"),
    ],
)
@pytest.mark.parametrize("place", ["tttdd/step.py", "judges/verdict.py", "tttdd/workers/train.py"])
def test_what_the_style_bans_is_refused(source: str, rule: str, place: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=json", "--stdin-filename", place]
    done = subprocess.run([*command, "-"], input=source + "\n", cwd=ROOT, capture_output=True, text=True)
    assert rule in {finding["code"] for finding in json.loads(done.stdout)}


def imported_by(package: str) -> set[str]:
    """What a package's modules import directly: our own by name, the rest by distribution package."""
    graph = import_graph()
    ours = {package, *graph.find_descendants(package)}
    return {within(name, package) for module in ours for name in graph.find_modules_directly_imported_by(module)}


def within(module: str, package: str) -> str:
    """`module`, or `package` where it is a part of that."""
    return package if module == package or module.startswith(package + ".") else module


@cache
def import_graph() -> grimp.ImportGraph:
    return grimp.build_graph("tttdd", "tttctl", "judges", include_external_packages=True, cache_dir=None)
