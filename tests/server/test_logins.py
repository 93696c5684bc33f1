"""Refused logins of every protocol are logged and counted, and no secret is among it."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import pika
import pytest
from botocore.exceptions import ClientError

from openq.auth.errors import LoginFailed, TooManyFailedLogins
from openq.auth.failed_logins import RefusedLogin
from openq.auth.guard import Guard
from openq.auth.store import UserStore
from openq.config import Config
from openq.local.broker import LocalBroker
from tests.server.in_process import InProcessServer, in_process_server
from tests.server.raw_http import request_bytes, rest_request
from tests.serving import free_port
from tests.waiting import until

PASSWORD = "canary-Right-password"
WRONG = "canary-wrong-password"


class Clock:
    now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def make_guard() -> tuple[Guard, Clock, list[RefusedLogin]]:
    clock, store = Clock(), UserStore()
    store.add_user("ann", role="admin", password=PASSWORD)
    guard = Guard(store, clock)
    seen: list[RefusedLogin] = []
    guard.refused.observer = seen.append
    return guard, clock, seen


def fail(guard: Guard, user: str = "ann", peer: str = "10.0.0.1") -> None:
    with pytest.raises(LoginFailed):
        guard.basic(user, WRONG, peer)


def test_the_reason_is_recorded_and_the_client_gets_one_answer_for_all() -> None:
    guard, clock, seen = make_guard()
    store = guard.store
    store.add_user("off", password=PASSWORD)
    store.set_disabled("off", True)
    store.add_user("keys")
    short = store.create_token("ann", "short", expires_s=clock.now_s + 1)
    clock.now_s += 2
    answers = set()
    for user, password in (("ann", WRONG), ("off", PASSWORD), ("keys", WRONG), ("nobody", WRONG)):
        with pytest.raises(LoginFailed) as refused:
            guard.basic(user, password, "10.0.0.1")
        answers.add(str(refused.value))
    for token in (short, "oq_canary"):
        with pytest.raises(LoginFailed) as refused:
            guard.bearer(token, "10.0.0.1")
        answers.add(str(refused.value))

    assert [(each.user, each.reason) for each in seen] == [
        ("ann", "wrong_password"),
        ("off", "disabled"),
        ("keys", "no_password"),
        ("nobody", "unknown_user"),
        ("ann", "expired"),
        ("", "unknown_token"),
    ]
    assert len(answers) == 1
    assert guard.refused.counts["rest", "wrong_password"] == 1


@pytest.mark.parametrize("name", [PASSWORD, "oq_" + "x" * 40, "A" * 40, "two words", "a\nb", "x" * 200])
def test_what_may_be_a_secret_in_the_place_of_a_name_is_hidden(name: str) -> None:
    guard, _, seen = make_guard()

    fail(guard, name)

    assert seen[0].user == "(hidden)"


def test_equal_refusals_are_one_line_at_once_and_one_a_minute() -> None:
    guard, clock, seen = make_guard()
    for _ in range(5):
        fail(guard)
    assert [each.count for each in seen] == [1]

    guard.refused.flush()
    assert len(seen) == 1
    clock.now_s += 61
    guard.refused.flush()

    assert [each.count for each in seen] == [1, 4]
    assert guard.refused.counts["rest", "wrong_password"] == 5
    fail(guard)
    assert [each.count for each in seen] == [1, 4, 1]


def test_the_stop_of_a_server_reports_what_is_counted() -> None:
    guard, _, seen = make_guard()
    fail(guard)
    fail(guard)

    guard.refused.flush(is_end=True)

    assert [each.count for each in seen] == [1, 1]


def test_an_attack_with_many_names_fills_no_log() -> None:
    guard, clock, seen = make_guard()
    for number in range(3_000):
        guard.refused.refuse("rest", f"u{number}", "10.0.0.1", "unknown_user")

    assert len(seen) <= 1_001
    assert guard.refused.counts["rest", "unknown_user"] == 3_000
    clock.now_s += 61
    guard.refused.flush()
    assert sum(each.count for each in seen) == 3_000


def test_a_lock_out_is_said_once_and_a_correct_password_from_elsewhere_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "openq.auth")
    guard, clock, _ = make_guard()
    for _ in range(10):
        fail(guard)
    for _ in range(3):
        with pytest.raises(TooManyFailedLogins):
            guard.basic("ann", PASSWORD, "10.0.0.1")

    assert guard.basic("ann", PASSWORD, "10.0.0.2").user == "ann"
    locked = [each for each in caplog.records if each.getMessage() == "login_locked"]
    assert [each.fields["conn"] for each in locked] == ["10.0.0.1"]  # type: ignore[attr-defined]
    assert (guard.refused.lockouts, guard.locked_addresses) == (1, 1)
    assert guard.refused.counts["rest", "locked_out"] == 3
    clock.now_s += 61
    assert guard.basic("ann", PASSWORD, "10.0.0.1").user == "ann"
    assert guard.locked_addresses == 0


# -- over the wire ----------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InProcessServer]:
    store = UserStore(tmp_path / "d" / "users.json")
    store.add_user("ann", role="admin", password=PASSWORD)
    config = Config(data=str(tmp_path / "d"), drain_timeout_s=1, amqp_port=free_port())
    with closing(LocalBroker(tmp_path / "d")) as broker, in_process_server(broker, config) as running:
        yield running


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def refusals(server: InProcessServer) -> list[tuple[str, str, str]]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in server.records.lines]
    return [
        (line["protocol"], line.get("user", ""), line["reason"])
        for line in lines
        if line["event"] == "login_refused"
    ]


def test_every_protocol_logs_and_counts_a_refused_login(server: InProcessServer) -> None:
    with server.wire() as wire:
        assert wire.ask(rest_request("GET", "whoami", None, basic("ann", WRONG))).status == 401
        assert (
            wire.ask(rest_request("GET", "whoami", None, {"Authorization": f"Bearer {WRONG}"})).status == 401
        )
        assert wire.ask(rest_request("GET", "whoami")).status == 401
        assert wire.ask(request_bytes("GET", "/api/overview", b"", basic("ann", WRONG))).status == 401
        assert wire.ask(request_bytes("GET", "/metrics", b"", basic("ann", WRONG))).status == 401
        key = server.server.store.create_key("ann")
        client = boto3.client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{server.port}",
            region_name="us-east-1",
            aws_access_key_id=key.id,
            aws_secret_access_key=WRONG,
            config=botocore.config.Config(retries={"max_attempts": 0}),
        )
        with pytest.raises(ClientError):
            client.list_queues()
        port = server.server.config.amqp_port
        assert isinstance(port, int)
        login = pika.PlainCredentials("ann", WRONG)
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, credentials=login))
        until(lambda: any(each[0] == "amqp" for each in refusals(server)))

        found = refusals(server)
        metrics = wire.ask(request_bytes("GET", "/metrics", b"", basic("ann", PASSWORD))).body.decode()

    assert ("rest", "ann", "wrong_password") in found
    assert ("rest", "", "unknown_token") in found
    assert ("rest", "", "no_credentials") in found
    assert ("management", "ann", "wrong_password") in found
    assert ("http", "ann", "wrong_password") in found
    assert ("amqp", "ann", "wrong_password") in found
    assert any(protocol == "sqs" and user == "ann" for protocol, user, _ in found), found
    assert 'openq_logins_refused_total{protocol="amqp",reason="wrong_password"} 1' in metrics
    text = "".join(server.records.lines) + metrics
    assert "canary" not in text
