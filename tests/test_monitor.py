"""The monitor's keys and mouse, each pressed for real, over a feed that answers at once."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual import events
from textual.geometry import Region
from textual.pilot import Pilot
from textual.widgets._footer import FooterKey
from textual.widgets._toast import Toast

from tests import fake_monitor as fake
from tttctl.client import Failed, run_path
from tttctl.monitor import dialogs, feed
from tttctl.monitor.app import Monitor
from tttctl.monitor.dialogs import Best, Confirm, Drawn, Text
from tttctl.monitor.panel import Panel, Reader
from tttdd import protocol
from tttdd.protocol import Error, Pause, Status

pytestmark = pytest.mark.anyio
HOSTILE = "\x1b]0;owned\x07\x9b31m[bold red]x[/]\u202egnp\u200b\ufeff\x00\x7f\r\x08\ud800界e\u0301\n[@click=app.quit]"
NAME = HOSTILE.replace("\ud800", "")
"""Of a run: what a URL can hold."""
HARM = set("\x1b\x07\x9b\u202e\u200b\ufeff\x00\x7f\r\x08\ud800")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def answers(changes: dict[str, Any]) -> dict[str, Any]:
    made = {
        "/v1/runs/erdos-long/best": fake.node(),
        "/v1/runs/erdos-long/nodes/4711/artifact": {"artifact": fake.step_heights()},
        "/v1/runs/packing-1/best": fake.node(node=9),
        "/v1/runs/packing-1/nodes/9/artifact": {"artifact": fake.packing()},
        "/v1/tasks": [fake.task()],
        "/v1/pause": fake.status(),
        "/v1/resume": fake.status(),
    }
    made |= {f"/v1/runs/erdos-long/{verb}": fake.run("erdos-long") for verb in ("pause", "resume", "cancel")}
    return made | changes


@asynccontextmanager
async def screen(
    status: Status | None = None, size: tuple[int, int] = (80, 24), changes: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Monitor, Pilot[None], fake.FakeClient]]:
    client = fake.FakeClient(answers(changes or {}))
    app = Monitor(fake.StillSource(client), status or fake.status(), "dark", clock=lambda: fake.NOW)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        yield app, pilot, client


def shown(app: Monitor, panel: str = "") -> str:
    """What a panel says, or all of them."""
    panels = [found for found in app.screen_stack[0].query(Panel) if found.region.area and panel in ("", found.id)]
    return "\n".join("".join(span.text for span in line) for found in panels for line in found.lines)


def read(app: Monitor) -> str:
    """What the dialog on top says."""
    return "\n".join(
        reader.render_line(y).crop(0, reader.scrollable_content_region.width).text.rstrip()
        for reader in app.screen.query(Reader)
        for y in range(reader.size.height)
    )


def said(app: Monitor) -> list[str]:
    return [str(notification.message) for notification in app._notifications]


async def test_all_panels_are_on_the_smallest_screen() -> None:
    async with screen() as (app, _, _):
        text = shown(app)
        for word in ("erdos-long", "step 13/50", "▶ sample 41s", "GPU 1", "284/512 judged", "183 ■ valid", "C5", "Log"):
            assert word in text
        for word in ("to 0.380876", "sampler–trainer gap", "KL to the base", "serving proof", "packing-2", "ETA 1h23m"):
            assert word in text


async def test_p_and_r_act_on_the_chosen_run_their_capitals_on_the_daemon() -> None:
    async with screen() as (app, pilot, client):
        await pilot.press("p", "r", "P", "R")
        await pilot.pause(0.1)
        paths = ["/v1/runs/erdos-long/pause", "/v1/runs/erdos-long/resume", "/v1/pause", "/v1/resume"]
        assert client.posted == list(zip(paths, [Pause(), None, Pause(), None], strict=True))
        assert said(app) == ["the daemon goes on"]  # only the newest, which covers no more than the keys
        assert app.screen.query_one(Toast).region.y == 23


async def test_c_asks_before_it_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogs, "READ_SECONDS", 0.0)  # test_monitor_keys.py has the wait
    async with screen() as (app, pilot, client):
        for keys in (["n"], ["escape"], ["enter"], ["q"]):
            await pilot.press("c")
            assert isinstance(app.screen, Confirm)
            await pilot.press(*keys)
            assert len(app.screen_stack) == 1 and not client.posted
        for keys in (["y"], ["right", "enter"]):
            await pilot.press("c", *keys)
        await pilot.pause()
        assert client.posted == [("/v1/runs/erdos-long/cancel", None)] * 2


async def test_enter_shows_the_chosen_runs_details() -> None:
    async with screen() as (app, pilot, _):
        await pilot.press("down", "down", "down", "enter")
        assert isinstance(app.screen, Text)
        assert "OSError: no space left" in read(app)
        await pilot.press("escape")
        assert len(app.screen_stack) == 1


async def test_b_shows_the_best_program_and_what_it_returned() -> None:
    async with screen(size=(120, 40)) as (app, pilot, _):
        await pilot.press("b")
        await pilot.pause()
        assert isinstance(app.screen, Best)
        text = read(app)
        assert "return best, overlap(best), POINTS" in text
        assert "120 heights" in text and "it printed" in text
        assert any("\u2801" <= char <= "\u28ff" for char in text)
        await pilot.press("b")
        assert len(app.screen_stack) == 1


async def test_the_best_program_scrolls() -> None:
    async with screen() as (app, pilot, _):
        await pilot.press("b")
        await pilot.pause()
        reader = app.screen.query(Reader).first()
        wrapped = "".join(line[3:] for line in read(app).splitlines()[:2])
        assert wrapped.replace(" ", "") == fake.PROGRAM.splitlines()[0].replace(" ", "")
        await pilot.press("end")
        await pilot.pause(0.3)
        assert reader.scroll_offset.y > 0
        assert "it printed" in read(app)
        await pilot.press("tab")
        assert app.focused is app.screen.query_one(Drawn)


async def test_t_lists_the_tasks() -> None:
    async with screen() as (app, pilot, _):
        await pilot.press("t")
        await pilot.pause()
        assert "Erdős minimum overlap" in read(app)


async def test_help_names_every_key_and_every_alarm() -> None:
    async with screen(size=(100, 60)) as (app, pilot, _):
        await pilot.press("question_mark")
        text = read(app)
        for binding in app.BINDINGS:
            key = binding.key.split(",")[0]  # pyright: ignore
            assert key == "ctrl+c" or NAMED.get(key, key) in text, key
        for word in ("sampler–trainer gap", "KL to the base", "serving proof", "rejected"):
            assert word in text


NAMED = {"slash": "/", "question_mark": "?", "down": "↓", "up": "↑", "escape": "esc"}


async def test_a_filter_narrows_the_queue_until_escape() -> None:
    async with screen() as (app, pilot, _):
        await pilot.press("slash", *"packing")
        assert "packing-2" in shown(app, "queue") and "erdos-frozen" not in shown(app, "queue")
        assert "/packing" in shown(app, "queue")
        await pilot.press("enter", "down", "enter")
        assert "packing-1" in read(app) or isinstance(app.screen, Text)
        await pilot.press("escape", "escape")
        assert "erdos-frozen" in shown(app, "queue")


async def test_keys_are_text_while_the_filter_is_written() -> None:
    async with screen() as (app, pilot, client):
        await pilot.press("slash", "q", "p", "c")
        assert app.is_running and not client.posted and app.seen.search == "qpc"
        assert "no run matches" in shown(app, "queue")
        await pilot.press("escape", "p")
        await pilot.pause()
        assert client.posted


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_q_quits(key: str) -> None:
    async with screen() as (app, pilot, _):
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running


async def test_arrows_choose_a_run() -> None:
    async with screen() as (app, pilot, _):
        for down, up in (("down", "up"), ("j", "k")):
            await pilot.press(down)
            assert app.seen.chosen == "packing-2"
            assert "Best of packing-2" in shown(app, "best")
            await pilot.press(up, up)
            assert app.seen.chosen == "erdos-long"


async def test_without_a_run_in_hand_the_newest_find_is_chosen() -> None:
    async with screen(fake.status(runs=fake.runs()[1:], current=None)) as (app, pilot, _):
        await pilot.press("enter")
        text = read(app)
        assert "finished" in text and "sum of radii 2.6203871" in text


async def test_a_dialog_that_waits_for_the_daemon_goes_where_that_refuses() -> None:
    async with screen(changes={"/v1/tasks": Failed(500, Error(error="no catalog"))}) as (app, pilot, _):
        await pilot.press("t")
        await pilot.pause()
        assert len(app.screen_stack) == 1 and said(app) == ["no catalog"]


async def test_a_terminal_that_is_too_small_says_so_and_only_q_acts() -> None:
    async with screen(size=(60, 15)) as (app, pilot, client):
        assert "the monitor wants 80x24; it has 60x15" in " ".join(shown(app).split())
        await pilot.press("p", "c", "slash", "enter")
        assert len(app.screen_stack) == 1 and not client.posted and not app.focused
        assert [key.description for key in app.screen.query(FooterKey)] == ["quit"]
        await pilot.resize_terminal(80, 24)
        await pilot.pause(0.2)
        assert "284/512 judged" in shown(app) and len(app.screen.query(FooterKey)) == 9
        await pilot.resize_terminal(60, 15)
        await pilot.press("q")
        assert not app.is_running


async def test_the_best_screens_title_has_objective_node_and_step_at_80_columns() -> None:
    async with screen(changes={"/v1/runs/packing-1/best": fake.node(node=123456, objective=2.6359830849)}) as made:
        app, pilot, _ = made
        await pilot.press("down", "down", "down", "down", "b")
        await pilot.pause()
        sheet = app.screen.query_one(".sheet")
        top = "".join(strip.text for strip in sheet.render_lines(Region(0, 0, 80, 1)))
        assert "sum of radii 2.635983085, node 123456, step 12 · packing-1" in top


async def test_d_turns_dark_to_light() -> None:
    async with screen() as (app, pilot, _):
        dark = app.looks["text"].bgcolor
        await pilot.press("d")
        assert app.looks["text"].bgcolor != dark and app.theme == "tttdd-light"
        await pilot.press("d")
        assert app.theme == "tttdd-dark"


async def test_a_click_chooses_a_run_and_another_shows_it() -> None:
    async with screen() as (app, pilot, _):
        await pilot.click("#queue", offset=(6, 2))
        assert app.seen.chosen == "packing-2"
        await pilot.resize_terminal(200, 60)
        await pilot.click("#queue", offset=(6, 3))
        assert app.seen.chosen == "erdos-frozen"
        await pilot.click("#queue", offset=(6, 3))
        assert isinstance(app.screen, Text)


async def test_a_click_on_the_footer_is_its_key() -> None:
    async with screen() as (_, pilot, client):
        await pilot.click("FooterKey")
        await pilot.pause()
        assert client.posted == [("/v1/runs/erdos-long/pause", Pause())]


async def test_the_wheel_moves_through_the_queue() -> None:
    async with screen() as (app, pilot, _):
        await pilot._post_mouse_events([events.MouseScrollDown], "#queue", button=0)
        assert app.seen.chosen == "packing-2"


async def test_what_the_daemon_refuses_is_said_and_harms_nothing() -> None:
    refused = Failed(409, Error(error="run 'erdos-long' is \x1b[31mfinished[/] already"))
    async with screen(changes={"/v1/runs/erdos-long/pause": refused}) as (app, pilot, _):
        await pilot.press("p")
        await pilot.pause()
        assert said(app) == ["run 'erdos-long' is \\x1b[31mfinished[/] already"]
        assert app.is_running


async def test_a_lost_daemon_is_told_until_it_is_back() -> None:
    async with screen() as (app, pilot, _):
        app.tell(feed.Lost("no daemon at /x"))
        await pilot.pause(0.1)
        assert "no connection" in shown(app, "banner") and "/x" in shown(app, "banner")
        app.tell(feed.Back())
        await pilot.pause(0.1)
        assert not shown(app, "banner")


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_no_text_steers_the_terminal_or_is_taken_for_markup(size: tuple[int, int]) -> None:
    status = hostile_status()
    node = fake.node(program=HOSTILE, output=HOSTILE, certificate={HOSTILE: HOSTILE})
    name = run_path(NAME, "/best")
    async with screen(status, size, {name: node, "/v1/tasks": [fake.task(HOSTILE)]}) as (app, pilot, _):
        for key in ("b", "enter", "c", "t", "p"):
            await pilot.press(key)
            await pilot.pause()
            assert app.is_running
            everything = "".join(segment.text for line in app.screen._compositor.render_strips() for segment in line)
            assert not HARM & set(everything)
            if key == "b":
                assert "[bold red]" in read(app)
            if key == "c":
                asked = app.screen.query_one(".question")
                words = "".join(strip.text for strip in asked.render_lines(asked.size.region))
                assert "[bold red]x[/]" in " ".join(words.split()) and "[@click=app.quit]" in words
            if key in ("b", "enter"):
                top = "".join(strip.text for strip in app.screen.query_one(".sheet").render_lines(Region(0, 0, 70, 1)))
                assert "[bold red]x[/]" in top
            if len(app.screen_stack) > 1:
                await pilot.press("escape")
        app.tell(feed.Lost(HOSTILE))
        await pilot.pause()
        assert not HARM & set(shown(app))


def hostile_status() -> Status:
    """Every text of a snapshot means harm."""
    words = {"run": NAME, "task": HOSTILE, "objective_name": HOSTILE, "state_dir": HOSTILE, "resumed_from": HOSTILE}
    run = msgspec.structs.replace(fake.run("x"), reason=HOSTILE, figure="", **words)
    gpu = fake.gpus(1)[0]
    held = [protocol.GpuProcess(pid=1, memory=None, owner=HOSTILE)]
    return fake.status(
        runs=[run],
        current=fake.current(run=run, preparing=HOSTILE),
        gpus=[msgspec.structs.replace(gpu, name=HOSTILE, processes=held)],
        log=[HOSTILE] * 30,
        notice=HOSTILE,
        config=HOSTILE,
        judges=protocol.JudgesInfo(level=HOSTILE, missing=[HOSTILE], parallel=1),
    )


async def test_it_survives_every_size() -> None:
    async with screen() as (app, pilot, _):
        for size in ((200, 60), (40, 10), (8, 3), (1, 1), (300, 20), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert "284/512 judged" in shown(app)


async def test_only_what_has_changed_is_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with screen() as (app, pilot, _):
        painted: list[tuple[str | None, int]] = []
        before = Panel.render_line

        def render_line(self: Panel, y: int) -> Any:
            painted.append((self.id, y))
            return before(self, y)

        monkeypatch.setattr(Panel, "render_line", render_line)
        cells = [list(row) for row in fake.current().cells]
        cells[3][0] = "best" if cells[3][0] != "best" else "valid"
        source = app._source
        assert isinstance(source, fake.StillSource)
        source.say(feed.Snapshot(), fake.status(current=fake.current(cells=cells)))
        await pilot.pause()
        assert {panel for panel, _ in painted} == {"grid"}
        assert ("grid", 4) in painted and ("grid", 7) not in painted


@pytest.mark.parametrize("arguments", [["monitor"], ["monitor", "--json"]])
async def test_without_a_terminal_it_names_what_to_use(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tttctl", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2
    assert "tttctl status" in done.stderr and "tttctl watch" in done.stderr


async def test_without_a_daemon_it_ends_with_3(tmp_path: Path) -> None:
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "tttctl", "monitor", "--socket", str(tmp_path / "none")]
    assert subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs).returncode == 3
    os.close(mine)
    os.close(theirs)
