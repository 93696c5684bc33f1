"""What people come for, each as one story: a real server, real clients of SQS and AMQP, a real browser."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError
from playwright.sync_api import Browser, Page, expect

from openq import OpenQ
from openq.auth.store import UserStore
from tests import serving
from tests.browser.filled import PASSWORD, by_amqp, config
from tests.browser.visitor import Visitor
from tests.real_clients import boto
from tests.rest.helpers import Client
from tests.serving import Served
from tests.waiting import until


class Reader:
    """A pika consumer in a thread of its own, until it is closed by the server or by `stop`."""

    def __init__(self, port: int) -> None:
        self.connection = by_amqp(port, "guest", "guest")
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while self.connection.is_open:
                self.connection.process_data_events(time_limit=0.1)
        except (AMQPError, OSError):
            pass
        self.ended.set()

    def stop(self) -> None:
        if self.connection.is_open:
            self.connection.add_callback_threadsafe(self.connection.close)
        assert self.ended.wait(30)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Served, int]]:
    """A server and its AMQP port."""
    with serving.served_amqp(tmp_path / "data", *config(tmp_path)) as found:
        yield found


@pytest.fixture
def served(both: tuple[Served, int]) -> Served:
    return both[0]


def test_a_message_of_boto3_is_found_by_its_body_and_its_timeline_is_read(served: Served, page: Page) -> None:
    sqs = boto.client(served.url)
    queue = sqs.create_queue(QueueName="invoices")["QueueUrl"]
    for number in range(5):
        sqs.send_message(QueueUrl=queue, MessageBody=f"invoice {number} for c{number}")
    received = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=1)["Messages"]
    sqs.close()
    page.goto("/ui/")
    expect(page.get_by_role("searchbox", name=re.compile("Search queues"))).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("invoice 3")
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile("/ui/search"))
    page.get_by_role("row", name=re.compile("invoice 3")).get_by_role("button").click()
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    expect(page.get_by_text("published", exact=True)).to_be_visible()
    assert "invoice 3" in page.locator("#main").inner_text()
    assert len(received) == 1


@pytest.mark.ui
def test_a_consumer_that_fails_from_overview_to_redriven_in_two_clicks(served: Served, page: Page) -> None:
    dead = OpenQ("orders-dead", url=served.url)
    with OpenQ("orders", url=served.url, dlq=dead, max_receives=1) as orders:
        orders.publish_many([{"order": number} for number in range(5)])
        page.goto("/ui/")
        for message in orders.receive_many(5, 10):
            orders.nack(message, reason=f"payment service is down ({message.body['order']})")
        clicks = 0
        for place in (page.get_by_label("Needs attention"), page.get_by_role("dialog")):
            place.get_by_role("button", name="Redrive 5").click()
            clicks += 1

        until(lambda: orders.stats().ready == 5, "all five are back")
    assert clicks == 2


def test_an_hour_is_replayed(served: Served, page: Page) -> None:
    with OpenQ("events", url=served.url) as events:
        events.publish_many([{"n": number} for number in range(12)])
        for message in events.receive_many(12, 10):
            events.ack(message)
        page.goto("/ui/replay?queue=events&range=1h")
        page.get_by_role("button", name=re.compile("replay", re.IGNORECASE)).first.click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_text("12 messages are affected.")).to_be_visible()
        assert events.stats().ready == 0  # a preview changes nothing
        dialog.get_by_role("button", name="Replay 12").click()

        until(lambda: events.stats().ready == 12, "the hour is back")


@pytest.mark.ui
def test_a_span_is_picked_on_the_chart_and_replayed_into_another_queue(served: Served, page: Page) -> None:
    other = OpenQ("other", url=served.url)
    with OpenQ("events", url=served.url) as events:
        events.publish_many([{"n": number} for number in range(12)])
        events.ack_many(events.receive_many(12, 10))
        client = Client(served.url)

        def is_recorded() -> bool:
            """A queue has a series of its own once something has happened between two samples."""
            events.publish("later", delay=3600)
            return bool(client.get("/series?queue=events").value["recorded"])

        until(is_recorded, "the queue has a chart")
        page.goto("/ui/replay?queue=events")
        expect(page.get_by_role("img", name=re.compile("Published: now"))).to_be_visible()
        plot = page.locator(".u-over")
        box = plot.bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.2, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=4)
        page.mouse.up()
        expect(page).to_have_url(re.compile(r"since=\d+&until=\d+"))
        expect(page.get_by_text("No message of the span matches.")).to_be_visible()

        # To now, and only some of them.
        page.get_by_label("Until").fill("")
        page.get_by_label("Only those that match").fill("body.n=7")
        expect(page.get_by_text("1 message,")).to_be_visible()
        page.get_by_role("button", name="Replay…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("To another queue").fill("other")
        dialog.get_by_label("Messages per second").fill("5")
        dialog.get_by_role("button", name="Replay 1").click()
        until(lambda: other.stats().ready == 1, "the message is there")
        assert other.peek().body == {"n": 7}
        expect(page.get_by_text("Replay of events: 1 message done.")).to_be_visible()


@pytest.mark.ui
def test_times_are_local_with_utc_on_hover(browser: Browser, served: Served) -> None:
    visitor = Visitor(browser, served.url, timezone_id="Asia/Kathmandu")
    queue = OpenQ("orders", url=served.url)
    id = queue.publish("x")
    queue.receive()
    sent = datetime.fromtimestamp(queue.timeline(id)[0].time_ms / 1000, UTC)
    visitor.page.goto(f"/ui/messages/{id}?queue=orders")
    step = visitor.page.get_by_role("listitem").filter(has_text="published").locator("time")
    there = sent.astimezone(timezone(timedelta(hours=5, minutes=45)))
    expect(step).to_contain_text(there.strftime("%H:%M:%S"))
    expect(step).to_have_attribute("title", re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ UTC$"))
    leased = visitor.page.get_by_role("listitem").filter(has_text="leased until").locator("time").last
    expect(leased).to_have_attribute("title", re.compile("UTC$"))
    visitor.close()
    visitor.check()


def test_a_connection_is_closed(both: tuple[Served, int], page: Page) -> None:
    reader = Reader(both[1])
    try:
        page.goto("/ui/connections")
        row = page.get_by_role("row", name=re.compile("shop backend|guest"))
        expect(row).to_be_visible()
        row.get_by_role("button", name=re.compile("Close")).click()
        page.get_by_role("dialog").get_by_role("button", name="Close the connection").click()

        assert reader.ended.wait(30)
        expect(row).to_have_count(0)
    finally:
        reader.stop()


def test_an_alert_fires_is_silenced_and_the_silence_is_ended(served: Served, page: Page) -> None:
    OpenQ("orders", url=served.url).publish_many(["x"] * 4)
    page.goto("/ui/alerts")
    card = page.get_by_role("region", name=re.compile("^backlog orders"))
    expect(card.get_by_text("orders has 4 messages")).to_be_visible()
    expect(card.get_by_text("openq queue purge orders")).to_be_visible()

    card.get_by_role("button", name="Silence…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("known")
    dialog.get_by_role("button", name="Silence", exact=True).click()
    expect(card.get_by_text("silenced")).to_be_visible()
    page.get_by_role("link", name="Silences").click()
    expect(page.get_by_role("row", name=re.compile("backlog orders.*known"))).to_be_visible()
    page.get_by_role("button", name=re.compile("End the silence")).click()
    page.get_by_role("dialog").get_by_role("button", name="End the silence").click()
    expect(page.get_by_text("No alert is silenced.")).to_be_visible()
    page.get_by_role("link", name="History").click()
    expect(page.get_by_role("row", name=re.compile("firing backlog orders"))).to_be_visible()


@pytest.mark.ui
def test_values_follow_an_event_of_another_client(both: tuple[Served, int], page: Page) -> None:
    _, port = both
    reader = Reader(port)
    try:
        page.goto("/ui/queues")
        row = page.get_by_role("row", name=re.compile("shipments"))
        cells = row.get_by_role("cell")
        expect(cells.nth(2)).to_have_text("1")  # in flight: the consumer has not acknowledged it
        other = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        other.channel().basic_publish("", "shipments", b"one more")
        other.close()
        expect(cells.nth(2)).to_have_text("2")
    finally:
        reader.stop()
    expect(cells.nth(1)).to_have_text("2")  # the connection is gone: both are ready again


def test_a_session_that_expires_asks_for_a_login_and_returns_to_the_screen(
    tmp_path: Path, browser: Browser
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("ann", role="admin", password=PASSWORD)
    token = store.create_token("ann", "browser")
    with serving.served(data) as server:
        OpenQ("orders", url=server.url, token=store.create_token("ann", "other")).publish("one")
        visitor = Visitor(browser, server.url)
        visitor.expect("401 (Unauthorized)")
        page = visitor.page
        page.goto("/ui/queues/orders")
        page.get_by_role("button", name="Use a token").click()
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="orders")).to_be_visible()
        [cookie] = visitor.context.cookies()
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        assert not page.evaluate("document.cookie")

        store.revoke_token("ann", "browser")
        expect(page.get_by_role("heading", name="Sign in to OpenQ")).to_be_visible()
        page.get_by_label("User").fill("ann")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="orders")).to_be_visible()
        assert page.url.endswith("/ui/queues/orders")
        visitor.close()
        visitor.check()


@pytest.mark.ui
def test_a_token_that_expires_ends_the_session_of_an_open_page(tmp_path: Path, browser: Browser) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("ann", role="admin", password=PASSWORD)
    token = store.create_token("ann", "other")
    with serving.served(data) as server:
        OpenQ("orders", url=server.url, token=token)
        visitor = Visitor(browser, server.url)
        visitor.expect("401 (Unauthorized)")
        page = visitor.page
        page.goto("/ui/queues/orders")
        expect(page.get_by_role("heading", name="Sign in to OpenQ")).to_be_visible()
        client = Client(server.url, headers={"authorization": f"Bearer {token}"})
        expires = (datetime.now(UTC) + timedelta(seconds=10)).isoformat()
        made = client.post("/tokens", {"user": "ann", "name": "brief", "expires": expires})
        assert made.status == 201, made.data
        body = {"token": made.value["token"]}
        reply = visitor.context.request.post("/api/v1/session", data=body, headers={"X-OpenQ-Request": "1"})
        assert reply.status == 201, reply.text()
        page.reload()

        expect(page.get_by_role("heading", name="Sign in to OpenQ")).to_be_hidden()
        expect(page.get_by_role("heading", name="Sign in to OpenQ")).to_be_visible(timeout=60_000)
        assert page.url.endswith("/ui/queues/orders")
        visitor.close()
        visitor.check()
