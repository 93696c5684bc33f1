"""The HTTP client of webhooks: bounded, whatever an endpoint answers, and connected to checked addresses."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from openq.webhooks import http_client
from openq.webhooks.addresses import AddressRules
from openq.webhooks.endpoint import fixed_head, read_url
from openq.webhooks.http_client import EndpointClient, Response
from tests.certificates import make_certificate

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Result = tuple[Response | None, str]

HERE = AddressRules(["127.0.0.1"])


class Requests:
    """A client and its requests."""

    def __init__(self, client: EndpointClient) -> None:
        self.client = client
        self._head = fixed_head(client.endpoint, {})

    async def post(self, body: bytes = b"x", timeout_s: float = 20.0) -> Result:
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        head = self._head + b"Content-Length: %d\r\n\r\n" % len(body)
        self.client.post(head, body, timeout_s, lambda response, error: done.set_result((response, error)))
        return await done


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


def play(
    serve: Serve,
    test: Callable[[Requests, int], Awaitable[None]],
    *,
    url: str = "http://127.0.0.1:{port}/",
    rules: AddressRules = HERE,
    resolve: http_client.Resolve = http_client.resolve_name,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Run `test` with a client of an endpoint that `serve` plays."""

    async def main() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        endpoint = read_url(url.format(port=port))
        client = EndpointClient(asyncio.get_running_loop(), endpoint, rules, resolve)
        try:
            async with asyncio.timeout(60):
                await test(Requests(client), port)
        finally:
            client.close()
            server.close()
            await asyncio.sleep(0)

    asyncio.run(main())


def answering(data: bytes, keep: bool = False) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(data)
            await writer.drain()
            if not keep:
                return

    return serve


def one(data: bytes) -> Result:
    """What the client makes of this answer."""
    found: list[Result] = []

    async def test(requests: Requests, port: int) -> None:
        found.append(await requests.post())

    play(answering(data), test)
    return found[0]


def test_a_response_is_read_whole_in_any_form() -> None:
    for data in (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ):
        response, error = one(data)
        assert (response, error) == (Response(200, None, b"hello"), "")
    assert one(b"HTTP/1.1 204 No Content\r\n\r\n")[0] == Response(204, None, b"")
    assert one(b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")[0] == Response(
        429, "7", b""
    )


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "closed the connection without a response"),
        (b"SSH-2.0-OpenSSH\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000, "longer than"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 5000, "longer than"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            "another protocol",
        ),
    ],
)
def test_an_answer_that_is_no_response_is_an_error(data: bytes, error: str) -> None:
    response, text = one(data)
    assert response is None
    assert error in text


def test_an_endless_body_is_cut_and_its_status_counts() -> None:
    ended = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"1000\r\n" + b"a" * 4096 + b"\r\n")
                await writer.drain()
        finally:
            ended.set()

    async def test(requests: Requests, port: int) -> None:
        response, _ = await requests.post()
        assert response is not None
        assert (response.status, len(response.body)) == (500, http_client.MAX_BODY_BYTES)
        await ended.wait()

    play(endless, test)


def test_a_response_that_does_not_come_in_time_is_an_error() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def test(requests: Requests, port: int) -> None:
        assert await requests.post(timeout_s=0.05) == (None, "no response within 0.05 s")

    play(silent, test)


def test_a_body_that_trickles_is_cut_at_the_deadline() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def test(requests: Requests, port: int) -> None:
        response, _ = await requests.post(timeout_s=0.2)
        assert response is not None
        assert response.status == 200

    play(trickle, test)


def test_connections_are_kept_and_used_again() -> None:
    peers: set[object] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername"))
        await answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", keep=True)(reader, writer)

    async def test(requests: Requests, port: int) -> None:
        for _ in range(5):
            assert (await requests.post())[0] == Response(200, None, b"")
        assert len(peers) == 1

    play(serve, test)


def test_a_kept_connection_that_was_closed_costs_no_request() -> None:
    async def test(requests: Requests, port: int) -> None:
        for _ in range(5):
            response, error = await requests.post()
            assert (response, error) == (Response(200, None, b""), "")

    # It says that it keeps the connection, and closes it.
    play(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), test)


def test_what_comes_after_a_response_is_not_the_next_response() -> None:
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while True:
            await read_request(reader)
            count += 1
            status = b"500 Oh" if count == 1 else b"204 Fine"
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)
            if count == 1:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()

    async def test(requests: Requests, port: int) -> None:
        statuses = [(await requests.post())[0] for _ in range(2)]
        assert [each and each.status for each in statuses] == [500, 204]

    play(serve, test)


def test_a_name_is_checked_after_its_resolution_and_at_every_connection() -> None:
    answers = [["127.0.0.1"], ["169.254.169.254"], ["10.0.0.1", "127.0.0.1"]]
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async def test(requests: Requests, port: int) -> None:
        first, _ = await requests.post()
        second, refused = await requests.post()
        third, _ = await requests.post()
        assert (first and first.status, second, third and third.status) == (200, None, 200)
        assert "rebind.example is 169.254.169.254, which is a link-local address" in refused
        # The endpoint is asked for by its name, at an address that was checked.
        assert f"Host: rebind.example:{port}".encode() in seen[0]
        assert (asked, len(seen)) == (["rebind.example"] * 3, 2)

    play(serve, test, url="http://rebind.example:{port}/", resolve=resolve)


def test_an_address_that_does_not_answer_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "CONNECT_S", 0.1)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async def test(requests: Requests, port: int) -> None:
        with ExitStack() as stack:
            # Its queue is full, so it answers no further connection.
            deaf = stack.enter_context(socket.socket())
            deaf.bind(("127.0.0.2", port))
            deaf.listen(0)
            for _ in range(2):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(deaf.getsockname())

            response, error = await requests.post()

        assert (response and response.status, error) == (204, "")

    play(
        answering(b"HTTP/1.1 204 No Content\r\n\r\n"),
        test,
        url="http://two.example:{port}/",
        rules=AddressRules(["127.0.0.0/8"]),
        resolve=resolve,
    )


def test_without_permission_this_machine_is_refused() -> None:
    async def test(requests: Requests, port: int) -> None:
        response, error = await requests.post()
        assert response is None
        assert "loopback address" in error

    for host in ("127.0.0.1", "localhost", "2130706433", "0177.0.0.1", "0x7f.1", "[::ffff:127.0.0.1]"):
        play(answering(b""), test, url=f"http://{host}:{{port}}/", rules=AddressRules())


def test_nothing_listens_there_and_an_unknown_name_are_errors() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise http_client.socket.gaierror(-2, "Name or service not known")

    async def refused(requests: Requests, port: int) -> None:
        assert await requests.post() == (None, "connection refused")

    async def nowhere(requests: Requests, port: int) -> None:
        _, error = await requests.post()
        assert error == "the name nowhere.example cannot be resolved: Name or service not known"

    play(answering(b""), refused, url="http://127.0.0.1:1/")
    play(answering(b""), nowhere, url="http://nowhere.example/", resolve=unknown)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_a_certificate_must_be_trusted(
    certificate: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key, trusted = certificate
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(cert, key)
    ok = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def refused(requests: Requests, port: int) -> None:
        response, error = await requests.post()
        assert response is None
        assert "not trusted" in error

    async def accepted(requests: Requests, port: int) -> None:
        response, error = await requests.post()
        assert (response, error) == (Response(200, None, b""), "")

    async def here(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    play(ok, refused, url="https://127.0.0.1:{port}/", tls=serving)
    context = ssl.create_default_context(cafile=str(trusted))
    monkeypatch.setattr(http_client, "client_tls", lambda: context)
    play(ok, accepted, url="https://localhost:{port}/", tls=serving, resolve=here)
    # A trusted certificate of another name is refused too.
    play(ok, refused, url="https://other.example:{port}/", tls=serving, resolve=here)


def test_an_endpoint_without_tls_is_an_error_for_https() -> None:
    async def test(requests: Requests, port: int) -> None:
        response, error = await requests.post()
        assert response is None
        assert "TLS" in error or "cannot connect" in error

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad\r\n\r\n")
        await writer.drain()

    play(plain, test, url="https://127.0.0.1:{port}/")
