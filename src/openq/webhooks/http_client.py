"""POST requests to one endpoint, on the loop: kept connections, no task per request, everything bounded.

Theory of operation. `post` takes an idle connection, or opens one in a task: resolve the name, check the
addresses, connect to a checked one, verify the certificate. A connection carries one exchange at a time:

    idle ---send---> waiting ---head---> reading ---complete, keep-alive---> idle
                        |                   |------complete, too long, connection lost---> closed
                        |---refused, not HTTP, head too long, lost---> closed, the exchange fails

The status decides about an exchange. The body is only read for an excerpt: one that is too long, or does not
end in time, ends the connection and changes nothing else. Redirects are not followed, proxies are not used.
A kept connection that the endpoint closes while a request is on its way says nothing about that request: it
is sent once more over a new connection.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import httptools

from ..errors import OpenQError
from .addresses import AddressRules, literal_address
from .endpoint import Endpoint

MAX_HEAD_BYTES = 32 << 10
MAX_BODY_BYTES = 64 << 10
MAX_IDLE_S = 30.0
# For all addresses of a name but the last: one that does not answer must not use up the time of the request.
CONNECT_S = 10.0
# A connection that is older is not used again: its name may have other addresses by now.
MAX_AGE_S = 60.0


class Response(NamedTuple):
    status: int
    retry_after: str | None
    body: bytes  # at most MAX_BODY_BYTES of it


Then = Callable[[Response | None, str], None]  # the response, or why there is none
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve_name(host: str, port: int) -> list[str]:
    """The addresses of a host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


@lru_cache(maxsize=1)
def client_tls() -> ssl.SSLContext:
    """Made once: reading the authorities takes milliseconds."""
    return ssl.create_default_context()


class HttpExchange:
    """One request and its response. `then` is called once."""

    __slots__ = ("body", "connection", "head", "is_repeated", "is_reused", "opening", "then", "timer")

    def __init__(self, head: bytes, body: bytes, then: Then) -> None:
        self.head = head
        self.body = body
        self.then: Then | None = then  # None: it is over
        self.timer: asyncio.TimerHandle | None = None
        self.connection: Connection | None = None
        self.opening: asyncio.Task[None] | None = None
        self.is_reused = False  # its connection had carried another one
        self.is_repeated = False

    def end(self, response: Response | None, error: str) -> None:
        then, self.then = self.then, None
        self.connection = None
        if self.timer is not None:
            self.timer.cancel()
        if then is not None:
            then(response, error)


class EndpointClient:
    """The connections to one endpoint. Its caller limits how many exchanges run at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: Endpoint,
        rules: AddressRules,
        resolve: Resolve = resolve_name,
    ) -> None:
        self.loop = loop
        self.endpoint = endpoint
        self._rules = rules
        self._resolve = resolve
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closed = False

    def post(self, head: bytes, body: bytes, timeout_s: float, then: Then) -> None:
        """`head` ends with an empty line. `then` is called on the loop, never before this returns."""
        exchange = HttpExchange(head, body, then)
        exchange.timer = self.loop.call_later(timeout_s, self._expire, exchange, timeout_s)
        self._start(exchange)

    def close(self) -> None:
        """Ends the running exchanges too."""
        self._is_closed = True
        for task in list(self._opening):
            task.cancel()
        for connection in list(self._connections):
            connection.abort("the server stops")
        if self._sweeper is not None:
            self._sweeper.cancel()

    # -- inside ---------------------------------------------------------------------------------

    def _start(self, exchange: HttpExchange) -> None:
        oldest_s = self.loop.time() - MAX_AGE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.opened_s < oldest_s:
                connection.close()
                continue
            exchange.is_reused = True
            connection.send(exchange)
            return
        exchange.is_reused = False
        exchange.opening = task = self.loop.create_task(self._open(exchange))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, exchange: HttpExchange) -> None:
        error = "the server stops"
        connection: Connection | None = None
        try:
            connection = await self._connect()
        except ssl.SSLCertVerificationError as failure:
            error = f"the certificate of the endpoint is not trusted: {failure.verify_message}"
        except ssl.SSLError as failure:
            error = f"TLS failed: {(failure.reason or 'the handshake was ended').lower().replace('_', ' ')}"
        except OpenQError as failure:
            error = str(failure)
        except socket.gaierror as failure:
            error = f"the name {self.endpoint.host[:200]} cannot be resolved: {failure.strerror}"
        except ConnectionRefusedError:
            error = "connection refused"
        except (OSError, UnicodeError) as failure:
            error = f"cannot connect: {getattr(failure, 'strerror', None) or type(failure).__name__}"
        finally:
            exchange.opening = None
            if connection is None:
                exchange.end(None, error)
            elif exchange.then is None or self._is_closed:
                connection.close()
            else:
                connection.send(exchange)

    async def _connect(self) -> Connection:
        endpoint = self.endpoint
        literal = literal_address(endpoint.host)
        found = (
            await self._resolve(endpoint.host, endpoint.port)
            if literal is None
            else [str(literal) if "%" not in endpoint.host else endpoint.host]
        )
        addresses = self._rules.allowed(endpoint.host, found)
        failure: OSError = OSError(0, "the name has no address")
        for address in addresses:
            is_last = address is addresses[-1]
            try:
                async with asyncio.timeout(None if is_last else CONNECT_S / len(addresses)):
                    _, connection = await self.loop.create_connection(
                        partial(Connection, self),
                        address,
                        endpoint.port,
                        ssl=client_tls() if endpoint.is_tls else None,
                        server_hostname=endpoint.host if endpoint.is_tls else None,
                    )
                return connection
            except OSError as error:  # an ssl.SSLError and a TimeoutError are, too
                failure = error
        raise failure

    def _expire(self, exchange: HttpExchange, timeout_s: float) -> None:
        if exchange.opening is not None:
            exchange.opening.cancel()
            exchange.end(None, f"no connection within {timeout_s:g} s")
        elif exchange.connection is not None:
            exchange.connection.abort(f"no response within {timeout_s:g} s")

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)

    def repeat(self, exchange: HttpExchange) -> bool:
        """Send it over a new connection, if the old one was closed before it could be answered."""
        if exchange.is_repeated or not exchange.is_reused or exchange.then is None or self._is_closed:
            return False
        exchange.is_repeated = True
        # The other idle connections were probably closed by the same endpoint at the same time.
        self._drop_idle()
        self._start(exchange)
        return True

    def keep(self, connection: Connection) -> None:
        if self._is_closed:
            connection.close()
            return
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(MAX_IDLE_S, self._sweep)

    def remove(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest_s = self.loop.time() - MAX_IDLE_S
        stale = [each for each in self._idle if each.used_s <= oldest_s]
        self._idle = [each for each in self._idle if each.used_s > oldest_s]
        for connection in stale:
            connection.close()
        if self._idle:
            self._sweeper = self.loop.call_later(MAX_IDLE_S / 2, self._sweep)

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class Connection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_body_bytes",
        "_client",
        "_exchange",
        "_has_head",
        "_head_bytes",
        "_is_complete",
        "_is_spoiled",
        "_keeps_alive",
        "_parser",
        "_retry_after",
        "_status",
        "_transport",
        "opened_s",
        "used_s",
    )

    def __init__(self, client: EndpointClient) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: HttpExchange | None = None
        self._keeps_alive = False
        self._is_spoiled = False  # more came than was asked for: not used again
        self.opened_s = self.used_s = client.loop.time()
        self._reset()

    def _reset(self) -> None:
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._has_head = False
        self._status = 0
        self._is_complete = False
        self._retry_after: str | None = None

    def send(self, exchange: HttpExchange) -> None:
        self._reset()
        self._exchange = exchange
        exchange.connection = self
        transport = self._transport
        if transport is None or transport.is_closing():
            self._client.loop.call_soon(self.connection_lost, None)
        elif len(exchange.body) <= 65536:
            transport.write(exchange.head + exchange.body)
        else:
            transport.write(exchange.head)
            transport.write(exchange.body)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str) -> None:
        """End the exchange with what has come of its response."""
        if self._transport is not None:
            self._transport.abort()
        if self._exchange is not None and self._has_head:
            self._finish(keep=False)
        else:
            self._fail(why)

    # -- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._client.add(self)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.close()  # nothing was asked for
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.abort("the endpoint answered with another protocol than HTTP")
            return
        except httptools.HttpParserError:
            self.abort("the response is not valid HTTP")
            return
        if self._is_complete:
            self._finish(keep=self._keeps_alive and not self._is_spoiled)
        elif self._body_bytes > MAX_BODY_BYTES:
            self.abort("")
        elif not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self.abort(f"the head of the response is longer than {MAX_HEAD_BYTES} bytes")

    def connection_lost(self, error: Exception | None) -> None:
        self._client.remove(self)
        exchange = self._exchange
        if exchange is None:
            return
        if self._has_head:  # the body of a response without a length ends with the connection
            self._finish(keep=False)
            return
        if not self._head_bytes:
            self._exchange = None
            if self._client.repeat(exchange):
                return
            self._exchange = exchange
        self._fail("the endpoint closed the connection without a response")

    # -- the parser's callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._is_spoiled = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after" and not self._is_complete:
            self._retry_after = value[:100].decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and not self._has_head:
            self._has_head = True
            self._status = status

    def on_body(self, data: bytes) -> None:
        if self._body_bytes <= MAX_BODY_BYTES and not self._is_complete:
            self._body.append(data)
        self._body_bytes += len(data)

    def on_message_complete(self) -> None:
        # Not an interim response such as 100 Continue: the final one follows.
        if self._has_head and not self._is_complete:
            self._is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()  # known only in this callback

    # -- ends -----------------------------------------------------------------------------------

    def _finish(self, keep: bool) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        response = Response(self._status, self._retry_after, b"".join(self._body)[:MAX_BODY_BYTES])
        if keep:
            self.used_s = self._client.loop.time()
            self._client.keep(self)
        else:
            self.close()
        exchange.end(response, "")

    def _fail(self, why: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end(None, why)
