"""The pages `/metrics` and `/metrics/queues`, on each store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq import OpenQ
from openq.clock import VirtualClock
from openq.local.broker import LocalBroker
from openq.metrics import pieces
from openq.model import ENCODING_TEXT, Draft, QueueSettings
from openq.server.queue_metrics import QueueChoice, columns, totals
from tests.amqp.raw_client import RawClient, method
from tests.real_clients import boto
from tests.redis.servers import single
from tests.server.raw_http import Answer, RawHttpClient, request_bytes
from tests.serving import Served, free_port, served, served_amqp
from tests.waiting import until

Series = dict[str, float]


def parse(text: str) -> Series:
    """Name with labels -> value. Raises if a line is not one of the format."""
    found: Series = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+|# EOF", line), line
            continue
        name, _, value = line.rpartition(" ")
        assert name not in found, name
        found[name] = float(value)
    return found


def page(server: Served, path: str = "/metrics") -> Series:
    status, body = server.get(path)
    assert status == 200, body
    return parse(body.decode())


@pytest.fixture(scope="module", params=["journal", "redis"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if request.param == "journal":
        with served_amqp(tmp_path_factory.mktemp("data")) as (server, port):
            server.amqp_port = port  # type: ignore[attr-defined]
            yield server
        return
    with single() as store:
        port = free_port()
        server = Served(["--store", store.url, "--profile", "fast", "--amqp-port", str(port)], free_port())
        server.amqp_port = port  # type: ignore[attr-defined]
        try:
            yield server.wait()
        finally:
            server.stop()


def test_sums_keep_what_deleted_queues_counted(running: Served) -> None:
    before = page(running)["openq_messages_sent_total"]
    with OpenQ("short-lived", url=running.url) as queue:
        for number in range(7):
            queue.publish(number)
    with RawHttpClient(running.port) as wire:
        assert wire.rest("DELETE", "queues/short-lived").status == 200

    after = page(running)

    assert after["openq_messages_sent_total"] == before + 7
    assert not any("short-lived" in name for name in page(running, "/metrics/queues"))


def test_each_protocol_counts_its_messages_and_times_its_acks(running: Served) -> None:
    before = page(running)
    client = boto.client(running.url)
    url = client.create_queue(QueueName="by-sqs")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="one")
    client.send_message_batch(
        QueueUrl=url, Entries=[{"Id": str(each), "MessageBody": "more"} for each in range(3)]
    )
    received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=4)["Messages"]
    client.delete_message(QueueUrl=url, ReceiptHandle=received[0]["ReceiptHandle"])
    client.delete_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(received[1:])
        ],
    )
    client.close()
    with OpenQ("by-rest", url=running.url) as queue:
        queue.publish(1)
        queue.publish(2)
        queue.ack(queue.receive(timeout=0))
        queue.nack(queue.receive(timeout=0), delay=60)
    with RawClient(running.amqp_port) as talk:  # type: ignore[attr-defined]
        talk.declare("by-amqp")
        talk.confirming().publish_all("by-amqp", [b"1", b"2", b"3"])
        for _ in range(2):
            tag = talk.call("basic.get", "basic.get-ok", queue="by-amqp")[2]["delivery_tag"]
            talk.send(method(1, "basic.ack", delivery_tag=tag))
        talk.declare("by-amqp")  # the acks are done

    after = page(running)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    def by(protocol: str) -> list[float]:
        return [
            grown(f'openq_protocol_messages_total{{protocol="{protocol}",action="{action}"}}')
            for action in ("published", "delivered", "acked", "nacked")
        ]

    assert by("sqs") == [4, 4, 4, 0]
    assert by("rest") == [2, 2, 1, 1]
    assert by("amqp") == [3, 2, 2, 0]
    for protocol, acked in (("sqs", 4), ("rest", 1), ("amqp", 2)):
        assert grown(f'openq_message_publish_to_ack_seconds_count{{protocol="{protocol}"}}') == acked
    assert grown("openq_message_processing_seconds_count") == 7
    assert grown("openq_message_wait_seconds_count") == 8
    of_queues = page(running, "/metrics/queues?match=by-*")
    label = '{account="000000000000",queue="by-sqs"}'
    assert of_queues[f"openq_queue_messages_sent_total{label}"] == 4
    assert of_queues[f"openq_queue_wait_seconds_count{label}"] == 4
    assert of_queues[f"openq_queue_publish_to_ack_seconds_count{label}"] == 4


def test_refusals_are_counted_by_protocol_and_code(running: Served) -> None:
    name = 'openq_refusals_total{protocol="rest",reason="queue_not_found"}'
    before = page(running).get(name, 0)

    with RawHttpClient(running.port) as wire:
        assert wire.rest("POST", "queues/nowhere/messages", {"payload": 1}).status == 404
    client = boto.client(running.url)
    with pytest.raises(client.exceptions.QueueDoesNotExist):
        client.get_queue_url(QueueName="nowhere")
    client.close()

    after = page(running)
    assert after[name] == before + 1
    assert any(each.startswith('openq_refusals_total{protocol="sqs"') for each in after)


def test_the_page_of_queues_has_a_pattern_and_a_limit_and_says_what_it_omits(running: Served) -> None:
    for number in range(4):
        with OpenQ(f"many-{number}", url=running.url) as queue:
            queue.publish(number)

    chosen = page(running, "/metrics/queues?match=many-*&limit=3")

    assert chosen["openq_queue_series_omitted"] == 1
    sent = [name for name in chosen if name.startswith("openq_queue_messages_sent_total")]
    assert [re.findall(r'queue="([^"]*)"', name)[0] for name in sent] == ["many-0", "many-1", "many-2"]
    for wrong in ("limit=0", "limit=10001", "limit=x", "mach=a"):
        status, body = running.get(f"/metrics/queues?{wrong}")
        assert status == 400, wrong
        assert b"limit" in body


def test_a_client_that_accepts_openmetrics_gets_it(running: Served) -> None:
    for path in ("/metrics", "/metrics/queues"):
        answer = openmetrics(running, path)

        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.body.endswith(b"\n# EOF\n")
        parse(answer.body.decode())
    assert (
        b"# TYPE openq_messages_sent counter\nopenq_messages_sent_total "
        in openmetrics(running, "/metrics").body
    )


def openmetrics(server: Served, path: str) -> Answer:
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
    with RawHttpClient(server.port) as wire:
        return wire.ask(request_bytes("GET", path, b"", headers))


def test_times_of_the_store_loop_and_process_are_measured(running: Served) -> None:
    until(lambda: page(running)["openq_event_loop_lag_seconds_count"] > 0)
    with OpenQ("timed", url=running.url) as queue:
        queue.publish(1)

    found = page(running)

    of_store = (
        "openq_journal_sync_seconds" if "--data" in running.arguments else "openq_redis_round_trip_seconds"
    )
    assert found[f"{of_store}_count"] > 0
    assert found["process_resident_memory_bytes"] > 1 << 20
    assert 0 < found["process_open_fds"] < found["process_max_fds"]
    if "--data" not in running.arguments:
        assert found["openq_redis_used_memory_bytes"] > 0
        assert found["openq_redis_replicas"] == 0
    else:
        assert found["openq_journal_group_records_sum"] >= found["openq_journal_group_records_count"] > 0
        assert 0 < found["openq_disk_free_bytes"] <= found["openq_disk_size_bytes"]


def test_with_users_the_pages_need_permissions_and_show_other_accounts_to_admins_only(tmp_path: Path) -> None:
    with served(tmp_path, "--auth", "on") as server:
        assert server.get("/metrics/queues")[0] == 401
        assert server.get("/metrics")[0] == 401


def test_queues_with_messages_that_nobody_consumes_are_counted() -> None:
    broker = LocalBroker()
    broker.declare("dead", QueueSettings())
    broker.declare("orders", QueueSettings(dead_letter="dead", max_receives=1))
    broker.declare("paused", QueueSettings(paused=True))
    for queue in ("dead", "orders", "paused"):
        broker.publish(queue, Draft(b"x"))

    def counted() -> object:
        return {each.name: each.samples[0][1] for each in totals(broker, True)}[
            "openq_queues_without_consumers"
        ]

    assert counted() == 1  # dead letters have an alert of their own, and a pause is meant
    assert len(broker.receive("orders", 1)) == 1
    assert counted() == 0
    broker.close()


def test_the_times_are_differences_of_the_clock_of_the_broker() -> None:
    clock = VirtualClock()
    broker = LocalBroker(clock=clock)
    times = broker.statistics.measure()
    broker.declare("q", QueueSettings())
    for number in range(3):
        broker.publish("q", Draft(b"%d" % number, ENCODING_TEXT))
    clock.advance(5)
    [first] = broker.receive("q", 1)
    others = broker.receive("q", 2)
    clock.advance(2)
    broker.ack_one("q", first.entry.seq, first.number)
    broker.nack("q", [(each.entry.seq, each.number) for each in others], 0)
    again = broker.receive("q", 2)  # not a second wait
    times.total = times.of_protocol("sqs")
    broker.ack("q", [(each.entry.seq, each.number) for each in again])

    assert (times.wait.count, times.wait.total) == (3, 15_000)
    assert (times.processing.count, times.processing.total) == (3, 2_000)
    assert times.of_protocol("other").total == 7_000
    assert times.of_protocol("sqs").total == 14_000
    [row] = broker.statistics.of(["q", "nowhere"])
    assert (row.times.waited, row.times.wait_ms, row.times.acked, row.times.total_ms) == (
        3,
        15_000,
        3,
        21_000,
    )
    broker.close()


def test_a_page_has_up_to_ten_thousand_queues() -> None:
    broker = LocalBroker()
    for number in range(10_001):
        broker.declare(f"queue-{number:05}", QueueSettings())

    text = b"".join(pieces(columns(broker, QueueChoice("limit=10000"), True))).decode()

    series = parse(text)
    assert series["openq_queue_series_omitted"] == 1
    assert sum(name.startswith("openq_queue_messages_sent_total{") for name in series) == 10_000
    [queues] = [family for family in totals(broker, True) if family.name == "openq_queues"]
    assert queues.samples == [({}, 10_001)]
    broker.close()
