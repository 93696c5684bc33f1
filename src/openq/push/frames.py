"""The frames of the stream: what a client sends, and what it gets. docs/PUSH.md describes them for clients.

Every frame is one object with its operation in `op`. `id` names a request; its reply has the same `id`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from ..documents.messages import MessageView, NewMessage, Outcome, ReceiptFailure
from ..documents.structs import MAX_BATCH, Name, Seconds, Word

MAX_RECEIPTS = 10_000  # in one frame
MAX_CREDIT = 10_000  # messages in flight of one subscription
DEFAULT_CREDIT = 100

RequestId = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)] | Annotated[str, Meta(max_length=128)]
ReceiptList = Annotated[list[str], Meta(max_length=MAX_RECEIPTS)]

# -- from the client ----------------------------------------------------------------------------


class Request(Struct, tag_field="op", kw_only=True, forbid_unknown_fields=True):
    id: RequestId | None = None


class Credit(Struct, kw_only=True, forbid_unknown_fields=True):
    """How much may be in flight at a time. 0 messages pause a subscription; no `bytes`: unlimited."""

    messages: Annotated[int, Meta(ge=0, le=MAX_CREDIT)] = DEFAULT_CREDIT
    bytes: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None


class Subscribe(Request, tag="subscribe", kw_only=True):
    """Push the messages of a queue, or of all queues that match a pattern.

    Leases end with the connection; with `lease` also after so many seconds, or as the queue says. With `keep`
    only then: what is in flight stays leased when the connection ends.
    """

    sub: RequestId
    queue: Name | None = None
    pattern: Name | None = None
    types: Annotated[list[str], Meta(max_length=100)] | None = None
    attributes: dict[str, Any] | None = None
    credit: Credit = field(default_factory=Credit)
    lease: Seconds | Literal["queue"] | None = None
    keep: bool = False
    consumer: Word | None = None


class SetCredit(Request, tag="credit", kw_only=True):
    """Replace the credit of a subscription."""

    sub: RequestId
    messages: Annotated[int, Meta(ge=0, le=MAX_CREDIT)]
    bytes: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None


class Unsubscribe(Request, tag="unsubscribe", kw_only=True):
    """No more deliveries. Those in flight stay with the client, or return with `release`."""

    sub: RequestId
    release: bool = False


class Ack(Request, tag="ack", kw_only=True):
    receipts: ReceiptList


class Nack(Request, tag="nack", kw_only=True):
    receipts: ReceiptList
    delay: Seconds | None = None
    reason: Annotated[str, Meta(max_length=4096)] | None = None
    traceback: Annotated[str, Meta(max_length=65536)] | None = None


class Reject(Request, tag="reject", kw_only=True):
    receipts: ReceiptList
    reason: Annotated[str, Meta(max_length=4096)] | None = None
    traceback: Annotated[str, Meta(max_length=65536)] | None = None


class Release(Request, tag="release", kw_only=True):
    receipts: ReceiptList


class Extend(Request, tag="extend", kw_only=True):
    receipts: ReceiptList
    seconds: Seconds


class PublishJson(Request, tag="publish", kw_only=True):
    queue: Name
    messages: Annotated[list[str | NewMessage], Meta(max_length=MAX_BATCH)]


class PublishMsgpack(Request, tag="publish", kw_only=True):
    queue: Name
    messages: Raw  # a list of texts, bytes and messages


class Ping(Request, tag="ping", kw_only=True):
    pass


_Settling = Ack | Nack | Reject | Release | Extend
_Others = Subscribe | SetCredit | Unsubscribe | Ping
JsonRequest = _Settling | _Others | PublishJson
MsgpackRequest = _Settling | _Others | PublishMsgpack


class OnlyId(Struct):
    """For the error of a frame that is not a valid request."""

    id: Any = None


# -- from the server ----------------------------------------------------------------------------


class Reply(Struct, tag_field="op", kw_only=True, omit_defaults=True):
    id: RequestId | None = None


class Limits(Struct, kw_only=True):
    frame_bytes: int
    credit: int = MAX_CREDIT
    receipts: int = MAX_RECEIPTS
    publish: int = MAX_BATCH


class Hello(Reply, tag="hello", kw_only=True):
    """The first frame. A client that sends nothing for `idle` seconds, not even a pong, is cut."""

    session: str
    version: str
    id_prefix: str
    idle: float
    limits: Limits


class Ok(Reply, tag="ok", kw_only=True):
    pass


class Pong(Reply, tag="pong", kw_only=True):
    pass


class Deliver(Struct, tag_field="op", tag="deliver", kw_only=True):
    sub: RequestId
    queue: str
    messages: list[MessageView]


class Settled(Reply, tag="settled", kw_only=True):
    """As REST's reply: how many deliveries were settled, and which were not."""

    count: int
    failed: list[ReceiptFailure] = field(default_factory=list)
    outcomes: list[str] | UnsetType = UNSET


class Published(Reply, tag="published", kw_only=True):
    """As REST's reply: sent when the messages are on disk."""

    count: int
    failed: int = 0
    first_id: str | UnsetType = UNSET
    results: list[Outcome] | UnsetType = UNSET


class Gone(Struct, tag_field="op", tag="gone", kw_only=True):
    """A queue was deleted. A subscription of one queue has ended."""

    sub: RequestId
    queue: str


class Error(Reply, tag="error", kw_only=True):
    code: str
    detail: str = ""
