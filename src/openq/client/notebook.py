"""Queues and messages as HTML tables, for notebooks. All values are escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from ..errors import OpenQError

if TYPE_CHECKING:
    from .core import QueueObject
    from .message import Message

_MAX_BODY = 2000  # characters


def queue_html(queue: QueueObject) -> str:
    """The counts and the main settings of a queue; its error if they cannot be read."""
    core = queue.core
    rows: list[tuple[str, Any]] = [("target", "closed" if core.closed else core.handle.where)]
    if not core.closed:
        try:
            stats, settings = core.broker.stats(core.name), core.broker.settings(core.name)
        except OpenQError as error:
            rows.append(("error", error))
        else:
            rows += [
                ("ready", stats.ready),
                ("delayed", stats.delayed),
                ("in flight", stats.in_flight),
                ("visibility timeout", f"{settings.visibility_ms / 1000:g} s"),
                ("dead-letter queue", settings.dead_letter or "none"),
            ]
    return _table(f"Queue {core.name}", rows)


def message_html(message: Message) -> str:
    body = message.body if isinstance(message.body, str) else repr(message.body)
    if len(body) > _MAX_BODY:
        body = f"{body[: _MAX_BODY - 3]}..."
    rows: list[tuple[str, Any]] = [("body", body), ("status", message.status)]
    optional = [
        ("sent", message.timestamp),
        ("received", message.received_at),
        ("receive count", message.receive_count),
        ("type", message.message_type),
        ("priority", message.priority),
        ("group", message.group),
        *((f"attribute {name}", value) for name, value in message.attributes.items()),
    ]
    rows += [(name, value) for name, value in optional if value or value == ""]
    return _table(f"Message {message.id}", rows)


def _table(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    lines = "".join(
        f"<tr><th style='text-align:left'>{escape(str(name))}</th>"
        f"<td style='text-align:left;white-space:pre-wrap'>{escape(str(value))}</td></tr>"
        for name, value in rows
    )
    return f"<table><caption>{escape(title)}</caption>{lines}</table>"
