"""Connections to one server, kept for the next request of any thread."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidSetting
from .http import HttpClient, Refused, Unreachable


class ConnectionPool:
    def __init__(self, settings: Mapping[str, Any], max_idle: int) -> None:
        """`settings` are those of an `HttpClient`; raises InvalidSetting if they are not valid."""
        self._settings = settings
        self._max_idle = max_idle
        self._idle: deque[HttpClient] = deque([self._connection()])
        self._process = os.getpid()
        self.url = self._idle[0].url  # without user and password

    def _connection(self) -> HttpClient:
        try:
            return HttpClient(**self._settings)
        except Unreachable as error:
            raise InvalidSetting(f"url: {error.why}") from None  # not the url: it may hold a password
        except Refused as error:
            raise InvalidSetting(error.detail) from None

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child, until it acquires a connection of its own."""
        return self._process == os.getpid()

    def acquire(self) -> HttpClient:
        if not self.is_of_this_process:
            # A forked child must not use the connections of its parent.
            self._process = os.getpid()
            idle, self._idle = self._idle, deque()
            for connection in idle:
                connection.close()
        try:
            return self._idle.pop()
        except IndexError:
            return self._connection()

    def release(self, connection: HttpClient) -> None:
        if connection.aborted or len(self._idle) >= self._max_idle:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close idle connections; the next request opens one again."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                break  # another thread was faster


class PollConnection:
    """The connection of a long poll, which another thread may abort."""

    __slots__ = ("_connection", "_guard", "_is_ended")

    def __init__(self) -> None:
        self._connection: HttpClient | None = None
        self._guard = threading.Lock()
        self._is_ended = False

    def use(self, connection: HttpClient | None) -> bool:
        """False: the poll has ended, and no request may be sent."""
        with self._guard:
            self._connection = connection
            return not self._is_ended

    def end(self) -> None:
        with self._guard:
            self._is_ended = True
            if self._connection is not None:
                self._connection.abort()
