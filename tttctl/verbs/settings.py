"""config show|check: every value and where it came from; what is wrong with a file, by line."""

from __future__ import annotations

import tomllib
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec

from tttctl.client import Client
from tttctl.render import complain, say, show_json, table
from tttdd.config import Config, ConfigError, default_path, load, place


def config(client: Client, options: Namespace) -> int:
    path = Path(options.file) if options.file else default_path()
    try:
        loaded = load(path)
        if options.action == "check":
            _check_devices(path, loaded)
    except ConfigError as error:
        if options.json:
            show_json({"file": str(path), "valid": False, "error": str(error)})
        complain(str(error))
        return 2
    values = origins(loaded, tomllib.loads(path.read_text()))
    if options.json:
        show_json({"file": str(path), "valid": True, "values": values})
    elif options.action == "check":
        say(f"{path}: valid")
    else:
        say(f"# {path}")
        rows = [[name, str(msgspec.json.encode(at["value"]), "utf-8"), at["from"]] for name, at in values.items()]
        table(["KEY", "VALUE", "FROM"], rows)
    return 0


def _check_devices(path: Path, loaded: Config) -> None:
    """Raises ConfigError for a device that this machine does not have."""
    if loaded.engine.devices or loaded.trainer.devices:
        from tttdd import gpus  # NVML's bindings are slow to import

        for field, rule in gpus.missing(loaded, gpus.read()):
            raise ConfigError(f"{place(path, field)}: {field}: {rule}")


def origins(loaded: Config, given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """`table.key` -> its value, and whether it is from the file or the default."""
    tables: dict[str, dict[str, Any]] = msgspec.to_builtins(loaded)
    return {
        f"{table}.{key}": {"value": value, "from": "file" if key in given.get(table, {}) else "default"}
        for table, keys in tables.items()
        for key, value in keys.items()
    }
