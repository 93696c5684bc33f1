"""The state of schedules: documents by name, changed only by records.

The engine does not know when a schedule is due: that takes time zones. The broker passes in the changed
document, in the block of the messages of a run (see `openq.broker.schedules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .records import SCHEDULE

if TYPE_CHECKING:
    from .engine import Engine

Document = Mapping[str, Any]


def put(engine: Engine, name: str, document: Document, now_ms: int) -> None:
    engine.log_record((SCHEDULE, now_ms, 0, 0, "put", name, dict(document)))
    engine.schedules[name] = document


def change(engine: Engine, name: str, changes: Document, now_ms: int) -> None:
    """Change some fields: a record of a run does not repeat the body."""
    engine.log_record((SCHEDULE, now_ms, 0, 0, "change", name, dict(changes)))
    engine.schedules[name] = {**engine.schedules[name], **changes}


def delete(engine: Engine, name: str, now_ms: int) -> None:
    engine.log_record((SCHEDULE, now_ms, 0, 0, "delete", name, None))
    del engine.schedules[name]


def apply(engine: Engine, operation: str, name: str, value: Document | None) -> None:
    """Apply a record. A change of a schedule whose own record was lost to damage is skipped."""
    if operation == "delete":
        engine.schedules.pop(name, None)
    elif operation == "put":
        engine.schedules[name] = value or {}
    elif name in engine.schedules:
        engine.schedules[name] = {**engine.schedules[name], **(value or {})}


def dump(engine: Engine) -> list[Document]:
    return list(engine.schedules.values())


def load(engine: Engine, documents: list[dict[str, Any]]) -> None:
    """From a snapshot or a checkpoint, which has all of them."""
    engine.schedules = {document["name"]: document for document in documents}
