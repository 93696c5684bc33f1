"""The bytes of a segment file: header, blocks, frames. Pure: this module opens no file.

    segment = header (64 bytes), block, block, ...
    block   = header (32 bytes), frame, frame, ...       one block per commit
    frame   = length, back, the record's bytes

All integers are little endian. A location is `segment number << 32 | offset of the frame`.

A block's checksum starts from the journal's salt and the block's own offset, and covers the block and segment
numbers. So each block is valid in one place of one journal only. The old content of a recycled file, a copy
of a block elsewhere, or user data made to look like a block does not pass as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

VERSION = 1
MAGIC = b"OPENQJ01"
BLOCK_MAGIC = 0x314B4C42  # b"BLK1"
BLOCK_MAGIC_BYTES = BLOCK_MAGIC.to_bytes(4, "little")

# magic, version, crc, number, created_ms, first block, size, salt, flags; padded to 64.
_HEADER = Struct("<8sIIQQQQQI4x")
HEADER_BYTES = _HEADER.size
_HEADER_CRC_AT = 12
_FROM_RESERVE = 1  # a flag; unknown flags are ignored

# magic, crc, payload length, record count, block number, segment number
_BLOCK = Struct("<IIIIQQ")
BLOCK_BYTES = _BLOCK.size
_BLOCK_CRC_FROM = 8

FRAME = Struct("<II")  # length, distance back to the block's start
FRAME_BYTES = FRAME.size
ITEM = 0x8000_0000  # set in `back`: an item inside a record; the other bits lead to the record's frame
MAX_BLOCK = 0x7FFF_FFFF

_HOLE = Struct("<Q")  # payload of a block without records: the last block number it replaces
_SEED = Struct("<QQ")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    number: int
    created_ms: int
    first_block: int
    size: int
    salt: int
    from_reserve: bool = False  # its space is meant for acks, not for publishing

    def pack(self) -> bytes:
        flags = _FROM_RESERVE if self.from_reserve else 0
        facts = (self.number, self.created_ms, self.first_block, self.size, self.salt, flags)
        data = bytearray(_HEADER.pack(MAGIC, VERSION, 0, *facts))
        data[_HEADER_CRC_AT : _HEADER_CRC_AT + 4] = crc32(data).to_bytes(4, "little")
        return bytes(data)


class BadHeader(Exception):
    """The first 64 bytes of a file are not a valid segment header; the text gives the reason."""


def unpack_header(data: bytes) -> SegmentHeader:
    if len(data) < HEADER_BYTES:
        raise BadHeader(f"only {len(data)} bytes where the header needs {HEADER_BYTES}")
    data = data[:HEADER_BYTES]
    magic, version, crc, number, created_ms, first_block, size, salt, flags = _HEADER.unpack(data)
    if magic != MAGIC:
        raise BadHeader("this is no OpenQ segment (wrong magic)")
    if crc32(data[:_HEADER_CRC_AT] + bytes(4) + data[_HEADER_CRC_AT + 4 :]) != crc:
        raise BadHeader("the header does not match its checksum")
    # Checked after the checksum: only an intact header states reliably which version wrote it.
    if version != VERSION:
        raise BadHeader(f"format version {version}, this program knows {VERSION}")
    return SegmentHeader(number, created_ms, first_block, size, salt, bool(flags & _FROM_RESERVE))


@dataclass(frozen=True, slots=True)
class BlockHead:
    """The fields of a block header, before its checksum is verified."""

    crc: int
    length: int
    count: int
    number: int
    segment: int


def seed(salt: int, offset: int) -> int:
    return crc32(_SEED.pack(salt, offset))


def seal_block(buffer: bytearray, salt: int, offset: int, count: int, number: int, segment: int) -> None:
    """Fill in the header of a block whose frames are complete; `buffer` begins with 32 unused bytes."""
    seal_pieces((buffer,), salt, offset, count, number, segment)


def seal_pieces(
    pieces: Sequence[bytes | bytearray], salt: int, offset: int, count: int, number: int, segment: int
) -> None:
    """`seal_block` for a block in pieces, the first of which is the buffer with the header."""
    first = pieces[0]
    assert isinstance(first, bytearray)
    length = sum(map(len, pieces)) - BLOCK_BYTES
    _BLOCK.pack_into(first, 0, BLOCK_MAGIC, 0, length, count, number, segment)
    with memoryview(first) as view:
        crc = crc32(view[_BLOCK_CRC_FROM:], seed(salt, offset))
    for piece in pieces[1:]:
        crc = crc32(piece, crc)
    first[4:8] = crc.to_bytes(4, "little")


def block_head(data: bytes | memoryview, pos: int) -> BlockHead | None:
    """The header fields at `pos`, or None when no block begins there."""
    if pos < 0 or len(data) - pos < BLOCK_BYTES:
        return None
    magic, crc, length, count, number, segment = _BLOCK.unpack_from(data, pos)
    if magic != BLOCK_MAGIC or length > MAX_BLOCK:
        return None
    return BlockHead(crc, length, count, number, segment)


def verify(data: bytes | memoryview, pos: int, head: BlockHead, salt: int, offset: int) -> bool:
    """Whether the block at `pos` (file offset `offset`) is complete and matches its checksum."""
    end = pos + BLOCK_BYTES + head.length
    if end > len(data):
        return False
    with memoryview(data) as view:
        return crc32(view[pos + _BLOCK_CRC_FROM : end], seed(salt, offset)) == head.crc


def begin_verify(data: bytes, salt: int, offset: int) -> int:
    """Start the checksum of a block too large for memory: `data` is its beginning, header included."""
    return crc32(data[_BLOCK_CRC_FROM:], seed(salt, offset))


def frames(data: bytes, pos: int, end: int, base: int) -> Iterator[tuple[int, bytes]]:
    """The records of a verified block as (location, bytes). `base` is the location of data[0]."""
    unpack = FRAME.unpack_from
    while pos < end:
        body = pos + FRAME_BYTES
        stop = body + unpack(data, pos)[0]
        yield base + pos, data[body:stop]
        pos = stop


def hole(size: int, salt: int, offset: int, first: int, last: int, segment: int) -> bytes:
    """A block without records, `size` bytes long in total, that replaces the lost blocks first..last."""
    buffer = bytearray(size)
    _HOLE.pack_into(buffer, BLOCK_BYTES, last)
    seal_block(buffer, salt, offset, 0, first, segment)
    return bytes(buffer)


HOLE_BYTES = BLOCK_BYTES + _HOLE.size


def last_number(data: bytes | memoryview, pos: int, head: BlockHead) -> int:
    """The last block number that this block covers (a hole covers several); the next block has the number
    after it."""
    if head.count or head.length < _HOLE.size:
        return head.number
    last: int = _HOLE.unpack_from(data, pos + BLOCK_BYTES)[0]
    return last


def make_location(segment: int, offset: int) -> int:
    return segment << 32 | offset


def segment_of(location: int) -> int:
    return location >> 32


def offset_of(location: int) -> int:
    return location & 0xFFFF_FFFF
