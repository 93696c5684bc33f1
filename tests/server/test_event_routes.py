"""Which events the bindings of `openq.events` want, and which queues must be left out."""

from __future__ import annotations

import random

import pytest

from openq.broker.events import EVENT_NAMES, Event
from openq.engine.routing import EVENTS_EXCHANGE, Binding, Exchange, ExchangeRouter
from openq.errors import ExchangeNotFound, InvalidSetting
from openq.model import QueueSettings
from openq.server.event_routes import LeftOut, exchange_of, routing_key, wanted_events


def router_with(*keys: str) -> ExchangeRouter:
    router = ExchangeRouter()
    for key in keys:
        router.bind(Binding(EVENTS_EXCHANGE, "sink", key=key))
    return router


def test_the_exchange_for_events_is_in_every_account_and_stays() -> None:
    router = ExchangeRouter()
    for name in ("openq.events", "@other/openq.events"):
        assert name in router
        assert router.get(name) == Exchange(name, "topic", internal=True)
        assert router.route(name, "q.acked") == []
        assert not router.declare(Exchange(name, "topic", internal=True))
        with pytest.raises(InvalidSetting):
            router.declare(Exchange(name, "direct"))
        with pytest.raises(InvalidSetting, match="always there"):
            router.delete(name)
        with pytest.raises(InvalidSetting, match="always there"):
            router.change(Exchange(name, "topic", internal=True, alternate="x"))
    assert "@other/else.openq.events" not in router
    with pytest.raises(ExchangeNotFound):
        router.get("openq.events2")


def test_bindings_of_the_exchange_for_events_are_kept_and_go() -> None:
    router = ExchangeRouter()
    bindings = [Binding("openq.events", "a", key="#"), Binding("@other/openq.events", "@other/b", key="q.#")]
    for binding in bindings:
        assert router.bind(binding)
    again = ExchangeRouter()
    again.load(router.dump())

    assert again.bindings() == bindings
    assert again.event_sources() == ["openq.events", "@other/openq.events"]
    assert again.route("@other/openq.events", "q.acked") == ["@other/b"]
    for binding in bindings:
        assert again.unbind(binding)
    assert again.event_sources() == []
    assert [each.name for each in again.exchanges() if "events" in each.name] == ["openq.events"]


def test_routing_keys_have_the_queue_and_the_event() -> None:
    assert (exchange_of("orders"), routing_key("orders", "acked")) == ("openq.events", "orders.acked")
    assert exchange_of("@eu/orders") == "@eu/openq.events"
    assert routing_key("@eu/orders", "acked") == "orders.acked"
    assert (exchange_of(""), routing_key("", "alert")) == ("openq.events", ".alert")


@pytest.mark.parametrize(
    ("keys", "queues", "events"),
    [
        (["#"], (), ()),
        (["orders.#"], ("orders", "orders.*"), ()),
        (["orders.acked"], ("orders",), ("acked",)),
        (["#.dead_lettered", "*.expired"], (), ("dead_lettered", "expired")),
        (["a.acked", "b.*"], ("a", "b"), ()),
    ],
)
def test_only_what_some_binding_wants_is_read(
    keys: list[str], queues: tuple[str, ...], events: tuple[str, ...]
) -> None:
    wanted = wanted_events(router_with(*keys))
    assert (set(wanted.queues), wanted.events) == (set(queues), frozenset(events))


@pytest.mark.parametrize("key", ["", "nonsense", "orders.nonsense"])
def test_a_binding_that_no_event_matches_reads_nothing(key: str) -> None:
    wanted = wanted_events(router_with(key))
    assert not any(wanted.accepts(Event("1", name, 0, "orders")) for name in EVENT_NAMES)


def test_the_filter_accepts_whatever_a_binding_matches() -> None:
    choice = random.Random(7)
    words = ["a", "b", "acked", "*", "#"]
    names = ["a", "b", "a.b", "b.a.a", "acked", "a.acked", ""]
    for _ in range(3000):
        key = ".".join(choice.choices(words, k=choice.randint(1, 4)))
        router = router_with(key)
        wanted = wanted_events(router)
        for queue in names:
            for event in ("acked", "published"):
                if router.route(EVENTS_EXCHANGE, routing_key(queue, event)):
                    assert wanted.accepts(Event("1", event, 0, queue)), (key, queue, event)


def test_queues_that_messages_about_events_reach_are_left_out() -> None:
    router = ExchangeRouter()
    router.declare(Exchange("between", "fanout", alternate="second"))
    router.declare(Exchange("second", "fanout"))
    router.declare(Exchange("dead", "fanout"))
    router.bind(Binding("openq.events", "direct", key="#"))
    router.bind(Binding("openq.events", "between", to_exchange=True, key="#"))
    router.bind(Binding("between", "behind"))
    router.bind(Binding("second", "alternate"))
    router.bind(Binding("dead", "dead-of-behind"))
    router.bind(Binding("dead", "openq.events", to_exchange=True))  # a cycle ends
    settings = {
        "direct": QueueSettings(dead_letter="dead-of-direct"),
        "dead-of-direct": QueueSettings(dead_letter="last"),
        "behind": QueueSettings(dead_letter_exchange="dead"),
        "last": QueueSettings(dead_letter_exchange="", dead_letter_key="by-key"),
    }

    left_out = LeftOut(router, settings.get)

    assert left_out.queues == {
        "direct",
        "behind",
        "alternate",
        "dead-of-direct",
        "dead-of-behind",
        "last",
        "by-key",
    }
    assert "other" not in left_out
    assert "orders.acked" not in left_out


def test_queues_named_like_routing_keys_are_left_out_if_dead_letters_reach_them() -> None:
    settings = {"sink": QueueSettings(dead_letter_exchange="")}
    left_out = LeftOut(router_with("#"), settings.get)
    assert "orders.acked" in left_out
    assert "orders.eu" not in left_out
