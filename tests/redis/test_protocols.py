"""SQS, AMQP and REST before a Redis; and two servers that share one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import Any
from urllib.parse import quote

import boto3
import pika
import pytest
from botocore.config import Config as BotoConfig
from pika.adapters.blocking_connection import BlockingChannel

from openq.amqp.policies import Policies, Policy
from openq.auth.documents import SharedDocument
from openq.auth.store import UserStore
from openq.redis.broker import RedisBroker
from tests.amqp.management_fields import Api
from tests.amqp.raw_client import RawClient, error_of
from tests.real_clients import boto
from tests.redis.servers import FORCED, Server, replicated, single
from tests.serving import Served, free_port
from tests.waiting import until


class ProtocolServer:
    """One `openq serve --store`, with a client of each kind."""

    def __init__(self, url: str, profile: str = "fast") -> None:
        self.amqp_port = free_port()
        arguments = ["--store", url, "--profile", profile, "--amqp-port", str(self.amqp_port)]
        self.server = Served(arguments, free_port())

    def wait(self) -> ProtocolServer:
        self.server.wait()
        return self

    def close(self) -> None:
        self.server.stop()
        if "sqs" in self.__dict__:
            self.sqs.close()

    def __enter__(self) -> ProtocolServer:
        try:
            return self.wait()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def rest(self, method: str, path: str, body: object = None) -> Any:
        status, answer = self.ask(method, path, body)
        assert status < 300, answer
        return answer

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.server.url}/api/v1/{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    @cached_property
    def sqs(self) -> Any:
        return boto3.client(
            "sqs",
            "us-east-1",
            endpoint_url=self.server.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=BotoConfig(retries={"total_max_attempts": 1}),
        )

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp_port))

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        connection = self.connect()
        try:
            yield connection.channel()
        finally:
            with suppress(pika.exceptions.AMQPError):
                connection.close()


OpenServer = Callable[[], ProtocolServer]


@pytest.fixture
def open_server(redis_server: Server) -> Iterator[OpenServer]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(ProtocolServer(redis_server.url))


@pytest.fixture
def protocols(open_server: OpenServer) -> ProtocolServer:
    return open_server()


def test_each_region_has_queues_of_its_own(protocols: ProtocolServer) -> None:
    west = boto.client(protocols.server.url, region="eu-west-1")
    own_url, west_url = (sqs.create_queue(QueueName="orders")["QueueUrl"] for sqs in (protocols.sqs, west))

    west.send_message(QueueUrl=west_url, MessageBody="west")

    assert "Messages" not in protocols.sqs.receive_message(QueueUrl=own_url)
    [message] = west.receive_message(QueueUrl=own_url)["Messages"]  # a URL that tells no region
    assert message["Body"] == "west"
    west.delete_message(QueueUrl=west_url, ReceiptHandle=message["ReceiptHandle"])
    assert west.list_queues()["QueueUrls"] == [west_url]
    assert protocols.sqs.list_queues()["QueueUrls"] == [own_url]
    [queue] = protocols.rest("GET", "accounts/eu-west-1.000000000000/queues")["queues"]
    assert queue["name"] == "orders"
    west.close()


@pytest.fixture
def pair(redis_server: Server) -> Iterator[tuple[ProtocolServer, ProtocolServer]]:
    with ProtocolServer(redis_server.url) as one, ProtocolServer(redis_server.url) as two:
        yield one, two


def taken(channel: BlockingChannel, queue: str, count: int, **more: Any) -> list[bytes]:
    found: list[bytes] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=10, **more):
        assert method is not None, found
        found.append(body)
        if not more.get("auto_ack"):
            channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


# -- each protocols


def test_sqs(protocols: ProtocolServer) -> None:
    sqs = protocols.sqs
    url = sqs.create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
    sent = sqs.send_message(QueueUrl=url, MessageBody="hello")
    batch = [{"Id": str(number), "MessageBody": f"b{number}"} for number in range(10)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=batch)["Successful"]) == 10

    received: list[dict[str, Any]] = []
    while len(received) < 11:
        received += sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)["Messages"]

    assert [each["Body"] for each in received] == ["hello", *(f"b{number}" for number in range(10))]
    assert received[0]["MessageId"] == sent["MessageId"]
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=received[0]["ReceiptHandle"], VisibilityTimeout=0
    )
    again = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"][0]
    assert again["MessageId"] == sent["MessageId"]
    for each in (again, *received[1:]):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert set(counts.values()) == {"0"}


def test_a_long_poll_is_served_by_a_send(protocols: ProtocolServer) -> None:
    sqs = protocols.sqs
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    received: list[str] = []

    def poll() -> None:
        found = protocols.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)
        received.extend(each["Body"] for each in found.get("Messages", ()))

    waiting = threading.Thread(target=poll)
    waiting.start()
    until(lambda: b"openq_long_polls 1" in protocols.server.get("/metrics")[1])
    sqs.send_message(QueueUrl=url, MessageBody="now")
    waiting.join(30)

    assert received == ["now"]


def test_fifo_queues_keep_the_order_of_a_group(protocols: ProtocolServer) -> None:
    sqs = protocols.sqs
    url = sqs.create_queue(QueueName="jobs.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    for number in range(6):
        for _ in range(2):  # the second is the first one again
            sqs.send_message(
                QueueUrl=url,
                MessageBody=str(number),
                MessageGroupId="g",
                MessageDeduplicationId=str(number),
            )
    bodies: list[str] = []
    while len(bodies) < 6:
        for each in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=3, WaitTimeSeconds=5)["Messages"]:
            bodies.append(each["Body"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])

    assert bodies == list("012345")


def test_rest(protocols: ProtocolServer) -> None:
    protocols.rest("PUT", "queues/jobs", {"visibility_timeout": 30})
    one = protocols.rest("POST", "queues/jobs/messages", {"payload": {"n": 1}})
    protocols.rest("POST", "queues/jobs/messages", {"payload": {"n": 2}})
    shown = protocols.rest("GET", "queues/jobs/messages?limit=10")["messages"]
    assert [each["payload"] for each in shown] == [{"n": 1}, {"n": 2}]

    got = protocols.rest("POST", "queues/jobs/receive", {"max": 1})["messages"]
    assert (got[0]["id"], got[0]["payload"]) == (one["id"], {"n": 1})
    assert protocols.rest("GET", "queues/jobs/stats")["in_flight"] == 1
    assert protocols.rest("POST", "queues/jobs/ack", {"receipt_id": got[0]["receipt_id"]})["count"] == 1
    assert protocols.rest("GET", "queues/jobs/stats")["ready"] == 1
    assert protocols.rest("GET", "server")["storage"] == "redis"


def test_what_only_a_journal_has_is_refused_with_what_to_use_instead(protocols: ProtocolServer) -> None:
    status, problem = protocols.ask("GET", "history/segments")
    assert (status, problem["code"]) == (501, "not_on_this_store")
    assert problem["detail"]


def test_amqp_publishes_and_consumes_in_order(protocols: ProtocolServer) -> None:
    with protocols.channel() as channel:
        channel.confirm_delivery()
        channel.queue_declare("jobs", durable=True)
        bodies = [f"{number}".encode() for number in range(300)]
        for body in bodies:
            channel.basic_publish("", "jobs", body)
        assert channel.queue_declare("jobs", durable=True, passive=True).method.message_count == 300
        channel.basic_qos(prefetch_count=20)
        assert taken(channel, "jobs", 300) == bodies
        assert channel.queue_declare("jobs", durable=True, passive=True).method.message_count == 0


def test_what_a_channel_had_not_acknowledged_comes_back(protocols: ProtocolServer) -> None:
    with protocols.channel() as channel:
        channel.queue_declare("jobs", durable=True)
        channel.basic_publish("", "jobs", b"one")
        with protocols.channel() as other:
            got = other.basic_get("jobs")
            assert got[2] == b"one"
        again: Any = (None, None, None)

        def is_back() -> bool:
            nonlocal again
            again = channel.basic_get("jobs")
            return again[2] is not None

        until(is_back)
        assert again[0].redelivered
        channel.basic_nack(again[0].delivery_tag, requeue=False)


def test_exchanges_and_dead_letters(protocols: ProtocolServer) -> None:
    with protocols.channel() as channel:
        channel.exchange_declare("events", "topic", durable=True)
        channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("new", durable=True, arguments=arguments)
        channel.queue_declare("all", durable=True)
        channel.queue_bind("new", "events", "order.new")
        channel.queue_bind("all", "events", "order.#")
        channel.confirm_delivery()
        channel.basic_publish("events", "order.new", b"n")
        channel.basic_publish("events", "order.paid", b"p")
        assert taken(channel, "all", 2) == [b"n", b"p"]
        got = channel.basic_get("new")
        channel.basic_reject(got[0].delivery_tag, requeue=False)
        assert taken(channel, "dead", 1) == [b"n"]


def test_a_consumer_that_never_acknowledges(protocols: ProtocolServer) -> None:
    with protocols.channel() as channel:
        channel.queue_declare("jobs", durable=True)
        channel.confirm_delivery()
        for number in range(50):
            channel.basic_publish("", "jobs", b"%d" % number)
        assert len(taken(channel, "jobs", 50, auto_ack=True)) == 50
        until(lambda: protocols.rest("GET", "queues/jobs/stats")["in_flight"] == 0)
        assert protocols.rest("GET", "queues/jobs/stats")["ready"] == 0


def test_messages_go_from_protocol_to_protocol(protocols: ProtocolServer) -> None:
    url = protocols.sqs.create_queue(QueueName="jobs")["QueueUrl"]
    protocols.sqs.send_message(QueueUrl=url, MessageBody="by sqs")
    with protocols.channel() as channel:
        assert taken(channel, "jobs", 1) == [b"by sqs"]
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"by amqp")
    got = protocols.rest("POST", "queues/jobs/receive", {"max": 1, "wait": 5})["messages"]
    assert got[0]["payload"] == "by amqp"


# -- two servers


def test_what_is_sent_through_one_server_is_received_through_the_other(
    pair: tuple[ProtocolServer, ProtocolServer],
) -> None:
    one, two = pair
    one.sqs.create_queue(QueueName="jobs")
    url = two.sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
    received: list[str] = []

    def poll() -> None:
        while len(received) < 20:
            found = two.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10, MaxNumberOfMessages=10)
            for each in found.get("Messages", ()):
                received.append(each["Body"])
                one.sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])

    polling = threading.Thread(target=poll)
    polling.start()
    for number in range(20):
        one.sqs.send_message(QueueUrl=url, MessageBody=str(number))
    polling.join(60)

    assert received == [str(number) for number in range(20)]
    assert one.rest("GET", "queues/jobs/stats")["in_flight"] == 0


def test_a_consumer_hears_of_what_the_other_server_took(pair: tuple[ProtocolServer, ProtocolServer]) -> None:
    one, two = pair
    with one.channel() as sending, two.channel() as receiving:
        sending.queue_declare("jobs", durable=True)
        sending.exchange_declare("fan", "fanout", durable=True)
        receiving.queue_bind("jobs", "fan", "")
        sending.confirm_delivery()
        for number in range(50):
            sending.basic_publish("fan", "", b"%d" % number)
        assert taken(receiving, "jobs", 50) == [b"%d" % number for number in range(50)]


def test_exclusive_queues_are_their_connections_own_on_all_servers(
    pair: tuple[ProtocolServer, ProtocolServer],
) -> None:
    one, two = pair
    with two.channel() as other:
        owner = one.connect()
        owner.channel().queue_declare("mine", exclusive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as locked:
            other.queue_declare("mine", passive=True)
        assert locked.value.reply_code == 405
        owner.close()
    until(lambda: two.ask("GET", "queues/mine")[0] == 404)


def test_a_queue_goes_with_its_last_consumer_wherever_that_is(
    pair: tuple[ProtocolServer, ProtocolServer],
) -> None:
    one, two = pair
    first, second = one.connect(), two.connect()
    here, there = first.channel(), second.channel()
    here.queue_declare("brief", durable=True, auto_delete=True)
    here.basic_consume("brief", lambda *_: None)
    there.basic_consume("brief", lambda *_: None)
    until(lambda: there.queue_declare("brief", passive=True).method.consumer_count == 2)

    first.close()
    assert two.rest("GET", "queues/brief")["name"] == "brief"
    second.close()
    until(lambda: one.ask("GET", "queues/brief")[0] == 404)


def test_a_server_that_starts_leaves_alone_what_belongs_to_another(open_server: OpenServer) -> None:
    one = open_server()
    with one.channel() as channel:
        channel.queue_declare("mine", exclusive=True)
        channel.queue_declare("brief", durable=False)
        channel.exchange_declare("passing", "fanout")
        open_server()
        channel.queue_declare("mine", passive=True)
        channel.queue_declare("brief", passive=True)
        channel.exchange_declare("passing", passive=True)


def test_what_was_not_to_outlive_a_server_goes_with_the_next_start(open_server: OpenServer) -> None:
    one = open_server()
    with one.channel() as channel:
        channel.queue_declare("brief", durable=False)
        channel.queue_declare("kept", durable=True)
        channel.exchange_declare("passing", "fanout")
    one.close()
    two = open_server()
    assert [each["name"] for each in two.rest("GET", "queues")["queues"]] == ["kept"]
    assert two.ask("GET", "exchanges/passing")[0] == 404


def test_a_queue_that_one_server_deletes_cancels_consumers_of_the_other(
    pair: tuple[ProtocolServer, ProtocolServer],
) -> None:
    one, two = pair
    connection = two.connect()
    channel = connection.channel()
    one.rest("PUT", "queues/jobs")
    cancelled: list[object] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume("jobs", lambda *_: None)
    one.rest("DELETE", "queues/jobs")

    def is_cancelled() -> bool:
        connection.process_data_events(0.1)
        return bool(cancelled)

    until(is_cancelled)
    connection.close()


def test_users_and_policies_are_those_of_all_servers(
    redis_server: Server, pair: tuple[ProtocolServer, ProtocolServer]
) -> None:
    one, two = pair
    request = urllib.request.Request(
        f"{one.server.url}/api/policies/%2F/short",
        json.dumps({"pattern": "^short", "definition": {"max-length": 1}}).encode(),
        method="PUT",
    )
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status in (201, 204)
    tries = iter(range(1000))

    def is_in_force() -> bool:
        with two.channel() as channel:
            name = f"short-{next(tries)}"
            channel.confirm_delivery()
            channel.queue_declare(name, durable=True)
            for _ in range(3):
                channel.basic_publish("", name, b"x")
            return bool(channel.queue_declare(name, passive=True).method.message_count == 1)

    until(is_in_force)

    arguments = ["user", "add", "root", "--role", "admin", "--store", f"{redis_server.url}?profile=fast"]
    added = subprocess.run(
        [sys.executable, "-m", "openq", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert added.returncode == 0, added.stderr
    for each in pair:
        until(lambda each=each: each.ask("GET", "queues")[0] == 401)


def test_two_who_change_the_same_document_at_once_lose_nothing(redis_server: Server) -> None:
    with ExitStack() as stack:
        brokers = [RedisBroker(redis_server.url, profile="fast") for _ in range(2)]
        for broker in brokers:
            stack.callback(broker.close)
        stores = [UserStore(place=SharedDocument(broker.cluster, "users", "the users")) for broker in brokers]
        policies = [Policies(None, broker.cluster) for broker in brokers]

        def change(number: int) -> None:
            for each in range(10):
                stores[number].add_user(f"u{number}-{each}")
                policies[number].set(Policy("/", f"p{number}-{each}", "^x", {"max-length": each}))
                policies[number].save()

        threads = [threading.Thread(target=change, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for store, own in zip(stores, policies, strict=True):
            store.refresh()
            own.refresh()
            assert {user.name for user in store.users()} == {f"u{n}-{m}" for n in range(2) for m in range(10)}
            assert {each.name for each in own.all()} == {f"p{n}-{m}" for n in range(2) for m in range(10)}


# -- what a store promises, and when it goes away


def test_with_the_safe_profile_answers_wait_for_the_copies() -> None:
    with replicated(1, *FORCED) as redis, ProtocolServer(redis.url, "safe") as protocols:
        url = protocols.sqs.create_queue(QueueName="jobs")["QueueUrl"]
        protocols.sqs.send_message(QueueUrl=url, MessageBody="by sqs")
        protocols.rest("POST", "queues/jobs/messages", {"payload": "by rest"})
        with protocols.channel() as channel:
            channel.confirm_delivery()
            for number in range(20):
                channel.basic_publish("", "jobs", b"%d" % number)
            bodies = [b"by sqs", b"by rest", *(b"%d" % number for number in range(20))]
            assert taken(channel, "jobs", 22) == bodies


def test_the_safe_profile_refuses_a_redis_that_forgets(redis_server: Server) -> None:
    protocols = ProtocolServer(redis_server.url, "safe")
    with pytest.raises(
        AssertionError, match=f"redis-cli -h 127.0.0.1 -p {redis_server.port} config set appendonly yes"
    ):
        protocols.__enter__()


def test_servers_resume_by_themselves_when_redis_was_unreachable() -> None:
    with single(*FORCED) as redis, ProtocolServer(redis.url) as protocols:
        url = protocols.sqs.create_queue(QueueName="jobs")["QueueUrl"]
        protocols.sqs.send_message(QueueUrl=url, MessageBody="before")
        redis.kill9()
        assert protocols.server.get("/livez")[0] == 200
        redis.start()
        received: list[str] = []

        def is_received() -> bool:
            with suppress(Exception):
                found = protocols.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)
                received.extend(each["Body"] for each in found.get("Messages", ()))
            return bool(received)

        until(is_received)
        assert received == ["before"]


def test_deliveries_of_a_connection_return_after_redis_was_unreachable() -> None:
    with single(*FORCED) as redis, ProtocolServer(redis.url) as protocols:
        holder = protocols.connect()
        channel = holder.channel()
        channel.queue_declare("jobs", durable=True)
        channel.confirm_delivery()
        for number in range(10):
            channel.basic_publish("", "jobs", b"%d" % number)
        held = [channel.basic_get("jobs")[2] for _ in range(10)]
        redis.kill9()
        holder._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises(pika.exceptions.AMQPError):
            holder.process_data_events(30)
        redis.start()
        got: list[bytes] = []

        def has_all() -> bool:
            with suppress(pika.exceptions.AMQPError), protocols.channel() as again:
                while (found := again.basic_get("jobs", auto_ack=True))[2] is not None:
                    got.append(found[2])
            return len(got) == len(held)

        until(has_all, seconds=90)
        assert sorted(got) == sorted(held)


def test_without_a_store_and_with_two_places_the_command_line_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "openq", "serve", "--store", "redis://127.0.0.1:1", "--memory"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "contradict" in done.stderr


def test_users_and_permissions_of_the_management_api_count_on_every_server(
    pair: tuple[ProtocolServer, ProtocolServer],
) -> None:
    one, two = (Api(protocols.server.url) for protocols in pair)
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert one("PUT", "/api/users/boss", {"tags": "administrator", "password": "secret"})[0] == 201
    one, two = (Api(protocols.server.url, "boss", "secret") for protocols in pair)
    until(lambda: two("GET", "/api/whoami")[0] == 200)
    assert one("PUT", "/api/users/ann", {"tags": "", "password": "secret"})[0] == 201
    assert one("PUT", "/api/vhosts/shop", {})[0] == 201
    assert one("PUT", "/api/permissions/shop/ann", everything)[0] == 201
    until(lambda: two("GET", "/api/permissions/shop/ann")[0] == 200)
    with RawClient(pair[1].amqp_port, user="ann", password="secret", vhost="shop") as ann:
        ann.declare("q")
        [mine] = two("GET", "/api/connections")[1]

        assert two("DELETE", f"/api/connections/{quote(mine['name'], safe='')}")[0] == 204

        assert "'reply_code': 320" in error_of(ann.next)
    policy = {"pattern": "^q$", "definition": {"max-length": 5}}
    assert one("PUT", "/api/policies/shop/p", policy)[0] == 201
    assert one("DELETE", "/api/policies/shop/p")[0] == 204
    assert one("DELETE", "/api/permissions/shop/ann")[0] == 204
    assert one("DELETE", "/api/users/ann")[0] == 204
    until(lambda: two("GET", "/api/users/ann")[0] == 404)
