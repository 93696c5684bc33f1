"""The HTTP layer against raw bytes: what it accepts, what it refuses, and that nothing else gets through."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from openq.server.http_checks import MAX_HEAD_BYTES, MAX_HEADERS
from openq.server.http_request import Handler, HttpRequest
from openq.server.listener import HttpLimits, Listener, new_loop
from tests.waiting import until

TEXT = b"text/plain"


class Running:
    """A listener on a loop in a thread. `waiting` holds the requests that the handler has not answered."""

    def __init__(self, limits: HttpLimits | None = None, handler: Handler | None = None) -> None:
        self.waiting: list[HttpRequest] = []
        self.seen: list[tuple[str, bytes, bytes]] = []
        self.loop = new_loop()
        self.listener = Listener(handler or self.handle, limits)
        started = threading.Event()

        def run() -> None:
            asyncio.set_event_loop(self.loop)
            self.server = self.loop.run_until_complete(
                self.loop.create_server(self.listener.make, "127.0.0.1", 0)
            )
            self.listener.start(self.loop)
            started.set()
            self.loop.run_forever()
            self.listener.stop()
            self.server.close()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        started.wait(10)
        self.port = self.server.sockets[0].getsockname()[1]

    def handle(self, request: HttpRequest) -> None:
        self.seen.append((request.method, request.target, request.body))
        if request.path == "/wait":
            self.waiting.append(request)
        elif request.path == "/fail":
            raise RuntimeError("planted")
        else:
            request.answer(200, request.method.encode() + b" " + request.target + b" " + request.body, TEXT)

    def on_loop(self, function: Callable[[], None]) -> None:
        done = threading.Event()

        def call() -> None:
            function()
            done.set()

        self.loop.call_soon_threadsafe(call)
        assert done.wait(10)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running()
    yield server
    server.stop()


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.data = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """The next answer; raises ConnectionError if the server hung up instead."""
        while b"\r\n\r\n" not in self.data:
            self._more()
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(b": ")
            headers[name.lower()] = value
        status = int(lines[0].split()[1])
        size = int(headers.get(b"content-length", b"0")) if status != 100 else 0
        while len(self.data) < size:
            self._more()
        body, self.data = self.data[:size], self.data[size:]
        return status, headers, body

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("closed")
        self.data += data

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def post(body: bytes = b"hello", path: bytes = b"/", more: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n" % (path, len(body), more)
    return head + body


def test_a_connection_serves_many_requests(running: Running) -> None:
    with Client(running.port) as client:
        for i in range(3):
            client.send(post(b"%d" % i))
            assert client.answer()[2] == b"POST / %d" % i


@pytest.mark.parametrize("size", [1, 2, 5, 4096])
def test_a_request_may_come_in_pieces_of_any_size(running: Running, size: int) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked = head + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    data = post(b"hello") + chunked + b"GET /a%20b?c=%26 HTTP/1.1\r\nHost: a\r\n\r\n"
    with Client(running.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), size):
            client.send(data[start : start + size])

        assert client.answer()[2] == b"POST / hello"
        assert client.answer()[2] == b"POST /x abcde"
        assert client.answer()[2] == b"GET /a%20b?c=%26 "


def test_pipelined_answers_keep_the_order_of_their_requests(running: Running) -> None:
    with Client(running.port) as client:
        client.send(post(b"1", b"/wait") + post(b"2") + post(b"3", b"/wait") + post(b"4"))
        until(lambda: len(running.waiting) == 1)
        running.on_loop(lambda: running.waiting[0].answer(200, b"first", TEXT))

        assert client.answer()[2] == b"first"
        assert client.answer()[2] == b"POST / 2"
        until(lambda: len(running.waiting) == 2)
        running.on_loop(lambda: running.waiting[1].answer(200, b"third", TEXT))
        assert client.answer()[2] == b"third"
        assert client.answer()[2] == b"POST / 4"


def test_a_thousand_pipelined_requests_are_all_answered_in_order(running: Running) -> None:
    count = 1000
    with Client(running.port) as client:
        sender = threading.Thread(target=lambda: client.send(b"".join(post(b"%d" % i) for i in range(count))))
        sender.start()
        assert [client.answer()[2] for _ in range(count)] == [b"POST / %d" % i for i in range(count)]
        sender.join()


def test_a_client_that_sends_expect_gets_100_continue(running: Running) -> None:
    with Client(running.port) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert client.answer()[0] == 100
        client.send(b"ok")
        assert client.answer()[2] == b"POST / ok"


def test_a_head_request_gets_the_length_and_no_body(running: Running) -> None:
    with Client(running.port) as client:
        client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
        data = b""
        while data.count(b"HTTP/1.1 200") < 2 or not data.endswith(b"GET / "):
            data += client.socket.recv(65536)
        assert b"Content-Length: 7\r\n" in data.split(b"\r\n\r\n")[0]


def test_an_old_client_is_answered_and_the_connection_closed(running: Running) -> None:
    with Client(running.port) as client:
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        status, headers, _ = client.answer()
        assert (status, headers[b"connection"]) == (200, b"close")
        assert client.is_closed()


def test_a_client_that_wants_to_close_is_obeyed(running: Running) -> None:
    with Client(running.port) as client:
        client.send(post(more=b"Connection: close\r\n"))
        assert client.answer()[0] == 200
        assert client.is_closed()


def test_a_handler_that_fails_is_one_answer_and_no_more(running: Running) -> None:
    with Client(running.port) as client:
        client.send(post(path=b"/fail") + post(b"next"))
        status, _, body = client.answer()
        assert status == 500
        assert b"planted" not in body
        assert client.answer()[2] == b"POST / next"


START = b"POST / HTTP/1.1\r\nHost: a\r\n"
LENGTH, CHUNKED = b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"
END = b"\r\n0\r\n\r\n"

SMUGGLING = {
    "both lengths": START + LENGTH + CHUNKED + END,
    "both lengths, the other way": START + CHUNKED + LENGTH + END,
    "two lengths": START + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": START + b"Content-Length: 5, 5\r\n\r\nhello",
    "a signed length": START + b"Content-Length: +5\r\n\r\nhello",
    "a negative length": START + b"Content-Length: -5\r\n\r\nhello",
    "a hexadecimal length": START + b"Content-Length: 0x5\r\n\r\nhello",
    "an endless length": START + b"Content-Length: 99999999999999999999999\r\n\r\nhello",
    "bare line feeds": b"POST / HTTP/1.1\nHost: a\nContent-Length: 5\n\nhello",
    "one bare line feed": b"POST / HTTP/1.1\r\nHost: a\nContent-Length: 5\r\n\r\nhello",
    "a bare carriage return": b"POST / HTTP/1.1\r\nHost: a\rX: b\r\nContent-Length: 5\r\n\r\nhello",
    "a folded header": START + b"X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a space before the colon": b"POST / HTTP/1.1\r\nHost : a\r\nContent-Length: 0\r\n\r\n",
    "an unknown encoding": START + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two encodings": START + CHUNKED + CHUNKED + END,
    "a compressed body": START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an encoding in HTTP/1.0": b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a NUL": START + b"X: a\x00b\r\n\r\n",
    "a chunk with a bare line feed": START + CHUNKED + b"\r\n5\nhello\r\n0\r\n\r\n",
    "a negative chunk": START + CHUNKED + b"\r\n-5\r\nhello\r\n0\r\n\r\n",
    "an endless chunk": START + CHUNKED + b"\r\nfffffffffffffffff\r\nhello",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "a later version": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "a tunnel": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a space in the address": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "an expectation nobody has": START + b"Expect: gold\r\nContent-Length: 5\r\n\r\nhello",
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("shape", SMUGGLING)
def test_an_ambiguous_request_is_refused_and_the_connection_closed(running: Running, shape: str) -> None:
    with Client(running.port) as client:
        # What follows must never be taken for a request of its own.
        client.send(SMUGGLING[shape] + b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
        status, headers, _ = client.answer()

        assert 400 <= status < 600
        assert headers[b"connection"] == b"close"
        assert client.is_closed()
    assert all(target != b"/smuggled" for _, target, _ in running.seen)


def test_an_offer_to_upgrade_is_ignored(running: Running) -> None:
    offer = (
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    )
    with Client(running.port) as client:
        client.send(post(b"one", more=offer) + post(b"two", more=offer) + post(b"three"))

        assert client.answer()[2] == b"POST / one"
        assert client.answer()[2] == b"POST / two"
        assert client.answer()[2] == b"POST / three"


def test_a_trailer_changes_nothing(running: Running) -> None:
    with Client(running.port) as client:
        client.send(START + CHUNKED + b"\r\n2\r\nhi\r\n0\r\nHost: evil\r\n\r\n")
        assert client.answer()[2] == b"POST / hi"


def test_a_body_that_is_too_large_is_refused_before_it_comes() -> None:
    running = Running(HttpLimits(request_bytes=1000))
    try:
        with Client(running.port) as client:
            client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n")
            assert client.answer()[0] == 413
        with Client(running.port) as client:
            client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send(b"1f4\r\n%b\r\n" % (b"x" * 500) * 3)
            assert client.answer()[0] == 413
        with Client(running.port) as client:
            client.send(post(b"x" * 1000))
            assert client.answer()[0] == 200
    finally:
        running.stop()
    assert len(running.seen) == 1


def test_a_head_that_is_too_large_is_refused(running: Running) -> None:
    many = b"".join(b"X-%d: y\r\n" % i for i in range(MAX_HEADERS + 1))
    for head in (
        b"GET / HTTP/1.1\r\nHost: a\r\n" + many + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        b"GET /" + b"y" * (MAX_HEAD_BYTES + 1) + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ):
        with Client(running.port) as client:
            client.send(head)
            assert client.answer()[0] == 431


def test_a_head_without_end_is_cut_off(running: Running) -> None:
    with Client(running.port) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
        try:
            for _ in range(2000):
                client.send(b"y" * 4096)
        except ConnectionError:
            pass
        until(lambda: not running.listener.connections)
    assert running.seen == []


def test_slow_clients_are_cut_off_and_waiting_ones_are_not() -> None:
    running = Running(HttpLimits(head_s=0.01, body_s=0.01, idle_s=0.01))
    try:
        with Client(running.port) as patient:
            patient.send(post(path=b"/wait"))
            until(lambda: len(running.waiting) == 1)
            with Client(running.port) as head, Client(running.port) as body, Client(running.port) as idle:
                head.send(b"GET / HTTP/1.1\r\nHo")
                body.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhello")
                assert head.answer()[0] == 408
                assert head.is_closed()
                assert body.answer()[0] == 408
                assert body.is_closed()
                assert idle.is_closed()
            running.on_loop(lambda: running.waiting[0].answer(200, b"at last", TEXT))
            assert patient.answer()[2] == b"at last"
    finally:
        running.stop()


def test_a_client_that_reads_nothing_is_cut_off() -> None:
    def flood(request: HttpRequest) -> None:
        request.answer(200, b"x" * (4 << 20), TEXT)

    running = Running(HttpLimits(body_s=0.01), flood)
    try:
        with Client(running.port) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 8)
            until(lambda: running.listener.connections)
            until(lambda: not running.listener.connections)
    finally:
        running.stop()
    assert running.listener.requests < 8


def test_one_connection_too_many_is_refused_with_the_reason() -> None:
    running = Running(HttpLimits(connections=2))
    try:
        with Client(running.port) as first, Client(running.port) as second:
            for client in (first, second):
                client.send(post())
                assert client.answer()[0] == 200
            with Client(running.port) as third:
                assert third.answer()[0] == 503
                assert third.is_closed()
        until(lambda: not running.listener.connections)
        with Client(running.port) as again:
            again.send(post())
            assert again.answer()[0] == 200
    finally:
        running.stop()


def test_a_waiting_handler_is_notified_when_its_client_disconnects(running: Running) -> None:
    gone = threading.Event()
    with Client(running.port) as client:
        client.send(post(path=b"/wait"))
        until(lambda: len(running.waiting) == 1)
        running.waiting[0].on_gone = gone.set

    assert gone.wait(10)
    request = running.waiting[0]
    assert request.gone
    running.on_loop(lambda: request.answer(200, b"too late", TEXT))  # goes nowhere, and says nothing


def test_draining_ends_idle_connections_and_lets_running_requests_end(running: Running) -> None:
    with Client(running.port) as busy, Client(running.port) as idle:
        idle.send(post())
        assert idle.answer()[0] == 200
        busy.send(post(path=b"/wait"))
        until(lambda: len(running.waiting) == 1)
        running.on_loop(running.listener.drain)

        assert idle.is_closed()
        running.on_loop(lambda: running.waiting[0].answer(200, b"done", TEXT))
        status, headers, body = busy.answer()
        assert (status, headers[b"connection"], body) == (200, b"close", b"done")
        assert busy.is_closed()
        with Client(running.port) as late:
            assert late.answer()[0] == 503


def test_a_head_that_comes_again_means_the_same_with_another_body(running: Running) -> None:
    with Client(running.port) as client:
        for body in (b"first words", b"other words", b"third words"):
            client.send(post(body))
            assert client.answer()[2] == b"POST / " + body
        length = len(post(b"first words"))
        # As long as those before, and yet two requests, another head, or only a part of one.
        short = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"
        two = short % b"" + short % (b"x" * (length - 2 * len(short % b"")))
        client.send(two)
        assert client.answer()[2] == b"GET / "
        assert client.answer()[2].startswith(b"GET /x")
        client.send(post(b"first words").replace(b"Host: a", b"Host: b"))
        assert client.answer()[2] == b"POST / first words"
        part = post(b"first words").replace(b"Length: 11", b"Length: 15")
        client.send(part)
        client.send(b"more")
        assert client.answer()[2] == b"POST / first wordsmore"
    assert len(two) == len(part) == length


def test_part_of_a_known_head_is_the_body_of_the_request_before(running: Running) -> None:
    whole = post(b"hello")
    with Client(running.port) as client:
        client.send(whole)
        assert client.answer()[2] == b"POST / hello"
        # Inside a body, the very bytes of a request that was seen before are no request.
        client.send(b"POST /outer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(whole))
        until(lambda: any(connection._in_message for connection in running.listener.connections))
        client.send(whole)
        assert client.answer()[2] == b"POST /outer " + whole
    assert [target for _, target, _ in running.seen] == [b"/", b"/outer"]


def test_heads_that_always_differ_are_read_each_time(running: Running) -> None:
    with Client(running.port) as client:
        for number in range(100):
            client.send(post(b"%03d" % number, more=b"X-Number: %03d\r\n" % number))
            assert client.answer()[2] == b"POST / %03d" % number
        assert all(connection._cached_heads == {} for connection in running.listener.connections)


def test_half_a_request_is_forgotten_with_its_connection() -> None:
    import gc
    import weakref

    connection = Listener(lambda request: None).make()
    connection.connection_made(_NullTransport())
    connection.data_received(START + b"Content-Length: 1000000\r\n\r\n" + b"x" * 100_000)
    gone = weakref.ref(connection._parser) if hasattr(connection._parser, "__weakref__") else None
    gc.disable()
    try:
        connection.connection_lost(None)
        # Nothing of it waits for the collector: a thousand such clients would fill the memory first.
        assert connection._body == b""
        assert connection._more is None
        assert connection._fields == {}
        assert gone is None or gone() is None
    finally:
        gc.enable()


def test_a_body_in_many_pieces_takes_no_more_than_it_holds() -> None:
    connection = Listener(lambda request: None).make()
    connection.connection_made(_NullTransport())
    connection.data_received(START + CHUNKED + b"\r\n")
    for _ in range(1000):
        connection.data_received(b"2\r\nab\r\n" * 10)

    assert isinstance(connection._more, bytearray)
    assert len(connection._more) == 20_000


class _NullTransport(asyncio.Transport):
    """A transport to nowhere."""

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def test_an_answer_that_fails_later_is_still_an_answer(running: Running) -> None:
    def fail() -> None:
        raise RuntimeError("planted")

    with Client(running.port) as client:
        client.send(post(path=b"/wait") + post(b"next"))
        until(lambda: len(running.waiting) == 1)
        running.on_loop(lambda: running.waiting[0].run_guarded(fail))

        assert client.answer()[0] == 500
        assert client.answer()[2] == b"POST / next"
