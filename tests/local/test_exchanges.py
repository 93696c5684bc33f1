"""What a broker tells of its exchanges and bindings, and of what goes away with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from openq.engine.routing import Binding, Exchange
from openq.errors import Closed, ExchangeNotFound
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings


@pytest.fixture
def broker() -> LocalBroker:
    broker = LocalBroker()
    broker.declare("q", QueueSettings())
    for name in ("a", "b"):
        broker.exchanges.declare_exchange(Exchange(name, "fanout", auto_delete=True))
    broker.exchanges.bind(Binding("a", "b", to_exchange=True))
    broker.exchanges.bind(Binding("b", "q"))
    return broker


def test_exchanges_and_bindings_can_be_read(broker: LocalBroker) -> None:
    assert broker.exchanges.exchange("a").auto_delete
    assert broker.exchanges.exchange("@v/").kind == "direct"
    assert {"", "a", "b", "amq.topic"} <= {each.name for each in broker.exchanges.list_exchanges()}
    assert broker.exchanges.bindings("b") == broker.exchanges.bindings(destination="q") == [Binding("b", "q")]
    assert len(broker.exchanges.bindings()) == 2
    with pytest.raises(ExchangeNotFound):
        broker.exchanges.exchange("none")


def test_unbinding_returns_the_exchanges_removed_with_the_binding(broker: LocalBroker) -> None:
    removed = broker.exchanges.unbind(Binding("b", "q"))

    assert [each.name for each in removed.exchanges] == ["b", "a"]
    assert not broker.exchanges.unbind(Binding("a", "q"))


def test_deleting_returns_what_was_removed_with_the_exchange(broker: LocalBroker) -> None:
    removed = broker.exchanges.delete_exchange("b")

    assert [each.name for each in removed.exchanges] == ["b", "a"]
    assert set(removed.bindings) == {Binding("b", "q"), Binding("a", "b", to_exchange=True)}


def test_a_message_for_chosen_queues_is_there_after_a_restart(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    for name in ("a", "b"):
        broker.declare(name, QueueSettings())
    message_id, reached, refused = broker.exchanges.route_to(["a", "b"], Draft(b"x", route=("e", "k")))
    broker.close()
    assert (reached, refused) == (["a", "b"], None)
    with pytest.raises(Closed):
        broker.exchanges.route_to(["a"], Draft(b"x"))

    again = LocalBroker(tmp_path)

    assert [again.inspect.find(name, message_id).body for name in reached] == [b"x", b"x"]
    assert again.inspect.timeline("a", message_id)[0].detail == "through exchange 'e' with key 'k' to a, b"
    alone, _, _ = again.exchanges.route_to(["b"], Draft(b"y", route=("e", "k"), publisher="me"))
    assert again.inspect.timeline("b", alone)[0].detail == "by me, through exchange 'e' with key 'k'"
    again.close()


def test_the_timeline_of_a_refused_message_begins_with_its_death() -> None:
    broker = LocalBroker()
    broker.declare("dead", QueueSettings())
    broker.declare("q", QueueSettings(max_length=0, overflow="reject-dead-letter", dead_letter="dead"))
    broker.exchanges.route_to(["q"], Draft(b"x", id="mine"))

    [step] = broker.inspect.timeline("dead", "mine")

    assert (step.what, step.queue, step.detail) == ("dead-lettered", "q", "to dead (overflow)")
