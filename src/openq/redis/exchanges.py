"""Exchanges and bindings: one document that all clients of a store share, cached by the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.routing import Binding, Exchange, ExchangeRouter, Removed
from .publish import Publisher
from .registry import CachedQueue
from .store import RedisStore


class ExchangeAdmin:
    def __init__(self, store: RedisStore, publisher: Publisher) -> None:
        self._store = store
        self._registry = store.registry
        self.route = publisher.route
        self.route_to = publisher.route_to

    def refresh(self) -> bool:
        self._store.refresh()
        return True

    @property
    def router(self) -> ExchangeRouter:
        """The cached exchanges and bindings; read-only, never waits."""
        return self._registry.router

    def declare_exchange(self, exchange: Exchange) -> bool:
        return self._registry.change_router(self._store.calls, lambda router: router.declare(exchange))

    def change_exchange(self, exchange: Exchange) -> None:
        self._registry.change_router(self._store.calls, lambda router: router.change(exchange))

    def delete_exchange(self, name: str, if_unused: bool = False) -> Removed:
        def change(router: Any) -> Removed:
            router.get(name)
            removed: Removed = router.delete(name, if_unused)
            return removed

        return self._registry.change_router(self._store.calls, change)

    def bind(self, binding: Binding) -> bool:
        self._store.refresh()
        if not binding.to_exchange:
            self._store.view(binding.destination)
        return self._registry.change_router(self._store.calls, lambda router: router.bind(binding))

    def unbind(self, binding: Binding) -> Removed:
        def change(router: Any) -> Removed:
            if binding not in router.bindings(binding.source, binding.destination):
                return Removed()
            removed: Removed = router.unbind(binding)
            return removed

        return self._registry.change_router(self._store.calls, change)

    def exchange(self, name: str) -> Exchange:
        if name not in self._registry.router:
            self._store.refresh()  # another client may have created it just now
        return self._registry.router.get(name)

    def list_exchanges(self) -> list[Exchange]:
        self._store.refresh()
        return self._registry.router.exchanges()

    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]:
        self._store.refresh()
        return self._registry.router.bindings(source, destination)

    def routed_queues(
        self, exchange: str, keys: Sequence[str], headers: Mapping[str, object] | None
    ) -> list[CachedQueue]:
        registry = self._registry
        names = registry.router.route(exchange, keys[0], headers)
        for key in keys[1:]:
            names += [name for name in registry.router.route(exchange, key, headers) if name not in names]
        return [registry.queues[name] for name in names if name in registry.queues]
