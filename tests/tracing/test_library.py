"""Spans of the library and the worker, as a collector receives them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from openq import Consumer, InvalidSetting, OpenQ, aio, tracing
from openq.trace_context import read_parent
from openq.worker import App, Retry
from tests.otlp_receiver import Receiver, SeenSpan, grpc_receiver, http_receiver


def flush() -> None:
    spans = tracing.current()
    assert spans is not None
    spans.flush()


def link_to(span: SeenSpan) -> tuple[str, str]:
    return span.trace_id, span.span_id


def test_a_message_is_one_trace_from_publish_to_ack(spans: Receiver, tmp_path: Path) -> None:
    with OpenQ("orders", path=str(tmp_path)) as queue:
        message_id = queue.publish("x", attributes={"shop": "north"})
        message = queue.receive(0)
        assert message is not None
        carried = read_parent(message.attributes["traceparent"])
        assert message.attributes["shop"] == "north"
        message.ack()
        steps = queue.timeline(message_id)
    flush()

    send, receive, ack = (spans.one(f"{name} orders") for name in ("publish", "receive", "ack"))
    assert (send.kind, receive.kind, ack.kind) == ("producer", "client", "client")
    assert (send.operation, receive.operation, ack.operation) == ("send", "receive", "settle")
    assert carried is not None
    assert (carried.trace_id, carried.span_id) == (send.trace_id, send.span_id)
    assert {receive.parent_id, ack.parent_id} == {send.span_id}
    assert receive.links == ack.links == (link_to(send),)
    assert send.attributes == {
        "messaging.system": "openq",
        "messaging.operation.type": "send",
        "messaging.operation.name": "publish",
        "messaging.destination.name": "orders",
        "messaging.message.id": message_id,
    }
    assert send.service == "shop"
    assert [step.trace_id for step in steps] == [send.trace_id, "", ""]
    assert spans.paths[0] == "/v1/traces"


def test_messages_of_a_batch_have_spans_of_their_own_and_calls_link_to_them(spans: Receiver) -> None:
    with OpenQ("many") as queue:
        queue.publish_many(["a", {"body": "b", "priority": 3}, b"c"])
        messages = queue.receive_many(10, 0)
        queue.ack_many(messages)
    flush()

    created = spans.wait_for("create many", 3)
    assert {each.kind for each in created} == {"producer"}
    for name in ("publish many", "receive many", "ack many"):
        span = spans.one(name)
        assert sorted(span.links) == sorted(map(link_to, created))
        assert (span.kind, span.attributes["messaging.batch.message_count"]) == ("client", 3)
    assert sorted(each.body if isinstance(each.body, str) else "c" for each in messages) == ["a", "b", "c"]


def test_spans_are_children_of_what_the_program_does(spans: Receiver) -> None:
    provider = TracerProvider()
    with OpenQ("inside") as queue:
        with provider.get_tracer("program").start_as_current_span("checkout") as outer:
            queue.publish("x")
            queue.publish_many(["y"])
        with queue.processing(0) as message:
            assert message is not None
            inner = trace.get_current_span().get_span_context()
    flush()

    context = outer.get_span_context()
    for name in ("publish inside", "create inside"):
        for each in spans.wait_for(name):
            assert (int(each.trace_id, 16), int(each.parent_id, 16)) == (context.trace_id, context.span_id)
    process, ack = spans.one("process inside"), spans.one("ack inside")
    assert process.kind == "consumer"
    assert int(process.span_id, 16) == inner.span_id
    sent = next(each for each in spans.named("publish inside") if each.kind == "producer")
    assert (process.trace_id, process.parent_id, process.links) == (
        sent.trace_id,
        sent.span_id,
        (link_to(sent),),
    )
    assert ack.parent_id == process.span_id


def test_a_handler_that_fails_is_an_error_and_its_message_is_nacked(spans: Receiver) -> None:
    with OpenQ("failing", dlq="failed", max_receives=1) as queue:
        queue.publish("x")

        def handle(message: object) -> None:
            raise ValueError("a reason")

        Consumer(queue, handle, idle_timeout=0.05).run()
    flush()

    process = spans.wait_for("process failing")[0]
    assert (process.error, process.attributes["error.type"]) == ("ValueError", "ValueError")
    nack = spans.wait_for("nack failing")[0]
    assert nack.trace_id == process.trace_id == spans.one("publish failing").trace_id


def test_an_operation_that_fails_names_the_type_of_its_error_only(spans: Receiver) -> None:
    with OpenQ("full", max_length=1, overflow="reject") as queue:
        queue.publish("x")
        with pytest.raises(Exception, match="full"):
            queue.publish("canary-body")
    flush()

    spans.wait_for("publish full", 2)
    assert sorted(each.error for each in spans.named("publish full")) == ["", "QueueFull"]
    assert not any(b"canary" in data for data in spans.raw)


def test_asyncio_records_the_same_spans(spans: Receiver) -> None:
    async def main() -> None:
        queue = await aio.OpenQ.open("tasks")
        await queue.publish("one")
        message = await queue.receive(0)
        assert message is not None
        await message.ack()
        await queue.publish_many(["two", "three"])
        async with queue.processing(0) as message:
            assert message is not None
        done = asyncio.Event()

        async def handle(message: aio.Message) -> None:
            done.set()

        async with aio.Consumer(queue, handle):
            await asyncio.wait_for(done.wait(), 30)
        await queue.close()

    asyncio.run(main())
    flush()

    one, *others = spans.wait_for("publish tasks", 2)
    assert one.kind == "producer"
    assert [len(each.links) for each in others] == [2]
    first = spans.named("receive tasks")[0]
    assert (first.trace_id, first.links) == (one.trace_id, (link_to(one),))
    created = {each.trace_id: each for each in spans.wait_for("create tasks", 2)}
    processed = spans.wait_for("process tasks", 2)
    assert {each.trace_id for each in processed} == set(created)
    assert all(each.parent_id == created[each.trace_id].span_id for each in processed)
    assert len(spans.wait_for("ack tasks", 3)) == 3


def test_jobs_of_a_worker_are_traced_through_what_they_send(spans: Receiver) -> None:
    app = App(retries=1)

    @app.task
    def outer() -> None:
        inner.send()

    @app.task
    def inner() -> None:
        raise Retry

    with app.testing() as testing:
        outer.send()
        testing.run()
    flush()

    processed = spans.wait_for("process default", 2)
    sent = spans.wait_for("publish default", 2)
    assert len({each.trace_id for each in (*processed, *sent)}) == 1
    by_id = {each.span_id: each for each in (*processed, *sent)}
    outer_run = next(each for each in processed if each.attributes["openq.task"].endswith("outer"))
    inner_run = next(each for each in processed if each.attributes["openq.task"].endswith("inner"))
    assert by_id[inner_run.parent_id] in sent
    assert by_id[by_id[inner_run.parent_id].parent_id] is outer_run
    assert outer_run.kind == "consumer"
    assert inner_run.attributes["error.type"] == "Retry"
    assert any(each.operation == "settle" for each in spans.spans)


def test_the_decision_at_the_head_of_a_trace_is_kept(receiver: Receiver) -> None:
    tracing.enable(endpoint=receiver.url, sample=0)
    try:
        with OpenQ("unsampled") as queue:
            queue.publish("x")
            queue.publish("y", attributes={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
            received = [queue.receive(0), queue.receive(0)]
            flags = [each.attributes["traceparent"][-2:] for each in received if each is not None]
            for each in received:
                assert each is not None
                with each:
                    pass
        flush()
    finally:
        tracing.disable()

    assert [int(each, 16) & 1 for each in flags] == [0, 1]
    assert {each.trace_id for each in receiver.spans} == {"ab" * 16}
    assert {each.operation for each in receiver.spans} == {"send", "receive", "settle"}


def test_spans_are_sent_by_grpc_too() -> None:
    with grpc_receiver() as receiver:
        tracing.enable(endpoint=receiver.url, protocol="grpc")
        try:
            with OpenQ("fast") as queue:
                queue.publish("x")
        finally:
            tracing.disable()

        assert receiver.one("publish fast").kind == "producer"


def test_the_environment_turns_it_on() -> None:
    program = "from openq import OpenQ\nwith OpenQ('jobs') as queue: queue.publish('x')"
    with http_receiver() as receiver:
        environment = {
            "OPENQ_TRACING": "on",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_SERVICE_NAME": "till",
        }
        subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=60)

        assert receiver.one("publish jobs").service == "till"


def test_while_it_is_off_nothing_of_it_is_there() -> None:
    program = (
        "import sys\nfrom openq import OpenQ\n"
        "with OpenQ('jobs') as queue:\n"
        "    queue.publish('x'); message = queue.receive(0); message.ack()\n"
        "    assert not message.attributes and type(queue).__mro__[1] is object\n"
        "loaded = [name for name in sys.modules if 'opentelemetry' in name or 'openq.tracing.' in name]\n"
        "assert loaded == [], loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={}, timeout=60)


def test_what_cannot_be_meant_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"protocol": "carrier-pigeon"}, {"sample": 2.0}):
        with pytest.raises(InvalidSetting):
            tracing.enable(**options)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="not both"):
        tracing.enable(TracerProvider(), endpoint="http://127.0.0.1:1")
    monkeypatch.setattr(tracing, "_is_decided", False)
    monkeypatch.setenv("OPENQ_TRACING", "perhaps")
    with pytest.raises(InvalidSetting, match="OPENQ_TRACING"):
        OpenQ("jobs")
