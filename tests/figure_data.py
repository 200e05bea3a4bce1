"""Runs and artifacts to draw: curves that were measured, from benchmarks/results, and vectors of known quality."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
from fake_daemon import FakeRunner

from tttdd import errors, protocol
from tttdd.protocol import Best, Figure, GridSize, NodeInfo, Proof, RunInfo, StepRow

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks" / "results" / "learning-erdos_min_overlap-smollm2-h200.json"
SEEDS = ROOT / "benchmarks" / "results" / "learning-erdos_min_overlap.json"
VECTORS = ROOT / "tests" / "vectors"


def run_of(name: str, steps: int, **changes: Any) -> RunInfo:
    starter = Best(node=0, reward=2.0, objective=0.5, step=-1)
    run = RunInfo(
        run=name,
        task="erdos_min_overlap",
        state="finished",
        step=steps,
        steps=steps,
        release=steps,
        grid=GridSize(8, 64),
        seed=0,
        created=1.75e9,
        starter=starter,
        best=Best(node=5, reward=2.5575, objective=0.391003460, step=2),
        target=0.3808,
        objective_name="C5",
        direction="lower",
        figure="overlap",
    )
    return msgspec.structs.replace(run, **changes)


def measured(file: Path = MEASURED, arm: int = 0) -> list[StepRow]:
    """The steps of one measured curve, with what the benchmark left out put in from what it kept."""
    curve: dict[str, Any] = json.loads(file.read_text())["curves"][arm]
    columns = {name: values for name, values in curve.items() if isinstance(values, list) and "/" in name}
    count = len(columns["tttd/reward_mean"])
    return [_row(step, {name: values[step] for name, values in columns.items()}, curve) for step in range(count)]


def _row(step: int, metrics: dict[str, float], curve: dict[str, Any]) -> StepRow:
    best = 1 / (1e-8 + metrics["archive/best_objective"])
    metrics = metrics | {"archive/best_reward": best, "tttd/reward_max": min(best, metrics["tttd/reward_mean"] * 1.35)}
    metrics["tttd/failures/constraint"] = float(round(512 * (1 - metrics["tttd/valid_fraction"])))
    proofs = curve.get("proof")
    proof = msgspec.convert(proofs[step], Proof) if proofs else None
    return StepRow(step=step, phase="committed", release=step, metrics=metrics, proof=proof)


def close_proofs(rows: list[StepRow], gaps: list[float], floor: float) -> list[StepRow]:
    """The first steps, with gaps far below the limit as float32 on a CPU has them."""
    return [
        msgspec.structs.replace(row, proof=msgspec.structs.replace(row.proof, gap=gap, floor=floor, limit=0.01))
        for row, gap in zip(rows, gaps, strict=False)
        if row.proof
    ]


def frozen(rows: list[StepRow]) -> list[StepRow]:
    """The same steps as a run without training tells them."""
    untold = ("train/", "time/train", "time/publish", "time/prove")
    return [
        msgspec.structs.replace(
            row,
            release=0,
            proof=None,
            metrics={name: value for name, value in row.metrics.items() if not name.startswith(untold)},
        )
        for row in rows
    ]


def lineage() -> list[NodeInfo]:
    """A best node's ancestors and itself, from the root."""
    found = [(0, 0.5, -1), (1, 0.4312, 0), (2, 0.4044, 0), (3, 0.39965, 1), (4, 0.3951, 2), (5, 0.39100346, 2)]
    return [node(number, objective, step, found[:number]) for number, objective, step in found]


def node(number: int, objective: float, step: int, before: list[Any], **changes: Any) -> NodeInfo:
    made = NodeInfo(
        node=number,
        reward=1 / objective,
        objective=objective,
        parent=number - 1 if number else None,
        seed=number == 0,
        visits=3,
        step=step,
        pruned=False,
        program="",
        lineage=[number for number, _, _ in reversed(before)],
    )
    return msgspec.structs.replace(made, **changes)


def artifact(figure: Figure) -> bytes:
    """What a good program of a task with this figure returns."""
    if figure == "circles":
        circles = _vector("circle_packing_26_ttt_repo")["circles"]
        radii = [r for _, _, r in circles]
        return msgspec.json.encode([[[x, y] for x, y, _ in circles], radii, sum(radii)])
    if figure == "overlap":
        heights = _vector("erdos_haugland2016_51")["sequence"]
        return msgspec.json.encode([heights, 0.380927, len(heights)])
    return msgspec.json.encode(_vector("ac1_prev_human_208")["sequence"])


def _vector(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


class RunsToDraw(FakeRunner):
    """The daemon's runner with runs that have a history, a lineage and an artifact; all have the same best program."""

    def __init__(self) -> None:
        super().__init__()
        self.histories: dict[str, list[StepRow]] = {}
        self.keep(artifact("overlap"))
        self.settings: dict[str, dict[str, protocol.Value]] = {}
        self.program = "def run(seed=42):\n    return [0.5] * 51, 0.38, 51\n"

    def keep(self, kept: bytes) -> None:
        """Of what every best program is to have returned."""
        self.kept: bytes | None = kept
        self.sha256 = hashlib.sha256(kept).hexdigest()

    def add(self, run: RunInfo, rows: list[StepRow], **settings: protocol.Value) -> None:
        self.by_name[run.run], self.histories[run.run], self.settings[run.run] = run, rows, settings

    def steps(self, name: str) -> list[StepRow]:
        self.run(name)
        return self.histories[name]

    def node(self, name: str, id: int) -> NodeInfo:
        self.run(name)
        found = lineage()[id]
        certificate: dict[str, str | float | bool] = {"exact_objective": 0.39100346, "exact_agrees": True}
        return msgspec.structs.replace(
            found, program=self.program, output="said \x1b[31mred", certificate=certificate, artifact_sha256=self.sha256
        )

    def best(self, name: str) -> NodeInfo:
        return self.node(name, 5)

    def artifact(self, name: str, id: int) -> protocol.Artifact:
        if self.kept is None:
            raise errors.NotFound(f"what node {id} of run {name!r} returned is not kept", field="node")
        return protocol.Artifact(msgspec.Raw(self.kept), self.sha256)

    def identity(self, name: str) -> dict[str, protocol.Value]:
        run = self.run(name)
        fields: dict[str, protocol.Value] = {"mode": run.mode, "seed": run.seed, "model.source": "/models/small"}
        return fields | self.settings[name]

    async def verify(self, name: str, node: int | None) -> dict[str, object]:
        return {**await super().verify(name, node), "artifact_sha256": self.sha256}
