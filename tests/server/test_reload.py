"""Reload by SIGHUP and by REST: all or nothing, with a diff in the log."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openq.config import Config, load
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from openq.server.reload import RELOADABLE_KEYS, compare, merged
from tests.cli.helpers import run_in_process
from tests.server.in_process import InProcessServer, in_process_server
from tests.serving import Served, served
from tests.waiting import until


def events(server: Served, event: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, server.log) if line["event"] == event]


# -- what changes -----------------------------------------------------------------------------------


def test_what_cannot_be_reloaded_is_named_and_kept() -> None:
    running = Config(port=1, log_level="info")
    wanted = Config(port=2, log_level="debug", region="eu-west-1")

    report = compare(running, wanted)

    assert report.restart_needed == ["port", "region"]
    assert report.changed == {"log_level": ("info", "debug")}
    assert merged(running, wanted).port == 1


def test_tls_is_not_switched_on_by_a_reload() -> None:
    report = compare(Config(), Config(tls_cert="c", tls_key="k"))

    assert report.restart_needed == ["tls_cert", "tls_key"]
    assert merged(Config(), Config(tls_cert="c", tls_key="k")).tls_cert is None


def test_a_table_that_is_gone_from_the_file_deletes_nothing() -> None:
    report = compare(Config(queues={"a": {}, "b": {}}), Config(queues={"b": {}}))

    assert report.kept == ["queues.a"]
    assert report.restart_needed == []


def test_every_reloadable_key_is_a_key() -> None:
    assert all(hasattr(Config(), key) for key in RELOADABLE_KEYS)


# -- a server in this process -----------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    config = Config(memory=True, drain_timeout_s=1)
    with closing(LocalBroker()) as broker, in_process_server(broker, config) as running:
        yield running


def ask_reload(server: InProcessServer, **changes: Any) -> tuple[int, dict[str, Any]]:
    config = replace(server.server.config, **changes)
    server.server.read_config = lambda: config
    with server.wire() as wire:
        answer = wire.rest("POST", "server/reload", {})
    return answer.status, answer.json()


def test_limits_and_timeouts_are_applied(server: InProcessServer) -> None:
    status, found = ask_reload(
        server, max_request_bytes=2048, max_connections=7, idle_timeout_s=5, max_message_bytes=4096
    )

    assert status == 200
    assert "max_connections: 20000 -> 7" in found["changed"]
    running = server.server
    assert running.context.admission.max_connections == 7
    assert (running.listener.limits.request_bytes, running.listener.limits.idle_s) == (2048, 5)
    assert running.amqp.max_body == 4096
    with server.wire() as wire:
        assert wire.rest("PUT", "queues/q", {"tags": {"a": "x" * 4000}}).status == 413


def test_queues_and_schedules_of_the_file_are_declared_with_the_reload(server: InProcessServer) -> None:
    server.server.broker.declare("old", QueueSettings())
    queues = {"new": {"max_length": 3}, "old": {"max_length": 4}}
    schedules = {"tidy": {"queue": "new", "every_ms": 60_000}}

    status, found = ask_reload(server, queues=queues, schedules=schedules)

    assert status == 200
    assert found["declared"] == ["create_queue new", "change_queue old", "put_schedule tidy"]
    broker = server.server.broker
    assert (broker.settings("new").max_length, broker.settings("old").max_length) == (3, 4)
    assert ask_reload(server)[1]["declared"] == []  # nothing is left to do


def test_a_queue_that_is_refused_takes_everything_back(server: InProcessServer) -> None:
    broker = server.server.broker
    broker.declare("old", QueueSettings(max_length=1))
    broker.declare("plain", QueueSettings())
    queues = {"new": {}, "old": {"max_length": 2}, "plain": {"fifo": True}}
    schedules = {"tidy": {"queue": "new", "every_ms": 60_000}}

    status, found = ask_reload(server, queues=queues, schedules=schedules, max_connections=5)

    assert (status, found["code"]) == (409, "not_reloaded")
    assert "nothing was changed" in found["detail"]
    assert "new" not in broker.queues()
    assert broker.settings("old").max_length == 1
    assert list(broker.schedules.list()) == []
    assert server.server.config.max_connections == 20_000
    assert any("not_reloaded" in line for line in server.records.lines)


def test_a_file_that_cannot_be_read_is_answered_with_its_mistake(
    server: InProcessServer, tmp_path: Path
) -> None:
    file = tmp_path / "openq.toml"
    file.write_text("max_conections = 3\n")
    server.server.read_config = lambda: load({}, {}, file)

    with server.wire() as wire:
        answer = wire.rest("POST", "server/reload", {})

    assert answer.status == 409
    assert "max_connections" in answer.json()["detail"]


def test_a_certificate_for_the_restart_is_read_too(server: InProcessServer, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")

    status, found = ask_reload(server, tls_cert=missing, tls_key=missing, max_connections=5)

    assert status == 409
    assert f"cannot read the certificate {missing}: No such file or directory" in found["detail"]
    assert server.server.config.max_connections == 20_000


def test_the_logs_on_demand_are_switched_on_and_off(server: InProcessServer) -> None:
    def handler() -> object:
        return server.server.listener.handler

    before = handler()
    assert ask_reload(server, log_requests=True)[0] == 200
    assert handler() != before
    assert ask_reload(server, log_requests=False)[0] == 200
    assert handler() == before


def test_a_reload_is_in_the_audit_log(server: InProcessServer) -> None:
    ask_reload(server, max_connections=9)
    store = server.server.broker.audit

    until(lambda: any(b"reload_server" in line for line in store.lines()))
    [line] = [line for line in store.lines() if b"reload_server" in line]
    assert b"max_connections: 20000 -> 9" in line


# -- the process ------------------------------------------------------------------------------------


def test_sighup_says_what_changed_and_what_needs_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "openq.toml"
    file.write_text("")
    with served(None, "--config", str(file)) as server:
        file.write_text('log_level = "warning"\nregion = "eu-west-1"\n[queues.a]\ndelay = 1\n')
        server.process.send_signal(signal.SIGHUP)
        until(lambda: events(server, "reloaded"))
        assert server.get("/api/v1/queues/a")[0] == 200

    [line] = events(server, "reloaded")
    assert line["changed"] == ["log_level: info -> warning"]
    assert line["declared"] == ["create_queue a"]
    assert line["restart_needed"] == ["region"]
    assert events(server, "stopped") == []  # below the new level


def test_a_broken_file_changes_nothing_and_a_second_sighup_applies_the_corrected_one(tmp_path: Path) -> None:
    file = tmp_path / "openq.toml"
    file.write_text("")
    with served(None, "--config", str(file)) as server:
        file.write_text("max_conections = 3\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: any("max_connections" in line["reason"] for line in events(server, "not_reloaded")))
        file.unlink()
        server.process.send_signal(signal.SIGHUP)
        until(lambda: len(events(server, "not_reloaded")) == 2)

        file.write_text("max_connections = 50\n")
        done = run_in_process("config", "reload", "--url", server.url)

        assert (done.code, "max_connections: 20000 -> 50" in done.out) == (0, True), done
        assert server.get("/readyz")[0] == 200
        file.write_text("nonsense\n")
        refused = run_in_process("config", "reload", "--url", server.url)
        assert refused.code != 0
        assert "nothing was changed" in refused.err


def test_a_damaged_file_of_users_changes_nothing(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "openq.toml"
    run_in_process("user", "add", "ann", "--data", data)
    file.write_text("")
    with served(data, "--config", str(file)) as server:
        users = data / "users.json"
        whole = users.read_text()
        users.write_text("nonsense")
        file.write_text("[queues.a]\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: any("users.json" in line["reason"] for line in events(server, "not_reloaded")))

        users.write_text(whole)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: events(server, "reloaded"))
        assert events(server, "reloaded")[0]["declared"] == ["create_queue a"]
