"""The trainer's protocol without a model: the same files, written the same way, and the same refusals."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.crash.light_sample import logprobs
from tttdd import wire
from tttdd.domain import batch as batches
from tttdd.durable import folder_written
from tttdd.failpoint import Point, reach

REPORT = {
    "loss": 0.1, "ratio_mean": 1.0, "sampler_trainer_gap": 0.0, "kl_base": 0.01, "grad_norm": 0.5, "tokens": 100,
    "seconds": 0.1,
}  # fmt: skip


def train(release: int, release_path: str | None, batch: str, target: str, target_number: int) -> dict[str, Any]:
    sha256, place = hashlib.sha256(Path(batch).read_bytes()).hexdigest(), Path(target)
    if place.exists():
        record = json.loads((place / "release.json").read_text())
        assert (record["parent"], record["batch_sha256"]) == (release, sha256)
        return record["report"]
    assert batches.read(Path(batch)).release == release
    assert release_path is None or (Path(release_path) / "adapter_model.safetensors").stat().st_size == 200_000
    reach(Point.OPTIMIZER_STEPPED, place.name)
    record = {"number": target_number, "parent": release, "batch_sha256": sha256, "seed": 0, "report": REPORT}
    with folder_written(place) as aside:
        (aside / "release.json").write_text(json.dumps(record))
        (aside / "adapter_model.safetensors").write_bytes(bytes(200_000))
    return REPORT


def answer(request: wire.Request) -> wire.Reply:
    if request.method == "score":
        return wire.Reply(request.id, logprobs(request.params["completion_ids"], request.params["release_path"]))
    try:
        return wire.Reply(request.id, train(**request.params))
    except (OSError, ValueError) as error:
        return wire.Reply(request.id, error=f"train: {error}")


def main(line: wire.Line, options: dict[str, Any]) -> None:
    line.send(wire.Event("ready"))
    while True:
        request = line.receive()
        if isinstance(request, wire.Request) and request.method != "cancel":
            line.send(answer(request))
