"""The rows that the store writes of rollouts and archive, inside its transactions.

Programs and artifacts are kept once, by their SHA-256; tokens and log-probs are packed arrays.
"""

from __future__ import annotations

import hashlib
import time
import zlib

from msgspec.structs import replace

from tttdd.adapters import rows
from tttdd.adapters.database import Database
from tttdd.domain import batch as packing
from tttdd.domain.archive import Archive, Node
from tttdd.ports import Receipt, Report, Rollout

EMPTIED = "prompt_ids = x'', token_ids = x'', logprobs = x'', loss_mask = x'', text = ''"


def program(database: Database, source: str) -> str:
    digest = hashlib.sha256(source.encode()).hexdigest()
    database.change("INSERT OR IGNORE INTO programs (sha256, source) VALUES (?, ?)", digest, source)
    return digest


def artifact(database: Database, run: str, sha256: str, json: str) -> None:
    if json:
        packed = zlib.compress(json.encode(), level=1)
        statement = "INSERT OR IGNORE INTO artifacts (run, sha256, json) VALUES (?, ?, ?)"
        database.change(statement, run, sha256, packed)


def rollout(database: Database, run: str, judged: Rollout) -> None:
    place, sampled, verdict = judged.coordinate, judged.sampled, judged.verdict
    artifact(database, run, verdict.artifact_sha256, verdict.artifact)
    source = None if judged.program is None else program(database, judged.program)
    database.change(
        "INSERT INTO rollouts (run, step, grid_group, rollout, release, parent, program, finish_reason, tokens,"
        " verdict, recorded) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(run, place.step, place.group, place.rollout, sampled.release, judged.parent, source),
        *(sampled.finish_reason, len(sampled.token_ids), rows.to_json(replace(verdict, artifact="")), time.time()),
    )


def sample(database: Database, run: str, judged: Rollout) -> None:
    place, sampled = judged.coordinate, judged.sampled
    database.change(
        "INSERT INTO samples (run, step, grid_group, rollout, token_ids, logprobs, loss_mask, text, prompt_ids)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(run, place.step, place.group, place.rollout),
        *(packing.pack_ids(sampled.token_ids), packing.pack_logprobs(sampled.logprobs)),
        *(packing.pack_mask(sampled.loss_mask), sampled.text, packing.pack_ids(judged.prompt_ids)),
    )


def receipt(database: Database, given: Receipt) -> None:
    sampled = given.sampled
    database.change(
        "INSERT INTO receipts (id, run, step, release, finish_reason, prompt_ids, token_ids, logprobs, loss_mask, text,"
        " created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(given.id, given.run, given.step, sampled.release, sampled.finish_reason),
        *(packing.pack_ids(given.prompt_ids), packing.pack_ids(sampled.token_ids)),
        *(packing.pack_logprobs(sampled.logprobs), packing.pack_mask(sampled.loss_mask), sampled.text, time.time()),
    )


def report(database: Database, run: str, told: Report) -> None:
    """The report, and, where it is accepted, its receipt as used: what it stood for is a rollout's by now."""
    place = told.place
    database.change(
        "INSERT INTO reports (run, receipt, report_id, content, step, grid_group, rollout, accepted, created)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(run, told.receipt, told.report_id, told.content, place.step, place.group, place.rollout, told.accepted),
        time.time(),
    )
    if told.accepted:
        database.change(
            f"UPDATE receipts SET step = ?, grid_group = ?, rollout = ?, {EMPTIED} WHERE id = ?",
            *(place.step, place.group, place.rollout, told.receipt),
        )


def forget_receipts(database: Database, run: str, release: int) -> None:
    """What was sampled before `release`, and not reported, can't be any more; that it was given stays known."""
    database.change(f"UPDATE receipts SET {EMPTIED} WHERE run = ? AND release < ? AND grid_group IS NULL", run, release)


def archive(database: Database, run: str, forest: Archive) -> None:
    """Rows of all living nodes and of those pruned since the archive was loaded; older ids first (parents)."""
    pruned = forest.removed
    for node in sorted([*forest, *pruned.values()], key=lambda node: node.id):
        _node(database, run, node, pruned=node.id in pruned)
    database.change("UPDATE runs SET expansions = ? WHERE name = ?", forest.expansions, run)


def _node(database: Database, run: str, node: Node, *, pruned: bool) -> None:
    database.change(
        "INSERT INTO nodes (run, id, parent, seed, pruned, program, form, output, reward, objective, visits,"
        " best_child, step, certificate, artifact) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (run, id) DO UPDATE"
        " SET visits = excluded.visits, best_child = excluded.best_child, pruned = excluded.pruned",
        *(run, node.id, node.parent, node.seed, pruned, program(database, node.program), node.form, node.output),
        *(node.reward, node.objective, node.visits, node.best_child, node.step, rows.to_json(node.certificate)),
        node.artifact_sha256,
    )
