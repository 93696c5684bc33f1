"""Event streams of several servers on one Redis: any of them continues what another one began."""

from __future__ import annotations

import random
from contextlib import closing, suppress
from threading import Thread

import pika

from openq import OpenQ
from openq.broker import events as e
from openq.broker.events import EventFilter
from openq.errors import StoreError
from openq.model import Draft, QueueSettings
from openq.redis.broker import RedisBroker
from tests.events.shared import EVERYTHING, read_all, receipt
from tests.events.sse import Block, EventStream
from tests.protocol_clients import RestClient
from tests.redis.servers import FORCED, Server, cluster, sentinel
from tests.serving import Served, free_port
from tests.waiting import until

MESSAGES = 60


def test_a_reader_moves_between_servers_that_are_killed_and_sees_every_event_once(
    redis_server: Server,
) -> None:
    arguments = ["--store", redis_server.url, "--profile", "fast"]
    ports = [free_port(), free_port()]
    servers = [Served(arguments, port) for port in ports]
    with closing(RedisBroker(redis_server.url, profile="fast")) as broker:
        try:
            for server in servers:
                server.wait()
            broker.declare("q", QueueSettings())
            start = broker.events.end()

            def write() -> None:
                for _ in range(MESSAGES):
                    broker.publish("q", Draft(b"x"))
                    broker.ack("q", [receipt(delivery) for delivery in broker.receive("q")])

            writer = Thread(target=write)
            writer.start()
            choice = random.Random(3)
            found: list[Block] = []
            last = start
            while len(found) < 3 * MESSAGES:
                at = choice.randrange(2)
                with EventStream(ports[at], "queues/q/events", Last_Event_ID=last) as stream:
                    taken = stream.take(min(choice.randint(1, 50), 3 * MESSAGES - len(found)))
                found += taken
                last = taken[-1].id
                if choice.random() < 0.3:
                    servers[at].kill()
                    servers[at] = Served(arguments, ports[at]).wait()
            writer.join()

            whole = read_all(broker.events, start, EventFilter(queues=("q",)))
            assert [block.id for block in found] == [event.id for event in whole]
            assert [block.event for block in found] == [event.event for event in whole]
        finally:
            for server in servers:
                server.stop()


def test_consumers_that_join_and_leave_one_server_are_events_on_another(redis_server: Server) -> None:
    amqp_port = free_port()
    arguments = ["--store", redis_server.url, "--profile", "fast"]
    first = Served([*arguments, "--amqp-port", str(amqp_port)], free_port())
    second = Served(arguments, free_port())
    try:
        first.wait()
        RestClient(second.wait().url).make("q")
        with EventStream(second.port, "queues/q/events?events=consumer_joined,consumer_left") as stream:
            stream.started()
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port))
            channel = connection.channel()
            channel.basic_consume("q", lambda *_: None)
            joined = stream.take(1)[0]
            connection.close()
            left = stream.take(1)[0]
        assert (joined.event, left.event) == (e.CONSUMER_JOINED, e.CONSUMER_LEFT)
        assert joined.data["detail"]["protocol"] == "amqp"
    finally:
        first.stop()
        second.stop()


def test_the_library_reads_events_of_other_processes(redis_server: Server) -> None:
    url = f"{redis_server.url}?profile=fast"
    with closing(OpenQ("jobs", url=url)) as reader, closing(OpenQ("jobs", url=url)) as other:
        other.publish("one")
        found = [event.event for event in reader.events(after="oldest", follow=False)]
        assert found == ["queue_created", "published"]


def test_a_failover_behind_sentinels_takes_no_event_back() -> None:
    with sentinel(1, *FORCED) as group, closing(RedisBroker(group.url)) as broker:
        broker.declare("q", QueueSettings())
        broker.sync()
        woken: list[int] = []
        end = broker.events.watch(lambda: woken.append(1))
        after = broker.events.end()
        broker.publish("q", Draft(b"1"))
        broker.sync()
        first = broker.events.read(after, 100, EVERYTHING)
        assert [event.event for event in first.events] == [e.PUBLISHED]

        old = group.master
        old.kill9()
        group.wait_for_another(old)
        until(lambda: _published(broker, b"2"), ignoring=(StoreError,))
        woken.clear()

        whole = read_all(broker.events, after)
        assert whole[0].id == first.events[0].id  # shown before the failover, and still there
        bodies = [event.message.body for event in whole if event.message is not None]
        assert set(bodies) == {b"1", b"2"}
        rest = read_all(broker.events, first.next)
        assert [event.id for event in rest] == [event.id for event in whole[1:]]
        # The new master announces events again.
        until(lambda: woken or (_published(broker, b"2") and woken))
        end()


def _published(broker: RedisBroker, body: bytes) -> bool:
    broker.publish("q", Draft(body))
    broker.sync()
    return True


def test_a_failover_in_a_cluster_takes_no_event_back() -> None:
    with cluster(3, 1, *FORCED) as nodes, closing(RedisBroker(nodes.url)) as broker:
        names = [f"q{number}" for number in range(6)]
        for name in names:
            broker.declare(name, QueueSettings())
        broker.sync()
        after = broker.events.end()
        for name in names:
            broker.publish(name, Draft(b"1"))
        broker.sync()
        first = broker.events.read(after, 100, EVERYTHING)
        assert len(first.events) == len(names)

        old = nodes.masters()[0]
        replicas = nodes.replicas_of(old)
        old.kill9()
        nodes.wait_replaced(old, replicas)
        for name in names:
            with suppress(StoreError):
                broker.publish(name, Draft(b"2"))
                broker.sync()

        whole = read_all(broker.events, after)
        assert [event.id for event in whole[: len(names)]] == [event.id for event in first.events]
        rest = read_all(broker.events, first.next)
        assert [event.id for event in rest] == [event.id for event in whole[len(names) :]]
        assert {event.queue for event in rest} <= set(names)
