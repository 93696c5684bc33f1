"""Exchanges and bindings: one document that all clients of a store share, cached by the registry."""

from __future__ import annotations

from typing import Any

from ..engine.routing import Binding, Exchange, Removed
from .store import RedisStore


class ExchangeAdmin:
    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._registry = store.registry

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

    def exchanges(self) -> list[Exchange]:
        self._store.refresh()
        return self._registry.router.exchanges()

    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]:
        self._store.refresh()
        return self._registry.router.bindings(source, destination)
