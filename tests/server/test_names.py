"""Names that are meant to hurt: none leaves the data directory, breaks a line or is taken for another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.server.raw_http import RawHttpClient, queue_url, request_bytes
from tests.serving import Served, served

NAMES = [
    ".",
    "..",
    "../../escaped",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "..\\..\\escaped",
    "~root",
    "a\0b",
    "\0",
    "a\r\nSet-Cookie: x=y",
    "a\nb",
    '{"level": "error"}\n{"level": "critical"}',
    "\x1b[2J\x1b[31m",
    "\u202eevil",
    "\u2028",
    "\ufeffq",
    "\ufffe",
    "é",
    "e\u0301",
    "日本語",
    "\U0001f4a9",
    "%2e%2e%2f",
    "%00",
    "%s%n%d",
    "{0.__class__}",
    "{}",
    "$(touch escaped)",
    "`touch escaped`",
    "; touch escaped",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' OR 1=1 --",
    'x"} 1\nopenq_healthy 1 #',
    "a b",
    " ",
    "@",
    "@/x",
    "@000000000000/x",
    "@111111111111/x",
    "*",
    "#",
    "q?x=y",
    "q#x",
    "CON",
    "snapshots",
    "journal",
    "users.json",
    "first-key",
    "x" * 80,
    "x" * 255,
    "x" * 256,
    "x" * 10_000,
    "é" * 127,
    "é" * 128,
    "-",
    "--help",
    "__proto__",
    "constructor",
    "None",
    "null",
    "0",
]
_SERIES = re.compile(r'[a-z_]+(\{([a-z_]+="([^"\\\n]|\\["\\n])*",?)*\})? [0-9.e+-]+')


class RunningServer:
    """A server, with everything around its data directory under watch."""

    def __init__(self, folder: Path, server: Served, wire: RawHttpClient) -> None:
        self.folder = folder
        self.server = server
        self.wire = wire

    def unknown_paths(self) -> list[str]:
        """Files that are not what a data directory is made of, and not where it is."""
        known = re.compile(
            r"d(/(LOCK|FORMAT|users\.json|users\.json\.lock|series\.dat|journal|snapshots|audit)"
            r"|/(journal|snapshots|audit)/[0-9a-z.-]+)?"
        )
        names = (str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))
        return [name for name in names if not known.fullmatch(name)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningServer]:
    folder = tmp_path / "around"
    folder.mkdir()
    flags = ("--log-level", "debug", "--log-format", "json")
    with served(folder / "d", *flags) as server, RawHttpClient(server.port) as wire:
        yield RunningServer(folder, server, wire)
    for line in server.log:
        assert isinstance(json.loads(line), dict)
        assert '"error"' not in line
    assert not any("Traceback" in line for line in server.log)


def path_of(name: str) -> str:
    return quote(name, safe="")


@pytest.mark.parametrize("where", ["path", "body"])
def test_any_name_is_kept_as_it_is_or_refused(running: RunningServer, where: str) -> None:
    wire = running.wire
    kept = []
    for name in NAMES:
        if where == "path":
            answer = wire.rest("PUT", f"queues/{path_of(name)}", {})
        else:
            answer = wire.rest("POST", "queues", {"name": name})
        assert answer.status in (200, 201, 400, 422), (name, answer)
        if answer.status in (200, 201):
            assert answer.json()["name"] == name
            kept.append(name)

    assert len(kept) > 30
    listed = [queue["name"] for queue in wire.rest("GET", "queues?limit=1000").json()["queues"]]
    assert sorted(listed) == sorted(kept)
    for n, name in enumerate(kept):
        sent = wire.rest("POST", f"queues/{path_of(name)}/messages", {"payload": f"m{n}"})
        assert sent.status == 201, name
    for n, name in enumerate(kept):
        [message] = wire.rest("POST", f"queues/{path_of(name)}/receive", {"max": 10}).json()["messages"]
        assert message["payload"] == f"m{n}", name
    metrics = wire.get("/metrics").body + wire.get("/metrics/queues").body
    odd = [
        line
        for line in metrics.decode().split("\n")
        if line and line[0] != "#" and not _SERIES.fullmatch(line)
    ]
    assert odd == []
    for name in kept:
        assert wire.rest("DELETE", f"queues/{path_of(name)}").status == 200, name
    assert running.unknown_paths() == []


def test_sqs_takes_the_names_of_sqs_and_no_other(running: RunningServer) -> None:
    allowed = re.compile(r"[A-Za-z0-9_-]{1,80}")
    for name in NAMES:
        made = running.wire.sqs("CreateQueue", QueueName=name)
        query = urlencode({"Action": "CreateQueue", "QueueName": name, "Version": "2012-11-05"})
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        xml = running.wire.ask(request_bytes("POST", "/", query.encode(), form))

        expected = 200 if allowed.fullmatch(name) else 400
        assert (made.status, xml.status) == (expected, expected), name
    assert running.unknown_paths() == []


def test_hostile_queue_urls_find_nothing(running: RunningServer) -> None:
    running.wire.sqs("CreateQueue", QueueName="present")
    for name in NAMES:
        for url in (queue_url(name), queue_url(path_of(name)), f"http://localhost/{path_of(name)}/q2", name):
            answer = running.wire.sqs("SendMessage", QueueUrl=url, MessageBody="x")

            assert answer.status in (400, 404), (url, answer)
    assert running.wire.rest("GET", "queues/present/stats").json()["ready"] == 0


def test_hostile_texts_come_back_as_they_were(running: RunningServer) -> None:
    """As body, attribute, type, group, id: in JSON there is a way to write each of them."""
    wire = running.wire
    wire.rest("PUT", "queues/q", {})
    for name in NAMES:
        text = name[:200]
        message = {
            "payload": name,
            "message_type": text,
            "attributes": {text: text},
            "group": text,
            "publisher": text,
        }
        sent = wire.rest("POST", "queues/q/messages", message)
        assert sent.status in (201, 400, 422), (name, sent)
        if sent.status != 201:
            continue
        [found] = wire.rest("POST", "queues/q/receive", {}).json()["messages"]
        shown: dict[str, Any] = {key: found[key] for key in ("payload", "message_type", "group")}
        assert shown == {key: message[key] for key in shown}, name
        assert found["attributes"] == {text: text}, name
        acked = wire.rest("POST", "queues/q/ack", {"receipt_id": found["receipt_id"]})
        assert acked.status == 200
    assert running.unknown_paths() == []


def test_hostile_ids_and_receipts_are_unknown_not_fatal(running: RunningServer) -> None:
    wire = running.wire
    wire.rest("PUT", "queues/q", {})
    for name in NAMES:
        ways = [
            wire.rest("GET", f"queues/q/messages/{path_of(name)}"),
            wire.rest("GET", f"queues/q/messages/{path_of(name)}/timeline"),
            wire.rest("DELETE", f"queues/q/messages/{path_of(name)}"),
            wire.rest("POST", "queues/q/ack", {"receipt_id": name}),
            wire.rest("POST", "queues/q/extend", {"receipt_id": name, "seconds": 1}),
            wire.rest("GET", f"tasks/{path_of(name)}"),
            wire.rest("GET", f"history/segments/{path_of(name)}/data"),
            wire.sqs("DeleteMessage", QueueUrl=queue_url("q"), ReceiptHandle=name),
            wire.rest("GET", f"accounts/{path_of(name)}/queues"),
            wire.rest("GET", f"exchanges/{path_of(name)}"),
        ]

        for answer in ways:
            assert answer.status < 500, (name, answer)
    assert running.unknown_paths() == []


def test_accounts_do_not_meet_whatever_they_are_called(running: RunningServer) -> None:
    """Account "a" with queue "b/c" is not account "a/b" with queue "c"."""
    pairs = [("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c"), ("a%b", "c"), ("@a", "x"), ("a", "@x"), ("@", "/")]
    made = []
    for account, name in pairs:
        path = f"accounts/{path_of(account)}/queues/{path_of(name)}"
        answer = running.wire.rest("PUT", path, {})
        assert answer.status in (200, 201, 422), (account, name, answer)
        if answer.status == 201:
            made.append((account, name))
            running.wire.rest("POST", f"{path}/messages", {"payload": f"{account} {name}"})

    assert len(made) == len({(account, name) for account, name in pairs})
    for account, name in made:
        path = f"accounts/{path_of(account)}/queues/{path_of(name)}"
        messages = running.wire.rest("POST", f"{path}/receive", {"max": 10}).json()["messages"]
        assert [message["payload"] for message in messages] == [f"{account} {name}"]
    assert running.wire.rest("GET", "queues").json()["queues"] == []
