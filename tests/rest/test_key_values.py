"""Key-values over REST: what a program with an HTTP client sees, and what a hostile one cannot do."""

from __future__ import annotations

import base64
import socket
import threading
from typing import Any

import msgspec
import pytest

from tests.rest.helpers import MSGPACK, Answer, Client, part

RAW = {"content-type": "application/octet-stream"}


@pytest.fixture
def client(client: Client) -> Client:
    """The tests share a server: each begins with an empty bucket."""
    while keys := [entry["key"] for entry in client.get("/kv/b?limit=1000&values=false").value["entries"]]:
        batch(client, "delete", {"keys": keys})
    return client


def put(client: Client, key: str, value: bytes, query: str = "", **headers: str) -> Answer:
    target = f"{client.prefix}/kv/b/{part(key)}{query}"
    return client.send("PUT", target, value, {**RAW, **headers})


def get(client: Client, key: str, query: str = "") -> Answer:
    return client.get(f"/kv/b/{part(key)}{query}")


def batch(client: Client, verb: str, body: Any) -> Answer:
    return client.post(f"/kv/b/{verb}", body)


def test_a_value_is_put_and_read_as_it_is(client: Client) -> None:
    stored = put(client, "k", b"\x00\xffvalue")
    found = get(client, "k", "?raw=true")
    version = stored.value["version"]

    assert stored.status == 200
    assert (found.data, found.headers["content-type"]) == (b"\x00\xffvalue", "application/octet-stream")
    assert found.headers["etag"] == f'"{version}"'


def test_a_value_is_base64_in_json_and_bytes_in_msgpack(client: Client) -> None:
    put(client, "k", b"\x00\xff", "?ttl=60")

    as_json = get(client, "k").value
    as_msgpack = client.send("GET", f"{client.prefix}/kv/b/k", None, {"accept": MSGPACK}).value

    assert base64.b64decode(as_json["value"]) == as_msgpack["value"] == b"\x00\xff"
    assert as_json["key"] == "k"
    assert as_json["bytes"] == 2
    assert as_json["expires"] > as_json["changed"]


def test_a_missing_key_is_not_found(client: Client) -> None:
    assert get(client, "missing").code == "key_not_found"
    assert client.delete("/kv/b/missing").value == {"deleted": False}
    assert client.get("/kv/b").value == {"entries": [], "next": None}


def test_a_put_may_expect_a_version_by_query_or_by_header(client: Client) -> None:
    version = put(client, "k", b"1", "?version=0").value["version"]

    refused = put(client, "k", b"2", "?version=0")
    assert (refused.status, refused.code) == (409, "kv_conflict")
    assert refused.value["facts"] == {"bucket": "b", "key": "k", "current": version}
    assert put(client, "k", b"2", **{"if-none-match": "*"}).code == "kv_conflict"
    assert put(client, "k", b"2", **{"if-match": f'"{version + 1}"'}).code == "kv_conflict"
    newer = put(client, "k", b"2", **{"if-match": f'"{version}"'}).value["version"]
    assert newer > version
    assert client.delete(f"/kv/b/k?version={version}").value == {"deleted": False}
    assert client.delete(f"/kv/b/k?version={newer}").value == {"deleted": True}
    for headers in ({"if-match": "x"}, {"if-none-match": '"1"'}, {"if-match": "1", "if-none-match": "*"}):
        assert put(client, "k", b"", **headers).code == "invalid"


def test_batches_answer_each_item(client: Client) -> None:
    outcome = batch(
        client,
        "put",
        {
            "puts": [
                {"key": "a", "value": "AAE="},
                {"key": "a", "value": "", "version": 0},
                {"key": "", "value": ""},
            ]
        },
    ).value["results"]

    assert outcome[0]["version"] > 0
    assert outcome[1]["code"] == "kv_conflict"
    assert outcome[1]["current"] == outcome[0]["version"]
    assert outcome[2]["code"] == "invalid_setting"
    found = batch(client, "get", {"keys": ["a", "b"]}).value["entries"]
    assert [entry and entry["value"] for entry in found] == ["AAE=", None]
    assert batch(client, "delete", {"keys": ["a", "b"]}).value == {"deleted": [True, False]}


def test_a_listing_is_read_in_pages(client: Client) -> None:
    for start in range(0, 10_000, 1_000):
        puts = [{"key": f"{i:05d}", "value": "AA=="} for i in range(start, start + 1_000)]
        assert batch(client, "put", {"puts": puts}).status == 200

    keys: list[str] = []
    after: str | None = ""
    while after is not None:
        page = client.get(f"/kv/b?limit=1000&after={after}&values=false").value
        assert all("value" not in entry for entry in page["entries"])
        keys += [entry["key"] for entry in page["entries"]]
        after = page["next"]
    assert keys == [f"{i:05d}" for i in range(10_000)]
    assert len(client.get("/kv/b?prefix=0001").value["entries"]) == 10
    assert client.get("/kv").value["buckets"] == [{"name": "b", "keys": 10_000, "bytes": 60_000}]


def test_a_long_poll_answers_as_soon_as_the_key_has_a_newer_version(client: Client) -> None:
    version = put(client, "k", b"1").value["version"]
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda: answers.append(get(client, "k", f"?wait=60&version={version}"))),
        threading.Thread(
            target=lambda: answers.append(batch(client, "wait", {"key": "k", "version": version, "wait": 60}))
        ),
    ]
    for thread in threads:
        thread.start()

    put(client, "k", b"2")

    for thread in threads:
        thread.join(60)
    values = sorted((answer.value.get("entry") or answer.value)["value"] for answer in answers)
    assert values == [base64.b64encode(b"2").decode()] * 2


def test_a_long_poll_ends_with_its_time(client: Client) -> None:
    version = put(client, "k", b"1").value["version"]

    assert get(client, "k", f"?wait=0.01&version={version}").code == "key_not_found"
    assert get(client, "k", f"?version={version}").code == "key_not_found"
    assert batch(client, "wait", {"key": "x", "wait": 0.01}).value == {"entry": None}


def test_a_client_that_closes_its_half_ends_its_wait(client: Client) -> None:
    with socket.create_connection((client.host, client.port), timeout=30) as connection:
        target = f"{client.prefix}/kv/b/k?wait=60"
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {client.host}\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)

        assert connection.recv(100) == b""  # long before the wait is over


def test_buckets_of_accounts_are_apart(client: Client) -> None:
    other = Client(f"http://{client.host}:{client.port}", account="111111111111")
    put(client, "k", b"mine")
    put(other, "k", b"theirs")

    assert get(client, "k", "?raw=true").data == b"mine"
    assert get(other, "k", "?raw=true").data == b"theirs"
    assert [bucket["name"] for bucket in client.get("/kv").value["buckets"]] == ["b"]


@pytest.mark.parametrize(
    ("verb", "body", "code"),
    [
        ("put", {"puts": [{"key": "k", "value": "not base64!"}]}, "invalid"),
        ("put", {"puts": [{"key": "k", "value": "AA"}]}, "invalid"),
        ("put", {"puts": [{"key": "k", "value": 7}]}, "invalid"),
        ("put", {"puts": [{"key": "k", "value": None}]}, "invalid"),
        ("put", {"puts": [{"key": 7, "value": ""}]}, "invalid"),
        ("put", {"puts": [{"key": "k", "value": "", "ttl": -1}]}, "invalid"),
        ("put", {"puts": [{"key": "k", "value": "", "ttl": 1e300}]}, "invalid"),
        ("put", {"puts": [{"key": "k", "value": "", "version": 1 << 70}]}, "invalid"),
        ("put", {"puts": [{"key": "k", "value": "", "more": 1}]}, "invalid"),
        ("put", {"puts": [{"key": "k", "value": ""}] * 1_001}, "invalid"),
        ("put", {"puts": {}}, "invalid"),
        ("put", [], "invalid"),
        ("get", {"keys": [""]}, "invalid_setting"),
        ("get", {"keys": ["k" * 513]}, "invalid_setting"),
        ("get", {"keys": ["k"] * 1_001}, "invalid"),
        ("get", {"keys": "k"}, "invalid"),
        ("delete", {"keys": ["k"], "versions": [1, 2]}, "invalid_setting"),
        ("delete", {"keys": [""]}, "invalid_setting"),
        ("wait", {"key": "", "wait": 0}, "invalid_setting"),
        ("wait", {"key": "k", "wait": 61}, "invalid"),
        ("wait", {"key": "k", "version": -1}, "invalid"),
    ],
)
def test_wrong_batches_are_refused(client: Client, verb: str, body: Any, code: str) -> None:
    assert batch(client, verb, body).code == code


def test_wrong_requests_for_one_key_are_refused(client: Client) -> None:
    assert put(client, "k" * 513, b"").code == "invalid_setting"
    assert get(client, "k" * 513).code == "invalid_setting"
    assert put(client, "k", bytes((1 << 20) + 1)).code == "invalid_setting"
    assert put(client, "k", bytes(1 << 20)).status == 200
    assert put(client, "k", b"", "?ttl=0").code == "invalid_setting"
    assert put(client, "k", b"", "?ttl=x").code == "invalid"
    assert put(client, "k", b"", "?version=-1").code == "invalid"
    assert get(client, "k", "?wait=1000").code == "invalid"
    assert client.send("GET", f"{client.prefix}/kv/b/%ff").code == "malformed"
    assert client.send("PUT", f"{client.prefix}/kv/{'b' * 256}/k", b"", RAW).code == "invalid_setting"
    assert client.send("PUT", f"{client.prefix}/kv/b%0A/k", b"", RAW).code == "invalid_setting"
    assert client.send("POST", f"{client.prefix}/kv/b/k", b"", RAW).code == "method_not_allowed"


def test_msgpack_of_the_wrong_types_is_refused(client: Client) -> None:
    for body in ({"puts": [{"key": 7, "value": b""}]}, {"puts": [{"key": "k", "value": 7}]}, [], 7):
        data = msgspec.msgpack.encode(body)
        answer = client.send("POST", f"{client.prefix}/kv/b/put", data, {"content-type": MSGPACK})
        assert answer.code == "invalid"
    answer = client.send("POST", f"{client.prefix}/kv/b/put", b"\xc1", {"content-type": MSGPACK})
    assert answer.code == "malformed"


def test_a_delete_never_takes_version_0_for_any_version(client: Client) -> None:
    put(client, "k", b"v")
    target = f"{client.prefix}/kv/b/k"

    assert client.send("DELETE", f"{target}?version=0", None, {}).status == 422
    assert client.send("DELETE", target, None, {"if-match": '"0"'}).status == 422
    assert batch(client, "delete", {"keys": ["k"], "versions": []}).status == 422
    assert get(client, "k").status == 200
