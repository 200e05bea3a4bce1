"""python trainer_ranks.py OPTIONS REQUESTS ROUNDS: one process of a trainer that has too little memory, by hand.

For each request a round: processes whose model has room for so many tokens of a bin, {"1": 20}.
Prints a list of the reports, or errors, with the warnings, as JSON.
"""

from __future__ import annotations

import json
import math
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch

from tttdd import wire
from tttdd.workers import parallel
from tttdd.workers.train import Options, Trainer, TrainRequest


def main(options: str, requests: str, rounds: str) -> None:
    parallel.MEETING = timedelta(seconds=2)
    one = Trainer(msgspec.json.decode(options, type=Options))
    whole = one._passes.model._hidden
    wanted = msgspec.json.decode(requests, type=list[TrainRequest], dec_hook=lambda kind, value: Path(value))
    said: list[dict[str, Any]] = []
    for request, limits in zip(wanted, json.loads(rounds), strict=True):
        one._passes.model._hidden = with_room(whole, limits.get(str(one._options.seat.index), math.inf))
        said.append(answer(one, request))
    print(json.dumps(said), flush=True)
    os._exit(0)  # a process that waits for another one would not end


def answer(one: Trainer, request: TrainRequest) -> dict[str, Any]:
    events: list[wire.Event] = []
    try:
        words = {"report": msgspec.structs.asdict(one.train(request, events.append))}
    except (ValueError, RuntimeError) as error:
        words = {"error": str(error)}
    return words | {"warnings": [event.data["text"] for event in events if event.name == "warning"]}


def with_room(whole: Any, tokens: float) -> Any:
    """The model's pass, which runs out of memory in its last layer, on more tokens, when gradients are taken."""

    def hidden(layout: Any) -> torch.Tensor:
        out = whole(layout)
        if torch.is_grad_enabled() and len(layout.tokens_T) > tokens:
            raise torch.OutOfMemoryError("tried to allocate too much")
        return out

    return hidden


if __name__ == "__main__":
    main(*sys.argv[1:])
