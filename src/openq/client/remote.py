"""A broker behind a server: the calls of a broker over its REST API.

The server responds when a change is on its disk, so there is nothing to sync here. Waiting is a long poll
(`server_target.py`); retries are in `rest_client.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ..broker.interface import Filter, Health, QueueStats, Receipt, SearchResult, Storage, TimelineStep
from ..broker.waiters import Waiter
from ..clock import Clock
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
from .documents import Document
from .heartbeat import Heartbeat
from .http import HttpClient, Refused
from .interface import OnlyInProcess
from .remote_kv import RemoteKeyValues
from .remote_schedules import RemoteSchedules
from .rest_client import path_part
from .server_api import ServerApi, ServerReply

if TYPE_CHECKING:
    from .server_target import ServerHandle

MAX_BATCH = 1_000  # messages or receipts in one request
MAX_BATCH_BYTES = 4 << 20
PAGE = 200
ENDLESS_LEASE_MS = 60_000  # of a delivery without deadline; extended while this process lives
_POLL_TASK_S = (0.005, 0.25)
_NUMBER_BITS = 80  # more than the number of any delivery has
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1


class RemoteBroker:
    observed = False
    clock: Clock | None = None  # that of the server
    handle: ServerHandle | None = None  # shared by queue objects

    def __init__(self, api: ServerApi) -> None:
        self._api = api
        self.url = api.url
        self.kv = RemoteKeyValues(api)
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

    # The roles of the interface that this class implements itself.

    @property
    def inspect(self) -> RemoteBroker:
        return self

    @property
    def admin(self) -> RemoteBroker:
        return self

    @property
    def exchanges(self) -> RemoteBroker:
        return self

    @property
    def schedules(self) -> RemoteSchedules:
        return RemoteSchedules(self._api)

    @property
    def storage(self) -> Storage:
        """Not durable: the server responds when a change is on its disk."""
        return Storage("server", self.url, "".join(self._prefixes[:1]), is_durable=False)

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
        given = {name: str(value) for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        return self._api.call("GET", target, queue=queue, message_id=message_id, idempotent=True).value

    def _post(self, queue: str, verb: str, body: object = None, idempotent: bool = False) -> ServerReply:
        path = f"queues/{path_part(queue)}/{verb}"
        return self._api.call("POST", path, body, queue=queue, idempotent=idempotent)

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
        return [each["name"] for each in self._pages("queues", "", "queues")]

    def settings(self, queue: str) -> QueueSettings:
        check_name(queue)
        return documents.parse_settings(self._get(f"queues/{path_part(queue)}", queue)["settings"])

    def stats(self, queue: str) -> QueueStats:
        return documents.parse_stats(queue, self._get(f"queues/{path_part(queue)}/stats", queue))

    def purge(self, queue: str) -> int:
        count: int = self._post(queue, "purge").value["messages"]
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
        results: list[tuple[str, bool] | OpenQError] = []
        for some in _batches(drafts):
            results += self._publish_batch(queue, some)
        return results

    def _publish_batch(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        # A message with an id or a dedup id is not added twice, so it may be sent twice.
        idempotent = all(draft.dedup is not None or draft.id is not None for draft in drafts)
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
        reply = self._api.call("POST", f"exchanges/{path_part(exchange)}/publish", body, queue=exchange)
        return reply.value["id"], reply.value["queues"]

    # -- receiving ----------------------------------------------------------------------------

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
        """Messages as soon as there are any; none after `wait_s` seconds or when called off."""
        body: Document = {"max": min(limit, MAX_BATCH), "wait": wait_s}
        if lease_ms is not None:
            body["visibility_timeout"] = (ENDLESS_LEASE_MS if lease_ms == NO_DEADLINE else lease_ms) / 1000
        if consumer:
            body["consumer"] = consumer
        if types is not None:
            body["types"] = list(types)
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
        deliveries = [self._delivery(each, consumer) for each in reply.value["messages"]]
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
        for start in range(0, len(receipts), MAX_BATCH):
            texts = self._receipt_texts(receipts[start : start + MAX_BATCH])
            reply = self._post(queue, verb, {**body, "receipts": texts}, idempotent=True)
            failed: dict[str, list[Document]] = {}
            for each in reply.value["failed"]:
                failed.setdefault(each["receipt_id"], []).append(each)
            errors: list[OpenQError | None] = []
            for text in reversed(texts):  # of two equal receipts the first one succeeded
                failures = failed.get(text)
                errors.append(_receipt_error(failures.pop(), queue) if failures else None)
            outcomes = iter(reply.value.get("outcomes", ()))
            for error in reversed(errors):
                yield (next(outcomes, "") if error is None else ""), error, reply.retried

    def ack_one(self, queue: str, seq: int, number: int) -> None:
        [error] = self.ack(queue, [(seq, number)])
        if error is not None:
            raise error

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
        for start in range(0, len(receipts), MAX_BATCH):
            body = {"receipts": self._receipt_texts(receipts[start : start + MAX_BATCH]), "release": True}
            done += self._post(queue, "nack", body, idempotent=True).value["count"]
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

    # -- inspecting ---------------------------------------------------------------------------

    def message_id(self, entry: Entry) -> str:
        assert entry.options is not None
        assert entry.options.id is not None
        return entry.options.id

    def peek(self, queue: str, limit: int = 1, rear: bool = False) -> list[Entry]:
        if limit > MAX_BATCH or limit < 1:
            entries = self.entries(queue, "ready")
            return entries[::-1][:limit] if rear else entries[:limit]
        found, is_whole = self._peek_page(queue, limit, rear)
        if is_whole:
            return found
        # More than one response carries: read page by page, by priority and sequence.
        entries = self._all_pages(queue, "ready")
        return entries[::-1][:limit] if rear else entries[:limit]

    def _peek_page(self, queue: str, limit: int, rear: bool = False) -> tuple[list[Entry], bool]:
        """The first or last ready entries, and whether the response holds all of them up to the limit."""
        path = f"queues/{path_part(queue)}/messages"
        which = {"rear": "true"} if rear else {"front": "true"}
        answer = self._get(path, queue, limit=limit, **which)
        return [_entry(each) for each in answer["messages"]], not answer.get("truncated")

    def entries(self, queue: str, state: str = "all") -> list[Entry]:
        if state == "all":
            return [each for one in ("ready", "delayed", "in_flight") for each in self.entries(queue, one)]
        if state == "ready":
            entries, is_whole = self._peek_page(queue, MAX_BATCH)
            if is_whole and len(entries) < MAX_BATCH:
                return entries
            # More than one response carries: read page by page, by priority and sequence.
        return self._all_pages(queue, state)

    def _all_pages(self, queue: str, state: str) -> list[Entry]:
        path = f"queues/{path_part(queue)}/messages"
        return [_entry(each) for each in self._pages(path, queue, "messages", state=state)]

    def deliveries(self, queue: str) -> list[Delivery]:
        path = f"queues/{path_part(queue)}/messages"
        found = self._pages(path, queue, "messages", state="in_flight")
        # A lease may end between the server's listing and its reading of a message.
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
        view = self._message_view(queue, message_id, "why")
        return Why(view["code"], view["text"])

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
        view: Document = self._get(path, queue, message_id)
        return view

    # -- administration -----------------------------------------------------------------------

    def _change_message(
        self, method: str, queue: str, message_id: str, body: object = None, verb: str = ""
    ) -> None:
        if not message_id:
            raise MessageNotFoundError(message_id, queue)
        path = f"queues/{path_part(queue)}/messages/{path_part(message_id)}{verb}"
        self._api.call(method, path, body, queue=queue, message_id=message_id)

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
        """Wait for a task on the server. Returns its number of messages."""
        path = f"tasks/{task['id']}"
        pause_s, longest_s = _POLL_TASK_S
        reported = 0
        while True:
            if progress is not None and task["done"] != reported:
                reported = task["done"]
                if not progress(reported) and task["state"] == "running":
                    self._api.call("DELETE", path, queue=queue, idempotent=True)
                    progress = None
            if task["state"] != "running":
                break
            self._api.sleep(pause_s)
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
        self._api.call(
            "PUT", f"exchanges/{path_part(exchange.name)}", body, queue=exchange.name, idempotent=True
        )
        return exchange.name not in known

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        path = f"exchanges/{path_part(name)}?if_unused={str(if_unused).lower()}"
        self._api.call("DELETE", path, queue=name)

    def exchange(self, name: str) -> Exchange:
        return documents.parse_exchange(self._get(f"exchanges/{path_part(name)}", name))

    def list_exchanges(self) -> list[Exchange]:
        return [documents.parse_exchange(each) for each in self._get("exchanges")["exchanges"]]

    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]:
        found = self._get("bindings", source=source, destination=destination)["bindings"]
        return [Binding(**each) for each in found]

    def bind(self, binding: Binding) -> bool:
        changed: bool = self._api.call(
            "POST", "bindings", documents.binding_document(binding), idempotent=True
        ).value["changed"]
        return changed

    def unbind(self, binding: Binding) -> bool:
        try:
            self._api.call("DELETE", "bindings", documents.binding_document(binding), idempotent=True)
        except Refused as refused:
            if refused.code != "binding_not_found":
                raise
            return False
        return True

    # -- durability and closing ---------------------------------------------------------------

    def sync(self) -> None:
        pass  # the server has responded: the change is on its disk

    def announce(self) -> None:
        pass

    def tick(self) -> None:
        pass  # the server does this

    def now_ms(self) -> int:
        """The time of the server."""
        view = self._get("server")
        now_ms: int = documents.time_ms(view["started"]) + round(view["uptime"] * 1000)
        return now_ms

    def subscribe(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        raise OnlyInProcess(
            "subscribe reports changes of queues in this process only; "
            "over the network there are receive, stats and timeline"
        )

    def health(self) -> Health:
        try:
            view = self._get("health")
        except OpenQError as error:
            return Health(False, str(error))
        return Health(view["ok"], view["detail"], view["disk_full"], tuple(view.get("reasons", ())))

    def sleep(self, seconds: float) -> None:
        """Until the time is over or the broker is closed."""
        self._api.sleep(seconds)

    def is_free(self) -> bool:
        return True

    def abort(self) -> None:
        self._api.abort()

    def close(self) -> None:
        self._api.close()
        self._endless_leases.stop()


def _receipt_error(failure: Document, queue: str) -> OpenQError:
    refused = Refused(0, failure["code"], failure["detail"])
    return documents.parse_error(refused, queue, failure["receipt_id"])


def _entry(document: Document) -> Entry:
    return documents.parse_entry(document, document["position"])


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
