"""Queues in Redis or Valkey: one broker per url in a process, shared by its queue objects."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..errors import InvalidSetting, QueueExists, QueueNotFound
from ..model import QueueSettings, check_name
from .handle import BrokerHandle, open_shared_slowly
from .interface import LibraryBroker
from .settings import environment_number, log_changes, merge_settings

if TYPE_CHECKING:
    from ..clock import Clock

_EXTRA = {"hiredis", "greenlet"}


class RedisHandle(BrokerHandle):
    """One Redis server or cluster. Other processes may use it at the same time."""

    is_shared_store = True

    def __init__(self, broker: LibraryBroker, key: str | None, where: str, owned: bool = True) -> None:
        super().__init__(broker, key, owned)
        self._where = where
        self._process = os.getpid()
        self._name = f"{socket.gethostname()[:40]}-{self._process}-{os.urandom(4).hex()}"

    @property
    def where(self) -> str:
        return self._where

    def is_private(self) -> bool:
        return False

    def consumer_label(self, number: int) -> str:
        return f"{self._name}-{number}"

    def declare(self, name: str, dead_letter: str | None, named: Mapping[str, Any]) -> QueueSettings:
        """Write only changes: any number of processes may open the same queue at the same time."""
        check_name(name)
        broker = self.broker
        if dead_letter is not None and self._stored(dead_letter) is None:
            try:
                broker.declare(dead_letter, merge_settings(None, {}))
            except QueueExists:
                pass  # another process created it just now
        stored = self._stored(name)
        settings = merge_settings(stored, named)
        if settings != stored:
            settings = broker.declare(name, settings, change=True)
            broker.sync()
            log_changes(name, stored, settings)
        return settings

    def _stored(self, name: str) -> QueueSettings | None:
        try:
            return self.broker.settings(name)
        except QueueNotFound:
            return None

    def _interrupt(self) -> None:
        # The heartbeat may be waiting for an unreachable Redis; closing the broker ends that wait.
        self.heartbeat.halt()
        if self._owned:
            self.broker.close()

    def _close(self) -> None:
        if os.getpid() == self._process:
            super()._close()
        # Else this is a forked child: threads and connections belong to the parent.


def open_redis(
    url: str, clock: Clock | None = None, ca: str | None = None, reconnect: float | None = None
) -> BrokerHandle:
    """The handle of a Redis; queue objects with the same url share it."""
    try:
        from ..redis.broker import RedisBroker
        from ..redis.net.url import parse
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise InvalidSetting(
            f'a Redis url needs more packages: pip install "openq[redis]" ({error})'
        ) from None
    url = _with_options(url, ca, reconnect)
    where = str(parse(url))
    handle = open_shared_slowly(url, lambda: RedisHandle(RedisBroker(url, clock=clock), url, where))
    if clock is not None and clock is not handle.broker.clock:
        handle.leave()
        raise InvalidSetting(f"{where} is open in this process with another clock")
    return handle


def wrap_redis_broker(broker: LibraryBroker) -> BrokerHandle:
    """A broker that the caller made and will close."""
    return RedisHandle(broker, None, "Redis", owned=False)


def _with_options(url: str, ca: str | None, reconnect: float | None) -> str:
    """The url with the options of keywords and environment; options in the url take precedence."""
    if reconnect is None and os.environ.get("OPENQ_RECONNECT"):
        reconnect = environment_number("reconnect", 0.0)
    given = url.partition("?")[2]
    for name, value in (("ca", ca or os.environ.get("OPENQ_CA")), ("reconnect", reconnect)):
        if value is not None and value != "" and f"{name}=" not in given:
            url += f"{'&' if '?' in url else '?'}{name}={quote(str(value), safe='')}"
    return url
