"""config show|check|schema: every value and the line it comes from; what is wrong with a file; what a file may say."""

from __future__ import annotations

import tomllib
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from tttctl.client import Client
from tttctl.render import complain, say, show_json, table
from tttdd.config import Config, ConfigError, default_path, load, place

DEFAULT = "default"


def config(client: Client, options: Namespace) -> int:
    if options.action == "schema":
        return _schema(options)
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
    values = origins(loaded, path)
    if options.json:
        show_json({"file": str(path), "valid": True, "values": values})
    elif options.action == "check":
        say(f"{path}: valid")
    else:
        say(f"# {path}")
        rows = [[name, _shown(at["value"]), at["from"].rpartition("/")[2]] for name, at in values.items()]
        table(["KEY", "VALUE", "FROM"], rows)
    return 0


def origins(loaded: Config, path: Path) -> dict[str, dict[str, Any]]:
    """`table.key` -> its value, and `file:line` or `default`."""
    at = lines(path.read_text())
    return {
        name: {"value": value, "from": f"{path}:{at[name]}" if name in at else DEFAULT}
        for name, value in _settings(loaded, "")
    }


def lines(text: str) -> dict[str, int]:
    """Dotted key -> line where its value begins, in valid TOML.

    TOML's parser tells no lines, but of a file cut off after line n it gives what the first n lines say.
    """
    found: dict[str, int] = {}
    first, kept = 1, text.splitlines(keepends=True)
    for number in range(1, len(kept) + 1):
        try:
            said = tomllib.loads("".join(kept[:number]))
        except tomllib.TOMLDecodeError:
            continue  # in the middle of a value
        for key in _keys(said, ""):
            found.setdefault(key, first)
        first = number + 1
    return found


def _settings(loaded: msgspec.Struct, table: str) -> Iterator[tuple[str, Any]]:
    for name in loaded.__struct_fields__:
        value = getattr(loaded, name)
        if isinstance(value, msgspec.Struct):
            yield from _settings(value, f"{table}{name}.")
        else:
            yield table + name, value


def _keys(said: dict[str, Any], table: str) -> Iterator[str]:
    for name, value in said.items():
        yield table + name
        if isinstance(value, dict):
            yield from _keys(cast(dict[str, Any], value), f"{table}{name}.")


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _schema(options: Namespace) -> int:
    from tttctl.verbs.schema import schema

    if options.json:
        show_json(schema())
    else:
        say(msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode())
    return 0


def _check_devices(path: Path, loaded: Config) -> None:
    """Raises ConfigError for a device that this machine does not have."""
    if loaded.engine.devices or loaded.trainer.devices:
        from tttdd import gpus  # NVML's bindings are slow to import

        for field, rule in gpus.missing(loaded, gpus.read()):
            raise ConfigError(f"{place(path, field)}: {field}: {rule}")
