"""The founding contract's rows about AMQP, each by its name; the others are in test_contract.py."""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import pika
import pytest
import trustme
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ProbableAuthenticationError

from openq import OpenQ
from tests.protocol_clients import Protocols, opened
from tests.real_clients.boto import fresh
from tests.serving import free_port, served_amqp
from tests.waiting import until


@pytest.fixture(scope="module")
def protocols() -> Iterator[Protocols]:
    with opened() as found:
        yield found


def run_cli(*words: str, password: str = "") -> None:
    env = {**os.environ, "OPENQ_PASSWORD": password}
    done = subprocess.run(
        [sys.executable, "-m", "openq", *words], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


# -- P1, O2: the clients of others ----------------------------------------------------------------


def test_P1_O2_pika_and_boto3_share_a_queue_without_a_change_to_either(protocols: Protocols) -> None:
    queue = fresh()
    channel = protocols.amqp.channel
    channel.queue_declare(queue, durable=True)
    url = protocols.sqs.client.create_queue(QueueName=queue)["QueueUrl"]

    channel.basic_publish("", queue, "from pika")
    protocols.sqs.client.send_message(QueueUrl=url, MessageBody="from boto3")
    first = protocols.sqs.take(queue)
    second = protocols.amqp.take(queue)

    assert first is not None
    assert second is not None
    assert (first["Body"], second["body"]) == ("from pika", b"from boto3")


# -- O3, O4: who somebody is, and what they may do -------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with users, AMQP with and without TLS; who shows the authority's certificate is believed."""
    folder = tmp_path_factory.mktemp("guarded")
    data = folder / "data"
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    (folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in own.cert_chain_pems))
    (folder / "key.pem").write_bytes(own.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    mine = authority.issue_cert("alice@example.org", common_name="alice")
    mine.private_key_and_cert_chain_pem.write_to_path(str(folder / "alice.pem"))
    run_cli("user", "add", "alice", "--role", "manager", "--password", "--data", str(data), password="secret")
    run_cli("user", "add", "reader", "--password", "--data", str(data), password="secret")
    run_cli("perm", "grant", "reader", "receive", "letters*", "--data", str(data))
    run_cli("user", "add", "sender", "--password", "--data", str(data), password="secret")
    run_cli("perm", "grant", "sender", "send", "own-*", "--data", str(data))
    tls_port = free_port()
    flags = ("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--tls-ca", "authority.pem")
    files = [str(folder / each) if each.endswith(".pem") else each for each in flags]
    with served_amqp(data, *files, "--amqps-port", str(tls_port)) as (server, port):
        yield server, port, tls_port, folder


def sign_in(port: int, user: str, password: str = "secret") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, credentials=credentials, connection_attempts=1)
    )


def test_O3_plain_and_amqplain_and_rest_know_the_same_users(guarded: Any) -> None:
    server, port, _, folder = guarded

    with sign_in(port, "alice") as connection:
        assert connection.is_open
    with amqp.Connection(f"127.0.0.1:{port}", "alice", "secret", login_method="AMQPLAIN") as other:
        assert other.connected
    request = urllib.request.Request(f"https://127.0.0.1:{server.port}/api/v1/queues")
    request.add_header("authorization", "Basic " + base64.b64encode(b"alice:secret").decode())
    context = ssl.create_default_context(cafile=folder / "authority.pem")
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:
        assert answer.status == 200


def test_O3_a_wrong_password_is_refused(guarded: Any) -> None:
    _, port, _, _ = guarded

    with pytest.raises((ProbableAuthenticationError, AMQPConnectionError)):
        sign_in(port, "alice", "guessed")
    with pytest.raises((ProbableAuthenticationError, AMQPConnectionError)):
        sign_in(port, "guest", "guest")


def test_O3_external_the_name_in_a_certificate_is_enough(guarded: Any) -> None:
    _, _, tls_port, folder = guarded
    context = ssl.create_default_context(cafile=folder / "authority.pem")
    context.load_cert_chain(folder / "alice.pem")
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        tls_port,
        ssl_options=pika.SSLOptions(context, "127.0.0.1"),
        credentials=pika.credentials.ExternalCredentials(),
    )

    with pika.BlockingConnection(parameters) as connection:
        name = fresh()
        connection.channel().queue_declare(name, durable=True)
        connection.channel().queue_delete(name)


def test_O4_a_rule_counts_per_queue_and_per_action(guarded: Any) -> None:
    _, port, _, _ = guarded
    letters, others = f"letters-{fresh()}", fresh()
    with sign_in(port, "alice") as alice:
        channel = alice.channel()
        channel.confirm_delivery()
        for queue in (letters, others):
            channel.queue_declare(queue, durable=True)
            channel.basic_publish("", queue, "x")
    with sign_in(port, "reader") as reader:

        def refused(what: Any) -> int:
            channel = reader.channel()
            channel.confirm_delivery()  # so that a publish is answered too
            with pytest.raises(ChannelClosedByBroker) as error:
                what(channel)
            code: int = error.value.reply_code
            return code

        channel = reader.channel()
        _, _, body = channel.basic_get(letters, auto_ack=True)
        assert body == b"x"
        assert refused(lambda each: each.basic_get(others)) == 403
        assert refused(lambda each: each.basic_publish("", letters, "x")) == 403
        assert refused(lambda each: each.queue_declare(f"letters-{fresh()}")) == 403
        assert refused(lambda each: each.queue_purge(letters)) == 403


def test_O4_a_copy_needs_the_same_permission_as_the_message(guarded: Any) -> None:
    _, port, _, _ = guarded
    own, others = f"own-{fresh()}", fresh()
    with sign_in(port, "alice") as alice:
        for queue in (own, others):
            alice.channel().queue_declare(queue, durable=True)
        with sign_in(port, "sender") as sender:
            for header in ("CC", "BCC"):
                channel = sender.channel()
                channel.confirm_delivery()
                channel.basic_publish("", own, "x", pika.BasicProperties(headers={header: [own]}))
                with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
                    channel.basic_publish("", own, "x", pika.BasicProperties(headers={header: [others]}))
        assert alice.channel().queue_declare(others, passive=True).method.message_count == 0


def test_O4_the_policy_of_a_queue_applies_to_amqp_too(guarded: Any) -> None:
    server, port, _, folder = guarded
    queue = f"letters-{fresh()}"
    deny = {"Effect": "Deny", "Principal": "*", "Action": "sqs:ReceiveMessage", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
    with sign_in(port, "alice") as alice, sign_in(port, "reader") as reader:
        alice.channel().queue_declare(queue, durable=True)
        set_policy(server.port, folder, queue, policy)

        with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
            reader.channel().basic_get(queue)


def set_policy(port: int, folder: Path, queue: str, policy: str) -> None:
    import boto3

    from openq.auth.store import UserStore

    key = UserStore(str(folder / "data" / "users.json")).create_key("alice")
    client = boto3.client(
        "sqs",
        "us-east-1",
        endpoint_url=f"https://127.0.0.1:{port}",
        verify=str(folder / "authority.pem"),
        aws_access_key_id=key.id,
        aws_secret_access_key=key.secret,
    )

    def known() -> bool:
        try:
            url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        except client.exceptions.ClientError:
            return False
        client.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        return True

    until(known)  # a key that another process made is noticed within a second
    client.close()


# -- D15: a consumer that dies ---------------------------------------------------------------------

DYING = """
import sys, time, pika
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1])))
channel = connection.channel()
for _ in range(3):
    method, _, body = channel.basic_get(sys.argv[2])
    print(body.decode(), flush=True)
time.sleep(600)
"""


def test_D15_messages_of_a_killed_consumer_return_at_once_and_in_order(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh(), visibility_timeout=36_000)
    for number in range(5):
        protocols.amqp.send(queue, {"body": str(number)})
    with subprocess.Popen(
        [sys.executable, "-c", DYING, str(protocols.amqp_port), queue], stdout=subprocess.PIPE, text=True
    ) as consumer:
        assert consumer.stdout is not None
        assert [consumer.stdout.readline().strip() for _ in range(3)] == ["0", "1", "2"]

        os.kill(consumer.pid, signal.SIGKILL)

    until(lambda: not protocols.rest.peek(queue, "in_flight"))
    taken = [protocols.amqp.take(queue) for _ in range(5)]
    assert [(each["body"], each["redelivered"]) for each in taken if each] == [
        (str(number).encode(), number < 3) for number in range(5)
    ]


# -- D16, D17, D18 ---------------------------------------------------------------------------------


def test_D16_higher_priorities_come_first_and_equals_in_their_order(protocols: Protocols) -> None:
    queue = fresh()
    protocols.amqp.channel.queue_declare(queue, durable=True, arguments={"x-max-priority": 255})
    for body, priority in (("a", 0), ("b", 255), ("c", 1), ("d", None), ("e", 255), ("f", 1)):
        protocols.amqp.send(queue, {"body": body, "priority": priority})

    taken = [protocols.amqp.take(queue) for _ in range(6)]

    assert b"".join(each["body"] for each in taken if each) == b"becfad"


def test_D17_library_consumers_select_amqp_messages_by_type(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh())
    for kind in ("refund", "order"):
        protocols.amqp.send(queue, {"body": kind, "type": kind, "content_type": "text/plain"})

    with OpenQ(queue, url=protocols.server.url) as opened_queue:
        [message] = opened_queue.receive_many(10, timeout=0, types=["order"])

        assert (message.body, message.message_type) == ("order", "order")


def test_D18_a_consumer_gets_messages_of_every_protocol(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh())
    with protocols.connect() as connection:
        channel = connection.channel()
        came: list[bytes] = []
        channel.basic_consume(queue, lambda _c, _m, _p, body: came.append(body), auto_ack=True)

        protocols.rest.send(queue, {"payload": "by REST"})
        protocols.sqs.send(queue, {"MessageBody": "by SQS"})
        with OpenQ(queue, url=protocols.server.url) as opened_queue:
            opened_queue.publish("by the library")
        protocols.amqp.send(queue, {"body": "by AMQP"})
        for _ in range(1000):
            if len(came) == 4:
                break
            connection.process_data_events(time_limit=0.05)

        assert came == [b"by REST", b"by SQS", b"by the library", b"by AMQP"]


# -- K3, K14, K23 ----------------------------------------------------------------------------------


def test_K3_a_delivery_limit_is_max_receives_with_the_first_delivery_counted(protocols: Protocols) -> None:
    dead = protocols.rest.make(fresh())
    queue = fresh()
    protocols.amqp.channel.queue_declare(
        queue,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
    )
    protocols.amqp.send(queue, {"body": "x"})

    for _ in range(3):
        received = protocols.amqp.receive(queue)
        assert received is not None
        protocols.amqp.channel.basic_reject(received[0], requeue=True)
        until(lambda: not protocols.rest.peek(queue, "in_flight"))

    assert protocols.amqp.receive(queue) is None
    assert [each["payload"] for each in protocols.rest.peek(dead)] == ["x"]
    assert protocols.rest.call("GET", f"/queues/{queue}")["settings"]["max_receives"] == 3


def test_K14_times_are_milliseconds_here_and_seconds_there(protocols: Protocols) -> None:
    queue = fresh()
    protocols.amqp.channel.queue_declare(queue, durable=True, arguments={"x-message-ttl": 90_500})

    assert protocols.rest.call("GET", f"/queues/{queue}")["settings"]["message_ttl"] == 90.5


def test_K23_prefetched_messages_are_leased_like_pulled_ones(protocols: Protocols) -> None:
    queue = protocols.rest.make(fresh())
    for number in range(3):
        protocols.rest.send(queue, {"payload": str(number)})
    with protocols.connect(client_properties={"connection_name": "prefetcher"}) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)
        tags: list[int] = []
        channel.basic_consume(queue, lambda _c, method, _p, _b: tags.append(method.delivery_tag))
        for _ in range(1000):
            if len(tags) == 2:
                break
            connection.process_data_events(time_limit=0.05)

        leases = protocols.rest.call("GET", f"/queues/{queue}/in-flight")["messages"]
        assert [each["deadline"] for each in leases] == [None, None]
        assert all(each["consumer"].startswith("prefetcher") for each in leases)
        held = protocols.rest.peek(queue, "in_flight")
        protocols.rest.call("POST", f"/queues/{queue}/ack", {"receipt_id": held[0]["receipt_id"]})
        channel.basic_ack(tags[0])  # too late, and no harm
        channel.basic_ack(tags[1])
        for _ in range(1000):
            if len(tags) == 3:
                break
            connection.process_data_events(time_limit=0.05)
        channel.basic_ack(tags[2])

    until(lambda: not protocols.rest.peek(queue))
