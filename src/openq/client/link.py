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
from .http import Answer, Connection, Refused, TimedOut, Uncertain, Unreachable
from .pool import Pool
from .wire import error_of

RECONNECT_S = 30.0
TIMEOUT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
_KEPT = 32  # idle connections

_MSGPACK = "application/msgpack"
_NATIVE = "application/vnd.openq+msgpack"


class Reply(NamedTuple):
    value: Any
    repeated: bool  # an earlier try may have been carried out too


class Link:
    def __init__(
        self, url: str, token: str | None = None, ca: str | None = None, reconnect_s: float = RECONNECT_S
    ) -> None:
        settings = {"url": url, "token": token, "ca": ca, "timeout_s": TIMEOUT_S}
        self._pool = Pool(settings, _KEPT)
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
        again: bool = False,
        patient: bool = True,
        wait_s: float = 0.0,
        what: str = "it was done",
        enter: Callable[[Connection | None], bool] | None = None,
    ) -> Reply:
        """One request to the REST API, with its answer decoded or its problem raised as the error it is.

        `again`: it may be carried out twice. `patient`: wait for a server that is not there. `enter` is
        told of the connection right before it is used, and None when it no longer is; it calls
        everything off by returning False.
        """
        data = None if body is None else _encode(body)
        repeated = False
        deadline = 0.0
        pause_s = _FIRST_PAUSE_S
        while True:
            connection = self._take()
            if enter is not None and not enter(connection):
                self._give(connection)
                return Reply(None, repeated)
            trouble: Unreachable | TimedOut
            try:
                answer = connection.request(
                    method,
                    "/api/v1/" + path,
                    data,
                    _MSGPACK,
                    accept=_NATIVE,
                    timeout_s=TIMEOUT_S + wait_s,
                )
            except (Unreachable, TimedOut) as error:
                trouble = error
            else:
                if enter is not None:
                    enter(None)
                self._give(connection)
                stopping = _stopping(self.url, answer)
                if stopping is None:
                    return Reply(_read(answer, queue, message_id), repeated)
                trouble = stopping
            if enter is not None and not enter(None):
                return Reply(None, repeated)
            if self._closing.is_set():
                raise Closed() from None
            repeated = repeated or trouble.sent
            if repeated and not again:
                raise Uncertain(self.url, trouble.why, what) from None
            now = time.monotonic()
            deadline = deadline or now + (self._reconnect_s if patient else 0.0)
            if now >= deadline:
                raise _explained(trouble, self.url) from None
            # Not all at once: a server that comes back is not to be run over by those who waited for it.
            self._closing.wait(min(pause_s * random.uniform(0.5, 1.0), deadline - now))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def rest(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def _take(self) -> Connection:
        if self._closing.is_set():
            raise Closed()
        return self._pool.take()

    def _give(self, connection: Connection) -> None:
        self._pool.give(connection)
        if self._closing.is_set():
            self._pool.close()  # closed meanwhile, or in this very moment

    def hang_up(self) -> None:
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


def _read(answer: Answer, queue: str, message_id: str | None) -> Any:
    if answer.status >= 400:
        try:
            answer.checked()
        except Refused as refused:
            raise error_of(refused, queue, message_id) from None
    if not answer.headers.get("content-type", "").endswith("msgpack"):
        raise Refused(answer.status, "not_openq", "what answers there is not an OpenQ server; check url=")
    return msgspec.msgpack.decode(answer.body)


def _stopping(url: str, answer: Answer) -> Unreachable | None:
    """A server on its way out, or a proxy in front of one that is gone."""
    if answer.status not in (502, 503, 504):
        return None
    try:
        answer.checked()
    except Refused as refused:
        if refused.code not in ("error", "closed"):
            return None  # it is there, and says what is wrong
        trouble = Unreachable(url, "it is stopping" if refused.code == "closed" else refused.detail)
        # Without a code of ours it was refused at the door.
        trouble.sent = refused.code == "closed" or answer.status != 503
        return trouble
    return None


def _explained(trouble: Unreachable | TimedOut, url: str) -> Unreachable | TimedOut:
    if isinstance(trouble, TimedOut):
        return trouble
    why = trouble.why
    if why == "nothing listens there":
        why += "; start the server there with `openq serve`, or check url="
    elif "certificate" in why:
        why += "; name its CA with ca= or OPENQ_CA"
    elif trouble.hint:
        why += f"; {trouble.hint}"
    told = Unreachable(url, why, trouble.hint)
    told.sent = trouble.sent
    return told


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
