"""One message, and the results of publishing and settling, as clients send and get them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from .structs import MAX_BATCH, Moment, ReplyBody, RequestBody, Seconds, Word


class DeathView(ReplyBody, kw_only=True):
    queue: str
    reason: str
    time: str
    receive_count: int
    kind: Literal["max_receives", "rejected", "expired", "overflow"] | UnsetType = UNSET
    times: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | UnsetType = UNSET
    first_time: str | UnsetType = UNSET


class NewMessage(RequestBody, kw_only=True):
    """The transmission form, `{"id", "timestamp", "payload"}`, and the other options of a message.

    Messages of a receive or an export are accepted too; the fields of their delivery are ignored.
    """

    payload: Raw | UnsetType = UNSET
    body: Raw | UnsetType = UNSET  # another name of the payload
    payload_encoding: Literal["base64", "msgpack+base64", "json"] | UnsetType = UNSET
    id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    timestamp: Moment | None = None
    delay: Seconds | None = None
    at: Moment | float | None = None
    priority: Annotated[int, Meta(ge=0, le=255)] = 0
    group: Word | None = None
    dedup_id: Word | None = None
    unique_key: Word | None = None
    message_type: Word | None = None
    attributes: dict[str, Any] | None = None
    ttl: Seconds | None = None
    publisher: Word | None = None
    status: str | None = None
    receive_count: int | None = None
    receipt_id: str | None = None
    received_at: str | None = None
    deadline: str | None = None
    position: int | None = None
    reason: str | None = None
    traceback: str | None = None
    deaths: list[DeathView] | None = None


class NewMessages(RequestBody, kw_only=True):
    messages: list[Raw]


class Published(ReplyBody, kw_only=True):
    id: str
    duplicate: bool | UnsetType = UNSET  # it exists already: the id is that of the earlier message


class Outcome(ReplyBody, kw_only=True):
    """The result of one message of a batch: its id or its error."""

    id: str | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class PublishedBatch(ReplyBody, kw_only=True):
    """`count` messages are in the queue.

    Plain bodies get consecutive ids; only the first is returned: the last twelve digits count up. Otherwise
    `results` has one entry per message, in order, and `failed` is the number of rejected ones.
    """

    count: int
    failed: int = 0
    first_id: str | UnsetType = UNSET
    results: list[Outcome] | UnsetType = UNSET


class MessageView(Struct, kw_only=True, gc=False):
    """One message in the consumption form, or in the persistence form where it is exported."""

    id: str
    timestamp: str
    payload: Any
    payload_encoding: str | UnsetType = UNSET
    payload_form: str | UnsetType = UNSET
    status: str
    message_type: str | None
    priority: int
    receive_count: int
    attributes: dict[str, Any]
    group: str | UnsetType = UNSET
    consumer: str | UnsetType | None = UNSET  # the current consumer
    receipt_id: str | UnsetType = UNSET
    received_at: str | UnsetType = UNSET
    deadline: str | UnsetType | None = UNSET
    state: str | UnsetType = UNSET
    position: int | UnsetType = UNSET
    publisher: str | UnsetType = UNSET
    unique_key: str | UnsetType = UNSET
    due_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    traceback: str | UnsetType = UNSET  # of its last failure, where its consumer gave one
    deaths: list[DeathView] | UnsetType = UNSET


class Receipts(RequestBody, kw_only=True):
    """One delivery (`receipt_id`) or up to 1,000 (`receipts`)."""

    receipt_id: str | UnsetType = UNSET
    receipts: Annotated[list[str], Meta(max_length=MAX_BATCH)] | UnsetType = UNSET


class ReceiptFailure(ReplyBody, kw_only=True):
    receipt_id: str
    code: str
    detail: str


class Settled(ReplyBody, kw_only=True):
    """How many deliveries were settled, and which were not."""

    count: int
    failed: list[ReceiptFailure] = field(default_factory=list)
    # Of a nack: the new state of each message. Of an extension: the new end of each lease.
    outcomes: list[str] | UnsetType = UNSET
