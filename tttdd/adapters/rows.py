"""Rows of the state database as the Structs that the algorithm and the API speak.

A row that cannot be decoded is a StoreError that names the column, never a crash somewhere later.
"""

from __future__ import annotations

import sqlite3
import zlib
from typing import Any, TypeVar

import msgspec

from judges.verdict import Verdict
from tttdd.domain import batch
from tttdd.domain.archive import Certificate, Node
from tttdd.domain.grid import Coordinate
from tttdd.ports import Receipt, Report, Rollout, Sampled, StoreError
from tttdd.protocol import Best, GridSize, NodeInfo, Proof, RunInfo, StepRow

T = TypeVar("T")


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def from_json(row: sqlite3.Row, column: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(row[column], type=kind)
    except msgspec.DecodeError as error:
        raise StoreError(f"column {column!r} of the state database cannot be read: {error}") from None


def sampled(row: sqlite3.Row) -> Sampled:
    return Sampled(
        token_ids=batch.unpack_ids(row["token_ids"]),
        logprobs=batch.unpack_logprobs(row["logprobs"]),
        loss_mask=batch.unpack_mask(row["loss_mask"]),
        text=row["text"],
        finish_reason=row["finish_reason"],
        release=row["release"],
    )


def rollout(row: sqlite3.Row) -> Rollout:
    return Rollout(
        coordinate=Coordinate(row["step"], row["grid_group"], row["rollout"]),
        parent=row["parent"],
        program=row["source"],
        sampled=sampled(row),
        verdict=from_json(row, "verdict", Verdict),
        prompt_ids=batch.unpack_ids(row["prompt_ids"]),
    )


def receipt(row: sqlite3.Row) -> Receipt:
    reported = row["grid_group"] is not None
    return Receipt(
        id=row["id"],
        run=row["run"],
        step=row["step"],
        prompt_ids=batch.unpack_ids(row["prompt_ids"]),
        sampled=sampled(row),
        place=Coordinate(row["step"], row["grid_group"], row["rollout"]) if reported else None,
    )


def report(row: sqlite3.Row) -> Report:
    return Report(
        receipt=row["receipt"],
        report_id=row["report_id"],
        content=row["content"],
        place=Coordinate(row["step"], row["grid_group"], row["rollout"]),
        accepted=bool(row["accepted"]),
    )


def node(row: sqlite3.Row) -> Node:
    return Node(
        id=row["id"],
        program=row["source"],
        output=row["output"],
        reward=row["reward"],
        objective=row["objective"],
        parent=row["parent"],
        seed=bool(row["seed"]),
        visits=row["visits"],
        best_child=row["best_child"],
        step=row["step"],
        certificate=from_json(row, "certificate", Certificate),
        artifact_sha256=row["artifact"],
        form=row["form"],
    )


def node_info(row: sqlite3.Row, *, program: str = "", output: str = "", lineage: list[int] | None = None) -> NodeInfo:
    return NodeInfo(
        node=row["id"],
        reward=row["reward"],
        objective=row["objective"],
        parent=row["parent"],
        seed=bool(row["seed"]),
        visits=row["visits"],
        step=row["step"],
        pruned=bool(row["pruned"]),
        program=program,
        output=output,
        lineage=lineage or [],
        certificate=from_json(row, "certificate", Certificate),
        artifact_sha256=row["artifact"],
    )


def artifact(row: sqlite3.Row) -> str:
    try:
        text = zlib.decompress(row["json"]).decode()
        msgspec.json.decode(text)
    except (zlib.error, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise StoreError(f"column 'json' of the state database cannot be read: {error}") from None
    return text


def best(row: sqlite3.Row) -> Best:
    return Best(node=row["id"], reward=row["reward"], objective=row["objective"], step=row["step"])


def run_info(row: sqlite3.Row, starter: Best | None, top: Best | None, state_dir: str) -> RunInfo:
    """Without what only the task knows: target, objective's name and direction."""
    return RunInfo(
        run=row["name"],
        task=row["task"],
        state=row["state"],
        reason=row["reason"],
        step=row["step"],
        steps=row["steps"],
        release=row["release"],
        grid=GridSize(row["groups"], row["rollouts"]),
        seed=row["seed"],
        created=row["created"],
        starter=starter,
        best=top,
        state_dir=state_dir,
        priority=row["priority"],
        waits_for_room=bool(row["waits"]),
        resumed_from=row["origin"],
        first_step=row["first_step"],
        mode=row["mode"],
        kind=row["kind"],
    )


def step_row(row: sqlite3.Row) -> StepRow:
    return StepRow(
        step=row["step"],
        phase=row["phase"],
        release=row["release"],
        metrics=from_json(row, "metrics", dict[str, float]),
        proof=from_json(row, "proof", Proof) if row["proof"] else None,
    )
