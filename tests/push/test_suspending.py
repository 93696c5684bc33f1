"""Streams over a broker that waits: nothing is lost, doubled or out of order while others go first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from openq.config import Config
from tests.push.streams import opened
from tests.rest.helpers import Client
from tests.server.in_process import in_process_server
from tests.server.suspending import SuspendingBroker
from tests.waiting import until


@contextmanager
def running() -> Iterator[tuple[SuspendingBroker, str]]:
    broker = SuspendingBroker()
    config = Config(memory=True, drain_timeout_s=1, amqp_port=None)
    with closing(broker), in_process_server(broker, config) as server:
        broker.is_strict = True
        try:
            yield broker, f"http://127.0.0.1:{server.port}"
        finally:
            broker.is_strict = False


def test_pushed_messages_stay_in_order_while_verbs_suspend() -> None:
    with running() as (_, url):
        client = Client(url)
        path = client.queue("q")
        with opened(url) as stream:
            stream.subscribe("q", credit={"messages": 7})
            for start in range(0, 200, 50):
                client.post(f"{path}/messages/batch", [str(i) for i in range(start, start + 50)])
            seen: list[str] = []
            while len(seen) < 200:
                messages = stream.next("deliver")["messages"]
                seen += [each["payload"] for each in messages]
                for message in messages:
                    stream.send("ack", receipts=[message["receipt_id"]])
            assert seen == [str(i) for i in range(200)]
            until(lambda: client.get(path).value["stats"]["in_flight"] == 0)


def test_a_socket_that_dies_while_verbs_suspend_returns_everything() -> None:
    with running() as (broker, url):
        client = Client(url)
        path = client.queue("q")
        for round in range(10):
            with opened(url) as stream:
                stream.subscribe("q", credit={"messages": 5})
                client.post(f"{path}/messages/batch", [f"{round}.{i}" for i in range(10)])
                stream.next("deliver")
                stream.connection.socket.close()
        until(lambda: client.get(path).value["stats"]["ready"] == 100)
        assert broker.stats("q").in_flight == 0
