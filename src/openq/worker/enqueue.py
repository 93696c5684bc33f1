"""From a task and its arguments to the message of a job.

The body is `{"args": [...], "kwargs": {...}}` and the message type the name of the task, so that a program
in any language can send a job with SQS, AMQP or REST. Chains and groups add the fields `then` and `group`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import codec
from .errors import InvalidArguments

if TYPE_CHECKING:
    from .task import BaseTask, SendOptions

PUBLISH_NAMES = {"key": "group", "unique": "unique_key", "dedup": "dedup_id"}


@dataclass(slots=True)
class JobDraft:
    """A job before it is sent. Middleware may change `attributes` and `options`."""

    task: BaseTask[..., Any] | None  # None: the next step of a chain, of a task of another app
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]  # keywords of `Queue.publish`
    attributes: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] | None = None  # further fields of the body: then, group, keep
    queue: str = ""

    @property
    def name(self) -> str:
        """The name of the task."""
        return str(self.options["message_type"])

    @property
    def codec(self) -> str:
        return "json" if self.task is None else self.task.declared.codec

    def encoded(self) -> Any:
        """The body as the queue takes it: JSON text, or plain values for msgpack."""
        document: dict[str, Any] = {"args": self.args, "kwargs": self.kwargs}
        if self.extra is not None:
            document.update(self.extra)
        try:
            if self.codec == "json":
                return codec.to_json(document)
            return codec.to_plain(document, "msgpack")
        except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
            raise InvalidArguments(
                f"the arguments of task {self.name!r} cannot be encoded: {error}"
            ) from None

    def publish_options(self) -> dict[str, Any]:
        if self.attributes:
            self.options["attributes"] = self.attributes
        return self.options


def make_draft(
    task: BaseTask[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: SendOptions | None,
    is_repeatable: bool,
) -> JobDraft:
    """A draft with checked arguments.

    `is_repeatable`: with an id by which the broker recognises a repetition, so that the library may send it
    again after a lost reply.
    """
    task.signature.check(args, dict(kwargs))
    publish: dict[str, Any] = {"message_type": task.name}
    draft = JobDraft(task, args, dict(kwargs), publish, queue=task.queue)
    if options:
        for name, value in options.items():
            if value is None:
                continue
            if name == "attributes":
                draft.attributes.update(value)  # type: ignore[call-overload]
            else:
                publish[PUBLISH_NAMES.get(name, name)] = value
    if task.declared.priority is not None:
        publish.setdefault("priority", task.declared.priority)
    if is_repeatable and "dedup_id" not in publish:
        publish["dedup_id"] = os.urandom(12).hex()
    return draft


def check_body(task: BaseTask[..., Any], body: Any) -> None:
    """Convert the body as the worker will: what it cannot read is an error of the sender."""
    document = codec.read_body(body)
    task.signature.convert(list(document["args"]), dict(document["kwargs"]))
