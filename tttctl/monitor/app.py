"""The monitor as Textual sees it: news into `Seen`, `Seen` into the panels, keys into questions to the daemon.

    Feed.tell -> Heard -> Seen -> views.panel -> Panel.show        once for each snapshot, and every second

Nothing here waits for the daemon: all calls are the feed's.  All keys but those that scroll a text act by bindings
with priority, in the order in which they were pressed: others act after what was pressed behind them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar

import msgspec
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.notifications import SeverityLevel
from textual.widgets import Footer

from tttctl.client import Client, run_path
from tttctl.monitor import best, feed, pages, palette, views
from tttctl.monitor.dialogs import Asking, Best, Confirm, Dialog, Text
from tttctl.monitor.filter import Filter
from tttctl.monitor.keys import ACTIONS, BINDINGS, WITH_FILTER
from tttctl.monitor.panel import Dashboard, Panel, styles, theme
from tttctl.monitor.plan import PANELS, narrow, plan, roomy
from tttctl.monitor.queue import window
from tttctl.monitor.seen import Seen, lost, moved, told
from tttctl.monitor.text import one_line, visible
from tttdd.protocol import Pause, RunInfo, Status, TaskInfo

ROWS_RETRY_SECONDS = 5.0
SAID_SECONDS = 3.0
REFUSED_SECONDS = 8.0


class Heard(Message):
    """News, brought into the app's own thread."""

    def __init__(self, news: feed.News) -> None:
        super().__init__()
        self.news = news


class Monitor(App[None]):
    TITLE = "tttctl monitor"
    CSS_PATH = "style.tcss"
    AUTO_FOCUS = ""
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = BINDINGS

    def __init__(
        self, source: feed.Source, first: Status | None, look: str, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self._source, self._clock = source, clock
        self.seen = Seen() if first is None else told(Seen(), first, clock())
        self._asked_rows: dict[str, tuple[int, float]] = {}
        self.pressed = 0.0
        """When the key was pressed that acts now (monotonic)."""
        self._filter = Filter()
        self._panels = {name: Panel(name) for name in PANELS}
        self._dashboard = Dashboard(list(self._panels.values()))
        for name in palette.PALETTES:
            self.register_theme(theme(name))
        self.look = look
        self.looks = styles(look)
        self.theme = f"tttdd-{look}"

    def compose(self) -> ComposeResult:
        yield self._dashboard
        yield self._filter
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self._source.start(self.tell)
        self.watch(self._filter, "value", self._searched, init=False)
        self.set_interval(1.0, self.redraw)
        self.redraw()

    def on_dashboard_resized(self) -> None:
        self.redraw()
        self.refresh_bindings()

    def on_unmount(self) -> None:
        self._source.stop()

    def tell(self, news: feed.News) -> None:
        """From any thread; what comes after the end is not heard."""
        with suppress(RuntimeError):
            self.post_message(Heard(news))

    # What is heard

    def on_heard(self, message: Heard) -> None:
        match message.news:
            case feed.Snapshot():
                if (status := self._source.take()) is not None:
                    self.seen = told(self.seen, status, self._clock())
            case feed.Back():
                self.seen = msgspec.structs.replace(self.seen, lost="")
            case feed.Lost(why):
                self.seen = lost(self.seen, why, self._clock())
            case feed.Rows(run, rows):
                if rows is not None:
                    self.seen = msgspec.structs.replace(self.seen, steps=self.seen.steps | {run: rows})
            case feed.Answer(then, value):
                then(value)
            case feed.Refused(why):
                if isinstance(self.screen, Asking):
                    self.screen.dismiss()
                self._say(why, REFUSED_SECONDS, "error")
        self.redraw()

    def redraw(self) -> None:
        needs = views.needs(self.seen)
        self._dashboard.fit(needs)
        size, now = self._dashboard.size, self._clock()
        for name, place in plan(size.width, size.height, needs).items():
            self._panels[name].show(views.panel(name, self.seen, now, place, roomy(size.width, size.height)))
        self._want_rows(now)

    def _want_rows(self, now: float) -> None:
        """Ask for the steps of the runs on the screen when there are more than are known, and then again later."""
        shown, current = self.seen.shown(), self.seen.current
        for run in filter(None, (shown, current.run if current else None)):
            step, asked = self._asked_rows.get(run.run, (-1, 0.0))
            known = run.run in self.seen.steps and len(self.seen.rows(run.run)) >= run.step - run.first_step
            if step != run.step or (not known and now - asked > ROWS_RETRY_SECONDS):
                self._asked_rows[run.run] = (run.step, now)
                self._source.rows(run.run)

    # Keys and clicks

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded:
            self.pressed = event.time
            if event.is_printable and event.character and self.focused is self._filter:
                self._filter.type_in(event.character)
                return
        await super().on_event(event)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The dashboard's keys are neither a dialog's nor the filter's; where it has no room, only `q` is left."""
        if action not in ACTIONS:
            return True
        if len(self.screen_stack) > 1:
            return False
        if narrow(*self._dashboard.size):
            return action == "end"
        return action in WITH_FILTER or self.focused is not self._filter

    def on_panel_clicked(self, event: Panel.Clicked) -> None:
        if event.panel != "queue":
            return
        edge = self._panels["queue"].size.height - (2 if self._boxed else 1)
        row = event.row - 1
        runs = window(self.seen, edge)
        if not 0 <= row < len(runs):
            return
        shown = self.seen.shown()
        again = shown is not None and shown.run == runs[row].run
        self.seen = msgspec.structs.replace(self.seen, chosen=runs[row].run)
        self.redraw()
        if again:
            self.action_details()

    @property
    def _boxed(self) -> bool:
        return roomy(*self._dashboard.size)

    def on_panel_scrolled(self, event: Panel.Scrolled) -> None:
        if event.panel == "queue":
            self.action_move(event.by)

    def action_move(self, by: int) -> None:
        self.seen = moved(self.seen, by)
        self.redraw()

    action_walk = action_move  # of a letter, which is text while the filter is written
    action_end = App[None].action_quit  # of another, that leaves ctrl+c alone

    def action_pause(self) -> None:
        self._change("pause", Pause(), "asked to pause")

    def action_resume(self) -> None:
        self._change("resume", None, "asked to go on")

    def action_cancel(self) -> None:
        if run := self._chosen():
            question = (
                f"Cancel {one_line(run.run)}? It ends where it is, at step {run.step} of {run.steps}, and cannot go on."
            )
            self.push_screen(Confirm(question, "cancel it", "keep it"), partial(self._cancel, run.run))

    def _cancel(self, name: str, sure: bool | None) -> None:
        if sure:
            self._post(name, "cancel", None, f"{name}: asked to cancel")

    def action_pause_all(self) -> None:
        self._source.ask(
            lambda client: client.post("/v1/pause", Pause(), Status), lambda _: self._say("the daemon pauses")
        )

    def action_resume_all(self) -> None:
        self._source.ask(
            lambda client: client.post("/v1/resume", None, Status), lambda _: self._say("the daemon goes on")
        )

    def _change(self, verb: str, body: msgspec.Struct | None, done: str) -> None:
        if run := self._chosen():
            self._post(run.run, verb, body, f"{run.run}: {done}")

    def _post(self, run: str, verb: str, body: msgspec.Struct | None, done: str) -> None:
        self._source.ask(
            lambda client: client.post(run_path(run, f"/{verb}"), body, RunInfo), lambda _: self._say(done)
        )

    def _chosen(self) -> RunInfo | None:
        run = self.seen.shown()
        if run is None:
            self._say("no run is chosen")
        return run

    def _say(self, text: str, seconds: float = SAID_SECONDS, severity: SeverityLevel = "information") -> None:
        """One at a time: more would cover what is below."""
        self.clear_notifications()
        self.notify(visible(text), severity=severity, markup=False, timeout=seconds)

    def _show(self, call: Callable[[Client], feed.Value], made: Callable[[feed.Value], Dialog]) -> None:
        """A dialog of what is asked for; until that has come, keys are for none but it."""
        asking = Asking()

        def show(value: feed.Value) -> None:
            if self.screen is asking:
                asking.dismiss()
                self.push_screen(made(value))

        self.push_screen(asking)
        self._source.ask(call, show)

    def action_details(self) -> None:
        if run := self._chosen():
            rows = self.seen.rows(run.run)
            state = self.seen.state(run)
            self.push_screen(Text(run.run, lambda width: pages.details(run, state, rows, width)))

    def action_best(self) -> None:
        if run := self._chosen():
            self._show(lambda client: best.fetch(client, run), partial(_best, run))

    def action_tasks(self) -> None:
        self._show(
            lambda client: client.get("/v1/tasks", list[TaskInfo]),
            lambda found: Text("tasks", partial(pages.tasks, found)),
        )

    def action_help(self) -> None:
        self.push_screen(Text("tttctl monitor", pages.help_lines))

    def action_turn(self) -> None:
        """Dark to light, and back."""
        self.look = "light" if self.look == "dark" else "dark"
        self.looks = styles(self.look)
        self.theme = f"tttdd-{self.look}"
        for panel in self._panels.values():
            panel.refresh()

    # The filter

    def action_search(self) -> None:
        """At once: the next key is its first letter."""
        self._filter.display = True
        self.set_focus(self._filter)

    def action_leave(self) -> None:
        """End the filter, and follow the run in hand again."""
        self._filter.value = ""
        self.action_keep()
        self.seen = msgspec.structs.replace(self.seen, search="", chosen="")
        self.redraw()

    def _searched(self, value: str) -> None:
        self.seen = msgspec.structs.replace(self.seen, search=value)
        self.redraw()

    def action_keep(self) -> None:
        """The filter as it is; keys are the dashboard's again."""
        self._filter.display = False
        self.set_focus(None)


def _best(run: RunInfo, found: best.Found) -> Best:
    return Best(pages.about(found.node, run), partial(best.program_lines, found), best.figure_drawer(found))
