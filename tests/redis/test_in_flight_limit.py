"""A receive with a limit of messages in flight: the store itself refuses, in the same round trip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from openq.errors import TooManyInFlight
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.redis.broker import RedisBroker
from tests.redis.servers import Server
from tests.redis.test_protocols import ProtocolServer


@pytest.fixture(params=["local", "redis"])
def broker(request: pytest.FixtureRequest, redis_server: Server) -> Iterator[LocalBroker | RedisBroker]:
    made = LocalBroker(None) if request.param == "local" else RedisBroker(redis_server.url, profile="fast")
    with closing(made):
        yield made


@pytest.mark.parametrize("fifo", [False, True])
def test_a_receive_is_refused_while_as_many_are_in_flight(
    broker: LocalBroker | RedisBroker, fifo: bool
) -> None:
    broker.declare("q", QueueSettings(fifo=fifo))
    broker.publish_many("q", [Draft(b"x", group=str(number)) for number in range(5)])

    held = broker.receive("q", 3, max_in_flight=3)
    with pytest.raises(TooManyInFlight):
        broker.receive("q", 1, max_in_flight=3)
    broker.ack("q", [(held[0].entry.seq, held[0].number)])

    assert len(broker.receive("q", 2, max_in_flight=3)) == 2
    assert broker.receive("q", 1) == []


def test_an_sqs_receive_is_one_round_trip(redis_server: Server) -> None:
    with ProtocolServer(redis_server.url) as server:
        url = server.sqs.create_queue(QueueName="orders")["QueueUrl"]
        server.sqs.send_message(QueueUrl=url, MessageBody="x")
        with redis.Redis("127.0.0.1", redis_server.port) as raw, raw.monitor() as monitor:
            assert len(server.sqs.receive_message(QueueUrl=url)["Messages"]) == 1
            redis_server.ask("ECHO", "the end")
            called = []
            for each in monitor.listen():
                if "the end" in each["command"]:
                    break
                words = each["command"].split()
                if words[0] == "FCALL":
                    called.append(words[1].partition("_")[2])

    # `tick` is the upkeep of all queues, which goes on beside it.
    assert [name for name in called if name != "tick"] == ["receive"]
