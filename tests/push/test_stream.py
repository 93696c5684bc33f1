"""Subscriptions of the WebSocket stream, with the client of `websockets`."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.push.streams import Stream, opened
from tests.rest.helpers import Client
from tests.serving import Served
from tests.waiting import until


def publish(client: Client, path: str, *payloads: Any) -> None:
    answer = client.post(f"{path}/messages/batch", list(payloads))
    assert answer.status == 201, answer.data


def ready(client: Client, path: str) -> int:
    found: int = client.get(path).value["stats"]["ready"]
    return found


def in_flight(client: Client, path: str) -> int:
    found: int = client.get(path).value["stats"]["in_flight"]
    return found


def payloads(messages: list[dict[str, Any]]) -> list[Any]:
    return [each["payload"] for each in messages]


def test_messages_are_pushed_and_acked_on_the_same_socket(client: Client, stream: Stream) -> None:
    path = client.queue("pushed")
    publish(client, path, "before")
    stream.subscribe("pushed")
    publish(client, path, "after")

    messages = stream.messages(2)

    assert payloads(messages) == ["before", "after"]
    assert in_flight(client, path) == 2
    assert stream.ack(messages)["count"] == 2
    assert client.get(path).value["stats"]["in_flight"] == 0


def test_a_pushed_message_has_the_fields_of_a_received_one(client: Client, stream: Stream) -> None:
    path = client.queue("fields", max_priority=9)
    body = {"payload": {"a": [1, None]}, "attributes": {"n": 1.5, "b": {"$base64": "AAE="}}, "priority": 3}
    client.post(f"{path}/messages", {**body, "message_type": "t", "publisher": "p", "group": "g"})
    [received] = client.receive(path)
    assert client.post(f"{path}/nack", {"receipt_id": received["receipt_id"], "release": True}).status == 200
    stream.subscribe("fields", lease=30)

    [pushed] = stream.messages(1)

    assert pushed.keys() == received.keys()
    changed = {"receipt_id", "received_at", "deadline"}
    assert {k: v for k, v in pushed.items() if k not in changed} == {
        k: v for k, v in received.items() if k not in changed
    }


def test_never_more_messages_are_in_flight_than_the_credit(client: Client, stream: Stream) -> None:
    path = client.queue("credit")
    publish(client, path, *map(str, range(10)))
    stream.subscribe("credit", credit={"messages": 3})

    first = stream.messages(3)
    assert stream.has_nothing()
    assert in_flight(client, path) == 3

    stream.ack(first[:2])
    assert payloads(stream.messages(2)) == ["3", "4"]
    assert stream.has_nothing()

    assert stream.ask("credit", sub="credit", messages=5)["op"] == "ok"
    assert payloads(stream.messages(2)) == ["5", "6"]
    assert in_flight(client, path) == 5


def test_credit_of_zero_pauses_a_subscription(client: Client, stream: Stream) -> None:
    path = client.queue("paused")
    stream.subscribe("paused", credit={"messages": 0})
    publish(client, path, "a")
    assert stream.has_nothing()

    stream.ask("credit", sub="paused", messages=1)

    assert payloads(stream.messages(1)) == ["a"]


def test_never_more_bytes_are_in_flight_than_the_credit(client: Client, stream: Stream) -> None:
    path = client.queue("bytes")
    publish(client, path, *["x" * 1000] * 10)
    stream.subscribe("bytes", credit={"messages": 100, "bytes": 3500})

    taken = stream.messages(3)
    assert stream.has_nothing()
    assert in_flight(client, path) == 3

    for _ in range(7):
        stream.ack([taken.pop(0)])
        taken += stream.messages(1)
    assert ready(client, path) == 0


def test_a_message_larger_than_the_credit_is_delivered_alone(client: Client, stream: Stream) -> None:
    path = client.queue("large")
    publish(client, path, "x" * 5000, "y" * 5000)
    stream.subscribe("large", credit={"messages": 100, "bytes": 1000})

    first = stream.messages(1)
    assert stream.has_nothing()

    stream.ack(first)
    assert payloads(stream.messages(1)) == ["y" * 5000]


def test_messages_return_in_order_when_the_socket_dies(client: Client, open_server: Served) -> None:
    path = client.queue("dies")
    publish(client, path, "a", "b", "c")
    with opened(open_server.url) as stream:
        stream.subscribe("dies")
        [first, *_] = stream.messages(3)
        stream.ack([first])
        stream.connection.socket.close()

    until(lambda: ready(client, path) == 2)
    messages = client.receive(path, max=10)
    assert payloads(messages) == ["b", "c"]
    assert [each["receive_count"] for each in messages] == [2, 2]


def test_a_client_that_closes_gives_its_messages_back(client: Client, open_server: Served) -> None:
    path = client.queue("closes")
    publish(client, path, "a")
    with opened(open_server.url) as stream:
        stream.subscribe("closes")
        stream.messages(1)

    until(lambda: ready(client, path) == 1)


def test_a_receipt_of_an_earlier_connection_is_refused(client: Client, open_server: Served) -> None:
    path = client.queue("earlier")
    publish(client, path, "a")
    with opened(open_server.url) as stream:
        stream.subscribe("earlier")
        [old] = stream.messages(1)

    with opened(open_server.url) as stream:
        stream.subscribe("earlier")
        [new] = stream.messages(1)

        reply = stream.ack([old])
        assert (reply["count"], reply["failed"][0]["code"]) == (0, "visibility_timeout_expired")
        assert stream.ack([new])["count"] == 1


def test_kept_leases_outlive_their_connection(client: Client, open_server: Served) -> None:
    kept, bound = client.queue("outlives"), client.queue("outlives-not")
    publish(client, kept, "a", "b")
    publish(client, bound, "c")
    with opened(open_server.url) as stream:
        stream.subscribe("outlives", keep=True, lease=600)
        messages = stream.messages(2)
        stream.subscribe("outlives-not", lease=600)
        stream.messages(1)
        stream.connection.socket.close()

    until(lambda: ready(client, bound) == 1)

    assert (ready(client, kept), in_flight(client, kept)) == (0, 2)
    reply = client.post(f"{kept}/ack", {"receipts": [each["receipt_id"] for each in messages]})
    assert reply.value["count"] == 2


def test_leases_without_an_end_cannot_be_kept(client: Client, stream: Stream) -> None:
    client.queue("endless")
    reply = stream.ask("subscribe", sub=1, queue="endless", keep=True)
    assert (reply["op"], reply["code"]) == ("error", "invalid")


def test_a_lease_that_is_over_uses_no_credit_once_its_extension_failed(
    client: Client, stream: Stream
) -> None:
    path = client.queue("over")
    publish(client, path, "a", "b")
    stream.subscribe("over", lease=0.05, keep=True, credit={"messages": 1})
    [first] = stream.messages(1)
    until(lambda: ready(client, path) == 2)

    reply = stream.ask("extend", receipts=[first["receipt_id"]], seconds=600)

    assert reply["failed"][0]["code"] == "visibility_timeout_expired"
    assert payloads(stream.messages(1)) == ["a"]


def test_one_bad_receipt_does_not_stop_the_others(client: Client, stream: Stream) -> None:
    path = client.queue("some")
    publish(client, path, "a", "b")
    stream.subscribe("some")
    [one, two] = stream.messages(2)

    reply = stream.ask("ack", receipts=[one["receipt_id"], "no receipt", two["receipt_id"]])

    assert reply["count"] == 2
    assert [each["receipt_id"] for each in reply["failed"]] == ["no receipt"]


def test_nack_reject_release_and_extend(client: Client, stream: Stream) -> None:
    client.queue("verbs-dead")
    path = client.queue("verbs", dlq="verbs-dead", max_receives=5)
    publish(client, path, "nacked")
    stream.subscribe("verbs", lease=30, credit={"messages": 1})

    [message] = stream.messages(1)
    extended = stream.ask("extend", receipts=[message["receipt_id"]], seconds=100)
    assert extended["outcomes"][0] > message["deadline"]
    reply = stream.ask("nack", receipts=[message["receipt_id"]], delay=0, reason="not today")
    assert reply["outcomes"] == ["returned"]

    [message] = stream.messages(1)
    assert (message["receive_count"], message["reason"]) == (2, "not today")
    assert stream.ask("release", receipts=[message["receipt_id"]])["count"] == 1

    [message] = stream.messages(1)
    assert message["receive_count"] == 2, "a release does not count"
    assert stream.ask("reject", receipts=[message["receipt_id"]], reason="bad")["outcomes"] == [
        "dead-lettered"
    ]
    assert ready(client, "/queues/verbs-dead") == 1


def test_a_lease_in_seconds_ends_by_itself(client: Client, stream: Stream) -> None:
    path = client.queue("short")
    publish(client, path, "a")
    stream.subscribe("short", lease=0.2)
    [first] = stream.messages(1)

    [second] = stream.messages(1)

    assert second["receive_count"] == 2
    assert stream.ack([first])["failed"][0]["code"] == "visibility_timeout_expired"


def test_types_and_attributes_filter_what_is_pushed(client: Client, stream: Stream) -> None:
    path = client.queue("types")
    for kind in ("a", "b", "a"):
        message = {"payload": kind, "message_type": kind, "attributes": {"kind": kind, "n": 1}}
        client.post(f"{path}/messages", message)
    stream.subscribe("types", types=["b"], attributes={"kind": ["b", "c"], "n": 1})

    assert payloads(stream.messages(1)) == ["b"]
    assert ready(client, path) == 2
    for wrong in ({"kind": {"deep": 1}}, {"kind": []}, {str(n): n for n in range(101)}):
        reply = stream.ask("subscribe", sub="wrong", queue="types", attributes=wrong)
        assert (reply["op"], reply["code"]) == ("error", "invalid_setting"), reply


def test_queues_that_are_created_later_join_a_pattern(client: Client, stream: Stream) -> None:
    path = client.queue("pattern.one")
    publish(client, path, "first")
    client.queue("other.one")
    assert stream.ask("subscribe", sub="p", pattern="pattern.*")["op"] == "ok"
    assert payloads(stream.messages(1)) == ["first"]

    later = client.queue("pattern.two")
    publish(client, later, "second")

    frame = stream.next("deliver")
    assert (frame["sub"], frame["queue"], payloads(frame["messages"])) == ("p", "pattern.two", ["second"])


def test_the_credit_of_a_pattern_is_shared_by_its_queues(client: Client, stream: Stream) -> None:
    for name in ("shared.a", "shared.b", "shared.c"):
        publish(client, client.queue(name), "1", "2")
    stream.ask("subscribe", sub="p", pattern="shared.*", credit={"messages": 4})

    taken = stream.messages(4)
    assert stream.has_nothing()

    stream.ack(taken)
    assert len(stream.messages(2)) == 2


def test_a_deleted_queue_is_reported(client: Client, stream: Stream) -> None:
    path = client.queue("deleted")
    publish(client, path, "a")
    stream.subscribe("deleted")
    [message] = stream.messages(1)

    client.delete(path)

    assert stream.next("gone") == {"op": "gone", "sub": "deleted", "queue": "deleted"}
    assert stream.ack([message])["count"] == 0
    assert stream.ask("unsubscribe", sub="deleted")["code"] == "subscription_not_found"


def test_unsubscribe_ends_deliveries_and_may_release(client: Client, stream: Stream) -> None:
    path = client.queue("ended")
    publish(client, path, "a")
    stream.subscribe("ended")
    stream.messages(1)

    assert stream.ask("unsubscribe", sub="ended", release=True)["op"] == "ok"

    assert ready(client, path) == 1
    publish(client, path, "b")
    assert stream.has_nothing()


def test_deliveries_stay_with_the_client_after_unsubscribe(client: Client, stream: Stream) -> None:
    path = client.queue("kept")
    publish(client, path, "a")
    stream.subscribe("kept")
    messages = stream.messages(1)

    stream.ask("unsubscribe", sub="kept")

    assert in_flight(client, path) == 1
    assert stream.ack(messages)["count"] == 1


def test_messages_are_shared_among_subscribers_in_turn(client: Client, open_server: Served) -> None:
    path = client.queue("turns")
    with opened(open_server.url) as one, opened(open_server.url) as two:
        one.subscribe("turns")
        two.subscribe("turns")
        publish(client, path, *map(str, range(10)))

        assert len(one.messages(5)) == len(two.messages(5)) == 5


def test_published_messages_are_confirmed(client: Client, stream: Stream) -> None:
    path = client.queue("publish")

    plain = stream.ask("publish", queue="publish", messages=["a", "b"])
    mixed = stream.ask(
        "publish",
        queue="publish",
        messages=["c", {"payload": "d", "delay": 1, "at": 1}, {"payload": "e", "id": "own"}],
    )

    assert (plain["op"], plain["count"]) == ("published", 2)
    assert (mixed["count"], mixed["failed"]) == (2, 1)
    assert mixed["results"][1]["code"] == "invalid_setting"
    assert mixed["results"][2]["id"] == "own"
    assert payloads(client.receive(path, max=10)) == ["a", "b", "c", "e"]


def test_the_errors_of_requests_have_their_ids(client: Client, stream: Stream) -> None:
    client.queue("errors")
    codes = {
        "subscribe": ({"sub": 1, "queue": "nowhere"}, "queue_not_found"),
        "credit": ({"sub": "none", "messages": 1}, "subscription_not_found"),
        "publish": ({"queue": "nowhere", "messages": ["a"]}, "queue_not_found"),
        "ack": ({"receipts": "x"}, "invalid"),
        "extend": ({"receipts": [], "seconds": -1}, "invalid"),
        "dance": ({}, "invalid"),
    }
    for op, (fields, code) in codes.items():
        reply = stream.ask(op, **fields)
        assert (reply["op"], reply["code"]) == ("error", code), reply
        assert reply["detail"]

    stream.connection.send("{")
    assert stream.next("error")["code"] == "malformed"


def test_a_subscription_names_a_queue_or_a_pattern_once(client: Client, stream: Stream) -> None:
    client.queue("once")
    stream.subscribe("once")

    assert stream.ask("subscribe", sub="once", queue="once")["code"] == "invalid"
    assert stream.ask("subscribe", sub=2)["code"] == "invalid"
    assert stream.ask("subscribe", sub=2, queue="once", pattern="*")["code"] == "invalid"


def test_binary_bodies_need_no_base64_in_msgpack(client: Client, open_server: Served) -> None:
    client.queue("binary")
    body = bytes(range(256))
    with opened(open_server.url, "openq.msgpack") as stream:
        assert stream.ask("publish", queue="binary", messages=[body, "text"])["count"] == 2
        stream.subscribe("binary")
        messages = stream.messages(2)
        assert payloads(messages) == [body, "text"]
        stream.ask("release", receipts=[each["receipt_id"] for each in messages])

    with opened(open_server.url, "openq.json") as stream:
        stream.subscribe("binary")
        [first, _] = stream.messages(2)
        assert (base64.b64decode(first["payload"]), first["payload_encoding"]) == (body, "base64")


@pytest.mark.parametrize(
    ("subprotocol", "chosen"), [(None, None), ("other", None), ("openq.json", "openq.json")]
)
def test_a_client_without_a_known_subprotocol_gets_json(
    open_server: Served, subprotocol: str | None, chosen: str | None
) -> None:
    with opened(open_server.url, subprotocol) as stream:
        assert stream.connection.subprotocol == chosen
        assert stream.hello["op"] == "hello"


def test_large_batches_come_in_frames_that_clients_accept(client: Client, stream: Stream) -> None:
    path = client.queue("frames")
    for _ in range(4):
        publish(client, path, *["x" * 100_000] * 5)
    stream.subscribe("frames", credit={"messages": 1000})

    assert len(stream.messages(20)) == 20


def test_the_name_of_a_consumer_is_shown(client: Client, stream: Stream) -> None:
    path = client.queue("named")
    publish(client, path, "a")
    stream.subscribe("named", consumer="me")
    stream.messages(1)
    other = client.queue("unnamed")
    publish(client, other, "a")
    stream.subscribe("unnamed")
    stream.messages(1)

    assert client.get(f"{path}/in-flight").value["messages"][0]["consumer"] == "me"
    assert client.get(f"{other}/in-flight").value["messages"][0]["consumer"].startswith("ws:127.0.0.1:")


def test_fifo_groups_are_pushed_in_order(client: Client, stream: Stream) -> None:
    path = client.queue("ordered.fifo", fifo=True)
    for group, text in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        client.post(f"{path}/messages", {"payload": text, "group": group, "dedup_id": text})
    stream.subscribe("ordered.fifo", credit={"messages": 1})

    seen = []
    for _ in range(3):
        messages = stream.messages(1)
        seen += payloads(messages)
        stream.ack(messages)

    assert seen.index("a1") < seen.index("a2")
    assert sorted(seen) == ["a1", "a2", "b1"]


def test_the_limits_of_a_queue_hold_for_what_is_pushed(client: Client, stream: Stream) -> None:
    path = client.queue("limited", concurrency=2)
    publish(client, path, "a", "b", "c")
    stream.subscribe("limited", credit={"messages": 10})

    first = stream.messages(2)
    assert stream.has_nothing()
    stream.ack(first[:1])

    assert payloads(stream.messages(1)) == ["c"]


def test_an_account_of_the_path_has_its_own_queues(open_server: Served) -> None:
    client = Client(open_server.url, account="111122223333")
    path = client.queue("mine")
    publish(client, path, "a")
    with opened(open_server.url, account="111122223333") as stream:
        stream.subscribe("mine")
        assert payloads(stream.messages(1)) == ["a"]
        assert (
            stream.ask("publish", queue="nowhere", messages=["x"])["detail"]
            == "queue 'nowhere' does not exist"
        )
