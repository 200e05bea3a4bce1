"""The queue: one line a run, what works first, then what is next, then what has ended; scrolled to the cursor."""

from __future__ import annotations

from tttctl.monitor.seen import Seen
from tttctl.monitor.text import Line, Span, cut, fit, line, one_line, spread
from tttctl.render import number
from tttdd.protocol import RunInfo

GLYPHS = {
    "running": ("▶", "good"),
    "waiting": ("○", "warn"),
    "paused": ("‖", "warn"),
    "queued": ("·", "dim"),
    "finished": ("✓", "accent"),
    "failed": ("✗", "bad"),
    "cancelled": ("−", "dim"),
}


def window(seen: Seen, height: int) -> list[RunInfo]:
    """The runs that are on the screen, in order: the chosen one always among them."""
    runs, shown = seen.listed(), seen.shown()
    place = next((i for i, run in enumerate(runs) if shown and run.run == shown.run), 0)
    first = max(0, min(place - height // 2, len(runs) - height))
    return runs[first : first + height]


def queue_lines(seen: Seen, width: int, height: int) -> list[Line]:
    runs, shown = window(seen, height), seen.shown()
    if not runs:
        told = "no run matches; / changes the filter" if seen.search else "no runs; tttctl submit TASK"
        return [line((told, "dim"))]
    return [_entry(run, seen, shown is not None and run.run == shown.run, width) for run in runs]


def _entry(run: RunInfo, seen: Seen, chosen: bool, width: int) -> Line:
    glyph, role = GLYPHS["paused" if seen.held(run) else run.state]
    best = number(run.best.objective if run.best.objective is not None else run.best.reward, 6) if run.best else "-"
    steps = f"{run.step}/{run.steps}"
    right = f" {steps:>7} {best:>9}" if width >= 34 else f" {steps}"
    more = f"  {_more(run, seen.state(run))}" if width >= 60 else ""
    left = (Span(f"{glyph} ", role), Span(one_line(run.run)), Span(cut(more, max(0, width - 40)), "dim"))
    spans = spread(left, (Span(right + " ", "text"),), width)
    return tuple(span._replace(role="chosen") for span in fit(spans, width)) if chosen else spans


def _more(run: RunInfo, state: str) -> str:
    mode = "" if run.mode == "discover" else f" {run.mode}"
    priority = f" priority {run.priority}" if run.priority and run.state == "queued" else ""
    last = one_line(run.reason.strip().rpartition("\n")[2])
    return f"{state}{mode}{priority}{': ' + last if last else ''}"
