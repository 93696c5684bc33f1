"""The commonest requests by the shortest way: plain messages, over JSON, by the owner of the queue.

Each answers exactly what the long way would answer, or does nothing at all and leaves the request to it:
whatever is unusual or wrong goes there, so every error and every option exists in one place only.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Protocol

import msgspec

from ..auth.guard import Principal
from ..errors import OpenQError
from ..model import ENCODING_TEXT, Delivery
from ..server import long_polls
from ..server.context import ServerContext
from ..server.http import HttpRequest
from . import errors
from . import requests as sqs
from .call import QueueResolver, SqsQueue
from .errors import SqsError
from .message_attributes import TRACE_FIELD, is_valid_batch_id, md5
from .messages import MAX_ANSWER_BYTES, text_of

_MAX_VIEWS = 10_000
# Text of plain characters alone looks the same in JSON, and AWS allows them all. This table marks the
# others; a set of bytes to delete would be built anew for each message.
_SPECIAL_BYTES = bytes(1 if 0x20 <= char < 0x7F and chr(char) not in '"\\' else 0 for char in range(256))
_encode = msgspec.json.encode


class _Strict(msgspec.Struct, rename=sqs.wire_name, gc=False, forbid_unknown_fields=True):
    """With any other member it cannot be decoded as this."""


class PlainSend(_Strict):
    queue_url: str
    message_body: sqs.Text


class PlainEntry(_Strict):
    id: str
    message_body: sqs.Text


class PlainBatch(_Strict):
    queue_url: str
    entries: list[PlainEntry]


class PlainReceive(_Strict):
    queue_url: str
    max_number_of_messages: int = 1
    wait_time_seconds: int | None = None
    visibility_timeout: int | None = None


class PlainReceipt(_Strict):
    id: str
    receipt_handle: str


class PlainDeletes(_Strict):
    queue_url: str
    entries: list[PlainReceipt]


class JsonReplies(Protocol):
    """How JSON answers leave."""

    def send(self, request: HttpRequest, body: bytes) -> None: ...
    def fail(self, request: HttpRequest, error: SqsError) -> None: ...


class FastPath:
    """By action: whether the request was taken care of."""

    def __init__(self, context: ServerContext, resolver: QueueResolver, wire: JsonReplies) -> None:
        self._context = context
        self._broker = context.broker
        self._in_flight = context.broker.in_flight
        self._resolver = resolver
        self._wire = wire
        self._views: dict[str | tuple[str, str], SqsQueue] = {}
        self._id_prefix = context.broker.id_prefix.encode()
        self._is_durable = context.broker.is_durable
        self._decode_send = msgspec.json.Decoder(PlainSend).decode
        self._decode_batch = msgspec.json.Decoder(PlainBatch).decode
        self._decode_receive = msgspec.json.Decoder(PlainReceive).decode
        self._decode_deletes = msgspec.json.Decoder(PlainDeletes).decode
        self.actions: dict[bytes, Callable[[HttpRequest, Principal, str | None], bool]] = {
            b"AmazonSQS.SendMessage": self._send,
            b"AmazonSQS.SendMessageBatch": self._send_batch,
            b"AmazonSQS.ReceiveMessage": self._receive,
            b"AmazonSQS.DeleteMessageBatch": self._delete_batch,
        }

    def _view(self, url: str, principal: Principal, region: str | None) -> SqsQueue | None:
        """The queue, if it is the caller's own and nobody else has a say in it."""
        if not principal.is_root:  # before it is looked up: who may not use a queue must not learn of it
            return None
        key = url if region is None else (region, url)
        view = self._views.get(key)
        if view is None or view.queue.deleted or view.queue.settings is not view.settings:
            view = self._resolver.view(self._resolver.key_of_url(url, principal.account, region))
            if region is not None and view.region != region:
                return None  # found elsewhere, which holds only until the caller's region has such a queue
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            self._views[key] = view
        return view if principal.account == view.account and view.policy is None else None

    def _answer_after_commit(self, request: HttpRequest, reply: bytes) -> None:
        """The answer, once what it says is on disk."""
        if not self._is_durable:
            self._wire.send(request, reply)
            return

        def committed(error: OpenQError | None) -> None:
            if error is not None:
                request.later(self._wire.fail, request, errors.from_openq(error))
            else:
                self._wire.send(request, reply)

        self._context.after_commit(committed)

    def _send(self, request: HttpRequest, principal: Principal, region: str | None) -> bool:
        if TRACE_FIELD in request.fields:
            return False
        try:
            message = self._decode_send(request.body)
        except (ValueError, RecursionError):
            return False
        view = self._view(message.queue_url, principal, region)
        if view is None or view.fifo:
            return False
        body = _plain_body(message.message_body)
        if not 0 < len(body) <= view.max_bytes:
            return False
        seq = self._broker.publish_body(view.queue_key, body, ENCODING_TEXT)
        if not seq:
            return False
        digest = hexlify(md5(body).digest())
        reply = b'{"MessageId":"%b%012x","MD5OfMessageBody":"%b"}' % (self._id_prefix, seq, digest)
        self._answer_after_commit(request, reply)
        return True

    def _send_batch(self, request: HttpRequest, principal: Principal, region: str | None) -> bool:
        if TRACE_FIELD in request.fields:
            return False
        try:
            batch = self._decode_batch(request.body)
        except (ValueError, RecursionError):
            return False
        view = self._view(batch.queue_url, principal, region)
        if view is None or view.fifo or not 0 < len(batch.entries) <= view.limits.max_batch:
            return False
        bodies: list[bytes] = []
        ids: list[str] = []
        total = 0
        for entry in batch.entries:
            body = _plain_body(entry.message_body)
            if not 0 < len(body) <= view.max_bytes or not is_valid_batch_id(entry.id):
                return False
            total += len(body)
            ids.append(entry.id)
            bodies.append(body)
        if total > view.limits.max_batch_bytes or len(set(ids)) != len(ids):
            return False
        seqs = self._broker.publish_bodies(view.queue_key, bodies, ENCODING_TEXT)
        if seqs is None:
            return False
        prefix = self._id_prefix
        entries = [
            b'{"Id":"%b","MessageId":"%b%012x","MD5OfMessageBody":"%b"}'
            % (id.encode(), prefix, seq, hexlify(md5(body).digest()))
            for id, seq, body in zip(ids, seqs, bodies, strict=True)
        ]
        self._answer_after_commit(request, b'{"Successful":[%b]}' % b",".join(entries))
        return True

    def _receive(self, request: HttpRequest, principal: Principal, region: str | None) -> bool:
        try:
            wanted = self._decode_receive(request.body)
        except (ValueError, RecursionError):
            return False
        view = self._view(wanted.queue_url, principal, region)
        if view is None:
            return False
        limits = view.limits
        wait_s = view.wait_s if wanted.wait_time_seconds is None else wanted.wait_time_seconds
        lease_s = wanted.visibility_timeout
        if (
            not 1 <= wanted.max_number_of_messages <= limits.max_receive
            or not 0 <= wait_s <= limits.max_wait_s
            or (lease_s is not None and not 0 <= lease_s <= limits.max_visibility_s)
            or (limits.max_in_flight is not None and self._in_flight(view.queue_key) >= limits.max_in_flight)
        ):
            return False
        number = view.number

        def then(deliveries: list[Delivery], error: OpenQError | None) -> None:
            if error is not None:
                self._wire.fail(request, errors.from_openq(error))
            elif deliveries:
                self._wire.send(request, self._shown(deliveries, number))
            else:
                self._wire.send(request, b"{}")

        long_polls.receive(
            self._context,
            request,
            view.queue_key,
            wanted.max_number_of_messages,
            view.settings.visibility_ms if lease_s is None else lease_s * 1000,
            request.peer,
            None,
            wait_s,
            then,
            MAX_ANSWER_BYTES,
        )
        return True

    def _shown(self, deliveries: list[Delivery], number: int) -> bytes:
        handles = _Handles(len(deliveries)).write(number, deliveries)
        prefix = self._broker.id_prefix
        shown: list[str] = []
        for delivery, handle in zip(deliveries, handles, strict=True):
            entry = delivery.entry
            body = entry.body or b""
            if b"\0" in body.translate(_SPECIAL_BYTES):
                body, text = _as_json(body)
            else:
                text = f'"{body.decode()}"'
            options = entry.options
            # The sequence in the handle is the one in the message's own id.
            if options is None or options.id is None:
                shown_id = f'"{prefix}{handle[12:24]}"'
            else:
                shown_id = _encode(options.id).decode()  # a publisher may have chosen it
            shown.append(
                f'{{"MessageId":{shown_id},"ReceiptHandle":"{handle}",'
                f'"MD5OfBody":"{md5(body).hexdigest()}","Body":{text}}}'
            )
        return f'{{"Messages":[{",".join(shown)}]}}'.encode()

    def _delete_batch(self, request: HttpRequest, principal: Principal, region: str | None) -> bool:
        try:
            batch = self._decode_deletes(request.body)
        except (ValueError, RecursionError):
            return False
        view = self._view(batch.queue_url, principal, region)
        if view is None or not 0 < len(batch.entries) <= view.limits.max_batch:
            return False
        ids = [entry.id for entry in batch.entries]
        receipts = _Handles(len(ids)).read([entry.receipt_handle for entry in batch.entries], view.number)
        if receipts is None or len(set(ids)) != len(ids) or not all(map(is_valid_batch_id, ids)):
            return False
        if any(self._broker.ack(view.queue_key, receipts)):
            return False  # one is late: the long way deletes again, which is no harm, and tells
        shown = '"},{"Id":"'.join(ids)
        self._answer_after_commit(request, f'{{"Successful":[{{"Id":"{shown}"}}]}}'.encode())
        return True


def _plain_body(text: str) -> bytes:
    """The text as bytes, if there is no character in it that SQS might refuse; else nothing."""
    if text.isascii():
        body = text.encode()
        if b"\0" not in body.translate(_SPECIAL_BYTES):
            return body
    return text.encode() if text.isprintable() else b""


def _as_json(body: bytes) -> tuple[bytes, str]:
    """The body as it goes out, base64 if it is no text, and that as a JSON string."""
    text, is_encoded = text_of(body)
    return (text.encode() if is_encoded else body), _encode(text).decode()


@cache
def _format_of(count: int) -> Struct:
    return Struct(">" + "IQQ" * count)


class _Handles:
    """Receipt handles, many at a time: queue, sequence and delivery as forty hexadecimal digits each."""

    __slots__ = ("_format",)

    def __init__(self, count: int) -> None:
        self._format = _format_of(count)

    def write(self, number: int, deliveries: list[Delivery]) -> list[str]:
        values: list[int] = []
        for delivery in deliveries:
            values += (number, delivery.entry.seq, delivery.number)
        text = self._format.pack(*values).hex()
        return [text[at : at + 40] for at in range(0, len(text), 40)]

    def read(self, handles: list[str], number: int) -> list[tuple[int, int]] | None:
        """None if one of them is not of this queue, or is no handle at all."""
        text = "".join(handles)
        if set(map(len, handles)) != {40} or not text.isalnum() or not text.isascii():
            return None
        try:
            values = self._format.unpack(bytes.fromhex(text))
        except ValueError:
            return None
        if set(values[::3]) != {number}:
            return None
        return list(zip(values[1::3], values[2::3], strict=True))
