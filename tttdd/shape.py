"""What a model weighs, from its files without loading them: config.json, and the headers of its safetensors.

safetensors file = u64 length | JSON {tensor: {dtype, shape, data_offsets}} | data
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

WIDTH = {"bfloat16": 2, "float32": 4}
HEADER_LIMIT = 100 << 20
"""Bytes; the format's own limit."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    parameters: int
    width: int
    """Bytes of a number as it is computed with, whatever the files hold."""
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def weights_bytes(self) -> int:
        """On a device."""
        return self.parameters * self.width

    @property
    def qkv(self) -> int:
        """Numbers of one token's query, keys and values in one layer."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Input and output size of each projection in a layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }


def shape(folder: Path, dtype: str) -> ModelShape:
    """Of the transformers model in `folder`, computed with in `dtype`.

    Raises OSError for files that are not there, ValueError for files that are no such model.
    """
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    try:
        heads = config["num_attention_heads"]
        return msgspec.convert(
            {
                "parameters": sum(_parameters(file) for file in weight_files(folder)),
                "width": WIDTH[dtype],
                "layers": config["num_hidden_layers"],
                "hidden": config["hidden_size"],
                "intermediate": config["intermediate_size"],
                "heads": heads,
                "kv_heads": config.get("num_key_value_heads") or heads,
                "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
                "vocab": config["vocab_size"],
            },
            ModelShape,
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"{folder}/config.json does not tell the model's shape: {error}") from None


def weight_files(folder: Path) -> list[Path]:
    """The files that an index names, else all safetensors.  Raises FileNotFoundError for none."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    if found := sorted(folder.glob("*.safetensors")):
        return found
    raise FileNotFoundError(f"{folder}: no *.safetensors")


def _parameters(file: Path) -> int:
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if length > HEADER_LIMIT:
            raise ValueError(f"{file} is no safetensors file")
        tensors: dict[str, Any] = json.loads(handle.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in tensors.items() if name != "__metadata__")
