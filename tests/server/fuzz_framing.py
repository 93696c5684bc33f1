"""Mutated bytes, and a strict parser of HTTP beside the one of the server: see `fuzz.py`."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence

from openq.server.http_request import HttpRequest
from openq.server.listener import Listener
from tests.server.fuzz_connection import FuzzFailure, MemoryTransport, answers_in

# -- bytes that are not quite right ----------------------------------------------------------------

# fmt: off
TOKENS = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b" ", b"\t", b":", b"%", b"%00", b"%0d%0a", b"\xff", b"\xc3",
    b"Content-Length: 3\r\n", b"Content-Length: -1\r\n", b"content-length:3,3\r\n", b"Host: b\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding : chunked\r\n", b"Transfer-Encoding: gzip\r\n",
    b"transfer-encoding: chunked, chunked\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n",
    b"Upgrade: h2c\r\nConnection: upgrade\r\n", b" folded\r\n", b"0\r\n\r\n", b"5;a=b\r\nhello\r\n",
    b"FFFFFFFFFFFFFFFF\r\n", b"99999999999999999999", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.0",
    b"HTTP/0.9", b"HTTP/2.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n",
    b"Host: [::1\r\n", b"Host: \xff\r\n", b"Origin: null\r\n", b"X: " + b"y" * 300 + b"\r\n",
]
# fmt: on


def mutated(chance: random.Random, data: bytes, most: int = 4) -> bytes:
    for _ in range(chance.randint(0, most)):
        at = chance.randint(0, len(data))
        what = chance.randrange(7)
        if what == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        elif what == 1:
            data = data[:at] + chance.choice(TOKENS) + data[at:]
        elif what == 2:
            data = data[:at] + data[at + chance.randint(1, 8) :]
        elif what == 3:
            end = at + chance.randint(1, 40)
            data = data[:end] + data[at:end] + data[end:]
        elif what == 4:
            data = data[:at] + chance.randbytes(chance.randint(1, 6)) + data[at:]
        elif what == 5:
            # After a line: where a header would stand.
            line = data.find(b"\r\n", at)
            if line >= 0:
                data = data[: line + 2] + chance.choice(TOKENS) + data[line + 2 :]
        else:
            data = data[:at]
    return data


def pieces_of(chance: random.Random, data: bytes) -> list[bytes]:
    how = chance.randrange(4)
    if how == 0 or not data:
        return [data]
    if how == 1 and len(data) < 400:
        return [data[n : n + 1] for n in range(len(data))]
    cuts = sorted(chance.randint(0, len(data)) for _ in range(chance.randint(1, 6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


# -- the parser --------------------------------------------------------------------------------------

Seen = tuple[str, bytes, bytes]  # method, target, body


_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_SIZE = re.compile(rb"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(;[^\r\n\0]*)?")


class Strict:
    """RFC 9112 with next to none of the leniency that it allows: where requests are in a stream of bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.seen: list[Seen] = []
        try:
            while self._at < len(data):
                self._request()
        except (EOFError, ValueError):
            pass

    def _line(self) -> bytes:
        end = self._data.find(b"\r\n", self._at)
        if end < 0:
            raise EOFError
        line = self._data[self._at : end]
        self._at = end + 2
        if b"\n" in line or b"\r" in line:
            raise ValueError("a line that ends otherwise")
        return line

    def _take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise EOFError
        self._at += count
        return self._data[self._at - count : self._at]

    def _request(self) -> None:
        # Empty lines before a request are to be ignored, and its parts may be more than one space apart.
        while self._data[self._at : self._at + 1] in (b"\r", b"\n"):
            self._at += 1
        method, target, version = (part for part in self._line().split(b" ") if part)
        if not _TOKEN.fullmatch(method) or not target or version not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise ValueError("not a request line")
        fields: dict[bytes, list[bytes]] = {}
        while line := self._line():
            found = _LINE.fullmatch(line)
            if found is None:
                raise ValueError("not a header")
            fields.setdefault(found[1].lower(), []).append(found[2])
        sizes = fields.get(b"content-length", [])
        codings = fields.get(b"transfer-encoding", [])
        if len(sizes) > 1 or (sizes and codings) or len(codings) > 1:
            raise ValueError("ambiguous")
        body = b""
        if codings:
            if codings[0].lower() != b"chunked" or version == b"HTTP/1.0":
                raise ValueError("an unknown coding")
            body = self._chunks()
        elif sizes:
            if not _SIZE.fullmatch(sizes[0]):
                raise ValueError("not a size")
            body = self._take(int(sizes[0]))
        self.seen.append((method.decode(), target, body))

    def _chunks(self) -> bytes:
        body = b""
        while True:
            found = _CHUNK.fullmatch(self._line())
            if found is None:
                raise ValueError("not a chunk")
            size = int(found[1], 16)
            if not size:
                while line := self._line():
                    if _LINE.fullmatch(line) is None:
                        raise ValueError("not a trailer")
                return body
            body += self._take(size)
            if self._take(2) != b"\r\n":
                raise ValueError("a chunk without its end")


class Framing:
    """The HTTP layer alone, with a handler that repeats what it saw."""

    SEEDS = (
        b"GET /a?b=c HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5;x=y\r\nhello\r\n3\r\nabc\r\n0\r\nT: u\r\n\r\n",
        b"HEAD / HTTP/1.0\r\n\r\n",
        b"PUT /y HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nhi",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 2\r\n\r\nok",
        b"DELETE /z HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    )

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._seen: list[Seen] = []
        self._listener = Listener(self._handle)
        self.cases = 0

    def close(self) -> None:
        self._loop.close()

    def _handle(self, request: HttpRequest) -> None:
        self._seen.append((request.method, request.target, request.body))
        request.answer(200, b"%d" % len(self._seen), b"text/plain")

    def see(self, pieces: Sequence[bytes]) -> tuple[list[Seen], list[int]]:
        """The requests that the handler was given, and the statuses that were answered."""
        self.cases += 1
        self._seen = []
        pipe = MemoryTransport(self._loop)
        connection = pipe.protocol = self._listener.make()
        connection.connection_made(pipe)
        for piece in pieces:
            if pipe.closed:
                break
            connection.data_received(piece)
        pipe.close()
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()
        answers = answers_in(pipe.written, lambda n: n < len(self._seen) and self._seen[n][0] == "HEAD")
        if any(status == 500 for status, _ in answers):
            raise FuzzFailure("500")
        return self._seen, [status for status, _ in answers]

    def one(self, chance: random.Random) -> None:
        if chance.random() < 0.4:
            # Heads that come again, each request in a piece of its own, as from a client that waits.
            pieces = [self._again(chance) for _ in range(chance.randint(2, 8))]
            self.check(b"".join(pieces), pieces)
            return
        stream = b"".join(chance.choice(self.SEEDS) for _ in range(chance.randint(1, 3)))
        data = mutated(chance, stream) if chance.random() < 0.95 else chance.randbytes(chance.randint(1, 200))
        self.check(data, pieces_of(chance, data))

    def _again(self, chance: random.Random) -> bytes:
        request = self.SEEDS[1] if chance.random() < 0.7 else chance.choice(self.SEEDS)
        if chance.random() < 0.3:
            request = request[:-5] + chance.choice(
                (b"\r\n\r\nx", b"GET /", b"\0\0\0\0\0", chance.randbytes(5))
            )
        return mutated(chance, request, 1) if chance.random() < 0.3 else request

    def check(self, data: bytes, pieces: Sequence[bytes]) -> None:
        whole, statuses = self.see([data])
        split, split_statuses = self.see(pieces)
        if whole != split or statuses != split_statuses:
            raise FuzzFailure(
                f"another answer in pieces: {whole} {statuses}, {split} {split_statuses}: {data!r}"
            )
        strict = Strict(data).seen
        if whole != strict[: len(whole)]:
            raise FuzzFailure(f"requests where there are none: {whole}, not {strict}: {data!r}")
