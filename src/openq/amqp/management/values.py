"""Fields of request bodies, and message properties as JSON."""

from __future__ import annotations

from ... import amqp_fields
from ...amqp_fields import AmqpProperties, MalformedProperties, Timestamp
from ..definitions_export import to_json_value
from .call import Json, bad_request


def flag(body: Json, name: str) -> bool:
    value = body.get(name, False)
    if value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise bad_request(["not_boolean", value])
    return value


def arguments_field(body: Json) -> Json:
    value = body.get("arguments", {})
    if value == []:
        return {}
    if not isinstance(value, dict):
        raise bad_request("arguments must be an object")
    return value


def count_field(body: Json, name: str, default: int | None) -> int | None:
    value = body.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
        value = int(value)
    if value is default:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise bad_request(f"{name} must be a whole number")
    return value


def properties_json(properties: AmqpProperties) -> Json:
    found: Json = {}
    for name in _PROPERTIES:
        value = getattr(properties, name)
        if value is not None:
            found[name] = to_json_value(value)
    return found


_PROPERTIES: dict[str, type] = {
    "content_type": str,
    "content_encoding": str,
    "headers": dict,
    "delivery_mode": int,
    "priority": int,
    "correlation_id": str,
    "reply_to": str,
    "expiration": str,
    "message_id": str,
    "timestamp": int,
    "type": str,
    "user_id": str,
    "app_id": str,
    "cluster_id": str,
}


def encode_properties(source: object) -> bytes:
    """Properties from JSON, as a publisher encodes them."""
    if source == []:
        source = {}
    if not isinstance(source, dict):
        raise bad_request("properties must be an object")
    given: Json = {}
    for name, value in source.items():
        kind = _PROPERTIES.get(name)
        if kind is None:
            raise bad_request(f"unknown property {name!r}")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise bad_request(f"the property {name} must be {_KINDS[kind]}")
        given[name] = Timestamp(source[name]) if name == "timestamp" else value
    try:
        return amqp_fields.encode(AmqpProperties(**given))
    except (MalformedProperties, OverflowError, ValueError) as error:
        raise bad_request(f"properties: {error}") from error


_KINDS = {str: "text", int: "a number", dict: "an object"}
