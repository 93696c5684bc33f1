"""The log of a server: JSON lines for programs, events with fields, and nothing beside the logger."""

from __future__ import annotations

import io
import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from openq.broker.events import ACKED, DELIVERED, PUBLISHED
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.logs import SLOW, JsonLines, LogWriter, TextLines, emit
from openq.model import Draft, QueueSettings
from openq.properties import Properties
from openq.server.event_log import EventLog
from tests.cli.helpers import run_openq
from tests.server.in_process import in_process_server
from tests.server.raw_http import RawHttpClient, request_bytes, rest_request
from tests.serving import served, taken_port
from tests.waiting import until


def lines_of(log: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log]


def events_of(log: list[str], event: str) -> list[dict[str, Any]]:
    return [line for line in lines_of(log) if line["event"] == event]


# -- lines ------------------------------------------------------------------------------------------


def record_of(event: str, **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("openq.test", logging.INFO, "", 0, "%s", (event,), None)
    record.fields = fields
    return record


def test_an_event_as_json_has_its_fields_and_none_without_a_value() -> None:
    line = json.loads(JsonLines().format(record_of("request", queue="q", duration_s=0.5, user=None)))

    assert (line["event"], line["queue"], line["duration_s"]) == ("request", "q", 0.5)
    assert (line["level"], line["logger"]) == ("info", "openq.test")
    assert line["ts"].endswith("Z")
    assert "user" not in line


def test_a_field_cannot_replace_the_level_or_the_time_of_a_line() -> None:
    line = json.loads(JsonLines().format(record_of("request", ts="never", level="none")))

    assert line["level"] == "info"
    assert line["ts"] != "never"


@pytest.mark.parametrize("hostile", ["a\nb", "a\rINFO x", "\x1b[31m", 'say "x"', "a b=c"])
def test_a_text_line_stays_one_line_whatever_a_client_calls_itself(hostile: str) -> None:
    text = TextLines().format(record_of(hostile, user=hostile))

    assert text.isprintable()


def test_an_event_as_text_shows_its_fields() -> None:
    text = TextLines().format(record_of("login_refused", user="ann", reason="wrong password", count=3))

    assert text.endswith('INFO openq.test: login_refused user=ann reason="wrong password" count=3')


# -- the writer -------------------------------------------------------------------------------------


class StalledStream(io.StringIO):
    """A reader that reads nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = threading.Event()
        self.entered = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.reading.wait(30)
        return super().write(text)


@pytest.fixture
def quiet() -> Iterator[logging.Logger]:
    log = logging.getLogger("openq.test.writer")
    log.propagate = False
    log.setLevel(logging.INFO)
    yield log
    log.handlers.clear()


def test_a_reader_that_stalls_blocks_nobody_and_the_lost_lines_are_counted(quiet: logging.Logger) -> None:
    stream = StalledStream()
    writer = LogWriter(stream, max_lines=10)
    writer.setFormatter(JsonLines())
    quiet.addHandler(writer)
    emit(quiet, logging.INFO, "first")
    assert stream.entered.wait(30)  # the thread is in the write

    for _ in range(25):
        emit(quiet, logging.INFO, "more")
    emit(quiet, logging.ERROR, "failure")  # errors have room of their own

    assert writer.dropped == 15
    assert not writer.wait_for_room(0)
    stream.reading.set()
    writer.close()
    found = [line["event"] for line in map(json.loads, stream.getvalue().splitlines())]
    assert found == ["first", *["more"] * 10, "failure", "log_lines_dropped"]
    assert json.loads(stream.getvalue().splitlines()[-1])["count"] == 15


def test_a_closed_stream_ends_nothing(quiet: logging.Logger) -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    writer.setFormatter(TextLines())
    quiet.addHandler(writer)
    stream.close()

    emit(quiet, logging.INFO, "lost")

    until(lambda: writer.dropped == 1)
    writer.close()


# -- the process ------------------------------------------------------------------------------------


def test_with_json_every_line_is_json_and_stdout_stays_empty(tmp_path: Path) -> None:
    with served(tmp_path / "data", "--log-format", "json") as server:
        with RawHttpClient(server.port) as wire:
            assert wire.ask(rest_request("PUT", "queues/q", {})).status == 201
        server.process.send_signal(signal.SIGHUP)
        until(lambda: any("reloaded" in line for line in server.log))

    assert server.lines == []
    [started] = events_of(server.log, "started")
    assert (started["pid"], started["port"]) == (server.pid, server.port)
    assert (started["store"], started["sign_in"]) == ("journal", False)
    [stopping] = events_of(server.log, "stopping")
    assert stopping["reason"] == "SIGTERM"
    [stopped] = events_of(server.log, "stopped")
    assert stopped["messages"] == 0
    assert lines_of(server.log)[-1] == stopped


def test_with_json_a_failed_start_is_a_log_line_too(tmp_path: Path) -> None:
    with taken_port() as port:
        done = run_openq(
            "serve", "--memory", "--port", str(port), "--amqp-port", "off", "--log-format", "json"
        )

    assert (done.code, done.out) == (1, "")
    line = lines_of(done.err.splitlines())[-1]
    assert (line["event"], line["level"]) == ("not_started", "critical")
    assert f"port {port} is taken" in line["reason"]


def test_with_json_a_wrong_setting_is_a_log_line_too() -> None:
    done = run_openq("serve", "--port", "many", "--log-format", "json")

    assert done.code == 2
    [line] = lines_of(done.err.splitlines())
    assert line["event"] == "not_started"
    assert "--port" in line["reason"]


@pytest.mark.parametrize("words", [["--nonsense"], ["--store"], ["--log-format", "json", "--max", "3"]])
def test_with_json_a_wrong_flag_is_a_log_line_too(words: list[str]) -> None:
    done = run_openq("serve", *words, OPENQ_LOG_FORMAT="json")

    assert (done.code, done.out) == (2, "")
    [line] = lines_of(done.err.splitlines())
    assert line["event"] == "not_started"
    assert "`openq serve --help`" in line["reason"]


def test_without_json_a_wrong_flag_is_a_line_for_people() -> None:
    done = run_openq("serve", "--nonsense")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("openq: unrecognized arguments: --nonsense")


def test_a_first_key_that_no_output_may_show_is_refused() -> None:
    done = run_openq("serve", "--memory", "--auth", "on", "--port", "0", "--log-format", "json")

    assert done.code == 2
    assert "openq user add" in lines_of(done.err.splitlines())[-1]["reason"]


def test_uncaught_errors_and_warnings_are_log_lines() -> None:
    code = (
        "import logging, threading, warnings\n"
        "from openq.config import Config\n"
        "from openq.server.logs import set_up_logging\n"
        "set_up_logging(Config(log_format='json'))\n"
        "warnings.warn('old')\n"
        "logging.getLogger('somebody.else').error('theirs')\n"
        "thread = threading.Thread(target=lambda: 1 / 0, name='t')\n"
        "thread.start(); thread.join()\n"
        "raise RuntimeError('the end')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (1, "")
    found = lines_of(done.stderr.splitlines())
    assert "old" in found[0]["event"]
    assert found[1]["event"] == "theirs"
    assert (found[2]["event"], "ZeroDivisionError" in found[2]["exception"]) == (
        "uncaught error in thread t",
        True,
    )
    assert "the end" in found[3]["exception"]


# -- requests ---------------------------------------------------------------------------------------

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_requests_are_logged_on_demand_without_their_query(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "openq")
    config = Config(memory=True, drain_timeout_s=1, log_requests=True)
    with closing(LocalBroker()) as broker, in_process_server(broker, config) as server, server.wire() as wire:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        wire.ask(request_bytes("GET", "/api/v1/queues?after=canary", b"", headers))
        wire.sqs("ListQueues")

        first, second = events_of(server.records.lines, "request")

    assert (first["method"], first["path"], first["status"]) == ("GET", "/api/v1/queues", 200)
    assert (first["user"], first["conn"], first["trace_id"]) == ("root", "127.0.0.1", TRACE)
    assert first["duration_s"] > 0
    assert second["action"] == "AmazonSQS.ListQueues"
    assert "canary" not in "".join(server.records.lines)


def test_no_request_is_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "openq")
    with closing(LocalBroker()) as broker, in_process_server(broker) as server, server.wire() as wire:
        assert wire.rest("GET", "queues").status == 200
        assert events_of(server.records.lines, "request") == []


def test_a_slow_request_is_logged_and_a_long_poll_is_not() -> None:
    config = Config(memory=True, drain_timeout_s=1, log_slow=0.000001)
    with closing(LocalBroker()) as broker, in_process_server(broker, config) as server, server.wire() as wire:
        wire.rest("PUT", "queues/q", {})
        assert wire.rest("POST", "queues/q/receive", {"wait": 0.01}).status == 200

        paths = [line["path"] for line in events_of(server.records.lines, "slow_request")]

    assert paths == ["/api/v1/queues/q"]


def test_a_slow_sync_of_the_journal_is_logged(tmp_path: Path) -> None:
    config = Config(data=str(tmp_path), drain_timeout_s=1, log_slow=1e-9)
    with closing(LocalBroker(tmp_path)) as broker, in_process_server(broker, config) as server:
        with server.wire() as wire:
            wire.rest("PUT", "queues/q", {})
        found = events_of(server.records.lines, "slow_sync")

    assert found
    assert all(line["duration_s"] >= 0 and line["records"] > 0 for line in found)
    assert SLOW.limit_s == 0


# -- state changes ----------------------------------------------------------------------------------


class LogLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def found(self) -> list[tuple[str, str]]:
        return [(line["event"], line["queue"]) for line in lines_of(self.lines) if line["level"] == "event"]


@pytest.fixture
def logged() -> Iterator[LogLines]:
    lines = LogLines()
    log = logging.getLogger("openq.events")
    log.addHandler(lines)
    yield lines
    log.removeHandler(lines)


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "journal"])
def test_every_state_change_of_the_chosen_queues_is_logged(
    tmp_path: Path, on_disk: bool, logged: LogLines
) -> None:
    with closing(LocalBroker(tmp_path / "d" if on_disk else None)) as broker:
        for name in ("orders", "other"):
            broker.declare(name, QueueSettings())
        broker.sync()
        events = EventLog(broker)
        events.start(("ord*",), 1)
        properties = Properties({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, "ann")
        for name in ("orders", "other"):
            broker.publish_many(name, [Draft(b"canary", properties=properties)])
        [delivery] = broker.receive("orders", consumer="me")
        broker.ack("orders", [(delivery.entry.seq, delivery.number)])
        broker.sync()
        events.stop()

    assert logged.found() == [(PUBLISHED, "orders"), (DELIVERED, "orders"), (ACKED, "orders")]
    lines = [line for line in lines_of(logged.lines) if line["level"] == "event"]
    assert len({line["message_id"] for line in lines}) == 1
    assert lines[1]["consumer"] == "me"
    assert lines[0]["user"] == "ann"
    assert all(line["trace_id"] == TRACE for line in lines)
    assert "canary" not in "".join(logged.lines)


def test_of_a_sampled_message_all_changes_are_logged_or_none(logged: LogLines) -> None:
    with closing(LocalBroker()) as broker:
        broker.declare("q", QueueSettings())
        events = EventLog(broker)
        events.start(("*",), 0.3)
        broker.publish_many("q", [Draft(b"x") for _ in range(200)])
        deliveries = broker.receive("q", 200)
        broker.ack("q", [(each.entry.seq, each.number) for each in deliveries])
        broker.sync()
        events.stop()

    by_message: dict[str, list[str]] = {}
    for line in lines_of(logged.lines):
        if "message_id" in line:
            by_message.setdefault(line["message_id"], []).append(line["event"])
    assert 20 < len(by_message) < 120
    assert all(found == [PUBLISHED, DELIVERED, ACKED] for found in by_message.values())


def test_the_process_logs_state_changes_at_a_level_of_their_own(tmp_path: Path) -> None:
    flags = ("--log-format", "json", "--log-events")
    with served(tmp_path / "data", *flags) as server, RawHttpClient(server.port) as wire:
        wire.rest("PUT", "queues/q", {})
        wire.rest("POST", "queues/q/messages", {"payload": "canary"})
        until(lambda: events_of(server.log, "published"))

    [published] = events_of(server.log, "published")
    assert (published["level"], published["queue"]) == ("event", "q")
    assert "canary" not in "".join(server.log)
