"""Keys of one burst, as a slow terminal or tmux send-keys brings them: all wait before the first is acted upon."""

from __future__ import annotations

import pytest
from textual import events

from tests import fake_monitor as fake
from tests.test_monitor import read, screen, shown
from tttctl.monitor.app import Monitor
from tttctl.monitor.dialogs import Confirm, Text

pytestmark = pytest.mark.anyio
NAMED = {"\r": "enter", "\x1b": "escape", "\x7f": "backspace", "/": "slash", "?": "question_mark", "→": "right"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def burst(app: Monitor, keys: str) -> None:
    for key in keys:
        app.post_message(events.Key(NAMED.get(key, key), key if key.isprintable() and key != "→" else None))


@pytest.mark.parametrize("keys", ["/packing", "/xcy", "/cy", "/qqq", "/b?t", "/PRd"])
async def test_letters_behind_a_slash_are_text(keys: str) -> None:
    async with screen() as (app, pilot, client):
        burst(app, keys)
        await pilot.pause()
        assert app.seen.search == keys[1:] and f"/{keys[1:]}" in shown(app, "queue")
        assert app.is_running and len(app.screen_stack) == 1 and not client.posted and app.look == "dark"


async def test_keys_behind_the_filter_find_it_done() -> None:
    async with screen() as (app, pilot, client):
        burst(app, "/packinx\x7fg-1\r\r")
        await pilot.pause()
        assert app.seen.search == "packing-1" and isinstance(app.screen, Text) and "finished" in read(app)
        burst(app, "q/zzz\x1bp")
        await pilot.pause()
        assert app.seen.search == "" and client.posted == [("/v1/runs/erdos-long/pause", fake.protocol.Pause())]


@pytest.mark.parametrize("keys", ["cy", "c\r", "c→\r", "xcyyy"])
async def test_a_question_takes_no_yes_that_was_pressed_before_it_could_be_read(keys: str) -> None:
    async with screen() as (app, pilot, client):
        burst(app, keys)
        await pilot.pause()
        assert isinstance(app.screen, Confirm) and not client.posted


async def test_a_question_that_could_be_read_takes_a_yes() -> None:
    async with screen() as (app, pilot, client):
        await pilot.press("c")
        burst(app, "y\r")
        await pilot.pause()
        assert isinstance(app.screen, Confirm) and not client.posted
        await pilot.pause(0.6)
        burst(app, "y")
        await pilot.pause()
        assert client.posted == [("/v1/runs/erdos-long/cancel", None)] and len(app.screen_stack) == 1


async def test_no_is_taken_at_once() -> None:
    async with screen() as (app, pilot, client):
        burst(app, "cncqc\x1b")
        await pilot.pause()
        assert len(app.screen_stack) == 1 and app.is_running and not client.posted


@pytest.mark.parametrize("keys", ["?pc", "\rpcP", "bpcR", "tpcd", "?/p", "t/p"])
async def test_keys_behind_one_that_opens_a_dialog_are_the_dialogs(keys: str) -> None:
    async with screen() as (app, pilot, client):
        burst(app, keys)
        await pilot.pause()
        assert len(app.screen_stack) == 2 and not client.posted and not app.seen.search and app.look == "dark"
        await pilot.press("escape", "p")
        assert client.posted


async def test_a_dialog_that_was_left_before_its_answer_came_stays_away() -> None:
    async with screen() as (app, pilot, client):
        burst(app, "bqtq")
        await pilot.pause()
        assert app.is_running and len(app.screen_stack) == 1
        burst(app, "p")
        await pilot.pause()
        assert client.posted
