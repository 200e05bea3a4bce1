"""How far the model has moved, and whether the engine serves what was trained: three figures with their alarms.

    gap    |mean log q - log p| of the tokens trained on     alarm above the proof's limit, max(3 x floor, 0.01) nats
    KL     mean log q - log p of the base                    alarm: back to the base, or a jump (see `kl_alarm`)
    proof  mean |engine - trainer| on the probe              alarm above its limit, or with under half of the move

The limit is the daemon's own; before the first proof no limit is known, and none is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tttctl.monitor.charts import sparkline
from tttctl.monitor.text import Line, Span, line
from tttctl.render import number
from tttdd.protocol import Proof, RunInfo, StepRow

JUMP = 3.0
"""A KL above this many times the largest of all steps before is told."""
HALF = 0.5
"""The serving proof's own bound on the share of the move."""


class Gauge(msgspec.Struct, frozen=True):
    """One figure with its history."""

    name: str
    value: float | None
    limit: float | None
    history: tuple[float, ...]
    alarm: str = ""
    """What is wrong; empty when nothing is, or when that cannot be told."""
    more: str = ""


def gauges(run: RunInfo, rows: Sequence[StepRow], proof: Proof | None) -> list[Gauge]:
    """Empty for a run whose model is not trained."""
    if run.mode != "discover":
        return []
    gaps, moves = _column(rows, "train/sampler_trainer_gap"), _column(rows, "train/kl_base")
    limit = proof.limit if proof else None
    return [
        Gauge("sampler–trainer gap", _last(gaps), limit, tuple(map(abs, gaps)), gap_alarm(_last(gaps), limit)),
        Gauge("KL to the base", _last(moves), None, tuple(moves), kl_alarm(moves, proof)),
        _served(proof),
    ]


def gap_alarm(gap: float | None, limit: float | None) -> str:
    if gap is None:
        return ""
    if not math.isfinite(gap):
        return "not a number"
    return f"above {number(limit, 3)}" if limit is not None and abs(gap) > limit else ""


def kl_alarm(history: Sequence[float], proof: Proof | None) -> str:
    """The daemon sets no limit for it, so it is held against its own past and the proof's floor and limit.

    A model that had moved and is then within the floor of the base is most likely not the one that was trained; one
    that moves to over three times its farthest in a single step, and beyond the limit, is running away.
    """
    if not history:
        return ""
    newest, before = history[-1], [abs(value) for value in history[:-1] if math.isfinite(value)]
    if not math.isfinite(newest):
        return "not a number"
    if proof is None or not before:
        return ""
    if max(before) > proof.limit and abs(newest) <= proof.floor:
        return "back at the base"
    farthest = max(*before, proof.limit)
    return f"jumped from {number(max(before), 2)}" if abs(newest) > JUMP * farthest else ""


def _served(proof: Proof | None) -> Gauge:
    if proof is None:
        return Gauge("serving proof", None, None, ())
    share = f"{proof.share:.0%}" if proof.share is not None else ""
    alarm = "the engine lags" if proof.share is not None and not proof.share >= HALF else ""
    return Gauge("serving proof", proof.gap, proof.limit, (), gap_alarm(proof.gap, proof.limit) or alarm, share)


def divergence_lines(run: RunInfo | None, found: Sequence[Gauge], width: int, height: int) -> list[Line]:
    if run is None:
        return [line(("no run", "dim"))]
    if not found:
        return [line(("The model is frozen: nothing is trained,", "dim")), line(("so nothing can diverge.", "dim"))]
    curves = height >= len(found) + 2
    lines: list[Line] = []
    for gauge in found:
        lines.append(_figure(gauge))
        if curves and gauge.history:
            lines.append(line(("  " + sparkline(gauge.history, width - 2), "bad" if gauge.alarm else "accent")))
        if height >= 7 and gauge is not found[-1]:
            lines.append(())
    return lines


def _figure(gauge: Gauge) -> Line:
    if gauge.value is None:
        return line(("· ", "dim"), (gauge.name, "dim"), ("  not measured yet", "dim"))
    glyph, role = ("✗", "bad") if gauge.alarm else ("✓", "good")
    limit = f" of {number(gauge.limit, 2)}" if gauge.limit is not None else ""
    told = gauge.alarm or gauge.more
    return (
        Span(f"{glyph} ", role),
        Span(f"{gauge.name} "),
        Span(number(gauge.value, 3), "bad" if gauge.alarm else "strong"),
        Span(limit, "dim"),
        Span(f"  {told}" if told else "", "bad" if gauge.alarm else "dim"),
    )


def _column(rows: Sequence[StepRow], name: str) -> list[float]:
    return [row.metrics[name] for row in rows if name in row.metrics]


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values else None
