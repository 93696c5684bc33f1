"""The routes of the REST API as an OpenAPI 3.1 document."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import UNSET

from .._version import __version__
from .problems import ProblemDocument
from .routes import EVENT_STREAM, Route

_REF = "#/components/schemas/{name}"
_MEDIA = ("application/json", "application/msgpack")
_NAME = re.compile(r"\{(\w+)\}")
_DESCRIPTION = (
    "Everything a queue can do. Bodies are JSON or msgpack, by Content-Type and Accept. Durations are "
    "seconds, times are ISO-8601 in UTC. Every change is answered when it is on disk. Queues of another "
    "account are below /api/v1/accounts/{account}/. Errors are RFC 9457 problems with a stable `code`."
)

# Not in the types: exactly one of two fields is required.
_EXACTLY_ONE = {
    **dict.fromkeys(("NewMessage", "RoutedMessage"), ("payload", "body")),
    **dict.fromkeys(("Receipts", "Nack", "Extend"), ("receipt_id", "receipts")),
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    routes = list(routes)
    types = [kind for route in routes for kind in (route.request, route.reply) if kind is not None]
    shapes, components = msgspec.json.schema_components([*types, ProblemDocument], ref_template=_REF)
    shape_of = {id(kind): shape for kind, shape in zip([*types, ProblemDocument], shapes, strict=True)}
    for name, fields in _EXACTLY_ONE.items():
        components[name]["oneOf"] = [{"required": [field]} for field in fields]
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(f"/api/v1/{route.path}", {})[route.method.lower()] = _operation(route, shape_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "OpenQ", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                "Problem": {
                    "description": "An error",
                    "content": {"application/problem+json": {"schema": shape_of[id(ProblemDocument)]}},
                }
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{}, {"token": []}, {"password": []}],
    }


def _operation(route: Route, shape_of: dict[int, dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "tags": [route.tag],
        "x-openq-permission": route.permission,
    }
    if route.handler.__doc__:
        operation["description"] = " ".join(route.handler.__doc__.split())
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _NAME.findall(route.path)
    ]
    parameters += _query_parameters(route)
    if parameters:
        operation["parameters"] = parameters
    if route.request is not None:
        schema = shape_of[id(route.request)]
        operation["requestBody"] = {
            "required": True,
            "content": {media: {"schema": schema} for media in _MEDIA},
        }
    if route.takes:
        binary = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": True, "content": dict.fromkeys(route.takes, binary)}
    content: dict[str, Any] = {media: {} for media in route.media}
    if route.media == (EVENT_STREAM,):
        content = {EVENT_STREAM: {"schema": {"type": "string"}, "x-openq-data": shape_of[id(route.reply)]}}
    elif route.reply is not None:
        content |= {media: {"schema": shape_of[id(route.reply)]} for media in _MEDIA}
    operation["responses"] = {
        str(status): {"description": HTTPStatus(status).phrase, "content": content} for status in route.status
    }
    operation["responses"]["default"] = {"$ref": "#/components/responses/Problem"}
    if route.scope in ("public", "visitor"):
        operation["security"] = []
    return operation


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    [_], components = msgspec.json.schema_components([route.query], ref_template=_REF)
    shape = components[route.query.__name__]
    required = set(shape.get("required", ()))
    parameters = []
    for field in msgspec.structs.fields(route.query):
        schema = shape["properties"][field.encode_name]
        # Query parameters have no null: they are left out.
        options = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
        if len(options) == 1:
            schema = options[0]
        elif schema.get("default", UNSET) is None:
            schema = {key: value for key, value in schema.items() if key != "default"}
        parameters.append(
            {
                "name": field.encode_name,
                "in": "query",
                "required": field.encode_name in required,
                "schema": schema,
            }
        )
    return parameters
