"""The way from Spark to a server: calls that may be repeated, and are, while the server is away.

Every call that goes through here does no harm when it arrives twice, so one that got no answer is simply
sent again. A `Link` can be pickled to executors and opens its own connections there; its token is part of
that, but of nothing that people read.
"""

from __future__ import annotations

import json as _json
import os
import random
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from ..client.connections import ConnectionPool
from ..client.http import ClientResponse, Refused, TimedOut, Unreachable

RETRY_S = 60.0
FIRST_RETRY_S = 5.0  # for a server that nobody has reached yet: the address may be wrong
TIMEOUT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_MAX_IDLE = 8
_PERMANENT = ("certificate", "does not speak HTTPS", "is not known", "called off")


class Link:
    """Calls to the REST API of one server, from any thread."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        user: str | None = None,
        timeout: float = TIMEOUT_S,
        *,
        password: str | None = None,
        ca: str | None = None,
        account: str | None = None,
        retry_s: float = RETRY_S,
        reached_before: bool = False,  # as if it had been reached before
    ) -> None:
        self._settings: dict[str, Any] = {
            "url": url,
            "token": token,
            "user": user,
            "password": password,
            "ca": ca or os.environ.get("OPENQ_CA") or None,
            "timeout_s": timeout,
        }
        self._timeout_s = timeout
        self._account = account
        self.retry_s = retry_s
        self._reached = reached_before
        self._open()

    def _open(self) -> None:
        self._pool = ConnectionPool(self._settings, _MAX_IDLE)
        self.url = self._pool.url

    def __repr__(self) -> str:
        return f"Link({self.url!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_pool", "url")}

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
        stop: threading.Event | None = None,
    ) -> ClientResponse:
        """One call, sent again while the server is away or busy; its answer if it was granted.

        `path` is below /api/v1/ and percent-encoded; values of `query` that are None are left out. `wait_s`
        is how long the server may take on purpose. Once `stop` is set nothing is sent again.
        Raises Refused with the server's own words, Unreachable or TimedOut after `retry_s`.
        """
        prefix = "/api/v1/" if self._account is None else f"/api/v1/accounts/{quote(self._account, safe='')}/"
        said = {name: value for name, value in (query or {}).items() if value is not None}
        target = prefix + path + (f"?{urlencode(said)}" if said else "")
        if json is not None:
            data, content_type = _json.dumps(json, separators=(",", ":")).encode(), "application/json"
        stop = stop or threading.Event()
        began = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        while True:
            connection = self._pool.acquire()
            problem: Unreachable | TimedOut | Refused
            try:
                answer = connection.request(
                    method, target, data, content_type, accept=accept, timeout_s=self._timeout_s + wait_s
                )
            except (Unreachable, TimedOut) as error:
                problem = error
            else:
                self._pool.release(connection)
                self._reached = True
                try:
                    return answer.raise_for_status()
                except Refused as refused:
                    if answer.status not in (429, 502, 503, 504):
                        raise
                    problem = refused
            limit_s = self.retry_s if self._reached else min(self.retry_s, FIRST_RETRY_S)
            tried_s = time.monotonic() - began
            if tried_s + pause_s >= limit_s or stop.is_set() or _is_permanent(problem):
                raise _explained(problem, self.url, tried_s) from None
            # Not all at once: a server that comes back is not to be run over by those who waited for it.
            stop.wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_pool") and self._pool.is_of_this_process:
            self.close()

    def close(self) -> None:
        """Close what is idle; the next call opens a connection again."""
        self._pool.close()


def _is_permanent(problem: Unreachable | TimedOut | Refused) -> bool:
    return isinstance(problem, Unreachable) and any(each in problem.why for each in _PERMANENT)


def _explained(
    problem: Unreachable | TimedOut | Refused, url: str, tried_s: float
) -> Unreachable | TimedOut | Refused:
    if isinstance(problem, Refused):
        return problem
    why = problem.why if tried_s < 1 else f"{problem.why} (tried for {tried_s:.0f} s)"
    if "nothing listens" in why:
        why += "; start the server there with `openq serve`, or check url"
    elif "certificate" in why:
        why += "; name its CA"
    elif isinstance(problem, Unreachable) and problem.hint:
        why += f"; {problem.hint}"
    told = Unreachable(url, why)
    told.sent = problem.sent
    return told
