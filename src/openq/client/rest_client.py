"""Requests to the REST API of one server: kept connections, retries, and what an unanswered request means.

The library, the commands and the pipeline send their requests through a `RestClient`. A request that never
left this process is sent again while `Retries` allows it. One that left and got no response may have been
carried out: it is sent again only if it is idempotent, else `Uncertain` is raised.
"""

from __future__ import annotations

import json as _json
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from ..errors import Closed
from .connections import ConnectionPool
from .http import ClientResponse, HttpClient, Refused, TimedOut, Uncertain, Unreachable

TIMEOUT_S = 30.0
_MAX_IDLE = 32  # connections

Failure = Unreachable | TimedOut | Refused


@lru_cache(1024)
def path_part(name: str) -> str:
    """A name as one part of a path, whatever characters it has."""
    # Proxies resolve "." and ".." in a path.
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def no_failure(url: str, response: ClientResponse) -> Failure | None:
    return None


@dataclass(frozen=True)
class Retries:
    """How long a request is sent again while the server is unreachable or busy. Without arguments: never."""

    total_s: float = 0.0
    first_s: float = math.inf  # the limit until the server has responded once: its address may be wrong
    min_pause_s: float = 0.02
    max_pause_s: float = 1.0
    # The failure that a response stands for, if it is to be sent again: a gateway, a server that stops.
    failure_in: Callable[[str, ClientResponse], Failure | None] = no_failure
    permanent: tuple[str, ...] = ()  # parts of reasons that no retry will change
    explains: bool = True  # the final error says what to do


NO_RETRIES = Retries()


class RestReply(NamedTuple):
    response: ClientResponse | None  # None: called off by `on_connection`
    retried: bool  # an earlier try may have been carried out too


class RestClient:
    """The REST API of one server, from any thread. Can be pickled; a copy opens its own connections."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        ca: str | None = None,
        account: str | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: Retries = NO_RETRIES,
        reached: bool = False,
    ) -> None:
        self.settings: dict[str, Any] = {
            "url": url,
            "token": token,
            "user": user,
            "password": password,
            "ca": ca,
            "timeout_s": timeout_s,
        }
        self.retries = retries
        self._timeout_s = timeout_s
        self._prefix = "/api/v1/" if account is None else f"/api/v1/accounts/{path_part(account)}/"
        self._reached = reached  # the server has responded before
        self._open()

    def _open(self) -> None:
        self._pool = ConnectionPool(self.settings, _MAX_IDLE)
        self._closing = threading.Event()
        self.url = self._pool.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"  # never the token

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_pool", "_closing", "url")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        json: Any = None,
        data: bytes | None = None,
        content_type: str = "application/octet-stream",
        accept: str = "application/json",
        wait_s: float = 0.0,
        timeout_s: float | None = None,
        idempotent: bool = True,
        stop: threading.Event | None = None,
    ) -> ClientResponse:
        """One request and its response. Raises Refused if the server refused it.

        `path` is below /api/v1/ and percent-encoded; values of `query` that are None are left out. `wait_s`
        is how long the server may take on purpose. Once `stop` is set nothing is sent again.
        """
        if json is not None:
            data, content_type = _json.dumps(json, separators=(",", ":")).encode(), "application/json"
        reply = self.send(
            method,
            self.target(path, query),
            data,
            content_type,
            accept=accept,
            timeout_s=(self._timeout_s if timeout_s is None else timeout_s) + wait_s,
            idempotent=idempotent,
            stop=stop,
        )
        assert reply.response is not None
        return reply.response.raise_for_status()

    def new_connection(self) -> HttpClient:
        """A connection of its own, for a stream or another protocol. The caller closes it."""
        return HttpClient(**self.settings)

    def get_text(self, target: str) -> ClientResponse:
        """The response of any target of the server, such as /readyz, whatever its status."""
        response = self.send("GET", target, accept="*/*").response
        assert response is not None
        return response

    def target(self, path: str, query: Mapping[str, object] | None = None) -> str:
        """The request target of a path below /api/v1/."""
        if query is None:
            return self._prefix + path
        given = {name: _query_text(value) for name, value in query.items() if value is not None}
        return self._prefix + path + (f"?{urlencode(given)}" if given else "")

    def send(
        self,
        method: str,
        target: str,
        data: bytes | None = None,
        content_type: str = "application/json",
        *,
        accept: str = "application/json",
        timeout_s: float | None = None,
        idempotent: bool = True,
        retry: bool = True,
        stop: threading.Event | None = None,
        what: str = "it was done",
        on_connection: Callable[[HttpClient | None], bool] | None = None,
    ) -> RestReply:
        """One request to any target of the server, and its response whatever its status.

        `on_connection` is called with the connection before it is used and with None afterwards; it calls
        the request off by returning False. `what` completes "it is not known whether ...".
        """
        retries = self.retries
        sleep = (stop or self._closing).wait
        retried = False
        began = time.monotonic()
        deadline = 0.0
        pause_s = retries.min_pause_s
        while True:
            connection = self._acquire()
            if on_connection is not None and not on_connection(connection):
                self._release(connection)
                return RestReply(None, retried)
            failure: Failure | None
            try:
                response = connection.request(
                    method, target, data, content_type, accept=accept, timeout_s=timeout_s
                )
            except (Unreachable, TimedOut) as error:
                failure = error
            else:
                if on_connection is not None:
                    on_connection(None)
                self._release(connection)
                self._reached = True
                failure = retries.failure_in(self.url, response)
                if failure is None:
                    return RestReply(response, retried)
            if on_connection is not None and not on_connection(None):
                return RestReply(None, retried)
            if self._closing.is_set():
                raise Closed() from None
            retried = retried or failure.sent
            if retried and not idempotent:
                raise Uncertain(self.url, failure.why, what, failure) from None
            now = time.monotonic()
            limit_s = retries.total_s if self._reached else min(retries.total_s, retries.first_s)
            deadline = deadline or now + (limit_s if retry else 0.0)
            is_over = now >= deadline or (stop is not None and stop.is_set())
            if is_over or any(each in failure.why for each in retries.permanent):
                raise _explained(failure, self.url, now - began) if retries.explains else failure from None
            # Spread out, so that a server that comes back is not overrun by all of its clients at once.
            sleep(min(pause_s * random.uniform(0.5, 1.0), deadline - now))
            pause_s = min(pause_s * 2, retries.max_pause_s)

    def sleep(self, seconds: float) -> None:
        """Until the time is over or the client is aborted."""
        self._closing.wait(seconds)

    def _acquire(self) -> HttpClient:
        if self._closing.is_set():
            raise Closed()
        return self._pool.acquire()

    def _release(self, connection: HttpClient) -> None:
        self._pool.release(connection)
        if self._closing.is_set():
            self._pool.close()  # aborted in the meantime

    def abort(self) -> None:
        """Refuse further requests, and end the retries of those under way."""
        self._closing.set()

    def close(self) -> None:
        """Close idle connections. The next request opens one again, unless the client was aborted."""
        self._pool.close()

    def __enter__(self) -> RestClient:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_pool") and self._pool.is_of_this_process:
            self.close()


def _query_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _explained(failure: Failure, url: str, tried_s: float) -> Failure:
    """The same failure with what to do about it."""
    if not isinstance(failure, Unreachable):
        return failure
    why = failure.why if tried_s < 1 else f"{failure.why} (tried for {tried_s:.0f} s)"
    if "nothing listens there" in why:
        why += "; start the server there with `openq serve`, or check url"
    elif "certificate" in why:
        why += "; name its CA with ca= or OPENQ_CA"
    elif failure.hint:
        why += f"; {failure.hint}"
    explained = Unreachable(url, why, failure.hint)
    explained.sent = failure.sent
    return explained
