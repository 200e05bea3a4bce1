"""A harness's report: checked against its run and its receipt, and turned into the rollout that is recorded.

    report -> coordinate (field by field) -> receipt (known, this run's, not used) -> Rollout -> store.record

What is recorded is what our own search records: the store takes the first report at a coordinate, of one release only.
"""

from __future__ import annotations

from typing import Any

import msgspec

from judges.verdict import Verdict
from tttdd.domain.grid import Coordinate
from tttdd.errors import Conflict, Refused
from tttdd.harness_protocol import Metadata, Report
from tttdd.ports import Receipt, Rollout
from tttdd.protocol import RunInfo

FACT_CHARACTERS = 500
"""Of a text in a report's metadata that is shown beside its answer; the whole report is kept, too."""
FACTS = 64
"""Of a report's metadata that are shown; the first by their names."""
ENDED = ("finished", "failed", "cancelled")


def must_be_external(run: RunInfo) -> None:
    if run.kind != "external":
        raise Conflict(
            f"run {run.run!r} is not external: the daemon samples and judges it by itself",
            field="run",
            hint="tttctl submit NAME --external",
        )


def must_be_open(run: RunInfo) -> None:
    if run.state in ENDED:
        why = f": {run.reason}" if run.reason else ""
        hint = "tttctl resume" if run.state == "failed" else "go on in a new run: --resume-from"
        raise Conflict(f"run {run.run!r} is {run.state}{why}", field="run", hint=hint)


def whole(content: bytes) -> tuple[dict[str, Any], str]:
    """A report with all that its metadata holds, and the text by which it is known again; raises Refused for what is
    nested too deeply or has numbers that nothing here can hold."""
    try:
        told = msgspec.json.decode(content)
        return told, msgspec.json.encode(told, order="sorted").decode()
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise Refused(f"metadata: cannot be kept: {error}", field="metadata") from None


def coordinate(run: RunInfo, report: Report) -> Coordinate:
    """Where the report belongs; raises Refused or Conflict with the field that is wrong."""
    told = report.metadata
    for field, value, own in (
        ("groups_per_step", told.groups_per_step, run.grid.groups),
        ("rollouts_per_group", told.rollouts_per_group, run.grid.rollouts),
    ):
        if value != own:
            raise Refused(f"metadata.{field} is {value}, but the run's grid has {own}", field=f"metadata.{field}")
    for field, value, own in (
        ("group", told.group, run.grid.groups),
        ("rollout", told.rollout, run.grid.rollouts),
    ):
        if value >= own:
            raise Refused(f"metadata.{field} is {value}; there are {own}, counted from 0", field=f"metadata.{field}")
    if told.step != run.step:
        done = "done" if told.step < run.step else "not begun"
        raise Conflict(f"step {told.step} is {done}: the step in hand is {run.step}", field="metadata.step")
    return Coordinate(told.step, told.group, told.rollout)


def redeemed(receipt: Receipt | None, run: RunInfo) -> Receipt:
    """The receipt that a report of `run` refers to; raises Refused or Conflict where it can't be reported."""
    field, hint = "references", "sample again: each completion brings a receipt of its own"
    if receipt is None:
        raise Refused("references: no such receipt was given", field=field, hint=hint)
    if receipt.run != run.run:
        raise Refused(f"references: the receipt is of run {receipt.run!r}, not {run.run!r}", field=field, hint=hint)
    if receipt.place is not None:
        step, group, rollout = msgspec.structs.astuple(receipt.place)
        told = f"references: the receipt is used, at step {step}, group {group}, rollout {rollout}"
        raise Conflict(told, field=field, hint=hint)
    return receipt


def rollout(report: Report, content: dict[str, Any], receipt: Receipt, place: Coordinate, parent: int) -> Rollout:
    """The answer stands where the program of our own search does; what else the harness says is shown with it."""
    more = content["metadata"].keys() - set(Metadata.__struct_fields__)
    shown = sorted(name for name in more if len(name) <= FACT_CHARACTERS)[:FACTS]
    facts = {name: _fact(content["metadata"][name]) for name in shown}
    return Rollout(
        coordinate=place,
        parent=parent,
        program=receipt.sampled.text,
        sampled=receipt.sampled,
        verdict=Verdict(valid=True, reward=report.score, certificate=facts),
        prompt_ids=receipt.prompt_ids,
    )


def _fact(value: Any) -> str | float | bool:
    match value:
        case bool() | float():
            return value
        case int() if abs(value) < 1 << 53:
            return float(value)
        case str():
            return value[:FACT_CHARACTERS]
        case _:
            return msgspec.json.encode(value).decode()[:FACT_CHARACTERS]
