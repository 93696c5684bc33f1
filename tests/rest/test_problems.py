"""What is wrong is said so: a status, a stable code, a hint; and the server goes on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from openq.rest import formats
from openq.rest.problems import Problem
from tests.rest.helpers import JSON, MSGPACK, Client, part

NAMES = [
    *(
        ".",
        "..",
        "../../etc/passwd",
        "a/b",
        "/",
        "//",
        " ",
        "%",
        "%2F",
        "a%00b"[:1] + "?",
        "#",
        "a?b=c",
        "@x/y",
    ),
    *(
        "@000000000000/q",
        "é",
        "𝄞",
        "مرحبا",
        "a\u202eb",
        "\\",
        "'; DROP TABLE",
        "<script>",
        "x" * 255,
        "@/z",
        "*",
    ),
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_a_queue_of_its_own(client: Client, name: str) -> None:
    path = f"/queues/{part(name)}"

    assert client.put(path, {}).value["name"] == name
    client.post(f"{path}/messages", {"payload": name})
    [message] = client.receive(path)
    assert message["payload"] == name
    assert name in [queue["name"] for queue in client.get("/queues?limit=1000").value["queues"]]
    assert client.delete(path).status == 200


@pytest.mark.parametrize(
    "raw",
    ["%00", "a%0D%0AX-Evil:%201", "%ff", "%C3", "%zz", "%", "x" * 256, "x" * 10_000, "%E2%80", "", "%7f"],
)
def test_a_name_that_cannot_be_one_is_refused_everywhere(client: Client, raw: str) -> None:
    for method, tail in (("PUT", ""), ("GET", ""), ("POST", "/messages"), ("GET", "/messages/x")):
        answer = client.send(
            method, f"/api/v1/queues/{raw}{tail}", b'{"payload": 1}' if method == "POST" else None
        )

        assert answer.status in (400, 404, 422), answer.data
        assert answer.code in ("malformed", "invalid_setting", "no_such_route", "queue_not_found")
        assert "x-evil" not in answer.headers


@pytest.mark.parametrize(
    ("data", "kind", "status", "code"),
    [
        (b"{", JSON, 400, "malformed"),
        (b"\xff", JSON, 400, "malformed"),
        (b'{"payload": "\xff"}', JSON, 400, "malformed"),
        (b'{"payload": {"a": "\xff"}}', JSON, 400, "malformed"),
        (b'{"payload": "\\ud800"}', JSON, 400, "malformed"),
        (b'{"payload": NaN}', JSON, 400, "malformed"),
        (b"[" * 100_000, JSON, 422, "invalid"),
        (b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", JSON, 400, "malformed"),
        (b'{"payload": ' + b"[" * 600 + b"]" * 600 + b"}", JSON, 422, "invalid_setting"),
        (b"[]", JSON, 422, "invalid"),
        (b"null", JSON, 422, "invalid"),
        (b"{}", JSON, 422, "invalid"),
        (b"", JSON, 422, "invalid"),
        (b'{"payload": 1, "body": 2}', JSON, 422, "invalid"),
        (b'{"payload": 1, "proirity": 2}', JSON, 422, "invalid"),
        (b'{"payload": 1, "priority": 256}', JSON, 422, "invalid"),
        (b'{"payload": 1, "priority": "1"}', JSON, 422, "invalid"),
        (b'{"payload": 1, "delay": -1}', JSON, 422, "invalid"),
        (b'{"payload": 1, "delay": 1e300}', JSON, 422, "invalid"),
        (b'{"payload": 1, "delay": 1, "at": 5}', JSON, 422, "invalid_setting"),
        (b'{"payload": 1, "at": "tomorrow"}', JSON, 422, "invalid_setting"),
        (b'{"payload": 1, "timestamp": "0001-01-01T00:00:00Z"}', JSON, 422, "invalid_setting"),
        (b'{"payload": 1, "id": ""}', JSON, 422, "invalid"),
        (b'{"payload": 1, "payload_encoding": "base64"}', JSON, 422, "invalid_setting"),
        (b'{"payload": "?", "payload_encoding": "base64"}', JSON, 422, "invalid_setting"),
        (b'{"payload": "gASVAQ==", "payload_encoding": "pickle+base64"}', JSON, 422, "invalid"),
        (b'{"payload": "wQ==", "payload_encoding": "msgpack+base64"}', JSON, 422, "invalid_setting"),
        (b'{"payload": 1, "attributes": {"openq.secret": 1}}', JSON, 422, "invalid_setting"),
        (b'{"payload": 1, "attributes": {"": 1}}', JSON, 422, "invalid_setting"),
        (b'{"payload": 1, "attributes": {"a": {"$base64": "?"}}}', JSON, 422, "invalid_setting"),
        (b"\x81", MSGPACK, 400, "malformed"),
        (b"\xc1", MSGPACK, 400, "malformed"),
        (b"\x81\xa7payload\xa1\xff", MSGPACK, 400, "malformed"),
        (b"\xdd\xff\xff\xff\xff", MSGPACK, 422, "invalid"),
        (b"\x80", MSGPACK, 422, "invalid"),
        (b"\x82\xa7payload\x01\xa5delay\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", MSGPACK, 422, None),
        (b"payload=1", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"<a/>", "text/xml", 415, "unsupported_media_type"),
    ],
)
def test_a_bad_message_is_refused_and_nothing_is_queued(
    client: Client, data: bytes, kind: str, status: int, code: str | None
) -> None:
    path = client.queue("bad-bodies")

    answer = client.send("POST", f"/api/v1{path}/messages", data, {"content-type": kind})

    assert (answer.status, answer.code) == (status, code or answer.code), answer.data
    assert client.get(f"{path}/stats").value["ready"] == 0


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"[1]", JSON),
        (b'{"messages": 1}', JSON),
        (b'["a", 5]', JSON),
        (b'{"messages": ["a", null]}', JSON),
        (b"", JSON),
        (b"", MSGPACK),
        (b"\x91", MSGPACK),
        (b"\x92\xc4\x01a", MSGPACK),
        (b"\x92\xc4\x01a\x05", MSGPACK),
        (b"\x91\xa1\xff", MSGPACK),
        (b"\x91\xc4\x01a\xc0", MSGPACK),
    ],
)
def test_a_bad_batch_is_refused_as_a_whole(client: Client, data: bytes, kind: str) -> None:
    path = client.queue("bad-batches")

    answer = client.send("POST", f"/api/v1{path}/messages/batch", data, {"content-type": kind})

    assert answer.status in (400, 422), answer.data
    assert answer.code in ("malformed", "invalid")
    assert client.get(f"{path}/stats").value["ready"] == 0


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
@pytest.mark.parametrize("is_bare", [True, False])
def test_the_first_bad_message_of_a_batch_is_named_by_its_place(
    client: Client, kind: str, is_bare: bool
) -> None:
    path = client.queue("bad-places")
    messages = ["a", {"payload": 1}, {"payload": 1, "priority": 256}]

    answer = client.post(f"{path}/messages/batch", messages if is_bare else {"messages": messages}, kind=kind)

    assert (answer.status, answer.code) == (422, "invalid")
    assert "[2]" in answer.value["detail"]
    assert "priority" in answer.value["detail"]
    assert client.get(f"{path}/stats").value["ready"] == 0


class Needs(msgspec.Struct):
    id: str


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    delay: Annotated[float, msgspec.Meta(ge=0)] | None = None
    max: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = "a"
    types: Annotated[list[str], msgspec.Meta(min_length=1, max_length=2)] | None = None
    attributes: dict[str, str] | None = None
    state: Literal["ready", "delayed"] = "ready"
    above: Annotated[float, msgspec.Meta(gt=0.5)] = 1
    reject: bool = False
    inner: Needs | None = None


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('{"delay": -1}', "delay must be a number of 0 or more"),
        ('{"delay": "x"}', "delay must be a number or null, not a string"),
        ('{"max": 0}', "max must be a whole number of 1 or more"),
        ('{"max": 11}', "max must be a whole number of at most 10"),
        ('{"max": 1.5}', "max must be a whole number, not a fraction"),
        ('{"max": null}', "max must be a whole number, not null"),
        ('{"above": 0.5}', "above must be a number of more than 0.5"),
        ('{"name": ""}', "name must be a string of 1 or more characters"),
        ('{"name": "ab"}', "name must be a string of at most 1 character"),
        ('{"name": 1}', "name must be a string, not a number"),
        ('{"types": [1]}', "types[0] must be a string, not a number"),
        ('{"attributes": {"a": 1}}', "each value of attributes must be a string, not a number"),
        ('{"state": "gone"}', "state must be delayed or ready, not 'gone'"),
        ('{"reject": 1}', "reject must be true or false, not a number"),
        ('{"inner": {}}', "inner.id is missing"),
        ('{"zz": 1}', "unknown field zz; known are delay, max, name, "),
        ("[]", "the request must be an object, not a list"),
    ],
)
def test_what_does_not_fit_is_a_plain_sentence(body: str, sentence: str) -> None:
    with pytest.raises(Problem) as raised:
        formats.JSON.decode(body.encode(), Shape)

    assert raised.value.detail.startswith(sentence)
    assert "`" not in raised.value.detail


@pytest.mark.parametrize(
    ("method", "path", "body", "sentence"),
    [
        ("POST", "/queues/x/messages", {"payload": 1, "delay": -1}, "delay must be a number of 0 or more"),
        (
            "POST",
            "/queues/x/messages",
            {"payload": 1, "delay": "soon"},
            ", not a string",
        ),
        ("POST", "/queues/x/receive", {"max": 0}, "max must be a whole number of 1 or more"),
        (
            "POST",
            "/queues/x/messages/batch",
            [{"payload": 1}, {"delay": -1}],
            "[1].delay must be a number of 0",
        ),
        ("GET", "/queues?limit=none", None, "limit must be a whole number"),
    ],
)
def test_a_value_that_does_not_fit_is_named_in_plain_words(
    client: Client, method: str, path: str, body: Any, sentence: str
) -> None:
    answer = client.call(method, path, body)

    assert (answer.status, answer.code) == (422, "invalid")
    assert sentence in answer.value["detail"]
    assert "`" not in answer.value["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "known"),
    [
        (
            "POST",
            "/queues/x/receive",
            {"mx": 1},
            "max, wait, visibility_timeout, types, attributes, consumer",
        ),
        ("POST", "/queues/x/extend", {"second": 1}, "receipt_id, receipts, seconds"),
        ("POST", "/queues/x/redrive", {"filter": {"typ": "a"}}, "text, message_type, attributes, json, "),
        ("PUT", "/queues/x", {"retry": {"bse": 1}}, "kind, base, max, factor, jitter"),
        ("GET", "/queues?limt=5", None, "prefix, limit, after"),
        ("POST", "/queues/x/messages/batch", [{"payload": 1, "x": 1}], "payload, body, "),
    ],
)
def test_a_misspelled_field_is_answered_with_the_known_ones(
    client: Client, method: str, path: str, body: Any, known: str
) -> None:
    answer = client.call(method, path, body)

    assert (answer.status, answer.code) == (422, "invalid")
    assert f"; known are {known}" in answer.value["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nothing", None, 404, "no_such_route"),
        ("GET", "/queues/x/y/z", None, 404, "no_such_route"),
        ("DELETE", "/queues", None, 405, "method_not_allowed"),
        ("GET", "/queues?limit=0", None, 422, "invalid"),
        ("GET", "/queues?limit=1001", None, 422, "invalid"),
        ("GET", "/queues?limt=5", None, 422, "invalid"),
        ("GET", "/queues?limit=1&limit=2", None, 422, "invalid"),
        ("GET", "/queues?prefix=%ff", None, 400, "malformed"),
        ("GET", "/queues/unknown", None, 404, "queue_not_found"),
        ("GET", "/health?x=1", None, 422, "invalid"),
        ("GET", "/export", None, 422, "invalid"),
        ("PUT", "/queues/p", {"retry": "sometimes"}, 422, "invalid"),
        ("PUT", "/queues/p", {"max_receives": 3}, 422, "invalid_setting"),
        ("PUT", "/queues/p", {"overflow": "explode"}, 422, "invalid"),
        ("PUT", "/queues/p", {"dlq": "bad\u0000name"}, 422, "invalid_setting"),
        ("POST", "/queues/unknown/receive", {"wait": 61}, 422, "invalid"),
        ("POST", "/queues/unknown/receive", {"wait": 60}, 404, "queue_not_found"),
        ("POST", "/queues/unknown/ack", {"receipt_id": "x"}, 404, "queue_not_found"),
        ("POST", "/queues/unknown/ack", {}, 422, "invalid"),
        ("POST", "/queues/unknown/nack", {"receipts": ["x"]}, 404, "queue_not_found"),
        ("POST", "/queues/unknown/redrive", {}, 404, "queue_not_found"),
        ("GET", "/accounts/a*b/queues", None, 422, "invalid"),
        ("GET", "/accounts//queues", None, 422, "invalid"),
        ("PUT", "/exchanges/amq.mine", {}, 422, "invalid_setting"),
        ("DELETE", "/exchanges/amq.direct", None, 422, "invalid_setting"),
        ("POST", "/exchanges/unknown/publish", {"payload": 1}, 404, "exchange_not_found"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_stable_code(
    client: Client, method: str, path: str, body: Any, status: int, code: str
) -> None:
    answer = client.call(method, path, body)

    assert (answer.status, answer.code) == (status, code), answer.data


def test_a_wrong_method_is_answered_with_the_right_ones(client: Client) -> None:
    assert client.patch("/queues", {}).headers["allow"] == "GET, POST"


def test_a_full_queue_says_try_later(client: Client) -> None:
    path = client.queue("full", max_length=0, overflow="reject")

    answer = client.post(f"{path}/messages", {"payload": "x"})

    assert (answer.status, answer.code) == (429, "queue_full")
    assert answer.headers["retry-after"]


def test_a_body_beyond_the_limit_of_the_queue_is_too_large(client: Client) -> None:
    path = client.queue("small", max_body=3)

    answer = client.post(f"{path}/messages", {"payload": "four"})

    assert (answer.status, answer.code) == (413, "too_large")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", JSON),
        ("application/json", JSON),
        ("application/msgpack", MSGPACK),
        ("application/vnd.msgpack", MSGPACK),
        ("application/x-msgpack;q=0.9, application/json;q=0.1", MSGPACK),
        ("text/html, */*;q=0.1", JSON),
        ("Application/JSON; charset=utf-8", JSON),
    ],
)
def test_the_answer_comes_in_the_format_that_is_accepted(client: Client, accept: str, kind: str) -> None:
    answer = client.get("/health", accept=accept)

    assert answer.headers["content-type"] == kind
    assert answer.value["ok"] is True


def test_a_client_that_accepts_neither_format_is_refused(client: Client) -> None:
    assert client.get("/health", accept="text/html").code == "not_acceptable"
    assert client.get("/health", accept="application/json;q=0").code == "not_acceptable"


def test_who_sends_msgpack_and_accepts_anything_gets_msgpack(client: Client) -> None:
    path = client.queue("same-format")

    assert client.post(f"{path}/receive", {}, kind=MSGPACK).headers["content-type"] == MSGPACK
