"""The description of the API is true: it is whole, and generated requests find no server error behind it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from openq.rest.handler import ROUTES
from openq.rest.openapi import document
from openq.rest.problems import PROBLEMS
from tests.rest.helpers import Client
from tests.serving import Served, served

# `OPENQ_TEST_EXAMPLES=200` looks longer.
EXAMPLES = int(os.environ.get("OPENQ_TEST_EXAMPLES", "5"))
NAMES = {
    **dict.fromkeys(("queue", "exchange", "id", "user", "name", "job", "part", "bucket", "key"), "fuzz"),
    **dict.fromkeys(("number", "batch"), "1"),
    "schedule": "fuzz",
    "webhook": "fuzz",
    "rule": "backlog",
    "silence": "fuzz",
    "alert": "fuzz",
    "index": "1",
}

ROWS = "application/x-openq-rows"
RAW = "application/octet-stream"

load_all_checks()


@schemathesis.serializer(ROWS)
def as_they_are(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    for result in schemathesis.openapi.from_dict(document(ROUTES)).get_all_operations()
    for operation in [result.ok()]
}


def test_every_route_is_described_with_its_permission() -> None:
    described = document(ROUTES)
    rows = {
        (method.upper(), path, operation["x-openq-permission"])
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    }

    assert described["openapi"] == "3.1.0"
    assert rows == {(route.method, f"/api/v1/{route.path}", route.permission) for route in ROUTES}
    assert len(OPERATIONS) == len(ROUTES)


def test_operations_have_names_of_their_own() -> None:
    names = [route.handler.__name__ for route in ROUTES]

    assert len(set(names)) == len(names)


def test_every_problem_says_what_to_do() -> None:
    for code, (status, title, hint) in PROBLEMS.items():
        assert 400 <= status < 600, code
        assert title, code
        assert hint, code


def test_the_description_is_public(client: Client) -> None:
    answer = client.send("GET", "/openapi.json")

    assert answer.status == 200
    assert answer.value == document(ROUTES)
    assert client.send("POST", "/openapi.json").code == "method_not_allowed"


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Served]:
    with served(None) as server:
        yield server
        assert [line for line in server.log if "Traceback" in line] == []


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))
def test_generated_requests_get_answers_as_described(fuzzed: Served, operation: Any) -> None:
    client = Client(fuzzed.url)
    if "/users" in operation.path and operation.method == "put":
        pytest.skip("the first user closes an open server: test_permissions.py tells of users")

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        # Half of the requests go to what is there; the rest wherever they like.
        if len(repr(case.body)) % 2:
            client.queue("fuzz")
            client.put("/exchanges/fuzz", {})
            client.post("/queues/fuzz/messages", {"id": "fuzz", "payload": {"a": [1]}})
            client.put("/schedules/fuzz", {"queue": "fuzz", "payload": "x", "every": 3600})
            client.put("/webhooks/fuzz", {"queue": "fuzz", "url": "http://127.0.0.1:9/"})
            client.post("/kv/fuzz/put", {"puts": [{"key": "fuzz", "value": "AA=="}]})
            for name in case.path_parameters or {}:
                case.path_parameters[name] = NAMES[name]
        if isinstance(case.body, dict):
            case.body.pop("wait", None)  # what is right to wait for takes its time
        if case.query:
            case.query.pop("wait", None)
        is_stream = operation.path.endswith(("/events", "/live"))
        if is_stream:
            case.query["follow"] = "0"  # a stream that ends by itself
        if case.media_type not in (ROWS, RAW):
            case.media_type = "application/json" if case.media_type else None
        answer = case.call(base_url=fuzzed.url, timeout=30)

        assert answer.status_code < 500, answer.content
        # A stream is text in OpenAPI 3.1; its events are checked where they are read.
        checks = [status_code_conformance, content_type_conformance]
        if not is_stream:
            checks.append(response_schema_conformance)
        case.validate_response(answer, checks=checks)

    check()
