"""`/_aws/sqs/messages`: the messages of a queue without receiving them, in the shape that ReceiveMessage has.

Nothing changes by looking: no receive count, no lease, no order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

import msgspec

from ...broker.base import Filter
from ...model import Entry
from ..http import Request
from . import aws_json, aws_query, errors
from . import requests as sqs
from .call import Call, View
from .errors import SqsError
from .messages import Wanted, shown_message

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

PATH = "/_aws/sqs/messages"
HANDLE = "SQS/BACKDOOR/ACCESS"  # no receipt: nothing was received
MOST = 10_000
_BUDGET_S = 5.0
_TRUE = ("true", "1")

Send = Callable[[Request, "sqs.ReceiveMessageReply | SqsError"], None]


def peek_messages(call: Call, allow: Callable[[Call, str, View], None], send: Send) -> None:
    """By `?QueueUrl=`, by path (REGION/ACCOUNT/NAME), or as ReceiveMessage of an AWS client."""
    request = call.http
    url, show = _wanted(request)
    if not url:
        raise errors.queue_does_not_exist()
    view = call.queue(url)
    allow(call, "ReceiveMessage", view)
    states = ["ready"]
    if show.get("ShowInvisible", "").lower() in _TRUE:
        states.insert(0, "in_flight")
    if show.get("ShowDelayed", "").lower() in _TRUE:
        states.append("delayed")

    def look() -> list[Entry]:
        found: list[Entry] = []
        for state in states:
            found += call.site.broker.search(view.full, Filter(state=state), MOST, _BUDGET_S).entries
        return found[:MOST]

    def then(entries: list[Entry] | None, failure: BaseException | None) -> None:
        if entries is None:
            error = failure if isinstance(failure, SqsError) else errors.internal_error()
            send(request, error)
            return
        wanted = Wanted(["All"], ["All"])
        shown = [shown_message(call, view, entry, None, HANDLE, wanted) for entry in entries]
        send(request, sqs.ReceiveMessageReply(messages=shown or None))

    call.site.run(look, then)


def _wanted(request: Request) -> tuple[str, dict[str, str]]:
    values = {name: each[0] for name, each in parse_qs(request.query).items()}
    path = request.path.removeprefix(PATH).strip("/")
    if path:
        parts = [unquote(part) for part in path.split("/")]
        if len(parts) != 3:
            raise errors.invalid_address(request.path)
        return f"/{parts[1]}/{parts[2]}", values
    if request.header(b"x-amz-target") is not None:
        if request.header(b"x-amz-target") != b"AmazonSQS.ReceiveMessage":
            raise errors.unknown_operation("This endpoint only accepts ReceiveMessage calls")
        return aws_json.decode("ReceiveMessage", request.body).queue_url, values  # type: ignore[attr-defined]
    if request.method == "POST":
        try:
            values.update({name: each[0] for name, each in parse_qs(request.body.decode()).items()})
        except UnicodeDecodeError:
            raise errors.malformed_query_string("The request body is not text.") from None
    return values.get("QueueUrl", ""), values


def as_plain_json(reply: sqs.ReceiveMessageReply, request_id: str) -> bytes:
    """The XML answer as JSON, element by element: what `Accept: application/json` gets."""
    from xml.etree import ElementTree  # loaded when it is asked for, which is hardly ever

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
