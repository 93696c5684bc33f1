"""The audit log: everything administrative with who, from where and how it ended, in a chain of hashes."""

from __future__ import annotations

import base64
import json
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pika
import pytest

from openq.auth.store import UserStore
from openq.broker.audit import (
    AuditEntry,
    AuditLimits,
    AuditStore,
    AuditUnavailable,
    MemoryAudit,
    parse,
    records,
    verify,
)
from openq.config import Config
from openq.local.audit_file import FileAudit
from openq.local.broker import LocalBroker
from openq.server.audit import AuditLog, shown_detail
from tests.cli.helpers import run_in_process
from tests.server.in_process import InProcessServer, in_process_server
from tests.server.raw_http import Answer, RawHttpClient, request_bytes, rest_request
from tests.serving import free_port, served
from tests.waiting import until

PASSWORD = "canary-Admin-password"
OTHER = "canary-Other-password"


def entry(action: str = "delete_queue", target: str = "q", time_ms: int = 1_000, **detail: Any) -> AuditEntry:
    return AuditEntry(time_ms, "ann", "10.0.0.1", "rest", action, target, "ok", detail)


def numbers(store: AuditStore) -> list[int]:
    return [each.number for each in records(store.lines())]


# -- the chain --------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> AuditStore:
    return MemoryAudit() if request.param == "memory" else FileAudit(tmp_path)


def test_records_are_read_back_in_order_and_their_chain_is_intact(store: AuditStore) -> None:
    store.append([entry(target="a"), entry(target="ü\n")])
    store.append([entry(target="c", role="admin", n=1.5)])

    found = list(records(store.lines()))
    assert [each.entry.target for each in found] == ["a", "ü\n", "c"]
    assert found[2].entry == entry(target="c", role="admin", n=1.5)
    checked = verify(store.lines())
    assert (checked.ok, checked.count, checked.first, checked.last) == (True, 3, 1, 3)
    newest = store.newest()
    assert newest is not None
    assert newest.hash == checked.hash


def test_every_change_of_a_record_is_seen(store: AuditStore) -> None:
    store.append([entry(target=name) for name in "abc"])
    lines = list(store.lines())

    def broken(changed: list[bytes]) -> list[str]:
        return verify(changed).problems

    assert broken([lines[0], lines[1].replace(b'"b"', b'"x"'), lines[2]])
    assert broken([lines[0], lines[1].replace(b'"ok"', b'"refused"'), lines[2]])
    assert broken([lines[0], lines[1][:-1] + b',"more":1}', lines[2]])
    assert broken([lines[0], lines[2]])
    assert broken([lines[0], lines[2], lines[1]])
    assert broken([lines[0], lines[1], lines[1], lines[2]])
    assert broken([lines[0], b"nonsense", lines[2]])
    other = MemoryAudit()
    other.append([entry(target=name) for name in "axc"])
    assert broken([lines[0], list(other.lines())[1], lines[2]])
    assert not broken(lines[1:])  # the oldest may be dropped


def test_a_long_detail_is_shortened(store: AuditStore) -> None:
    store.append([entry(rules="x" * 10_000)])

    [line] = store.lines()
    assert len(line) < 3_000
    assert parse(line).entry.detail == {"shortened": True, "fields": ["rules"]}
    assert verify([line]).ok


# -- files ------------------------------------------------------------------------------------------


def test_a_later_process_continues_the_chain(tmp_path: Path) -> None:
    FileAudit(tmp_path).append([entry()])
    FileAudit(tmp_path).append([entry()])

    assert numbers(FileAudit(tmp_path)) == [1, 2]
    assert verify(FileAudit(tmp_path).lines()).ok


def test_several_writers_make_one_chain(tmp_path: Path) -> None:
    def write(name: str) -> None:
        audit = FileAudit(tmp_path)
        for _ in range(20):
            audit.append([entry(target=name)])

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert numbers(FileAudit(tmp_path)) == list(range(1, 81))
    assert verify(FileAudit(tmp_path).lines()).ok


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    FileAudit(tmp_path).append([entry()])

    paths = [tmp_path / "audit", *(tmp_path / "audit").iterdir()]
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in paths)


def test_a_line_that_a_kill_left_half_is_cut_off(tmp_path: Path) -> None:
    FileAudit(tmp_path).append([entry(), entry()])
    [path] = (tmp_path / "audit").glob("*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"number":3,"time')

    assert numbers(FileAudit(tmp_path)) == [1, 2]
    FileAudit(tmp_path).append([entry()])

    assert numbers(FileAudit(tmp_path)) == [1, 2, 3]
    assert verify(FileAudit(tmp_path).lines()).ok


def test_a_write_that_fails_half_way_leaves_no_part_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = FileAudit(tmp_path)
    audit.append([entry()])
    [path] = (tmp_path / "audit").glob("*.jsonl")
    before = path.read_bytes()
    write = os.pwrite

    def full(fd: int, data: Any, offset: int) -> int:
        if offset > len(before):
            raise OSError(28, "No space left on device")
        return write(fd, data[:10], offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(AuditUnavailable, match="No space left"):
            audit.append([entry(), entry()])

    assert path.read_bytes() == before
    audit.append([entry()])
    assert numbers(audit) == [1, 2]
    assert verify(audit.lines()).ok


def test_the_oldest_records_are_dropped_by_size(tmp_path: Path) -> None:
    audit = FileAudit(tmp_path)
    audit.limits = AuditLimits(max_bytes=64_000)
    for _ in range(60):
        audit.append([entry(rules="x" * 1_500)] * 4)

    size = sum(path.stat().st_size for path in (tmp_path / "audit").glob("*.jsonl"))
    checked = verify(audit.lines())
    assert size < 80_000
    assert checked.ok
    assert (checked.first > 1, checked.last) == (True, 240)


def test_the_oldest_records_are_dropped_by_age(tmp_path: Path) -> None:
    audit = FileAudit(tmp_path)
    audit.append([entry(time_ms=1_000)])
    [old] = (tmp_path / "audit").glob("*.jsonl")
    os.utime(old, (1, 1))

    FileAudit(tmp_path).append([entry()])  # the first file is older than its share of the limit

    assert not old.exists()
    assert numbers(FileAudit(tmp_path)) == [2]
    assert verify(FileAudit(tmp_path).lines()).ok


def test_a_directory_that_cannot_be_written_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file where the directory should be")

    with pytest.raises(AuditUnavailable):
        FileAudit(tmp_path).append([entry()])


# -- what is written, and when ----------------------------------------------------------------------


class FailingStore(MemoryAudit):
    is_failing = True

    def append(self, entries: Any) -> None:
        if self.is_failing:
            raise AuditUnavailable("no space left on device")
        super().append(entries)


def test_records_wait_for_a_store_that_fails_and_nothing_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openq.server.audit.RETRY_S", 0.001)
    store = FailingStore()
    log = AuditLog(store, lambda: 5)
    for number in range(3):
        log.record("rest", "delete_queue", str(number))
    assert (log.waiting, log.lost) == (3, 0)

    store.is_failing = False

    until(lambda: log.written == 3)
    log.stop()
    assert [each.entry.target for each in records(store.lines())] == ["0", "1", "2"]
    assert log.lost == 0


class SlowStore(MemoryAudit):
    """Writes only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_write = threading.Event(), threading.Event()

    def append(self, entries: Any) -> None:
        self.is_asked.set()
        assert self.may_write.wait(20)
        super().append(entries)


def test_a_reader_waits_for_the_records_before_it() -> None:
    store = SlowStore()
    log = AuditLog(store, lambda: 5)
    log.record("rest", "login", "ann")
    assert store.is_asked.wait(20)
    log.record("rest", "login", "vic")
    reader = ThreadPoolExecutor(1)
    found = reader.submit(lambda: (log.flush(), [each.entry.target for each in records(store.lines())])[1])
    assert not found.done()

    store.may_write.set()

    assert found.result(20) == ["ann", "vic"]
    reader.shutdown()
    log.stop()


def test_a_reader_does_not_wait_for_a_store_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openq.server.audit.READ_S", 600)
    log = AuditLog(FailingStore(), lambda: 5)
    log.record("rest", "delete_queue", "orders")

    log.flush()

    assert log.waiting == 1
    log.stop()


def test_what_finds_no_room_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("openq.server.audit.MAX_WAITING", 5)
    monkeypatch.setattr("openq.server.audit.RETRY_S", 0.001)
    log = AuditLog(FailingStore(), lambda: 5)
    for number in range(8):
        log.record("rest", "delete_queue", str(number))
    until(lambda: "audit_unavailable" in caplog.messages)

    log.stop()

    assert log.lost == 8
    assert "audit_lost" in caplog.messages


def test_only_known_fields_are_shown() -> None:
    shown = shown_detail(
        {
            "role": "admin",
            "password": "canary",
            "payload": {"a": "canary"},
            "url": "https://canary:canary@example.com/canary?x=canary",
            "secret": "canary",
            "max_length": 5,
            "rules": [{"effect": "allow", "actions": ["send"]}],
            "unset": None,
        }
    )

    assert "canary" not in json.dumps(shown)
    assert shown["password"] == "(not shown)"
    assert (shown["role"], shown["host"], shown["max_length"]) == ("admin", "example.com", 5)
    assert "unset" not in shown


# -- a server ---------------------------------------------------------------------------------------


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


AS_ADMIN, AS_BOB = basic("admin", PASSWORD), basic("bob", OTHER)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InProcessServer]:
    store = UserStore(tmp_path / "d" / "users.json")
    store.add_user("admin", role="admin", password=PASSWORD, is_root=True)
    store.add_user("bob", role="consumer", password=OTHER)
    config = Config(data=str(tmp_path / "d"), drain_timeout_s=1, amqp_port=free_port())
    with closing(LocalBroker(tmp_path / "d")) as broker, in_process_server(broker, config) as running:
        yield running


def ask(server: InProcessServer, method: str, path: str, body: Any = None, who: Any = AS_ADMIN) -> Answer:
    with server.wire() as wire:
        return wire.ask(rest_request(method, path, body, who))


Row = tuple[str, str, str, str, str]


def rows(server: InProcessServer) -> list[Row]:
    found = records(server.server.broker.audit.lines())
    return [
        (each.entry.protocol, each.entry.user, each.entry.action, each.entry.target, each.entry.outcome)
        for each in found
    ]


def wait_for(server: InProcessServer, *wanted: Row) -> None:
    until(lambda: all(row in rows(server) for row in wanted), f"{wanted} in {rows(server)}")


def test_rest_calls_that_administrate_are_recorded_with_their_outcome(server: InProcessServer) -> None:
    assert ask(server, "PUT", "queues/orders", {"max_length": 7}).status == 201
    assert ask(server, "PUT", "users/eve", {"password": OTHER, "role": "viewer"}).status == 201
    assert ask(server, "POST", "keys", {"user": "eve"}).status == 201
    assert ask(server, "POST", "queues/orders/purge", {}).status == 200
    assert ask(server, "DELETE", "queues/orders", None, AS_BOB).status == 403
    assert ask(server, "GET", "users", None, AS_BOB).status == 403
    assert ask(server, "DELETE", "queues/none").status == 404
    assert ask(server, "DELETE", "queues/orders").status == 200
    assert ask(server, "POST", "queues/orders/messages", {"payload": "x"}).status == 404  # not administration

    wait_for(
        server,
        ("rest", "admin", "put_queue", "orders", "ok"),
        ("rest", "admin", "put_user", "eve", "ok"),
        ("rest", "admin", "create_key", "", "ok"),
        ("rest", "admin", "purge_queue", "orders", "ok"),
        ("rest", "bob", "delete_queue", "orders", "refused"),
        ("rest", "bob", "list_users", "", "refused"),
        ("rest", "admin", "delete_queue", "none", "failed"),
        ("rest", "admin", "delete_queue", "orders", "ok"),
    )
    store = server.server.broker.audit
    found = {each.entry.action: each.entry for each in records(store.lines()) if each.entry.outcome == "ok"}
    assert found["put_queue"].detail["max_length"] == 7
    assert found["put_user"].detail == {"password": "(not shown)", "role": "viewer"}
    assert found["put_user"].peer == "127.0.0.1"
    assert verify(store.lines()).ok
    assert not [row for row in rows(server) if "message" in row[2]]
    assert b"canary" not in b"".join(store.lines())


def test_refused_logins_are_recorded(server: InProcessServer) -> None:
    assert ask(server, "GET", "whoami", None, basic("admin", "canary-wrong")).status == 401

    wait_for(server, ("rest", "admin", "login", "", "refused"))
    [found] = [
        each.entry for each in records(server.server.broker.audit.lines()) if each.entry.action == "login"
    ]
    assert found.detail == {"reason": "wrong_password", "count": 1}


def test_sqs_amqp_and_the_management_api_are_recorded(server: InProcessServer) -> None:
    key = server.server.store.create_key("admin")
    sqs = boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        region_name="us-east-1",
        aws_access_key_id=key.id,
        aws_secret_access_key=key.secret,
    )
    url = sqs.create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "5"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="canary")
    sqs.delete_queue(QueueUrl=url)
    port = server.server.config.amqp_port
    assert isinstance(port, int)

    def connect(user: str, password: str) -> Any:
        login = pika.PlainCredentials(user, password)
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, credentials=login))

    with closing(connect("admin", PASSWORD)) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", "fanout")
        for _ in range(2):  # only the first changes anything
            channel.queue_declare("mail", durable=True)
            channel.queue_bind("mail", "x")
        channel.queue_declare("", exclusive=True)
        channel.queue_purge("mail")
        channel.queue_delete("mail")
    with (
        closing(connect("bob", OTHER)) as connection,
        pytest.raises(pika.exceptions.ChannelClosedByBroker),
    ):
        connection.channel().queue_declare("forbidden")
    with server.wire() as wire:
        body = json.dumps({"password": "canary-new", "tags": "monitoring"}).encode()
        assert wire.ask(request_bytes("PUT", "/api/users/kim", body, AS_ADMIN)).status == 201
        assert wire.ask(request_bytes("DELETE", "/api/users/kim", b"", AS_BOB)).status == 401

    wait_for(
        server,
        ("sqs", "admin", "CreateQueue", "jobs", "ok"),
        ("sqs", "admin", "DeleteQueue", "jobs", "ok"),
        ("amqp", "admin", "exchange.declare", "x", "ok"),
        ("amqp", "admin", "queue.declare", "mail", "ok"),
        ("amqp", "admin", "queue.bind", "mail", "ok"),
        ("amqp", "admin", "queue.purge", "mail", "ok"),
        ("amqp", "admin", "queue.delete", "mail", "ok"),
        ("amqp", "bob", "queue.declare", "forbidden", "refused"),
        ("management", "admin", "PUT users/{user}", "kim", "ok"),
        ("management", "bob", "DELETE users/{user}", "kim", "refused"),
    )
    found = rows(server)
    assert found.count(("amqp", "admin", "queue.declare", "mail", "ok")) == 1
    assert found.count(("amqp", "admin", "queue.bind", "mail", "ok")) == 1
    assert len([row for row in found if row[2] == "queue.declare"]) == 2
    assert b"canary" not in b"".join(server.server.broker.audit.lines())


def test_only_admins_read_it_by_pages_and_filters(server: InProcessServer) -> None:
    for number in range(5):
        ask(server, "PUT", f"queues/q{number}", {})
    wait_for(server, ("rest", "admin", "put_queue", "q4", "ok"))

    assert ask(server, "GET", "audit", None, AS_BOB).status == 403
    first = ask(server, "GET", "audit?limit=2&action=put_queue").json()
    assert [each["target"] for each in first["records"]] == ["q0", "q1"]
    second = ask(server, "GET", f"audit?action=put_queue&after={first['next']}").json()
    assert [each["target"] for each in second["records"]] == ["q2", "q3", "q4"]
    assert second.get("next") is None
    newest = ask(server, "GET", "audit?newest=true&limit=1&action=put_queue").json()
    assert [each["target"] for each in newest["records"]] == ["q4"]
    before = newest["records"][0]["number"]
    older = ask(server, "GET", f"audit?newest=true&limit=2&action=put_queue&before={before}").json()
    assert [each["target"] for each in older["records"]] == ["q2", "q3"]
    for method in ("PUT", "POST", "DELETE", "PATCH"):
        assert ask(server, method, "audit", {}).status == 405


def test_a_client_that_leaves_before_the_answer_leaves_a_record() -> None:
    class Request:
        peer = "10.0.0.1"

        def when_answered(self, callback: Any) -> None:
            self.callback = callback

    log, request = AuditLog(MemoryAudit(), lambda: 5), Request()
    log.watch(request, "rest", "delete_queue", "q", "ann")  # type: ignore[arg-type]

    request.callback(0, 0)

    log.stop()
    assert [each.entry.outcome for each in records(log.store.lines())] == ["unknown"]


# -- the process and the command line ---------------------------------------------------------------


def test_commands_on_a_data_directory_and_the_server_write_one_chain(tmp_path: Path) -> None:
    data = tmp_path / "d"
    added = run_in_process(
        "user", "add", "ann", "--role", "admin", "--password", "--data", data, OPENQ_PASSWORD=PASSWORD
    )
    assert added.code == 0, added
    token = json.loads(run_in_process("token", "create", "ann", "--name", "t", "--data", data, "--json").out)
    secret = token["token"]
    with served(data) as server:
        with RawHttpClient(server.port) as wire:
            headers = {"Authorization": f"Bearer {secret}"}
            assert wire.ask(rest_request("PUT", "queues/q", {}, headers)).status == 201
        assert run_in_process("perm", "grant", "ann", "send", "*", "--data", data).code == 0
        reach = ("--url", server.url)
        until(lambda: '"q"' in run_in_process("audit", "ls", *reach, "--json", OPENQ_TOKEN=secret).out)
        listed = run_in_process("audit", "ls", *reach, OPENQ_TOKEN=secret)
        exported = run_in_process("audit", "export", *reach, OPENQ_TOKEN=secret)
        checked = run_in_process("audit", "verify", *reach, OPENQ_TOKEN=secret)
    assert (listed.code, exported.code, checked.code) == (0, 0, 0), (listed, exported, checked)
    assert "the chain is intact" in checked.out
    actions = [json.loads(line)["action"] for line in exported.out.splitlines()]
    assert actions[:3] == ["add_user", "create_token", "start"]
    assert {"grant", "put_queue"} <= set(actions)
    assert secret not in exported.out
    assert PASSWORD not in exported.out

    file = tmp_path / "audit.jsonl"
    file.write_text(exported.out)
    digest = json.loads(exported.out.splitlines()[1])["hash"]
    assert run_in_process("audit", "verify", file, "--expect", digest).code == 0
    assert run_in_process("audit", "verify", file, "--expect", "0" * 64).code == 1
    file.write_text(exported.out.replace('"ann"', '"eve"', 1))
    broken = run_in_process("audit", "verify", file)
    assert broken.code == 1
    assert "was changed" in broken.err
    offline = run_in_process("audit", "verify", "--data", data, "--json")
    assert json.loads(offline.out)["ok"] is True
    assert [each.entry.action for each in records(FileAudit(data).lines())][-1] == "stop"
    assert any("audit_head" in line for line in server.log)


def test_the_chain_survives_kills_and_has_every_record_that_was_written(tmp_path: Path) -> None:
    data = tmp_path / "d"
    seen: set[str] = set()
    for round in range(3):
        with served(data) as server, RawHttpClient(server.port) as wire:
            for number in range(5):
                assert wire.rest("PUT", f"queues/q{round}-{number}", {}).status == 201
            until(lambda: any(f"q{round}-2" in line.decode() for line in FileAudit(data).lines()))  # noqa: B023
            seen |= {each.entry.target for each in records(FileAudit(data).lines())}
            server.kill()

    targets = [each.entry.target for each in records(FileAudit(data).lines())]
    assert seen <= set(targets)
    assert verify(FileAudit(data).lines()).ok
