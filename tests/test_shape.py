"""A model's shape from its files: the headers are read, never the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import write_tiny_model

from tttdd.shape import shape


def test_the_shape_of_a_real_model_is_read_from_its_files(tmp_path: Path) -> None:
    from safetensors import safe_open

    write_tiny_model(tmp_path)
    found = shape(tmp_path, "float32")
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        count = sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118
    config = json.loads((tmp_path / "config.json").read_text())
    assert (found.parameters, found.weights_bytes) == (count, 4 * count)
    assert (found.layers, found.hidden, found.vocab) == (
        config["num_hidden_layers"],
        config["hidden_size"],
        config["vocab_size"],
    )


def write_model(folder: Path, shards: dict[str, list[int]], **config: Any) -> Path:
    """A model of headers alone."""
    fields = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps(fields | {"vocab_size": 32} | config))
    for name, dims in shards.items():
        header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "BF16", "shape": dims}}).encode()
        (folder / name).write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def test_only_the_shards_of_the_index_count(tmp_path: Path) -> None:
    write_model(tmp_path, {"a.safetensors": [4, 5], "b.safetensors": [7], "other.safetensors": [1000]})
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = shape(tmp_path, "bfloat16")
    assert (found.parameters, found.weights_bytes, found.kv_heads, found.head_dim) == (27, 54, 2, 4)


def test_files_that_are_no_model_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        shape(tmp_path, "bfloat16")
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(ValueError, match="does not tell the model's shape"):
        shape(tmp_path, "bfloat16")
    with pytest.raises(FileNotFoundError, match=r"no \*.safetensors"):
        shape(write_model(tmp_path, {}), "bfloat16")
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(ValueError, match="is no safetensors file"):
        shape(tmp_path, "bfloat16")
