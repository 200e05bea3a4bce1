"""The keys of the dashboard.  All have priority: the app then acts on them in the order in which they were pressed.

A key without priority goes to the focused widget and comes back to the app behind all keys that wait there by then: the
letters after a `/` of the same burst would be bindings.  Where they mean something else, `check_action` refuses them.
"""

from __future__ import annotations

from textual.binding import Binding, BindingType

WITH_FILTER = ("move", "leave")
"""What keys do while the filter is written, too."""


def _key(key: str, action: str, says: str = "", display: str | None = None) -> Binding:
    return Binding(key, action, says, show=bool(says), key_display=display, priority=True)


DASHBOARD = [
    _key("p", "pause", "pause"),
    _key("r", "resume", "resume"),
    _key("c", "cancel", "cancel"),
    _key("enter", "details", "details", "⏎"),
    _key("b", "best", "best"),
    _key("t", "tasks", "tasks"),
    _key("slash", "search", "filter", "/"),
    _key("question_mark", "help", "help", "?"),
    _key("q", "end", "quit"),
    _key("P", "pause_all"),
    _key("R", "resume_all"),
    _key("d", "turn"),
    _key("down", "move(1)"),
    _key("up", "move(-1)"),
    _key("j", "walk(1)"),
    _key("k", "walk(-1)"),
    _key("escape", "leave"),
]
ACTIONS = {binding.action.partition("(")[0] for binding in DASHBOARD}
"""Those that a dialog or the filter takes away."""
BINDINGS: list[BindingType] = [*DASHBOARD, _key("ctrl+c", "quit")]
