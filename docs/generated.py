"""The pages of the reference are made of the program itself: command line, configuration, HTTP API.

A page holds a line `[generated: NAME]`; this hook of MkDocs puts the text of NAME there.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tttctl.parser import parser
from tttctl.verbs.schema import descriptions
from tttdd import __version__
from tttdd.api.app import routes
from tttdd.api.openapi import describe
from tttdd.config import Config


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"^\[generated: (\w+)\]$", lambda found: TEXTS[found.group(1)](), markdown, flags=re.MULTILINE)


def command_line() -> str:
    return "\n".join(_verbs(parser()))


def _verbs(of: argparse.ArgumentParser) -> Iterator[str]:
    """A section for every verb, with its own help."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in dict.fromkeys(action.choices.values()):
                if verb._defaults.get("module"):
                    yield f"## {verb.prog}\n\n```text\n{verb.format_help().strip()}\n```\n"
                yield from _verbs(verb)


def configuration() -> str:
    tables = [(field.name, field.type) for field in msgspec.structs.fields(Config)]
    return "\n".join(line for name, kind in tables for line in _table(name, kind))


def _table(name: str, kind: Any) -> Iterator[str]:
    yield f"## [{name}]\n\n| key | type | default | |\n| --- | --- | --- | --- |"
    words = descriptions().get(kind.__name__, {})
    inner: list[tuple[str, Any]] = []
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            inner.append((f"{name}.{field.name}", field.type))
        else:
            yield f"| `{field.name}` | {_kind(field.type)} | {_default(field)} | {words.get(field.name, '')} |"
    yield ""
    for table in inner:
        yield from _table(*table)


def _kind(kind: Any) -> str:
    schema = msgspec.json.schema(kind)
    words = [_words(each) for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    return " or ".join(words)


def _words(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    told = {"minimum": "≥", "maximum": "≤", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[name]:g}" for name, sign in told.items() if name in schema]
    return ", ".join([str(schema.get("type", "any")), *bounds])


def _default(field: Any) -> str:
    if field.required:
        return "must be given"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return "none" if value is None else f"`{msgspec.json.encode(value).decode()}`"


def http_api() -> str:
    nobody: Any = None  # the routes are told, never called
    told = describe(routes(*[nobody] * 5), __version__)
    lines = [
        f"| `{method.upper()} {path}` | {operation['summary']} | {_takes(operation)} | {_gives(operation)} |"
        for path, methods in told["paths"].items()
        for method, operation in methods.items()
    ]
    return "\n".join(
        ["| call | does | takes | gives |", "| --- | --- | --- | --- |", *lines, "", *_schemas(told["components"])]
    )


def _takes(operation: dict[str, Any]) -> str:
    query = [f"`?{each['name']}`" for each in operation["parameters"] if each["in"] == "query"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    return " ".join([*query, *([] if body.get("$ref", "/Nothing").endswith("/Nothing") else [_name(body)])])


def _gives(operation: dict[str, Any]) -> str:
    (kind, content), *_ = next(iter(operation["responses"].values()))["content"].items()
    return _name(content["schema"]) if kind == "application/json" else f"`{kind}`"


def _name(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if schema.get("type") == "array":
        return f"list of {_name(schema['items'])}"
    if "anyOf" in schema:
        return " or ".join(_name(each) for each in schema["anyOf"])
    return _words(schema)


def _schemas(components: dict[str, Any]) -> Iterator[str]:
    for name, schema in sorted(components["schemas"].items()):
        if properties := schema.get("properties"):
            yield f"\n### {name}\n\n{schema.get('description', '')}\n\n| field | type |\n| --- | --- |"
            yield from (f"| `{field}` | {_name(kind)} |" for field, kind in properties.items())


TEXTS: dict[str, Callable[[], str]] = {
    "command_line": command_line,
    "configuration": configuration,
    "http_api": http_api,
}
