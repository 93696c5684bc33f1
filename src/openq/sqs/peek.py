"""`/_aws/sqs/messages`: the messages of a queue in the format of ReceiveMessage, without receiving them.

No side effects: receive counts, leases and the order do not change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

import msgspec

from ..broker.interface import Broker, Filter
from ..errors import OpenQError
from ..model import Entry
from ..server.http_request import HttpRequest
from . import aws_json, aws_query, errors
from . import requests as sqs
from .call import SqsCall, SqsQueue
from .errors import SqsError
from .messages import AttributeSelection, show_message

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

log = logging.getLogger("openq.sqs")

PATH = "/_aws/sqs/messages"
HANDLE = "SQS/BACKDOOR/ACCESS"  # not a receipt: nothing was received
MAX_MESSAGES = 10_000
MAX_BYTES = 16 << 20
MAX_FORM_BYTES = 64 << 10
_BUDGET_S = 5.0
_TRUE = ("true", "1")

Encode = Callable[["sqs.ReceiveMessageReply"], bytes]
Find = Callable[[SqsCall, str, str], SqsQueue]


def peek_messages(
    call: SqsCall, find: Find, encode: Encode, then: Callable[[bytes | SqsError], None]
) -> None:
    """By `?QueueUrl=`, by path (REGION/ACCOUNT/NAME), or as ReceiveMessage of an AWS client.

    `find` finds and authorises the queue. The rest runs in a thread: a queue can be large.
    """
    url, show = _read_request(call.http)
    if not url:
        raise errors.queue_does_not_exist()
    queue = find(call, "ReceiveMessage", call.key_of_url(url))
    states = ["ready"]
    if show.get("ShowInvisible", "").lower() in _TRUE:
        states.insert(0, "in_flight")
    if show.get("ShowDelayed", "").lower() in _TRUE:
        states.append("delayed")

    def look() -> bytes:
        wanted = AttributeSelection(["All"], ["All"])
        entries = _entries(call.context.broker, queue.queue_key, states)
        shown = [show_message(call, queue, entry, None, HANDLE, wanted) for entry in entries]
        return encode(sqs.ReceiveMessageReply(messages=shown or None))

    def answer(body: bytes | None, failure: BaseException | None) -> None:
        if body is not None:
            then(body)
        elif isinstance(failure, OpenQError):
            then(errors.from_openq(failure))
        else:
            log.error("peek into %r failed", queue.name, exc_info=failure)
            then(errors.internal_error())

    def done(body: bytes | None, failure: BaseException | None) -> None:
        call.http.run_guarded(answer, body, failure)

    call.context.run(look, done)


def _entries(broker: Broker, queue: str, states: list[str]) -> Iterator[Entry]:
    """The messages, up to the limits of count and bytes."""
    left = MAX_BYTES
    count = MAX_MESSAGES
    for state in states:
        for entry in broker.inspect.search(queue, Filter(state=state), count, _BUDGET_S, left).entries:
            left -= entry.size
            count -= 1
            if left < 0 and count < MAX_MESSAGES - 1:
                return
            yield entry


def _read_request(request: HttpRequest) -> tuple[str, dict[str, str]]:
    values = _form(request.query)
    path = request.path.removeprefix(PATH).strip("/")
    if path:
        parts = [unquote(part) for part in path.split("/")]
        if len(parts) != 3:
            raise errors.invalid_address(request.path)
        return f"/queue/{path}", values
    if request.header(b"x-amz-target") is not None:
        if request.header(b"x-amz-target") != b"AmazonSQS.ReceiveMessage":
            raise errors.unknown_operation("This endpoint only accepts ReceiveMessage calls")
        return aws_json.decode("ReceiveMessage", request.body).queue_url, values  # type: ignore[attr-defined]
    if request.method == "POST":
        if len(request.body) > MAX_FORM_BYTES:
            raise errors.malformed_query_string("The form is too long.")
        values.update(_form(request.body.decode("utf-8", "replace")))
    return values.get("QueueUrl", ""), values


def _form(text: str) -> dict[str, str]:
    try:
        return {name: each[0] for name, each in parse_qs(text, max_num_fields=100).items()}
    except ValueError:
        raise errors.malformed_query_string("There are too many parameters.") from None


def as_plain_json(reply: sqs.ReceiveMessageReply, request_id: str) -> bytes:
    """The XML reply as JSON, element by element, for `Accept: application/json`."""
    from xml.etree import ElementTree  # loaded on use, which is rare

    root = ElementTree.fromstring(aws_query.encode("ReceiveMessage", reply, request_id))
    return msgspec.json.encode({_local(root.tag): _plain(root)})


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _plain(element: Element) -> object:
    if not len(element):
        return element.text
    found: dict[str, object] = {}
    for child in element:
        name, value = _local(child.tag), _plain(child)
        if name not in found:
            found[name] = value
        else:
            known = found[name]
            found[name] = [*known, value] if isinstance(known, list) else [known, value]
    return found
