"""`openq exchange`."""

from __future__ import annotations

from tests.cli.helpers import Cli
from tests.waiting import until


def test_a_queue_is_bound_listed_and_unbound(cli: Cli, q: str) -> None:
    assert cli("exchange", "bind", "amq.topic", q, "a.#").out == f"{q} bound to amq.topic\n"
    assert cli("exchange", "bind", "amq.topic", q, "a.#").out == f"{q} was bound before to amq.topic\n"
    assert f"{q} (a.#)" in cli("exchange", "ls", "amq.topic").out
    [shown] = [each for each in cli.lines("exchange", "ls") if each["name"] == "amq.topic"]
    assert [each["key"] for each in shown["bindings"] if each["destination"] == q] == ["a.#"]

    assert cli("exchange", "route", "amq.topic", "a.b").out == f"{q}\n"
    assert "no queue" in cli("exchange", "route", "amq.topic", "b.a", code=5).err
    assert cli("exchange", "unbind", "amq.topic", q, "a.#").out == f"{q} unbound from amq.topic\n"
    assert q not in cli("exchange", "ls").out
    cli("exchange", "unbind", "amq.topic", q, "a.#", code=3)
    cli("exchange", "bind", "amq.topic", "no-such-queue", code=3)


def test_an_exchange_is_bound_to_another(cli: Cli) -> None:
    cli("exchange", "bind", "amq.topic", "amq.fanout", "x", "--to-exchange")
    assert "exchange amq.fanout (x)" in cli("exchange", "ls", "amq.topic").out
    cli("exchange", "unbind", "amq.topic", "amq.fanout", "x", "--to-exchange")


def test_events_come_into_a_queue(cli: Cli, q: str) -> None:
    sink = cli.name + "-sink"
    cli("queue", "create", sink)
    cli("exchange", "bind", "openq.events", sink, f"{q}.#")
    cli("send", q, "hello")
    until(lambda: cli.counts(sink) == (1, 0, 0))
    cli("exchange", "unbind", "openq.events", sink, f"{q}.#")
