"""Writes web/src/api/schema.ts: the types of the REST API, from the server's own OpenAPI document.

The file is made anew by every build and is not kept in git, so the page cannot drift from the server.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

from openq.auth.rules import ROLES
from openq.rest import handler  # noqa: F401 - registers every route
from openq.rest.openapi import document
from openq.rest.routes import ROUTES
from openq.settings import SETTINGS, Kind

TARGET = Path(__file__).parent / "src" / "api" / "schema.ts"
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def type_of(shape: dict[str, Any]) -> str:
    """The TypeScript type of a JSON schema."""
    if "$ref" in shape:
        return str(shape["$ref"]).rsplit("/", 1)[1]
    if "enum" in shape:
        return " | ".join(_literal(value) for value in shape["enum"])
    if "const" in shape:
        return _literal(shape["const"])
    if "anyOf" in shape:
        return " | ".join(dict.fromkeys(type_of(each) for each in shape["anyOf"]))
    kind = shape.get("type")
    if kind == "array":
        items = type_of(shape.get("items", {}))
        return f"({items})[]" if "|" in items else f"{items}[]"
    if kind == "object":
        if "properties" in shape:
            return "{ " + " ".join(_fields(shape)) + " }"
        values = shape.get("additionalProperties")
        return f"Record<string, {type_of(values) if isinstance(values, dict) else 'unknown'}>"
    return _PLAIN.get(str(kind), "unknown")


def _literal(value: Any) -> str:
    return (
        f'"{value}"'
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def _key(name: str) -> str:
    return name if _NAME.match(name) else f'"{name}"'


def _fields(shape: dict[str, Any]) -> list[str]:
    required = set(shape.get("required", ()))
    return [
        f"{_key(name)}{'' if name in required else '?'}: {type_of(field)};"
        for name, field in shape["properties"].items()
    ]


def _interface(name: str, shape: dict[str, Any]) -> str:
    if "properties" not in shape:
        return f"export type {name} = {type_of(shape)};"
    fields = "".join(f"\n  {field}" for field in _fields(shape))
    return f"export interface {name} {{{fields}\n}}"


def _json_of(content: dict[str, Any]) -> str:
    media = content.get("application/json")
    return "unknown" if media is None else type_of(media.get("schema", {}))


def _body_type(operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    return _json_of(content) if content else "undefined"


def _result_type(operation: dict[str, Any]) -> str:
    for status, response in operation["responses"].items():
        if str(status).startswith("2"):
            return _json_of(response.get("content", {}))
    return "unknown"


def _parameters(operation: dict[str, Any]) -> str:
    fields = [
        f"{_key(each['name'])}{'' if each['required'] else '?'}: {type_of(each['schema'])};"
        for each in operation.get("parameters", ())
    ]
    return "{ " + " ".join(fields) + " }" if fields else "Record<string, never>"


def typescript(described: dict[str, Any]) -> str:
    parts = ["// Made by web/make_types.py from the server's OpenAPI document; not kept in git."]
    parts += [_interface(name, shape) for name, shape in sorted(described["components"]["schemas"].items())]
    types, table = [], []
    operations = (
        (method, path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    )
    for method, path, operation in sorted(operations, key=lambda each: each[2]["operationId"]):
        name = operation["operationId"]
        types.append(
            f"  {name}: {{ params: {_parameters(operation)}; body: {_body_type(operation)};"
            f" result: {_result_type(operation)} }};"
        )
        table.append(
            f'  {name}: ["{method.upper()}", "{path}", "{operation.get("x-openq-permission") or ""}"],'
        )
    parts.append("export interface Operations {\n" + "\n".join(types) + "\n}")
    parts.append(
        "/** Method, path and permission of every operation. */\n"
        "export const OPERATIONS: Record<keyof Operations, readonly [string, string, string]> = {\n"
        + "\n".join(table)
        + "\n};"
    )
    parts.append(_settings_table())
    parts.append(_roles())
    return "\n\n".join(parts) + "\n"


def _settings_table() -> str:
    """The settings of queues with what each means: the page does not describe them again."""
    fields = {
        "name": "string",
        "kind": " | ".join(f'"{kind}"' for kind in get_args(Kind)),
        "help": "string",
        "optional": "boolean",
        "endless": "boolean",
        "minimum": "number",
        "maximum": "number | null",
        "choices": "readonly string[]",
        "flag": "boolean",
    }
    rows = [
        {
            "name": each.name,
            "kind": each.kind,
            "help": each.help,
            "optional": each.is_optional,
            "endless": each.is_endless,
            "minimum": each.minimum,
            "maximum": None if each.maximum >= 1 << 53 else each.maximum,
            "choices": list(each.choices),
            "flag": each.in_cli,
        }
        for each in SETTINGS
    ]
    described = "".join(f"\n  {name}: {kind};" for name, kind in fields.items())
    lines = "".join(f"\n  {json.dumps(row)}," for row in rows)
    return (
        f"/** A setting of a queue. `flag`: the command line has an option for it. */\n"
        f"export interface SettingDescription {{{described}\n}}\n\n"
        f"export const SETTINGS: readonly SettingDescription[] = [{lines}\n];"
    )


def _roles() -> str:
    """The roles with the actions that each allows."""
    lines = "".join(
        f"\n  {name}: {json.dumps(sorted({action for rule in rules for action in rule.actions}))},"
        for name, rules in ROLES.items()
    )
    kind = "Record<string, readonly string[]>"
    return f"/** What each role allows. */\nexport const ROLES: {kind} = {{{lines}\n}};"


if __name__ == "__main__":
    text = typescript(document(ROUTES))
    if not TARGET.exists() or TARGET.read_text() != text:
        TARGET.write_text(text)
