"""kombu over AMQP, with py-amqp below it, and py-amqp by itself."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import pytest
from amqp.exceptions import (
    AccessRefused,
    AMQPNotImplementedError,
    ConsumerCancelled,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from kombu import Connection, Consumer, Exchange, Producer, Queue, binding
from kombu.pools import producers

from tests.real_clients.boto import fresh
from tests.waiting import until

TIMEOUT_S = 30


@pytest.fixture
def connection(amqp_port: int) -> Iterator[Connection]:
    with Connection(f"amqp://guest:guest@127.0.0.1:{amqp_port}//") as opened:
        yield opened


@pytest.fixture
def connect(amqp_port: int) -> Iterator[Callable[..., amqp.Connection]]:
    """Connections of py-amqp; those that a test leaves open are closed for it."""
    made: list[amqp.Connection] = []

    def one_more(**more: Any) -> amqp.Connection:
        opened = amqp.Connection(f"127.0.0.1:{amqp_port}", **{"userid": "guest", "password": "guest", **more})
        opened.connect()
        made.append(opened)
        return opened

    yield one_more
    for each in made:
        if each.connected:
            each.close()


def drained(connection: Connection, into: list[Any], count: int) -> None:
    while len(into) < count:
        connection.drain_events(timeout=TIMEOUT_S)


def arrived(queue: Queue, no_ack: bool = True) -> Any:
    """The next message of a queue, which will come."""
    found: list[Any] = []

    def came() -> bool:
        message = queue.get(no_ack=no_ack)
        if message is not None:
            found.append(message)
        return bool(found)

    until(came)
    return found[0]


# -- kombu


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_objects_travel_in_every_serializer(
    connection: Connection, serializer: str, compression: str | None
) -> None:
    queue = Queue(fresh())(connection.channel())
    queue.declare()
    sent = {"list": [1, 2.5, None], "text": "äöü 😀", "deep": {"a": {"b": [True]}}}
    producer = Producer(connection)
    producer.publish(sent, routing_key=queue.name, serializer=serializer, compression=compression)
    got: list[Any] = []

    def take(body: Any, message: Any) -> None:
        message.ack()
        got.append(body)

    with Consumer(connection, [queue], callbacks=[take], accept=[serializer]):
        drained(connection, got, 1)

    assert got == [sent]
    assert queue.get() is None


def test_declarations_make_exchanges_queues_and_bindings(connection: Connection) -> None:
    topic, fanout = Exchange(fresh(), "topic"), Exchange(fresh(), "fanout")
    queue = Queue(fresh(), bindings=[binding(topic, "a.*"), binding(fanout)])
    producer = Producer(connection)
    producer.publish("1", exchange=topic, routing_key="a.b", declare=[queue])
    producer.publish("2", exchange=topic, routing_key="b")
    producer.publish("3", exchange=fanout)
    bound = queue(connection.channel())

    assert [arrived(bound).payload, arrived(bound).payload] == ["1", "3"]
    assert bound.get() is None
    assert bound.purge() == 0
    bound.unbind_from(topic, "a.*")
    assert bound.delete() == 0
    topic(connection.channel()).delete()


def test_a_changed_prefetch_applies_to_existing_consumers(connection: Connection) -> None:
    """Celery changes it while it runs; kombu chooses how by what the server calls itself."""
    queue = Queue(fresh())
    producer = Producer(connection)
    for number in range(10):
        producer.publish(number, routing_key=queue.name, declare=[queue])
    got: list[Any] = []
    with Consumer(
        connection, [queue], callbacks=[lambda body, message: got.append(message)], prefetch_count=2
    ) as consumer:
        drained(connection, got, 2)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.2)

        consumer.qos(prefetch_count=5, apply_global=True)
        got[0].ack()
        got[1].ack()
        drained(connection, got, 4)

    assert [message.payload for message in got[:4]] == [0, 1, 2, 3]


def test_messages_are_requeued_rejected_and_carry_their_headers(connection: Connection) -> None:
    dead = Queue(fresh())
    queue = Queue(
        fresh(),
        message_ttl=60,
        max_priority=5,
        queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name},
    )
    channel = connection.channel()
    dead(channel).declare()
    Producer(connection).publish("x", routing_key=queue.name, headers={"h": [1]}, declare=[queue], priority=3)
    bound = queue(channel)

    first = arrived(bound, no_ack=False)
    first.requeue()
    again = arrived(bound, no_ack=False)
    assert (again.delivery_info["redelivered"], again.headers) == (True, {"h": [1]})
    assert again.properties["priority"] == 3
    again.reject()
    letter = arrived(dead(channel))

    assert letter.headers["x-death"][0]["reason"] == "rejected"
    assert letter.payload == "x"


def test_pools_and_confirms_and_returns(amqp_port: int) -> None:
    queue = Queue(fresh())
    returned: list[Any] = []
    with Connection(
        f"amqp://guest:guest@127.0.0.1:{amqp_port}//", transport_options={"confirm_publish": True}
    ) as connection:
        with producers[connection].acquire(block=True) as producer:
            for number in range(100):
                producer.publish(number, routing_key=queue.name, declare=[queue], retry=True)
            producer.on_return = lambda *given: returned.append(given)
            producer.channel.events["basic_return"].add(producer.on_return)
            producer.publish("lost", routing_key="nobody", mandatory=True)
            if not returned:
                connection.drain_events(timeout=TIMEOUT_S)
            bound = queue(connection.channel())
            assert [arrived(bound).payload for _ in range(100)] == list(range(100))
        producers[connection].force_close_all()

    assert "NO_ROUTE" in str(returned[0])


def test_a_simple_queue_works_as_one_of_the_library(connection: Connection) -> None:
    with connection.SimpleQueue(fresh()) as queue:
        for number in range(3):
            queue.put({"n": number})
        until(lambda: queue.qsize() == 3)
        message = queue.get(timeout=TIMEOUT_S)
        message.ack()
        queue.clear()

        assert message.payload == {"n": 0}


def test_a_closed_connection_is_made_anew(connection: Connection) -> None:
    queue = Queue(fresh())
    producer = Producer(connection)
    producer.publish("1", routing_key=queue.name, declare=[queue], retry=True)
    connection.connection.transport.sock.shutdown(socket.SHUT_RDWR)

    producer.publish(
        "2", routing_key=queue.name, declare=[queue], retry=True, retry_policy={"max_retries": 5}
    )

    bound = queue(connection.channel())
    assert [arrived(bound).payload, arrived(bound).payload] == ["1", "2"]


def test_kombu_calls_a_refused_login_by_its_name(amqp_port: int) -> None:
    with (
        Connection(f"amqp://guest:wrong@127.0.0.1:{amqp_port}//") as connection,
        pytest.raises(AccessRefused, match="Login was refused using authentication mechanism"),
    ):
        connection.connect()


# -- py-amqp


def test_an_immediate_publish_is_refused_as_rabbitmq_refuses_it(
    connect: Callable[..., amqp.Connection],
) -> None:
    channel = connect(confirm_publish=True).channel()

    with pytest.raises(AMQPNotImplementedError) as refused:
        channel.basic_publish_confirm(amqp.Message("x"), routing_key="q", immediate=True)

    assert (refused.value.reply_code, refused.value.reply_text) == (540, "NOT_IMPLEMENTED - immediate=true")
    assert refused.value.method_name == "Basic.publish"


def test_delete_ok_comes_before_the_cancellation_of_own_consumers(
    connect: Callable[..., amqp.Connection],
) -> None:
    connection = connect()
    channel = connection.channel()
    name = fresh()
    channel.queue_declare(name, auto_delete=False)
    channel.basic_consume(name, consumer_tag="mine", callback=lambda message: None)
    channel.basic_publish(amqp.Message("x"), routing_key=name)
    connection.drain_events(timeout=TIMEOUT_S)

    # It would raise what comes first.
    assert channel.queue_delete(name) == 0
    with pytest.raises(ConsumerCancelled):
        connection.drain_events(timeout=TIMEOUT_S)


def test_every_refusal_is_the_exception_that_its_code_asks_for(
    connect: Callable[..., amqp.Connection],
) -> None:
    connection, other = connect(), connect()
    name = fresh()
    connection.channel().queue_declare(name, exclusive=True)
    with pytest.raises(ResourceLocked):
        other.channel().queue_declare(name, passive=True)
    with pytest.raises(NotFound):
        connection.channel().queue_declare("missing", passive=True)
    with pytest.raises(PreconditionFailed):
        connection.channel().queue_declare(name, exclusive=True, auto_delete=False)
    with pytest.raises(AccessRefused):
        connection.channel().exchange_declare("amq.mine", "direct")
    with pytest.raises(AccessRefused):
        connection.channel().queue_bind(name, "", "key")
    with pytest.raises(NotAllowed, match="vhost nowhere not found"):
        connect(virtual_host="nowhere")


def test_an_exclusive_queue_is_never_durable_whatever_is_asked(
    connect: Callable[..., amqp.Connection],
) -> None:
    channel = connect().channel()
    name = fresh()
    channel.queue_declare(name, exclusive=True, durable=True)

    assert channel.queue_declare(name, exclusive=True, durable=False).queue == name
    assert channel.queue_declare(name, exclusive=True, durable=True).queue == name


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_either_mechanism_signs_in(connect: Callable[..., amqp.Connection], mechanism: str) -> None:
    assert connect(login_method=mechanism).connected


def test_transactions_and_recovery(connect: Callable[..., amqp.Connection]) -> None:
    channel = connect().channel()
    name = fresh()
    channel.queue_declare(name, auto_delete=False)
    channel.tx_select()
    channel.basic_publish(amqp.Message("1"), routing_key=name)
    channel.tx_rollback()
    channel.basic_publish(amqp.Message("2"), routing_key=name)
    channel.tx_commit()
    message = channel.basic_get(name)
    channel.basic_recover(requeue=True)
    again = channel.basic_get(name)

    assert (message.body, again.body, again.delivery_info["redelivered"]) == ("2", "2", True)
    channel.basic_ack(again.delivery_tag)
    channel.tx_commit()
    assert channel.basic_get(name) is None


def test_heartbeats_are_answered(connect: Callable[..., amqp.Connection]) -> None:
    connection = connect(heartbeat=60)
    assert connection.heartbeat == 60
    connection.send_heartbeat()
    assert connection.channel().queue_declare("", exclusive=True).queue.startswith("amq.gen-")
