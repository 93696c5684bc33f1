"""The small HTTP client, against servers that answer byte by byte what a test tells them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from openq.client.http import HttpClient, Refused, TimedOut, Unreachable
from openq.errors import OpenQError
from tests.serving import free_port

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Script:
    """Answers each request with the next of its answers; an empty one hangs up."""

    def __init__(self, *answers: bytes) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._answers = iter(answers)
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            # A client that has read enough of a wrong answer hangs up in the middle of it.
            with peer, suppress(ConnectionError):
                while (request := self._read(peer)) is not None:
                    self.requests.append(request)
                    answer = next(self._answers, b"")
                    if not answer:
                        break
                    for at in range(0, len(answer), 7):  # in pieces: nothing may depend on where they end
                        peer.sendall(answer[at : at + 7])
                    if b"hang-up-after" in answer:
                        break

    def _read(self, peer: socket.socket) -> bytes | None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = peer.recv(65536)
            if not piece:
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                while len(body) < int(line.split(b":")[1]):
                    body += peer.recv(65536)
        return head + b"\r\n\r\n" + body

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@contextmanager
def scripted(*answers: bytes) -> Iterator[Script]:
    script = Script(*answers)
    try:
        yield script
    finally:
        script.close()


def test_a_request_and_its_answer() -> None:
    made = b'HTTP/1.1 201 Created\r\nX-Thing: a: b\r\nContent-Length: 9\r\n\r\n{"id": 5}'
    with scripted(made) as server, HttpClient(server.url + "/below/") as connection:
        answer = connection.request("POST", "/api/v1/queues?a=b", b"{}")

    assert (answer.status, answer.headers["x-thing"], answer.json()) == (201, "a: b", {"id": 5})
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /below/api/v1/queues?a=b HTTP/1.1"
    assert f"host: 127.0.0.1:{server.port}".encode() in lines
    assert b"content-type: application/json" in lines
    assert b"content-length: 2" in lines
    assert not [line for line in lines if line.startswith(b"authorization")]
    assert body == b"{}"


def test_the_connection_is_kept_for_the_next_request() -> None:
    with scripted(OK, OK, OK) as server, HttpClient(server.url) as connection:
        for _ in range(3):
            connection.request("GET", "/")

    assert (server.connections, len(server.requests)) == (1, 3)


@pytest.mark.parametrize("farewell", [b"connection: close\r\n", b"x: hang-up-after\r\n"])
def test_a_connection_that_the_server_closed_is_opened_again(farewell: bytes) -> None:
    last = OK.replace(b"\r\n\r\n", b"\r\n" + farewell + b"\r\n")
    with scripted(last, OK) as server, HttpClient(server.url) as connection:
        connection.request("GET", "/")
        # The end of the connection has arrived once the server waits for the next one.
        while connection._socket is not None and not _is_readable(connection._socket):
            pass
        assert connection.request("POST", "/", b"x").status == 200

    assert server.connections == 2


def _is_readable(held: socket.socket) -> bool:
    import select

    return bool(select.select([held], [], [], 1)[0])


def test_a_request_that_may_have_been_carried_out_is_not_repeated() -> None:
    with scripted(OK, b"", OK) as server, HttpClient(server.url) as connection:
        connection.request("GET", "/")
        with pytest.raises(Unreachable, match="hung up before the end of its answer"):
            connection.request("POST", "/", b"x")
        assert connection.request("GET", "/").status == 200

    assert len(server.requests) == 3


def test_a_server_that_refuses_before_it_has_read_everything_is_heard() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}"
    heard = threading.Event()

    def refuse(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(refusal)
            peer.shutdown(socket.SHUT_WR)
            # Read on as a server does that lets its answer arrive before it closes.
            peer.settimeout(30)
            while not heard.is_set() and peer.recv(1 << 20):
                pass

    with socket.create_server(("127.0.0.1", free_port())) as listener:
        server = threading.Thread(target=refuse, args=(listener,))
        server.start()
        with HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}") as connection:
            answer = connection.request("POST", "/", bytes(4 << 20))
            heard.set()
        server.join(30)

    assert answer.status == 413


def test_chunks_and_interim_answers_are_understood() -> None:
    chunked = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
    )
    with scripted(chunked, OK) as server, HttpClient(server.url) as connection:
        assert connection.request("GET", "/").body == b"abc0123456789"
        assert connection.request("GET", "/").body == b"{}"


def test_an_answer_without_a_body_ends_with_its_head() -> None:
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    with scripted(empty, OK[:-2], OK) as server, HttpClient(server.url) as connection:
        assert connection.request("DELETE", "/").body == b""
        assert connection.request("HEAD", "/").body == b""
        assert connection.request("GET", "/").body == b"{}"


def test_a_large_answer_comes_whole() -> None:
    body = bytes(range(256)) * 4096
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with scripted(head + body) as server, HttpClient(server.url) as connection:
        assert connection.request("GET", "/").body == body


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"token": "oq_abc"}, b"authorization: Bearer oq_abc"),
        ({"user": "alice", "password": "pä:ss"}, b"authorization: Basic YWxpY2U6cMOkOnNz"),
        ({"token": "oq_abc", "user": "alice"}, b"authorization: Bearer oq_abc"),
    ],
)
def test_credentials_go_with_every_request(options: dict[str, str], line: bytes) -> None:
    with scripted(OK) as server, HttpClient(server.url, **options) as connection:  # type: ignore[arg-type]
        connection.request("GET", "/")

    assert line in server.requests[0].split(b"\r\n")


def test_credentials_in_the_address_are_used_and_not_shown() -> None:
    with scripted(OK) as server, HttpClient(f"http://al%40ice:geheim@127.0.0.1:{server.port}") as connection:
        connection.request("GET", "/")

        assert "geheim" not in connection.url + repr(connection)
    assert b"authorization: Basic YWxAaWNlOmdlaGVpbQ==" in server.requests[0]


@pytest.mark.parametrize("token", ["a\r\nx: y", "a b", "é", "a\x00"])
def test_a_token_cannot_add_headers(token: str) -> None:
    with pytest.raises(Refused, match="printable ASCII") as raised:
        HttpClient("http://127.0.0.1", token=token)

    assert token not in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "code", "detail", "hint"),
    [
        (b'{"code": "queue_full", "detail": "full", "hint": "wait"}', "queue_full", "full", "wait"),
        (b'{"title": "Too much"}', "error", "Too much", ""),
        (b"{}", "error", "the server answered 429", ""),
        (b"<html>\xff", "error", "the server answered 429: <html>\ufffd", ""),
        (b"[]", "error", "the server answered 429: []", ""),
    ],
)
def test_an_error_of_the_server_is_raised_with_its_own_words(
    answer: bytes, code: str, detail: str, hint: str
) -> None:
    head = f"HTTP/1.1 429 Too Many\r\ncontent-length: {len(answer)}\r\n\r\n".encode()
    with scripted(head + answer) as server, HttpClient(server.url) as connection:
        answered = connection.request("GET", "/")
        with pytest.raises(Refused) as raised:
            answered.raise_for_status()

    refused = raised.value
    assert (refused.status, refused.code, str(refused), refused.hint) == (429, code, detail, hint)


def test_a_response_that_is_not_json_raises_our_error() -> None:
    with scripted(OK.replace(b"{}", b"hi")) as server, HttpClient(server.url) as connection:
        answer = connection.request("GET", "/")
    with pytest.raises(Refused, match="did not answer with JSON: 'hi'"):
        answer.json()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\nx: hang-up-after\r\n\r\nshort",
        b"x" * 70_000,
    ],
    ids=lambda answer: answer[:40].decode().split("\r")[0],
)
def test_a_malformed_response_is_reported(answer: bytes) -> None:
    refused = pytest.raises(Unreachable, match=r"not HTTP|no length|hung up")
    with scripted(answer) as server, HttpClient(server.url) as connection, refused:
        connection.request("GET", "/")


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with HttpClient(url, timeout_s=0.05) as connection, pytest.raises(TimedOut, match=r"within 0\.05 s"):
            connection.request("GET", "/")


def test_where_nothing_listens_the_error_says_how_to_start_a_server() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unreachable, match=f"http://127.0.0.1:{port}: nothing listens there") as raised:
        HttpClient(f"http://127.0.0.1:{port}").request("GET", "/")

    assert "openq serve" in raised.value.hint


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://", "http://127.0.0.1:99999", "http://a:b"])
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(Unreachable):
        HttpClient(url)


def test_an_address_needs_no_scheme() -> None:
    assert HttpClient("127.0.0.1:9324").url == "http://127.0.0.1:9324"
    assert HttpClient("https://[::1]").url == "https://[::1]:443"


def test_every_error_is_one_of_ours() -> None:
    for error in (Unreachable("u", "w"), TimedOut("u", 1), Refused(400, "c", "d")):
        assert isinstance(error, OpenQError)
