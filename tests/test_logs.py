"""A run's logs over the real API: parts by byte, rotation, names that are none; and `tttctl logs` that follows them."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fake_daemon import Served, serving

from tttctl.__main__ import run as tttctl
from tttctl.client import Client, Failed
from tttctl.verbs import logs as verb
from tttdd.api import logs
from tttdd.log_protocol import LogPart
from tttdd.protocol import RunState, Submit


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("daemon") / "s") as served:
        yield served


@pytest.fixture
def served(daemon: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """With one run, whose folder is this test's; what earlier tests made the daemon say is still there."""
    monkeypatch.setenv("TTTDD_SOCKET", str(daemon.socket))
    daemon.runner.state_dir = str(tmp_path)
    daemon.runner.by_name.clear()
    daemon.runner.submit(Submit(task="erdos_min_overlap", name="first"))
    (tmp_path / "runs/first/logs").mkdir(parents=True)
    return daemon


@pytest.fixture
def folder(served: Served, tmp_path: Path) -> Path:
    return tmp_path / "runs/first/logs"


def part(served: Served, **query: Any) -> LogPart:
    return Client(str(served.socket)).get(f"/v1/runs/first/logs?{urlencode(query)}", LogPart)


def after(served: Served, before: LogPart) -> LogPart:
    return part(served, source=before.source, offset=before.offset, file=before.file)


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_a_log_is_read_on_from_the_byte_where_the_part_before_ended(served: Served, folder: Path) -> None:
    log = folder / "engine.log"
    log.write_text("é\n")
    first = part(served, source="engine.log")
    assert (first.text, first.start, first.offset, first.sources) == ("é\n", 0, 3, ["daemon", "engine.log"])
    assert after(served, first).text == ""
    append(log, "more\n")
    assert after(served, first).text == "more\n"


def test_an_answer_is_bounded_and_the_parts_make_the_whole(
    served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PART_BYTES", 10)
    whole = "".join(f"line {number} é\n" for number in range(20))
    (folder / "engine.log").write_text(whole)
    parts = [part(served, source="engine.log")]
    while parts[-1].text:
        parts.append(after(served, parts[-1]))
    assert "".join(each.text for each in parts) == whole, "no character is broken where a part ends"
    assert max(len(each.text.encode()) for each in parts) <= 10


def test_an_offset_from_the_end_begins_with_a_whole_line(served: Served, folder: Path) -> None:
    (folder / "engine.log").write_text("first\nsecond\nthird\n")
    assert part(served, source="engine.log", offset=-9).text == "third\n"
    assert part(served, source="engine.log", offset=-900).text == "first\nsecond\nthird\n"


def test_a_log_that_was_set_aside_is_read_to_its_end_before_the_new_one(served: Served, folder: Path) -> None:
    log = folder / "engine.log"
    log.write_text("old\n")
    first = part(served, source="engine.log")
    append(log, "last words\n")
    log.rename(folder / "engine.log.1")
    log.write_text("a new log that is longer than the old one was\n")
    second = after(served, first)
    assert second.text == "last words\n"
    assert after(served, second).text == log.read_text()


def test_a_log_that_ended_inside_a_character_holds_nobody_up(served: Served, folder: Path) -> None:
    log = folder / "engine.log"
    log.write_bytes(b"killed \xe2\x82")
    first = part(served, source="engine.log")
    assert first.text == "killed "
    log.rename(folder / "engine.log.1")
    log.write_text("a new log\n")
    second = after(served, first)
    assert (second.text, after(served, second).text) == ("\ufffd", "a new log\n")


def test_a_log_that_was_just_set_aside_is_not_missed(served: Served, folder: Path) -> None:
    log = folder / "engine.log"
    log.write_text("old\n")
    first = part(served, source="engine.log")
    log.rename(folder / "engine.log.1")
    assert after(served, first).text == ""


def test_a_log_that_became_shorter_is_read_from_its_start(served: Served, folder: Path) -> None:
    log = folder / "engine.log"
    log.write_text("a long line\n")
    first = part(served, source="engine.log")
    log.write_text("short\n")
    assert after(served, first).text == "short\n"


def test_bytes_that_are_no_text_are_replaced(served: Served, folder: Path) -> None:
    (folder / "engine.log").write_bytes(b"a\xff\xfeb\n\x1b[2J\n")
    assert part(served, source="engine.log").text == "a\ufffd\ufffdb\n\x1b[2J\n"


@pytest.mark.parametrize(
    "source",
    ["../../../secret", "/etc/passwd", "link.log", ".", "", "folder", "secret\x00", "engine.log/../engine.log"],
)
def test_only_the_runs_own_files_are_read(served: Served, folder: Path, tmp_path: Path, source: str) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "link.log").symlink_to(tmp_path / "secret")
    (folder / "folder").mkdir()
    (folder / "engine.log").write_text("x")
    with pytest.raises(Failed, match=r"it has: daemon, engine\.log") as refused:
        part(served, source=source)
    assert refused.value.status == 404


def test_a_file_that_has_just_become_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        logs._opened(tmp_path / "link")


def test_the_logs_of_no_run_are_a_404(served: Served) -> None:
    with pytest.raises(Failed, match="no run 'nobody'"):
        Client(str(served.socket)).get("/v1/runs/nobody/logs", LogPart)


def record(served: Served, text: str) -> None:
    served.recent.handle(logging.LogRecord("tttdd.x", logging.INFO, "", 1, text, (), None))


def test_the_daemons_own_lines_keep_their_place_when_older_ones_are_forgotten(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(served, "one")
    first = part(served)
    assert first.text.endswith(" INFO one\n")
    monkeypatch.setattr(logs, "KEPT_BYTES", 100)
    for number in range(30):
        record(served, f"more {number}")
    second = after(served, first)
    assert second.start > first.offset
    assert second.text.endswith("more 29\n")
    assert second.start + len(second.text.encode()) == second.offset
    assert part(served, offset=5, file="another daemon's").text == second.text


def out(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert tttctl(["logs", "first", *arguments]) == 0
    return capsys.readouterr().out


def test_one_log_is_shown_as_it_is_and_several_with_their_names(
    served: Served, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "engine.log").write_text("one\r\ntwo\nthree")
    (folder / "trainer.log").write_text("four\n")
    (folder / "trainer.log.1").write_text("long ago\n")
    assert out(capsys, "--source", "engine.log") == "one\ntwo\nthree\n"
    assert out(capsys, "--source", "engine.log", "-n", "2") == "two\nthree\n"
    assert out(capsys, "--source", "trainer.log.1") == "long ago\n"
    record(served, "hello")
    lines = out(capsys).splitlines()
    said = [line for line in lines if line.startswith("daemon      | ")]
    assert said[-1].endswith("hello")
    assert lines[len(said) :] == [f"engine.log  | {word}" for word in ("one", "two", "three")] + ["trainer.log | four"]
    assert json.loads(out(capsys, "--json", "--source", "trainer.log")) == {
        "run": "first",
        "logs": [{"source": "trainer.log", "text": "four\n"}],
    }


def test_what_cannot_be_shown_is_refused(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert tttctl(["logs", "first", "-n", "-1"]) == tttctl(["logs", "first", "--source", "engine.log"]) == 2
    said = capsys.readouterr().err
    assert "a count of lines is 0 or more" in said and "has no log 'engine.log' (it has: daemon)" in said


def test_following_as_json_is_a_document_a_line(
    served: Served, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "engine.log").write_text("one\x1b\ntwo")
    served.runner.become("first", "finished")
    lines = [json.loads(line) for line in out(capsys, "-f", "--json").splitlines()]
    assert [line for line in lines if line["source"] != "daemon"] == [
        {"source": "engine.log", "line": "one\x1b"},
        {"source": "engine.log", "line": "two"},
    ]


def test_the_newest_lines_are_found_in_a_long_log(
    served: Served, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"line {number} {'x' * number}" for number in range(300)]
    (folder / "engine.log").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(verb, "LINE_BYTES", 10)
    monkeypatch.setattr(logs, "PART_BYTES", 1000)
    assert out(capsys, "--source", "engine.log", "-n", "100").splitlines() == lines[-100:]
    assert out(capsys, "--source", "engine.log", "-n", "1000").splitlines() == lines
    assert out(capsys, "--source", "engine.log", "-n", "0") == ""


def test_what_a_log_says_never_steers_the_terminal(
    served: Served, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "e\x1b[2Jvil.log").write_bytes(b"\x1b[31mred\x1b[0m \x1b]0;owned\x07 \xe2\x80\xae 50%\r100%\n")
    (folder / "other.log").touch()
    text = out(capsys)
    assert "e\\x1b[2Jvil.log | red \\x1b]0;owned\\x07 \\u202e 50%\n" in text, "colours are left out"
    assert "e\\x1b[2Jvil.log | 100%\n" in text
    assert not set(text) & set("\x1b\x07\r\u202e")


def until(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said until all of them are."""
    said, deadline = "", time.monotonic() + 20
    while not all(word in said for word in words):
        assert time.monotonic() < deadline, said
        said += capsys.readouterr().out
        time.sleep(0.02)
    return said


def test_following_goes_on_over_a_rotation_and_ends_with_the_run(
    served: Served, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "POLL_SECONDS", 0.02)
    log = folder / "engine.log"
    log.write_text("one\n")

    following = threading.Thread(target=lambda: tttctl(["logs", "first", "-f"]))
    following.start()
    said = until(capsys, "one")
    append(log, "two\nthr")
    log.rename(folder / "engine.log.1")
    log.write_text("ee\n")
    (folder / "trainer.log").write_text("begun\n")
    said += until(capsys, "ee", "begun")
    append(log, "last")
    served.runner.become("first", "failed", "because")
    following.join(20)
    said += capsys.readouterr().out
    lines = [re.split(r" +\| ", line) for line in said.splitlines()]
    assert [text for name, text in lines if name == "engine.log"] == ["one", "two", "thr", "ee", "last"]
    assert [text for name, text in lines if name == "trainer.log"] == ["begun"]


def test_following_outlives_a_restart_of_the_daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTTDD_SOCKET", str(tmp_path / "s"))
    monkeypatch.setattr(verb, "POLL_SECONDS", 0.02)
    ended: list[int] = []
    following = threading.Thread(target=lambda: ended.append(tttctl(["logs", "first", "-f"])))
    turns: list[tuple[str, RunState]] = [("before", "running"), ("after", "finished")]
    for line, state in turns:
        with serving(tmp_path / line) as served:
            served.runner.submit(Submit(task="erdos_min_overlap", name="first"))
            served.runner.become("first", state)
            record(served, line)
            (tmp_path / "s").unlink(missing_ok=True)
            (tmp_path / "s").symlink_to(tmp_path / line)  # a daemon knows its runs before it listens
            if state == "running":
                following.start()
                while line not in (text := capsys.readouterr().out):
                    time.sleep(0.02)
            else:
                following.join(20)
                text = capsys.readouterr().out
            assert text.count(line) == 1
    assert ended == [0]


def test_an_interrupted_follower_is_exit_status_130(served: Served, folder: Path) -> None:
    (folder / "engine.log").write_text("one\n")
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-m", "tttctl", "logs", "first", "-f", "--source", "engine.log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=heard, env=os.environ) as following:
        assert following.stdout is not None and following.stdout.readline() == b"one\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 130
