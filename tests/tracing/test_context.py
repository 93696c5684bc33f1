"""The trace context of a message, by itself and on the ways that no table of protocols shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ
from openq.model import ENCODING_TEXT, Properties
from openq.trace_context import outgoing_headers, parent_of, read_amazon, read_parent, write_amazon
from openq.webhooks.formats import Item, RequestBuilder
from openq.webhooks.model import MODES, Secret, Webhook
from openq.webhooks.signing import new_secret
from openq.worker.exec_runner import variables
from openq.worker.http_runner import headers
from tests.cli.helpers import run_openq
from tests.protocol_clients import CONTEXT, Protocols
from tests.real_clients.boto import fresh
from tests.redis.servers import single

TRACE_ID, SPAN_ID = CONTEXT["traceparent"].split("-")[1:3]


def test_a_context_is_read_and_written() -> None:
    found = parent_of(CONTEXT)

    assert found is not None
    assert (found.trace_id, found.span_id, found.is_sampled) == (TRACE_ID, SPAN_ID, True)
    assert outgoing_headers(CONTEXT) == CONTEXT
    assert read_amazon(write_amazon(found)) == found._replace(state="")
    future = read_parent(f"cc-{TRACE_ID}-{SPAN_ID}-00-what-comes-later")
    assert future is not None
    assert not future.is_sampled


@pytest.mark.parametrize(
    "text",
    [
        "",
        7,
        None,
        "00-abc-def-01",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-01-more",
        f"00-{TRACE_ID}-{SPAN_ID}-01\r\nx: y",
        f"00-{TRACE_ID}-{SPAN_ID}-0" + "1" * 2_000,
    ],
)
def test_what_is_no_context_is_passed_on_by_nobody(text: object) -> None:
    assert read_parent(text) is None
    assert outgoing_headers({"traceparent": text}) == {}


@pytest.mark.parametrize("text", ["", 7, "Root=1-2-3", "Sampled=1", "Root=" + "1" * 3_000])
def test_an_invalid_header_of_amazon_is_none(text: object) -> None:
    assert read_amazon(text) is None


def request_of(mode: str, batch: int = 1) -> tuple[str, bytes]:
    webhook = Webhook(
        name="w",
        url="https://example.com/hook",
        queue="q",
        mode=mode,
        batch=batch,
        secrets=[Secret(text=new_secret(), created_ms=0)],
    )
    item = Item("m1", "orders", None, 1, b"x", ENCODING_TEXT, Properties(CONTEXT))
    request = RequestBuilder(webhook).build([item], 2)
    return request.head.decode(), request.body


@pytest.mark.parametrize("mode", MODES)
def test_a_webhook_passes_the_context_on(mode: str) -> None:
    head, body = request_of(mode)

    for name, value in CONTEXT.items():
        assert f"\r\n{name}: {value}\r\n" in head
    if mode == "cloudevents-binary":
        assert f"\r\nce-traceparent: {CONTEXT['traceparent']}\r\n" in head
    if mode == "cloudevents-structured":
        assert json.loads(body)["traceparent"] == CONTEXT["traceparent"]


def test_a_batch_of_a_webhook_has_the_context_of_each_message() -> None:
    head, body = request_of("cloudevents-structured", batch=10)

    assert "\r\ntraceparent:" not in head
    assert json.loads(body)[0]["traceparent"] == CONTEXT["traceparent"]


def test_commands_and_urls_of_a_worker_get_the_context() -> None:
    with OpenQ("jobs") as queue:
        queue.publish("x", attributes=CONTEXT)
        queue.publish("y", attributes={"traceparent": "nonsense\r\nx: y"})
        first, second = queue.receive_many(2, 0)

        assert headers(first)["traceparent"] == CONTEXT["traceparent"]
        found = variables(first)
        assert (found["TRACEPARENT"], found["TRACESTATE"]) == tuple(CONTEXT.values())
        assert "traceparent" not in headers(second)
        assert "TRACEPARENT" not in variables(second)


def check_timeline(queue: OpenQ) -> None:
    traced = queue.publish("x", attributes=CONTEXT)
    amazon = queue.publish("x", attributes={"openq.trace": f"Root=1-{TRACE_ID[:8]}-{TRACE_ID[8:]}"})
    plain = queue.publish("x", attributes={"traceparent": "nonsense"})

    assert [queue.timeline(each)[0].trace_id for each in (traced, amazon, plain)] == [TRACE_ID, TRACE_ID, ""]


def test_a_timeline_shows_the_trace_in_memory_and_on_disk(tmp_path: Path) -> None:
    for target in ({}, {"path": str(tmp_path)}):
        options: dict[str, Any] = target
        with OpenQ("orders", **options) as queue:
            check_timeline(queue)


def test_a_timeline_shows_the_trace_in_redis() -> None:
    with single() as server, OpenQ("orders", url=f"{server.url}?profile=fast") as queue:
        check_timeline(queue)


def test_the_command_line_and_the_library_over_the_network_show_it(traced: Protocols) -> None:
    name, url = fresh(), traced.server.url
    with OpenQ(name, url=url) as queue:
        check_timeline(queue)
        message_id = queue.publish("x", attributes=CONTEXT)
    timeline = run_openq("timeline", name, message_id, "--url", url)
    why = run_openq("why", name, message_id, "--url", url)

    assert f"trace {TRACE_ID}" in timeline.out
    assert f"(trace {TRACE_ID})" in why.out


def test_messages_of_the_stream_carry_it_both_ways(traced: Protocols) -> None:
    name = traced.rest.make(fresh())
    traced.rest.send(name, {"payload": "x", "attributes": CONTEXT})
    with OpenQ(name, url=traced.server.url) as queue, queue.listen(prefetch=1) as listener:
        message = next(listener)
        message.ack()

    assert message.attributes == CONTEXT


def test_an_unknown_message_has_no_trace(traced: Protocols) -> None:
    name = traced.rest.make(fresh())
    with OpenQ(name, url=traced.server.url) as queue:
        assert queue.timeline("unknown") == []
        assert queue.why("unknown").code == "not_found"
