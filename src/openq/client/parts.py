"""The parts of a queue object: groups of calls that `Queue` offers under its own name.

A part is a view without state. `Queue` makes one per call, so that a queue object is not part of a
reference cycle and closes when its last reference goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ..broker.interface import Filter
from ..model import Entry
from . import checks
from .message import PeekedMessage

if TYPE_CHECKING:
    from .queues import Queue


class QueuePart:
    __slots__ = ("core", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.core = queue.core

    def _peeked(self, entries: Iterable[Entry]) -> list[PeekedMessage]:
        queue = self.queue
        return [PeekedMessage(queue, entry) for entry in entries]


P = ParamSpec("P")
R = TypeVar("R")
PartT = TypeVar("PartT", bound=QueuePart)


def part_method(
    part: type[PartT], method: Callable[Concatenate[PartT, P], R]
) -> Callable[Concatenate[Queue, P], R]:
    """A method of `Queue` that is a method of one of its parts, with its signature and docstring."""

    @wraps(method)
    def call(self: Queue, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(part(self), *args, **kwargs)

    return call


def make_filter(
    text: str | None,
    message_type: str | None,
    attributes: Mapping[str, Any] | None,
    json: Mapping[str, Any] | None,
    reason: str | None,
    ids: Sequence[str] | None,
    state: str,
) -> Filter:
    return Filter(
        ids=None if ids is None else checks.text_list(ids, "ids"),
        type=checks.text_or_none(message_type, "message_type"),
        text=checks.text_or_none(text, "text"),
        attributes=checks.mapping(attributes, "attributes"),
        json=checks.mapping(json, "json"),
        reason=checks.text_or_none(reason, "reason"),
        state=checks.text(state, "state"),
    )
