"""Events from a server: the server-sent events of its REST API, connected again after a failure.

A connection that breaks, or sends nothing for longer than the server's heartbeat, is opened again after the
last event that was seen: nothing is missed and nothing is repeated, unless the server reports a gap.
"""

from __future__ import annotations

import base64
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from ..broker.events import EventFilter
from ..model import (
    ENCODING_BYTES,
    ENCODING_JSON,
    ENCODING_MSGPACK,
    ENCODING_PICKLE,
    ENCODING_TEXT,
    DeliveryOptions,
    Entry,
    Properties,
)
from .documents import message_query, parse_error, time_ms
from .event_pages import GAP, EventItem
from .http import HttpClient, Refused, StreamBody, TimedOut, Unreachable
from .rest_client import path_part

Document = Mapping[str, Any]

SILENCE_S = 50.0  # a server sends a heartbeat every 15 s
MIN_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0
_CLOSED = "closed"  # the event that says why an operator closed the stream
_TRANSIENT = (502, 503, 504)
_ENCODINGS = {"base64": ENCODING_BYTES, "msgpack+base64": ENCODING_MSGPACK, "pickle+base64": ENCODING_PICKLE}


class SseParser:
    """Server-sent events from bytes, in pieces of any size: (id, event, data) for each with data."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}
        self.last_id = ""

    def feed(self, data: bytes) -> list[tuple[str, str]]:
        """The names and the data of the events that are complete. `last_id` is that of the last block."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip("\r")
            if line:
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if name == "data" and "data" in self._fields:
                    value = f"{self._fields['data']}\n{value}"
                self._fields[name] = value
                continue
            fields, self._fields = self._fields, {}
            if "id" in fields:
                self.last_id = fields["id"]
            if "data" in fields:
                found.append((fields.get("event", "message"), fields["data"]))
        return found


class ServerPages:
    def __init__(
        self,
        connect: HttpClient,
        prefix: str,
        reconnect_s: float,
        wanted: EventFilter,
        after: str | None,
        *,
        from_end: bool,
        bodies: bool,
        follow: bool,
    ) -> None:
        self._client = connect
        self.reconnect_s = reconnect_s
        self._wanted = wanted
        self._bodies = bodies
        self._follow = follow
        self._from = "end" if from_end else "oldest"
        self._target = prefix + _path(wanted)
        self._body: StreamBody | None = None
        self._parser = SseParser()
        self._closing = threading.Event()
        self._reading = threading.Lock()
        self.position = after
        self.on_retry: Any = None  # called with the failure when the connection is lost
        self._is_lost = False
        self._open()  # an invalid request is refused here

    def next_page(self) -> Sequence[EventItem] | None:
        documents = self.next_documents()
        return None if documents is None else [_item(each, self._bodies) for each in documents]

    def next_documents(self) -> Sequence[Document] | None:
        """Like `next_page`: the documents of the events, as the server sent them."""
        with self._reading:
            return self._next_documents()

    def _next_documents(self) -> Sequence[Document] | None:
        if self._body is None:
            self._open()
        body = self._body
        if body is None or self._closing.is_set():
            self._drop()
            return None
        try:
            data = body.read(SILENCE_S)
        except (Unreachable, TimedOut) as error:
            self._drop()
            return self._lost(error)
        if not data:
            self._drop()
            return self._ended()
        found = []
        for event, text in self._parser.feed(data):
            if event == _CLOSED:
                self._report(Unreachable(self._client.url, str(json.loads(text).get("reason", ""))))
            else:
                found.append(_document(event, text))
        self.position = self._parser.last_id or self.position
        return found

    def close(self) -> None:
        self._closing.set()
        self._client.abort()  # a thread that reads gets the end of the stream, and closes the socket
        if self._reading.acquire(blocking=False):
            self._drop()
            self._reading.release()

    def __del__(self) -> None:
        if hasattr(self, "_reading"):
            self.close()

    # -- the connection

    def _open(self) -> None:
        began = time.monotonic()
        pause_s = MIN_PAUSE_S
        while not self._closing.is_set():
            try:
                headers = {} if self.position is None else {"last-event-id": self.position}
                self._body = self._client.stream(self._target + self._query(), "text/event-stream", headers)
                self._parser = SseParser()
                self._is_lost = False
                return
            except Refused as refused:
                failure: Unreachable | TimedOut
                if refused.status not in _TRANSIENT:
                    raise parse_error(refused, _only_queue(self._wanted) or "") from None
                failure = Unreachable(self._client.url, refused.detail)
            except (Unreachable, TimedOut) as error:
                failure = error
            if time.monotonic() - began >= self.reconnect_s:
                raise failure
            self._report(failure)
            self._closing.wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _lost(self, failure: Unreachable | TimedOut) -> Sequence[Document] | None:
        if self._closing.is_set():
            return None
        self._report(failure)
        return ()

    def _ended(self) -> Sequence[Document] | None:
        """The server closed the stream: it stops, or there is no more."""
        if self._closing.is_set() or not self._follow:
            return None
        self._report(Unreachable(self._client.url, "it closed the stream"))
        self._closing.wait(MIN_PAUSE_S)
        return ()

    def _report(self, failure: Unreachable | TimedOut) -> None:
        if not self._is_lost and self.on_retry is not None:
            self.on_retry(failure)
        self._is_lost = True

    def _drop(self) -> None:
        self._body = None
        self._client.close()

    def _query(self) -> str:
        wanted = self._wanted
        query = {"bodies": int(self._bodies), "follow": int(self._follow), "from": self._from}
        given: dict[str, object] = {
            **query,
            **({"events": ",".join(sorted(wanted.events))} if wanted.events else {}),
            **message_query(wanted.messages),
            **({"queues": ",".join(wanted.queues)} if wanted.queues else {}),
        }
        return "?" + urlencode(given)


def _only_queue(wanted: EventFilter) -> str | None:
    """One queue has a route of its own, which knows whether it exists."""
    return next(iter(wanted.names)) if len(wanted.names) == 1 and not wanted.queues else None


def _path(wanted: EventFilter) -> str:
    queue = _only_queue(wanted)
    return "events" if queue is None else f"queues/{path_part(queue)}/events"


# -- documents ----------------------------------------------------------------------------------


def _document(event: str, text: str) -> Document:
    document: Document = json.loads(text)
    if event != GAP:
        return document
    gap = {"id": document["from"] or "", "event": GAP, "time": document["until"], "queue": None}
    return {**gap, "detail": {"from": document["from"]}}


def _item(document: Document, bodies: bool) -> EventItem:
    message = document.get("message")
    return EventItem(
        id=document["id"],
        event=document["event"],
        time_ms=time_ms(document["time"]),
        queue=document["queue"],
        message_id=document.get("message_id"),
        detail=document["detail"],
        message_type=None if message is None else message["message_type"],
        entry=_entry(document, message) if bodies and message is not None else None,
    )


def _entry(document: Document, message: Document) -> Entry:
    body, encoding = _body(message)
    options = DeliveryOptions(
        id=document["message_id"],
        type=message["message_type"],
        priority=message["priority"],
        group=message.get("group"),
        due_ms=time_ms(message.get("due_at")),
        expires_ms=time_ms(message.get("expires_at")),
    )
    properties = Properties(
        {name: _value(each) for name, each in message["attributes"].items()}, message.get("publisher")
    )
    return Entry(0, time_ms(document["time"]), 0, len(body), encoding, body, properties, options)


def _body(message: Document) -> tuple[bytes, int]:
    payload, marker = message.get("payload"), message.get("payload_encoding")
    if marker is not None:
        return base64.b64decode(payload or ""), _ENCODINGS.get(marker, ENCODING_BYTES)
    if isinstance(payload, str):
        return payload.encode(), ENCODING_TEXT
    return json.dumps(payload).encode(), ENCODING_JSON


def _value(value: Any) -> Any:
    """An attribute: bytes are marked, as in every document."""
    if isinstance(value, dict):
        if value.keys() == {"$base64"}:
            return base64.b64decode(value["$base64"])
        if value.keys() == {"$dict"}:
            value = value["$dict"]
        return {name: _value(each) for name, each in value.items()}
    return [_value(each) for each in value] if isinstance(value, list) else value
