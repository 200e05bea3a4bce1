"""The configuration as JSON Schema, for editors that check TOML while it is written.

msgspec gives types and bounds, the source of tttdd.config the words: a string after a field describes it.
"""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import msgspec

from tttdd import config

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    found = msgspec.json.schema(config.Config)
    described = descriptions()
    for name, struct in found["$defs"].items():
        if struct.get("description") == config.Table.__doc__:  # inherited, and says nothing
            del struct["description"]
        for field, words in described.get(name, {}).items():
            struct["properties"][field]["description"] = words
    return {"$schema": DIALECT, "title": "tttdd's configuration", **found}


def descriptions() -> dict[str, dict[str, str]]:
    """Table's class -> field -> words.  Empty where the package has come without its source."""
    try:
        module = ast.parse(Path(config.__file__).read_text())
    except OSError:
        return {}
    classes = [each for each in module.body if isinstance(each, ast.ClassDef)]
    return {each.name: dict(_fields(each.body)) for each in classes}


def _fields(body: list[ast.stmt]) -> list[tuple[str, str]]:
    return [
        (field.target.id, " ".join(words.value.value.split()))
        for field, words in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(words, ast.Expr) and isinstance(words.value, ast.Constant) and isinstance(words.value.value, str)
    ]
