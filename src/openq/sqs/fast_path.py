"""The fast path of the commonest requests: plain messages, in JSON, of the account of the queue.

The request is decoded, authenticated and authorised by `handler.py`, which then calls the action here.
An action either gives exactly the reply that `messages.py` would give, or changes nothing and returns False:
then `messages.py` handles the request. Every error and every option exists there only.

Instructions of a request that it saves, from the bytes of the request to those of the reply, in memory:
SendMessage 44 %, ReceiveMessage 11 %, and of ten messages SendMessageBatch 50 %, ReceiveMessage 20 %,
DeleteMessageBatch 44 %. ReceiveMessage and DeleteMessage together 9 %.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, Protocol

import msgspec

from ..errors import MessageNotFoundError, OpenQError, TooManyInFlight, VisibilityTimeoutExpired
from ..model import ENCODING_TEXT, Delivery, Properties
from ..server import long_polls
from ..server.context import ServerContext
from ..server.http_request import HttpRequest
from . import errors
from . import requests as sqs
from .call import SqsQueue
from .errors import SqsError
from .message_attributes import TRACE_FIELD, is_valid_batch_id, md5
from .messages import MAX_ANSWER_BYTES, receipt_of, text_of

# Plain characters need no escaping in JSON, and AWS allows them all. This table marks the others; a set of
# bytes to delete would be rebuilt for each message.
_SPECIAL_BYTES = bytes(1 if 0x20 <= char < 0x7F and chr(char) not in '"\\' else 0 for char in range(256))
_encode = msgspec.json.encode
_MAX_SENDERS = 1_000


class JsonReplies(Protocol):
    """Sends JSON replies."""

    def send(self, request: HttpRequest, body: bytes) -> None: ...
    def fail(self, request: HttpRequest, error: SqsError) -> None: ...


class FastPath:
    """By action: publish, receive or delete and answer; False if the request is left to `messages.py`.

    The last argument of an action is the user, stored with the messages that it sends; None for the account
    itself.
    """

    def __init__(
        self, context: ServerContext, wire: JsonReplies, handle_slowly: Callable[[HttpRequest], None]
    ) -> None:
        """`handle_slowly` handles a whole request without this fast path."""
        self._context = context
        self._publish_later = context.publish_later
        self._ack_later = context.ack_later
        self._handle_slowly = handle_slowly
        self._broker = context.broker
        self._traffic = context.traffic.sqs
        self._acking = context.traffic.sqs.acking
        self._wire = wire
        self._id_prefix = context.broker.storage.id_prefix.encode()
        self._senders: dict[str, Properties] = {}
        self._is_durable = context.broker.storage.is_durable
        self.actions: dict[str, Callable[[HttpRequest, SqsQueue, Any, str | None], bool]] = {
            "SendMessage": self._send,
            "SendMessageBatch": self._send_batch,
            "ReceiveMessage": self._receive,
            "DeleteMessage": self._delete,
            "DeleteMessageBatch": self._delete_batch,
        }

    def _answer_after_commit(self, request: HttpRequest, reply: bytes) -> None:
        """Send the reply once the change is on disk."""
        if not self._is_durable:
            self._wire.send(request, reply)
            return

        def committed(error: OpenQError | None) -> None:
            if error is not None:
                request.run_guarded(self._wire.fail, request, errors.from_openq(error))
            else:
                self._wire.send(request, reply)

        self._context.after_commit(committed)

    def _properties_of(self, sender: str) -> Properties:
        found = self._senders.get(sender)
        if found is None:
            if len(self._senders) >= _MAX_SENDERS:
                self._senders.clear()
            found = self._senders[sender] = Properties({}, sender)
        return found

    def _send(
        self, request: HttpRequest, queue: SqsQueue, message: sqs.SendMessage, sender: str | None
    ) -> bool:
        if (
            queue.fifo
            or TRACE_FIELD in request.fields
            or message.delay_seconds is not None
            or message.message_attributes
            or message.message_system_attributes
            or message.message_group_id is not None
            or message.message_deduplication_id is not None
        ):
            return False
        body = _plain_body(message.message_body)
        if not 0 < len(body) <= queue.max_bytes:
            return False
        properties = None if sender is None else self._properties_of(sender)
        digest = hexlify(md5(body).digest())
        if self._publish_later is not None:

            def published(seq: int, error: Exception | None) -> None:
                if seq:
                    self._traffic.published += 1
                    self._wire.send(request, self._sent(seq, digest))
                elif isinstance(error, OpenQError):
                    request.run_guarded(self._wire.fail, request, errors.from_openq(error))
                elif error is not None:
                    request.run_guarded(self._wire.fail, request, errors.internal_error())
                else:
                    request.run_guarded(self._handle_slowly, request)  # the queue has changed in this turn

            if self._publish_later(queue.queue_key, body, ENCODING_TEXT, properties, published):
                return True
        seq = self._broker.publish_body(queue.queue_key, body, ENCODING_TEXT, properties)
        if not seq:
            return False
        self._traffic.published += 1
        self._answer_after_commit(request, self._sent(seq, digest))
        return True

    def _sent(self, seq: int, digest: bytes) -> bytes:
        return b'{"MessageId":"%b%012x","MD5OfMessageBody":"%b"}' % (self._id_prefix, seq, digest)

    def _send_batch(
        self, request: HttpRequest, queue: SqsQueue, batch: sqs.SendMessageBatch, sender: str | None
    ) -> bool:
        if (
            queue.fifo
            or TRACE_FIELD in request.fields
            or not 0 < len(batch.entries) <= queue.limits.max_batch
        ):
            return False
        bodies: list[bytes] = []
        ids: list[str] = []
        total = 0
        max_bytes = queue.max_bytes
        for entry in batch.entries:
            body = _plain_body(entry.message_body)
            if (
                not 0 < len(body) <= max_bytes
                or not is_valid_batch_id(entry.id)
                or entry.delay_seconds is not None
                or entry.message_attributes
                or entry.message_system_attributes
                or entry.message_group_id is not None
                or entry.message_deduplication_id is not None
            ):
                return False
            total += len(body)
            ids.append(entry.id)
            bodies.append(body)
        if total > queue.limits.max_batch_bytes or len(set(ids)) != len(ids):
            return False
        properties = None if sender is None else self._properties_of(sender)
        seqs = self._broker.publish_bodies(queue.queue_key, bodies, ENCODING_TEXT, properties)
        if seqs is None:
            return False
        self._traffic.published += len(bodies)
        prefix = self._id_prefix
        entries = [
            b'{"Id":"%b","MessageId":"%b%012x","MD5OfMessageBody":"%b"}'
            % (id.encode(), prefix, seq, hexlify(md5(body).digest()))
            for id, seq, body in zip(ids, seqs, bodies, strict=True)
        ]
        self._answer_after_commit(request, b'{"Successful":[%b]}' % b",".join(entries))
        return True

    def _receive(
        self, request: HttpRequest, queue: SqsQueue, wanted: sqs.ReceiveMessage, sender: str | None
    ) -> bool:
        if (
            wanted.attribute_names
            or wanted.message_system_attribute_names
            or wanted.message_attribute_names
            or wanted.receive_request_attempt_id is not None
        ):
            return False
        count = 1 if wanted.max_number_of_messages is None else wanted.max_number_of_messages
        limits = queue.limits
        wait_s = queue.wait_s if wanted.wait_time_seconds is None else wanted.wait_time_seconds
        lease_s = wanted.visibility_timeout
        if (
            not 1 <= count <= limits.max_receive
            or not 0 <= wait_s <= limits.max_wait_s
            or (lease_s is not None and not 0 <= lease_s <= limits.max_visibility_s)
        ):
            return False
        number = queue.number

        def then(deliveries: list[Delivery], error: OpenQError | None) -> None:
            if error is not None:
                self._wire.fail(request, errors.from_openq(error))
            elif deliveries:
                self._wire.send(request, self._shown(deliveries, number))
            else:
                self._wire.send(request, b"{}")

        try:
            long_polls.receive(
                self._context,
                request,
                queue.queue_key,
                count,
                queue.settings.visibility_ms if lease_s is None else lease_s * 1000,
                request.peer,
                None,
                wait_s,
                then,
                MAX_ANSWER_BYTES,
                limits.max_in_flight,
            )
        except TooManyInFlight:
            return False
        return True

    def _shown(self, deliveries: list[Delivery], number: int) -> bytes:
        handles = _Handles(len(deliveries)).write(number, deliveries)
        prefix = self._broker.storage.id_prefix
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

    def _delete(
        self, request: HttpRequest, queue: SqsQueue, wanted: sqs.DeleteMessage, sender: str | None
    ) -> bool:
        seq, number = receipt_of(queue, wanted.receipt_handle)
        if self._ack_later is not None:

            def acked(error: Exception | None) -> None:
                if error is None:
                    self._traffic.acked += 1
                    self._wire.send(request, b"{}")
                else:  # it is late, mostly: see below
                    request.run_guarded(self._handle_slowly, request)

            if self._ack_later(queue.queue_key, (seq, number), self._acking, acked):
                return True
        self._traffic.acking()
        try:
            self._broker.ack_one(queue.queue_key, seq, number)
        except (MessageNotFoundError, VisibilityTimeoutExpired):
            return False  # it is late: `messages.py` tries again, with its rules for late deletes
        self._traffic.acked += 1
        self._answer_after_commit(request, b"{}")
        return True

    def _delete_batch(
        self, request: HttpRequest, queue: SqsQueue, batch: sqs.DeleteMessageBatch, sender: str | None
    ) -> bool:
        if not 0 < len(batch.entries) <= queue.limits.max_batch:
            return False
        ids = [entry.id for entry in batch.entries]
        receipts = _Handles(len(ids)).read([entry.receipt_handle for entry in batch.entries], queue.number)
        if receipts is None or len(set(ids)) != len(ids) or not all(map(is_valid_batch_id, ids)):
            return False
        self._traffic.acking()
        results = self._broker.ack(queue.queue_key, receipts)
        self._traffic.acked += results.count(None)
        if any(results):
            return False  # one is late: `messages.py` repeats the delete, which is harmless, and reports it
        shown = '"},{"Id":"'.join(ids)
        self._answer_after_commit(request, f'{{"Successful":[{{"Id":"{shown}"}}]}}'.encode())
        return True


def _plain_body(text: str) -> bytes:
    """The text as bytes; empty if it may have a character that SQS does not allow."""
    if text.isascii():
        body = text.encode()
        if b"\0" not in body.translate(_SPECIAL_BYTES):
            return body
    return text.encode() if text.isprintable() else b""


def _as_json(body: bytes) -> tuple[bytes, str]:
    """The body of the reply (base64 if it is not text) and the same as a JSON string."""
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
        """None if one of them is invalid, or of another queue."""
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
