"""What makes two runs the same experiment, as a flat table of named fields.

    task texts (hashed), model, settings, seed  ->  {"grid.rollouts": 8, "task.judge": "sha256...", ...}

A resume with another identity is refused, naming the fields.  Algorithm, section 8, last sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

Value = str | int | float | bool | None

PLACEMENT = {
    "trainer.devices",
    "trainer.tensor_parallel",
    "trainer.max_tokens_per_gpu",
    "trainer.logprob_chunk",
    "trainer.recompute",
}
"""Where and in which portions the same step is computed: no part of what a run is."""

INHERITED = ("task.", "model.source", "model.revision", "model.dtype", "prompt.style")
"""Beginnings of the fields in which a run is like the one whose archive it goes on from."""
SHAPE = ("trainer.rank", "trainer.alpha", "trainer.targets")
"""Fields in which it is alike once that run has trained a release."""


def identity(
    *, task: Mapping[str, str], model: Mapping[str, Value], settings: Mapping[str, Any], seed: int
) -> dict[str, Value]:
    """`task` maps names to texts, of which only hashes are kept; `settings` maps names to Structs or tables."""
    fields: dict[str, Value] = {f"task.{name}": _sha256(text) for name, text in task.items()}
    fields |= {f"model.{name}": value for name, value in model.items()}
    for table, values in settings.items():
        for name, value in msgspec.to_builtins(values).items():
            fields[f"{table}.{name}"] = value if isinstance(value, Value) else msgspec.json.encode(value).decode()
    fields["seed"] = seed
    return {name: value for name, value in sorted(fields.items()) if name not in PLACEMENT}


def differences(a: Mapping[str, Value], b: Mapping[str, Value]) -> list[str]:
    """Names of the fields that are not the same in both, sorted."""
    absent = object()
    return sorted(name for name in {*a, *b} if a.get(name, absent) != b.get(name, absent))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
