"""Messages through the REST API, against a real server."""

from __future__ import annotations

import base64
import json
import socket
import threading
from typing import Any

import msgspec
import pytest

from tests.client.helpers import schema, violations
from tests.rest.helpers import JSON, MSGPACK, Answer, Client
from tests.serving import Served
from tests.waiting import until


def test_the_transmission_form_goes_in_as_it_is_and_comes_out_as_the_consumption_form(client: Client) -> None:
    path = client.queue("forms")

    sent = client.post(
        f"{path}/messages", {"id": "order-1", "timestamp": "2023-04-03T10:30:00Z", "payload": "a task"}
    )
    [message] = client.receive(path)

    assert (sent.status, sent.value) == (201, {"id": "order-1"})
    assert message["id"] == "order-1"
    assert message["timestamp"] == "2023-04-03T10:30:00Z"
    assert message["payload"] == "a task"
    assert message["message_type"] is None
    assert message["priority"] == 0
    assert message["receive_count"] == 1
    assert message["status"] == "processing"
    assert message["receipt_id"]


def test_a_message_that_was_received_can_be_sent_on_as_it_is(client: Client) -> None:
    path, other = client.queue("send-on"), client.queue("sent-on")
    client.post(f"{path}/messages", {"payload": {"a": [1]}, "message_type": "t", "attributes": {"x": 1}})
    [message] = client.receive(path)

    assert client.post(f"{other}/messages", message).status == 201
    [again] = client.receive(other)

    for name in ("id", "timestamp", "payload", "message_type", "attributes"):
        assert again[name] == message[name]


@pytest.mark.parametrize(
    "payload",
    ["", "text", "grüße 🐇", 7, -1.5, None, True, [], {"a": {"b": [1, None]}}, 2**70, "\u0000\x1f"],
)
def test_json_payloads_come_back_as_they_were(client: Client, payload: Any) -> None:
    path = client.queue("payloads")
    client.post(f"{path}/purge")

    client.post(f"{path}/messages", {"payload": payload})
    [message] = client.receive(path)

    assert message["payload"] == payload
    assert "payload_encoding" not in message


def test_a_json_body_goes_in_and_out_byte_for_byte(client: Client) -> None:
    path = client.queue("verbatim")
    body = b'{"a":  1.50, "a": 2e0}'

    client.send("POST", f"/api/v1{path}/messages", b'{"payload": ' + body + b"}", {"content-type": JSON})
    answer = client.post(f"{path}/receive", {})

    assert body in answer.data


def test_binary_bodies_are_base64_in_json_and_bin_in_msgpack(client: Client) -> None:
    path = client.queue("binary")
    body = bytes(range(256))

    text = base64.b64encode(body).decode()
    client.post(f"{path}/messages", {"payload": text, "payload_encoding": "base64"})
    client.post(f"{path}/messages", {"payload": body}, kind=MSGPACK)
    [first] = client.receive(path)
    second = client.post(f"{path}/receive", {}, kind=MSGPACK).value["messages"][0]

    assert (first["payload"], first["payload_encoding"]) == (text, "base64")
    assert second["payload"] == body


@pytest.mark.parametrize("payload", ["text", b"\xff\x00", 5, {"a": [1.5, None]}, {"raw": b"\x00"}, {1: 2}])
def test_msgpack_payloads_come_back_as_they_were(client: Client, payload: Any) -> None:
    path = client.queue("packed")
    client.post(f"{path}/purge")

    client.post(f"{path}/messages", {"payload": payload}, kind=MSGPACK)
    answer = client.post(f"{path}/receive", {}, kind=MSGPACK)

    assert msgspec.msgpack.decode(answer.data, strict=False)["messages"][0]["payload"] == payload


def test_attributes_hold_every_plain_value_in_both_formats(client: Client) -> None:
    path = client.queue("attributes")
    plain = {"s": "é", "i": 5, "f": 0.5, "n": None, "b": True, "l": [1, {"x": []}]}

    client.post(f"{path}/messages", {"payload": "", "attributes": {**plain, "raw": {"$base64": "AP8="}}})
    client.post(
        f"{path}/messages", {"payload": "", "attributes": {**plain, "raw": b"\x00\xff"}}, kind=MSGPACK
    )
    in_json = client.receive(path)[0]["attributes"]
    in_msgpack = client.post(f"{path}/receive", {}, kind=MSGPACK).value["messages"][0]["attributes"]

    assert in_json == {**plain, "raw": {"$base64": "AP8="}}
    assert in_msgpack == {**plain, "raw": b"\x00\xff"}


def test_everything_a_message_can_be_sent_with_is_kept(client: Client) -> None:
    path = client.queue("everything")
    options = {
        "priority": 9,
        "group": "g",
        "message_type": "invoice",
        "unique_key": "u",
        "ttl": 3600,
        "publisher": "me",
        "at": "2100-01-01T00:00:00Z",
    }

    message_id = client.post(f"{path}/messages", {"payload": "x", **options}).value["id"]
    shown = client.get(f"{path}/messages/{message_id}").value

    assert shown["state"] == "delayed"
    assert shown["due_at"] == "2100-01-01T00:00:00Z"
    assert shown["expires_at"] == "2100-01-01T01:00:00Z"
    for name in ("priority", "group", "message_type", "unique_key", "publisher"):
        assert shown[name] == options[name]


def test_a_duplicate_gets_the_id_of_the_first(client: Client) -> None:
    path = client.queue("dedup")

    first = client.post(f"{path}/messages", {"payload": "a", "dedup_id": "d"}).value
    second = client.post(f"{path}/messages", {"payload": "b", "dedup_id": "d"}).value

    assert second == {"id": first["id"], "duplicate": True}


# -- batches ------------------------------------------------------------------------------------


def test_plain_bodies_become_one_run_of_consecutive_ids(client: Client) -> None:
    path = client.queue("run")

    answer = client.post(f"{path}/messages/batch", [b"a", b"b", b"c"], kind=MSGPACK).value
    messages = client.receive(path, max=10)

    assert answer["count"] == 3
    assert [message["id"] for message in messages] == [
        f"{answer['first_id'][:-12]}{int(answer['first_id'][-12:], 16) + i:012x}" for i in range(3)
    ]


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("kind", [JSON, MSGPACK])
def test_each_message_of_a_batch_has_its_own_outcome(client: Client, kind: str, bare: bool) -> None:
    path = client.queue("outcomes", max_body=10)
    client.post(f"{path}/purge")
    items = ["text", {"payload": "x", "id": "own"}, {"payload": "far too long for it"}, {"delay": 1}]

    answer = client.post(f"{path}/messages/batch", items if bare else {"messages": items}, kind=kind)

    assert answer.status == 201
    assert (answer.value["count"], answer.value["failed"]) == (2, 2)
    results = answer.value["results"]
    assert results[1] == {"id": "own"}
    assert [each.get("code") for each in results] == [None, None, "too_large", "invalid"]
    assert [message["payload"] for message in client.receive(path, max=10)] == ["text", "x"]


def test_a_batch_of_bytes_goes_one_by_one_where_the_queue_has_rules(client: Client) -> None:
    path = client.queue("ruled", max_length=2, overflow="reject")

    answer = client.post(f"{path}/messages/batch", [b"a", b"b", b"c"], kind=MSGPACK).value

    assert [each.get("code") for each in answer["results"]] == [None, None, "queue_full"]


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
def test_a_batch_of_1000_is_taken_and_one_of_1001_refused_as_a_whole(client: Client, kind: str) -> None:
    path = client.queue("thousand")
    client.post(f"{path}/purge")

    assert client.post(f"{path}/messages/batch", ["x"] * 1001, kind=kind).code == "batch_too_large"
    assert client.get(f"{path}/stats").value["ready"] == 0
    assert client.post(f"{path}/messages/batch", ["x"] * 1000, kind=kind).value["count"] == 1000
    assert len(client.receive(path, max=1000)) == 1000


def test_an_empty_batch_is_none(client: Client) -> None:
    path = client.queue("empty-batch")

    assert client.post(f"{path}/messages/batch", []).value["count"] == 0
    assert client.post("/queues/nowhere/messages/batch", []).code == "queue_not_found"


# -- deliveries ---------------------------------------------------------------------------------


def test_an_acked_message_is_gone_and_its_receipt_unknown(client: Client) -> None:
    path = client.queue("ack")
    client.post(f"{path}/messages", {"payload": "x"})
    [message] = client.receive(path)

    first = client.post(f"{path}/ack", {"receipt_id": message["receipt_id"]})
    second = client.post(f"{path}/ack", {"receipt_id": message["receipt_id"]})

    assert first.value["count"] == 1
    assert (second.status, second.code) == (404, "message_not_found")
    gone = client.get(f"{path}/messages/{message['id']}")
    assert gone.status == 404
    assert gone.value["facts"] == {"message_status": "processed"}


def test_a_receipt_of_a_lease_that_is_over_is_refused(client: Client) -> None:
    path = client.queue("fencing", visibility_timeout=0)
    client.post(f"{path}/messages", {"payload": "x"})
    [first] = client.receive(path)
    [second] = client.receive(path, visibility_timeout=60)

    late = client.post(f"{path}/ack", {"receipt_id": first["receipt_id"]})

    assert (late.status, late.code) == (409, "visibility_timeout_expired")
    assert second["receive_count"] == 2
    assert client.post(f"{path}/ack", {"receipt_id": second["receipt_id"]}).status == 200


def test_many_receipts_are_settled_each_for_itself(client: Client) -> None:
    path = client.queue("many")
    client.post(f"{path}/messages/batch", ["a", "b", "c"])
    receipts = [message["receipt_id"] for message in client.receive(path, max=3)]

    answer = client.post(f"{path}/ack", {"receipts": [*receipts[:2], "nonsense", receipts[0]]}).value

    assert answer["count"] == 2
    assert [(each["receipt_id"], each["code"]) for each in answer["failed"]] == [
        ("nonsense", "message_not_found"),
        (receipts[0], "message_not_found"),
    ]


def test_nack_gives_back_with_a_reason_and_reject_buries(client: Client) -> None:
    client.queue("dead_lettered")
    path = client.queue("nack", dlq="dead_lettered", max_receives=5)
    client.post(f"{path}/messages", {"payload": "x"})

    [message] = client.receive(path)
    answer = client.post(f"{path}/nack", {"receipt_id": message["receipt_id"], "delay": 0, "reason": "busy"})
    [again] = client.receive(path)
    client.post(
        f"{path}/nack", {"receipt_id": again["receipt_id"], "reject": True, "reason": "ValueError: 5"}
    )

    assert answer.value["outcomes"]
    assert (again["receive_count"], again["reason"]) == (2, "busy")
    [letter] = client.get("/queues/dead_lettered/dead-letters").value["messages"]
    assert (letter["id"], letter["source"], letter["reason"]) == (message["id"], "nack", "ValueError: 5")


def test_a_nack_without_a_delay_waits_as_the_queue_says(client: Client) -> None:
    for retry, state in ((None, "retry"), ("default", "retry"), ("none", "ready")):
        chosen = {} if retry is None else {"retry": retry}
        path = client.queue(f"nack-{retry}", **chosen)
        client.post(f"{path}/messages", {"payload": "x"})
        [message] = client.receive(path)

        client.post(f"{path}/nack", {"receipt_id": message["receipt_id"]})

        assert client.get(f"{path}/messages/{message['id']}/why").value["code"] == state
    assert client.get("/queues/nack-None").value["settings"]["retry"] == {
        "kind": "exponential",
        "base": 1,
        "max": 900,
        "factor": 2,
        "jitter": 0.2,
        "on_expiry": False,
    }


def test_a_nack_takes_a_traceback_along(client: Client) -> None:
    client.queue("traced-dead")
    path = client.queue("traced", dlq="traced-dead", max_receives=1)
    client.post(f"{path}/messages", {"payload": "x"})
    [message] = client.receive(path)
    lines = "\n".join(f"  at line {number}" for number in range(2_000))

    failed = {"receipt_id": message["receipt_id"], "reason": "Error: no", "traceback": f"Stack:\n{lines}"}
    client.post(f"{path}/nack", failed)

    letters = "/queues/traced-dead/dead-letters"
    [letter] = client.get(f"{letters}?traceback=true").value["messages"]
    assert letter["reason"] == "Error: no"
    assert letter["traceback"].startswith("...\n  at line ")
    assert letter["traceback"].endswith("at line 1999")
    assert len(letter["traceback"]) <= 4096
    assert "traceback" not in client.get(letters).value["messages"][0]
    assert client.get("/queues/traced-dead/messages").value["messages"][0]["traceback"] == letter["traceback"]
    reported = client.get(f"{path}/messages/{message['id']}/timeline").value["steps"][-1]
    assert (reported["what"], reported["traceback"]) == ("dead-lettered", letter["traceback"])
    assert client.get("/queues/traced-dead/dead-letters/groups").value["groups"][0]["sample"] == "Error: no"
    why = client.get(f"{path}/messages/{message['id']}/why").value
    assert (why["code"], "'traced-dead'" in why["text"]) == ("dead_lettered", True)


def test_extend_moves_the_deadline(client: Client) -> None:
    path = client.queue("extend", visibility_timeout=30)
    client.post(f"{path}/messages", {"payload": "x"})
    [message] = client.receive(path)

    client.post(f"{path}/extend", {"receipt_id": message["receipt_id"], "seconds": 3600})
    [lease] = client.get(f"{path}/in-flight").value["messages"]

    assert lease["id"] == message["id"]
    assert lease["deadline"] > message["deadline"]


def test_a_waiting_receive_gets_a_message_that_comes_meanwhile(client: Client) -> None:
    path = client.queue("waiting")
    answers: list[Answer] = []
    waiting = threading.Thread(
        target=lambda: answers.append(client.post(f"{path}/receive", {"wait": 30, "consumer": "w"}))
    )
    waiting.start()
    until(lambda: client.get(f"{path}/stats").value["waiters"] == 1)

    client.post(f"{path}/messages", {"payload": "at last"})
    waiting.join(30)

    assert [message["payload"] for message in answers[0].value["messages"]] == ["at last"]


def test_a_client_that_hangs_up_while_it_waits_takes_no_message_with_it(
    client: Client, open_server: Served
) -> None:
    path = client.queue("hang-up", visibility_timeout=3600)
    body = b'{"wait": 60}'
    with socket.create_connection(("127.0.0.1", open_server.port), 10) as caller:
        caller.sendall(
            f"POST /api/v1{path}/receive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        until(lambda: client.get(f"{path}/stats").value["waiters"] == 1)
    until(lambda: client.get(f"{path}/stats").value["waiters"] == 0)

    client.post(f"{path}/messages", {"payload": "x"})

    assert len(client.receive(path)) == 1


def test_receive_chooses_by_type_and_attributes(client: Client) -> None:
    path = client.queue("types")
    client.post(f"{path}/messages/batch", [{"payload": t, "message_type": t} for t in ("a", "b")])
    client.post(f"{path}/messages", {"payload": "c", "attributes": {"n": 1, "raw": {"$base64": "/w=="}}})

    assert client.receive(path, max=10, types=["b"], attributes={"n": 1}) == []
    wanted = {"n": [1, 2], "raw": {"$base64": "/w=="}}
    assert [m["payload"] for m in client.receive(path, max=10, attributes=wanted)] == ["c"]
    assert [m["payload"] for m in client.receive(path, max=10, types=["b"])] == ["b"]


def test_nothing_there_is_an_empty_list(client: Client) -> None:
    assert client.receive(client.queue("nothing")) == []


# -- looking ------------------------------------------------------------------------------------


def test_pages_show_every_message_once_whatever_priority_group_and_state(client: Client) -> None:
    path = client.queue("pages")
    sent = [
        {"payload": i, "priority": i % 3, "group": f"g{i % 4}", **({"delay": 1000 + i} if i % 5 == 0 else {})}
        for i in range(40)
    ]
    client.post(f"{path}/messages/batch", sent)
    client.receive(path, max=7)

    seen: list[int] = []
    after = ""
    while True:
        page = client.get(f"{path}/messages?state=all&limit=7&after={after}").value
        seen += [message["payload"] for message in page["messages"]]
        if "next" not in page:
            break
        after = page["next"]

    assert sorted(seen) == list(range(40))


def test_looking_changes_nothing(client: Client) -> None:
    path = client.queue("look")
    client.post(f"{path}/messages/batch", ["a", "b"])

    front = client.get(f"{path}/messages?limit=1").value["messages"]
    rear = client.get(f"{path}/messages?limit=1&rear=true").value["messages"]

    assert (front[0]["payload"], rear[0]["payload"]) == ("a", "b")
    assert [m["receive_count"] for m in client.receive(path, max=2)] == [1, 1]


def test_search_finds_by_text_json_attributes_type_and_id(client: Client) -> None:
    path = client.queue("search")
    client.post(
        f"{path}/messages/batch",
        [
            {"id": "1", "payload": {"user": {"name": "ann"}}, "message_type": "t1"},
            {"id": "2", "payload": "find me", "attributes": {"colour": "red"}},
            {"id": "3", "payload": "other"},
        ],
    )

    def found(**wanted: Any) -> list[str]:
        answer = client.post(f"{path}/search", wanted).value
        assert answer["complete"]
        return [message["id"] for message in answer["messages"]]

    assert found(text="find") == ["2"]
    assert found(json={"user.name": "ann"}) == ["1"]
    assert found(attributes={"colour": "red"}) == ["2"]
    assert found(message_type="t1") == ["1"]
    assert found(ids=["3", "1", "unknown"]) == ["3", "1"]
    assert found(state="in_flight") == []


def test_search_finds_by_age_and_deliveries(client: Client) -> None:
    path = client.queue("search-age", retry="none")
    client.post(f"{path}/messages/batch", [{"id": "1", "payload": "a"}, {"id": "2", "payload": "b"}])
    [first] = client.receive(path)
    client.post(f"{path}/nack", {"receipt_id": first["receipt_id"], "delay": 0})

    def found(**wanted: Any) -> list[str]:
        return [message["id"] for message in client.post(f"{path}/search", wanted).value["messages"]]

    assert found(min_receives=1) == [first["id"]]
    assert found(max_receives=0) == [{"1": "2", "2": "1"}[first["id"]]]
    assert found(min_age=3600) == []
    assert found(max_age=3600) == ["1", "2"]
    assert client.post(f"{path}/replay", {"filter": {"min_age": 5}, "dry_run": True}).status == 422


def test_a_search_continues_where_its_limit_ended_it(client: Client) -> None:
    path = client.queue("search-on")
    bodies = [f"{'yes' if number % 3 == 0 else 'no'} {number}" for number in range(30)]
    client.post(f"{path}/messages/batch", [*bodies, {"payload": "yes, later", "delay": 900}])
    found: list[str] = []
    scanned = 0
    after = ""
    while True:
        answer = client.post(f"{path}/search", {"text": "yes", "limit": 4, "after": after}).value
        found += [message["payload"] for message in answer["messages"]]
        scanned += answer["scanned"]
        assert answer["complete"] == ("next" not in answer)
        if answer["complete"]:
            break
        after = answer["next"]

    assert found == [*(body for body in bodies if body.startswith("yes")), "yes, later"]
    assert scanned == 31
    assert client.post(f"{path}/search", {"text": "yes", "after": "nonsense"}).status == 422


def test_the_timeline_and_the_reason_of_a_message_are_shown(client: Client) -> None:
    path = client.queue("story")
    message_id = client.post(f"{path}/messages", {"payload": "x", "publisher": "ann"}).value["id"]
    waiting = client.get(f"{path}/messages/{message_id}/why").value
    [message] = client.receive(path)
    client.post(f"{path}/ack", {"receipt_id": message["receipt_id"]})

    steps = client.get(f"{path}/messages/{message_id}/timeline").value["steps"]

    assert waiting["code"] == "ready"
    assert [step["what"] for step in steps] == ["published", "delivered", "acked"]
    assert {step["queue"] for step in steps} == {"story"}


# -- mending ------------------------------------------------------------------------------------


def test_an_edit_changes_what_it_names_and_keeps_the_rest(client: Client) -> None:
    path = client.queue("edit")
    client.post(
        f"{path}/messages",
        {"id": "e", "payload": 1, "message_type": "t", "attributes": {"a": 1}, "delay": 99},
    )

    client.patch(f"{path}/messages/e", {"payload": {"fixed": True}, "delay": 0})
    client.patch(f"{path}/messages/e", {"message_type": None})
    [message] = client.receive(path)

    assert message["payload"] == {"fixed": True}
    assert message["attributes"] == {"a": 1}
    assert message["message_type"] is None


def test_a_message_can_be_moved_and_cancelled(client: Client) -> None:
    path, other = client.queue("move-a"), client.queue("move-b")
    client.post(f"{path}/messages", {"id": "m", "payload": "x"})

    assert client.post(f"{path}/messages/m/move", {"to": "move-b"}).value == {"id": "m"}
    assert client.get(f"{path}/messages/m").code == "message_not_found"
    assert client.delete(f"{other}/messages/m").value == {"id": "m"}
    assert client.delete(f"{other}/messages/m").code == "message_not_found"


def test_a_message_named_batch_is_a_message(client: Client) -> None:
    path = client.queue("odd-id")
    client.post(f"{path}/messages", {"id": "batch", "payload": "x"})

    assert client.get(f"{path}/messages/batch").value["id"] == "batch"


# -- the three forms ----------------------------------------------------------------------------


def test_what_is_shown_fits_the_published_schemas(client: Client) -> None:
    path = client.queue("schemas")
    client.post(f"{path}/messages/batch", ["text", {"payload": {"a": 1}, "group": "g", "delay": 5}])
    client.post(f"{path}/messages", {"payload": b"\xff"}, kind=MSGPACK)
    client.receive(path)

    def check(form: str, messages: list[Any]) -> None:
        for message in messages:
            assert violations(message, schema(form)) == []

    lines = client.get("/export?queue=schemas").data.splitlines()
    exported = [json.loads(line) for line in lines]
    assert len(exported) == 3
    assert {line["status"] for line in exported} == {"unprocessed", "processing"}
    check("persistence", exported)
    check("consumption", client.receive(path, max=10))
