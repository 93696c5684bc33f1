"""What a program wants to be told when a message arrives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from .message import Message
from .publishing import is_item

log = logging.getLogger("openq")

Hook = Callable[[Message], object]
_HOOK_FIELDS = ("message_type", "priority", "attributes", "group")
HookT = TypeVar("HookT", bound=Hook)


class Hooks:
    """`on_msg_received`, to override in a subclass or to register functions with.

    Hooks run in the thread that publishes, after the message is stored and before `publish`
    returns. One that fails is logged: the message is in the queue all the same.
    """

    def _init_hooks(self, base: type[Hooks]) -> None:
        self._hooks: list[Hook] = []
        for name in ("on_msg_received", "onMsgReceived"):
            if getattr(type(self), name) is not getattr(base, name):
                self._hooks.append(getattr(self, name))
        self._has_hooks = bool(self._hooks)

    def on_msg_received(self, message: Any) -> Any:
        """In a subclass: called with each message. Here: registers a function to be called with each."""
        if not callable(message):
            return None
        self._hooks.append(message)
        self._has_hooks = True
        return message

    onMsgReceived = on_msg_received

    def _run_hooks_many(self, published: Iterable[tuple[str, Any]]) -> None:
        """Items of `publish_many`, each with the id it got."""
        for message_id, item in published:
            if isinstance(item, Message):
                options = {name: getattr(item, name) for name in _HOOK_FIELDS}
                self._run_hooks(message_id, item.body, options)
            elif is_item(item):
                self._run_hooks(message_id, item["body"], item)
            else:
                self._run_hooks(message_id, item, {})

    def _run_hooks(self, message_id: str, body: Any, options: Mapping[str, Any]) -> None:
        message = Message(
            message_id,
            body,
            message_type=options.get("message_type"),
            priority=options.get("priority", 0),
            attributes=options.get("attributes") or {},
            group=options.get("group"),
        )
        for hook in self._hooks:
            try:
                hook(message)
            except Exception:
                log.exception("a hook failed on message %s", message_id)
