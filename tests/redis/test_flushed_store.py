"""A Redis that was emptied (FLUSHALL) under running clients: they go on, their queues empty."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, cast

import pytest

import openq.aio
from openq import OpenQ
from openq.auth.documents import SharedDocument
from openq.auth.store import UserStore
from openq.engine.routing import Binding, Exchange
from openq.errors import QueueNotFound
from openq.model import Draft, QueueSettings
from openq.redis.broker import RedisBroker
from openq.redis.functions import function_name
from openq.redis.net.calls import Calls
from tests.redis.servers import Server
from tests.redis.test_protocols import OpenServer, ProtocolServer, open_server  # noqa: F401 (a fixture)
from tests.waiting import until

Opened = Callable[[], RedisBroker]
SETTINGS = QueueSettings(visibility_ms=7_000)


@pytest.fixture
def opened(redis_server: Server) -> Iterator[Opened]:
    """Opens brokers; they are closed also after a test that fails, which must not disturb the next one."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(RedisBroker(redis_server.url, profile="fast")))


FIRST: dict[str, Callable[[RedisBroker], object]] = {
    "listed": lambda broker: broker.queues(),
    "asked about": lambda broker: broker.settings("q"),
    "counted": lambda broker: broker.stats("q"),
    "published to": lambda broker: broker.publish("q", Draft(b"x")),
    "received from": lambda broker: broker.receive("q", 10),
    "declared": lambda broker: broker.declare("q", SETTINGS),
    "looked into": lambda broker: broker.inspect.peek("q", 10),
    "purged": lambda broker: broker.purge("q"),
    "another is asked for": lambda broker: broker.find_queue("nothing") or _refused(broker, "nothing"),
    "another is declared": lambda broker: broker.declare("third", QueueSettings()),
    "an exchange is declared": lambda broker: broker.exchanges.declare_exchange(Exchange("y", "fanout")),
    "time goes on": lambda broker: broker.tick(),
}


def _refused(broker: RedisBroker, queue: str) -> None:
    with pytest.raises(QueueNotFound):
        broker.settings(queue)


@pytest.mark.parametrize("first", FIRST)
def test_whatever_is_asked_first_the_queues_are_there_again(
    redis_server: Server, opened: Opened, first: str
) -> None:
    one, two = opened(), opened()
    one.declare("q", SETTINGS)
    one.declare("other", QueueSettings(fifo=True))
    one.exchanges.declare_exchange(Exchange("x", "topic"))
    one.exchanges.bind(Binding("x", "q", False, "k.*", {}))
    one.publish("q", Draft(b"lost"))
    assert sorted(two.queues()) == ["other", "q"]
    redis_server.ask("FLUSHALL")

    FIRST[first](two)

    for broker in (one, two):
        assert {"other", "q"} <= set(broker.queues())
        assert broker.settings("q") == SETTINGS
        assert broker.settings("other").fifo
        assert [each.destination for each in broker.exchanges.bindings("x", None)] == ["q"]
    two.purge("q")
    one.exchanges.route("x", "k.1", Draft(b"routed"))
    assert [each.entry.body for each in two.receive("q", 10)] == [b"routed"]


def test_emptied_twice_and_by_many_threads_at_once(redis_server: Server, opened: Opened) -> None:
    brokers = [opened() for _ in range(3)]
    for number in range(5):
        brokers[0].declare(f"q{number}", QueueSettings())
    assert all(len(broker.queues()) == 5 for broker in brokers)
    for _ in range(2):
        redis_server.ask("FLUSHALL")
        problems: list[BaseException] = []

        def use(broker: RedisBroker, queue: str, problems: list[BaseException] = problems) -> None:
            try:
                broker.publish(queue, Draft(b"x"))
                assert len(broker.queues()) == 5
            except BaseException as error:
                problems.append(error)

        threads = [
            threading.Thread(target=use, args=(broker, f"q{number}"))
            for broker in brokers
            for number in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert [brokers[1].stats(f"q{number}").ready for number in range(5)] == [3] * 5


class Interrupted:
    """The calls of a broker; once, after the first command that begins with `words`, `then` happens."""

    def __init__(self, calls: Calls, words: tuple[object, ...], then: Callable[[], object]) -> None:
        self._calls = calls
        self._words = words
        self._then: Callable[[], object] | None = then

    def call(self, key: bytes, *command: Any, **options: Any) -> Any:
        reply = self._calls.call(key, *command, **options)
        self._sent(command)
        return reply

    def many(self, commands: Sequence[tuple[bytes, tuple[Any, ...]]], **options: Any) -> list[Any]:
        replies = self._calls.many(commands, **options)
        for _, command in commands:
            self._sent(command)
        return replies

    def _sent(self, command: tuple[Any, ...]) -> None:
        if self._then is not None and command[: len(self._words)] == self._words:
            then, self._then = self._then, None
            then()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calls, name)


def _refresh_and(broker: RedisBroker, *words: object, then: Callable[[], object]) -> None:
    calls = Interrupted(broker.calls, words, then)
    broker.registry.refresh(cast(Calls, calls), always=True)
    assert calls._then is None


MOMENTS: dict[str, tuple[object, ...]] = {
    "after the versions were read": ("HGETALL",),
    "after the documents were read": ("HMGET",),
    "after all was put back": (b"FCALL", function_name("put_documents")),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("restored", [False, True], ids=["by nobody else", "by another"])
def test_emptied_again_while_it_is_put_back(
    redis_server: Server, opened: Opened, moment: str, restored: bool
) -> None:
    broker, other = opened(), opened()
    for number in range(5):
        broker.declare(f"q{number}", SETTINGS)
    broker.exchanges.declare_exchange(Exchange("x", "fanout"))
    broker.exchanges.bind(Binding("x", "q3", False, "", {}))
    broker.cluster.put_document("kept", 0, b"data")
    other.queues()
    redis_server.ask("FLUSHALL")
    if restored:
        assert len(other.queues()) == 5

    _refresh_and(broker, *MOMENTS[moment], then=lambda: redis_server.ask("FLUSHALL"))

    for each in (broker, other):
        assert sorted(each.queues()) == [f"q{number}" for number in range(5)]
        assert each.settings("q1") == SETTINGS
        assert [bound.destination for bound in each.exchanges.bindings("x", None)] == ["q3"]
        assert each.cluster.document("kept")[1] == b"data"
    numbers = [view.number for view in broker.registry.queues.values()]
    assert len(set(numbers)) == len(numbers)
    broker.exchanges.route("x", "", Draft(b"routed"))
    assert [each.entry.body for each in other.receive("q3", 10)] == [b"routed"]


def test_an_overtaken_reply_does_not_remove_a_queue(opened: Opened) -> None:
    broker = opened()
    broker.declare("first", SETTINGS)
    view = broker.registry.queues["first"]

    _refresh_and(broker, "HGETALL", then=lambda: broker.declare("second", SETTINGS))

    assert set(broker.registry.queues) == {"first", "second"}
    assert broker.registry.queues["first"] is view
    assert not view.deleted
    broker.delete("first")
    assert broker.queues() == ["second"]


@pytest.mark.parametrize("others", [False, True], ids=["the same client", "another client"])
def test_an_old_reply_does_not_remove_a_queue_that_was_restored(
    redis_server: Server, opened: Opened, others: bool
) -> None:
    broker, other = opened(), opened()
    broker.declare("first", SETTINGS)
    broker.declare("second", SETTINGS)
    other.queues()

    def empty() -> None:
        redis_server.ask("FLUSHALL")
        if others:
            assert len(other.queues()) == 2
        assert len(broker.queues()) == 2

    _refresh_and(broker, "HGETALL", then=empty)

    assert set(broker.registry.queues) == {"first", "second"}
    broker.publish("second", Draft(b"x"))
    assert other.stats("second").ready == 1


def test_a_receipt_from_before_settles_no_message_from_after(redis_server: Server, opened: Opened) -> None:
    old, new = opened(), opened()
    old.declare("q", QueueSettings())
    old.publish("q", Draft(b"before"))
    [held] = old.receive("q")
    assert new.queues() == ["q"]
    redis_server.ask("FLUSHALL")
    new.publish("q", Draft(b"after"))
    [other] = new.receive("q")

    [refusal] = old.ack("q", [(held.entry.seq, held.number)])

    assert refusal is not None
    assert new.stats("q").in_flight == 1
    assert new.ack("q", [(other.entry.seq, other.number)]) == [None]


def test_users_and_policies_are_there_again_so_that_no_server_opens_itself(
    redis_server: Server, opened: Opened
) -> None:
    broker = opened()
    store = UserStore(place=SharedDocument(broker.cluster, "users", "Redis"))
    store.add_user("boss", password="secret", role="admin")
    redis_server.ask("FLUSHALL")

    broker.queues()

    other = opened()
    [user] = UserStore(place=SharedDocument(other.cluster, "users", "Redis")).users()
    assert user.name == "boss"
    store.set_role("boss", "viewer")  # and they can be changed


def test_the_library_goes_on(redis_server: Server) -> None:
    url = f"{redis_server.url}?profile=fast"
    with OpenQ("jobs", url=url) as sender, OpenQ("jobs", url=url) as worker:
        sender.publish("lost")
        redis_server.ask("FLUSHALL")

        sender.publish("first")

        message = worker.receive(timeout=30)
        assert message is not None
        assert message.body == "first"
        worker.acknowledge(message)
        redis_server.ask("FLUSHALL")
        assert worker.receive(timeout=0) is None
        sender.publish("second")
        message = worker.receive(timeout=30)
        assert message is not None
        assert message.body == "second"


def test_the_library_for_asyncio_goes_on(redis_server: Server) -> None:
    async def main() -> None:
        url = f"{redis_server.url}?profile=fast"
        async with openq.aio.OpenQ("jobs", url=url) as sender, openq.aio.OpenQ("jobs", url=url) as worker:
            await sender.publish("lost")
            redis_server.ask("FLUSHALL")
            await sender.publish("first")
            message = await worker.receive(timeout=30)
            assert message is not None
            assert message.body == "first"

    asyncio.run(main())


def test_servers_go_on_at_every_protocol_and_who_waits_is_served(
    redis_server: Server,
    open_server: OpenServer,  # noqa: F811
) -> None:
    one, two = open_server(), open_server()
    url = one.sqs.create_queue(QueueName="jobs")["QueueUrl"]
    at_two = url.replace(one.server.url, two.server.url)
    with one.channel() as here, two.channel() as there:
        for channel, queue in ((here, "tasks"), (there, "polled")):
            channel.queue_declare(queue, durable=True)
        here.exchange_declare("x", "fanout", durable=True)
        here.queue_bind("tasks", "x")
        got: list[bytes] = []
        there.basic_consume("tasks", lambda *given: got.append(given[3]), auto_ack=True)
        received: list[dict[str, Any]] = []
        polling = threading.Thread(target=lambda: received.append(_poll(two, at_two)))
        polling.start()
        until(lambda: one.rest("GET", "queues/jobs/stats") is not None)
        redis_server.ask("FLUSHALL")

        # The lists first, at the one server; then what the other one was waiting for.
        assert {"jobs", "tasks", "polled"} <= {each["name"] for each in one.rest("GET", "queues")["queues"]}
        assert url in one.sqs.list_queues()["QueueUrls"]
        one.sqs.send_message(QueueUrl=url, MessageBody="by SQS")
        here.basic_publish("x", "", b"by AMQP")
        one.rest("POST", "queues/tasks/messages", {"payload": "by REST"})

        def served() -> bool:
            there.connection.process_data_events(0.05)
            return len(got) == 2

        until(served)
        assert sorted(got) == [b"by AMQP", b"by REST"]
        polling.join(60)
        assert [each["Body"] for each in received[0]["Messages"]] == ["by SQS"]
        assert there.queue_declare("polled", passive=True).method.message_count == 0


def _poll(protocols: ProtocolServer, url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(3):  # a poll that was under way may end empty-handed
        found = protocols.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)
        if found.get("Messages"):
            break
    return found
