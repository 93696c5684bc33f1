"""Queues on a server: one broker per url and user in a process, and waiting by long polls."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..config import secret
from ..model import Delivery, QueueSettings
from .connections import PollConnection
from .feeds import Feed, FeedOptions
from .handle import BrokerHandle, open_shared
from .http import Refused
from .remote import RemoteBroker
from .remote_kv import LongPollKvWait
from .server_api import RECONNECT_S, ServerApi, check_url
from .settings import environment_number, log_changes, merge_settings
from .waiting import ThreadWait

if TYPE_CHECKING:
    from .core import QueueCore

POLL_S = 20.0  # one long poll; a longer wait is several


class LongPollWait(ThreadWait):
    """A wait of a thread: one long poll after the other."""

    __slots__ = ("_connection",)
    _broker: RemoteBroker

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._connection = PollConnection()

    def poll(self) -> list[Delivery]:
        return self._poll(0.0)

    def wait(self, timeout: float | None) -> list[Delivery]:
        self._waits.add(self)
        try:
            self._served = self._wait(timeout)
        except BaseException:
            self.release(self._waits.finish(self))
            raise
        return self._waits.finish(self)

    def _wait(self, timeout: float | None) -> list[Delivery]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            started = time.monotonic()
            left_s = POLL_S if deadline is None else min(max(deadline - started, 0.0), POLL_S)
            deliveries = self._poll(left_s)
            if deliveries and self._ended:
                self.release(deliveries)  # ended while they were on their way
                return []
            now = time.monotonic()
            if deliveries or self._ended or (deadline is not None and now >= deadline):
                return deliveries
            if now - started < left_s / 2:
                self._broker.sleep(0.05)  # an early empty response: the server is about to stop

    def _poll(self, wait_s: float) -> list[Delivery]:
        waiter = self._waiter
        return self._broker.poll(
            self._queue,
            waiter.limit,
            waiter.lease_ms,
            waiter.consumer,
            waiter.wanted,
            wait_s,
            self._connection.use,
        )

    def end(self) -> None:
        self._ended = True
        self._connection.end()


class ServerHandle(BrokerHandle):
    """The broker of one server and one user."""

    broker: RemoteBroker
    wait_class = LongPollWait
    kv_wait_class = LongPollKvWait

    @staticmethod
    def new_feed(core: QueueCore, options: FeedOptions) -> Feed:
        from .stream_feed import StreamFeed  # loads the library for WebSockets

        return StreamFeed(core, options)

    is_remote = is_shared_store = True

    def __init__(self, broker: RemoteBroker, key: str) -> None:
        super().__init__(broker, key)
        broker.handle = self
        self._name = f"{socket.gethostname()[:40]}-{os.getpid()}-{os.urandom(4).hex()}"

    @property
    def where(self) -> str:
        return self.broker.url

    def is_private(self) -> bool:
        return False

    def consumer_label(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _interrupt(self) -> None:
        self.broker.abort()

    def declare(self, name: str, dead_letter: str | None, named: Mapping[str, Any]) -> QueueSettings:
        """Users without permission to inspect can open an existing queue if nothing is to be changed."""
        broker = self.broker
        try:
            stored = broker.stored_settings(name)
        except Refused as refused:
            if refused.code != "forbidden" or named or dead_letter is not None:
                raise
            return QueueSettings()
        if dead_letter is not None and broker.stored_settings(dead_letter) is None:
            broker.declare(dead_letter, merge_settings(None, {}))
        wanted = merge_settings(stored, named)
        if wanted == stored:
            return wanted
        settings = broker.declare(name, wanted, change=True)
        log_changes(name, stored, settings)
        return settings


def open_server(
    url: str, token: str | None = None, ca: str | None = None, reconnect: float | None = None
) -> BrokerHandle:
    """The handle of a server; queue objects with the same url, token, ca and reconnect share it."""
    check_url(url)
    if token is None and "@" not in url:
        token = secret("OPENQ_TOKEN", os.environ)
    ca = ca or os.environ.get("OPENQ_CA") or None
    reconnect_s = environment_number("reconnect", RECONNECT_S) if reconnect is None else reconnect
    key = "\0".join((url, token or "", ca or "", str(reconnect_s)))

    handle = open_shared(key, lambda: ServerHandle(RemoteBroker(ServerApi(url, token, ca, reconnect_s)), key))
    assert isinstance(handle, ServerHandle)
    try:
        # Not inside `open_shared`, whose lock delays other threads that open a queue.
        handle.broker.connect()
    except BaseException:
        handle.leave()
        raise
    return handle
