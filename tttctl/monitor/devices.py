"""GPUs as bars of memory and load; one line that says so where there are none."""

from __future__ import annotations

from collections.abc import Sequence

from tttctl.monitor.charts import BLOCKS, bar
from tttctl.monitor.text import Line, Span, cut, fit, line, one_line
from tttdd.protocol import GpuInfo, JudgesInfo

NEARLY_FULL = 0.97
LABELLED = 34
"""Columns from which a device has room for words."""


def device_lines(gpus: Sequence[GpuInfo], judges: JudgesInfo, width: int, height: int, boxed: bool) -> list[Line]:
    if not gpus:
        return [_none(judges, boxed)]
    if boxed and len(gpus) <= height:
        return [_whole(gpu, width) for gpu in gpus]
    across = -(-len(gpus) // max(1, height))
    room = (width + 2) // across - 2
    cells = [_brief(gpu, room) for gpu in gpus]
    rows = [cells[start : start + across] for start in range(0, len(cells), across)]
    return [tuple(span for cell in row for span in (*fit(cell, room), Span("  "))) for row in rows]


def contained(judges: JudgesInfo) -> str:
    return "starting" if judges.level == "starting" else f"{one_line(judges.level)} × {judges.parallel}"


def _none(judges: JudgesInfo, boxed: bool) -> Line:
    where = line(("CPU", "strong"), ("  no GPU in use", "dim"))
    return where if boxed else (*where, Span(f"  judges {contained(judges)}", "dim"))


def _whole(gpu: GpuInfo, width: int) -> Line:
    """Index, memory, load, and whose it is, as far as there is room."""
    owners = ", ".join(sorted({one_line(process.owner) for process in gpu.processes})) or "no process"
    memory, load = _memory(gpu), _load(gpu)
    label = f"{gpu.index} {cut(one_line(gpu.name).removeprefix('NVIDIA '), 8):<8} "
    room = width - len(label) - len(memory) - len(load) - 12 - 4
    first, second = room - room // 2 - 1, room // 2 - 1
    tail = f"  {owners}"
    if room > 40:
        first, second = 18, 12
    elif room > 24:
        first, second = 10, 6
    return (
        Span(label, "strong"),
        *bar(_used(gpu), max(3, first), _memory_role(gpu)),
        Span(f" {memory}  ", "text"),
        *bar(gpu.load or 0.0, max(3, second), "sampling"),
        Span(f" {load}"),
        Span(tail, "dim"),
    )


def _brief(gpu: GpuInfo, width: int) -> Line:
    load = (Span(f" {_load(gpu)}"),)
    if width < LABELLED:
        block = BLOCKS[round((gpu.load or 0.0) * (len(BLOCKS) - 1))]
        memory = bar(_used(gpu), max(2, width - 14), _memory_role(gpu))
        return (Span(f"{gpu.index} ", "strong"), *memory, Span(f"{_used(gpu):>4.0%} "), Span(block, "sampling"), *load)
    memory = _memory(gpu)
    label = f"GPU {gpu.index} "
    room = max(2, width - len(label) - len(memory) - 8)
    first = room - room // 2
    return (
        Span(label, "strong"),
        *bar(_used(gpu), first, _memory_role(gpu)),
        Span(f" {memory} "),
        *bar(gpu.load or 0.0, room - first, "sampling"),
        *load,
    )


def _used(gpu: GpuInfo) -> float:
    return gpu.memory_used / gpu.memory_total if gpu.memory_total else 0.0


def _memory_role(gpu: GpuInfo) -> str:
    return "warn" if _used(gpu) > NEARLY_FULL else "accent"


def _memory(gpu: GpuInfo) -> str:
    return f"{gpu.memory_used / 2**30:.0f}/{gpu.memory_total / 2**30:.0f} GiB"


def _load(gpu: GpuInfo) -> str:
    return "   -" if gpu.load is None else f"{gpu.load:>4.0%}"
