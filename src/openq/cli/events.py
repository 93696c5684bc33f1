"""`openq events`, and the live part of `openq tail`: the event stream of a server, or of a data directory."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..broker.events import PUBLISHED, EventFilter
from ..client.documents import message_query
from ..client.remote_events import ServerPages, SseParser
from ..model import MessageFilter
from .api import client_of, connect
from .arguments import attributes_of
from .output import body_text, escape_control, print_json
from .terminal import EMPTY, INTERRUPTED, OK, is_terminal, say, styled, terminal_width

Document = Mapping[str, Any]
_LEFT_OUT = ("settings",)  # of a line; --json shows everything


def events(options: Namespace) -> int:
    wanted = EventFilter(
        tuple(options.queues),
        frozenset(options.event or ()),
        MessageFilter.of(options.type, attributes_of(options.attribute)),
    )
    found: Iterable[Document] = _directory(options, wanted) if options.data else _server(options, wanted)
    shown = 0
    if options.max is not None and not options.follow:
        found = deque(found, maxlen=options.max)
    try:
        for document in found:
            _print_event(document, options.json)
            shown += 1
    except KeyboardInterrupt:
        if not options.follow:
            raise
        return INTERRUPTED  # the usual end
    if not shown:
        say("no event was found")
    return OK if shown else EMPTY


def follow_messages(options: Namespace) -> Iterator[dict[str, Any]]:
    """The messages that are published to a queue from now on, as `openq tail` shows them."""
    wanted = EventFilter(events=frozenset((PUBLISHED,)), names=frozenset((options.queue,)))
    pages = _open(options, wanted, None, bodies=True, from_end=True, follow=True)
    return (_message(document) for document in _documents(pages) if document["event"] == PUBLISHED)


def _server(options: Namespace, wanted: EventFilter) -> Iterator[Document]:
    is_new = options.follow and options.after is None and options.max is None
    after = None if options.after == "oldest" else options.after
    return _documents(
        _open(options, wanted, after, bodies=options.bodies, from_end=is_new, follow=options.follow)
    )


def _open(
    options: Namespace, wanted: EventFilter, after: str | None, *, bodies: bool, from_end: bool, follow: bool
) -> ServerPages:
    client = client_of(options)
    pages = ServerPages(
        *(client.new_connection(), client.target(""), 0.0, wanted, after),
        from_end=from_end,
        bodies=bodies,
        follow=follow,
    )
    # The first connection is not tried again: a wrong address is more likely than a server that restarts.
    if follow:
        pages.reconnect_s = math.inf
        pages.on_retry = lambda failure: say(f"{failure}; trying again, nothing is missed")
    return pages


def _documents(pages: ServerPages) -> Iterator[Document]:
    try:
        while (page := pages.next_documents()) is not None:
            yield from page
    finally:
        pages.close()


def _directory(options: Namespace, wanted: EventFilter) -> Iterator[Document]:
    """A directory that no process uses: nothing more will happen in it."""
    response = connect(options).raw(
        "/events",
        queues=",".join(wanted.queues) or None,
        events=",".join(sorted(wanted.events)) or None,
        **message_query(wanted.messages),
        bodies=int(options.bodies),
        after=None if options.after == "oldest" else options.after,
        **{"from": "oldest", "follow": 0},
    )
    for _, text in SseParser().feed(response.body):
        yield json.loads(text)


def _print_event(document: Document, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    if document["event"] == "gap":
        say(f"events before {document.get('until') or document['time']} are not kept any more")
        return
    queue = document["queue"] or "-"
    head = f"{document['time']}  {document['event']:<14} {escape_control(queue)}  "
    line = escape_control(_detail_text(document))
    if is_terminal(sys.stdout):
        line = line[: max(20, terminal_width() - len(head))]
    print(styled(head, "dim") + line)
    sys.stdout.flush()


def _detail_text(document: Document) -> str:
    parts = [str(document.get("message_id") or "")]
    message = document.get("message")
    if message is not None:
        parts.append(f"[{message['message_type']}]" if message["message_type"] else "")
        if "payload" in message:
            parts.append(body_text(message))
    parts += _fields(document["detail"])
    return "  ".join(filter(None, parts))


def _fields(detail: Mapping[str, Any]) -> Iterable[str]:
    for name, value in detail.items():
        if value not in (None, "", False) and name not in _LEFT_OUT:
            yield f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def _message(document: Document) -> dict[str, Any]:
    """A published message in the form of `GET history/messages`."""
    message = document["message"]
    shown = {
        "id": document["message_id"],
        "queue": document["queue"],
        "time": document["time"],
        "payload": message.get("payload"),
    }
    if "payload_encoding" in message:
        shown["payload_encoding"] = message["payload_encoding"]
    return {
        **shown,
        "message_type": message["message_type"],
        "priority": message["priority"],
        "group": message.get("group"),
        "attributes": message["attributes"],
    }
