"""The two tables of the history, column by column: `messages` and `events`.

Journal, archive, HTTP and Spark share these columns. Changes only add columns. The version is in the metadata
of every schema, and a reader refuses other versions.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from openq.errors import InvalidSetting

VERSION = 1
VERSION_KEY = b"openq.columns"
TABLES = ("messages", "events")

# Columns that need the bytes of a body; all others are read without them.
BODY_COLUMNS = ("body", "body_sha256")

EVENTS = (
    "publish",
    "deliver",
    "ack",
    "nack",
    "lease_expired",
    "release",
    "visibility_change",
    "expire",
    "dead_letter",
    "redrive",
    "move",
    "cancel",
    "drop",
    "edit",
    "reschedule",
    "delete",
    "purge",
)

_TIME = pa.timestamp("us", tz="UTC")
_ATTRIBUTE = pa.struct([("type", pa.string()), ("string", pa.string()), ("binary", pa.binary())])
_ATTRIBUTES = pa.map_(pa.string(), _ATTRIBUTE)
_HEADERS = pa.map_(pa.string(), pa.string())

_FIELDS: dict[str, dict[str, pa.DataType]] = {
    "messages": {
        "position": pa.int64(),
        "seq": pa.int64(),
        "ts": _TIME,
        "queue": pa.string(),
        "message_id": pa.string(),
        "type": pa.string(),
        "group": pa.string(),
        "dedup_id": pa.string(),
        "priority": pa.int32(),
        "delay_us": pa.int64(),
        "expires": _TIME,
        "content_type": pa.string(),
        "attributes": _ATTRIBUTES,
        "headers": _HEADERS,
        "trace_id": pa.string(),
        "producer": pa.string(),
        "exchange": pa.string(),
        "routing_key": pa.string(),
        "replay_of": pa.string(),
        "replay_count": pa.int32(),
        "batch": pa.string(),
        "size": pa.int32(),
        "body_sha256": pa.binary(),
        "body": pa.binary(),
    },
    "events": {
        "position": pa.int64(),
        "item": pa.int32(),
        "seq": pa.int64(),
        "ts": _TIME,
        "queue": pa.string(),
        "message_id": pa.string(),
        "event": pa.string(),
        "receive_count": pa.int32(),
        "consumer": pa.string(),
        "protocol": pa.string(),
        "receipt_hash": pa.string(),
        "delay_us": pa.int64(),
        "error_type": pa.string(),
        "error_signature": pa.string(),
        "error_text": pa.string(),
        "dlq_source": pa.string(),
        "to_queue": pa.string(),
        "to_seq": pa.int64(),
        "batch": pa.string(),
        "group": pa.string(),
        "dedup_id": pa.string(),
        "priority": pa.int32(),
        "size": pa.int32(),
    },
}

_SPARK = {
    pa.int64(): "BIGINT",
    pa.int32(): "INT",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    _TIME: "TIMESTAMP",
    _ATTRIBUTES: "MAP<STRING, STRUCT<`type`: STRING, `string`: STRING, `binary`: BINARY>>",
    _HEADERS: "MAP<STRING, STRING>",
}


def column_names(table: str, columns: Sequence[str] | None = None, body: bool = True) -> list[str]:
    """The columns of a table, or those requested, in that order. Raises InvalidSetting."""
    known = _fields(table)
    if columns is None:
        return [name for name in known if body or name not in BODY_COLUMNS]
    for name in columns:
        if name not in known:
            raise InvalidSetting(f"table {table} has no column {name!r}; it has {', '.join(known)}")
        if not body and name in BODY_COLUMNS:
            raise InvalidSetting(f"column {name!r} needs bodies, and body is false: leave one of them out")
    if len(set(columns)) != len(columns) or not columns:
        raise InvalidSetting("columns must name at least one column, and each of them once")
    return list(columns)


def arrow_schema(table: str, columns: Sequence[str] | None = None, body: bool = True) -> pa.Schema:
    fields = _fields(table)
    return pa.schema(
        [(name, fields[name]) for name in column_names(table, columns, body)],
        metadata={VERSION_KEY: str(VERSION).encode()},
    )


def ddl(table: str, columns: Sequence[str] | None = None, body: str = "true") -> str:
    """The same schema as DDL of Spark; body="json" adds `body_json`, the body as a VARIANT."""
    if body not in ("true", "false", "json"):
        raise InvalidSetting(f"body must be true, false or json, not {body!r}")
    fields = _fields(table)
    extra = ", `body_json` VARIANT" if body == "json" and table == "messages" else ""
    names = column_names(table, columns, body != "false")
    return ", ".join(f"`{name}` {_SPARK[fields[name]]}" for name in names) + extra


def check_version(metadata: dict[bytes, bytes] | None, where: str) -> None:
    """Raises InvalidSetting if the columns of a file are not of this version of OpenQ."""
    version = (metadata or {}).get(VERSION_KEY)
    if version is None:
        raise InvalidSetting(f"{where} does not hold columns of OpenQ")
    if version != str(VERSION).encode():
        raise InvalidSetting(
            f"{where} holds columns of version {version.decode(errors='replace')!r}, "
            f"this program knows {VERSION}: use a newer OpenQ"
        )


def _fields(table: str) -> dict[str, pa.DataType]:
    fields = _FIELDS.get(table)
    if fields is None:
        raise InvalidSetting(f"table must be {' or '.join(TABLES)}, not {table!r}")
    return fields
