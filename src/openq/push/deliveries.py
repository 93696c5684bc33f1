"""Deliveries as frames: many messages in each, but not more bytes than clients accept by default.

Plain messages (a body without options or properties) are most messages. They are written by templates: a
struct for each and its encoding cost three times as much. A test compares both ways.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from struct import Struct

from ..broker.interface import Broker
from ..documents.formats import JSON, MSGPACK, NATIVE, Format, array_head
from ..documents.values import iso, iso_or_none
from ..documents.views import received
from ..model import ENCODING_BYTES, ENCODING_TEXT, Delivery
from .frames import RequestId

FRAME_BYTES = 256 << 10  # of bodies in one frame, unless it is one message; many clients take 1 MiB

Item = Callable[[Delivery, str, str], bytes | None]  # of a delivery, its id and its receipt; None: not plain


def encode_deliveries(
    broker: Broker,
    format: Format,
    sub: RequestId,
    queue: str,
    deliveries: Sequence[Delivery],
    receipts: Sequence[str],
) -> list[bytes]:
    """The frames. `receipts` are the texts of the receipts, which begin with the id."""
    frames: list[bytes] = []
    items: list[bytes] = []
    size = 0
    encode_plain = _ENCODERS[format]()
    for delivery, receipt in zip(deliveries, receipts, strict=True):
        item = encode_plain(delivery, receipt[: receipt.index("/")], receipt)
        if item is None:
            item = format.encode(received(broker, [delivery], format)[0])
        if size + len(item) > FRAME_BYTES and items:
            frames.append(_frame(format, sub, queue, items))
            items, size = [], 0
        size += len(item)
        items.append(item)
    frames.append(_frame(format, sub, queue, items))
    return frames


def _frame(format: Format, sub: RequestId, queue: str, items: list[bytes]) -> bytes:
    if format.is_json:
        head = b'{"op":"deliver","sub":%b,"queue":%b,"messages":[' % (
            format.encode(sub),
            format.encode(queue),
        )
        return b"%b%b]}" % (head, b",".join(items))
    head = b"\x84\xa2op\xa7deliver\xa3sub%b\xa5queue%b\xa8messages" % (
        format.encode(sub),
        format.encode(queue),
    )
    return b"".join([head, array_head(len(items)), *items])


def _is_plain(delivery: Delivery) -> bool:
    entry = delivery.entry
    return (
        entry.options is None
        and entry.properties is None
        and (entry.encoding == ENCODING_TEXT or entry.encoding == ENCODING_BYTES)
    )


class _Moments:
    """The last times and their texts: the messages of a batch were sent and delivered together."""

    __slots__ = ("delivered", "delivered_ms", "sent", "sent_ms", "until", "until_ms")

    def __init__(self) -> None:
        self.sent_ms = self.delivered_ms = -1
        self.until_ms: int | None = -1
        self.sent = self.delivered = ""
        self.until: str | None = None

    def update(self, delivery: Delivery) -> None:
        entry = delivery.entry
        if entry.sent_ms != self.sent_ms:
            self.sent_ms, self.sent = entry.sent_ms, iso(entry.sent_ms)
        if delivery.delivered_ms != self.delivered_ms:
            self.delivered_ms, self.delivered = delivery.delivered_ms, iso(delivery.delivered_ms)
        if delivery.until_ms != self.until_ms:
            self.until_ms, self.until = delivery.until_ms, iso_or_none(delivery.until_ms)


def _json_items() -> Item:
    moments = _Moments()

    def encode(delivery: Delivery, own_id: str, receipt: str) -> bytes | None:
        entry = delivery.entry
        if not _is_plain(delivery):
            return None
        body = entry.body or b""
        if entry.encoding == ENCODING_BYTES:
            payload = f'"{b64encode(body).decode()}","payload_encoding":"base64"'
        else:
            try:
                payload = encode_basestring(body.decode())
            except UnicodeDecodeError:
                return None
        moments.update(delivery)
        until = "null" if moments.until is None else f'"{moments.until}"'
        return (
            f'{{"id":"{own_id}","timestamp":"{moments.sent}","payload":{payload},"status":"processing",'
            f'"message_type":null,"priority":0,"receive_count":{delivery.count},"attributes":{{}},'
            f'"receipt_id":"{receipt}","received_at":"{moments.delivered}","deadline":{until}}}'
        ).encode()

    return encode


_U16, _U32 = Struct(">BH"), Struct(">BI")


def _text(text: str) -> bytes:
    data = text.encode()
    size = len(data)
    return (bytes((0xA0 | size,)) if size < 32 else bytes((0xD9, size))) + data


def _sized(size: int, small: int, one: int) -> bytes:
    """The head of a text or of bytes; `small`: the longest text that its first byte can tell, 0 for bytes."""
    if size <= small:
        return bytes((0xA0 | size,))
    if size < 1 << 8:
        return bytes((one, size))
    return _U16.pack(one + 1, size) if size < 1 << 16 else _U32.pack(one + 2, size)


def _msgpack_items(native: bool) -> Item:
    """All but the id, the body and the receipt is kept from message to message while it is the same."""
    sent_ms = last_size = last_encoding = -1
    last_lease: tuple[int, int, int | None] | None = None
    sent = head = middle = tail = b""

    def encode(delivery: Delivery, own_id: str, receipt: str) -> bytes | None:
        nonlocal sent_ms, last_size, last_encoding, last_lease, sent, head, middle, tail
        entry = delivery.entry
        if entry.options is not None or entry.properties is not None or delivery.count > 127:
            return None
        body, encoding = entry.body or b"", entry.encoding
        if encoding == ENCODING_TEXT:
            if not native and not body.isascii():
                return None  # it may be no UTF-8
        elif encoding != ENCODING_BYTES:
            return None
        if entry.sent_ms != sent_ms:
            sent_ms = entry.sent_ms
            sent = b"\xa9timestamp%b\xa7payload" % _text(iso(sent_ms))
        lease = (delivery.count, delivery.delivered_ms, delivery.until_ms)
        is_text = encoding == ENCODING_TEXT
        if len(body) != last_size or encoding != last_encoding or lease != last_lease:
            last_size, last_encoding, last_lease = len(body), encoding, lease
            head = _sized(last_size, 31, 0xD9) if is_text and not native else _sized(last_size, -1, 0xC4)
            middle = (b"\xb0payload_encoding\xa4text" if is_text and native else b"") + (
                b"\xa6status\xaaprocessing\xacmessage_type\xc0\xa8priority\x00\xadreceive_count%c"
                b"\xaaattributes\x80\xaareceipt_id" % delivery.count
            )
            until = iso_or_none(delivery.until_ms)
            tail = b"\xabreceived_at%b\xa8deadline%b" % (
                _text(iso(delivery.delivered_ms)),
                b"\xc0" if until is None else _text(until),
            )
        first = b"\x8c\xa2id" if is_text and native else b"\x8b\xa2id"
        return b"".join((first, _text(own_id), sent, head, body, middle, _text(receipt), tail))

    return encode


_ENCODERS: dict[Format, Callable[[], Item]] = {
    JSON: _json_items,
    MSGPACK: lambda: _msgpack_items(False),
    NATIVE: lambda: _msgpack_items(True),
}
