"""Hooks: functions that run when a message arrives.

For messages that the queue object publishes they run in the thread that publishes, after the message is
stored and before `publish` returns; for all others see `arrivals.py`. A hook that raises is logged; the
message stays in the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .message import Message
from .publishing import is_item

log = logging.getLogger("openq")

Hook = Callable[[Message], object]
_HOOK_FIELDS = ("message_type", "priority", "attributes", "group")


def overridden_hooks(queue: object, base: type) -> list[Hook]:
    """`on_msg_received` of a subclass, under either of its names."""
    return [
        getattr(queue, name)
        for name in ("on_msg_received", "onMsgReceived")
        if getattr(type(queue), name) is not getattr(base, name)
    ]


def run_hooks_many(hooks: list[Hook], published: Iterable[tuple[str, Any]]) -> None:
    """For the items of `publish_many`, each with its id."""
    for message_id, item in published:
        if isinstance(item, Message):
            options = {name: getattr(item, name) for name in _HOOK_FIELDS}
            run_hooks(hooks, message_id, item.body, options)
        elif is_item(item):
            run_hooks(hooks, message_id, item["body"], item)
        else:
            run_hooks(hooks, message_id, item, {})


def run_hooks(hooks: list[Hook], message_id: str, body: Any, options: Mapping[str, Any]) -> None:
    message = Message(
        message_id,
        body,
        message_type=options.get("message_type"),
        priority=options.get("priority", 0),
        attributes=options.get("attributes") or {},
        group=options.get("group"),
    )
    call_hooks(hooks, message)


def call_hooks(hooks: Sequence[Hook], message: Message) -> None:
    for hook in list(hooks):
        try:
            hook(message)
        except Exception:
            log.exception("a hook failed on message %s", message.id)
