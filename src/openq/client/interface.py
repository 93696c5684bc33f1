"""The broker that the library uses: in this process, in Redis or behind a server.

It is part of `openq.broker.interface`: a server offers its clients less than a broker offers a server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Protocol

from ..broker.interface import (
    LibraryAdmin,
    LibraryDurability,
    LibraryExchanges,
    LibraryInspect,
    LibraryMessages,
    LibraryQueues,
)
from ..broker.kv import KeyValues
from ..broker.schedules import Schedules
from ..clock import Clock
from ..errors import OpenQError
from ..model import Delivery

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class OnlyInProcess(OpenQError):
    """A call that is not available over the network."""

    code = "only_in_process"


class LibraryBroker(LibraryQueues, LibraryMessages, LibraryDurability, Protocol):
    @property
    def inspect(self) -> LibraryInspect: ...
    @property
    def admin(self) -> LibraryAdmin: ...
    @property
    def exchanges(self) -> LibraryExchanges: ...
    @property
    def kv(self) -> KeyValues: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def observed(self) -> bool: ...  # there are listeners: call `sync` after each change even without a disk
    @property
    def clock(self) -> Clock | None: ...
    def announce(self) -> None: ...
    def tick(self) -> None: ...
    def is_free(self) -> bool: ...  # it can be closed from the garbage collector


class LoopBroker(LibraryBroker, Protocol):
    """A broker whose calls wait. Each event loop uses its own view of it."""

    def on_loop(self, loop: AbstractEventLoop) -> LoopBroker: ...
    def leave_loop(self, loop: AbstractEventLoop) -> None: ...
    def commit_location(self, deliveries: Sequence[Delivery]) -> int | None: ...

    # The fast path of coroutines; None: the call must run in a greenlet.
    def publish_soon(self, queue: str, body: bytes, encoding: int) -> Awaitable[int] | None: ...
    def receive_soon(
        self, queue: str, limit: int, consumer: str | None
    ) -> Awaitable[list[Delivery]] | None: ...
    def ack_soon(self, queue: str, seq: int, number: int) -> Awaitable[None] | None: ...
