"""Deliveries as frames: many messages in each, but not more bytes than clients accept by default."""

from __future__ import annotations

from collections.abc import Iterator

from ..broker.interface import Broker
from ..documents.formats import Format
from ..documents.views import received
from ..model import Delivery
from .frames import Deliver, RequestId

FRAME_BYTES = 256 << 10  # of bodies in one frame, unless it is one message; many clients take 1 MiB


def encode_deliveries(
    broker: Broker, format: Format, sub: RequestId, queue: str, deliveries: list[Delivery]
) -> Iterator[bytes]:
    start = size = 0
    for at, delivery in enumerate(deliveries):
        size += delivery.entry.size
        if size > FRAME_BYTES and at > start:
            yield _frame(broker, format, sub, queue, deliveries[start:at])
            start, size = at, delivery.entry.size
    yield _frame(broker, format, sub, queue, deliveries[start:] if start else deliveries)


def _frame(broker: Broker, format: Format, sub: RequestId, queue: str, deliveries: list[Delivery]) -> bytes:
    return format.encode(Deliver(sub=sub, queue=queue, messages=received(broker, deliveries, format)))
