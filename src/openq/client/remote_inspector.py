"""Look at the messages of a server: `LibraryInspect` over its REST API."""

from __future__ import annotations

from collections.abc import Callable

from ..broker.interface import Filter, SearchResult, TimelineStep
from ..engine.why import Why
from ..errors import (
    MessageNotFoundError,
)
from ..model import (
    Delivery,
    Entry,
)
from . import documents
from .documents import Document
from .remote_calls import MAX_BATCH, RemoteCalls
from .rest_client import path_part


class RemoteInspector:
    def __init__(self, calls: RemoteCalls, delivery: Callable[[Document, str | None], Delivery]) -> None:
        """`delivery` parses one."""
        self._calls = calls
        self._delivery = delivery

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
        answer = self._calls.get(path, queue, limit=limit, **which)
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
        return [_entry(each) for each in self._calls.pages(path, queue, "messages", state=state)]

    def deliveries(self, queue: str) -> list[Delivery]:
        path = f"queues/{path_part(queue)}/messages"
        found = self._calls.pages(path, queue, "messages", state="in_flight")
        # A lease may end between the server's listing and its reading of a message.
        return [self._delivery(each, each["consumer"]) for each in found if "received_at" in each]

    def _message(self, queue: str, message_id: str) -> Document:
        if not message_id:
            raise MessageNotFoundError(message_id, queue)
        path = f"queues/{path_part(queue)}/messages/{path_part(message_id)}"
        found: Document = self._calls.get(path, queue, message_id)
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
        answer = self._calls.post(queue, "search", body, idempotent=True).value
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
                each.get("trace_id", ""),
            )
            for each in steps
        ]

    def _message_view(self, queue: str, message_id: str, what: str) -> Document:
        if not message_id:
            raise MessageNotFoundError(message_id, queue)
        path = f"queues/{path_part(queue)}/messages/{path_part(message_id)}/{what}"
        view: Document = self._calls.get(path, queue, message_id)
        return view


def _entry(document: Document) -> Entry:
    return documents.parse_entry(document, document["position"])
