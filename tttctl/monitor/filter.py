"""The line that filters the queue.  Its keys are taken in the app's own turn, one after the other.

A key that is forwarded to a widget is handled after all keys that wait in the app's queue by then.  So whatever an
Input does with a key it does here by a binding with priority, and letters come by `type_in`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input

KEEP = Binding("enter", "app.keep", "keep it, esc ends it", key_display="⏎", priority=True)
EDITS = [replace(made, priority=True) for made in Input.BINDINGS if isinstance(made, Binding) and made.key != "enter"]


class Filter(Input):
    BINDINGS: ClassVar[list[BindingType]] = [KEEP, *EDITS]

    def __init__(self) -> None:
        super().__init__(id="search", placeholder="filter the runs", compact=True)
        self.display = False

    def type_in(self, character: str) -> None:
        self.replace(character, *self.selection)
