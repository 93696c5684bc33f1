"""The same verbs over the network: a broker that is a server's REST API.

The server answers when what was asked for is on its disk, so there is nothing to sync here. Waiting is
a long poll in the thread that waits. What happens when the connection breaks is in `link.py`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from ..broker.interface import Filter, Health, QueueStats, Receipt, SearchResult, TimelineStep
from ..broker.waiters import Waiter
from ..clock import Clock
from ..config import secret
from ..engine.routing import Binding, Exchange
from ..engine.why import Why
from ..errors import (
    InvalidSetting,
    MessageNotFoundError,
    OpenQError,
    QueueExists,
    QueueFull,
    QueueInUse,
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
    QueueSettings,
    check_name,
    split_failure,
)
from . import documents
from .documents import Document, path_part
from .handle import BrokerHandle, open_shared
from .heartbeat import Heartbeat
from .http import HttpClient, Refused
from .interface import OnlyInProcess
from .rest_client import RECONNECT_S, RestClient, RestReply, check_url
from .settings import environment_number, log_changes, merge_settings
from .waiting import ThreadWait, release_unseen

MAX_BATCH = 1_000  # messages or receipts in one request
MAX_BATCH_BYTES = 4 << 20
PAGE = 200
POLL_S = 20.0  # one long poll; a longer wait is several
ENDLESS_LEASE_MS = 60_000  # of what is held for as long as this process lives
_POLL_TASK_S = (0.005, 0.25)
_NUMBER_BITS = 80  # more than the number of any delivery has
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1


class RemoteBroker:
    observed = False
    relaxed = False
    is_durable = False  # the server answers when it is safe
    waits = False  # not so that a loop could go on: `openq.aio` has threads for it
    storage = "server"
    clock: Clock | None = None  # the server has its own
    handle: ServerHandle | None = None  # where queue objects share it

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self.url = rest.url
        self._endless_leases = Heartbeat(self)
        self._endless: dict[int, Delivery] = {}
        # A server without a disk begins anew when it is restarted: other ids, and deliveries numbered from
        # 1. A receipt from before must not fit a delivery after, so each number says whose it is.
        self._prefixes: list[str] = []

    def connect(self) -> None:
        """The first contact: the address and who we are must be right."""
        if not self._prefixes:
            # Not patient: a wrong address is more likely than a server that is just being restarted.
            reply = self._rest.call("GET", "server", idempotent=True, wait_for_server=False)
            self._prefixes.append(reply.value["id_prefix"])

    @property
    def id_prefix(self) -> str:
        return self._prefixes[0]

    def _delivery(self, document: Document, consumer: str | None) -> Delivery:
        delivery = documents.parse_delivery(document, consumer)
        prefix = documents.receipt_prefix(document)
        if prefix is not None and prefix != self._prefixes[0]:
            if prefix not in self._prefixes:
                self._prefixes.append(prefix)
            delivery.number |= self._prefixes.index(prefix) << _NUMBER_BITS
        return delivery

    def _receipt_texts(self, receipts: Iterable[Receipt]) -> list[str]:
        return [
            documents.receipt_text(self._prefixes[number >> _NUMBER_BITS], seq, number & _NUMBER_MASK)
            for seq, number in receipts
        ]

    def _get(self, path: str, queue: str = "", message_id: str | None = None, **query: Any) -> Any:
        told = {name: str(value) for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(told)}" if told else path
        return self._rest.call("GET", target, queue=queue, message_id=message_id, idempotent=True).value

    def _post(self, queue: str, verb: str, body: object = None, idempotent: bool = False) -> RestReply:
        path = f"queues/{path_part(queue)}/{verb}"
        return self._rest.call("POST", path, body, queue=queue, idempotent=idempotent)

    def _pages(self, path: str, queue: str, items: str, **query: Any) -> Iterator[Document]:
        after: str | None = None
        while True:
            page = self._get(path, queue, after=after, limit=PAGE, **query)
            yield from page[items]
            after = page.get("next")
            if after is None:
                return

    # -- queues -------------------------------------------------------------------------------

    def declare(self, queue: str, settings: QueueSettings, *, change: bool = False) -> QueueSettings:
        check_name(queue)
        stored = self._stored(queue)
        if stored is None:
            path = f"queues/{path_part(queue)}?if_absent=true"
            document = documents.settings_document(settings)
            view = self._rest.call("PUT", path, document, queue=queue, idempotent=True).value
            stored = documents.parse_settings(view["settings"])
            if view["created"]:
                return stored
        changes = documents.differences(stored, settings)
        if changes and not change:
            raise QueueExists(queue, ", ".join(changes))
        if changes:
            path = f"queues/{path_part(queue)}"
            view = self._rest.call("PATCH", path, changes, queue=queue, idempotent=True).value
            stored = documents.parse_settings(view["settings"])
        return stored

    def _stored(self, queue: str) -> QueueSettings | None:
        try:
            return self.settings(queue)
        except QueueNotFound:
            return None

    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        flags = urlencode({"if_empty": str(if_empty).lower(), "if_unused": str(if_unused).lower()})
        reply = self._rest.call("DELETE", f"queues/{path_part(queue)}?{flags}", queue=queue)
        count: int = reply.value["messages"]
        return count

    def queues(self) -> list[str]:
        return [each["name"] for each in self._pages("queues", "", "queues")]

    def settings(self, queue: str) -> QueueSettings:
        check_name(queue)
        return documents.parse_settings(self._get(f"queues/{path_part(queue)}", queue)["settings"])

    def stats(self, queue: str) -> QueueStats:
        return documents.parse_stats(queue, self._get(f"queues/{path_part(queue)}/stats", queue))

    def purge(self, queue: str) -> int:
        count: int = self._post(queue, "purge").value["messages"]
        return count

    # -- in -----------------------------------------------------------------------------------

    def publish_body(self, queue: str, body: bytes, encoding: int) -> int:
        return 0  # there is one way in: `publish_each`

    def publish_bodies(self, queue: str, bodies: Sequence[bytes], encoding: int) -> range | None:
        return None

    def publish(self, queue: str, draft: Draft) -> str:
        [result] = self.publish_each(queue, [draft])
        if isinstance(result, OpenQError):
            raise result
        return result[0]

    def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[str | OpenQError]:
        results = self.publish_each(queue, drafts)
        return [result if isinstance(result, OpenQError) else result[0] for result in results]

    def publish_each(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        results: list[tuple[str, bool] | OpenQError] = []
        for some in _batches(drafts):
            results += self._publish_batch(queue, some)
        return results

    def _publish_batch(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        # One that has an id or a dedup id is not added twice, so it may be sent twice.
        idempotent = all(draft.dedup is not None or draft.id is not None for draft in drafts)
        path = f"queues/{path_part(queue)}/messages"
        what = "it was published: with a dedup_id it would have been sent again by itself"
        if len(drafts) == 1:
            draft = drafts[0]
            path += "?restore=true" if draft.past is not None else ""
            try:
                reply = self._rest.call(
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
            answer = self._rest.call(
                "POST", path, _items(drafts), queue=queue, idempotent=idempotent, what=what
            ).value
        except InvalidSetting:
            # The server could not even read one of them. The others must not suffer for it.
            return [result for draft in drafts for result in self._publish_batch(queue, [draft])]
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

    def route(self, exchange: str, key: str, draft: Draft) -> tuple[str, list[str]]:
        body = {**documents.message_document(draft), "routing_key": key}
        reply = self._rest.call("POST", f"exchanges/{path_part(exchange)}/publish", body, queue=exchange)
        return reply.value["id"], reply.value["queues"]

    # -- out ----------------------------------------------------------------------------------

    def receive(
        self,
        queue: str,
        limit: int = 1,
        lease_ms: int | None = None,
        consumer: str | None = None,
        types: Iterable[str] | None = None,
    ) -> list[Delivery]:
        return self.poll(queue, limit, lease_ms, consumer, types)

    def poll(
        self,
        queue: str,
        limit: int,
        lease_ms: int | None,
        consumer: str | None,
        types: Iterable[str] | None,
        wait_s: float = 0.0,
        on_connection: Callable[[HttpClient | None], bool] | None = None,
    ) -> list[Delivery]:
        """Messages as soon as there are any, nothing after `wait_s` seconds or when `enter` says so."""
        body: Document = {"max": min(limit, MAX_BATCH), "wait": wait_s}
        if lease_ms is not None:
            body["visibility_timeout"] = (ENDLESS_LEASE_MS if lease_ms == NO_DEADLINE else lease_ms) / 1000
        if consumer:
            body["consumer"] = consumer
        if types is not None:
            body["types"] = list(types)
        # A receive whose answer was lost is no loss: those leases end by themselves.
        reply = self._rest.call(
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
        deliveries = [self._delivery(each, consumer) for each in reply.value["messages"]]
        if lease_ms == NO_DEADLINE:
            for delivery in deliveries:
                self._hold(queue, delivery)
        return deliveries

    def _hold(self, queue: str, delivery: Delivery) -> None:
        """A lease for as long as this process lives: a short one, extended again and again."""
        self._endless[delivery.number] = delivery
        self._endless_leases.hold(queue, delivery)

    def _drop_overflowed(self, receipts: Iterable[Receipt]) -> None:
        if self._endless:
            for _, number in receipts:
                delivery = self._endless.pop(number, None)
                if delivery is not None:
                    self._endless_leases.drop(delivery)

    def add_waiter(self, queue: str, waiter: Waiter) -> list[Delivery] | None:
        raise OnlyInProcess(
            "waiters are served in the process of the broker; a client over the network polls"
        )

    def remove_waiter(self, queue: str, waiter: Waiter) -> bool:
        return False

    def load(self, deliveries: list[Delivery]) -> list[Delivery]:
        return deliveries  # what a server shows is whole

    def ack(self, queue: str, receipts: Sequence[Receipt]) -> list[OpenQError | None]:
        self._drop_overflowed(receipts)
        results: list[OpenQError | None] = []
        for start in range(0, len(receipts), MAX_BATCH):
            texts = self._receipt_texts(receipts[start : start + MAX_BATCH])
            reply = self._post(queue, "ack", {"receipts": texts}, idempotent=True)
            failed: dict[str, list[Document]] = {}
            for each in reply.value["failed"]:
                failed.setdefault(each["receipt_id"], []).append(each)
            outcomes: list[OpenQError | None] = []
            for text in reversed(texts):  # of two that are the same, the first one was good
                told = failed.get(text)
                outcomes.append(self._failure(queue, told.pop(), reply.retried) if told else None)
            results += reversed(outcomes)
        return results

    def _failure(self, queue: str, told: Document, retried: bool) -> OpenQError | None:
        refused = Refused(0, told["code"], told["detail"])
        error = documents.parse_error(refused, queue, told["receipt_id"])
        # Our own first try has taken it away.
        return None if retried and isinstance(error, MessageNotFoundError) else error

    def ack_one(self, queue: str, seq: int, number: int) -> None:
        self._drop_overflowed([(seq, number)])
        [error] = self.ack(queue, [(seq, number)])
        if error is not None:
            raise error

    def nack(
        self, queue: str, receipt: Receipt, delay_ms: int | None = None, reason: str | None = None
    ) -> str:
        body: Document = {} if delay_ms is None else {"delay": delay_ms / 1000}
        return self._end(queue, receipt, body, reason)

    def reject(self, queue: str, receipt: Receipt, reason: str | None = None) -> str:
        return self._end(queue, receipt, {"reject": True}, reason)

    def _end(self, queue: str, receipt: Receipt, body: Document, reason: str | None) -> str:
        self._drop_overflowed([receipt])
        [text] = self._receipt_texts([receipt])
        body["receipts"] = [text]
        reason, trace = split_failure(reason)
        if reason is not None:
            body["reason"] = reason[: documents.MAX_REASON]
        if trace is not None:
            body["traceback"] = trace
        reply = self._post(queue, "nack", body, idempotent=True)
        if not reply.value["failed"]:
            outcome: str = reply.value["outcomes"][0]
            return outcome
        error = documents.parse_error(Refused(0, reply.value["failed"][0]["code"], ""), queue, text)
        if reply.retried and isinstance(error, VisibilityTimeoutExpired):
            return "returned"  # by our own first try, or because its time was up meanwhile
        if reply.retried and isinstance(error, MessageNotFoundError):
            return "dead-lettered" if self.settings(queue).dead_letter is not None else "removed"
        raise error

    def release(self, queue: str, receipts: Sequence[Receipt]) -> int:
        self._drop_overflowed(receipts)
        done = 0
        for start in range(0, len(receipts), MAX_BATCH):
            body = {"receipts": self._receipt_texts(receipts[start : start + MAX_BATCH]), "release": True}
            done += self._post(queue, "nack", body, idempotent=True).value["count"]
        return done

    def extend(self, queue: str, receipt: Receipt, lease_ms: int) -> int:
        [text] = self._receipt_texts([receipt])
        is_endless = lease_ms == NO_DEADLINE
        body = {"receipts": [text], "seconds": (ENDLESS_LEASE_MS if is_endless else lease_ms) / 1000}
        answer = self._post(queue, "extend", body, idempotent=True).value
        if answer["failed"]:
            raise documents.parse_error(Refused(0, answer["failed"][0]["code"], ""), queue, text)
        until_ms = documents.time_ms(answer["outcomes"][0])
        if not is_endless:
            return until_ms
        entry = Entry(receipt[0], 0, 0, 0, ENCODING_BYTES, None, None, None)
        self._hold(queue, Delivery(entry, receipt[1], until_ms - ENDLESS_LEASE_MS, until_ms, 0, None))
        return 0

    # -- looking ------------------------------------------------------------------------------

    def message_id(self, entry: Entry) -> str:
        assert entry.options is not None
        assert entry.options.id is not None
        return entry.options.id

    def peek(self, queue: str, limit: int = 1, rear: bool = False) -> list[Entry]:
        if limit > MAX_BATCH or limit < 1:
            entries = self.entries(queue, "ready")
            return entries[::-1][:limit] if rear else entries[:limit]
        found, is_whole = self._look(queue, limit, rear)
        if is_whole:
            return found
        # More than one answer carries: page by page, by priority and sequence.
        entries = self._walk(queue, "ready")
        return entries[::-1][:limit] if rear else entries[:limit]

    def _look(self, queue: str, limit: int, rear: bool = False) -> tuple[list[Entry], bool]:
        """The first or last ready ones, and whether these are all of them up to the limit."""
        path = f"queues/{path_part(queue)}/messages"
        which = {"rear": "true"} if rear else {"front": "true"}
        answer = self._get(path, queue, limit=limit, **which)
        return [_entry(each) for each in answer["messages"]], not answer.get("truncated")

    def entries(self, queue: str, state: str = "all") -> list[Entry]:
        if state == "all":
            return [each for one in ("ready", "delayed", "in_flight") for each in self.entries(queue, one)]
        if state == "ready":
            next_ones, is_whole = self._look(queue, MAX_BATCH)
            if is_whole and len(next_ones) < MAX_BATCH:
                return next_ones
            # More than a look takes in: page by page, by priority and sequence.
        return self._walk(queue, state)

    def _walk(self, queue: str, state: str) -> list[Entry]:
        path = f"queues/{path_part(queue)}/messages"
        return [_entry(each) for each in self._pages(path, queue, "messages", state=state)]

    def deliveries(self, queue: str) -> list[Delivery]:
        path = f"queues/{path_part(queue)}/messages"
        found = self._pages(path, queue, "messages", state="in_flight")
        # One whose lease ended between two looks of the server is not with a consumer any more.
        return [self._delivery(each, each["consumer"]) for each in found if "received_at" in each]

    def _message(self, queue: str, message_id: str) -> Document:
        if not message_id:
            raise MessageNotFoundError(message_id, queue)
        path = f"queues/{path_part(queue)}/messages/{path_part(message_id)}"
        found: Document = self._get(path, queue, message_id)
        return found

    def find(self, queue: str, message_id: str) -> Entry:
        return _entry(self._message(queue, message_id))

    def lease_of(self, queue: str, message_id: str) -> Delivery | None:
        try:
            found = self._message(queue, message_id)
        except MessageNotFoundError:
            return None
        return self._delivery(found, found["consumer"]) if "received_at" in found else None

    def status(self, queue: str, message_id: str) -> str | None:
        try:
            state: str = self._message(queue, message_id)["state"]
        except MessageNotFoundError:
            return None
        return state

    def search(self, queue: str, filter: Filter, limit: int, budget_s: float) -> SearchResult:
        body = documents.filter_document(filter)
        body["limit"] = min(max(limit, 1), MAX_BATCH)
        body["budget"] = min(max(budget_s, 0.001), 30.0)
        answer = self._post(queue, "search", body, idempotent=True).value
        entries = [_entry(each) for each in answer["messages"]][:limit]
        complete = answer["complete"] and len(entries) == len(answer["messages"])
        return SearchResult(entries, complete, answer["scanned"])

    def why(self, queue: str, message_id: str) -> Why:
        told = self._message_view(queue, message_id, "why")
        return Why(told["code"], told["text"])

    def timeline(self, queue: str, message_id: str) -> list[TimelineStep]:
        steps = self._message_view(queue, message_id, "timeline")["steps"]
        return [
            TimelineStep(
                documents.time_ms(each["time"]),
                each["what"],
                each["queue"],
                each["detail"],
                each.get("traceback", ""),
            )
            for each in steps
        ]

    def _message_view(self, queue: str, message_id: str, what: str) -> Document:
        if not message_id:
            raise MessageNotFoundError(message_id, queue)
        path = f"queues/{path_part(queue)}/messages/{path_part(message_id)}/{what}"
        told: Document = self._get(path, queue, message_id)
        return told

    # -- mending ------------------------------------------------------------------------------

    def _change_message(
        self, method: str, queue: str, message_id: str, body: object = None, verb: str = ""
    ) -> None:
        if not message_id:
            raise MessageNotFoundError(message_id, queue)
        path = f"queues/{path_part(queue)}/messages/{path_part(message_id)}{verb}"
        self._rest.call(method, path, body, queue=queue, message_id=message_id)

    def cancel(self, queue: str, message_id: str) -> None:
        self._change_message("DELETE", queue, message_id)

    def edit(self, queue: str, message_id: str, draft: Draft) -> None:
        body = documents.payload_document(draft)
        body["message_type"] = draft.type
        body["attributes"] = dict(draft.attributes or {})
        self._change_message("PATCH", queue, message_id, body)

    def move(self, queue: str, message_ids: Sequence[str], to: str) -> list[OpenQError | None]:
        errors: list[OpenQError | None] = []
        for message_id in message_ids:
            try:
                self._change_message("POST", queue, message_id, {"to": to}, "/move")
                errors.append(None)
            except (MessageNotFoundError, QueueInUse, InvalidSetting) as error:
                errors.append(error)
        return errors

    def reschedule(self, queue: str, message_id: str, due_ms: int) -> None:
        self._change_message("PATCH", queue, message_id, {"at": documents.time_text(max(due_ms, 0))})

    def redrive(
        self,
        queue: str,
        to: str | None = None,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
    ) -> int:
        body: Document = {"to": to, "rate": rate}
        if filter is not None:
            body["filter"] = documents.filter_document(filter)
        return self._await_task(queue, self._post(queue, "redrive", body).value, progress)

    def replay(
        self,
        queue: str,
        since_ms: int | None,
        since_id: str | None,
        to: str | None = None,
        *,
        include_purged: bool = False,
    ) -> int:
        since = None if since_ms is None else documents.time_text(max(since_ms, 0))
        body: Document = {"since": since, "since_id": since_id, "to": to}
        if include_purged:
            body["include_purged"] = True
        return self._await_task(queue, self._post(queue, "replay", body).value, None)

    def _await_task(self, queue: str, task: Document, progress: Callable[[int], bool] | None) -> int:
        """Until long work on the server is over. How many messages it was about."""
        path = f"tasks/{task['id']}"
        pause_s, longest_s = _POLL_TASK_S
        told = 0
        while True:
            if progress is not None and task["done"] != told:
                told = task["done"]
                if not progress(told) and task["state"] == "running":
                    self._rest.call("DELETE", path, queue=queue, idempotent=True)
                    progress = None
            if task["state"] != "running":
                break
            self._rest.sleep(pause_s)
            pause_s = min(pause_s * 2, longest_s)
            task = self._get(path, queue)
        if task["state"] == "failed":
            raise documents.parse_error(Refused(0, task.get("code", "task_failed"), task["error"]), queue)
        done: int = task["done"]
        return done

    # -- exchanges ----------------------------------------------------------------------------

    def declare_exchange(self, exchange: Exchange) -> bool:
        body = {
            "kind": exchange.kind,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "alternate": exchange.alternate,
            "arguments": dict(exchange.arguments),
        }
        known = {each["name"] for each in self._get("exchanges")["exchanges"]}
        self._rest.call(
            "PUT", f"exchanges/{path_part(exchange.name)}", body, queue=exchange.name, idempotent=True
        )
        return exchange.name not in known

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        path = f"exchanges/{path_part(name)}?if_unused={str(if_unused).lower()}"
        self._rest.call("DELETE", path, queue=name)

    def bind(self, binding: Binding) -> bool:
        changed: bool = self._rest.call("POST", "bindings", _binding(binding), idempotent=True).value[
            "changed"
        ]
        return changed

    def unbind(self, binding: Binding) -> bool:
        try:
            self._rest.call("DELETE", "bindings", _binding(binding), idempotent=True)
        except Refused as refused:
            if refused.code != "binding_not_found":
                raise
            return False
        return True

    # -- promises, and the end ----------------------------------------------------------------

    def sync(self) -> None:
        pass  # the server has answered: it is on its disk

    def after_commit(self, callback: Callable[[], None]) -> None:
        callback()

    def announce(self) -> None:
        pass

    def tick(self) -> None:
        pass  # the server does it by itself

    def now_ms(self) -> int:
        """The server's time, which is the one that counts."""
        view = self._get("server")
        now_ms: int = documents.time_ms(view["started"]) + round(view["uptime"] * 1000)
        return now_ms

    def subscribe(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        raise OnlyInProcess(
            "subscribe hears of changes in this process only; "
            "over the network there are receive, stats and timeline"
        )

    def health(self) -> Health:
        try:
            view = self._get("health")
        except OpenQError as error:
            return Health(False, str(error))
        return Health(view["ok"], view["detail"], view["disk_full"], tuple(view.get("reasons", ())))

    def is_free(self) -> bool:
        return True

    def abort(self) -> None:
        self._rest.abort()

    def close(self) -> None:
        self._rest.close()
        self._endless_leases.stop()


def _entry(document: Document) -> Entry:
    return documents.parse_entry(document, document["position"])


def _binding(binding: Binding) -> Document:
    return {
        "source": binding.source,
        "destination": binding.destination,
        "to_exchange": binding.to_exchange,
        "key": binding.key,
        "arguments": dict(binding.arguments),
    }


def _batches(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """As many at once as one request may hold."""
    start = size = 0
    for i, draft in enumerate(drafts):
        if i > start and (i - start == MAX_BATCH or size + len(draft.body) > MAX_BATCH_BYTES):
            yield drafts[start:i]
            start, size = i, 0
        size += len(draft.body)
    if start < len(drafts):
        yield drafts[start:]


def _items(drafts: Sequence[Draft]) -> list[Any]:
    """Bodies alone where that is all there is: the server has a short way for them."""
    encodings = {draft.encoding for draft in drafts}
    if len(encodings) == 1 and all(draft.is_plain() for draft in drafts):
        if ENCODING_BYTES in encodings:
            return [draft.body for draft in drafts]
        if ENCODING_TEXT in encodings:
            return [draft.body.decode() for draft in drafts]
    return [documents.message_document(draft) for draft in drafts]


# -- waiting --------------------------------------------------------------------------------------


class LongPollWait(ThreadWait):
    """One wait of one thread: long polls, one after the other."""

    __slots__ = ("_connection", "_guard")
    _broker: RemoteBroker

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._connection: HttpClient | None = None
        self._guard = threading.Lock()

    def poll(self) -> list[Delivery]:
        return self._poll(0.0)

    def wait(self, timeout: float | None) -> list[Delivery]:
        self._waits.add(self)
        try:
            self._served = self._wait(timeout)
        except BaseException:
            release_unseen(self._broker, self._queue, self._waits.finish(self))
            raise
        return self._waits.finish(self)

    def _wait(self, timeout: float | None) -> list[Delivery]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            started = time.monotonic()
            left_s = POLL_S if deadline is None else min(max(deadline - started, 0.0), POLL_S)
            deliveries = self._poll(left_s)
            if deliveries and self._ended:
                # Ended while they were on their way: nobody has seen them.
                release_unseen(self._broker, self._queue, deliveries)
                return []
            now = time.monotonic()
            if deliveries or self._ended or (deadline is not None and now >= deadline):
                return deliveries
            if now - started < left_s / 2:
                self._broker._rest.sleep(0.05)  # sent away early, by a server that is about to stop

    def _poll(self, wait_s: float) -> list[Delivery]:
        waiter = self._waiter
        return self._broker.poll(
            self._queue,
            waiter.limit,
            waiter.lease_ms,
            waiter.consumer,
            waiter.types,
            wait_s,
            self._on_connection,
        )

    def _on_connection(self, connection: HttpClient | None) -> bool:
        with self._guard:
            self._connection = connection
            return not self._ended

    def end(self) -> None:
        with self._guard:
            self._ended = True
            if self._connection is not None:
                self._connection.abort()


# -- places ---------------------------------------------------------------------------------------


class ServerHandle(BrokerHandle):
    """One server, as one user."""

    broker: RemoteBroker
    wait_class = LongPollWait
    is_remote = is_shared_store = True

    def __init__(self, broker: RemoteBroker, key: str) -> None:
        super().__init__(broker, key)
        broker.handle = self
        self._name = f"{socket.gethostname()[:40]}-{os.getpid()}-{os.urandom(4).hex()}"

    @property
    def where(self) -> str:
        return self.broker.url

    def is_private(self) -> bool:
        return False

    def consumer_label(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _interrupt(self) -> None:
        self.broker.abort()

    def declare(self, name: str, dead_letter: str | None, named: Mapping[str, Any]) -> QueueSettings:
        """Who may only send or receive can open the queue too, if it is there and nothing is to change."""
        broker = self.broker
        try:
            stored = broker._stored(name)
        except Refused as refused:
            if refused.code != "forbidden" or named or dead_letter is not None:
                raise
            return QueueSettings()
        if dead_letter is not None and broker._stored(dead_letter) is None:
            broker.declare(dead_letter, merge_settings(None, {}))
        wanted = merge_settings(stored, named)
        if wanted == stored:
            return wanted
        settings = broker.declare(name, wanted, change=True)
        log_changes(name, stored, settings)
        return settings


def open_server(
    url: str, token: str | None = None, ca: str | None = None, reconnect: float | None = None
) -> BrokerHandle:
    """The place behind an address; all queue objects that name it the same way share it."""
    check_url(url)
    if token is None and "@" not in url:
        token = secret("OPENQ_TOKEN", os.environ)
    ca = ca or os.environ.get("OPENQ_CA") or None
    reconnect_s = environment_number("reconnect", RECONNECT_S) if reconnect is None else reconnect
    key = "\0".join((url, token or "", ca or "", str(reconnect_s)))

    handle = open_shared(
        key, lambda: ServerHandle(RemoteBroker(RestClient(url, token, ca, reconnect_s)), key)
    )
    assert isinstance(handle, ServerHandle)
    try:
        # Not while it is being opened: that holds up whoever opens another place.
        handle.broker.connect()
    except BaseException:
        handle.leave()
        raise
    return handle
