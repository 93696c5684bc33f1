"""Completions, errors, timeouts and retries are counted exactly: for each protocol, on each store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from openq import OpenQ
from openq.clock import VirtualClock
from openq.local.broker import LocalBroker
from openq.model import ENCODING_TEXT, Draft, QueueSettings
from tests.amqp.raw_client import RawClient, method
from tests.livecopy import copy_live
from tests.real_clients import boto
from tests.redis.servers import single
from tests.serving import Served, free_port, served_amqp
from tests.waiting import until

METRICS = {
    "openq_queue_messages_sent_total": "published",
    "openq_queue_messages_delivered_total": "delivered",
    "openq_queue_messages_redelivered_total": "redelivered",
    "openq_queue_messages_acked_total": "acked",
    "openq_queue_messages_nacked_total": "nacked",
    "openq_queue_leases_expired_total": "lease_expired",
    "openq_queue_messages_released_total": "released",
    "openq_queue_messages_dead_lettered_total": "dead_lettered",
}


class Running(NamedTuple):
    server: Served
    amqp_port: int

    def counted(self, queue: str) -> dict[str, int]:
        """What the metrics say of a queue, without what is 0."""
        _, text = self.server.get("/metrics/queues")
        found = re.findall(
            r'^(\w+)\{account="[^"]*",queue="([^"]*)"[^}]*\} (\d+)', text.decode(), re.MULTILINE
        )
        return {METRICS[name]: int(n) for name, of, n in found if of == queue and name in METRICS and int(n)}


@pytest.fixture(scope="module", params=["journal", "redis"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if request.param == "journal":
        with served_amqp(tmp_path_factory.mktemp("data")) as (server, port):
            yield Running(server, port)
        return
    with single() as store:
        port = free_port()
        arguments = ["--store", store.url, "--profile", "fast", "--amqp-port", str(port)]
        server = Served(arguments, free_port())
        try:
            yield Running(server.wait(), port)
        finally:
            server.stop()


def test_sqs(running: Running) -> None:
    did: Counter[str] = Counter()
    client: Any = boto.client(running.server.url)
    client.create_queue(QueueName="sqs-dead")
    policy = (
        f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{boto.ACCOUNT}:sqs-dead","maxReceiveCount":"3"}}'
    )
    url = client.create_queue(QueueName="sqs", Attributes={"RedrivePolicy": policy})["QueueUrl"]

    def receive(seconds: int = 30) -> str:
        [message] = client.receive_message(
            QueueUrl=url, VisibilityTimeout=seconds, AttributeNames=["ApproximateReceiveCount"]
        )["Messages"]
        did["delivered"] += 1
        did["redelivered"] += message["Attributes"]["ApproximateReceiveCount"] != "1"
        return str(message["ReceiptHandle"])

    for number in range(5):
        client.send_message(QueueUrl=url, MessageBody=str(number))
        did["published"] += 1
    for _ in range(2):
        client.delete_message(QueueUrl=url, ReceiptHandle=receive())
        did["acked"] += 1
    for _ in range(3):  # the same message each time: the last time it is dead-lettered
        client.change_message_visibility(QueueUrl=url, ReceiptHandle=receive(), VisibilityTimeout=0)
        did["nacked"] += 1
    did["dead_lettered"] += 1
    for _ in range(3):  # nobody ends these, and the third is the last chance of its message
        receive(1)
        did["lease_expired"] += 1
        until(lambda: running.counted("sqs").get("lease_expired", 0) == did["lease_expired"])
    did["dead_lettered"] += 1
    until(lambda: running.counted("sqs").get("dead_lettered", 0) == did["dead_lettered"])
    client.close()

    assert running.counted("sqs") == dict(did)


def test_amqp(running: Running) -> None:
    did: Counter[str] = Counter()
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "amqp-dead"}
    limit = {"x-queue-type": "quorum", "x-delivery-limit": 2}

    def get(talk: RawClient) -> int:
        answer = talk.call("basic.get", "basic.get-ok", queue="amqp")
        did["delivered"] += 1
        did["redelivered"] += bool(answer[2]["redelivered"])
        return int(answer[2]["delivery_tag"])

    def settle(talk: RawClient, name: str, **fields: Any) -> None:
        talk.send(method(1, name, delivery_tag=get(talk), **fields))
        did["acked" if name == "basic.ack" else "nacked"] += 1
        talk.declare("amqp-dead")  # what was said before is done now

    with RawClient(running.amqp_port) as talk:
        talk.declare("amqp-dead")
        talk.declare("amqp", arguments={**letters, **limit})
        talk.confirming().publish_all("amqp", [b"%d" % number for number in range(6)])
        did["published"] += 6
        settle(talk, "basic.ack")
        for _ in range(3):  # the same message: the last time it is dead-lettered
            settle(talk, "basic.nack", requeue=True)
        settle(talk, "basic.nack", requeue=False)
        settle(talk, "basic.reject", requeue=False)
        settle(talk, "basic.reject", requeue=True)
        did["dead_lettered"] += 3
        get(talk)
        did["nacked"] += 1  # by the end of the connection
    until(lambda: running.counted("amqp").get("nacked", 0) == did["nacked"])

    assert running.counted("amqp") == dict(did)


def test_rest_and_the_library(running: Running) -> None:
    did: Counter[str] = Counter()
    options = {"dlq": "rest-dead", "max_receives": 3}
    with (
        OpenQ("rest-dead", url=running.server.url),
        OpenQ("rest", url=running.server.url, **options) as queue,
    ):
        for number in range(5):
            queue.publish(number)
            did["published"] += 1

        def receive(seconds: float | None = None) -> Any:
            message = queue.receive(timeout=0, visibility_timeout=seconds)
            assert message is not None
            did["delivered"] += 1
            did["redelivered"] += message.receive_count > 1
            return message

        queue.ack(receive())
        did["acked"] += 1
        for _ in range(3):
            queue.nack(receive(), delay=0)
            did["nacked"] += 1
        queue.reject(receive())
        did["nacked"] += 1
        did["dead_lettered"] += 2
        receive(0.02)
        did["lease_expired"] += 1
        until(lambda: running.counted("rest").get("lease_expired", 0) == did["lease_expired"])

    assert running.counted("rest") == dict(did)


@pytest.mark.parametrize("snapshot", [True, False], ids=["with a snapshot", "from the records alone"])
def test_counters_are_the_same_after_a_crash(tmp_path: Path, snapshot: bool) -> None:
    clock = VirtualClock()
    broker = LocalBroker(tmp_path / "0", clock=clock)
    broker.declare("dead", QueueSettings())
    broker.declare("q", QueueSettings(visibility_ms=1_000, max_receives=2, dead_letter="dead"))
    broker.declare("drops", QueueSettings())
    for queue in ("q", "drops"):
        for number in range(12):
            broker.publish(queue, Draft(b"%d" % number, ENCODING_TEXT))

    def receipts(queue: str, count: int) -> list[tuple[int, int]]:
        return [(each.entry.seq, each.number) for each in broker.receive(queue, count)]

    broker.ack("q", receipts("q", 2))
    if snapshot:
        assert broker.housekeeper is not None
        broker.housekeeper.snapshot()
    for _ in range(2):
        broker.nack("q", receipts("q", 1), 0)  # the second time it is dead-lettered
    broker.nack("q", receipts("q", 2), 0)
    broker.nack("q", receipts("q", 2), 0)
    broker.reject("q", receipts("q", 1))
    broker.reject("q", receipts("q", 1))
    broker.release("q", receipts("q", 1))
    receipts("q", 2)
    clock.advance(1)
    broker.tick()
    receipts("q", 2)
    clock.advance(1)  # the last chance of both
    broker.tick()
    broker.reject("drops", receipts("drops", 2))
    broker.reject("drops", receipts("drops", 1))
    broker.sync()
    before = {queue: broker.stats(queue).counters for queue in broker.queues()}
    copy_live(tmp_path / "0", tmp_path / "1")
    again = LocalBroker(tmp_path / "1", clock=clock)

    assert {queue: again.stats(queue).counters for queue in again.queues()} == before
    q = before["q"]
    assert (q["acked"], q["nacked"], q["lease_expired"], q["released"]) == (2, 8, 4, 1)
    assert q["delivered"] == 15 == q["acked"] + q["nacked"] + q["lease_expired"] + q["released"]
    assert q["dead_lettered"] == 7
    assert before["drops"]["nacked"] == 3
    again.close()
    broker.close()
