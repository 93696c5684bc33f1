"""Between queues: dead letters, redrive, moves, fan-out. Two steps, because queues may live on other nodes.

A function takes the message out of its queue into that queue's limbo. A client, mostly the one that caused
it, decides where it goes, enters it there (once, by the number of the transfer) and clears the limbo. A
client that dies in between has only claimed it for some seconds: another one finishes the job.
"""

from __future__ import annotations

import json
from typing import Any

from ..engine.records import DEAD_EXPIRED, DEAD_LETTER_NAMES, DEAD_RECEIVES, REDRIVEN
from ..engine.state import add_dead_letter_event, dead_letter_route, route_before, would_loop
from ..errors import NotReplicated, QueueNotFound
from ..model import MAX_DEAD_LETTER_EVENTS, DeliveryOptions, Properties
from .core import StoreCore
from .drafts import content_key, published_fields
from .records import dump, extra_of, fields_of, unpack_record, with_published
from .registry import CachedQueue

ROUTED = 7  # beside the reasons of the engine's records: to several queues at once
CLAIM_MS = 5_000
_PAGE = 64
_TRIES = 10


class OutboxEntry:
    """One message in limbo."""

    def __init__(self, number: str, blob: bytes, claimed_ms: int) -> None:
        size, _, rest = blob.partition(b":")
        meta = json.loads(rest[: int(size)])
        self.number = number
        self.claimed_ms = claimed_ms
        self.record = rest[int(size) :]
        self.seq = int(meta["s"])
        self.sent_ms: int = meta["m"]
        self.why: int = meta["w"]
        self.reason: str | None = meta.get("r")
        self.now_ms: int = meta["t"]
        self.origin: str = meta["o"]
        self.targets: list[str] = meta.get("to") or []
        self.fields: dict[str, Any] = meta["x"] or {}

    @property
    def options(self) -> DeliveryOptions:
        return extra_of(self.fields)


class Moves(StoreCore):
    def _drain_outbox(self, view: CachedQueue) -> dict[str, str]:
        """Decide everything that is in limbo of a queue, and what that brings about elsewhere. What became
        of each transfer."""
        with self.calls.separate_writes():
            return self._drain_outboxes(view)

    def _drain_outboxes(self, view: CachedQueue) -> dict[str, str]:
        outcomes: dict[str, str] = {}
        # Who decides must know every queue and binding: what leads nowhere may be gone for good.
        self._registry.refresh(self.calls)
        waiting = [view]
        while waiting:
            queue = waiting.pop()
            decided = self._deliver_page(queue, waiting)
            for entry, reached in decided:
                outcome = self._remove_from_outbox(queue, entry, reached)
                if queue is view:
                    outcomes[entry.number] = outcome
            if len(decided) >= _PAGE:
                waiting.append(queue)
        return outcomes

    def _deliver_page(
        self, queue: CachedQueue, to_drain: list[CachedQueue]
    ) -> list[tuple[OutboxEntry, list[str] | None]]:
        """What was in limbo is where it belongs when this returns, as safe as the profile says.

        What a failover takes out of the limbo again must not have arrived elsewhere, and what it takes out of
        another queue again must still be in the limbo: so each step is confirmed before the next. Where that
        fails, because the connection was lost, both are done again: twice does no harm.
        """
        for tries in range(_TRIES):
            _, claimed_ms, found = self._fcall_queue(queue, "limbo", CLAIM_MS, _PAGE, self._shared.client)
            page = [
                OutboxEntry(found[at].decode(), found[at + 1], claimed_ms) for at in range(0, len(found), 2)
            ]
            if not page:
                break
            try:
                if self.is_durable:
                    self.calls.wait_for_copies()
                decided = [(entry, self._decide(queue, entry, to_drain)) for entry in page]
                if self.is_durable and any(reached for _, reached in decided):
                    self.calls.wait_for_copies()
                return decided
            except NotReplicated:
                if tries == _TRIES - 1:
                    raise
        return []

    def _decide(self, view: CachedQueue, entry: OutboxEntry, to_drain: list[CachedQueue]) -> list[str] | None:
        """Queues it arrived in; None: it is better kept. `stirred` gets those whose own limbo it filled."""
        reached: list[str] = []
        for _ in range(_TRIES):
            targets = self._targets(view, entry)
            if targets is None:
                return None
            for target in targets:
                if self._arrive(view, entry, target, to_drain):
                    reached.append(target.name)
            if reached or not targets:
                break
            self._registry.refresh(self.calls)  # all of them are gone by now: where else?
        return reached

    def _remove_from_outbox(self, view: CachedQueue, entry: OutboxEntry, reached: list[str] | None) -> str:
        """Out of the limbo. What became of it."""
        if reached is None:
            self._fcall_queue(view, "revive", entry.number, str(self._registry.version))
            return "returned"
        outcome = "moved" if reached else "removed"
        self._fcall_queue(view, "done", entry.number, outcome, "\x1e".join(reached))
        if reached:
            return "dead-lettered" if entry.why in DEAD_LETTER_NAMES else "moved"
        return "expired" if entry.why == DEAD_EXPIRED else "removed"

    def _arrive(
        self, view: CachedQueue, entry: OutboxEntry, target: CachedQueue, to_drain: list[CachedQueue]
    ) -> bool:
        """False: the queue was deleted in this moment."""
        fields = self._arrival_fields(view, entry, target)
        kind = "routed" if entry.why == ROUTED else "refused" if entry.origin == "refused" else "moved"
        record = entry.record
        if kind != "moved":
            record = with_published(record, published_fields(fields))
        origin = f"{view.number}:{entry.seq}"
        name = f"{view.number}:{entry.number}"
        try:
            outbox, _, _ = self._fcall_queue(
                target, "arrive", name, kind, dump(fields), record, origin, entry.claimed_ms
            )
        except QueueNotFound:
            return False
        if outbox:
            to_drain.append(target)
        return True

    def _targets(self, view: CachedQueue, entry: OutboxEntry) -> list[CachedQueue] | None:
        """None: it is better kept where it is."""
        queues = self._registry.queues
        if entry.targets:
            found = [queues[name] for name in entry.targets if name in queues]
            return found or (None if entry.why != ROUTED else [])
        targets = self._dead_letter_targets(view, entry)
        if targets is None and entry.why == DEAD_RECEIVES and view.settings.exhausted != "drop":
            return None
        return targets or []

    def _dead_letter_targets(self, view: CachedQueue, entry: OutboxEntry) -> list[CachedQueue] | None:
        """Where this queue's dead letters go; None: nowhere. As the engine decides it."""
        settings = view.settings
        queues = self._registry.queues
        options = entry.options
        why = entry.why
        if why == DEAD_EXPIRED:
            deaths = options.deaths
            if len(deaths) == MAX_DEAD_LETTER_EVENTS and deaths[-1].time_ms == entry.now_ms:
                return []
        if settings.dead_letter_exchange is not None:
            if settings.dead_letter_exchange not in self.router:
                return None
            _, key = dead_letter_route(view, options) or ("", "")  # type: ignore[arg-type]
            headers: Properties | None = None
            if self.router.get(settings.dead_letter_exchange).kind == "headers":
                headers = unpack_record(entry.record)[2]
            names = self.router.route(settings.dead_letter_exchange, key, headers)
            targets = [queues[name] for name in names if name in queues]
        elif settings.dead_letter is not None and settings.dead_letter in queues:
            targets = [queues[settings.dead_letter]]
        else:
            return None
        return [each for each in targets if not would_loop(view, options, each, why)]  # type: ignore[arg-type]

    def _arrival_fields(
        self, view: CachedQueue, entry: OutboxEntry, target: CachedQueue
    ) -> dict[str, object]:
        """The extra with which it enters another queue."""
        if entry.why == ROUTED:
            fields: dict[str, Any] = dict(entry.fields)
            fields.setdefault("i", self.id_of(entry.seq))
            if target.settings.dedup_by_content and "k" not in fields:
                fields["k"] = fields["ck"]
            fields.pop("ck", None)
            return fields
        options = entry.options
        options.id = options.id or self.id_of(entry.seq)
        options.born_ms = options.born_ms or entry.sent_ms
        old_route = entry.options
        if entry.why in DEAD_LETTER_NAMES:
            options.deaths = add_dead_letter_event(view, options, entry.why, entry.reason, entry.now_ms)  # type: ignore[arg-type]
            options.route = dead_letter_route(view, old_route)  # type: ignore[arg-type]
        elif entry.why == REDRIVEN and options.deaths and options.deaths[0].queue == target.name:
            options.route = route_before(target, options.deaths[0])  # type: ignore[arg-type]
        options.count = options.number = options.first_ms = options.due_ms = options.expires_ms = 0
        options.unique = options.dedup = None
        if entry.origin == "refused" and target.settings.dedup_by_content:
            options.dedup = content_key(unpack_record(entry.record)[1])  # it is as good as published there
        return {**fields_of(options), "z": 1}  # the delay of a queue is for what is published to it
