"""A broker behind a server: the calls of a broker over its REST API.

The server responds when a change is on its disk, so there is nothing to sync here. Waiting is a long poll
(`server_target.py`); retries are in `rest_client.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ..broker.events import EventFilter
from ..broker.interface import Health, QueueStats, Receipt, Storage
from ..broker.waiters import Waiter
from ..clock import Clock
from ..errors import (
    InvalidSetting,
    MessageNotFoundError,
    OpenQError,
    QueueExists,
    QueueFull,
    QueueNotFound,
    VisibilityTimeoutExpired,
)
from ..model import (
    ENCODING_BYTES,
    ENCODING_TEXT,
    NO_DEADLINE,
    Delivery,
    Draft,
    Entry,
    MessageFilter,
    QueueSettings,
    check_name,
    split_failure,
)
from . import documents
from .documents import Document
from .grouped import CallsByQueue
from .heartbeat import Heartbeat
from .http import HttpClient, Refused, Uncertain
from .interface import OnlyInProcess
from .remote_admin import RemoteAdmin, RemoteExchanges
from .remote_calls import MAX_BATCH, RemoteCalls
from .remote_events import ServerPages
from .remote_inspector import RemoteInspector
from .remote_kv import RemoteKeyValues
from .remote_schedules import RemoteSchedules
from .rest_client import path_part
from .server_api import ServerApi

if TYPE_CHECKING:
    from .server_target import ServerHandle
    from .stream_feed import StreamFeed

MAX_BATCH_BYTES = 4 << 20
ENDLESS_LEASE_MS = 60_000  # of a delivery without deadline; extended while this process lives
_NUMBER_BITS = 80  # more than the number of any delivery has
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1


class RemoteBroker:
    observed = False
    clock: Clock | None = None  # that of the server
    handle: ServerHandle | None = None  # shared by queue objects

    def __init__(self, api: ServerApi) -> None:
        self.api = self._api = api
        self.has_stream = True  # until the server, or a proxy before it, refuses one
        self.streamed: dict[
            Receipt, StreamFeed
        ] = {}  # deliveries that are settled on the stream that brought them
        self._calls = calls = RemoteCalls(api)
        self.inspect = RemoteInspector(calls, self.parse_delivery)
        self.admin = RemoteAdmin(calls)
        self.exchanges = RemoteExchanges(calls)
        self.url = api.url
        self.kv = RemoteKeyValues(api)
        # Calls of several threads, one message each, share requests.
        self._publishes = CallsByQueue(self.publish_each, lambda draft: len(draft.body))
        self._acks: CallsByQueue[Receipt, None] = CallsByQueue(self.ack)
        self._endless_leases = Heartbeat(self)
        self._endless: dict[int, Delivery] = {}
        # A server without a disk has other ids after a restart, and numbers its deliveries from 1 again.
        # Each delivery number here says which prefix it belongs to: an old receipt fits no new delivery.
        self._prefixes: list[str] = []

    def connect(self) -> None:
        """The first request: checks the url and the credentials."""
        if not self._prefixes:
            # Without retries: a wrong address is more likely than a server that is being restarted.
            reply = self._api.call("GET", "server", idempotent=True, retry=False)
            self._prefixes.append(reply.value["id_prefix"])

    @property
    def schedules(self) -> RemoteSchedules:
        return RemoteSchedules(self._api)

    @property
    def storage(self) -> Storage:
        """Not durable: the server responds when a change is on its disk."""
        return Storage("server", self.url, "".join(self._prefixes[:1]), is_durable=False)

    def parse_delivery(self, document: Document, consumer: str | None) -> Delivery:
        delivery = documents.parse_delivery(document, consumer)
        prefix = documents.receipt_prefix(document)
        if prefix is not None and prefix != self._prefixes[0]:
            if prefix not in self._prefixes:
                self._prefixes.append(prefix)
            delivery.number |= self._prefixes.index(prefix) << _NUMBER_BITS
        return delivery

    def texts_of(self, receipts: Iterable[Receipt]) -> list[str]:
        return [
            documents.receipt_text(self._prefixes[number >> _NUMBER_BITS], seq, number & _NUMBER_MASK)
            for seq, number in receipts
        ]

    # -- queues -------------------------------------------------------------------------------

    def declare(self, queue: str, settings: QueueSettings, *, change: bool = False) -> QueueSettings:
        check_name(queue)
        stored = self.stored_settings(queue)
        if stored is None:
            path = f"queues/{path_part(queue)}?if_absent=true"
            document = documents.settings_document(settings)
            view = self._api.call("PUT", path, document, queue=queue, idempotent=True).value
            stored = documents.parse_settings(view["settings"])
            if view["created"]:
                return stored
        changes = documents.differences(stored, settings)
        if changes and not change:
            raise QueueExists(queue, ", ".join(changes))
        if changes:
            path = f"queues/{path_part(queue)}"
            view = self._api.call("PATCH", path, changes, queue=queue, idempotent=True).value
            stored = documents.parse_settings(view["settings"])
        return stored

    def stored_settings(self, queue: str) -> QueueSettings | None:
        """The settings of a queue; None if it does not exist."""
        try:
            return self.settings(queue)
        except QueueNotFound:
            return None

    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        flags = urlencode({"if_empty": str(if_empty).lower(), "if_unused": str(if_unused).lower()})
        reply = self._api.call("DELETE", f"queues/{path_part(queue)}?{flags}", queue=queue)
        count: int = reply.value["messages"]
        return count

    def queues(self) -> list[str]:
        return [each["name"] for each in self._calls.pages("queues", "", "queues")]

    def settings(self, queue: str) -> QueueSettings:
        check_name(queue)
        return documents.parse_settings(self._calls.get(f"queues/{path_part(queue)}", queue)["settings"])

    def stats(self, queue: str) -> QueueStats:
        return documents.parse_stats(queue, self._calls.get(f"queues/{path_part(queue)}/stats", queue))

    def purge(self, queue: str) -> int:
        count: int = self._calls.post(queue, "purge").value["messages"]
        return count

    # -- publishing ---------------------------------------------------------------------------

    def publish_body(self, queue: str, body: bytes, encoding: int) -> int:
        return 0  # declined: `publish_many` does it

    def publish_bodies(self, queue: str, bodies: Sequence[bytes], encoding: int) -> range | None:
        return None

    def publish(self, queue: str, draft: Draft) -> str:
        [result] = self.publish_many(queue, [draft])
        if isinstance(result, OpenQError):
            raise result
        return result[0]

    def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        if len(drafts) == 1 and drafts[0].past is None:
            try:
                return [self._publishes.call(queue, drafts[0])]
            except (InvalidSetting, QueueFull) as error:
                return [error]
        results: list[tuple[str, bool] | OpenQError] = []
        for some in _batches(drafts):
            results += self._publish_batch(queue, some)
        return results

    def publish_each(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        """`publish_many` for the drafts of several callers, in one request: each has the id or the error that
        it would have alone."""
        try:
            return self._publish_batch(queue, drafts)
        except Uncertain as error:
            again = [draft for draft in drafts if _is_idempotent(draft)]
            if not again:
                return [error] * len(drafts)
            # Those of other callers were the reason that these were not sent again.
            results = iter(self.publish_each(queue, again))
            return [next(results) if _is_idempotent(draft) else error for draft in drafts]
        except OpenQError as error:
            return [error] * len(drafts)

    def _publish_batch(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        idempotent = all(map(_is_idempotent, drafts))
        path = f"queues/{path_part(queue)}/messages"
        what = "it was published: with a dedup_id it would have been sent again by itself"
        if len(drafts) == 1:
            draft = drafts[0]
            path += "?restore=true" if draft.past is not None else ""
            try:
                reply = self._api.call(
                    "POST",
                    path,
                    documents.message_document(draft),
                    queue=queue,
                    idempotent=idempotent,
                    what=what,
                )
            except (InvalidSetting, QueueFull) as error:
                return [error]
            return [(reply.value["id"], bool(reply.value.get("duplicate")))]
        restores = any(draft.past is not None for draft in drafts)
        path += "/batch?restore=true" if restores else "/batch"
        try:
            answer = self._api.call(
                "POST", path, _items(drafts), queue=queue, idempotent=idempotent, what=what
            ).value
        except InvalidSetting:
            # The server could not read one of them: publish each alone, so that the others are added.
            return [result for draft in drafts for result in self.publish_each(queue, [draft])]
        if "results" not in answer:
            first_id = answer.get("first_id", "")
            prefix, first = first_id[:-12], int(first_id[-12:] or "0", 16)
            return [(f"{prefix}{first + i:012x}", False) for i in range(answer["count"])]
        return [self._outcome(queue, each) for each in answer["results"]]

    def _outcome(self, queue: str, outcome: Document) -> tuple[str, bool] | OpenQError:
        if "id" in outcome:
            return outcome["id"], bool(outcome.get("duplicate"))
        refused = Refused(0, outcome["code"], outcome.get("detail", ""))
        return documents.parse_error(refused, queue)

    # -- receiving ----------------------------------------------------------------------------

    def receive(
        self,
        queue: str,
        limit: int = 1,
        lease_ms: int | None = None,
        consumer: str | None = None,
        wanted: MessageFilter | None = None,
    ) -> list[Delivery]:
        return self.poll(queue, limit, lease_ms, consumer, wanted)

    def poll(
        self,
        queue: str,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        wanted: MessageFilter | None,
        wait_s: float = 0.0,
        on_connection: Callable[[HttpClient | None], bool] | None = None,
    ) -> list[Delivery]:
        """Messages as soon as there are any; none after `wait_s` seconds or when called off."""
        body: Document = {"max": min(limit, MAX_BATCH), "wait": wait_s}
        if lease_ms is not None:
            body["visibility_timeout"] = (ENDLESS_LEASE_MS if lease_ms == NO_DEADLINE else lease_ms) / 1000
        if consumer:
            body["consumer"] = consumer
        if wanted is not None:
            body |= documents.selection_document(wanted)
        # A receive may be repeated: the leases of a lost response end by themselves.
        reply = self._api.call(
            "POST",
            f"queues/{path_part(queue)}/receive",
            body,
            queue=queue,
            idempotent=True,
            wait_s=wait_s,
            on_connection=on_connection,
        )
        if reply.value is None:
            return []
        deliveries = [self.parse_delivery(each, consumer) for each in reply.value["messages"]]
        if lease_ms == NO_DEADLINE:
            for delivery in deliveries:
                self._hold(queue, delivery)
        return deliveries

    def _hold(self, queue: str, delivery: Delivery) -> None:
        """Extend a short lease again and again, for as long as this process lives."""
        self._endless[delivery.number] = delivery
        self._endless_leases.hold(queue, delivery)

    def _stop_holding(self, receipts: Iterable[Receipt]) -> None:
        if self._endless:
            for _, number in receipts:
                delivery = self._endless.pop(number, None)
                if delivery is not None:
                    self._endless_leases.drop(delivery)

    def add_waiter(self, queue: str, waiter: Waiter) -> list[Delivery] | None:
        raise OnlyInProcess("waiters are served in the process of the broker; clients over the network poll")

    def remove_waiter(self, queue: str, waiter: Waiter) -> bool:
        return False

    def load(self, deliveries: list[Delivery]) -> list[Delivery]:
        return deliveries  # responses carry the bodies

    def ack(self, queue: str, receipts: Sequence[Receipt]) -> list[OpenQError | None]:
        self._stop_holding(receipts)
        results: list[OpenQError | None] = []
        for _, error, retried in self._settle(queue, "ack", {}, receipts):
            # After a retry: our first try has acked it.
            results.append(None if retried and isinstance(error, MessageNotFoundError) else error)
        return results

    def _settle(
        self, queue: str, verb: str, body: Document, receipts: Sequence[Receipt]
    ) -> Iterator[tuple[str, OpenQError | None, bool]]:
        """Of each receipt: its outcome, its error, and whether the request was repeated."""
        streams = self._streams_of(receipts) if self.streamed else ()
        if not streams:
            yield from self._settle_by_requests(queue, verb, body, receipts)
            return
        done: dict[Receipt, tuple[str, OpenQError | None, bool]] = {}
        for stream, group in streams:
            op = verb if not body.get("reject") else "reject"
            fields = {name: value for name, value in body.items() if name != "reject"}
            answer = None if stream is None else stream.settle(op, group, fields)
            if answer is not None:
                done.update(zip(group, self._outcomes(queue, self.texts_of(group), answer), strict=True))
                continue
            results = self._settle_by_requests(queue, verb, body, group)
            for receipt, (outcome, error, retried) in zip(group, results, strict=True):
                # After a lost connection the outcome of the first try is not known.
                done[receipt] = outcome, error, retried or stream is not None
        yield from (done[receipt] for receipt in receipts)

    def _streams_of(self, receipts: Sequence[Receipt]) -> list[tuple[StreamFeed | None, list[Receipt]]]:
        """The receipts of each stream; none if all came by requests."""
        groups: dict[StreamFeed | None, list[Receipt]] = {}
        for receipt in dict.fromkeys(receipts):
            groups.setdefault(self.streamed.get(receipt), []).append(receipt)
        return [] if groups.keys() == {None} else list(groups.items())

    def _settle_by_requests(
        self, queue: str, verb: str, body: Document, receipts: Sequence[Receipt]
    ) -> Iterator[tuple[str, OpenQError | None, bool]]:
        for start in range(0, len(receipts), MAX_BATCH):
            texts = self.texts_of(receipts[start : start + MAX_BATCH])
            reply = self._calls.post(queue, verb, {**body, "receipts": texts}, idempotent=True)
            yield from self._outcomes(queue, texts, reply.value, reply.retried)

    def _outcomes(
        self, queue: str, texts: list[str], answer: Document, retried: bool = False
    ) -> Iterator[tuple[str, OpenQError | None, bool]]:
        failed: dict[str, list[Document]] = {}
        for each in answer.get("failed", ()):
            failed.setdefault(each["receipt_id"], []).append(each)
        errors: list[OpenQError | None] = []
        for text in reversed(texts):  # of two equal receipts the first one succeeded
            failures = failed.get(text)
            errors.append(_receipt_error(failures.pop(), queue) if failures else None)
        outcomes = iter(answer.get("outcomes", ()))
        for error in reversed(errors):
            yield (next(outcomes, "") if error is None else ""), error, retried

    def ack_one(self, queue: str, seq: int, number: int) -> None:
        self._acks.call(queue, (seq, number))

    def nack(
        self,
        queue: str,
        receipts: Sequence[Receipt],
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> list[str | OpenQError]:
        body: Document = {} if delay_ms is None else {"delay": delay_ms / 1000}
        return self._return(queue, receipts, body, reason)

    def reject(
        self, queue: str, receipts: Sequence[Receipt], reason: str | None = None
    ) -> list[str | OpenQError]:
        return self._return(queue, receipts, {"reject": True}, reason)

    def _return(
        self, queue: str, receipts: Sequence[Receipt], body: Document, reason: str | None
    ) -> list[str | OpenQError]:
        self._stop_holding(receipts)
        reason, trace = split_failure(reason)
        if reason is not None:
            body["reason"] = reason[: documents.MAX_REASON]
        if trace is not None:
            body["traceback"] = trace
        results: list[str | OpenQError] = []
        for outcome, error, retried in self._settle(queue, "nack", body, receipts):
            if retried and isinstance(error, VisibilityTimeoutExpired):
                results.append("returned")  # by our first try, or because its lease ended
            elif retried and isinstance(error, MessageNotFoundError):
                has_target = self.settings(queue).dead_letter is not None
                results.append("dead-lettered" if has_target else "removed")
            else:
                results.append(outcome if error is None else error)
        return results

    def release(self, queue: str, receipts: Sequence[Receipt]) -> int:
        self._stop_holding(receipts)
        done = 0
        streams = self._streams_of(receipts) if self.streamed else []
        for stream, group in streams:
            answer = None if stream is None else stream.settle("release", group, {})
            if answer is not None:
                done += answer["count"]
                receipts = [each for each in receipts if each not in set(group)]
        for start in range(0, len(receipts), MAX_BATCH):
            body = {"receipts": self.texts_of(receipts[start : start + MAX_BATCH]), "release": True}
            done += self._calls.post(queue, "nack", body, idempotent=True).value["count"]
        return done

    def extend(self, queue: str, receipts: Sequence[Receipt], lease_ms: int) -> list[int | OpenQError]:
        is_endless = lease_ms == NO_DEADLINE
        body: Document = {"seconds": (ENDLESS_LEASE_MS if is_endless else lease_ms) / 1000}
        results: list[int | OpenQError] = []
        settled = self._settle(queue, "extend", body, receipts)
        for (seq, number), (outcome, error, _) in zip(receipts, settled, strict=True):
            if error is not None:
                results.append(error)
                continue
            until_ms = documents.time_ms(outcome)
            if is_endless:
                entry = Entry(seq, 0, 0, 0, ENCODING_BYTES, None, None, None)
                self._hold(queue, Delivery(entry, number, until_ms - ENDLESS_LEASE_MS, until_ms, 0, None))
            results.append(0 if is_endless else until_ms)
        return results

    # -- durability and closing ---------------------------------------------------------------

    def sync(self) -> None:
        pass  # the server has responded: the change is on its disk

    def announce(self) -> None:
        pass

    def tick(self) -> None:
        pass  # the server does this

    def now_ms(self) -> int:
        """The time of the server."""
        view = self._calls.get("server")
        now_ms: int = documents.time_ms(view["started"]) + round(view["uptime"] * 1000)
        return now_ms

    def open_events(
        self, wanted: EventFilter, after: str | None, *, from_end: bool, bodies: bool, follow: bool
    ) -> ServerPages:
        """The event stream of the server; see `openq.client.events`."""
        api = self._api
        prefix = api.target("")
        connection = api.new_connection()
        return ServerPages(
            *(connection, prefix, api.reconnect_s, wanted, after),
            from_end=from_end,
            bodies=bodies,
            follow=follow,
        )

    def subscribe(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        raise OnlyInProcess("a server reports events by queue: use queue.subscribe or queue.events")

    def health(self) -> Health:
        try:
            view = self._calls.get("health")
        except OpenQError as error:
            return Health(False, str(error))
        return Health(view["ok"], view["detail"], view["disk_full"], tuple(view.get("reasons", ())))

    def sleep(self, seconds: float) -> None:
        """Until the time is over or the broker is closed."""
        self._api.sleep(seconds)

    def is_free(self) -> bool:
        return True

    def abort(self) -> None:
        for stream in set(self.streamed.values()):
            stream.abort()
        self._api.abort()

    def close(self) -> None:
        self._api.close()
        self._endless_leases.stop()


def _is_idempotent(draft: Draft) -> bool:
    """A message with an id or a dedup id is not added twice, so it may be sent twice."""
    return draft.dedup is not None or draft.id is not None


def _receipt_error(failure: Document, queue: str) -> OpenQError:
    refused = Refused(0, failure["code"], failure["detail"])
    return documents.parse_error(refused, queue, failure["receipt_id"])


def _batches(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """Split into batches that fit into one request."""
    start = size = 0
    for i, draft in enumerate(drafts):
        if i > start and (i - start == MAX_BATCH or size + len(draft.body) > MAX_BATCH_BYTES):
            yield drafts[start:i]
            start, size = i, 0
        size += len(draft.body)
    if start < len(drafts):
        yield drafts[start:]


def _items(drafts: Sequence[Draft]) -> list[Any]:
    """Bare bodies if that is all there is: the server has a fast path for them."""
    encodings = {draft.encoding for draft in drafts}
    if len(encodings) == 1 and all(draft.is_plain() for draft in drafts):
        if ENCODING_BYTES in encodings:
            return [draft.body for draft in drafts]
        if ENCODING_TEXT in encodings:
            return [draft.body.decode() for draft in drafts]
    return [documents.message_document(draft) for draft in drafts]
