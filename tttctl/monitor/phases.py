"""The step in hand as a line of phases: sample, judge, train, publish, prove, each with its seconds.

A phase that is to come shows what it took on average in the last steps.  Judging goes on while others are sampled, so
its own seconds are those after the last rollout was sampled, as in time/judge_wait.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from tttctl.monitor.charts import bar
from tttctl.monitor.seen import Seen
from tttctl.monitor.text import Line, Span, joined, line, one_line, spread, width_of
from tttctl.render import duration
from tttdd.protocol import Current, StepRow

NAMES = ("sample", "judge", "train", "publish", "prove")
FROZEN = ("sample", "judge")
REMEMBERED = 5
"""Steps that the expectation is the mean of."""
GLYPHS = {"done": ("✓", "good"), "now": ("▶", "accent"), "next": ("·", "dim")}


class Phase(msgspec.Struct, frozen=True):
    name: str
    state: Literal["done", "now", "next"]
    seconds: float | None
    """Spent so far."""
    expected: float | None
    """Of the whole phase, from the last steps."""


def phases(current: Current, rows: Sequence[StepRow], now: float, drained: float | None) -> list[Phase]:
    """The phases that this run has."""
    names = NAMES if current.run.mode == "discover" else FROZEN
    named = [name for name in names if name != "judge" or current.run.kind == "task"]  # a harness judges by itself
    return [_phase(name, current, rows, now, drained) for name in named]


def _phase(name: str, current: Current, rows: Sequence[StepRow], now: float, drained: float | None) -> Phase:
    phase, expected = current.phase, _expected(name, rows)
    passed = max(0.0, now - phase.since)
    if name in ("sample", "judge"):
        return _sampling(name, current, passed, expected, None if drained is None else max(0.0, now - drained))
    if name == phase.name:
        return Phase(name, "now", passed, expected)
    if name in phase.seconds:
        return Phase(name, "done", phase.seconds[name], expected)
    return Phase(name, "next", None, expected)


def _sampling(name: str, current: Current, passed: float, expected: float | None, waited: float | None) -> Phase:
    phase = current.phase
    judging = any(cell == "judging" for row in current.cells for cell in row)
    if phase.name == "sample":
        if name == "judge":
            return Phase(name, "now" if judging else "next", waited if judging else None, expected)
        return Phase(name, "now" if waited is None else "done", passed - (waited or 0.0), expected)
    if "sample" in phase.seconds:
        return Phase(name, "done", phase.seconds["sample"] if name == "sample" else None, expected)
    return Phase(name, "next", None, expected)


def _expected(name: str, rows: Sequence[StepRow]) -> float | None:
    """time/sample has the wait for the judges in it."""
    values = [value for row in rows[-REMEMBERED:] if (value := _took(name, row.metrics)) is not None]
    return statistics.fmean(values) if values else None


def _took(name: str, metrics: dict[str, float]) -> float | None:
    if name == "judge":
        return metrics.get("time/judge_wait")
    if name == "sample" and "time/sample" in metrics:
        return metrics["time/sample"] - metrics.get("time/judge_wait", 0.0)
    return metrics.get(f"time/{name}")


def remaining(found: Sequence[Phase]) -> float | None:
    """Seconds to the end of the step; None before a step was done."""
    if any(phase.expected is None for phase in found):
        return None
    left = [max(0.0, (phase.expected or 0.0) - (phase.seconds or 0.0)) for phase in found if phase.state != "done"]
    return sum(left)


def phase_lines(seen: Seen, now: float, width: int) -> list[Line]:
    """Two lines: the phases, and how far the one in hand is."""
    current = seen.current
    if current is None:
        return [line(("no run in hand", "dim")), line(("submit one with: tttctl submit TASK", "dim"))]
    if current.preparing or current.phase.name == "start":
        what = one_line(current.preparing) or "starting the workers"
        left = line(("▶ ", "accent"), f"preparing {what}" if current.preparing else what)
        return [spread(left, _share(current.progress), width), bar(current.progress or 0.0, width, "accent")]
    found = phases(current, seen.rows(current.run.run), now, seen.drained)
    left = remaining(found)
    note = line((f"ends ~{duration(left)}" if left is not None else "", "dim"))
    chips = joined([_chip(phase) for phase in found])
    progress = _progress(current)
    fits = width_of(chips) + width_of(note) < width
    return [spread(chips, note if fits else (), width), _bar(progress, width)]


def _chip(phase: Phase) -> Line:
    glyph, role = GLYPHS[phase.state]
    seconds = f" {duration(phase.seconds)}" if phase.seconds is not None else ""
    expected = f" ~{duration(phase.expected)}" if phase.state == "next" and phase.expected is not None else ""
    name = "strong" if phase.state == "now" else "text" if phase.state == "done" else "dim"
    return (Span(f"{glyph} ", role), Span(phase.name, name), Span(seconds + expected, "text" if seconds else "dim"))


def _progress(current: Current) -> float | None:
    if current.progress is not None or current.phase.name != "sample":
        return current.progress
    cells = [cell for row in current.cells for cell in row]
    return sum(cell in ("rejected", "valid", "best") for cell in cells) / len(cells) if cells else None


def _bar(share: float | None, width: int) -> Line:
    if share is None:
        return line(("─" * width, "rule"))
    text = f"{share:>5.0%}"
    return (*bar(share, width - len(text), "accent"), Span(text, "dim"))


def _share(share: float | None) -> Line:
    return line((f"{share:.0%}" if share is not None else "", "dim"))
