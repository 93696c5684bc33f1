"""The bytes on disk, without a disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.journal.format import (
    BLOCK_BYTES,
    FRAME,
    HEADER_BYTES,
    HOLE_BYTES,
    VERSION,
    BadHeader,
    SegmentHeader,
    begin_verify,
    block_head,
    frames,
    hole,
    last_number,
    make_location,
    offset_of,
    seal_block,
    segment_of,
    unpack_header,
    verify,
)

SALT = 77


def block(
    records: list[bytes], offset: int = 64, number: int = 5, segment: int = 3, salt: int = SALT
) -> bytes:
    buffer = bytearray(BLOCK_BYTES)
    for record in records:
        buffer += FRAME.pack(len(record), len(buffer)) + record
    seal_block(buffer, salt, offset, len(records), number, segment)
    return bytes(buffer)


def is_valid(data: bytes, pos: int = 0, offset: int = 64, salt: int = SALT) -> bool:
    head = block_head(data, pos)
    return head is not None and verify(data, pos, head, salt, offset)


@pytest.mark.parametrize("from_reserve", [False, True])
def test_a_header_comes_back_as_it_was(from_reserve: bool) -> None:
    header = SegmentHeader(9, 1234, first_block=55, size=1 << 20, salt=2**64 - 1, from_reserve=from_reserve)

    assert len(header.pack()) == HEADER_BYTES == 64
    assert unpack_header(header.pack() + b"what follows") == header


@given(st.integers(0, 56 * 8 - 1))
def test_any_flipped_bit_of_a_header_is_noticed(bit: int) -> None:
    data = bytearray(SegmentHeader(9, 1234, 55, 1 << 20, 42).pack())
    data[bit // 8] ^= 1 << bit % 8

    with pytest.raises(BadHeader):
        unpack_header(bytes(data))


def test_an_invalid_header_is_refused_with_the_reason() -> None:
    with pytest.raises(BadHeader, match="only 10 bytes"):
        unpack_header(bytes(10))
    with pytest.raises(BadHeader, match="magic"):
        unpack_header(bytes(64))


def test_a_header_of_a_newer_version_is_refused_by_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openq.journal.format.VERSION", VERSION + 1)
    newer = SegmentHeader(1, 2, 3, 4, 5).pack()
    monkeypatch.undo()

    with pytest.raises(BadHeader, match="format version 2, this program knows 1"):
        unpack_header(newer)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20))
def test_records_come_back_with_their_locations(records: list[bytes]) -> None:
    data = block(records)
    head = block_head(data, 0)

    assert head is not None
    assert (head.count, head.number, head.segment) == (len(records), 5, 3)
    assert verify(data, 0, head, SALT, 64)
    found = list(frames(data, BLOCK_BYTES, len(data), make_location(3, 64)))
    assert [record for _, record in found] == records
    for location, record in found:
        assert segment_of(location) == 3
        length, back = FRAME.unpack_from(data, offset_of(location) - 64)
        assert length == len(record)
        assert back == offset_of(location) - 64


@given(st.data())
def test_any_flipped_bit_of_a_block_is_noticed(data: st.DataObject) -> None:
    mutable = bytearray(block([b"one", b"two"]))
    bit = data.draw(st.integers(0, len(mutable) * 8 - 1))
    mutable[bit // 8] ^= 1 << bit % 8

    assert not is_valid(bytes(mutable))


def test_a_block_is_valid_in_one_place_of_one_journal_only() -> None:
    data = block([b"record"])

    assert is_valid(data)
    assert not is_valid(data, offset=65)
    assert not is_valid(data, salt=SALT + 1)
    assert is_valid(b"abc" + data, pos=3)


def test_no_block_begins_where_there_is_no_room_or_no_magic() -> None:
    data = block([b"record"])

    assert block_head(data, -1) is None
    assert block_head(data, len(data) - 5) is None
    assert block_head(data, 1) is None
    huge = bytearray(data)
    huge[8:12] = b"\xff\xff\xff\xff"
    assert block_head(bytes(huge), 0) is None


def test_a_block_that_ends_early_is_not_valid() -> None:
    data = block([b"record"])

    assert not is_valid(data[:-1])


def test_a_large_block_can_be_verified_piece_by_piece() -> None:
    from zlib import crc32

    data = block([b"x" * 1000])
    head = block_head(data, 0)

    assert head is not None
    assert crc32(data[100:], begin_verify(data[:100], SALT, 64)) == head.crc


def test_a_hole_stands_for_the_blocks_that_were_lost() -> None:
    data = hole(100, SALT, 64, first=7, last=9, segment=3)
    head = block_head(data, 0)

    assert len(data) == 100
    assert head is not None
    assert verify(data, 0, head, SALT, 64)
    assert (head.count, head.number, last_number(data, 0, head)) == (0, 7, 9)
    assert len(hole(HOLE_BYTES, SALT, 64, 7, 7, 3)) == HOLE_BYTES


def test_an_ordinary_block_stands_for_itself() -> None:
    data = block([b"record of more than eight bytes"])
    empty = block([])

    for each in (data, empty):
        head = block_head(each, 0)
        assert head is not None
        assert last_number(each, 0, head) == 5
