"""The driver's side: every call to a broker, written into the ledger before and after it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.crash.host import Answer, Caller
from tests.crash.ledger import Ledger, body_of

# Answers that leave open whether the call took effect: the journal stopped in the middle of it.
UNCERTAIN = {"JournalFailed", "Closed", "Unconfirmed"}
# One outcome of an ack: the protocol does not tell whether it came in time.
UNKNOWN = "Unknown"


class Died(Exception):
    """The process is gone; whether the last call took effect is unknown."""


class Refused(Exception):
    """A definite no, with the name of the error."""

    def __init__(self, error: str, text: str) -> None:
        super().__init__(f"{error}: {text}")
        self.error = error


class Uncertain(Exception):
    """The broker said that it cannot know."""


@dataclass(frozen=True, slots=True)
class Received:
    key: str
    queue: str
    seq: int
    number: int
    count: int
    delivered_ms: int
    until_ms: int

    @property
    def receipt(self) -> list[int]:
        return [self.seq, self.number]


class Client:
    """Not thread-safe; each thread has its own, all with the same ledger."""

    def __init__(self, ledger: Ledger, call: Caller, name: str = "m", session: int = 0) -> None:
        self.ledger = ledger
        self._call = call
        self._session = session
        self._name = name
        self._numbers = itertools.count(1)

    def using(self, call: Caller) -> None:
        """Go on with another process."""
        self._call = call

    def next_key(self) -> str:
        return f"{self._name}{next(self._numbers)}"

    def do(self, what: str, *, changes: bool = True, **fields: Any) -> Any:
        since = self.ledger.begin()
        answer: Answer = self._call({"do": what, "session": self._session, **fields})
        error = answer.get("error")
        if error is None:
            if changes:
                self.ledger.synced(since)
            return answer["ok"]
        if error.startswith("!"):
            self.ledger.complain(f"{what} raised {error[1:]}: {answer['text']}")
            raise Uncertain(answer["text"])
        if error in UNCERTAIN:
            raise Uncertain(answer["text"])
        raise Refused(error, answer["text"])

    # -- in

    def publish(
        self, queue: str, key: str | None = None, *, size: int = 0, order: int = 0, **draft: Any
    ) -> tuple[str, str]:
        """The key and the id."""
        key = key or self.next_key()
        self._offer(queue, key, draft, order)
        fields = {"body": body_of(key, 0, size).decode(), **draft}
        try:
            message_id = self.do("publish", queue=queue, draft=fields)
        except Refused:
            self.ledger.refused(queue, key)
            raise
        self.ledger.accepted(queue, key)
        return key, message_id

    def _offer(self, queue: str, key: str, draft: dict[str, Any], order: int) -> None:
        due_ms = 0
        if draft.get("delay_ms"):
            due_ms = self.do("now", changes=False) + draft["delay_ms"]
        self.ledger.offering(
            queue,
            key,
            not_before_ms=max(due_ms, draft.get("due_ms", 0)),
            group=draft.get("group"),
            order=order,
            may_vanish="ttl_ms" in draft,
        )

    def publish_many(self, queue: str, count: int, **draft: Any) -> list[str]:
        keys = [self.next_key() for _ in range(count)]
        for key in keys:
            self._offer(queue, key, draft, 0)
        drafts = [{"body": body_of(key).decode(), **draft} for key in keys]
        try:
            ids = self.do("publish_many", queue=queue, drafts=drafts)
        except Refused:
            for key in keys:
                self.ledger.refused(queue, key)
            raise
        for key, message_id in zip(keys, ids, strict=True):
            if message_id is None:
                self.ledger.refused(queue, key)
            else:
                self.ledger.accepted(queue, key)
        return keys

    def publish_run(self, queue: str, count: int) -> list[str]:
        keys = [self.next_key() for _ in range(count)]
        for key in keys:
            self._offer(queue, key, {}, 0)
        try:
            self.do("publish_run", queue=queue, bodies=[body_of(key).decode() for key in keys])
        except Refused:
            for key in keys:
                self.ledger.refused(queue, key)
            raise
        for key in keys:
            self.ledger.accepted(queue, key)
        return keys

    def route(self, exchange: str, routing_key: str, targets: Sequence[str], **draft: Any) -> str:
        key = self.next_key()
        for queue in targets:
            self._offer(queue, key, draft, 0)
        fields = {"body": body_of(key).decode(), **draft}
        try:
            reached = self.do("route", exchange=exchange, key=routing_key, draft=fields)
        except Refused:
            for queue in targets:
                self.ledger.refused(queue, key)
            raise
        if sorted(reached) != sorted(targets):
            self.ledger.complain(f"{key} was routed to {reached}, not {targets}")
        for queue in targets:
            self.ledger.accepted(queue, key)
        return key

    # -- out

    def receive(self, queue: str, limit: int = 1, lease_ms: int = 60_000) -> list[Received]:
        since = self.ledger.begin()
        answer = self.do("receive", changes=False, queue=queue, limit=limit, lease_ms=lease_ms)
        found = []
        for body, seq, number, delivered_ms, until_ms, count in answer:
            key = self.ledger.delivered_at(since, queue, body.encode(), delivered_ms, until_ms)
            if (self.ledger.space(queue), key) in self.ledger.fates:
                found.append(Received(key, queue, seq, number, count, delivered_ms, until_ms))
        return found

    def ack(self, *deliveries: Received) -> int:
        """How many were acked; the lease of the others was over."""
        if not deliveries:
            return 0
        queue = deliveries[0].queue
        for each in deliveries:
            self.ledger.ending(queue, each.key)
        try:
            errors = self.do("ack", queue=queue, receipts=[each.receipt for each in deliveries])
        except Refused:
            for each in deliveries:
                self.ledger.not_ended(queue, each.key)
            raise
        for each, error in zip(deliveries, errors, strict=True):
            if error is None:
                self.ledger.ended(queue, each.key)
            elif error != UNKNOWN:
                self.ledger.not_ended(queue, each.key)
        return sum(error is None for error in errors)

    def nack(self, delivery: Received, delay_ms: int | None = None) -> str:
        self.ledger.returning(delivery.queue, delivery.key)
        outcome: str = self.do("nack", queue=delivery.queue, receipt=delivery.receipt, delay_ms=delay_ms)
        return outcome

    def reject(self, delivery: Received) -> str:
        self.ledger.returning(delivery.queue, delivery.key)
        outcome: str = self.do("reject", queue=delivery.queue, receipt=delivery.receipt)
        return outcome

    def release(self, delivery: Received) -> None:
        self.ledger.returning(delivery.queue, delivery.key)
        self.do("release", queue=delivery.queue, receipt=delivery.receipt)

    def extend(self, delivery: Received, lease_ms: int) -> None:
        until_ms = self.do("extend", queue=delivery.queue, receipt=delivery.receipt, lease_ms=lease_ms)
        self.ledger.extended(delivery.queue, delivery.key, until_ms)

    # -- mending

    def cancel(self, queue: str, key: str, message_id: str) -> None:
        self.ledger.ending(queue, key)
        try:
            self.do("cancel", queue=queue, id=message_id)
        except Refused:
            self.ledger.not_ended(queue, key)
            raise
        self.ledger.ended(queue, key)

    def edit(self, queue: str, key: str, message_id: str, version: int, size: int = 0) -> None:
        self.ledger.editing(queue, key, version)
        self.do("edit", queue=queue, id=message_id, body=body_of(key, version, size).decode())
        self.ledger.edited(queue, key, version)

    def reschedule(self, queue: str, key: str, message_id: str, due_ms: int) -> None:
        self.ledger.rescheduling(queue, key, due_ms)
        self.do("reschedule", queue=queue, id=message_id, due_ms=due_ms)
        self.ledger.rescheduled(queue, key, due_ms)

    def move(self, queue: str, key: str, message_id: str, to: str) -> None:
        """To a queue of the same space; a delay ends with it."""
        self.ledger.rescheduling(queue, key, 0)
        self.do("move", queue=queue, ids=[message_id], to=to)

    def purge(self, queue: str, what: str = "purge") -> None:
        """Also "delete". Only for a queue that nobody else uses meanwhile."""
        keys = self.ledger.in_space(queue)
        for key in keys:
            self.ledger.ending(queue, key)
        try:
            self.do(what, queue=queue)
        except Refused:
            for key in keys:
                self.ledger.not_ended(queue, key)
            raise
        for key in keys:
            self.ledger.ended(queue, key)

    def replay(self, source: str, target: str) -> None:
        """Only while nobody else uses the target."""
        since = self.ledger.replaying(source, target)
        self.do("replay", queue=source, to=target)
        self.ledger.replayed(source, target, since)
