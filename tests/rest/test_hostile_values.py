"""Every field of every request with values that no client should send: never an error 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from openq.config import Config
from openq.local.broker import LocalBroker
from openq.rest.handler import ROUTES
from openq.rest.routes import EVENT_STREAM, Route
from tests.server.in_process import InProcessServer, in_process_server
from tests.server.raw_http import Answer, ConnectionClosed, RawHttpClient, request_bytes

MANY_DIGITS = "1" * 5_000
TEXTS = [
    "²",
    "٣",
    MANY_DIGITS,
    "-1",
    "1e999",
    "nan",
    "-inf",
    "Infinity",
    "0x10",
    "1_000",
    " 1 ",
    "\x00",
    "9" * 19,
    "9" * 30,
    "a.²",
    "2023-99-99T00:00:00Z",
    "9999-12-31T23:59:59+14:00",
    "0001-01-01T00:00:00-23:59",
]
# As they are on the wire: Python's own `json` could not write all of them.
JSON_VALUES = [
    *(json.dumps(text) for text in TEXTS),
    MANY_DIGITS,
    f"-{MANY_DIGITS}",
    f"1.{MANY_DIGITS}",
    "1e400",
    "-1e400",
    "NaN",
    "Infinity",
    str(1 << 63),
    str(1 << 64),
    str(-(1 << 63) - 1),
    '"\\ud800"',
    '"\\udfff\\ud800"',
    "[" * 5_000 + "]" * 5_000,
    '{"a":' * 2_000 + "1" + "}" * 2_000,
    "null",
    "true",
    "[]",
    "{}",
    '{"²": 1}',
    f'{{"{MANY_DIGITS}": 1}}',
    '{"$base64": "²"}',
]
MSGPACK_VALUES = [
    float("nan"),
    float("inf"),
    float("-inf"),
    1 << 63,
    -(1 << 63),
    b"\xff\xfe",
    {1: 2},
    {b"a": 1},
]


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    with in_process_server(LocalBroker(None), Config(memory=True, drain_timeout_s=1)) as running:
        with running.wire() as wire:
            assert wire.rest("PUT", "queues/q").status == 201
            for body in ([1, [2, 3]], {"a": [1, 2]}, "text"):
                assert wire.rest("POST", "queues/q/messages", {"payload": body}).status == 201
        yield running


class Asking:
    """On one connection after another: a refusal may end one."""

    def __init__(self, server: InProcessServer) -> None:
        self._server = server
        self._wire: RawHttpClient | None = None
        self.failed: list[str] = []

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def ask(
        self, route: Route, target: str, body: bytes = b"", kind: str = "application/json"
    ) -> Answer | None:
        data = request_bytes(route.method, target, body, {"Content-Type": kind} if body else {})
        for _ in range(2):
            try:
                if self._wire is None:
                    self._wire = self._server.wire()
                answer = self._wire.ask(data)
            except ConnectionClosed:
                self.close()
                continue
            if answer.headers.get("connection") == "close":
                self.close()
            if answer.status >= 500 and answer.status not in (501, 503):
                said = answer.body[:200]
                self.failed.append(f"{route.method} {target[:120]} {body[:120]!r}: {answer.status} {said!r}")
            return answer
        self.failed.append(f"{route.method} {target[:120]} {body[:120]!r}: no answer")
        return None


@pytest.fixture
def asking(server: InProcessServer) -> Iterator[Asking]:
    found = Asking(server)
    yield found
    found.close()
    assert found.failed == [], f"{len(found.failed)}: " + "\n".join(found.failed[:20])


def path_of(route: Route, value: str = "q") -> str:
    path = route.path
    while "{" in path:
        start, end = path.index("{"), path.index("}")
        path = path[:start] + value + path[end + 1 :]
    return f"/api/v1/{path}"


def fields_of(kind: Any) -> list[str]:
    """Of a request; of one that may be of several kinds, those of each."""
    if hasattr(kind, "__struct_fields__"):
        return list(kind.__struct_encode_fields__)
    arguments = getattr(kind, "__args__", ())
    return [name for each in arguments for name in fields_of(each)]


# The first user would close the server to everybody else.
CHECKED = [route for route in ROUTES if not route.path.startswith("users")]


def test_query_parameters(asking: Asking) -> None:
    for route in CHECKED:
        for name in fields_of(route.query):
            # A stream that ends by itself.
            rest = "" if EVENT_STREAM not in route.media or name == "follow" else "&follow=0"
            for text in TEXTS:
                if name != "follow" or text not in ("1", "true"):
                    asking.ask(route, f"{path_of(route)}?{name}={quote(text)}{rest}")


def test_names_in_addresses(asking: Asking) -> None:
    for route in CHECKED:
        if "{" in route.path:
            for text in TEXTS:
                rest = "?follow=0" if EVENT_STREAM in route.media else ""
                asking.ask(route, path_of(route, quote(text, safe="")) + rest)


def test_fields_of_bodies(asking: Asking) -> None:
    for route in CHECKED:
        for name in fields_of(route.request):
            if name == "wait":
                continue
            for text in JSON_VALUES:
                asking.ask(route, path_of(route), f'{{"{name}": {text}}}'.encode())
            for value in MSGPACK_VALUES:
                asking.ask(
                    route, path_of(route), msgspec.msgpack.encode({name: value}), "application/msgpack"
                )


@pytest.mark.parametrize("key", ["²", "0.²", MANY_DIGITS, f"a.{MANY_DIGITS}", "٣", "x" * 5_000])
def test_a_key_of_a_search_that_is_no_place_is_refused(server: InProcessServer, key: str) -> None:
    for path in ("queues/q/search", "queues/q/redrive"):
        wanted: dict[str, Any] = {"json": {key: 1}}
        body = wanted if path.endswith("search") else {"filter": wanted}
        with server.wire() as wire:
            answer = wire.rest("POST", path, body)
        assert answer.status == 400, answer.body
        assert answer.json()["code"] == "invalid_search"


def test_keys_of_a_search_that_are_places_find_them(server: InProcessServer) -> None:
    with server.wire() as wire:
        for key, value in (("0", 1), ("1.1", 3), ("a.0", 1)):
            found = wire.rest("POST", "queues/q/search", {"json": {key: value}}).json()
            assert len(found["messages"]) == 1, key
        assert wire.rest("POST", "queues/q/search", {"json": {"99999999999999999999": 1}}).status == 200
