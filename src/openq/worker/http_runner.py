"""`openq worker --http`: one POST per message. The status of the response decides.

2xx acks. 429 and 503 return the message for the time that Retry-After says. Any other status, redirects
included, nacks it with the status and the beginning of the response as the reason.
"""

from __future__ import annotations

import base64
import http.client
import re
import socket
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from .._version import __version__
from ..client.message import ReceivedMessage
from ..client.times import iso
from ..errors import InvalidSetting
from ..model import ENCODING_JSON, ENCODING_MSGPACK, ENCODING_TEXT
from .exec_runner import attribute_text
from .message_worker import ACK, Outcome

DEFAULT_TIMEOUT_S = 30.0
MAX_RETRY_AFTER_S = 86400.0
MAX_RESPONSE = 65536  # bytes that are read
MAX_EXCERPT = 300  # characters of the response in the reason
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
        self._aborted = False

    def handle(self, message: ReceivedMessage) -> Outcome:
        self._aborted = False
        deadline = time.monotonic() + self._timeout_s
        while True:
            is_reused = self._connection is not None
            try:
                return self._post(message, deadline)
            except TimeoutError:
                self._drop()
                return Outcome(reason=f"timed out after {self._timeout_s:g} s")
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._drop()
                # A server closes idle connections: that says nothing about this message.
                is_stale = isinstance(error, ConnectionError) and is_reused
                if not is_stale or self._aborted:
                    return Outcome(reason=f"no response: {type(error).__name__}: {error}")

    def abort(self) -> None:
        self._aborted = True
        connection = self._connection
        sock = None if connection is None else connection.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already

    def _post(self, message: ReceivedMessage, deadline: float) -> Outcome:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect()
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.timeout = left
        if connection.sock is not None:
            connection.sock.settimeout(left)
        path = self._url.path or "/"
        target = f"{path}?{self._url.query}" if self._url.query else path
        connection.request("POST", target, message.delivery.entry.body or b"", self._headers(message))
        response = connection.getresponse()
        excerpt = self._read(connection, response, deadline)
        status = f"{response.status} {response.reason}".strip()
        retry_after = response.getheader("Retry-After")
        if response.will_close or not response.isclosed():
            self._drop()
        if 200 <= response.status < 300:
            return ACK
        reason = f"{status}: {excerpt}" if excerpt else status
        if response.status in (429, 503):
            return Outcome(reason, retry_delay(retry_after, self._retry_delay_s))
        return Outcome(reason)

    def _read(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float
    ) -> str:
        data = b""
        while len(data) < MAX_RESPONSE:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if connection.sock is not None:
                connection.sock.settimeout(left)
            piece = response.read1(MAX_RESPONSE - len(data))
            if not piece:
                break
            data += piece
        return " ".join(data.decode(errors="replace").split())[:MAX_EXCERPT]

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


def check_url(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidSetting(f"--http: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSetting("--http takes an http or https URL")
    return parts


def retry_delay(text: str | None, default_s: float) -> float:
    """Retry-After as seconds: a number, or a date."""
    if text is None:
        return default_s
    try:
        seconds = float(int(text))
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError):
            return default_s
    return min(max(0.0, seconds), MAX_RETRY_AFTER_S)


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
    found = {name: _header_text(value) for name, value in named.items() if value is not None}
    found = {name: text for name, text in found.items() if len(text) <= MAX_HEADER}
    found["Content-Type"] = _CONTENT_TYPES.get(entry.encoding, "application/octet-stream")
    found["User-Agent"] = f"openq-worker/{__version__}"
    return found


def _header_text(value: object) -> str:
    text = str(value)
    return (
        text
        if text.isascii() and text.isprintable()
        else quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~")
    )
