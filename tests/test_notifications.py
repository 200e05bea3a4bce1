"""The command that is told of a new best, a failure, an end: what it gets, and what it may do without harm."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from judges.text import printable
from tests.processes import alive
from tests.test_tracking import FakeStore
from tttdd import announce
from tttdd.announce import Announcer
from tttdd.config import Notify
from tttdd.ports import StoreError
from tttdd.protocol import Best, RunState

pytestmark = pytest.mark.anyio

RECORD = 'read -r told; echo "$told" >> $0.told; echo "$TTTDD_EVENT $TTTDD_RUN ${TTTDD_REWARD-}" >> $0.short'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "PACE_SECONDS", 0.001)
    monkeypatch.setattr(announce, "DRAIN_SECONDS", 0.05)


class Place:
    def __init__(self, state_dir: Path) -> None:
        self.store, self.state_dir = FakeStore(state_dir), state_dir
        self.script(RECORD)

    def script(self, *lines: str) -> None:
        self.command = self.state_dir / "tell-me"
        self.command.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        self.command.chmod(0o700)

    @asynccontextmanager
    async def announcing(self, *events: Any) -> AsyncGenerator[None]:
        settings = Notify(command=(str(self.command), "one  argument"))
        settings = Notify(command=settings.command, events=events) if events else settings
        announcer = Announcer(settings, self.store, self.store, self.state_dir, self.store.run)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(announcer.announce)
            await anyio.sleep(0.001)
            yield
            tasks.cancel_scope.cancel()

    def found(self, reward: float, step: int) -> None:
        self.store.change(best=Best(node=7, reward=reward, objective=-reward, step=step))

    def note(self) -> bytes:
        return (self.state_dir / "runs/r" / announce.NOTE).read_bytes()

    def short(self) -> list[str]:
        file = Path(f"{self.command}.short")
        return file.read_text().splitlines() if file.exists() else []

    async def told(self, *short: str) -> None:
        """Until exactly this is told, and some time more."""
        with anyio.move_on_after(10):
            while self.short() != [*short]:
                await anyio.sleep(0.01)
        await anyio.sleep(0.05)
        assert self.short() == [*short]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.005)


async def test_a_new_best_is_told_when_its_step_commits_and_an_end_when_it_comes(place: Place) -> None:
    async with place.announcing():
        place.store.submit()
        place.found(1.0, step=-1)  # the starter
        place.found(2.0, step=0)
        await place.told()
        place.store.commit()
        await place.told("best r 2.0")
        place.store.commit()
        place.found(3.0, step=2)
        place.store.commit()
        await place.told("best r 2.0", "best r 3.0")
        place.store.change(state="finished")
        await place.told("best r 2.0", "best r 3.0", "finished r 3.0")
    first = json.loads(Path(f"{place.command}.told").read_text().splitlines()[0])
    assert (first["event"], first["run"]["run"], first["run"]["best"]["objective"]) == ("best", "r", -2.0)


async def test_a_failure_is_told_with_its_reason_and_a_second_one_too(place: Place) -> None:
    place.script('echo "$TTTDD_EVENT $TTTDD_REASON" >> $0.short')
    async with place.announcing():
        place.store.submit()
        for reason in ("out of memory", "again; $(reboot)", f"a \0 null and a \ud800 half {'.' * 200_000}"):
            place.store.change(state="failed", reason=reason)
            passed = printable(reason)
            await until(lambda passed=passed: f"failed {passed}" in place.short())
            await until(lambda: b'"ended":["failed"' in place.note())
            place.store.change(state="running", reason="")
            await until(lambda: b'"ended":null' in place.note())
    assert len(place.short()) == 3


async def test_only_the_events_that_are_wanted_are_told(place: Place) -> None:
    async with place.announcing("failed"):
        place.store.submit()
        place.found(2.0, step=0)
        place.store.commit()
        place.store.change(state="failed")
        await place.told("failed r 2.0")


async def test_another_start_tells_nothing_twice_and_what_was_not_told(place: Place) -> None:
    async with place.announcing():
        place.store.submit()
        place.found(2.0, step=0)
        place.store.commit()
        await place.told("best r 2.0")
    place.store.change(state="finished")  # and the daemon was killed before it told
    for _ in range(2):
        async with place.announcing():
            await place.told("best r 2.0", "finished r 2.0")


@pytest.mark.parametrize("state", ["finished", "failed", "cancelled"])
async def test_what_had_ended_before_and_what_was_cancelled_is_not_told(place: Place, state: RunState) -> None:
    place.store.submit("old", state, step=1, best=Best(node=1, reward=2.0, objective=None, step=0))
    async with place.announcing():
        place.store.submit("new", "queued")
        place.store.change("new", state="cancelled")
        await place.told()


async def test_what_a_run_went_on_from_is_no_news(place: Place) -> None:
    async with place.announcing():
        best = Best(node=1, reward=2.0, objective=None, step=3)
        place.store.submit(step=5, first_step=5, best=best)
        place.store.commit()
        await place.told()


async def test_the_command_sees_no_secret_and_its_arguments_as_they_are(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    monkeypatch.setenv("SOME_LOGIN", "hunter2")
    place.script('env > $0.env; pwd >> $0.env; echo "$# $1" >> $0.short')
    async with place.announcing():
        place.store.submit()
        place.store.change(state="failed")
        await place.told("1 one  argument")
    seen = Path(f"{place.command}.env").read_text()
    names = {line.partition("=")[0] for line in seen.splitlines() if "=" in line}
    assert "hunter2" not in seen and seen.endswith("/\n")
    told = {"TTTDD_EVENT", "TTTDD_RUN", "TTTDD_TASK", "TTTDD_STEP", "TTTDD_STEPS", "TTTDD_REASON"}
    assert {name for name in names if name.startswith("TTTDD")} == told


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["echo no such channel >&2", "exit 3"], "ended with status 3: no such channel"),
        (["kill -9 $$"], "ended with status -9: it said nothing"),
        (["sleep 100"], "took longer than 0.5 s: it said nothing"),
        (["trap '' TERM INT", "echo stuck", "sleep 100"], "took longer than 0.5 s: stuck"),
        (["exec <&-", "head -c 5000000 /dev/zero | tr '\\0' x", "echo; echo the end", "exit 1"], "x | the end"),
        (["yes"], "took longer than 0.5 s: "),
    ],
)
async def test_a_command_that_fails_or_hangs_is_told_in_the_log_once(
    place: Place, lines: list[str], said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announce, "COMMAND_SECONDS", 0.5)
    place.script(*lines)
    async with place.announcing():
        place.store.submit()
        place.store.change(state="failed")
        await until(lambda: bool(caplog.messages))
        await anyio.sleep(0.1)
    (message,) = caplog.messages
    assert said in message and len(message) < announce.TAIL + 500
    assert message.startswith(f"notify: {place.command}, told of r failed, ")


async def test_what_a_command_says_never_steers_the_log(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.script(r"printf '\033]0;title\007one\n2026-01-01 ERROR forged\n'", "exit 3")
    async with place.announcing():
        place.store.submit()
        place.store.change(state="failed")
        await until(lambda: bool(caplog.messages))
    (message,) = caplog.messages
    assert message.endswith("ended with status 3: one | 2026-01-01 ERROR forged")


async def test_what_a_command_leaves_running_ends_with_it_and_holds_nothing_up(place: Place) -> None:
    place.script("sleep 100 &", "echo $! > $0.pid", "echo told >> $0.short")
    async with place.announcing():
        place.store.submit()
        began = time.monotonic()
        place.store.change(state="failed")
        await place.told("told")
        left = int(Path(f"{place.command}.pid").read_text())
        await until(lambda: not psutil.pid_exists(left) or not alive(psutil.Process(left)))
    assert time.monotonic() - began < 5


async def test_a_stop_ends_a_command_that_hangs_at_once(place: Place) -> None:
    place.script("echo $$ > $0.pid", "exec sleep 100")
    async with place.announcing():
        place.store.submit()
        place.store.change(state="failed")
        await until(lambda: Path(f"{place.command}.pid").exists())
        began = time.monotonic()
    assert time.monotonic() - began < 2
    assert [child for child in psutil.Process().children() if "sleep" in child.name()] == []


@pytest.mark.parametrize("text", ["", "no program\n"])
async def test_a_command_that_is_gone_or_is_no_program_is_told_in_the_log(
    place: Place, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    place.command.write_text(text)
    if not text:
        place.command.unlink()
    async with place.announcing():
        place.store.submit()
        place.store.change(state="failed")
        await until(lambda: bool(caplog.messages))
    assert "No such file" in caplog.text if not text else "Exec format error" in caplog.text


async def test_a_trouble_that_lasts_is_logged_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with place.announcing():
        place.store.broken = True
        for _ in range(5):
            place.store.submit()
            await anyio.sleep(0.01)
        place.store.broken = False
        place.store.change(state="failed")
        await place.told("failed r ")
    assert caplog.messages == [f"notify: {StoreError('the disk is gone')}"]
