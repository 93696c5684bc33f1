"""Between queues: dead letters, redrive, moves, fan-out. Two steps, because queues may live on other nodes.

A function takes the message out of its queue into that queue's limbo. A client, mostly the one that caused
it, decides where it goes, enters it there (once, by the number of the transfer) and clears the limbo. A
client that dies in between has only claimed it for some seconds: another one finishes the job.
"""

from __future__ import annotations

import json
from typing import Any

from ..engine.core import closes_circle, dead_route, died, route_before
from ..engine.records import (
    DEAD_EXPIRED,
    DEAD_RECEIVES,
    DEATH_NAMES,
    REDRIVEN,
)
from ..errors import NotReplicated, QueueNotFound
from ..model import MAX_DEATHS, Extra, Info
from .drafts import content_key, published_fields
from .foundation import Foundation
from .records import dump, extra_of, fields_of, unpack_record, with_published
from .registry import QueueView

ROUTED = 7  # beside the reasons of the engine's records: to several queues at once
CLAIM_MS = 5_000
_AT_ONCE = 64
_TRIES = 10


class Transfer:
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
    def extra(self) -> Extra:
        return extra_of(self.fields)


class Transfers(Foundation):
    def _drain(self, view: QueueView) -> dict[str, str]:
        """Decide everything that is in limbo of a queue, and what that brings about elsewhere. What became
        of each transfer."""
        with self.calls.apart():
            return self._drain_all(view)

    def _drain_all(self, view: QueueView) -> dict[str, str]:
        outcomes: dict[str, str] = {}
        # Who decides must know every queue and binding: what leads nowhere may be gone for good.
        self._registry.refresh(self.calls)
        waiting = [view]
        while waiting:
            queue = waiting.pop()
            decided = self._carry(queue, waiting)
            for transfer, reached in decided:
                outcome = self._conclude(queue, transfer, reached)
                if queue is view:
                    outcomes[transfer.number] = outcome
            if len(decided) >= _AT_ONCE:
                waiting.append(queue)
        return outcomes

    def _carry(self, queue: QueueView, stirred: list[QueueView]) -> list[tuple[Transfer, list[str] | None]]:
        """What was in limbo is where it belongs when this returns, as safe as the profile says.

        What a failover takes out of the limbo again must not have arrived elsewhere, and what it takes out of
        another queue again must still be in the limbo: so each step is confirmed before the next. Where that
        fails, because the connection was lost, both are done again: twice does no harm.
        """
        for tries in range(_TRIES):
            _, claimed_ms, found = self._about_queue(queue, "limbo", CLAIM_MS, _AT_ONCE, self._shared.client)
            page = [Transfer(found[at].decode(), found[at + 1], claimed_ms) for at in range(0, len(found), 2)]
            if not page:
                break
            try:
                if self.is_durable:
                    self.calls.durable()
                decided = [(transfer, self._decide(queue, transfer, stirred)) for transfer in page]
                if self.is_durable and any(reached for _, reached in decided):
                    self.calls.durable()
                return decided
            except NotReplicated:
                if tries == _TRIES - 1:
                    raise
        return []

    def _decide(self, view: QueueView, transfer: Transfer, stirred: list[QueueView]) -> list[str] | None:
        """Queues it arrived in; None: it is better kept. `stirred` gets those whose own limbo it filled."""
        reached: list[str] = []
        for _ in range(_TRIES):
            targets = self._targets(view, transfer)
            if targets is None:
                return None
            for target in targets:
                if self._arrive(view, transfer, target, stirred):
                    reached.append(target.name)
            if reached or not targets:
                break
            self._registry.refresh(self.calls)  # all of them are gone by now: where else?
        return reached

    def _conclude(self, view: QueueView, transfer: Transfer, reached: list[str] | None) -> str:
        """Out of the limbo. What became of it."""
        if reached is None:
            self._about_queue(view, "revive", transfer.number, str(self._registry.version))
            return "returned"
        outcome = "moved" if reached else "removed"
        self._about_queue(view, "done", transfer.number, outcome, "\x1e".join(reached))
        if reached:
            return "dead-lettered" if transfer.why in DEATH_NAMES else "moved"
        return "expired" if transfer.why == DEAD_EXPIRED else "removed"

    def _arrive(
        self, view: QueueView, transfer: Transfer, target: QueueView, stirred: list[QueueView]
    ) -> bool:
        """False: the queue was deleted in this moment."""
        fields = self._arriving(view, transfer, target)
        kind = "routed" if transfer.why == ROUTED else "refused" if transfer.origin == "refused" else "moved"
        record = transfer.record
        if kind != "moved":
            record = with_published(record, published_fields(fields))
        origin = f"{view.number}:{transfer.seq}"
        name = f"{view.number}:{transfer.number}"
        try:
            limbo, _, _ = self._about_queue(
                target, "arrive", name, kind, dump(fields), record, origin, transfer.claimed_ms
            )
        except QueueNotFound:
            return False
        if limbo:
            stirred.append(target)
        return True

    def _targets(self, view: QueueView, transfer: Transfer) -> list[QueueView] | None:
        """None: it is better kept where it is."""
        queues = self._registry.queues
        if transfer.targets:
            found = [queues[name] for name in transfer.targets if name in queues]
            return found or (None if transfer.why != ROUTED else [])
        targets = self._dead_targets(view, transfer)
        if targets is None and transfer.why == DEAD_RECEIVES and view.settings.exhausted != "drop":
            return None
        return targets or []

    def _dead_targets(self, view: QueueView, transfer: Transfer) -> list[QueueView] | None:
        """Where this queue's dead letters go; None: nowhere. As the engine decides it."""
        settings = view.settings
        queues = self._registry.queues
        extra = transfer.extra
        why = transfer.why
        if why == DEAD_EXPIRED:
            deaths = extra.deaths
            if len(deaths) == MAX_DEATHS and deaths[-1].time_ms == transfer.now_ms:
                return []
        if settings.dead_letter_exchange is not None:
            if settings.dead_letter_exchange not in self.router:
                return None
            _, key = dead_route(view, extra) or ("", "")  # type: ignore[arg-type]
            headers: Info | None = None
            if self.router.get(settings.dead_letter_exchange).kind == "headers":
                headers = unpack_record(transfer.record)[2]
            names = self.router.route(settings.dead_letter_exchange, key, headers)
            targets = [queues[name] for name in names if name in queues]
        elif settings.dead_letter is not None and settings.dead_letter in queues:
            targets = [queues[settings.dead_letter]]
        else:
            return None
        return [each for each in targets if not closes_circle(view, extra, each, why)]  # type: ignore[arg-type]

    def _arriving(self, view: QueueView, transfer: Transfer, target: QueueView) -> dict[str, object]:
        """The extra with which it enters another queue."""
        if transfer.why == ROUTED:
            fields: dict[str, Any] = dict(transfer.fields)
            fields.setdefault("i", self.id_of(transfer.seq))
            if target.settings.dedup_by_content and "k" not in fields:
                fields["k"] = fields["ck"]
            fields.pop("ck", None)
            return fields
        extra = transfer.extra
        extra.id = extra.id or self.id_of(transfer.seq)
        extra.born_ms = extra.born_ms or transfer.sent_ms
        old_route = transfer.extra
        if transfer.why in DEATH_NAMES:
            extra.deaths = died(view, extra, transfer.why, transfer.reason, transfer.now_ms)  # type: ignore[arg-type]
            extra.route = dead_route(view, old_route)  # type: ignore[arg-type]
        elif transfer.why == REDRIVEN and extra.deaths and extra.deaths[0].queue == target.name:
            extra.route = route_before(target, extra.deaths[0])  # type: ignore[arg-type]
        extra.count = extra.number = extra.first_ms = extra.due_ms = extra.expires_ms = 0
        extra.unique = extra.dedup = None
        if transfer.origin == "refused" and target.settings.dedup_by_content:
            extra.dedup = content_key(unpack_record(transfer.record)[1])  # it is as good as published there
        return {**fields_of(extra), "z": 1}  # the delay of a queue is for what is published to it
