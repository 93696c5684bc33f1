"""`openq worker --http`: one POST per message. The status of the response decides.

2xx acks. 429 and 503 return the message for the time that Retry-After says. Any other status, redirects
included, nacks it with the status and the beginning of the response as the reason.
"""

from __future__ import annotations

import base64
import http.client
import io
import re
import socket
import ssl
import time
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from .._version import __version__
from ..client.message import ReceivedMessage
from ..client.times import iso
from ..errors import InvalidSetting
from ..http_text import attribute_text, excerpt, header_text, retry_after_s
from ..model import ENCODING_JSON, ENCODING_MSGPACK, ENCODING_TEXT
from ..trace_context import outgoing_headers
from .message_worker import ACK, HandlerOutcome

DEFAULT_TIMEOUT_S = 30.0
MAX_RESPONSE = 65536  # bytes that are read
MAX_HEADER = 8192
_CONTENT_TYPES = {
    ENCODING_TEXT: "text/plain; charset=utf-8",
    ENCODING_JSON: "application/json",
    ENCODING_MSGPACK: "application/msgpack",
}


class HttpHandler:
    """One connection, kept open between messages."""

    def __init__(self, url: str, *, timeout_s: float | None, retry_delay_s: float, ca: str | None) -> None:
        self._url = check_url(url)
        self._timeout_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
        self._retry_delay_s = retry_delay_s
        self._ca = ca
        self._connection: http.client.HTTPConnection | None = None
        self._aborted = False  # for good: a worker aborts when it stops

    def handle(self, message: ReceivedMessage) -> HandlerOutcome:
        deadline = time.monotonic() + self._timeout_s
        while True:
            is_reused = self._connection is not None
            try:
                return self._post(message, deadline)
            except TimeoutError:
                self._drop()
                return HandlerOutcome(reason=f"timed out after {self._timeout_s:g} s")
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._drop()
                # A server closes idle connections: that says nothing about this message.
                is_stale = isinstance(error, ConnectionError) and is_reused
                if not is_stale or self._aborted:
                    return HandlerOutcome(reason=f"no response: {type(error).__name__}: {error}")

    def abort(self) -> None:
        self._aborted = True
        connection = self._connection
        sock = None if connection is None else connection.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already

    def _post(self, message: ReceivedMessage, deadline: float) -> HandlerOutcome:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect()
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self._aborted:
            raise ConnectionAbortedError("the worker stops")
        connection.timeout = left
        if connection.sock is not None:
            connection.sock.settimeout(left)
        path = self._url.path or "/"
        target = f"{path}?{self._url.query}" if self._url.query else path
        # The whole response has one deadline: a server may send a byte now and then.
        connection.response_class = partial(_TimedResponse, deadline=deadline)  # type: ignore[assignment]
        connection.request("POST", target, message.delivery.entry.body or b"", self._headers(message))
        response = connection.getresponse()
        shown = excerpt(_read(response))
        status = f"{response.status} {excerpt(response.reason.encode())}".strip()
        retry_after = response.getheader("Retry-After")
        if response.will_close or not response.isclosed():
            self._drop()
        if 200 <= response.status < 300:
            return ACK
        reason = f"{status}: {shown}" if shown else status
        if response.status in (429, 503):
            delay_s = retry_after_s(retry_after, time.time())
            return HandlerOutcome(reason, self._retry_delay_s if delay_s is None else delay_s)
        return HandlerOutcome(reason)

    def _connect(self) -> http.client.HTTPConnection:
        url = self._url
        assert url.hostname is not None
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=self._ca)
            return http.client.HTTPSConnection(
                url.hostname, url.port, timeout=self._timeout_s, context=context
            )
        return http.client.HTTPConnection(url.hostname, url.port, timeout=self._timeout_s)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _headers(self, message: ReceivedMessage) -> dict[str, str]:
        found = headers(message)
        if self._url.username is not None:
            login = f"{unquote(self._url.username)}:{unquote(self._url.password or '')}"
            found["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        return found


class _TimedResponse(http.client.HTTPResponse):
    """A response that must be complete at a deadline."""

    def __init__(self, sock: socket.socket, *args: Any, deadline: float, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp: Any = io.BufferedReader(_TimedReads(self.fp.detach(), sock, deadline))


class _TimedReads(io.RawIOBase):
    def __init__(self, raw: Any, sock: socket.socket, deadline: float) -> None:
        self._raw = raw
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _read(response: http.client.HTTPResponse) -> bytes:
    data = b""
    while len(data) < MAX_RESPONSE and (piece := response.read1(MAX_RESPONSE - len(data))):
        data += piece
    return data


def check_url(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidSetting(f"--http: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSetting("--http takes an http or https URL")
    return parts


def headers(message: ReceivedMessage) -> dict[str, str]:
    """A message as headers. Values that a header cannot hold are percent-encoded, long ones left out."""
    entry = message.delivery.entry
    named: dict[str, Any] = {
        "OpenQ-Queue": message.queue.name,
        "OpenQ-Message-Id": message.id,
        "OpenQ-Message-Type": message.message_type,
        "OpenQ-Receive-Count": message.receive_count,
        "OpenQ-Priority": message.priority,
        "OpenQ-Group": message.group,
        "OpenQ-Sent": iso(message.timestamp),
    }
    for name, value in message.attributes.items():
        named[f"OpenQ-Attribute-{re.sub('[^A-Za-z0-9-]', '-', name)}"] = attribute_text(value)
    found = {name: header_text(value) for name, value in named.items() if value is not None}
    found = {name: text for name, text in found.items() if len(text) <= MAX_HEADER}
    found["Content-Type"] = _CONTENT_TYPES.get(entry.encoding, "application/octet-stream")
    found["User-Agent"] = f"openq-worker/{__version__}"
    found.update(outgoing_headers(message.attributes))
    return found
