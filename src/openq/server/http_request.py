"""One HTTP request, as handlers see it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .http import HttpConnection
    from .http_stream import HttpStream, StreamSource
    from .stream_login import StreamLogin

log = logging.getLogger("openq.http")

NO_HEADERS: list[tuple[bytes, bytes]] = []  # never changed

Handler = Callable[["HttpRequest"], None]


class HttpRequest:
    """One complete request. The handler answers it exactly once, on the loop."""

    __slots__ = (
        "_connection",
        "_on_answer",
        "_path",
        "body",
        "fields",
        "gone",
        "keep_alive",
        "login",
        "method",
        "on_gone",
        "repeated",
        "target",
        "user",
        "waited",
    )

    def __init__(
        self,
        connection: HttpConnection,
        method: str,
        target: bytes,
        fields: dict[bytes, bytes],
        repeated: list[tuple[bytes, bytes]],
        body: bytes,
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self.method = method
        self.target = target  # as received: signatures cover these bytes
        self.fields = fields  # headers by lower-case name; the first of several
        self.repeated = repeated
        self.body = body
        self.keep_alive = keep_alive
        self._path: str | None = None
        self.login: StreamLogin | None = None  # by a ticket
        self.gone = False  # the client disconnected; a reply is not sent
        self.on_gone: Callable[[], None] | None = None
        self._on_answer: Callable[[int, int], None] | None = None
        self.user = ""  # the authenticated caller, for the log
        self.waited = False  # it waited for a message

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All headers; those of one name in their order."""
        return [*self.fields.items(), *self.repeated]

    def header(self, name: bytes) -> bytes | None:
        return self.fields.get(name)

    @property
    def path(self) -> str:
        """Not percent-decoded: an encoded slash is not a separator."""
        path = self._path
        if path is None:
            path = self._path = self.target.partition(b"?")[0].decode("latin-1")
        return path

    @property
    def query(self) -> str:
        return self.target.partition(b"?")[2].decode("latin-1")

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def peer_port(self) -> int:
        return self._connection.peer_port

    @property
    def is_tls(self) -> bool:
        return self._connection.is_tls

    def answer(self, status: int, body: bytes, content_type: bytes, headers: bytes = b"") -> None:
        """`headers` are further lines, each with its CRLF."""
        if self._on_answer is not None:
            self._on_answer(status, len(body))
        self._connection.answer(self, status, body, content_type, headers)

    def upgrade(self, protocol: asyncio.Protocol, headers: bytes) -> None:
        """Answer 101: the connection speaks another protocol from now on. Only for requests that offered it
        (see `http_upgrade.py`)."""
        if self._on_answer is not None:
            self._on_answer(101, 0)
        self._connection.upgrade(self, protocol, headers)

    def notice_disconnect(self) -> None:
        """From now on a client that closes its half of the connection is `gone`: it does not read a reply."""
        self.on_gone = _ignore

    @property
    def can_upgrade(self) -> bool:
        return self._connection.can_upgrade

    def stream(self, source: StreamSource, content_type: bytes, headers: bytes = b"") -> HttpStream | None:
        """Answer 200 with a body that ends with the connection. None if the client is gone."""
        if self._on_answer is not None:
            self._on_answer(200, 0)
        return self._connection.stream(self, source, content_type, headers)

    def when_answered(self, callback: Callable[[int, int], None]) -> None:
        """Call back, once, with status and size of the reply; status 0: the client left before it."""
        before = self._on_answer

        def answered(status: int, size: int) -> None:
            self._on_answer = None
            callback(status, size)
            if before is not None:
                before(status, size)

        self._on_answer = answered

    def client_gone(self) -> None:
        """Called by the connection: the client disconnected."""
        self.gone = True
        if self._on_answer is not None:
            self._on_answer(0, 0)
        if self.on_gone is not None:
            self.on_gone()

    @property
    def unsent(self) -> int:
        """Bytes of replies that its connection could not send yet."""
        return self._connection.unsent

    def run_guarded(self, work: Callable[..., None], *arguments: object) -> bool:
        """Run `work` now. It answers this request, whose handler has returned. An exception is logged and
        answered with 500; then False is returned."""
        try:
            work(*arguments)
        except Exception:
            log.exception("an answer failed: %s %.200r", self.method, self.target.partition(b"?")[0])
            self._connection.fail(self)
            return False
        return True


def host_of(request: HttpRequest) -> str:
    """The Host header as text; empty for HTTP/1.0 clients without one."""
    value = request.header(b"host")
    return "" if value is None else value.decode("latin-1").strip()


def _ignore() -> None:
    """The code that answers looks at `gone`."""
