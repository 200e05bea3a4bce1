"""What lies over the dashboard for a while: a question, a text to scroll through, the best program with its figure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from operator import attrgetter
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from tttctl.monitor.panel import Reader
from tttctl.monitor.text import Line, visible

Make = Callable[[int], list[Line]]
Dialog = ModalScreen[None]

CLOSE = Binding("escape,q", "dismiss", "Close", show=False, priority=True)
READ_SECONDS = 0.5
"""A question is on the screen before it can be answered with yes."""
PATIENCE_SECONDS = 0.3
"""What comes sooner needs no word that it is awaited."""
PRESSED = attrgetter("app.pressed")
"""Of a dialog: when the key was pressed that acts now."""


class Confirm(ModalScreen[bool]):
    """Yes or no; no is what enter means.  A key that was pressed before the question could be read says no yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", priority=True),
        Binding("n,escape,q", "answer(False)", "No", priority=True),
        Binding("enter", "press", show=False, priority=True),
        Binding("left,right,tab,shift+tab", "app.focus_next", show=False, priority=True),
    ]

    def __init__(self, question: str, yes: str, no: str) -> None:
        super().__init__()
        self._question, self._yes, self._no = question, yes, no
        self._shown = math.inf

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(visible(self._question), markup=False, classes="question")
            with Horizontal(classes="buttons"):
                yield Button(f"{self._no} (n)", id="no")
                yield Button(f"{self._yes} (y)", id="yes", variant="error")

    def on_mount(self) -> None:
        self.query_one("#no").focus()
        self.call_after_refresh(self._is_shown)

    def _is_shown(self) -> None:
        self._shown = time.monotonic()

    @property
    def _read(self) -> bool:
        return PRESSED(self) >= self._shown + READ_SECONDS

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        if self._read or not yes:
            self.dismiss(yes)

    def action_press(self) -> None:
        if self._read:
            self.dismiss(self.query_one("#yes").has_focus)


class Asking(ModalScreen[None]):
    """Until the daemon has answered; unseen where that is soon."""

    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as self._box:
            yield Static("asking the daemon; esc leaves it", markup=False)

    def on_mount(self) -> None:
        self._box.visible = False
        self.set_timer(PATIENCE_SECONDS, self._say)

    def _say(self) -> None:
        self._box.visible = True


class Text(ModalScreen[None]):
    """A text with a title."""

    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def __init__(self, title: str, make: Make) -> None:
        super().__init__()
        self._title, self._make = title, make

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet") as sheet:
            sheet.border_title = escaped(self._title)
            sheet.border_subtitle = "esc closes"
            yield Reader(self._make)

    def on_mount(self) -> None:
        self.query_one(Reader).focus()

    def show(self, make: Make) -> None:
        self.query_one(Reader).show(make)


class Best(ModalScreen[None]):
    """A program on the left, its figure on the right; below one another where that is too narrow."""

    BINDINGS: ClassVar[list[BindingType]] = [CLOSE, Binding("b", "dismiss", show=False, priority=True)]

    def __init__(self, title: str, source: Make, figure: Callable[[int, int], list[Line]]) -> None:
        super().__init__()
        self._title, self._source, self._figure = title, source, figure

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet whole") as sheet:
            sheet.border_title = escaped(self._title)
            sheet.border_subtitle = "↑ ↓ scroll · tab the other side · esc closes"
            with Horizontal():
                yield Reader(self._source)
                yield Drawn(self._figure)

    def on_mount(self) -> None:
        self.query_one(Reader).focus()


class Drawn(Reader):
    """A reader whose lines are made for its height, too."""

    def __init__(self, make: Callable[[int, int], list[Line]]) -> None:
        super().__init__(lambda width: make(width, self.scrollable_content_region.height))


def escaped(title: str) -> str:
    """For a border's title, which is markup."""
    from textual.markup import escape

    return escape(" ".join(visible(title).split()))
