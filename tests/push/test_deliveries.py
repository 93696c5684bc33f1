"""Frames of deliveries: templates and structs write the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.documents.formats import JSON, MSGPACK, NATIVE, Format
from openq.documents.views import received
from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, ENCODING_JSON, ENCODING_TEXT, Delivery, Entry
from openq.push.deliveries import FRAME_BYTES, encode_deliveries

FORMATS = {"json": JSON, "msgpack": MSGPACK, "native": NATIVE}
BROKER = LocalBroker()
PREFIX = BROKER.storage.id_prefix


def frames(format: Format, deliveries: list[Delivery], sub: int | str = 1, queue: str = "q") -> list[bytes]:
    receipts = [f"{PREFIX}{each.entry.seq:012x}/{each.number:x}" for each in deliveries]
    return encode_deliveries(BROKER, format, sub, queue, deliveries, receipts)


def decoded(format: Format, data: bytes) -> object:
    return msgspec.json.decode(data) if format.is_json else msgspec.msgpack.decode(data)


deliveries = st.builds(
    lambda seq, body, encoding, sent, number, count, until: Delivery(
        Entry(seq, sent, 0, len(body), encoding, body, None, None), number, sent + 1, until, count, None
    ),
    st.integers(1, (1 << 48) - 1),
    st.one_of(st.text().map(str.encode), st.binary(max_size=300), st.sampled_from([b"", b"x" * 70_000])),
    st.sampled_from([ENCODING_TEXT, ENCODING_BYTES, ENCODING_JSON]),
    st.integers(0, 4_102_444_800_000),
    st.integers(0, (1 << 63) - 1),
    st.integers(1, 200),
    st.sampled_from([0, 4_102_444_800_000]),
)


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@given(some=st.lists(deliveries, min_size=1, max_size=20), sub=st.one_of(st.integers(0, 1 << 40), st.text()))
def test_templates_write_what_the_structs_say(format: Format, some: list[Delivery], sub: int | str) -> None:
    expected = decoded(format, format.encode(received(BROKER, some, format)))  # type: ignore[arg-type]

    found = [decoded(format, each) for each in frames(format, some, sub, 'a "queue"')]

    assert [message for frame in found for message in frame["messages"]] == expected  # type: ignore[index]
    assert {(frame["op"], frame["sub"], frame["queue"]) for frame in found} == {  # type: ignore[index]
        ("deliver", sub, 'a "queue"')
    }


def test_a_frame_is_not_larger_than_clients_accept_unless_it_is_one_message() -> None:
    def delivery(seq: int, size: int) -> Delivery:
        return Delivery(Entry(seq, 1, 0, size, ENCODING_TEXT, b"x" * size, None, None), 1, 1, 0, 1, None)

    many = [delivery(seq, 1000) for seq in range(1, 1001)]
    large = [delivery(1, FRAME_BYTES * 2), delivery(2, 10)]

    assert max(map(len, frames(JSON, many))) <= FRAME_BYTES + 1000
    assert [len(decoded(JSON, each)["messages"]) for each in frames(JSON, large)] == [1, 1]  # type: ignore[index]
