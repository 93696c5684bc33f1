"""The REST API over a data directory that no process uses: in this process, without sockets, users or AMQP.

Commands that read a server read a directory with the same requests. The directory is opened as a server opens
it: the journal is recovered and locked, and closed cleanly at the end.
"""

from __future__ import annotations

import asyncio
import io
import time
from http.client import HTTPResponse
from typing import Any

from ..auth.guard import Guard
from ..auth.store import UserStore
from ..client.http import ClientResponse
from ..client.rest_client import RestClient, RestReply
from ..config import DEFAULT_URL, Config
from ..errors import DirectoryInUse
from ..local.broker import LocalBroker
from ..rest.handler import RestHandler
from ..server.context import ServerContext
from ..server.listener import HttpLimits, Listener
from ..webhooks.service import WebhookService
from .api import UsageError
from .directory import require_journal


class LocalClient:
    """Takes requests like a `RestClient`, and gives them to the handler of the REST API."""

    def __init__(self, directory: str, account: str | None) -> None:
        require_journal(directory)
        try:
            self._broker = LocalBroker(directory, runs_schedules=False)
        except DirectoryInUse as error:
            advice = f"use --url {error.url} instead of --data" if error.url else "stop it first"
            process = f"process {error.pid}" if error.pid else "another process"
            raise UsageError(f"{directory} is in use by {process}; {advice}") from None
        self.url = directory
        self.target = RestClient(DEFAULT_URL, account=account).target
        self._loop = asyncio.new_event_loop()
        # Access to the files is access to the messages: no users, so that nothing is denied.
        self._context = ServerContext(
            self._broker, self._loop, Config(data=directory), Guard(UserStore(), time.time)
        )
        self._context.webhooks = WebhookService(self._context)  # not started: it only reads
        self._listener = Listener(
            RestHandler(self._context).handle, HttpLimits(), self._context.buffers, self._context.admission
        )
        self._context.listener = self._listener

    def send(
        self,
        method: str,
        target: str,
        data: bytes | None = None,
        *,
        timeout_s: float | None = None,
        idempotent: bool = True,
    ) -> RestReply:
        """Timeouts and retries do not apply: the work is done in this process."""
        connection, transport = self._listener.make(), _Transport(self._loop)
        body = data or b""
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._loop.run_until_complete(_answered(connection, transport, head.encode() + body))
        connection.connection_lost(None)
        if isinstance(transport.protocol, asyncio.Protocol):
            transport.protocol.connection_lost(None)  # of a stream
        response = HTTPResponse(_Received(transport.written), method=method)  # type: ignore[arg-type]
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return RestReply(ClientResponse(response.status, headers, response.read()), retried=False)

    def close(self) -> None:
        self._context.close()
        self._loop.close()
        self._broker.close()


async def _answered(connection: asyncio.Protocol, transport: _Transport, request: bytes) -> None:
    """On the running loop, which writes a large answer in pieces."""
    connection.connection_made(transport)
    connection.data_received(request)
    await transport.closed


class _Transport(asyncio.Transport):
    """Collects what the server writes until it closes the connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.written = bytearray()
        self.protocol: asyncio.BaseProtocol | None = None
        self.closed: asyncio.Future[None] = loop.create_future()

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    abort = close

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closed.done()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _Received:
    """The one method of a socket that HTTPResponse needs."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)
