"""Inspecting a queue without changing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..broker.interface import QueueStats
from . import checks
from .message import Message, PeekedMessage, ReceivedMessage
from .parts import QueuePart, make_filter


class FoundMessages(list[PeekedMessage]):
    """The messages that a search found. `complete` is False if its limit or its time budget ended it."""

    complete: bool

    def __init__(self, found: Iterable[PeekedMessage], complete: bool) -> None:
        super().__init__(found)
        self.complete = complete


class Inspector(QueuePart):
    __slots__ = ()

    def peek(self, rear: bool = False) -> PeekedMessage | None:
        """The next message, or the last one, without receiving it; None if none is ready.

        Messages with consumers are in `in_flight`, delayed messages in `messages`; `stats` counts all.
        """
        entries = self.core.broker.inspect.peek(self.core.name, 1, rear)
        return PeekedMessage(self.queue, entries[0]) if entries else None

    def peek_many(self, max: int = 10, rear: bool = False) -> list[PeekedMessage]:
        """The first `max` ready messages, or the last ones, without receiving them."""
        return self._peeked(
            self.core.broker.inspect.peek(self.core.name, checks.integer(max, "max", 0), rear)
        )

    def search(
        self,
        text: str | None = None,
        *,
        message_type: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        json: Mapping[str, Any] | None = None,
        reason: str | None = None,
        ids: Sequence[str] | None = None,
        state: str = "all",
        limit: int = 100,
        budget: float = 1.0,
    ) -> FoundMessages:
        """Messages that match every given condition, in delivery order; at most `limit`.

        `json` maps dotted paths into the body to values; `reason` is a part of the failure reason; `state`
        is ready, delayed, in_flight or all. The search takes at most `budget` seconds; `complete` of the
        returned list is False if it did not get through the queue.
        """
        checks.integer(limit, "limit", 0)
        checks.number(budget, "budget")
        wanted = make_filter(text, message_type, attributes, json, reason, ids, state)
        found = self.core.broker.inspect.search(self.core.name, wanted, limit, budget)
        return FoundMessages(self._peeked(found.entries), found.complete)

    def ready(self) -> list[PeekedMessage]:
        return self._peeked(self.core.broker.inspect.entries(self.core.name, "ready"))

    def in_flight(self) -> dict[str, tuple[ReceivedMessage, float]]:
        queue, core = self.queue, self.core
        return {
            core.message_id(delivery.entry): (ReceivedMessage(queue, delivery), delivery.delivered_ms / 1000)
            for delivery in core.broker.inspect.deliveries(core.name)
        }

    def messages(self) -> list[Message]:
        delayed = self._peeked(self.core.broker.inspect.entries(self.core.name, "delayed"))
        in_flight = [message for message, _ in self.in_flight().values()]
        return [*self.ready(), *delayed, *in_flight]

    def stats(self) -> QueueStats:
        """Counts of the queue: ready, delayed and in flight messages, waiters, and event counters."""
        return self.core.broker.stats(self.core.name)
