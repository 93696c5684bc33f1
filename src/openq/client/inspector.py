"""Looking at a queue without changing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..broker.interface import QueueStats, TimelineStep
from ..engine.why import Why
from ..errors import MessageNotFoundError
from ..model import QueueSettings
from . import checks
from .interface import LibraryBroker
from .message import Message, PeekedMessage, ReceivedMessage, is_dead
from .parts import QueuePart, make_filter

if TYPE_CHECKING:
    from .queues import Queue


class FoundMessages(list[PeekedMessage]):
    """What a search found: a list, that also knows whether it is everything there is to find."""

    complete: bool  # False: the limit or the time came first

    def __init__(self, found: Iterable[PeekedMessage], complete: bool) -> None:
        super().__init__(found)
        self.complete = complete


class Inspector(QueuePart):
    def peek(self, rear: bool = False) -> PeekedMessage | None:
        """The next message, or the last one, without taking it; None if none waits.

        Messages with consumers are in `in_flight`, delayed ones too are in `messages`; `stats` counts all.
        """
        entries = self._broker.peek(self.name, 1, rear)
        return PeekedMessage(cast("Queue", self), entries[0]) if entries else None

    def peek_many(self, max: int = 10, rear: bool = False) -> list[PeekedMessage]:
        return self._peeked(self._broker.peek(self.name, checks.integer(max, "max", 0), rear))

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
        """Messages for which all that is given holds, in hand-out order; at most `limit`.

        `json` maps dotted paths into the body to values; `reason` is a part of why it failed; `state`
        is ready, delayed, in_flight or all. Looks for `budget` seconds at most; the `complete` of the
        list says whether that was enough.
        """
        checks.integer(limit, "limit", 0)
        checks.number(budget, "budget")
        wanted = make_filter(text, message_type, attributes, json, reason, ids, state)
        found = self._broker.search(self.name, wanted, limit, budget)
        return FoundMessages(self._peeked(found.entries), found.complete)

    @property
    def queue(self) -> list[PeekedMessage]:
        """A snapshot of what waits, in hand-out order (delayed messages are not among them)."""
        return self._peeked(self._broker.entries(self.name, "ready"))

    @property
    def in_flight(self) -> dict[str, tuple[ReceivedMessage, float]]:
        """A snapshot of what is with consumers: id -> (message, when it was handed out, epoch seconds)."""
        queue = cast("Queue", self)
        deliveries = self._broker.deliveries(self.name)
        return {
            self._id_of(delivery.entry): (ReceivedMessage(queue, delivery), delivery.delivered_ms / 1000)
            for delivery in deliveries
        }

    @property
    def messages(self) -> list[Message]:
        """A snapshot of everything in the queue: waiting, delayed and with consumers."""
        return [*self._peeked(self._broker.entries(self.name, "ready")), *self._delayed_and_in_flight()]

    def _delayed_and_in_flight(self) -> list[Message]:
        delayed = self._peeked(self._broker.entries(self.name, "delayed"))
        return [*delayed, *(message for message, _ in self.in_flight.values())]

    def __len__(self) -> int:
        """How many messages wait, delayed ones included."""
        stats = self._broker.stats(self.name)
        return stats.ready + stats.delayed

    def __bool__(self) -> bool:
        return True  # an empty queue is still a queue: `queue or other` must not surprise

    def stats(self) -> QueueStats:
        return self._broker.stats(self.name)

    @property
    def settings(self) -> QueueSettings:
        return self._broker.settings(self.name)

    @property
    def visibility_timeout(self) -> float:
        """Seconds."""
        milliseconds = self.settings.visibility_ms
        return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000

    @property
    def dlq(self) -> str | None:
        """The name of the dead-letter queue."""
        return self.settings.dead_letter

    @property
    def broker(self) -> LibraryBroker:
        return self._broker

    def status(self, message_id: str) -> str:
        """unprocessed (waiting or delayed), processing, processed, dead; or unknown."""
        state = self._broker.status(self.name, checks.message_id(message_id))
        if state == "in_flight":
            return "processing"
        if state is not None:
            try:
                dead = is_dead(self._broker.find(self.name, message_id), self.name)
            except MessageNotFoundError:
                return self.status(message_id)  # it moved on between the two looks
            return "dead" if dead else "unprocessed"
        steps = [step.what for step in self._broker.timeline(self.name, message_id)]
        if "acked" in steps:
            return "processed"
        return "dead" if "dead-lettered" in steps else "unknown"

    def why(self, message_id: str) -> Why:
        """Why a message is not being delivered: `code` for programs, `text` for people.

        A message that is no longer in this queue is looked for in its dead-letter queue (`dead_lettered`).
        """
        return self._broker.why(self.name, checks.message_id(message_id))

    def timeline(self, message_id: str) -> list[TimelineStep]:
        """What happened to a message, as far as history is kept."""
        return self._broker.timeline(self.name, checks.message_id(message_id))

    def trace(self, message_id: str) -> list[str]:
        """The same in the words of the design: publishMsg, onMsgReceived, stored, pullMsg, ..."""
        steps: list[str] = []
        for step in self.timeline(message_id):
            steps += _TRACE.get(step.what, [step.what])
        return steps


_TRACE = {
    "published": ["publishMsg", "onMsgReceived", "stored"],
    "delivered": ["pullMsg", "retrieved"],
    "acked": ["acknowledged"],
}
