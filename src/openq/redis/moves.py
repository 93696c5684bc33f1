"""Moves between queues: dead letters, redrive, moves, fan-out. Two steps, as queues may be on other nodes.

A function moves a message from its queue into that queue's outbox. A client, usually the one whose call did
so, decides on the target, enters the message there (once, by the number of the outbox entry) and removes it
from the outbox. A client that dies in between has only claimed the entry for some seconds: another client
finishes the move.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..engine.records import DEAD_EXPIRED, DEAD_LETTER_NAMES, DEAD_RECEIVES, REDRIVEN
from ..engine.rules import add_dead_letter_event, dead_letter_route, route_before, would_loop
from ..errors import NotReplicated, QueueNotFound
from ..model import MAX_DEAD_LETTER_EVENTS, DeliveryOptions, Properties
from .drafts import content_key, published_fields
from .records import dump, extra_of, fields_of, unpack_record, with_published
from .registry import CachedQueue

if TYPE_CHECKING:
    from .store import RedisStore

ROUTED = 7  # beside the reasons of the engine's records: to several queues at once
CLAIM_MS = 5_000
_PAGE = 64
_TRIES = 10


class OutboxEntry:
    """One message in the outbox of a queue."""

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


class Moves:
    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def drain(self, view: CachedQueue) -> dict[str, str]:
        """Move all messages in the outbox of a queue on, and those that this puts into other outboxes.
        Returns the outcome of each entry by its number."""
        with self._store.calls.separate_writes():
            return self._drain_all(view)

    def _drain_all(self, view: CachedQueue) -> dict[str, str]:
        outcomes: dict[str, str] = {}
        # Needs every queue and binding: a message without a target may be dropped for good.
        self._store.refresh()
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
        """Enter a page of the outbox into its target queues. When this returns, the copies that the profile
        asks for are confirmed.

        A failover may undo either step: an entry that it removes from the outbox must not have arrived
        elsewhere, and a message that it removes from its target must still be in the outbox. So each step is
        confirmed before the next. If a confirmation fails because the connection was lost, both steps are
        repeated; that is safe.
        """
        store = self._store
        for tries in range(_TRIES):
            _, claimed_ms, found = store.fcall_queue(
                queue, "claim_outbox", CLAIM_MS, _PAGE, store.state.client
            )
            page = [
                OutboxEntry(found[at].decode(), found[at + 1], claimed_ms) for at in range(0, len(found), 2)
            ]
            if not page:
                break
            try:
                if store.is_durable:
                    store.calls.wait_for_copies()
                decided = [(entry, self._decide(queue, entry, to_drain)) for entry in page]
                if store.is_durable and any(reached for _, reached in decided):
                    store.calls.wait_for_copies()
                return decided
            except NotReplicated:
                if tries == _TRIES - 1:
                    raise
        return []

    def _decide(self, view: CachedQueue, entry: OutboxEntry, to_drain: list[CachedQueue]) -> list[str] | None:
        """Returns the queues it arrived in; None: it returns to its queue. `to_drain` gets the queues whose
        outboxes it filled."""
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
            self._store.refresh()  # all targets were deleted: decide again
        return reached

    def _remove_from_outbox(self, view: CachedQueue, entry: OutboxEntry, reached: list[str] | None) -> str:
        """Returns the outcome."""
        store = self._store
        if reached is None:
            store.fcall_queue(view, "return_from_outbox", entry.number, str(store.registry.version))
            return "returned"
        outcome = "moved" if reached else "removed"
        store.fcall_queue(view, "done", entry.number, outcome, "\x1e".join(reached))
        if reached:
            return "dead-lettered" if entry.why in DEAD_LETTER_NAMES else "moved"
        return "expired" if entry.why == DEAD_EXPIRED else "removed"

    def _arrive(
        self, view: CachedQueue, entry: OutboxEntry, target: CachedQueue, to_drain: list[CachedQueue]
    ) -> bool:
        """False: the queue was deleted meanwhile."""
        fields = self._arrival_fields(view, entry, target)
        kind = "routed" if entry.why == ROUTED else "refused" if entry.origin == "refused" else "moved"
        record = entry.record
        if kind != "moved":
            record = with_published(record, published_fields(fields))
        origin = f"{view.number}:{entry.seq}"
        name = f"{view.number}:{entry.number}"
        try:
            outbox, _, _ = self._store.fcall_queue(
                target, "arrive", name, kind, dump(fields), record, origin, entry.claimed_ms
            )
        except QueueNotFound:
            return False
        if outbox:
            to_drain.append(target)
        return True

    def _targets(self, view: CachedQueue, entry: OutboxEntry) -> list[CachedQueue] | None:
        """None: it returns to its queue."""
        queues = self._store.registry.queues
        if entry.targets:
            found = [queues[name] for name in entry.targets if name in queues]
            return found or (None if entry.why != ROUTED else [])
        targets = self._dead_letter_targets(view, entry)
        if targets is None and entry.why == DEAD_RECEIVES and view.settings.exhausted != "drop":
            return None
        return targets or []

    def _dead_letter_targets(self, view: CachedQueue, entry: OutboxEntry) -> list[CachedQueue] | None:
        """The queues that this queue's dead letters go to, by the rules of the engine; None: it has none."""
        settings = view.settings
        queues, router = self._store.registry.queues, self._store.registry.router
        options = entry.options
        why = entry.why
        if why == DEAD_EXPIRED:
            deaths = options.deaths
            if len(deaths) == MAX_DEAD_LETTER_EVENTS and deaths[-1].time_ms == entry.now_ms:
                return []
        if settings.dead_letter_exchange is not None:
            if settings.dead_letter_exchange not in router:
                return None
            _, key = dead_letter_route(view, options) or ("", "")  # type: ignore[arg-type]
            headers: Properties | None = None
            if router.get(settings.dead_letter_exchange).kind == "headers":
                headers = unpack_record(entry.record)[2]
            names = router.route(settings.dead_letter_exchange, key, headers)
            targets = [queues[name] for name in names if name in queues]
        elif settings.dead_letter is not None and settings.dead_letter in queues:
            targets = [queues[settings.dead_letter]]
        else:
            return None
        return [each for each in targets if not would_loop(view, options, each, why)]  # type: ignore[arg-type]

    def _arrival_fields(
        self, view: CachedQueue, entry: OutboxEntry, target: CachedQueue
    ) -> dict[str, object]:
        """The delivery options with which it enters another queue."""
        if entry.why == ROUTED:
            fields: dict[str, Any] = dict(entry.fields)
            fields.setdefault("i", self._store.id_of(entry.seq))
            if target.settings.dedup_by_content and "k" not in fields:
                fields["k"] = fields["ck"]
            fields.pop("ck", None)
            return fields
        options = entry.options
        options.id = options.id or self._store.id_of(entry.seq)
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
            options.dedup = content_key(unpack_record(entry.record)[1])  # it counts as published there
        return {**fields_of(options), "z": 1}  # a queue's delay applies to published messages only
