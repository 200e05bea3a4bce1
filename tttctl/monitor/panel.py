"""Lines on the screen: a Panel shows what a view made and paints only what has changed; a Reader scrolls through more.

show(lines) -> the lines that differ -> their regions -> the screen writes those cells alone
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import NULL_OFFSET, Region, Size, Spacing
from textual.layout import Layout, WidgetPlacement
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.theme import Theme
from textual.widget import Widget

from tttctl.monitor.palette import LOOKS, PALETTES
from tttctl.monitor.plan import Needs, plan
from tttctl.monitor.text import Line, width_of

LOOKS_OF = attrgetter("app.looks")
"""Of a widget: role -> style, as the app has them now."""


def styles(palette: str) -> dict[str, Style]:
    """Role -> style."""
    colours = PALETTES[palette]
    return {
        role: Style(color=colours[look.colour], bgcolor=colours[look.ground or "ground"], bold=look.bold)
        for role, look in LOOKS.items()
    }


def theme(palette: str) -> Theme:
    """The same colours for Textual's own widgets."""
    colours = PALETTES[palette]
    return Theme(
        name=f"tttdd-{palette}",
        primary=colours["accent"],
        accent=colours["accent"],
        foreground=colours["text"],
        background=colours["ground"],
        surface=colours["raised"],
        panel=colours["raised"],
        success=colours["good"],
        warning=colours["warn"],
        error=colours["bad"],
        dark=palette == "dark",
    )


def painted(widget: Widget, spans: Line, width: int) -> Strip:
    """The line in the app's look, `width` cells wide."""
    looks: dict[str, Style] = LOOKS_OF(widget)
    cells = Strip([Segment(span.text, looks[span.role]) for span in spans], width_of(spans))
    return cells.adjust_cell_length(width, looks["text"])


class Panel(Widget):
    class Clicked(Message):
        def __init__(self, panel: str, row: int) -> None:
            super().__init__()
            self.panel, self.row = panel, row

    class Scrolled(Message):
        def __init__(self, panel: str, by: int) -> None:
            super().__init__()
            self.panel, self.by = panel, by

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self.lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        changed = list(_changed(self.lines, lines, self.size.width))
        self.lines = lines
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        return painted(self, self.lines[y] if y < len(self.lines) else (), self.size.width)

    def on_click(self, event: events.Click) -> None:
        self.post_message(self.Clicked(self.id or "", event.y))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.post_message(self.Scrolled(self.id or "", 1))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.post_message(self.Scrolled(self.id or "", -1))


def _changed(before: Sequence[Line], after: Sequence[Line], width: int) -> Iterator[Region]:
    """Runs of neighbouring lines that differ."""
    first = None
    for y in range(max(len(before), len(after)) + 1):
        same = y >= max(len(before), len(after)) or before[y : y + 1] == after[y : y + 1]
        if not same and first is None:
            first = y
        if same and first is not None:
            yield Region(0, first, width, y - first)
            first = None


class Dashboard(Widget):
    """All panels, placed by `plan`."""

    class Resized(Message):
        """It has its new size."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        super().__init__(*panels)
        self.needs = Needs()

    def fit(self, needs: Needs) -> None:
        """Place the panels anew where they need other room."""
        if needs != self.needs:
            self.needs = needs
            self.children[0].refresh(layout=True)  # its own would forget the arrangement of what is around it alone

    def on_resize(self) -> None:
        self.post_message(self.Resized())

    @property
    def layout(self) -> Layout:
        """Not a style's: those name only Textual's own layouts."""
        return PLANNED


class Planned(Layout):
    name = "planned"

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> list[WidgetPlacement]:
        assert isinstance(parent, Dashboard)
        places = plan(size.width, size.height, parent.needs)
        return [
            WidgetPlacement(Region(*places[child.id]), NULL_OFFSET, Spacing(), child)
            for child in children
            if child.id in places
        ]


PLANNED = Planned()


class Reader(ScrollView, can_focus=True):
    """Lines that are made for its width, with keys and wheel to scroll."""

    def __init__(self, make: Callable[[int], list[Line]]) -> None:
        super().__init__()
        self._make, self._lines = make, list[Line]()

    def show(self, make: Callable[[int], list[Line]]) -> None:
        self._make = make
        self._again()

    def on_resize(self) -> None:
        self._again()

    def _again(self) -> None:
        width = self.scrollable_content_region.width
        self._lines = self._make(width) if width > 0 else []
        self.virtual_size = Size(width, len(self._lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        place = y + self.scroll_offset.y
        return painted(self, self._lines[place] if place < len(self._lines) else (), self.size.width)
