"""Requests about what one process keeps in memory: long operations, and what can be undone.

With several processes, the first of them is the home of these. The others pass such requests on to it as they
came, over a Unix socket that only this user can reach, and pass its answers back. A line before the request
says which client it is from, for the audit log and for the count of failed logins.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

from .http import HttpConnection
from .http_request import HttpRequest
from .listener import Listener

log = logging.getLogger("openq.server")

_ACTIONS = (b"StartMessageMoveTask", b"ListMessageMoveTasks", b"CancelMessageMoveTask")
_TARGETS = frozenset(b"AmazonSQS." + action for action in _ACTIONS)
_LAST = frozenset(("redrive", "discard", "replay", "purge"))  # of the path
_NOT_PASSED_ON = frozenset(
    (b"connection", b"content-length", b"transfer-encoding", b"expect", b"keep-alive", b"upgrade")
)
_OURS = frozenset((b"content-type", b"content-length", b"date", b"connection"))
_TEXT = b"text/plain; charset=utf-8"
_MAX_LINE = 200


def is_of_home(request: HttpRequest) -> bool:
    """Whether only the first process can answer it."""
    target = request.fields.get(b"x-amz-target")
    if target is not None:
        return target in _TARGETS
    path = request.path
    if path.startswith("/api/v1/"):
        parts = path.rstrip("/").split("/")[3:]
        if parts[:1] == ["accounts"]:
            del parts[:2]
        return bool(parts) and (parts[0] == "tasks" or parts[-1] in _LAST or "undo" in parts[-2:-1])
    return b"MessageMoveTask" in request.body or b"MessageMoveTask" in request.target


async def serve_home(
    loop: asyncio.AbstractEventLoop, listening: socket.socket, listener: Listener
) -> asyncio.AbstractServer:
    """Take the requests that other processes pass on."""
    return await loop.create_unix_server(lambda: _HomeConnection(listener), sock=listening)


def pass_on(loop: asyncio.AbstractEventLoop, path: str, request: HttpRequest) -> None:
    """To the first process, which answers it. It is not repeated: it may have been done."""

    def opened(done: asyncio.Task[Any]) -> None:
        if not done.cancelled() and done.exception() is not None and not request.gone:
            _unavailable(request)

    task = loop.create_task(loop.create_unix_connection(lambda: _PassedOn(request), path))
    _running.add(task)
    task.add_done_callback(_running.discard)
    task.add_done_callback(opened)


_running: set[asyncio.Task[Any]] = set()  # the loop keeps only weak references


def _unavailable(request: HttpRequest) -> None:
    request.answer(503, b"the process that keeps long operations is being replaced; try again\n", _TEXT)


class _PassedOn(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._answer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = self._request
        head = json.dumps([request.peer, request.peer_port, request.is_tls]).encode() + b"\n"
        head += b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.target)
        for name, value in request.headers:
            if name not in _NOT_PASSED_ON:
                head += b"%b: %b\r\n" % (name, value)
        head += b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(request.body)
        writing = cast(asyncio.Transport, transport)
        writing.write(head)
        writing.write(request.body)

    def data_received(self, data: bytes) -> None:
        self._answer += data

    def connection_lost(self, error: Exception | None) -> None:
        request = self._request
        if request.gone:
            return
        head, ended, body = bytes(self._answer).partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        if not ended or not status.startswith(b"HTTP/1.1 "):
            _unavailable(request)
            return
        content_type, kept = _TEXT, b""
        for line in lines:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-type":
                content_type = value.strip()
            elif name.lower() not in _OURS:
                kept += line + b"\r\n"
        request.answer(int(status[9:12]), body, content_type, kept)


class _HomeConnection(asyncio.Protocol):
    """Reads the line about the client; an ordinary connection does the rest."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._held = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._held += data
        line, ended, rest = self._held.partition(b"\n")
        if not ended:
            if len(self._held) > _MAX_LINE:
                self._transport.abort()
            return
        peer, port, is_tls = json.loads(line)
        connection = HttpConnection(self._listener)
        self._transport.set_protocol(connection)
        named = _NamedTransport(self._transport, (peer, port), is_tls)
        connection.connection_made(cast(asyncio.Transport, named))
        if rest:
            connection.data_received(rest)

    def connection_lost(self, error: Exception | None) -> None:
        """The other process has ended before its request."""


class _NamedTransport:
    """A transport with the name of the client whose request it carries."""

    def __init__(self, transport: asyncio.Transport, peer: tuple[str, int], is_tls: bool) -> None:
        self._transport = transport
        self._extra = {"peername": peer, "sslcontext": True if is_tls else None}

    def get_extra_info(self, name: str, default: object = None) -> object:
        if name in self._extra:
            return self._extra[name]
        return self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self._transport, name)
        return found
