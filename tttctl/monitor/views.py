"""The panels: from what was seen and a place to exactly the lines that fill it.  Nothing here knows of Textual."""

from __future__ import annotations

from typing import NamedTuple

from tttctl.monitor.charts import framed
from tttctl.monitor.devices import contained, device_lines
from tttctl.monitor.divergence import divergence_lines, gauges
from tttctl.monitor.grid import GLYPHS, coarseness, counted, heat_map, legend_beside
from tttctl.monitor.phases import phase_lines
from tttctl.monitor.plan import WANTED, Needs, Place
from tttctl.monitor.progress import best_lines, step_lines
from tttctl.monitor.queue import queue_lines
from tttctl.monitor.seen import Seen
from tttctl.monitor.text import Line, Span, cut, fit, joined, line, one_line, sentences, spread, width_of
from tttctl.render import duration
from tttdd.protocol import JudgesInfo, Status

BARE = ("header", "banner", "narrow")
GRID_TITLE = 20
"""Columns that the grid's title and the ends of its rule take."""
TITLES = {
    "phases": "Step",
    "devices": "Devices",
    "best": "Best",
    "divergence": "Divergence",
    "queue": "Queue",
    "steps": "Steps",
    "log": "Log",
}


class View(NamedTuple):
    """What is inside a panel's frame, and what its rule says."""

    note: Line
    lines: list[Line]


def needs(seen: Seen) -> Needs:
    cells = seen.current.cells if seen.current else []
    return Needs(
        groups=len(cells),
        rollouts=len(cells[0]) if cells else 0,
        devices=len(seen.status.gpus) if seen.status else 0,
        runs=len(seen.listed()),
        banner=bool(trouble(seen, 0.0)[0]),
    )


def panel(name: str, seen: Seen, now: float, place: Place, boxed: bool) -> list[Line]:
    """As many lines as the place is high, each as wide as it is."""
    width, height = place.width, place.height
    if name in BARE or (name in ("phases", "devices") and not boxed):
        bare = _bare(name, seen, now, width, height)[:height]
        return [fit(spans, width) for spans in (*bare, *[()] * (height - len(bare)))]
    inner, rows = (width - 4, height - 2) if boxed else (width, height - 1)
    view = _view(name, seen, now, max(0, inner), max(0, rows))
    title = (Span(_title(name, seen), "title"),)
    return framed(title, view.note, view.lines, width, height, boxed)


def _bare(name: str, seen: Seen, now: float, width: int, height: int) -> list[Line]:
    if name == "header":
        return [header(seen, width)]
    if name == "narrow":
        return narrow_lines(width, height)
    if name == "banner":
        text, role = trouble(seen, now)
        return [line((" " + cut(one_line(text), width - 2).ljust(width - 1), role))]
    return phase_lines(seen, now, width) if name == "phases" else _devices(seen, width, height, boxed=False)


def _title(name: str, seen: Seen) -> str:
    shown, current = seen.shown(), seen.current
    if name == "grid":
        return f"Grid {current.run.grid.groups} × {current.run.grid.rollouts}" if current else "Grid"
    other = shown and current and shown.run != current.run.run and name in ("best", "divergence", "steps")
    return f"{TITLES[name]} of {one_line(shown.run)}" if shown and other else TITLES[name]


def _view(name: str, seen: Seen, now: float, width: int, height: int) -> View:
    match name:
        case "grid":
            return _grid(seen, width, height)
        case "queue":
            return View(_filter(seen), queue_lines(seen, width, height))
        case "log":
            return View((), log_lines(seen, width, height))
        case "phases":
            return View(_release(seen), phase_lines(seen, now, width))
        case "devices":
            return View(_judges(seen), _devices(seen, width, height, boxed=True))
        case _:
            return _of_run(name, seen, width, height)


def _of_run(name: str, seen: Seen, width: int, height: int) -> View:
    run = seen.shown()
    rows = seen.rows(run.run) if run else []
    if name == "best":
        note = line((f"{run.direction} is better", "dim")) if run and run.objective_name else ()
        return View(note, best_lines(run, seen.steps.get(run.run, []) if run else [], width, height))
    if name == "steps":
        return View((), step_lines(rows, width, height))
    proof = next((row.proof for row in reversed(rows) if row.proof), None)
    if run and seen.current and seen.current.run.run == run.run and seen.current.proof:
        proof = seen.current.proof
    return View((), divergence_lines(run, gauges(run, rows, proof) if run else [], width, height))


def _devices(seen: Seen, width: int, height: int, boxed: bool) -> list[Line]:
    if seen.status is None:
        return []
    return device_lines(seen.status.gpus, seen.status.judges, width, height, boxed)


def _grid(seen: Seen, width: int, height: int) -> View:
    current = seen.current
    if current is None or not current.cells:
        return View((), [line(("no grid in hand", "dim"))])
    counts = counted(current.cells)
    done = counts["rejected"] + counts["valid"] + counts["best"]
    valid = f"{(done - counts['rejected']) / done:.0%} valid" if done else "none judged"
    told = [f"{done}/{counts.total()} judged", valid, coarseness(current.cells, width, height)]
    note = line((" · ".join(filter(None, told)), "dim"))
    if not legend_beside(current.cells, width, height):
        legend = joined([line((f"{GLYPHS[state]}{counts[state]}", state)) for state in GLYPHS], " ")
        coarse = line((told[-1], "dim")) if told[-1] else ()
        choice = [joined([*filter(None, (first, legend))]) for first in (note, coarse)]
        note = next((tried for tried in choice if width_of(tried) + GRID_TITLE <= width), coarse or legend)
    return View(note, heat_map(current.cells, width, height))


def narrow_lines(width: int, height: int) -> list[Line]:
    """The terminal has one row more, that of the keys."""
    wanted, had = f"{WANTED[0]}x{WANTED[1]}", f"{width}x{height + 1}"
    return sentences(f"the monitor wants {wanted}; it has {had}. It goes on in a larger terminal; q quits.", width)


def _filter(seen: Seen) -> Line:
    return line((f"/{one_line(seen.search)}", "accent")) if seen.search else ()


def _judges(seen: Seen) -> Line:
    judges: JudgesInfo | None = seen.status.judges if seen.status else None
    return line((f"judges {contained(judges)}", "dim")) if judges else ()


def _release(seen: Seen) -> Line:
    run = seen.current.run if seen.current else None
    return line((f"release {run.release} · {run.mode}", "dim")) if run else ()


def log_lines(seen: Seen, width: int, height: int) -> list[Line]:
    """The newest at the bottom."""
    shown = seen.status.log[-height:] if seen.status and height > 0 else []
    return [line((cut(one_line(entry), width), "text" if entry is shown[-1] else "dim")) for entry in shown]


def header(seen: Seen, width: int) -> Line:
    name = Span(" tttdd  ", "header_strong")
    if seen.current is None:
        told = "no run in hand" if seen.status else "waiting for the daemon"
        return _on_header(spread((name, Span(told)), (), width))
    run, phase = seen.current.run, seen.current.phase
    eta = f"  ETA {duration(phase.eta_seconds)}" if run.state == "running" and not seen.held(run) else ""
    right = f"{seen.state(run)}{eta} "
    step = f"  step {min(run.step + 1, run.steps)}/{run.steps} "
    room = width - 8 - len(right) - len(step) - 2
    gauge = max(0, min(30, room - 24))
    full = round(run.step / max(1, run.steps) * gauge)
    left = (
        name,
        Span(cut(one_line(run.run), room - gauge), "header_strong"),
        Span(step),
        Span("━" * full, "header_strong"),
        Span("─" * (gauge - full)),
    )
    return _on_header(spread(left, (Span(right),), width))


def _on_header(spans: Line) -> Line:
    return tuple(span if span.role.startswith("header") else span._replace(role="header") for span in spans)


def trouble(seen: Seen, now: float) -> tuple[str, str]:
    """What keeps work from going on, and in which role to say so; empty where nothing does."""
    if seen.lost:
        return f"no connection for {duration(max(0.0, now - seen.lost_since))}, trying again: {seen.lost}", "banner_bad"
    return _told(seen.status) if seen.status else ("", "")


def _told(status: Status) -> tuple[str, str]:
    run = status.current.run if status.current else None
    if status.notice:
        return f"nothing is done until the state can be kept: {status.notice}", "banner_bad"
    if status.judges.level == "none":
        return f"the judges cannot start: {'; '.join(status.judges.missing)}", "banner_bad"
    if status.paused:
        return "the daemon is paused; R resumes it", "banner_warn"
    if run and run.state == "paused":
        then = "it goes on by itself when there is room" if run.waits_for_room else "r resumes it"
        return f"{run.run} is paused{': ' + run.reason if run.reason else ''}; {then}", "banner_warn"
    if run and run.kind == "external" and run.reason:  # reports that were refused, if it does not wait
        return f"{run.run} {'waits' if run.state == 'waiting' else run.state}: {run.reason}", "banner_warn"
    return "", ""
