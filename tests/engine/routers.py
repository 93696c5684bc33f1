"""Routers that the tests of exchanges share."""

from __future__ import annotations

from openq.engine.routing import Binding, Exchange, ExchangeRouter


def router_with(*exchanges: Exchange) -> ExchangeRouter:
    router = ExchangeRouter()
    for exchange in exchanges:
        assert router.declare(exchange)
    return router


def topic_with(*patterns: str) -> ExchangeRouter:
    """An exchange "t" with one queue for each pattern, named like it."""
    router = router_with(Exchange("t", "topic"))
    for pattern in patterns:
        router.bind(Binding("t", pattern, key=pattern))
    return router
