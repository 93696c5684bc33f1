"""The first screen, as somebody sees it who has just started a server."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from openq import OpenQ
from tests.browser.visitor import Visitor
from tests.serving import Served


def fail_some(url: str, count: int, reason: str) -> None:
    dead = OpenQ("orders-dead", url=url)
    with OpenQ("orders", url=url, dlq=dead, max_receives=1) as orders:
        orders.publish_many([{"order": number} for number in range(count)])
        for message in orders.receive_many(count, 10):
            orders.nack(message, reason=reason)


def test_a_first_visit_ends_with_a_message_in_a_queue(served: Served, page: Page) -> None:
    page.goto("/ui/")
    expect(page.get_by_role("heading", name="This server has no queues yet")).to_be_visible()

    page.get_by_role("button", name="Send a test message").click()

    expect(page).to_have_url(re.compile("/ui/queues/hello"))
    assert OpenQ("hello", url=served.url).peek().body == "Hello from the dashboard"


def test_from_the_overview_dead_letters_are_redriven_in_two_clicks(served: Served, page: Page) -> None:
    fail_some(served.url, 17, "timeout calling payment 4711")
    page.goto("/ui/")
    expect(page.get_by_text("timeout calling payment <n>")).to_be_visible()

    page.get_by_role("button", name="Redrive 17").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive 17").click()

    expect(page.get_by_text("17 messages done.")).to_be_visible()
    assert OpenQ("orders", url=served.url).stats().ready == 17


def test_a_message_is_seen_without_reloading(served: Served, page: Page) -> None:
    queue = OpenQ("live", url=served.url)
    page.goto("/ui/queues")
    row = page.get_by_role("row", name=re.compile("live"))
    expect(row.get_by_role("cell").nth(1)).to_have_text("0")

    queue.publish_many(["x"] * 7)

    expect(row.get_by_role("cell").nth(1)).to_have_text("7")


def test_the_filter_is_in_the_address(served: Served, page: Page) -> None:
    for name in ("orders", "orders-dead", "mails"):
        OpenQ(name, url=served.url)
    page.goto("/ui/queues")
    page.get_by_role("searchbox", name="Filter by name").fill("orders")

    expect(page.get_by_role("row")).to_have_count(3)  # with the head
    expect(page).to_have_url(re.compile(r"filter=orders"))
    page.reload()
    expect(page.get_by_role("row")).to_have_count(3)


def test_the_page_recovers_when_the_server_is_back(served: Served, visitor: Visitor) -> None:
    from tests import serving

    page = visitor.page
    OpenQ("orders", url=served.url).publish("one")
    page.goto("/ui/queues")
    row = page.get_by_role("row", name=re.compile("orders"))
    expect(row.get_by_role("cell").nth(1)).to_have_text("1")
    visitor.expect("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY", "ERR_SOCKET")

    served.stop()
    expect(page.get_by_text("The server cannot be reached")).to_be_visible()
    again = serving.Served(served.arguments, served.port)
    try:
        again.wait()
        OpenQ("orders", url=again.url).publish("two")
        expect(row.get_by_role("cell").nth(1)).to_have_text("2")
        expect(page.get_by_text("The server cannot be reached")).to_be_hidden()
    finally:
        again.stop()
