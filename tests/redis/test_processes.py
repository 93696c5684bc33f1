"""`openq serve --processes N`: several processes on the same ports are one server."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pika
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from pika.exceptions import AMQPError

from tests.certificates import make_certificate
from tests.push.streams import opened
from tests.real_clients import boto
from tests.redis.servers import Server, single
from tests.server.test_metrics import Series, page
from tests.serving import Served, free_port, taken_port
from tests.waiting import WAIT_S, until

COUNT = 3


class Line:
    """A connection, and so always the same process."""

    def __init__(self, server: Served) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        [own] = [each for each in self.get("servers")["servers"] if each["self"]]
        self.number = int(own["name"].rpartition("/")[2])
        self.name: str = own["name"]
        self.pid: int = own["pid"]

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, f"/api/v1/{path}", data, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None

    def get(self, path: str) -> Any:
        status, value = self.call("GET", path)
        assert status == 200, value
        return value

    def post(self, path: str, body: Any = None) -> Any:
        status, value = self.call("POST", path, body)
        assert status < 300, value
        return value

    def close(self) -> None:
        self._connection.close()


def started(redis: Server, *flags: str, env: dict[str, str] | None = None) -> Served:
    where = ["--store", redis.url, "--profile", "fast", "--processes", str(COUNT)]
    return Served([*where, *flags], free_port(), env)


def line_to_each(server: Served, stack: ExitStack) -> list[Line]:
    """The kernel chooses the process of a connection: connect until every process has one."""
    found: dict[int, Line] = {}

    def is_complete() -> bool:
        line = Line(server)
        if line.number in found:
            line.close()
        else:
            found[line.number] = line
            stack.callback(line.close)
        return len(found) == COUNT

    until(is_complete, ignoring=(OSError, HTTPException))
    return [found[number] for number in sorted(found)]


def events(server: Served, event: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in list(server.log) if f'"event": "{event}"' in line]


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    with single() as server:
        yield server


@pytest.fixture(scope="module")
def amqp_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(store: Server, amqp_port: int) -> Iterator[Served]:
    served = started(store, "--amqp-port", str(amqp_port))
    try:
        yield served.wait()
    finally:
        assert served.stop() == 0


@pytest.fixture
def each(server: Served) -> Iterator[list[Line]]:
    with ExitStack() as stack:
        yield line_to_each(server, stack)


def test_one_banner_and_each_process_is_a_server_of_the_store(server: Served, each: list[Line]) -> None:
    assert f"  processes  {COUNT}" in server.lines
    assert sum("is ready" in line for line in server.lines) == 1
    assert [line.number for line in each] == [1, 2, 3]
    assert server.pid not in {line.pid for line in each}
    assert {one["process"] for one in events(server, "started")} == {1, 2, 3}
    for line in each:
        until(lambda line=line: len(line.get("servers")["servers"]) == COUNT)  # type: ignore[misc]
        found = line.get("servers")["servers"]
        assert {one["pid"] for one in found} == {one.pid for one in each}
        assert len({one["url"] for one in found}) == 1


def test_a_queue_is_the_same_through_every_process_and_protocol(
    server: Served, each: list[Line], amqp_port: int
) -> None:
    client = boto.client(server.url)
    url = client.create_queue(QueueName="shared")["QueueUrl"]
    for line in each:
        line.post("queues/shared/messages", {"payload": f"from {line.number}"})
    client.send_message(QueueUrl=url, MessageBody="from boto3")
    client.close()
    with closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "shared", b"from pika")
        bodies = set()
        for method, _, body in channel.consume("shared", inactivity_timeout=WAIT_S):
            bodies.add(body.decode())
            channel.basic_ack(method.delivery_tag)
            if len(bodies) == COUNT + 2:
                break
        channel.cancel()
    assert bodies == {"from boto3", "from pika", *(json.dumps(f"from {n}").strip('"') for n in (1, 2, 3))}


def test_a_scrape_of_any_process_sees_the_exact_sum_of_all(server: Served, each: list[Line]) -> None:
    each[0].call("PUT", "queues/counted")
    before = page(server)
    for line in each:
        for _ in range(5):
            line.post("queues/counted/messages", {"payload": 1})

    pages = [page(server) for _ in range(10)]  # each on a connection of its own

    published = 'openq_protocol_messages_total{protocol="rest",action="published"}'
    assert {after[published] - before[published] for after in pages} == {5 * COUNT}
    # Every scrape is a request too.
    first = before["openq_requests_total"] + 5 * COUNT + 1
    assert [after["openq_requests_total"] for after in pages] == [first + at for at in range(10)]
    assert pages[0]["openq_messages_sent_total"] == before["openq_messages_sent_total"] + 5 * COUNT
    assert pages[0]['openq_processes{state="running"}'] == COUNT
    assert pages[0]["openq_queues"] == before["openq_queues"]
    assert pages[0]['openq_connections{protocol="http"}'] >= COUNT
    of_queues = [page(server, "/metrics/queues?match=counted") for _ in range(5)]
    sent = 'openq_queue_messages_sent_total{account="000000000000",queue="counted"}'
    assert {one[sent] for one in of_queues} == {5 * COUNT}


def test_long_operations_and_undo_are_found_by_every_process(each: list[Line]) -> None:
    for line, other in zip(each, (*each[1:], each[0]), strict=True):
        queue = f"queues/dead-{line.number}"
        assert line.call("PUT", queue)[0] < 300
        line.post(f"{queue}/messages", {"payload": "kept"})
        undo = line.post(f"{queue}/purge?undo=true")["undo"]
        assert other.post(f"{queue}/undo/{undo}")["restored"] == 1
        task = line.post(f"{queue}/discard", {})["id"]
        until(lambda: other.get(f"tasks/{task}")["state"] == "done")  # noqa: B023
        assert other.post(f"tasks/{task}/pause")["id"] == task
        assert all(task in {shown["id"] for shown in one.get("tasks")["tasks"]} for one in each)
        assert line.call("GET", "")[0] == other.call("GET", "")[0] == 404
        # The home of long operations sees the client and not the process that passed the request on.
        record = other.get(f"audit?action=discard&target={queue.rpartition('/')[2]}")["records"][0]
        assert record["peer"] == "127.0.0.1"


def test_a_connection_is_closed_through_any_process(server: Served, each: list[Line]) -> None:
    each[0].call("PUT", "queues/held")
    with opened(server.url) as stream:
        stream.subscribe("held", credit={"messages": 1})
        for line in each:
            until(lambda line=line: line.get("connections?protocol=ws")["total"] == 1)  # type: ignore[misc]
        [found] = each[0].get("connections?protocol=ws")["connections"]
        other = next(line for line in each if line.name != found["server"])
        assert other.call("DELETE", f"connections/{found['id']}?reason=moved")[0] == 202
        until(lambda: other.get("connections?protocol=ws")["total"] == 0)


def test_a_reload_reaches_every_process(server: Served, each: list[Line]) -> None:
    def reloads() -> list[int]:
        return sorted(one["process"] for one in events(server, "reloaded"))

    server.process.send_signal(signal.SIGHUP)
    until(lambda: reloads() == [1, 2, 3])
    each[1].post("server/reload")
    until(lambda: reloads() == [1, 1, 2, 2, 3, 3])


# -- a process dies


class Load:
    """Threads that send to one queue, and know what was acknowledged."""

    def __init__(self, server: Served, threads: int = 6) -> None:
        self._server = server
        self.acknowledged: set[str] = set()
        self.errors = 0
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]
        for each in self._threads:
            each.start()

    def _run(self, number: int) -> None:
        sent = 0
        while not self._stopping.is_set():
            client = boto.client(self._server.url)
            with suppress(BotoCoreError, ClientError):
                url = client.get_queue_url(QueueName="loaded")["QueueUrl"]
                for _ in range(20):  # then another connection, which may be another process's
                    sent += 1
                    body = f"{number}-{sent}"
                    client.send_message(QueueUrl=url, MessageBody=body)
                    self.acknowledged.add(body)
                client.close()
                continue
            self.errors += 1
            client.close()

    def stop(self) -> None:
        self._stopping.set()
        for each in self._threads:
            each.join(WAIT_S)


def received(server: Served, queue: str) -> set[str]:
    client = boto.client(server.url)
    url = client.get_queue_url(QueueName=queue)["QueueUrl"]
    found: set[str] = set()
    while messages := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found |= {one["Body"] for one in messages}
        entries = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(messages)]
        client.delete_message_batch(QueueUrl=url, Entries=entries)
    client.close()
    return found


def test_a_killed_process_loses_nothing_and_disturbs_no_other(
    server: Served, each: list[Line], amqp_port: int
) -> None:
    each[0].call("PUT", "queues/loaded")
    victim = each[1]

    def reloads() -> int:
        return [one["process"] for one in events(server, "reloaded")].count(victim.number)

    seen = reloads()
    each[0].post("server/reload")
    until(lambda: reloads() == seen + 1)
    parameters = pika.ConnectionParameters("127.0.0.1", amqp_port, heartbeat=0)
    connections = [pika.BlockingConnection(parameters) for _ in range(9)]
    until(lambda: each[0].get("connections?protocol=amqp")["total"] == len(connections))
    listed = each[0].get("connections?protocol=amqp")["connections"]
    others = sum(one["server"] != victim.name for one in listed)
    load = Load(server)
    try:
        until(lambda: len(load.acknowledged) > 100)
        before = page(server)
        os.kill(victim.pid, signal.SIGKILL)
        enough = len(load.acknowledged) + 100
        until(lambda: len(load.acknowledged) > enough)
        after = replaced(server)
    finally:
        load.stop()
    until(lambda: reloads() == seen + 2)  # the new process has the configuration of the others
    alive = 0
    for connection in connections:
        with suppress(AMQPError, OSError):
            connection.channel()
            alive += 1
            connection.close()
    assert alive == others
    assert load.acknowledged <= received(server, "loaded")
    # Counters never go down, though the process that had counted is gone.
    for name, value in before.items():
        if name.partition("{")[0].endswith(("_total", "_count", "_sum", "_bucket")):
            assert after[name] >= value, name
    [ended] = events(server, "process_ended")
    assert (ended["process"], ended["process_pid"], ended["signal"]) == (victim.number, victim.pid, "SIGKILL")
    with ExitStack() as stack:
        pids = [line.pid for line in line_to_each(server, stack)]
    assert (pids[0], pids[2]) == (each[0].pid, each[2].pid)
    assert pids[1] != victim.pid


def replaced(server: Served) -> Series:
    """A page of metrics after the process was replaced."""
    pages: list[Series] = []

    def is_complete() -> bool:
        pages.append(page(server))
        restarts, running = pages[-1]["openq_process_restarts_total"], 'openq_processes{state="running"}'
        return restarts >= 1 and pages[-1][running] == COUNT

    until(is_complete, ignoring=(OSError,))  # a connection may be that of the process that died
    return pages[-1]


# -- start and stop


def test_the_processes_end_with_their_supervisor(store: Server) -> None:
    served = started(store).wait()
    with ExitStack() as stack:
        pids = [line.pid for line in line_to_each(served, stack)]
    served.process.kill()
    served.process.wait(WAIT_S)
    until(lambda: not any(map(_is_running, pids)))
    served.stop()  # closes the pipes


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_json_names_the_supervisor_and_systemd_is_notified_by_it(store: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "openq", "serve", "--json", "--store", store.url, "--profile", "fast"]
    cert, key, _ = make_certificate(tmp_path)
    command += ["--tls-cert", str(cert), "--tls-key", str(key), "--amqps-port", "0"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(WAIT_S)
        process = subprocess.Popen(
            [*command, "--processes", "2", "--port", "0", "--auth", "on"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"},
        )
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            said = systemd.recv(4096).decode()
            assert f"MAINPID={process.pid}" in said
            assert "READY=1" in said
            assert systemd.recv(4096) == b"WATCHDOG=1"
            for port in (ready["port"], ready["amqps_port"]):
                for _ in range(8):  # of both processes, most likely
                    assert (
                        ssl.get_server_certificate(("127.0.0.1", port), timeout=WAIT_S).encode()
                        in cert.read_bytes()
                    )
            process.send_signal(signal.SIGHUP)
            heard: list[str] = []
            while "READY=1" not in heard:
                heard.append(systemd.recv(4096).decode())
            assert any("RELOADING=1" in one for one in heard)
        finally:
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=WAIT_S)
    assert (ready["event"], ready["pid"], ready["processes"]) == ("ready", process.pid, 2)
    assert ready["first_key"]["access_key_id"]  # of all processes: one made it
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["stopping", "stopped"]
    assert process.returncode == 0


def test_a_start_that_fails_ends_all_with_its_error(store: Server) -> None:
    with taken_port() as port:
        served = Served(["--store", store.url, "--profile", "fast", "--processes", "2"], port)
        assert served.process.wait(WAIT_S) == 1
        served.stop()
        assert any(f"port {port} is taken" in line for line in served.log)
    served = Served(["--store", "redis://127.0.0.1:1", "--processes", "2"], free_port())
    assert served.process.wait(WAIT_S) != 0
    served.stop()
    assert sum("127.0.0.1" in line and "openq" in line for line in served.log) >= 1
    assert not served.lines
