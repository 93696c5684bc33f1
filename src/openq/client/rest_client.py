"""The way to a server: connections that are kept and shared by all threads, and what is sent again.

A call that never left this process is sent again, whatever it is, until the server is back or the time
for that (`reconnect`) is over. One that left and got no answer may have been carried out: it is sent
again only where that does no harm, else `Uncertain` says so.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ..errors import Closed, InvalidSetting
from .connections import ConnectionPool
from .documents import parse_error
from .http import ClientResponse, HttpClient, Refused, TimedOut, Uncertain, Unreachable

RECONNECT_S = 30.0
TIMEOUT_S = 30.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0
_MAX_IDLE = 32  # idle connections

_MSGPACK = "application/msgpack"
_OPENQ_MSGPACK = "application/vnd.openq+msgpack"


class RestReply(NamedTuple):
    value: Any
    retried: bool  # an earlier try may have been carried out too


class RestClient:
    def __init__(
        self, url: str, token: str | None = None, ca: str | None = None, reconnect_s: float = RECONNECT_S
    ) -> None:
        settings = {"url": url, "token": token, "ca": ca, "timeout_s": TIMEOUT_S}
        self._pool = ConnectionPool(settings, _MAX_IDLE)
        self._reconnect_s = reconnect_s
        self._closing = threading.Event()
        self.url = self._pool.url

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        queue: str = "",
        message_id: str | None = None,
        idempotent: bool = False,
        wait_for_server: bool = True,
        wait_s: float = 0.0,
        what: str = "it was done",
        on_connection: Callable[[HttpClient | None], bool] | None = None,
    ) -> RestReply:
        """One request to the REST API, with its answer decoded or its problem raised as the error it is.

        `again`: it may be carried out twice. `patient`: wait for a server that is not there. `enter` is
        told of the connection right before it is used, and None when it no longer is; it calls
        everything off by returning False.
        """
        data = None if body is None else _encode(body)
        retried = False
        deadline = 0.0
        pause_s = _MIN_PAUSE_S
        while True:
            connection = self._take()
            if on_connection is not None and not on_connection(connection):
                self._assign_spare(connection)
                return RestReply(None, retried)
            failure: Unreachable | TimedOut
            try:
                answer = connection.request(
                    method,
                    "/api/v1/" + path,
                    data,
                    _MSGPACK,
                    accept=_OPENQ_MSGPACK,
                    timeout_s=TIMEOUT_S + wait_s,
                )
            except (Unreachable, TimedOut) as error:
                failure = error
            else:
                if on_connection is not None:
                    on_connection(None)
                self._assign_spare(connection)
                stopping = _shutting_down(self.url, answer)
                if stopping is None:
                    return RestReply(_decode(answer, queue, message_id), retried)
                failure = stopping
            if on_connection is not None and not on_connection(None):
                return RestReply(None, retried)
            if self._closing.is_set():
                raise Closed() from None
            retried = retried or failure.sent
            if retried and not idempotent:
                raise Uncertain(self.url, failure.why, what) from None
            now = time.monotonic()
            deadline = deadline or now + (self._reconnect_s if wait_for_server else 0.0)
            if now >= deadline:
                raise _with_advice(failure, self.url) from None
            # Not all at once: a server that comes back is not to be run over by those who waited for it.
            self._closing.wait(min(pause_s * random.uniform(0.5, 1.0), deadline - now))
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)

    def sleep(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def _take(self) -> HttpClient:
        if self._closing.is_set():
            raise Closed()
        return self._pool.acquire()

    def _assign_spare(self, connection: HttpClient) -> None:
        self._pool.release(connection)
        if self._closing.is_set():
            self._pool.close()  # closed meanwhile, or in this very moment

    def abort(self) -> None:
        """Whoever waits for a server that is not there gives up."""
        self._closing.set()

    def close(self) -> None:
        self._closing.set()
        self._pool.close()


def _encode(body: object) -> bytes:
    try:
        return msgspec.msgpack.encode(body)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSetting(f"this cannot be sent to a server: {error}") from None


def _decode(answer: ClientResponse, queue: str, message_id: str | None) -> Any:
    if answer.status >= 400:
        try:
            answer.raise_for_status()
        except Refused as refused:
            raise parse_error(refused, queue, message_id) from None
    if not answer.headers.get("content-type", "").endswith("msgpack"):
        raise Refused(answer.status, "not_openq", "what answers there is not an OpenQ server; check url=")
    return msgspec.msgpack.decode(answer.body)


def _shutting_down(url: str, answer: ClientResponse) -> Unreachable | None:
    """A server on its way out, or a proxy in front of one that is gone."""
    if answer.status not in (502, 503, 504):
        return None
    try:
        answer.raise_for_status()
    except Refused as refused:
        if refused.code not in ("error", "closed"):
            return None  # it is there, and says what is wrong
        failure = Unreachable(url, "it is stopping" if refused.code == "closed" else refused.detail)
        # Without a code of ours it was refused at the door.
        failure.sent = refused.code == "closed" or answer.status != 503
        return failure
    return None


def _with_advice(failure: Unreachable | TimedOut, url: str) -> Unreachable | TimedOut:
    if isinstance(failure, TimedOut):
        return failure
    why = failure.why
    if why == "nothing listens there":
        why += "; start the server there with `openq serve`, or check url="
    elif "certificate" in why:
        why += "; name its CA with ca= or OPENQ_CA"
    elif failure.hint:
        why += f"; {failure.hint}"
    explained = Unreachable(url, why, failure.hint)
    explained.sent = failure.sent
    return explained


def check_url(url: str) -> str:
    """Of a server of ours; what looks like something else is said before anybody connects."""
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme in ("amqp", "amqps"):
        raise InvalidSetting(f"url={scheme}://... is not in this version; use http://, https://, or path=")
    if scheme not in ("http", "https"):
        raise InvalidSetting(
            "url must look like http://127.0.0.1:9324, https://queue.example.com or redis://127.0.0.1:6379"
        )
    return url
