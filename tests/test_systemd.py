"""The units, verified by systemd's own tools and run by a real systemd that is booted for it (tests/boot).

tttdd.socket listens -> a first connection starts tttdd.service -> READY=1 -> beats -> hang, kill -9, stop
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tiny_models import write_tiny_model
from tttdd import journal

ROOT = Path(__file__).resolve().parent.parent
UNITS = [ROOT / "systemd" / name for name in ("tttdd.service", "tttdd.socket")]
CANNOT = 77
"""Exit status of boot.sh on a machine that cannot boot a systemd."""


def tool(name: str) -> str:
    """Path of a systemd tool; skips the test on a machine without it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (apt-get install systemd systemd-container)")
    return path


def verify(*units: Path) -> str:
    """What systemd-analyze complains of.  It exits 0 on an unknown key, so only its words count."""
    command = [tool("systemd-analyze"), "--man=no", "verify", *units]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def test_the_units_are_valid_to_the_last_key() -> None:
    assert verify(*UNITS) == ""


def test_a_misspelt_key_would_be_noticed(tmp_path: Path) -> None:
    service = (tmp_path / "tttdd.service", tmp_path / "tttdd.socket")
    service[0].write_text(UNITS[0].read_text().replace("WatchdogSec=", "WatchdogSce="))
    service[1].write_text(UNITS[1].read_text())
    assert "WatchdogSce" in verify(*service)


def exposure(unit: Path, limit: float) -> bool:
    """Whether systemd-analyze counts no more than `limit` of 10."""
    command = [tool("systemd-analyze"), "security", "--offline=true", f"--threshold={round(limit * 10)}", unit]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_the_service_is_no_more_exposed_than_it_says(tmp_path: Path) -> None:
    service, told = (
        UNITS[0].read_text(),
        re.search(r"exposure level of ([\d.]+)", (ROOT / "systemd/README.md").read_text()),
    )
    assert told and exposure(UNITS[0], float(told.group(1)))
    weaker = tmp_path / "tttdd.service"
    weaker.write_text(service.replace("ProtectKernelModules=yes\n", ""))
    assert not exposure(weaker, float(told.group(1)))


def test_a_message_for_the_journal_has_its_priority_on_every_line() -> None:
    lines = journal.Lines("%(name)s: %(message)s")
    told = {logging.INFO: "6", logging.WARNING: "4", logging.ERROR: "3", logging.CRITICAL: "2", logging.DEBUG: "7"}
    for level, priority in told.items():
        record = logging.LogRecord("tttdd", level, "file", 1, "first\nsecond of %d", (2,), None)
        assert lines.format(record) == f"<{priority}>tttdd: first\n<{priority}>second of 2"


@pytest.mark.parametrize(("ours", "led"), [(True, "<3>tttdd: "), (False, "tttdd: ")])
def test_only_a_stream_of_the_journal_is_given_priorities(tmp_path: Path, ours: bool, led: str) -> None:
    read, write = os.pipe()
    node = os.fstat(write)
    environment = os.environ | {"JOURNAL_STREAM": f"{node.st_dev}:{node.st_ino if ours else node.st_ino + 1}"}
    command = [sys.executable, "-m", "tttdd", "--config", str(tmp_path / "none.toml")]
    with open(read) as reader:
        subprocess.run(command, stderr=write, env=environment, timeout=60)
        os.close(write)
        assert reader.read().startswith(led)


def test_the_account_is_made_by_sysusers(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    account = (ROOT / "systemd/tttdd.sysusers").read_text()
    command = [tool("systemd-sysusers"), f"--root={tmp_path}", "-"]
    subprocess.run(command, input=account, text=True, capture_output=True, check=True, timeout=60)
    assert "tttdd:x:" in (tmp_path / "etc/passwd").read_text()
    assert "tttdd:x:" in (tmp_path / "etc/group").read_text()


def test_a_daemon_started_by_its_socket_tells_the_manager_of_its_life(tmp_path: Path) -> None:
    address, words = tmp_path / "api.sock", tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(words))
        manager.settimeout(15)
        with started_by_socket(
            address, configuration(tmp_path), NOTIFY_SOCKET=str(words), WATCHDOG_USEC="400000"
        ) as pid:
            assert answer(address, "/v1/health")["status"] == "ok"
            assert heard(manager, b"READY=1")
            assert heard(manager, b"WATCHDOG=1")
            os.kill(pid, signal.SIGTERM)
            assert heard(manager, b"STOPPING=1")
    assert address.is_socket(), "the socket is the manager's: the daemon must leave it"


def configuration(folder: Path) -> Path:
    """The shipped CPU default with its state in `folder` and a socket that must not be used."""
    shipped = (ROOT / "etc/tttdd.cpu.toml").read_text()
    ours = f'[daemon]\nsocket = "{folder}/unused.sock"\nstate_dir = "{folder}/state"\ngroup = ""\n'
    path = folder / "tttdd.toml"
    path.write_text(re.sub(r"\[daemon\]\n(?:[^\[\n].*\n|\n)*", ours, shipped))
    return path


@contextmanager
def started_by_socket(address: Path, config: Path, **environment: str) -> Iterator[int]:
    """systemd-socket-activate in systemd's place; on a first connection it becomes the daemon, which must end well."""
    given = {"TTTDD_CONFIG": str(config), **environment}
    settings = [f"--setenv={name}={value}" for name, value in given.items()]
    command = [tool("systemd-socket-activate"), f"--listen={address}", *settings, sys.executable, "-m", "tttdd"]
    daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert daemon.stderr and daemon.stderr.readline().startswith("Listening")
        yield daemon.pid
        assert daemon.wait(15) == 0
    finally:
        daemon.kill()
        _, log = daemon.communicate()
        print(log)


def answer(address: Path, path: str) -> dict[str, str]:
    """GET `path` from the daemon at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(15)
        line.connect(str(address))
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: tttdd\r\nConnection: close\r\n\r\n".encode())
        reply = b"".join(iter(lambda: line.recv(65536), b""))
    return json.loads(reply.partition(b"\r\n\r\n")[2])


def heard(manager: socket.socket, word: bytes) -> bool:
    """Whether the daemon says `word` before it falls silent."""
    try:
        while word not in manager.recv(4096).split(b"\n"):
            pass
    except TimeoutError:
        return False
    return True


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What check.sh saw inside: its lines "name: value"."""
    script, model = ROOT / "tests/boot/boot.sh", write_tiny_model(tmp_path_factory.mktemp("boot") / "model")
    command = [script, sys.base_prefix, sysconfig.get_path("purelib"), model]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=110)
    if done.returncode == CANNOT:
        pytest.skip(f"no systemd can be booted here: {done.stdout.splitlines()[-1]}")
    seen = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line and line[:8] != "journal:")
    assert "\ndone:" in done.stdout, done.stdout + done.stderr
    return seen


def test_the_installed_units_are_valid(boot: dict[str, str]) -> None:
    assert boot["verify"] == ""
    assert boot["failed"] == ""


def test_what_the_readme_says_to_type_installs_and_enables_the_service(boot: dict[str, str]) -> None:
    assert "install_failed" not in boot
    assert boot["enabled"] == "0 enabled active"


def test_the_socket_is_there_before_the_daemon(boot: dict[str, str]) -> None:
    assert boot["idle"] == "inactive"
    assert boot["socket"] == "660 tttdd tttdd"


def test_a_first_connection_starts_the_daemon_and_is_answered(boot: dict[str, str]) -> None:
    assert json.loads(boot["status"])["version"]
    assert boot["started"] == "active tttdd"


def test_state_and_models_belong_to_the_daemon_alone(boot: dict[str, str]) -> None:
    assert boot["state"] == "750 tttdd tttdd"
    assert boot["cache"] == "750 tttdd tttdd"


def test_the_judges_keep_their_namespaces_under_the_hardening(boot: dict[str, str]) -> None:
    assert json.loads(boot["status"])["judges"]["level"] == "namespaces"


def test_a_program_is_really_judged_there(boot: dict[str, str]) -> None:
    verdict = json.loads(boot["judged"])
    assert verdict["valid"] and verdict["artifact_sha256"]
    assert verdict["objective"] == pytest.approx(0.486666666667)


def test_a_run_goes_to_its_end_there(boot: dict[str, str]) -> None:
    run = json.loads(boot["run"])
    assert (run["state"], run["step"], run["release"]) == ("finished", 1, 1), run["reason"]


def logged(boot: dict[str, str]) -> list[tuple[int, str]]:
    """Priority and message of each line in the journal that is not the manager's own."""
    lines = json.loads(f"[{boot['log'].rstrip(',')}]")
    return [(int(line["PRIORITY"]), line["MESSAGE"]) for line in lines if line["_UID"] != "0"]


def test_the_journal_tells_each_phase_of_a_run(boot: dict[str, str]) -> None:
    phases = [message.split(": ")[-1] for priority, message in logged(boot) if "tttdd.step: " in message]
    assert phases == ["publish", "prove", "sample", "train", "publish", "prove", "commit"]
    assert (6, "tttdd.step: step 1, release 0: sample") in logged(boot)
    assert (6, "tttdd.runner: run r: finished") in logged(boot)


def test_a_refused_configuration_is_an_error_in_the_journal_and_is_not_tried_again(boot: dict[str, str]) -> None:
    assert boot["refused"] == "1 failed 0 2"
    ((priority, message),) = [line for line in logged(boot) if "parralel" in line[1]]
    assert priority == 3
    assert "/etc/tttdd/tttdd.toml:" in message and "parallel" in message


def test_members_of_the_group_get_in_and_strangers_do_not(boot: dict[str, str]) -> None:
    assert boot["member"] == "0"
    assert boot["stranger"] != "0"


def test_a_daemon_that_beats_is_left_alone(boot: dict[str, str]) -> None:
    assert boot["beating"] == "0 active"


def test_a_daemon_that_hangs_is_started_again_by_the_watchdog(boot: dict[str, str]) -> None:
    assert boot["hung"] == "1 Watchdog timeout"


def test_a_daemon_that_is_killed_is_started_again(boot: dict[str, str]) -> None:
    assert boot["killed"] == "2 0"


def test_it_stops_in_time_and_leaves_no_process(boot: dict[str, str]) -> None:
    assert int(boot["stop_ms"]) < 10_000
    assert boot["stopped"] == "inactive success 0"
    assert len(boot["processes"].split()) >= 1
    assert "left" not in boot


def test_the_socket_outlives_the_daemon_and_wakes_it_again(boot: dict[str, str]) -> None:
    assert boot["socket_stays"] == boot["socket"]
    assert boot["again"] == "0 active"
