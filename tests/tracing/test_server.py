"""Spans of a server, as a collector receives them, and exemplars of its metrics."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from openq import OpenQ
from tests.otlp_receiver import Receiver, grpc_receiver, http_receiver
from tests.protocol_clients import AMQP, CONTEXT, LIBRARY, REST, SQS, Protocols
from tests.real_clients.boto import fresh
from tests.redis.servers import single
from tests.serving import Served, free_port, served

TRACE_ID, SPAN_ID = CONTEXT["traceparent"].split("-")[1:3]
PARENT = {"traceparent": CONTEXT["traceparent"]}
SENT = {
    LIBRARY: {"body": "x", "attributes": PARENT},
    REST: {"payload": "x", "attributes": PARENT},
    SQS: {
        "MessageBody": "x",
        "MessageAttributes": {
            "traceparent": {"DataType": "String", "StringValue": PARENT["traceparent"]},
        },
    },
    AMQP: {"body": "x", "headers": PARENT},
}
PLAIN = {
    LIBRARY: {"body": "x"},
    REST: {"payload": "x"},
    SQS: {"MessageBody": "x"},
    AMQP: {"body": "x"},
}


@contextmanager
def stopping(server: Served) -> Iterator[Served]:
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize("protocol", SENT)
def test_a_traced_message_has_the_server_in_its_trace(
    traced: Protocols, collected: Receiver, protocol: str
) -> None:
    queue = traced.rest.make(fresh())

    traced.by_name[protocol].send(queue, SENT[protocol])
    assert traced.by_name[protocol].take(queue) is not None

    for name, operation in (("publish", "send"), ("receive", "receive"), ("ack", "settle")):
        span = collected.one(f"{name} {queue}")
        assert (span.trace_id, span.parent_id) == (TRACE_ID, SPAN_ID)
        assert (span.kind, span.operation, span.service) == ("server", operation, "openq")
        assert span.attributes["messaging.message.id"]


@pytest.mark.parametrize("protocol", PLAIN)
def test_a_message_without_a_context_starts_a_trace_and_is_not_changed(
    traced: Protocols, collected: Receiver, protocol: str
) -> None:
    queue = traced.rest.make(fresh())

    traced.by_name[protocol].send(queue, PLAIN[protocol])
    seen = traced.by_name[protocol].take(queue)

    assert seen is not None
    assert "traceparent" not in str(seen)
    publish = collected.one(f"publish {queue}")
    assert publish.parent_id == ""
    for name in ("receive", "ack"):
        span = collected.one(f"{name} {queue}")
        assert (span.trace_id, span.parent_id) == (publish.trace_id, publish.span_id)


def test_a_context_that_is_not_sampled_is_not_recorded(traced: Protocols, collected: Receiver) -> None:
    queue, other = traced.rest.make(fresh()), traced.rest.make(fresh())
    silent = {"traceparent": CONTEXT["traceparent"][:-2] + "00"}

    traced.rest.send(queue, {"payload": "x", "attributes": silent})
    assert traced.rest.take(queue) is not None
    traced.rest.send(other, {"payload": "x"})

    collected.wait_for(f"publish {other}")
    assert [span for span in collected.spans if span.name.endswith(queue)] == []


def test_calls_about_several_messages_link_to_them(traced: Protocols, collected: Receiver) -> None:
    queue = traced.rest.make(fresh())
    url = traced.sqs.url(queue)
    parents = [f"00-{n:032x}-{n:016x}-01" for n in (1, 2, 3)]
    entries = [
        {
            "Id": str(at),
            "MessageBody": "x",
            "MessageAttributes": {"traceparent": {"DataType": "String", "StringValue": parent}},
        }
        for at, parent in enumerate(parents)
    ]
    traced.sqs.client.send_message_batch(QueueUrl=url, Entries=entries)
    found = traced.sqs.client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    traced.sqs.client.delete_message_batch(
        QueueUrl=url,
        Entries=[{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(found)],
    )

    for name in ("publish", "receive", "ack"):
        span = collected.one(f"{name} {queue}")
        assert sorted(span.links) == [(f"{n:032x}", f"{n:016x}") for n in (1, 2, 3)]
        assert span.attributes["messaging.batch.message_count"] == 3
        assert span.parent_id == ""


def test_messages_of_one_publish_share_a_link(traced: Protocols, collected: Receiver) -> None:
    queue = traced.rest.make(fresh())
    url = traced.sqs.url(queue)
    entries = [{"Id": str(at), "MessageBody": "x"} for at in range(3)]
    traced.sqs.client.send_message_batch(QueueUrl=url, Entries=entries)
    found = traced.sqs.client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    for each in found:
        traced.sqs.client.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])

    publish = collected.one(f"publish {queue}")
    assert list(collected.one(f"receive {queue}").links) == [(publish.trace_id, publish.span_id)]
    acks = collected.wait_for(f"ack {queue}", 3)
    assert {(span.trace_id, span.parent_id) for span in acks} == {(publish.trace_id, publish.span_id)}


def test_messages_of_many_callers_at_once_have_a_span_each(traced: Protocols, collected: Receiver) -> None:
    """Without tracing, the calls of one turn of the loop share a record."""
    queue = traced.rest.make(fresh())
    count = 60
    address = (urllib.parse.urlsplit(traced.server.url).hostname, traced.server.port)
    body = b'{"payload": "x"}'
    request = (
        f"POST /api/v1/queues/{queue}/messages HTTP/1.1\r\nHost: x.localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(address)) for _ in range(count)]
        os.kill(traced.server.pid, signal.SIGSTOP)  # then it reads them all in one turn
        try:
            for each in sockets:
                each.sendall(request)
        finally:
            os.kill(traced.server.pid, signal.SIGCONT)
        answers = [each.recv(65536).split(b"\r\n", 1)[0] for each in sockets]

    assert set(answers) == {b"HTTP/1.1 201 Created"}
    spans = collected.wait_for(f"publish {queue}", count)
    assert len({(span.trace_id, span.span_id) for span in spans}) == len(spans) == count


def test_a_header_of_a_request_is_the_context_of_its_messages(traced: Protocols, collected: Receiver) -> None:
    queue = traced.rest.make(fresh())
    url = f"{traced.server.url}/api/v1/queues/{queue}/messages"
    for path, document in (("", {"payload": "x"}), ("/batch", ["y", "z"])):
        request = urllib.request.Request(url + path, json.dumps(document).encode(), method="POST")
        request.add_header("content-type", "application/json")
        for name, value in CONTEXT.items():
            request.add_header(name, value)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 201

    for _ in range(3):
        message = traced.rest.take(queue)
        assert message is not None
        assert message["attributes"] == CONTEXT
        steps = traced.rest.call("GET", f"/queues/{queue}/messages/{message['id']}/timeline")["steps"]
        assert steps[0]["trace_id"] == TRACE_ID
    assert {span.trace_id for span in collected.wait_for(f"publish {queue}", 2)} == {TRACE_ID}


def test_failures_and_dead_letters_are_in_the_trace(traced: Protocols, collected: Receiver) -> None:
    queue = traced.rest.make(fresh())
    traced.rest.send(queue, {"payload": "x", "attributes": PARENT})
    message = traced.rest.receive(queue)
    assert message is not None
    traced.rest.call("POST", f"/queues/{queue}/nack", {"receipt_id": message["receipt_id"], "delay": 0})

    nack = collected.one(f"nack {queue}")
    assert (nack.trace_id, nack.attributes["openq.outcome"]) == (TRACE_ID, "returned")


def test_histograms_have_exemplars_for_openmetrics_only(traced: Protocols) -> None:
    queue = traced.rest.make(fresh())
    traced.rest.send(queue, {"payload": "x", "attributes": PARENT})
    assert traced.rest.take(queue) is not None

    request = urllib.request.Request(f"{traced.server.url}/metrics")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert "trace_id" not in answer.read().decode()
    request.add_header("accept", "application/openmetrics-text")
    with urllib.request.urlopen(request, timeout=30) as answer:
        page = answer.read().decode()
    for name in ("wait", "processing", "publish_to_ack"):
        found = re.findall(
            rf'^openq_message_{name}_seconds_bucket{{.*le="(.+?)"}} \d+ # {{trace_id="([0-9a-f]{{32}})"}} '
            r"([0-9.e-]+) [0-9.]+$",
            page,
            re.MULTILINE,
        )
        assert found, name
        assert all(float(value) <= float(bound.replace("+Inf", "inf")) for bound, _, value in found)


def test_no_secret_and_no_content_is_in_a_span(traced: Protocols, collected: Receiver) -> None:
    queue = traced.rest.make(fresh())
    secrets = {"password": "canary-attribute", **PARENT}
    for client, message in (
        (traced.rest, {"payload": "canary-body", "attributes": secrets}),
        (traced.amqp, {"body": "canary-body", "headers": secrets, "correlation_id": "canary-property"}),
    ):
        client.send(queue, message)
        assert client.take(queue) is not None
    request = urllib.request.Request(f"{traced.server.url}/api/v1/queues")
    request.add_header("authorization", "Bearer canary-token")
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        error.close()

    collected.wait_for(f"ack {queue}", 2)
    assert not any(b"canary" in data for data in collected.raw)


def test_a_server_sends_by_grpc_and_ends_with_its_last_spans(tmp_path: Path) -> None:
    with grpc_receiver() as receiver:
        flags = ["--tracing", "--otlp-endpoint", receiver.url, "--otlp-protocol", "grpc"]
        with served(tmp_path, *flags) as server, OpenQ("late", url=server.url) as queue:
            queue.publish("x", attributes=PARENT)

        assert receiver.one("publish late").trace_id == TRACE_ID


def test_a_server_on_redis_records_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with http_receiver() as receiver, single() as redis:
        flags = ["--tracing", "--otlp-endpoint", receiver.url, "--trace-sample", "1"]
        port = free_port()
        server = Served(["--store", redis.url, "--profile", "fast", *flags], port).wait()
        with stopping(server), OpenQ("shared", url=server.url) as queue:
            for attributes in (None, PARENT):
                queue.publish("x", attributes=attributes)
                message = queue.receive(0)
                assert message is not None
                message.ack()
            for name in ("publish", "receive", "ack"):
                started, carried = receiver.wait_for(f"{name} shared", 2)
                assert (carried.trace_id, carried.parent_id) == (TRACE_ID, SPAN_ID)
                assert started.trace_id == receiver.named("publish shared")[0].trace_id


def test_an_unreachable_collector_delays_nobody() -> None:
    flags = ["--tracing", "--otlp-endpoint", "http://127.0.0.1:9", "--trace-sample", "1"]
    with served(None, *flags) as server, OpenQ("alone", url=server.url) as queue:
        for _ in range(20):
            queue.publish("x")
            message = queue.receive(0)
            assert message is not None
            message.ack()


def test_publishes_that_are_not_sampled_are_not_recorded() -> None:
    with http_receiver() as receiver:
        flags = ["--tracing", "--otlp-endpoint", receiver.url, "--trace-sample", "0"]
        with served(None, *flags) as server, OpenQ("quiet", url=server.url) as queue:
            for _ in range(20):
                queue.publish("x")
                message = queue.receive(0)
                assert message is not None
                message.ack()
        assert receiver.spans == []
