"""What is Docker's own of the level `docker`; the attacks are those of every level (test_sandbox.py)."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from errno import EACCES
from io import BytesIO
from pathlib import Path
from typing import Any

import docker.errors as docker_errors
import pytest

from judges.sandbox import Entry, JudgeDied, Limits, Outcome, contained
from judges.sandbox.client import ENVIRONMENT
from judges.sandbox.docker import DEFAULT_IMAGE, DockerSandbox
from judges.sandbox.engine import LABEL, RIGHTS
from tests.engine_line import EngineLine

ENTRY = Entry("run")
PATIENT = Limits(wall_seconds=30.0, cpu_seconds=10)
MUTE = "def run(): return 1"
SPIN = "while True: pass"


@pytest.fixture(scope="module")
def sandbox(docker_engine: Any) -> Iterator[DockerSandbox]:
    with DockerSandbox() as started:
        yield started


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What `condition` gives, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return found


def containers(engine: Any, **filters: str) -> list[str]:
    return [each["Id"] for each in engine.containers(all=True, filters={"label": LABEL, **filters})]


def runs_a_program(engine: Any, number: str) -> bool:
    try:
        return any(user.startswith("607") for user, *_ in engine.top(number, "-eo uid,pid")["Processes"] or [])
    except docker_errors.APIError:  # it is gone
        return False


def in_background(action: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def while_it_runs(sandbox: DockerSandbox, engine: Any, program: str, action: Callable[[str], None]) -> Outcome:
    """`action` gets the container's id once it runs."""
    before = containers(engine)

    def started() -> list[str]:
        return [number for number in containers(engine, status="running") if number not in before]

    actor = in_background(lambda: action(until(started)[0]))
    try:
        return sandbox.run(program, ENTRY, PATIENT)
    finally:
        actor.join()


def test_every_limit_is_the_engines_too(docker_engine: Any) -> None:
    found: dict[str, Any] = {}
    sleep = "import time\ndef run(): time.sleep(0.7)"
    with DockerSandbox(runtime="io.containerd.runc.v2") as sandbox:
        while_it_runs(
            sandbox, docker_engine, sleep, lambda number: found.update(docker_engine.inspect_container(number))
        )
    host, own = found["HostConfig"], found["Config"]
    assert (host["NetworkMode"], host["IpcMode"], host["Runtime"]) == ("none", "none", "io.containerd.runc.v2")
    assert (host["ReadonlyRootfs"], host["AutoRemove"], host["LogConfig"]["Type"]) == (True, True, "none")
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], RIGHTS, False)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert PATIENT.memory_bytes < host["Memory"] == host["MemorySwap"] < PATIENT.memory_bytes + (256 << 20)
    assert (host["NanoCpus"], host["PidsLimit"]) == (10**9, PATIENT.threads + 16)
    assert list(host["Tmpfs"]) == ["/scratch"] and host["Binds"] is None and "noexec" in host["Tmpfs"]["/scratch"]
    assert f"size={PATIENT.files_bytes}," in host["Tmpfs"]["/scratch"]
    assert LABEL in own["Labels"] and set(own["Env"]) == {f"{name}={value}" for name, value in ENVIRONMENT.items()}


INSIDE = """
import os
def code(action):
    try: action()
    except OSError as error: return error.errno
    return 0
def run():
    print(open('/proc/self/status').read())
    streams = [f'/proc/1/fd/{n}' for n in (0, 1, 2)]
    return [os.getuid(), os.getgid(), os.getgroups(), [code(lambda: os.open(each, os.O_RDWR)) for each in streams]]
"""


def test_a_program_has_a_user_of_its_own_no_rights_and_no_way_to_process_1(sandbox: DockerSandbox) -> None:
    outcome = sandbox.run(INSIDE, ENTRY, PATIENT)
    user = contained.FIRST_USER
    assert outcome.result == f"R[{user}, {user}, [], [{EACCES}, {EACCES}, {EACCES}]]".encode(), outcome
    rights = [line.split()[1] for line in outcome.output.decode().splitlines() if line.startswith("Cap")]
    assert {int(each, 16) for each in rights[:3]} == {0}, "inheritable, permitted, effective"


def test_a_killed_client_leaves_no_container(docker_engine: Any) -> None:
    code = (
        "from judges.sandbox import *\nfrom judges.sandbox.docker import DockerSandbox\n"
        f"DockerSandbox().run({SPIN!r}, Entry('run'), Limits(wall_seconds=100.0, cpu_seconds=100))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as client:
        try:
            until(lambda: any(runs_a_program(docker_engine, number) for number in containers(docker_engine)))
        finally:
            client.kill()
    until(lambda: not containers(docker_engine))


def test_what_a_client_made_and_never_started_is_swept_by_the_next(
    docker_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker_engine.create_container(DEFAULT_IMAGE, labels={LABEL: ""})
    with DockerSandbox():
        assert containers(docker_engine, status="created"), "it may be about to start"
    monkeypatch.setattr("judges.sandbox.engine.ABANDONED_SECONDS", -1.0)
    with DockerSandbox():
        assert not containers(docker_engine, status="created")


def test_an_image_that_is_missing_or_stale_is_refused_with_the_command_that_builds_it(
    docker_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JudgeDied, match=r"no judges' image .*docker build -t nowhere:1 /.*judges"):
        DockerSandbox("nowhere:1").start()
    monkeypatch.setattr(contained, "sources", lambda: "others")
    with pytest.raises(JudgeDied, match=f"other code than this daemon.*docker build -t {DEFAULT_IMAGE} /.*judges"):
        DockerSandbox().start()


def test_an_image_that_is_built_anew_is_found_by_a_daemon_that_runs(docker_engine: Any) -> None:
    def build(generation: int) -> None:
        text = f"FROM {DEFAULT_IMAGE}\nLABEL generation={generation}\n"
        list(docker_engine.build(fileobj=BytesIO(text.encode()), tag="tttdd-judge:test"))

    build(1)
    with DockerSandbox("tttdd-judge:test") as sandbox:
        docker_engine.remove_image("tttdd-judge:test", force=True)
        for words in ("No such image", "no judges' image"):
            with pytest.raises(JudgeDied, match=words):
                sandbox.run(MUTE, ENTRY, PATIENT)
        build(2)
        assert sandbox.run(MUTE, ENTRY, PATIENT).result == b"R1"
    until(lambda: not containers(docker_engine))
    docker_engine.remove_image("tttdd-judge:test")


def test_a_runtime_that_the_engine_does_not_know_is_named(docker_engine: Any) -> None:
    with pytest.raises(JudgeDied, match="nonesuch"):
        DockerSandbox(runtime="nonesuch").start()
    assert not containers(docker_engine, status="created")


def test_a_container_killed_by_others_is_no_fault_of_the_program(sandbox: DockerSandbox, docker_engine: Any) -> None:
    with pytest.raises(JudgeDied):
        while_it_runs(sandbox, docker_engine, SPIN, docker_engine.kill)
    assert sandbox.run(MUTE, ENTRY, PATIENT).result == b"R1"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the SDK's sockets and files, when nobody answers
def test_an_engine_that_stops_is_told_and_used_again_when_it_is_back(
    docker_engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EngineLine(os.environ["DOCKER_HOST"], tmp_path / "engine") as line:
        monkeypatch.setenv("DOCKER_HOST", line.url)
        with DockerSandbox() as sandbox:
            with pytest.raises(JudgeDied):
                while_it_runs(sandbox, docker_engine, SPIN, lambda _: line.cut())
            for _ in range(2):
                with pytest.raises(JudgeDied):
                    sandbox.run(MUTE, ENTRY, PATIENT)
            until(lambda: not containers(docker_engine))
            line.join()
            assert sandbox.run(MUTE, ENTRY, PATIENT).result == b"R1"
    gc.collect()


def test_memory_that_the_engine_takes_back_is_the_programs_end_and_said_so(
    sandbox: DockerSandbox, docker_engine: Any
) -> None:
    """A limit that a program reaches within its address space: the container's, made smaller while it runs."""
    greedy = "import time\ndef run():\n time.sleep(2)\n return len(bytearray(b'x') * (600 << 20))"
    small = 100 << 20
    outcome = while_it_runs(
        sandbox,
        docker_engine,
        greedy,
        lambda number: docker_engine.update_container(number, mem_limit=small, memswap_limit=small),
    )
    assert (outcome.out_of_memory, os.WTERMSIG(outcome.wait_status)) == (True, signal.SIGKILL)


def test_many_programs_run_at_once_and_their_start_is_not_their_time(
    sandbox: DockerSandbox, docker_engine: Any
) -> None:
    outcomes: list[Outcome] = []
    begun = time.monotonic()
    threads = [in_background(lambda: outcomes.append(sandbox.run(MUTE, ENTRY, PATIENT))) for _ in range(8)]
    for thread in threads:
        thread.join()
    assert [outcome.result for outcome in outcomes] == [b"R1"] * 8
    assert sum(outcome.seconds for outcome in outcomes) / 8 < (time.monotonic() - begun) / 2
    until(lambda: not containers(docker_engine))


def test_closing_ends_what_runs(docker_engine: Any) -> None:
    sandbox = DockerSandbox()
    with pytest.raises(JudgeDied):
        while_it_runs(sandbox, docker_engine, SPIN, lambda _: sandbox.close())
    until(lambda: not containers(docker_engine))


def test_the_docs_name_the_image_that_is_looked_for() -> None:
    page = Path(__file__).parent.parent / "docs/judges.md"
    assert f"docker build -t {DEFAULT_IMAGE} judges\n" in page.read_text()
