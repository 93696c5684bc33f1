"""Consumers that select messages, beside messages that they do not want."""

from __future__ import annotations

import queue
from contextlib import closing

import pytest

from openq.broker.waiters import Waiter
from openq.model import Delivery, Draft, MessageFilter, QueueSettings
from openq.redis.broker import RedisBroker
from tests.redis.servers import Server
from tests.waiting import WAIT_S, until

FILTERS = [MessageFilter.of(["paid"]), MessageFilter.of(attributes={"shop": ["eu", "us"]})]


def calls(server: Server) -> int:
    return int(server.ask("INFO", "commandstats").partition("cmdstat_fcall:calls=")[2].partition(",")[0])


@pytest.mark.parametrize("wanted", FILTERS, ids=["types", "attributes"])
def test_a_waiter_hears_its_message_behind_others_and_asks_for_nothing_meanwhile(
    redis_server: Server, wanted: MessageFilter
) -> None:
    for _ in range(4):  # each with a listener that is only just starting
        with closing(RedisBroker(redis_server.url, profile="fast")) as broker:
            broker.declare("q", QueueSettings())
            broker.publish_many("q", [Draft(b"other", type="sent", attributes={"shop": "asia"})] * 20)
            served: queue.Queue[list[Delivery]] = queue.Queue()
            assert broker.add_waiter("q", Waiter(1, None, None, wanted, served.put)) is None
            broker.publish("q", Draft(b"other"))

            known: list[int] = []

            def is_quiet(known: list[int] = known) -> bool:
                known.append(calls(redis_server))
                return known[-1] == known[-2:][0] and len(known) > 1

            until(is_quiet)
            broker.publish("q", Draft(b"mine", type="paid", attributes={"shop": "eu"}))
            [delivery] = served.get(timeout=WAIT_S)
            assert delivery.entry.body == b"mine"
            broker.delete("q")


def test_two_processes_that_select_share_the_messages(redis_server: Server) -> None:
    with (
        closing(RedisBroker(redis_server.url, profile="fast")) as first,
        closing(RedisBroker(redis_server.url, profile="fast")) as second,
    ):
        first.declare("q", QueueSettings())
        drafts = [Draft(b"%d" % number, attributes={"even": number % 2 == 0}) for number in range(600)]
        first.publish_many("q", drafts)
        wanted = MessageFilter.of(attributes={"even": True})
        found = []
        while page := first.receive("q", 7, wanted=wanted) + second.receive("q", 7, wanted=wanted):
            found += [int(delivery.entry.body or b"") for delivery in page]

        assert sorted(found) == list(range(0, 600, 2))
        # An edited message is looked at again, by those who have seen it too.
        [entry] = first.inspect.peek("q")
        second.admin.edit("q", first.inspect.message_id(entry), Draft(b"edited", attributes={"even": True}))
        assert [each.entry.body for each in first.receive("q", wanted=wanted)] == [b"edited"]
