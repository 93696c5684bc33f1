"""aio-pika: confirms, iterators, transactions, remote calls, and connections that mend themselves."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import (
    AMQPConnectionError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    ProbableAuthenticationError,
    PublishError,
    QueueEmpty,
)
from aio_pika.patterns import RPC, Master

from tests.certificates import make_certificate
from tests.real_clients.boto import fresh
from tests.serving import free_port, served_amqp, start

T = TypeVar("T")
TIMEOUT_S = 30
CARRIED = (
    "headers",
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "app_id",
    "user_id",
)


def play(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(story, TIMEOUT_S))


def address(port: int, login: str = "guest:guest") -> str:
    return f"amqp://{login}@127.0.0.1:{port}/"


@asynccontextmanager
async def opened(port: int, **more: Any) -> AsyncIterator[AbstractChannel]:
    connection = await aio_pika.connect(address(port), **more)
    async with connection:
        yield await connection.channel()


async def taken(queue: AbstractQueue) -> list[str]:
    found = []
    while (message := await queue.get(no_ack=True, fail=False)) is not None:
        found.append(message.body.decode())
    return found


async def first_of(queue: AbstractQueue) -> AbstractIncomingMessage:
    """The next message, which will come."""
    async with queue.iterator(no_ack=True) as messages:
        async for message in messages:
            return message
    raise AssertionError("the consumer was cancelled")


def test_a_publish_is_confirmed_and_consumed_with_everything_it_carries(amqp_port: int) -> None:
    async def story() -> None:
        async with opened(amqp_port) as channel:
            queue = await channel.declare_queue(fresh(), durable=True)
            sent = Message(
                "тело".encode(),
                headers={"a": 1, "list": [1, {"b": None}], "float": 1.5},
                content_type="text/plain",
                content_encoding="utf-8",
                delivery_mode=DeliveryMode.PERSISTENT,
                priority=4,
                correlation_id="c",
                reply_to="r",
                message_id="m",
                type="t",
                app_id="app",
                user_id="guest",
            )

            confirmed = await channel.default_exchange.publish(sent, queue.name)
            got = await first_of(queue)

            assert type(confirmed).__name__ == "Ack"
            assert got.body == sent.body
            for name in CARRIED:
                assert getattr(got, name) == getattr(sent, name), name

    play(story())


def test_an_unroutable_message_is_an_error_or_returned(amqp_port: int) -> None:
    async def story() -> None:
        connection = await aio_pika.connect(address(amqp_port))
        async with connection:
            strict = await connection.channel(on_return_raises=True)
            with pytest.raises(PublishError):
                await strict.default_exchange.publish(Message(b"x"), "nobody")
            lenient = await connection.channel()
            returned = await lenient.default_exchange.publish(Message(b"x"), "nobody")
            assert getattr(returned, "delivery").reply_text == "NO_ROUTE"  # noqa: B009
            assert (
                await lenient.default_exchange.publish(Message(b"x"), "nobody", mandatory=False)
            ) is not None

    play(story())


def test_hundreds_of_publishes_at_once_are_all_confirmed(amqp_port: int) -> None:
    async def story() -> None:
        async with opened(amqp_port) as channel:
            queue = await channel.declare_queue(fresh(), durable=True)
            publish = channel.default_exchange.publish
            await asyncio.gather(*(publish(Message(str(n).encode()), queue.name) for n in range(300)))

            assert await taken(queue) == [str(n) for n in range(300)]

    play(story())


def test_of_many_publishes_at_once_just_those_that_do_not_fit_are_refused(amqp_port: int) -> None:
    async def story() -> None:
        async with opened(amqp_port) as channel:
            arguments = {"x-max-length": 5, "x-overflow": "reject-publish"}
            queue = await channel.declare_queue(fresh(), arguments=arguments)
            publish = channel.default_exchange.publish
            answers = await asyncio.gather(
                *(publish(Message(str(n).encode()), queue.name) for n in range(20)), return_exceptions=True
            )

            refused = [n for n, answer in enumerate(answers) if isinstance(answer, DeliveryError)]
            kept = await taken(queue)
            # RabbitMQ lets a few more in while it spreads the word; neither keeps what it refused.
            assert refused
            assert kept == [str(n) for n in range(20) if n not in refused]

    play(story())


def test_an_iterator_acks_and_requeues_failures(amqp_port: int) -> None:
    async def story() -> None:
        async with opened(amqp_port) as channel:
            await channel.set_qos(prefetch_count=1)
            queue = await channel.declare_queue(fresh())
            for body in ("1", "2", "3"):
                await channel.default_exchange.publish(Message(body.encode()), queue.name)
            seen = []
            async with queue.iterator() as messages:
                async for message in messages:
                    seen.append((message.body.decode(), message.redelivered))
                    try:
                        async with message.process(requeue=True):
                            if seen == [("1", False)]:
                                raise ValueError
                    except ValueError:
                        continue
                    if len(seen) == 4:
                        break

            assert seen == [("1", False), ("1", True), ("2", False), ("3", False)]
            with pytest.raises(QueueEmpty):
                await queue.get()

    play(story())


def test_exchanges_bindings_and_counts(amqp_port: int) -> None:
    async def story() -> None:
        async with opened(amqp_port) as channel:
            topic = await channel.declare_exchange(fresh(), ExchangeType.TOPIC)
            fanout = await channel.declare_exchange(fresh(), ExchangeType.FANOUT, internal=True)
            headers = await channel.declare_exchange(fresh(), ExchangeType.HEADERS)
            queue = await channel.declare_queue("", exclusive=True)
            assert queue.name.startswith("amq.gen-")
            await fanout.bind(topic, "a.#")
            await queue.bind(fanout)
            await queue.bind(headers, arguments={"x-match": "any", "h": True})
            await topic.publish(Message(b"1"), "a.b")
            await topic.publish(Message(b"-"), "b", mandatory=False)
            await headers.publish(Message(b"2", headers={"h": True}), "")
            await headers.publish(Message(b"-", headers={"h": False}), "", mandatory=False)
            again = await channel.declare_queue(queue.name, exclusive=True, passive=True)
            assert again.declaration_result.message_count == 2
            assert await taken(queue) == ["1", "2"]
            await queue.unbind(fanout)
            await topic.publish(Message(b"-"), "a.b", mandatory=False)
            assert (await queue.purge()).message_count == 0
            assert (await queue.delete()).message_count == 0
            await topic.delete()

    play(story())


def test_dead_letters_name_their_queue(amqp_port: int) -> None:
    async def story() -> None:
        async with opened(amqp_port) as channel:
            dead = await channel.declare_queue(fresh())
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
            queue = await channel.declare_queue(fresh(), arguments=arguments)
            publish = channel.default_exchange.publish
            await publish(Message(b"rejected"), queue.name)
            await (await queue.get()).reject(requeue=False)
            rejected = await first_of(dead)
            await publish(Message(b"expired", expiration=0.02), queue.name)
            expired = await first_of(dead)

            [first], [second] = rejected.headers["x-death"], expired.headers["x-death"]  # type: ignore[misc]
            assert (first["reason"], second["reason"]) == ("rejected", "expired")  # type: ignore[index,call-overload]
            assert first["queue"] == queue.name  # type: ignore[index,call-overload]
            assert (rejected.body, expired.body) == (b"rejected", b"expired")

    play(story())


def test_a_transaction_commits_or_forgets(amqp_port: int) -> None:
    async def story() -> None:
        connection = await aio_pika.connect(address(amqp_port))
        async with connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue(fresh())
            publish = channel.default_exchange.publish
            async with channel.transaction():
                await publish(Message(b"1"), queue.name)
                await publish(Message(b"2"), queue.name)
            forgotten = channel.transaction()
            await forgotten.select()
            await publish(Message(b"3"), queue.name)
            await forgotten.rollback()

            assert await taken(queue) == ["1", "2"]

    play(story())


def test_remote_calls_and_their_errors_come_back(amqp_port: int) -> None:
    async def story() -> None:
        async with opened(amqp_port) as channel, opened(amqp_port) as other:
            server, client = await RPC.create(channel), await RPC.create(other)

            async def double(*, value: int) -> int:
                if value < 0:
                    raise ValueError("negative")
                return 2 * value

            name = fresh()
            await server.register(name, double, auto_delete=True)

            assert await asyncio.gather(*(client.call(name, {"value": n}) for n in range(50))) == list(
                range(0, 100, 2)
            )
            with pytest.raises(ValueError, match="negative"):
                await client.call(name, {"value": -1})

    play(story())


def test_a_master_gives_work_to_its_workers(amqp_port: int) -> None:
    async def story() -> None:
        async with opened(amqp_port) as channel:
            master = Master(channel)
            name = fresh()
            done: asyncio.Queue[int] = asyncio.Queue()

            async def work(*, value: int) -> None:
                await done.put(value)

            await master.create_worker(name, work, auto_delete=True)
            for value in range(20):
                await master.create_task(name, {"value": value})

            assert [await done.get() for _ in range(20)] == list(range(20))

    play(story())


def test_errors_have_the_class_that_the_code_asks_for(amqp_port: int) -> None:
    async def story() -> None:
        connection = await aio_pika.connect(address(amqp_port))
        async with connection:
            name = fresh()
            await (await connection.channel()).declare_queue(name)
            with pytest.raises(ChannelNotFoundEntity, match="no queue 'missing' in vhost '/'"):
                await (await connection.channel()).declare_queue("missing", passive=True)
            with pytest.raises(ChannelPreconditionFailed, match="inequivalent arg 'durable'"):
                await (await connection.channel()).declare_queue(name, durable=True)
            await (await connection.channel()).queue_delete(name)
        with pytest.raises(ProbableAuthenticationError):
            await aio_pika.connect(address(amqp_port, login="guest:wrong"))

    play(story())


def test_a_robust_connection_recovers_after_a_server_restart(tmp_path: Path) -> None:
    """With its queues, bindings and consumers; what was confirmed before is there after."""
    port, http = free_port(), free_port()
    name, bound, exchange_name = fresh(), fresh(), fresh()

    async def story() -> None:
        server = await asyncio.to_thread(start(tmp_path, "--amqp-port", str(port), port=http).wait)
        try:
            connection = await aio_pika.connect_robust(address(port), reconnect_interval=0.1)
            async with connection:
                channel = await connection.channel()
                exchange = await channel.declare_exchange(
                    exchange_name, ExchangeType.DIRECT, auto_delete=True
                )
                kept = await channel.declare_queue(name, durable=True)
                lost = await channel.declare_queue(bound, exclusive=True)
                await lost.bind(exchange, "k")
                await channel.default_exchange.publish(Message(b"before"), name)
                arrived: asyncio.Queue[bytes] = asyncio.Queue()

                async def take(message: AbstractIncomingMessage) -> None:
                    await arrived.put(message.body)

                await lost.consume(take, no_ack=True)
                is_back = asyncio.Event()
                connection.reconnect_callbacks.add(lambda *_: is_back.set())

                await asyncio.to_thread(server.kill)
                server = await asyncio.to_thread(start(tmp_path, "--amqp-port", str(port), port=http).wait)
                await is_back.wait()
                await channel.ready()

                await exchange.publish(Message(b"after"), "k")
                assert await arrived.get() == b"after"
                assert await taken(kept) == ["before"]
        finally:
            await asyncio.to_thread(server.stop)

    play(story())


def test_it_works_over_tls(tmp_path: Path) -> None:
    cert, key, trusted = make_certificate(tmp_path)
    secure = free_port()
    flags = ["--tls-cert", str(cert), "--tls-key", str(key), "--amqps-port", str(secure)]

    async def story() -> None:
        context = ssl.create_default_context(cafile=str(trusted))
        connection = await aio_pika.connect(f"amqps://guest:guest@localhost:{secure}/", ssl_context=context)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(fresh())
            body = bytes(500_000)
            await channel.default_exchange.publish(Message(body), queue.name)
            assert (await first_of(queue)).body == body
        with pytest.raises(AMQPConnectionError):
            await aio_pika.connect(f"amqps://guest:guest@localhost:{secure}/")

    with served_amqp(None, *flags):
        play(story())
