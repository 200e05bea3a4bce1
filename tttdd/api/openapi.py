"""The API's description in OpenAPI 3.1, from the table of routes; the Structs' schemas are msgspec's."""

from __future__ import annotations

from typing import Any

import msgspec

from tttdd import protocol
from tttdd.api.routing import Route

PARAMETERS: dict[str, Any] = {"run": str, "node": protocol.Node}


def describe(routes: list[Route], version: str) -> dict[str, Any]:
    kinds: list[Any] = [getattr(route, part) for part in ("fails", "gives", "takes") for route in routes]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for number, route in enumerate(routes):
        error, gives, takes = schemas[number :: len(routes)]
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, gives, takes, error)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tttdd", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, gives: Any, takes: Any, error: Any) -> dict[str, Any]:
    kind = route.kind
    if route.path == "/v1/events":
        kind, gives = "text/event-stream", _event(gives)
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.handler.__name__,
        "parameters": [_parameter(name, "path", PARAMETERS[name], required=True) for name in route.parameters]
        + [_parameter(field.name, "query", field.type) for field in msgspec.structs.fields(route.query)]
        + ([_parameter(route.header, "header", str, required=True)] if route.header else []),
        "responses": {
            str(route.status): {"description": route.summary, "content": {kind: {"schema": gives}}},
            "default": {"description": "What is wrong", "content": {"application/json": {"schema": error}}},
        },
    }
    if route.method == "POST":
        operation["requestBody"] = {"content": {"application/json": {"schema": takes}}, "required": _needed(route)}
    return operation


def _event(gives: Any) -> dict[str, Any]:
    """One event, as OpenAPI 3.2 describes them."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": gives}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _parameter(name: str, place: str, kind: Any, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": msgspec.json.schema(kind)}


def _needed(route: Route) -> bool:
    return any(field.required for field in msgspec.structs.fields(route.takes))
