"""What others wrote is text, wherever the page shows it; and no other site gets the page to do anything.

Every field that a client fills has its own mark, as HTML that would run a script. A screen must show the mark
as text, and nothing on the page may become an element by it.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec
import pika
import pytest
from playwright.sync_api import Browser, Page, expect

from openq.auth.store import UserStore
from openq.broker.workers import RunningJob, WorkerEntry
from tests import serving
from tests.browser.filled import PASSWORD
from tests.browser.visitor import Visitor
from tests.http_endpoint import answer, serve_endpoint
from tests.rest.helpers import Client, part
from tests.serving import Served
from tests.waiting import until

pytestmark = pytest.mark.ui

ANOTHER_SITE = Path(__file__).with_name("another_site.html")
RIGHT_TO_LEFT = "\u202e"
# What a script would have left behind, and what only a tag could have made.
OWNED = """() => [window.owned,
    document.querySelectorAll("#app :is(img, script, iframe, svg[onload], [onerror])").length]"""
# What is shown, with what stands in attributes that are shown: titles, and the values of fields.
TEXTS = """() => [document.body.innerText, ...Array.from(
    document.querySelectorAll("[title], input, textarea"),
    (each) => each.title + (each.value ?? ""))].join("\\n")"""


def mark(field: str) -> str:
    return f"<img src=x onerror=window.owned='{field}'>{RIGHT_TO_LEFT}</td>{field}-mark"


QUEUE = f"<script>window.owned='queue'</script>{RIGHT_TO_LEFT}queue-mark"
DATA = "<img src=x onerror=window.owned='data'>data-mark"  # a folder
ALERTS = f"""
[alerts]
interval = "0.2s"
[alerts.rules.backlog]
expression = "queue.ready >= n"
n = 1
summary = {json.dumps(mark("summary") + " {queue}")}
command = {json.dumps(mark("command"))}
"""


@dataclass
class Hostile:
    server: Served
    endpoint: str
    client: Client
    message_id: str
    dead_id: str


def by_amqp(port: int) -> pika.BlockingConnection:
    """Names and properties as only AMQP allows them."""
    named = ("connection_name", "product", "version", "platform", "information")
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            port,
            credentials=pika.PlainCredentials("ann", PASSWORD),
            client_properties={name: mark(name) for name in named},
            heartbeat=0,
        )
    )
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.exchange_declare(mark("exchange"), "headers", durable=True)
    channel.queue_bind(QUEUE, mark("exchange"), mark("key"), {mark("argument"): mark("value")})
    properties = pika.BasicProperties(
        headers={mark("header"): mark("header-value")},
        content_type=mark("content-type"),
        type=mark("type"),
        reply_to=mark("reply-to"),
        correlation_id=mark("correlation"),
        app_id=mark("app"),
    )
    channel.basic_publish("", QUEUE, mark("body").encode(), properties)
    channel.queue_declare("held", durable=True)
    channel.basic_consume("held", lambda *_: None, consumer_tag=mark("consumer"))
    return connection


def by_rest(client: Client, endpoint: str) -> tuple[str, str]:
    """The id of a message that waits, and of one that failed for good."""
    source = client.queue("orders", dlq=client.queue("orders-dead").rsplit("/", 1)[1], max_receives=1)
    payloads = [mark("dead-body"), {mark("json-key"): mark("json-value")}, "\0nul " + "x" * 1_000_000]
    for payload in payloads:
        sent = {"payload": payload, "attributes": {mark("attribute"): mark("attribute-value")}}
        assert client.post(f"{source}/messages", {**sent, "message_type": mark("message-type")}).status < 300
    for message in client.receive(source, max=3):
        body = {"receipt_id": message["receipt_id"], "reason": mark("reason"), "traceback": mark("traceback")}
        assert client.post(f"{source}/nack", body).status == 200
    dead = client.get("/queues/orders-dead/messages").value["messages"][0]["id"]
    waiting = client.get(f"/queues/{part(QUEUE)}/messages").value["messages"][0]["id"]
    schedule = {"queue": QUEUE, "every": 3600, "payload": {"job": mark("schedule")}}
    assert client.put("/schedules/tidy", schedule).status < 300
    hook = {"url": f"{endpoint}/webhook-mark?<img/src=x/onerror=owned=1>", "events": {"queues": ["orders"]}}
    assert client.put("/webhooks/shop", hook).status < 300, client.put("/webhooks/shop", hook).data
    silence = {"alert": "backlog", "reason": mark("silence"), "seconds": 3600}
    assert client.post("/alerts/silences", silence).status == 201
    refused = Client(f"http://{client.host}:{client.port}").post(
        "/session", {"user": mark("login")[:60], "password": "x"}
    )
    assert refused.status == 401, refused.data
    return waiting, dead


def by_job(client: Client) -> None:
    """Any program that may write the bucket may publish results."""
    numbers = dict.fromkeys(("published", "acked", "retried", "dead_lettered", "waiting"), 1)
    points = {name: [1] for name in numbers}
    for kind in ("wait", "processing"):
        points |= {f"{kind}_{name}_us": [1] for name in ("p50", "p90", "p99")}
    when = 1_777_800_000_000_000
    failure = {
        "queue": mark("failed-queue"),
        "event": mark("event"),
        "type": mark("failure-type"),
        "error_signature": mark("signature"),
        "count": 1,
        "last_seen": when,
    }
    group = {
        "source": mark("source"),
        "dead_queue": mark("dead-queue"),
        "type": None,
        "signature": mark("cause"),
        "count": 1,
        "there": 1,
        "last_seen": "2026-05-03T12:00:00Z",
        "timeline": [1],
        "advice": mark("advice"),
    }
    made: dict[str, dict[str, object]] = {
        "analytics": {
            "from": when,
            "until": when,
            "queues": [{"queue": mark("result"), **numbers, "wait": None, "processing": None}],
            "plots": {"from_us": when, "step_us": 1, "queues": {mark("result"): points}},
            "failures": [failure],
        },
        "triage": {"total": 1, "groups_in_all": 1, "groups": [group]},
    }
    for name, result in made.items():
        body = msgspec.json.encode({"made": "2026-05-03T12:00:00Z", **result})
        kind = {"content-type": "application/octet-stream"}
        assert client.send("PUT", f"/api/v1/kv/openq-pipeline/{name}", body, kind).status < 300


def by_worker(client: Client) -> None:
    """Any program may say that it is a worker."""
    entry = WorkerEntry(
        name=mark("worker"),
        service=mark("service"),
        instance="1",
        host=mark("host"),
        pid=1,
        started="2026-01-01T00:00:00Z",
        version=mark("version"),
        python=mark("python"),
        runs=mark("runs"),
        queues={QUEUE: 1},
        slots=1,
        busy=1,
        state=mark("state"),
        running=[RunningJob(id=mark("job"), task=mark("task"), queue=QUEUE, attempt=1, since=mark("since"))],
    )
    path = f"/api/v1/kv/workers/{part(entry.name)}?ttl=3600"
    reply = client.send("PUT", path, msgspec.json.encode(entry), {"content-type": "application/octet-stream"})
    assert reply.status < 300, reply.data


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / DATA).mkdir()
    (folder / "openq.toml").write_text(f'webhook_allow = ["127.0.0.1"]\n{ALERTS}')
    store = UserStore(folder / DATA / "users.json")
    store.add_user("ann", role="admin", password=PASSWORD)
    token = store.create_token("ann", "setup")
    with serve_endpoint() as endpoint:
        endpoint.respond = lambda handler: answer(handler, 500, mark("webhook-reply").encode())
        arguments = ("--config", str(folder / "openq.toml"))
        with serving.served_amqp(folder / DATA, *arguments) as (server, port):
            client = Client(server.url, headers={"authorization": f"Bearer {token}"})
            connection = by_amqp(port)
            waiting, dead = by_rest(client, endpoint.url)
            by_worker(client)
            by_job(client)
            browser = socket.create_connection(("127.0.0.1", server.port))
            head = (
                f"Authorization: Bearer {token}\r\nUser-Agent: {mark('agent').replace(RIGHT_TO_LEFT, '')}\r\n"
            )
            browser.sendall(f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n".encode())
            yield Hostile(server, endpoint.url, client, waiting, dead)
            browser.close()
            connection.close()


@contextmanager
def signed_in(browser: Browser, server: Served) -> Iterator[Visitor]:
    visitor = Visitor(browser, server.url)
    visitor.sign_in("ann", PASSWORD)
    yield visitor
    visitor.close()


@pytest.fixture
def visitor(browser: Browser, hostile: Hostile) -> Iterator[Visitor]:
    with signed_in(browser, hostile.server) as visitor:
        yield visitor
        visitor.check()


def look(page: Page, path: str) -> None:
    page.goto("about:blank")
    page.goto(f"/ui/{path}")
    expect(page.locator("#main h1, #main .title").first).to_be_attached()
    expect(page.get_by_role("status", name="Loading")).to_have_count(0)


def read(page: Page, where: str) -> str:
    assert page.evaluate(OWNED) == [None, 0], where
    return str(page.evaluate(TEXTS))


# Where each field of a client is shown.
SHOWN = {
    "queues": ["queue"],
    "": ["queue"],
    "queues/{queue}": ["queue"],
    "queues/{queue}/messages": ["body"],
    "queues/{queue}/settings": ["queue"],
    "queues/{queue}/send": ["queue"],
    "queues/held/consumers": ["consumer"],
    "queues/orders-dead/messages": ["json-key", "json-value", "message-type"],
    "messages/{dead}?queue=orders-dead": ["reason"],
    "messages/{message}?queue={queue}": ["body"],
    "search?text=mark": ["queue", "body"],
    "dead-letters": ["reason"],
    "exchanges": ["exchange", "key", "argument", "value", "queue"],
    "connections": ["connection_name", "product", "agent"],
    "connections/consumers": ["consumer"],
    "workers": ["worker", "host", "python", "runs", "state", "task", "queue"],
    "alerts": ["summary", "command", "queue"],
    "alerts/rules": [],
    "alerts/silences": ["silence"],
    "alerts/history": ["summary"],
    "schedules": ["queue"],
    "webhooks": ["webhook"],
    "webhooks/shop": ["webhook", "webhook-reply"],
    "replay?queue={queue}": ["queue"],
    "admin/audit": ["queue", "exchange", "key"],
    "admin/config": ["data"],
    "admin/users": [],
    "admin/keys": [],
    "admin/permissions": [],
    "admin/node": [],
    "tasks": [],
    "pipeline": ["result", "event", "signature", "failed-queue", "source", "cause", "advice"],
}


def test_no_field_of_a_client_becomes_a_part_of_the_page(hostile: Hostile, visitor: Visitor) -> None:
    page = visitor.page
    values = {"queue": quote(QUEUE, safe=""), "message": hostile.message_id, "dead": hostile.dead_id}
    for path, fields in SHOWN.items():
        look(page, path.format(**values))
        for field in fields:
            until(lambda: f"{field}-mark" in read(page, path), f"{field} is shown by {path}", seconds=20)  # noqa: B023
        read(page, path)


PARTS = (
    *("header", "header-value", "content-type", "type", "reply-to", "correlation", "app", "body"),
    *("attribute", "attribute-value", "message-type", "reason", "traceback", "dead-body"),
)


def test_the_parts_of_a_message_are_text(hostile: Hostile, visitor: Visitor) -> None:
    page = visitor.page
    seen = ""
    for path in (
        f"queues/{quote(QUEUE, safe='')}/messages?id={hostile.message_id}",
        f"queues/orders-dead/messages?id={hostile.dead_id}",
    ):
        look(page, path)
        detail = page.get_by_role("region", name=re.compile("^Message "))
        for tab in ("Body", "Properties", "Timeline", "Raw", "As curl"):
            detail.get_by_role("tab", name=tab).click()
            expect(detail.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
            expect(page.get_by_role("status", name="Loading")).to_have_count(0)
            seen += read(page, f"{path} {tab}")
    for field in PARTS:
        assert f"{field}-mark" in seen, field


def test_dialogs_and_notices_show_names_as_text(hostile: Hostile, visitor: Visitor) -> None:
    page = visitor.page
    look(page, "queues")
    row = page.get_by_role("row", name=re.compile("queue-mark"))
    for name, text in (
        ("Purge", "1 message is affected."),
        ("Delete", "1 message would be deleted with it."),
    ):
        row.get_by_role("button", name=re.compile(f"^{name}")).click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_text(text)).to_be_visible()
        dialog.get_by_text("Copy as").click()
        assert "queue-mark" in read(page, name)
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
    row.get_by_role("button", name=re.compile("^Pause")).click()
    expect(row.get_by_role("button", name=re.compile("^Resume"))).to_be_visible()
    read(page, "pause")
    row.get_by_role("button", name=re.compile("^Resume")).click()
    expect(row.get_by_role("button", name=re.compile("^Pause"))).to_be_visible()


def test_another_site_gets_nothing_read_and_nothing_done(hostile: Hostile, browser: Browser) -> None:
    """From another port of the same host, which the browser sends the cookie to all the same."""
    before = hostile.client.get("/queues/orders-dead/stats").value["ready"]
    page_of = ANOTHER_SITE.read_text().replace("SERVER", hostile.server.url).encode()
    with serve_endpoint() as endpoint, signed_in(browser, hostile.server) as visitor:
        endpoint.pages["/"] = page_of
        page = visitor.page
        page.goto(f"{endpoint.url}/")
        page.wait_for_function("() => window.outcome")
        outcome = page.evaluate("() => window.outcome")
        framed = page.frames[1]
        assert framed.url.startswith("chrome-error://"), framed.url
        assert {name: outcome[name] for name in ("read", "json", "header", "delete", "socket")} == {
            "read": "refused",
            "json": "refused",
            "header": "refused",
            "delete": "refused",
            "socket": "refused",
        }
        assert hostile.client.get("/queues/orders-dead/stats").value["ready"] == before == 3

        # The same request does something when it is the page's own.
        page.goto("/ui/")
        purge = "fetch('/api/v1/queues/orders-dead/purge', {method: 'POST'}).then((reply) => reply.status)"
        assert page.evaluate(purge) == 200
    assert hostile.client.get("/queues/orders-dead/stats").value["ready"] == 0
