"""In and out: publish, route, receive, settle."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..broker.interface import Receipt
from ..broker.subscriptions import check_consumer
from ..engine.engine import make_properties
from ..engine.records import NACKED, RELEASED
from ..errors import (
    FunctionError,
    InvalidSetting,
    MessageNotFoundError,
    OpenQError,
    QueueFull,
    StoreUnavailable,
    VisibilityTimeoutExpired,
)
from ..model import MAX_SPAN_MS, NO_DEADLINE, Delivery, DeliveryOptions, Draft, Entry, Properties, span_error
from .call_batcher import CallBatcher, Work
from .core import chunks
from .drafts import content_key, own_fields, pack_draft
from .moves import Moves
from .net import greenlets
from .records import deliveries_of, dump, encoded, light_fields, pack_record
from .registry import CachedQueue

_PAGE = 1000  # records or receipts in one call
_PAGE_BYTES = 1 << 20
_STALE_RETRIES = 20
_MAX_NUMBER = 1 << 53
_MAX_DRAINS = 100  # times that a receive meets nothing but messages that have to go elsewhere
_SMALL_PARTS = 64  # parts of what one caller asks, to be gathered with others
SMALL_BYTES = 1 << 16
_MAX_IDS = 100_000

ReceiveRequest = tuple[int, int | str, str, str]  # of a consumer: limit, lease or "", its name, types as JSON


class Publishing(Moves):
    batcher: CallBatcher | None = None

    def _batched(self, work: Work, view: CachedQueue, item: Any) -> Any:
        """With what others ask at the same moment, where that is known and not too much for one call."""
        if self.batcher is not None and len(item) <= _SMALL_PARTS and greenlets.in_greenlet():
            return self.batcher.join(work, view, item)
        answer = work(view, [item])[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    # -- in -------------------------------------------------------------------------------------

    def publish_body(
        self,
        queue: str,
        body: bytes,
        encoding: int,
        properties: Properties | None = None,
        options: DeliveryOptions | None = None,
    ) -> int:
        """The short way, with at most a light extra. Its sequence, or 0 if it must go the long way."""
        view = self._view(queue)
        if not view.is_plain or (options is not None and not options.is_plain):
            return 0
        record = pack_record(body, encoding, properties, light_fields(options), False)
        if len(record) > SMALL_BYTES:
            answer = self._publish_groups(view, [(record, b"")])[0][0]
        else:
            answer = self._batched(self._publish_groups, view, (record, b""))[0]
        seq = answer if isinstance(answer, int) else self._seq_of_answer(view, answer)
        if self._shared.listeners:
            self._emit("published", queue, [self.id_of(seq)])
        return seq

    def _seq_of_answer(self, view: CachedQueue, answer: Any) -> int:
        told = self._parse_publish_reply(view, answer)
        if isinstance(told, OpenQError):
            raise told
        return self._own_seq(told[0])

    def publish(self, queue: str, draft: Draft) -> str:
        answer = self._publish_drafts(queue, [draft])[0]
        if isinstance(answer, OpenQError):
            raise answer
        return answer[0]

    def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[str | OpenQError]:
        results = self._publish_drafts(queue, drafts)
        return [result if isinstance(result, OpenQError) else result[0] for result in results]

    def publish_each(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        return self._publish_drafts(queue, drafts)

    def _publish_drafts(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        view = self._view(queue)
        results: list[tuple[str, bool] | OpenQError] = []
        for part in _parts(drafts):
            results += self._publish_part(view, part)
        return results

    def _publish_part(
        self, view: CachedQueue, drafts: Sequence[Draft]
    ) -> list[tuple[str, bool] | OpenQError]:
        for _ in range(_STALE_RETRIES):
            flat: list[bytes] = []
            refused: dict[int, OpenQError] = {}
            for place, draft in enumerate(drafts):
                try:
                    own_seq = self._own_seq(draft.id) if draft.id is not None else 0
                    flat += pack_draft(view, draft, self.now_ms(), own_seq)
                except InvalidSetting as error:
                    refused[place] = error
            if not flat:
                return [refused[place] for place in range(len(drafts))]
            try:
                answers = iter(self._publish_parts(view, flat))
            except FunctionError as error:
                if error.code != "STALE":
                    raise
                self._registry.refresh(self.calls, always=True)
                continue
            results = [
                refused[place]
                if place in refused
                else self._parse_publish_reply(view, next(answers), draft.id)
                for place, draft in enumerate(drafts)
            ]
            if self._shared.listeners:
                new = [each[0] for each in results if isinstance(each, tuple) and not each[1]]
                self._emit("published", view.name, new)
            return results
        raise StoreUnavailable(f"the settings of {view.name!r} change all the time")

    def publish_bodies(
        self,
        queue: str,
        bodies: Sequence[bytes],
        encoding: int,
        properties: Properties | None = None,
        options: DeliveryOptions | None = None,
    ) -> list[int] | None:
        """Many bodies at once. Their sequences, or None if they must go one by one."""
        view = self._view(queue)
        if not view.is_plain or (options is not None and not options.is_plain):
            return None
        published = light_fields(options)
        return self._publish_plain(
            view, [pack_record(body, encoding, properties, published, False) for body in bodies]
        )

    def publish_with_properties(
        self,
        queue: str,
        bodies: Sequence[bytes],
        encoding: int,
        properties_each: Sequence[Properties],
        options: DeliveryOptions | None,
    ) -> bool:
        view = self._view(queue)
        if not view.is_plain or (options is not None and not options.is_plain):
            return False
        pairs = zip(bodies, properties_each, strict=True)
        published = light_fields(options)
        self._publish_plain(
            view, [pack_record(body, encoding, properties, published, False) for body, properties in pairs]
        )
        return True

    def _publish_plain(self, view: CachedQueue, packed: list[bytes]) -> list[int]:
        seqs: list[int] = []
        for part in _parts(packed):
            flat: list[bytes] = [b""] * (2 * len(part))
            flat[::2] = part
            for answer in self._publish_parts(view, flat):
                seqs.append(answer if isinstance(answer, int) else self._seq_of_answer(view, answer))
        if self._shared.listeners:
            self._emit("published", view.name, map(self.id_of, seqs))
        return seqs

    def _publish_parts(self, view: CachedQueue, flat: list[bytes]) -> list[Any]:
        if len(flat) > _SMALL_PARTS or sum(map(len, flat)) > SMALL_BYTES:
            return self._publish_groups(view, [tuple(flat)])[0]
        answers: list[Any] = self._batched(self._publish_groups, view, tuple(flat))
        return answers

    def _publish_groups(self, view: CachedQueue, groups: list[tuple[bytes, ...]]) -> list[list[Any]]:
        """One call for what several callers publish to a queue: answers of each. Repeated with its token
        until there is an answer, so nothing is published twice."""
        flat = groups[0] if len(groups) == 1 else [part for group in groups for part in group]
        found = self._ask_queue(view, "publish", self._token(), *flat)
        if self.is_durable and self.batcher is not None and greenlets.in_greenlet():
            self.calls.wait_for_copies()
        answers: Sequence[Any] = found
        if len(found) == 1 and found[0][:1] == b"~":
            first = int(found[0][1:])
            answers = range(first, first + len(flat) // 2)
        told: list[list[Any]] = []
        at = 0
        for group in groups:
            count = len(group) // 2
            told.append(list(answers[at : at + count]))
            at += count
        return told

    def _parse_publish_reply(
        self, view: CachedQueue, answer: Any, own_id: str | None = None
    ) -> tuple[str, bool] | OpenQError:
        """Id and whether it is that of an earlier message; or why it was refused."""
        if isinstance(answer, int):
            return self.id_of(answer), False
        kind = answer[:1]
        if kind == b"=":
            return self._parse_id(answer[1:]), True
        if kind == b"!":
            return self._publish_error(view, answer[1:].decode())
        return own_id or self.id_of(int(answer)), False

    def _parse_id(self, told: bytes) -> str:
        return told[1:].decode() if told[:1] == b"i" else self.id_of(int(told[1:]))

    def _publish_error(self, view: CachedQueue, told: str) -> OpenQError:
        word, _, rest = told.partition(" ")
        if word == "large":
            most = view.settings.max_body
            return InvalidSetting(f"a body of {rest} bytes; queue {view.name!r} takes at most {most}")
        return QueueFull(view.name, rest)

    # -- through exchanges ----------------------------------------------------------------------

    def routed_queues(
        self, exchange: str, keys: Sequence[str], headers: Mapping[str, object] | None
    ) -> list[CachedQueue]:
        router = self.router
        names = router.route(exchange, keys[0], headers)
        for key in keys[1:]:
            names += [name for name in router.route(exchange, key, headers) if name not in names]
        queues = self._registry.queues
        return [queues[name] for name in names if name in queues]

    def route(self, exchange: str, key: str, draft: Draft) -> tuple[str, list[str]]:
        self._registry.refresh(self.calls)
        headers = draft.attributes if draft.properties is None else draft.properties
        draft.route = (exchange, key)
        names = self.router.route(exchange, key, headers)
        queues = self._registry.queues
        for name in names:
            view = queues.get(name)
            most = None if view is None else view.settings.max_body
            if view is not None and most is not None and len(draft.body) > most:
                raise self._publish_error(view, f"large {len(draft.body)}")
        message_id, reached, refused = self.route_to(names, draft)
        if refused is not None and not reached:
            raise refused
        return message_id, reached

    def route_to(self, names: Sequence[str], draft: Draft) -> tuple[str, list[str], OpenQError | None]:
        """Into all of these queues: the id, those reached, and the error of one that refused.

        To several it goes in two steps (see transfers.py): once each has said that it would take the message,
        it is kept in one call, and reaches all of them even if this process dies in the next moment.
        """
        queues = self._registry.queues
        views = [queues[name] for name in dict.fromkeys(names) if name in queues]
        if not views:
            return "", [], None
        if len(views) == 1:
            told = self._publish_part(views[0], [draft])[0]
            if isinstance(told, QueueFull):
                return "", [], told
            if isinstance(told, OpenQError):
                raise told
            return told[0], [] if told[1] else [views[0].name], None
        return self._fan_out(views, draft)

    def _fan_out(self, views: list[CachedQueue], draft: Draft) -> tuple[str, list[str], OpenQError | None]:
        fields = own_fields(draft, self.now_ms())
        if draft.id is not None and self._own_seq(draft.id):
            fields["is"] = str(self._own_seq(draft.id))
        record = self._shared_record(draft)
        asked = dump(fields | {"ck": content_key(draft.body)})
        accepting: list[CachedQueue] = []
        refused: OpenQError | None = None
        message_id = ""
        for view in views:
            answer: bytes = self._ask_queue(view, "would", len(draft.body), asked, record)
            if answer[:1] == b"=":
                message_id = self._parse_id(answer[1:])
            elif answer[:1] == b"!":
                refused = self._publish_error(view, answer[1:].decode())
            else:
                accepting.append(view)
        if not accepting:
            return message_id, [], refused
        if len(accepting) == 1:
            told = self._publish_part(accepting[0], [draft])[0]
            if isinstance(told, OpenQError):
                return "", [], told
            return told[0], [] if told[1] else [accepting[0].name], refused
        fields.pop("is", None)
        fields["ck"] = content_key(draft.body)
        names = [view.name for view in accepting]
        answer = self._ask_queue(
            accepting[0], "fan_out", self._token(), json.dumps(names), dump(fields), record
        )
        message_id = draft.id or self.id_of(int(answer[0]))
        return message_id, names, refused

    def _shared_record(self, draft: Draft) -> bytes:
        return pack_record(draft.body, draft.encoding, make_properties(draft), b"", True)

    # -- out ------------------------------------------------------------------------------------

    def receive(
        self,
        queue: str,
        limit: int = 1,
        lease_ms: int | None = None,
        consumer: str | None = None,
        types: Iterable[str] | None = None,
    ) -> list[Delivery]:
        if consumer is not None:
            check_consumer(consumer)
        if lease_ms is not None and not NO_DEADLINE <= lease_ms <= MAX_SPAN_MS:
            raise span_error("lease", lease_ms)
        view = self._view(queue)
        wanted = "" if types is None else encoded(json.dumps(list(types), ensure_ascii=False))
        item = (limit, "" if lease_ms is None else lease_ms, _event_text(consumer), wanted)
        deliveries: list[Delivery] = self._batched(self._receive_groups, view, item)
        if deliveries:
            self._after_delivery(view, deliveries, lease_ms)
            if self._shared.listeners:
                self._emit_received(view, deliveries, consumer)
        return deliveries

    def _emit_received(self, view: CachedQueue, deliveries: list[Delivery], consumer: str | None) -> None:
        known = self._shared.delivered_ids
        if len(known) > _MAX_IDS:
            known.clear()
        for delivery in deliveries:
            if delivery.entry.options is not None and delivery.entry.options.id is not None:
                known[delivery.entry.seq] = delivery.entry.options.id
        self._emit(
            "received", view.name, [self.message_id(each.entry) for each in deliveries], consumer or ""
        )

    def _after_delivery(self, view: CachedQueue, deliveries: list[Delivery], lease_ms: int | None) -> None:
        """For who keeps an eye on deadlines and on bound leases."""

    def _receive_groups(self, view: CachedQueue, items: list[ReceiveRequest]) -> list[list[Delivery]]:
        """One call for several callers. Those who want the same are asked for as one and share what comes:
        the first ones get theirs, as if they had asked one after the other."""
        requests: list[ReceiveRequest] = []
        sharers: list[list[int]] = []
        for limit, *terms in items:
            if requests and not view.fifo and not terms[2] and requests[-1][1:] == tuple(terms):
                requests[-1] = (requests[-1][0] + limit, *requests[-1][1:])
                sharers[-1].append(limit)
            else:
                requests.append((limit, *terms))  # type: ignore[arg-type]
                sharers.append([limit])
        now_ms, answers = self._receive(view, requests)
        found: list[list[Delivery]] = []
        damaged: list[Receipt] = []
        for request, answer, limits in zip(requests, answers, sharers, strict=True):
            deliveries = deliveries_of(answer, now_ms, request[2] or None, damaged)
            at = 0
            for limit in limits:
                found.append(deliveries[at : at + limit])
                at += limit
        if damaged:
            self._set_aside(view, damaged)
        return found

    def _set_aside(self, view: CachedQueue, receipts: list[Receipt]) -> None:
        """Nobody sees them, nobody waits behind them, and an operator hears of them."""
        flat = [each for receipt in receipts for each in receipt]
        self._ask_queue(view, "set_aside", self._token(), *flat)

    def _receive(self, view: CachedQueue, requests: list[ReceiveRequest]) -> tuple[int, list[Any]]:
        version = str(self._registry.version)
        flat = [part for request in requests for part in request]
        binds = any(request[1] == NO_DEADLINE for request in requests)
        now_ms, answers = 0, []
        for _ in range(_MAX_DRAINS):
            outbox, now_ms, answers = self._fcall_receive(view, version, flat, binds)
            if not outbox or not self._try_drain_outbox(view) or any(answers):
                break
            # There were only such without receives left. Those with nowhere to go are handed out after all,
            # and what stood behind the others is free now.
            version = str(self._registry.version)
        return now_ms, answers

    def _fcall_receive(self, view: CachedQueue, version: str, flat: list[Any], binds: bool) -> Any:
        """A lease with a deadline ends by itself, so a call that got no answer may be repeated. One that is
        bound to this process does not: what a lost answer held is given back first."""
        shared = self._shared
        holder = (shared.client, shared.heartbeat_ms)
        if not binds:
            return self._fcall_queue(view, "receive", version, "", *holder, *flat)
        give_up_s = time.monotonic() + shared.address.reconnect_s
        while True:
            token = self._token()
            try:
                return self._fcall_queue(view, "receive", version, token, *holder, *flat, idempotent=False)
            except StoreUnavailable as error:
                if not error.sent or time.monotonic() > give_up_s:
                    raise
            self._fcall_queue(view, "forsake", token, shared.client)

    def load(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Their bodies are there already."""
        return deliveries

    def is_loaded(self, deliveries: Sequence[Delivery]) -> bool:
        return True

    def commit_location(self, deliveries: Sequence[Delivery]) -> int:
        """A lease is part of the call that hands a message out."""
        return 0

    def drop_bodies(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            e = delivery.entry
            delivery.entry = Entry(
                e.seq, e.sent_ms, e.location, e.size, e.encoding, None, e.properties, e.options
            )

    # -- settling -------------------------------------------------------------------------------

    def ack(self, queue: str, receipts: Sequence[Receipt]) -> list[OpenQError | None]:
        view = self._view(queue)
        results: list[OpenQError | None] = []
        for part in chunks(list(map(_valid_receipt, receipts)), _PAGE):
            flat = tuple([each for receipt in part for each in receipt])
            answers = self._batched(self._ack_groups, view, flat)
            for (seq, _), answer in zip(part, answers, strict=True):
                results.append(None if answer == 1 else self._settle_error(view, seq, answer))
        if self._shared.listeners:
            acked = [seq for (seq, _), error in zip(receipts, results, strict=True) if error is None]
            self._emit("acked", queue, map(self._delivered_id, acked))
        return results

    def _ack_groups(self, view: CachedQueue, groups: list[tuple[int, ...]]) -> list[list[Any]]:
        flat = groups[0] if len(groups) == 1 else [each for group in groups for each in group]
        answers = self._ask_queue(view, "ack", self._token(), *flat)
        if self.is_durable and self.batcher is not None and greenlets.in_greenlet():
            self.calls.wait_for_copies()
        told: list[list[Any]] = []
        at = 0
        for group in groups:
            count = len(group) // 2
            told.append(answers[at : at + count])
            at += count
        return told

    def _settle_error(self, view: CachedQueue, seq: int, answer: bytes) -> OpenQError:
        if answer.endswith(b"gone"):
            return MessageNotFoundError(seq, view.name)
        return VisibilityTimeoutExpired(seq, view.name)

    def ack_one(self, queue: str, seq: int, number: int) -> None:
        error = self.ack(queue, [(seq, number)])[0]
        if error is not None:
            raise error

    def ack_late(self, queue: str, receipt: Receipt) -> bool:
        return bool(self._ask_queue(self._view(queue), "ack_late", *receipt))

    def extend_late(self, queue: str, receipt: Receipt, lease_ms: int) -> int | None:
        if not 0 <= lease_ms <= MAX_SPAN_MS:
            raise InvalidSetting(f"a lease of {lease_ms} ms; it must be 0 to {MAX_SPAN_MS}")
        until_ms = int(self._ask_queue(self._view(queue), "extend_late", *_valid_receipt(receipt), lease_ms))
        return until_ms or None

    def _settle(
        self, view: CachedQueue, name: str, head: tuple[Any, ...], receipts: Sequence[Receipt]
    ) -> list[str | OpenQError]:
        """What became of each; transfers are decided before this returns."""
        results: list[str | OpenQError] = []
        for part in chunks(list(map(_valid_receipt, receipts)), _PAGE):
            flat = [each for receipt in part for each in receipt]
            outbox, _, answers = self._fcall_queue(view, name, self._token(), *head, *flat)
            outcomes = self._try_drain_outbox(view) if outbox else {}
            for (seq, _), answer in zip(part, answers, strict=True):
                if answer[:1] == b"?":
                    results.append(self._settle_error(view, seq, answer))
                elif answer.isdigit():
                    results.append(outcomes.get(answer.decode(), "dead-lettered"))
                else:
                    results.append(answer.decode())
        if self._shared.listeners:
            for (seq, _), result in zip(receipts, results, strict=True):
                if isinstance(result, str):
                    what = "requeued" if result == "returned" else result
                    self._emit(what, view.name, [self._delivered_id(seq)])
        return results

    def nack(
        self, queue: str, receipt: Receipt, delay_ms: int | None = None, reason: str | None = None
    ) -> str:
        return _only(self._nack(queue, [receipt], NACKED, delay_ms, reason))

    def _nack(
        self,
        queue: str,
        receipts: Sequence[Receipt],
        why: int,
        delay_ms: int | None,
        reason: str | None,
    ) -> list[str | OpenQError]:
        if delay_ms is not None and not 0 <= delay_ms <= MAX_SPAN_MS:
            raise span_error("delay", delay_ms)
        view = self._view(queue)
        head = (why, "" if delay_ms is None else delay_ms, _event_text(reason))
        return self._settle(view, "back", head, receipts)

    def nack_many(
        self, queue: str, receipts: Sequence[Receipt], reason: str | None = None, delay_ms: int | None = 0
    ) -> int:
        results = self._nack(queue, list(dict.fromkeys(receipts)), NACKED, delay_ms, reason)
        return sum(not isinstance(result, OpenQError) for result in results)

    def release(self, queue: str, receipts: Sequence[Receipt]) -> int:
        results = self._nack(queue, receipts, RELEASED, 0, None)
        return sum(not isinstance(result, OpenQError) for result in results)

    def reject(self, queue: str, receipt: Receipt, reason: str | None = None) -> str:
        return _only(self._settle(self._view(queue), "reject", (_event_text(reason),), [receipt]))

    def reject_many(self, queue: str, receipts: Sequence[Receipt], reason: str | None = None) -> int:
        unique = list(dict.fromkeys(receipts))
        results = self._settle(self._view(queue), "reject", (_event_text(reason),), unique)
        return sum(not isinstance(result, OpenQError) for result in results)

    def extend(self, queue: str, receipt: Receipt, lease_ms: int) -> int:
        if lease_ms < NO_DEADLINE or lease_ms > MAX_SPAN_MS:
            raise span_error("lease", lease_ms)
        view = self._view(queue)
        shared = self._shared
        answer = self._ask_queue(view, "extend", lease_ms, shared.client, shared.heartbeat_ms, *receipt)[0]
        if answer[:1] == b"?":
            raise self._settle_error(view, receipt[0], answer)
        if lease_ms == NO_DEADLINE:
            self._track_bound_lease(view)
        return int(answer)

    def _track_bound_lease(self, view: CachedQueue) -> None:
        """A lease is bound to this process from now on."""


def _valid_receipt(receipt: Receipt) -> Receipt:
    """Numbers that no message has stay what they are, and within what Lua counts."""
    seq, number = receipt
    return (seq if 0 <= seq < _MAX_NUMBER else 0), (number if 0 <= number < _MAX_NUMBER else 0)


def _event_text(text: str | None) -> str:
    """A reason or a consumer as events tell of it: without what separates their parts."""
    return encoded((text or "").replace("\x1f", " ").replace("\x1e", " "))


def _only(results: list[str | OpenQError]) -> str:
    result = results[0]
    if isinstance(result, OpenQError):
        raise result
    return result


def _parts(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Of bounded number and size: Redis does nothing else while it takes one of them."""
    start = size = 0
    for at, item in enumerate(items):
        size += len(item.body if isinstance(item, Draft) else item)
        if at - start + 1 >= _PAGE or size >= _PAGE_BYTES:
            yield items[start : at + 1]
            start, size = at + 1, 0
    if start < len(items):
        yield items[start:]
