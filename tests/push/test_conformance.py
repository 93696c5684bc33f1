"""RFC 6455 over real sockets, in the order of the cases of the Autobahn suite.

The server echoes nothing by itself: a text returns as the `id` of a ping, a size as the receipt of a publish.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator

import msgspec
import pytest

from tests.push.raw import BINARY, CLOSE, CONT, PING, PONG, TEXT, Raw, frame, head
from tests.rest.helpers import Client
from tests.serving import Served


@pytest.fixture
def raw(open_server: Served) -> Iterator[Raw]:
    with Raw(open_server) as found:
        assert json.loads(found.read()[1])["op"] == "hello"
        yield found


def asking(id: str, size: int = 0) -> bytes:
    """A request whose reply has the id, of at least `size` bytes."""
    return json.dumps({"op": "ping", "id": id}, ensure_ascii=False).encode().ljust(size)


def assert_alive(raw: Raw, id: str = "alive") -> None:
    raw.send(TEXT, asking(id))
    assert raw.read() == (TEXT, json.dumps({"op": "pong", "id": id}, separators=(",", ":")).encode())


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack(">H", code) + reason)


# 1, 9: frames of every form of length


SIZES = (27, 125, 126, 127, 128, 65535, 65536, 1 << 20)


def test_texts_of_every_form_of_length(raw: Raw) -> None:
    for size in SIZES:
        raw.socket.sendall(frame(TEXT, asking("echo", size)))
        assert json.loads(raw.read()[1]) == {"op": "pong", "id": "echo"}, size


def test_binary_frames_of_every_form_of_length(open_server: Served, client: Client) -> None:
    path = client.queue("sizes")
    with Raw(open_server, head(Sec_WebSocket_Protocol="openq.msgpack")) as raw:
        raw.read()
        for size in SIZES:
            request = {"op": "publish", "id": size, "queue": "sizes", "messages": [b"\xff" * size]}
            raw.socket.sendall(frame(BINARY, msgspec.msgpack.encode(request)))
            opcode, data = raw.read()
            reply = msgspec.msgpack.decode(data)
            assert (opcode, reply["op"], reply["id"], reply["count"]) == (BINARY, "published", size, 1)
    assert client.get(path).value["stats"]["waiting_bytes"] == sum(SIZES)


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_frames_arrive_in_pieces(raw: Raw, piece: int) -> None:
    raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = frame(PING, b"p" * 125) + frame(TEXT, asking("in pieces", 200), fin=False) + frame(CONT, b"  ")
    for start in range(0, len(data), piece):
        raw.socket.sendall(data[start : start + piece])
    assert raw.read() == (PONG, b"p" * 125)
    assert json.loads(raw.read()[1])["id"] == "in pieces"


# 2: pings and pongs


def test_pings_are_answered_with_their_payload_in_order(raw: Raw) -> None:
    payloads = [
        b"",
        b"text",
        bytes(range(0x7D, 0x82)) + b"\xff\xfe",
        b"x" * 125,
        *(b"%d" % n for n in range(10)),
    ]
    raw.socket.sendall(b"".join(frame(PING, payload) for payload in payloads))
    assert [raw.read() for _ in payloads] == [(PONG, payload) for payload in payloads]


def test_pongs_that_nobody_asked_for_are_ignored(raw: Raw) -> None:
    raw.socket.sendall(frame(PONG, b"unasked") + frame(PONG) + frame(PING, b"after"))
    assert raw.read() == (PONG, b"after")
    assert_alive(raw)


# 5: fragments


@pytest.mark.parametrize(
    "between", [b"", frame(PING, b"1"), frame(PING, b"1") * 3 + frame(PONG), frame(CONT, fin=False) * 100]
)
def test_a_message_in_fragments_with_control_frames_between_them(raw: Raw, between: bytes) -> None:
    data = asking("fragments", 40)
    raw.socket.sendall(frame(TEXT, b"", fin=False) + between)
    for at in range(0, 36, 4):
        raw.socket.sendall(frame(CONT, data[at : at + 4], fin=False) + between)
    raw.socket.sendall(frame(CONT, data[36:]))
    replies = [raw.read() for _ in range(10 * between.count(frame(PING, b"1")) + 1)]
    assert all(each == (PONG, b"1") for each in replies[:-1])
    assert json.loads(replies[-1][1])["id"] == "fragments"
    assert_alive(raw)


# 6: UTF-8


@pytest.mark.parametrize(
    "text", ["κόσμε\x7f\u0080\u07ff", "\u0800\ud7ff\ue000\ufffe\uffff", "\ufeff\U00010000\U0010ffff"]
)
def test_texts_return_as_they_are_wherever_they_are_cut(raw: Raw, text: str) -> None:
    data = asking(text)
    for at in range(1, len(data)):
        raw.socket.sendall(frame(TEXT, data[:at], fin=False) + frame(CONT, data[at:]))
    for _ in range(1, len(data)):
        assert json.loads(raw.read()[1])["id"] == text


NOT_UTF8 = (
    b"\xed\xa0\x80",  # a surrogate
    b"\xed\xbf\xbf",
    b"\xc0\xaf",  # longer than it has to be
    b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf",
    b"\xf4\x90\x80\x80",  # beyond the last code point
    b"\xf8\x88\x80\x80\x80",
    b"\xfe",
    b"\x80",  # a continuation alone
    b"\xce",  # cut off
    b"\xf0\x9f\x98",
)


@pytest.mark.parametrize("bad", NOT_UTF8, ids=lambda bad: bad.hex())
def test_what_is_not_utf8_closes_the_connection(open_server: Served, bad: bytes) -> None:
    text = b'{"op":"ping","id":"' + bad + b'"}'
    middle = 19 + len(bad) // 2
    for data in (
        frame(TEXT, text),
        frame(TEXT, text[:middle], fin=False) + frame(CONT, text[middle:]),
        close(1000, bad),
    ):
        with Raw(open_server) as raw:
            raw.read()
            raw.socket.sendall(data)
            assert raw.until_close() == 1007


# 3, 4, 5, 7: what closes the connection, and with which code


BAD_CODES = (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
GOOD_CODES = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000)


def is_closed_with(server: Served, data: bytes) -> int:
    with Raw(server) as raw:
        raw.read()
        raw.socket.sendall(data)
        return raw.until_close()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(TEXT, b"{}", masked=False), 1002),
        *((frame(TEXT, b"{}", bits=bits), 1002) for bits in range(16, 128, 16)),
        (frame(PING, b"", bits=64), 1002),
        (frame(CLOSE, b"", bits=16), 1002),
        *((frame(opcode), 1002) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)),
        (frame(PING, b"x" * 126), 1002),
        (frame(PONG, b"x" * 126), 1002),
        (close(1000, b"x" * 124), 1002),
        (frame(PING, fin=False), 1002),
        (frame(CLOSE, fin=False), 1002),
        (frame(CONT, b"x"), 1002),
        (frame(CONT, b"x", fin=False), 1002),
        (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002),
        (frame(TEXT, b"{}  ", fin=False) + frame(CONT) + frame(CONT, b"late"), 1002),
        (frame(BINARY, b"\x80"), 1003),
        (bytes([129, 255]) + struct.pack(">Q", 1 << 62) + bytes(4), 1009),
        (bytes([129, 255]) + struct.pack(">Q", (1 << 64) - 1) + bytes(4), 1009),
        (frame(TEXT, b"", fin=False) + frame(CONT, b"", fin=False) * 1100, 1008),
        (frame(CLOSE, b"\x03"), 1002),
        *((close(code), 1002) for code in BAD_CODES),
        *((close(code), code) for code in GOOD_CODES),
        (close(4999, "b\u00fcy".encode()), 4999),
        (close(1000, b"x" * 123), 1000),
        (frame(CLOSE), 1005),
        (frame(CLOSE) + frame(PING, b"late") + frame(TEXT, b"late"), 1005),
    ],
)  # fmt: skip
def test_what_closes_the_connection_and_with_which_code(open_server: Served, data: bytes, code: int) -> None:
    assert is_closed_with(open_server, data) == code


def test_requests_before_a_broken_frame_are_processed_and_those_after_it_are_not(
    open_server: Served, client: Client
) -> None:
    path = client.queue("broken-frame")
    publish = b'{"op":"publish","queue":"broken-frame","messages":["a"]}'
    assert is_closed_with(open_server, frame(TEXT, publish) + frame(3) + frame(TEXT, publish)) == 1002
    assert client.get(path).value["stats"]["ready"] == 1


def test_a_fragment_flood_with_a_message_that_is_too_large_is_refused(open_server: Served) -> None:
    with Raw(open_server) as raw:
        limit = json.loads(raw.read()[1])["limits"]["frame_bytes"]
        piece = b" " * (1 << 20)
        try:
            raw.send(TEXT, piece, fin=False)
            for _ in range(limit // len(piece) + 1):
                raw.send(CONT, piece, fin=False)
        except ConnectionError:
            pass  # it was closed while the rest was on its way
        assert raw.until_close() in (1006, 1009)
