"""However a verb ends, no traceback: interrupts, streams and folders that take nothing, answers that are none."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from fake_daemon import Served, serving
from figure_data import RunsToDraw, artifact, measured, run_of

from tttctl.__main__ import run as tttctl
from tttctl.client import Client, Failed
from tttctl.parser import COUNT, NATURAL, PRIORITIES
from tttctl.render import clean, moment, show_json
from tttctl.verbs.export import whole_folder
from tttctl.verbs.figures import write
from tttdd import protocol

LONGEST = 255
"""Bytes that a file's name may have."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    runs = RunsToDraw()
    runs.add(run_of("first", 15, figure="circles", task="packing"), measured())
    runs.keep(artifact("circles"))
    with serving(tmp_path_factory.mktemp("daemon") / "s", runner=runs) as served:
        yield served


@pytest.fixture
def served(daemon: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Served:
    monkeypatch.setenv("TTTDD_SOCKET", str(daemon.socket))
    monkeypatch.chdir(tmp_path)
    return daemon


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`tttctl` of a shell's command line."""
    given = os.environ | {"PYTHONUNBUFFERED": ""} | environment
    found = command.replace("tttctl", f"{sys.executable} -P -m tttctl")
    return subprocess.run(["bash", "-c", found], env=given, capture_output=True, text=True, timeout=60)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the parser says of a command line."""
    with pytest.raises(SystemExit) as ended:
        tttctl(list(arguments))
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("module", ["tttctl.verbs.runs", "tttctl.parser"])
def test_an_interrupt_during_an_import_is_exit_status_130_and_silent(tmp_path: Path, module: str) -> None:
    program = f"""
import sys
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            print("importing", flush=True)
            __import__("time").sleep(60)
sys.meta_path.insert(0, Slow())
sys.argv = ["tttctl", "runs"]
from tttctl.__main__ import main
main()
"""
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, preexec_fn=heard) as importing:
        assert importing.stdout and importing.stderr
        importing.stdout.readline()
        importing.send_signal(signal.SIGINT)
        assert (importing.wait(60), importing.stderr.read()) == (130, b"")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("tttctl runs > /dev/full", "No space left on device"),
        ("PYTHONUNBUFFERED=1 tttctl runs > /dev/full", "No space left on device"),
        ("tttctl runs >&-", "Bad file descriptor"),
        ("tttctl best first -o best.py >&- <&-", "Bad file descriptor"),
        ("tttctl --help > /dev/full", "No space left on device"),
    ],
)
def test_an_output_that_takes_nothing_is_told_in_a_line(served: Served, command: str, why: str) -> None:
    done = shell(command)
    assert (done.returncode, done.stderr) == (1, f"tttctl: cannot write to standard output: {why}\n")
    assert "-o" not in command or Path("best.py").is_file()


@pytest.mark.parametrize("closed", ["2>&-", "2> /dev/full"])
def test_without_an_error_stream_the_exit_status_is_the_same(served: Served, closed: str) -> None:
    done = shell(f"tttctl status nobody {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_a_reader_that_has_seen_enough_is_no_failure(served: Served) -> None:
    done = shell("set -o pipefail; tttctl completion zsh | head -c 1")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_encoding_that_lacks_a_character_shows_its_escape(served: Served) -> None:
    served.runner.by_name["first"] = run_of("first", 15, figure="circles", task="Erdős\U0001f600")
    told = shell("tttctl status first && tttctl status first --json", PYTHONIOENCODING="ascii")
    assert (told.returncode, told.stderr) == (0, "")
    lines = told.stdout.splitlines()
    assert "Erd\\u0151s\\U0001f600" in told.stdout
    assert json.loads(lines[-1])["task"] == "Erdős\U0001f600"


def forbid(kind: type[Path], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel says to who may not enter `name`; root may enter every folder."""

    def guarded(before: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, *given: Any, **options: Any) -> Any:
            if name in path.parts[:-1]:
                raise PermissionError(13, os.strerror(13), str(path))
            return before(path, *given, **options)

        return call

    for method in ("stat", "open", "mkdir", "rename", "replace", "unlink"):
        monkeypatch.setattr(kind, method, guarded(getattr(kind, method)))


@pytest.mark.parametrize(
    "arguments",
    [
        ["plot", "first", "--figure", "time", "-o", "secret/a.svg"],
        ["best", "first", "--artifact", "secret/a.json"],
        ["export", "first", "secret/a"],
    ],
)
def test_a_folder_that_may_not_be_entered_is_told(
    served: Served, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("secret").mkdir()
    forbid(type(Path()), "secret", monkeypatch)
    assert tttctl(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("tttctl: cannot write ") and error.endswith(
        "secret/" + arguments[-1][7:] + ": Permission denied\n"
    )


@pytest.mark.parametrize(("name", "why"), [("loop", "Too many levels"), ("n" * 300, "File name too long")])
def test_a_name_that_can_be_no_file_is_told(
    served: Served, name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("loop").symlink_to("loop")
    for verb in (["best", "first", "--artifact"], ["export", "first"]):
        assert tttctl([*verb, name]) == 2
        said = capsys.readouterr().err
        assert "cannot write" in said and (why in said or "Not a directory" in said)
    assert tttctl(["verify", name]) == 2
    assert [path.name for path in Path().iterdir()] == ["loop"]


def test_a_name_as_long_as_any_is_written(tmp_path: Path) -> None:
    name = "n" * LONGEST
    write(tmp_path / name, b"data")
    with whole_folder(tmp_path / "folder" / name) as aside:
        (aside / "a").touch()
    assert (tmp_path / name).read_bytes() == b"data" and (tmp_path / "folder" / name / "a").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"folder", name}


def test_a_written_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write(tmp_path / "file", b"")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_name_that_is_no_utf_8_is_written_and_told(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"\xff.svg")
    assert tttctl(["plot", "first", "--figure", "time", "-o", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [name]
    assert [os.fsencode(path) for path in Path().iterdir()] == [b"\xff.svg"]


@pytest.mark.parametrize("arguments", [["status"], ["logs", "first", "--source"], ["logs"], ["submit"]])
def test_an_argument_that_is_no_utf_8_is_refused(
    served: Served, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tttctl([*arguments, "\udcff"]) == 2
    assert capsys.readouterr().err.startswith("tttctl: ")


@contextmanager
def saying(path: Path, answer: bytes) -> Iterator[None]:
    """Something at the socket that is no daemon."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


OK = b"HTTP/1.1 200 OK\r\n"
DEEP = b"[" * 20_000


def of_length(body: bytes) -> bytes:
    return b"content-length: %d\r\n\r\n" % len(body) + body


ANSWERS = {
    "empty": (b"\r\n\r\n", "it begins with b''"),
    "not HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", "it begins with b'SSH"),
    "no status": (b"HTTP/1.1 abc\r\n\r\n", "it begins with b'HTTP/1.1 abc'"),
    "no length": (OK + b"content-length: x\r\n\r\n", "its length is b'x'"),
    "below nothing": (OK + b"content-length: -5\r\n\r\n{}", "its length is b'-5'"),
    "endless": (OK + b"content-length: 99999999999999\r\n\r\n{}", "its length is"),
    "headers": (OK + b"a: b\r\n" * 1000 + b"\r\n", "more than 100 headers"),
    "deep": (OK + of_length(b'[{"x":' + DEEP), "recursion"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_is_none_is_told(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer, why = ANSWERS[kind]
    with saying(tmp_path / "s", answer):
        assert tttctl(["runs", "--socket", str(tmp_path / "s")]) == 1
    error = capsys.readouterr().err
    assert "the daemon's answer cannot be read: " in error and why in error


def test_a_deep_refusal_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with saying(tmp_path / "s", b"HTTP/1.1 500 X\r\n" + of_length(b'{"x":' + DEEP)):
        assert tttctl(["runs", "--socket", str(tmp_path / "s")]) == 1
    assert "the daemon failed (HTTP 500)" in capsys.readouterr().err


@pytest.mark.parametrize("length", [b"x", b"-5", b"ffffffffffff"])
def test_a_chunk_without_a_length_is_told(tmp_path: Path, length: bytes) -> None:
    with saying(tmp_path / "s", OK + b"\r\n" + length + b"\r\n"), pytest.raises(Failed, match="its length is"):
        list(Client(str(tmp_path / "s")).events())


INVISIBLE = "\u061c\u2028\u2029\ufeff\U000e0001\U000e0041\u200b\u2060\u00ad"


def test_what_no_font_shows_is_shown_as_its_escape(capsys: pytest.CaptureFixture[str]) -> None:
    assert not set(clean(INVISIBLE)) & set(INVISIBLE)
    show_json(INVISIBLE)
    told = capsys.readouterr().out
    assert told.isascii() and json.loads(told) == INVISIBLE


@pytest.mark.parametrize("unix", [1.8e308, -1e18, 1e300, float("nan")])
def test_a_moment_of_no_year_is_a_dash(unix: float) -> None:
    assert moment(unix) == "-"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plot", "first", "-o", ""], "-o"),
        (["best", "first", "--artifact", ""], "--artifact"),
        (["best", "first", "--figure", ""], "--figure"),
        (["best", "first", "-o", ""], "-o"),
        (["pause", ""], "run"),
        (["--socket", "", "runs"], "--socket"),
        (["runs", "--socket", ""], "--socket"),
    ],
)
def test_an_empty_name_is_refused(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"argument {named}: must not be empty" in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit", "t", "--steps", "0"], "argument --steps: must be 1 or more"),
        (["submit", "t", "--rollouts", "9" * 30], "argument --rollouts: must be 1000000 or less"),
        (["submit", "t", "--priority", "1001"], "argument --priority: must be 1000 or less"),
        (["submit", "t", "--seed=-1"], "argument --seed: must be 0 or more"),
        (["demo", "--steps", "many"], "argument --steps: 'many' is no whole number"),
        (["statsu"], "there is no 'statsu'; did you mean 'status'?"),
        (["plot", "first", "--figure", "linage"], "did you mean 'lineage'?"),
        (["xyzzy"], "invalid choice: 'xyzzy'"),
    ],
)
def test_bad_usage_is_told_in_our_words(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, *arguments)


def test_the_bounds_of_the_options_are_the_protocols() -> None:
    def bounds(kind: Any) -> tuple[int, int]:
        return kind.__metadata__[0].ge, kind.__metadata__[0].le

    submit = get_type_hints(protocol.Submit, include_extras=True)
    assert bounds(protocol.Count) == COUNT
    assert bounds(protocol.Node) == bounds(submit["seed"]) == NATURAL
    assert bounds(submit["priority"]) == PRIORITIES


def test_names_and_scripts_are_also_json(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert tttctl(["runs", "--names", "--json"]) == tttctl(["tasks", "--names", "--json"]) == 0
    assert tttctl(["completion", "bash", "--json"]) == 0
    runs, tasks, script = map(json.loads, capsys.readouterr().out.splitlines())
    assert runs == ["first"] and tasks == ["erdos_min_overlap"]
    assert script["shell"] == "bash" and "_tttctl_runs" in script["script"]


def test_a_deep_artifact_is_told(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    runner = served.runner
    assert isinstance(runner, RunsToDraw)
    runner.keep(DEEP + b"]" * len(DEEP))
    assert tttctl(["best", "first", "--figure", "b.svg"]) == 1
    assert "the daemon's answer cannot be read: maximum recursion" in capsys.readouterr().err


def test_a_fault_of_ours_is_told_in_a_line(served: Served) -> None:
    program = "import sys, tttctl.client as c; c.default_socket = lambda: 1 / 0\n"
    program += "sys.argv = ['tttctl', 'runs']; from tttctl.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("tttctl: a fault of tttctl, please report it: ZeroDivisionError: division by zero (")
    assert done.stderr.count("\n") == 1
