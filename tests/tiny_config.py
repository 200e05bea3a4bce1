"""The configuration of a daemon with the tiny model, for tests that run a real one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Value = str | int | float | list[int]


def tiny_config(folder: Path, state_dir: Path, **more: Mapping[str, Value]) -> str:
    """TOML.  The socket is folder/s, the model folder/model; `more` are tables whose keys are set besides."""
    tables: dict[str, Mapping[str, Value]] = {
        "daemon": {"socket": f"{folder}/s", "state_dir": f"{state_dir}", "group": ""},
        "model": {"path": f"{folder}/model", "dtype": "float32"},
        "engine": {"backend": "torch", "devices": [], "context_length": 4096},
        "trainer": {"devices": [], "rank": 4, "lr": 1e-3, "max_tokens_per_gpu": 1024},
        "sampling": {"max_new_tokens": 40},
        "prompt": {"style": "completion"},
        "judges": {"time_limit": 5.0},
    }
    for name, values in more.items():
        tables[name] = {**tables.get(name, {}), **values}
    return "".join(f"[{name}]\n{_keys(values)}" for name, values in tables.items())


def _keys(values: Mapping[str, Value]) -> str:
    return "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())


def _toml(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
