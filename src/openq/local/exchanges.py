"""Exchanges and bindings of the local broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..engine import admin
from ..engine.queue import QueueState
from ..engine.routing import Binding, Exchange, ExchangeRouter, Removed
from ..errors import OpenQError
from ..model import Draft
from .core import BrokerCore


class LocalExchanges:
    """The `Exchanges` role of the local broker."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._engine = core.engine
        self._lock = core.lock
        self._guard = core.guard

    def declare_exchange(self, exchange: Exchange) -> bool:
        with self._lock, self._guard:
            if exchange.name not in self._engine.router:
                self._core.require_settings_room(exchange.arguments)
            return admin.declare_exchange(self._engine, exchange, self._core.now_ms())

    def change_exchange(self, exchange: Exchange) -> None:
        """Set another alternate or other arguments; bindings stay."""
        with self._lock, self._guard:
            self._core.require_settings_room(exchange.arguments)
            admin.change_exchange(self._engine, exchange, self._core.now_ms())

    def delete_exchange(self, name: str, if_unused: bool = False) -> Removed:
        """Returns what was removed with it, including auto-delete exchanges that lost their last binding."""
        with self._lock, self._guard:
            return admin.delete_exchange(self._engine, name, self._core.now_ms(), if_unused)

    def bind(self, binding: Binding) -> bool:
        with self._lock, self._guard:
            if binding not in self._engine.router.bindings(binding.source, binding.destination):
                self._core.require_settings_room(binding.arguments)
            return admin.bind(self._engine, binding, self._core.now_ms())

    def unbind(self, binding: Binding) -> Removed:
        """Returns what was removed; empty (false) if there was no such binding."""
        with self._lock, self._guard:
            return admin.unbind(self._engine, binding, self._core.now_ms())

    def refresh(self) -> bool:
        return False  # no other process changes them

    def route(self, exchange: str, key: str, draft: Draft) -> tuple[str, list[str]]:
        with self._lock, self._guard:
            self._core.check_open()
            self._core.require_body_room(len(draft.body))
            answer = self._engine.route(exchange, key, draft, self._core.now_ms())
            self._core.end_change()
            return answer

    def route_to(self, queues: Sequence[str], draft: Draft) -> tuple[str, list[str], OpenQError | None]:
        """Publish into all of these queues as one record.

        Returns the id, the queues reached, and the error of a full one.
        """
        with self._lock, self._guard:
            self._core.check_open()
            self._core.require_body_room(len(draft.body))
            answer = self._engine.route_to(queues, draft, self._core.now_ms())
            self._core.end_change()
            return answer

    @property
    def router(self) -> ExchangeRouter:
        """Read only, without the lock: for protocols that route every message."""
        return self._engine.router

    def exchange(self, name: str) -> Exchange:
        with self._lock:
            return self._engine.router.get(name)

    def list_exchanges(self) -> list[Exchange]:
        with self._lock:
            return self._engine.router.exchanges()

    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]:
        """In the order of binding; `destination` is a queue or an exchange."""
        with self._lock:
            return self._engine.router.bindings(source, destination)

    def routed_queues(
        self, exchange: str, keys: Sequence[str], headers: Mapping[str, object] | None
    ) -> list[QueueState]:
        """The queues to which these keys lead now, without the lock.

        For protocols that route every message.
        """
        engine = self._engine
        names = engine.router.route(exchange, keys[0], headers)
        for key in keys[1:]:
            names += [name for name in engine.router.route(exchange, key, headers) if name not in names]
        return [queue for queue in map(engine.queues.get, names) if queue is not None]
