"""What an address or a key alone opens: a connection, a message that is gone, the dead letters of a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from openq import OpenQ
from tests import serving
from tests.browser.filled import by_amqp
from tests.browser.visitor import Visitor
from tests.serving import Served


@pytest.mark.ui
def test_a_connection_a_message_and_dead_letters_open(tmp_path: Path, browser: Browser) -> None:
    with serving.served_amqp(tmp_path / "data") as (server, port):
        dead = OpenQ("orders-dead", url=server.url)
        with OpenQ("orders", url=server.url, dlq=dead, max_receives=1) as orders:
            gone = orders.publish("done")
            orders.ack(orders.receive())
            orders.publish("fails")
            orders.nack(orders.receive(), reason="broken")
        connection = by_amqp(port, "guest", "guest")
        visitor = Visitor(browser, server.url)
        page = visitor.page

        page.goto("/ui/connections")
        page.get_by_role("link", name=re.compile(r"^127\.0\.0\.1")).click()
        row = page.get_by_role("table", name="Channels of the connection").get_by_role("row").nth(1)
        expect(row.get_by_role("cell").nth(1)).to_have_text("5")  # prefetch
        expect(row.get_by_role("cell").nth(2)).to_have_text("1")  # unacked

        page.goto(f"/ui/messages/{gone}")  # its queue is not in the address
        expect(page.get_by_text("The message is no longer in a queue")).to_be_visible()
        expect(page.get_by_text("acked", exact=True).first).to_be_visible()

        page.goto("/ui/queues?filter=orders")
        expect(page.get_by_role("row")).to_have_count(3)  # with the head
        for key in ("j", "r"):
            page.keyboard.press(key)
        expect(page.get_by_role("dialog", name="Redrive dead letters of orders-dead")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("p")
        expect(page).to_have_url(re.compile("/ui/queues/orders/messages"))
        visitor.close()
        connection.close()
        visitor.check()


@pytest.mark.ui
def test_selected_messages_are_in_the_address(served: Served, page: Page) -> None:
    orders = OpenQ("orders", url=served.url)
    orders.publish_many([f"order {number:02}" for number in range(60)])
    page.goto("/ui/queues/orders/messages")
    boxes = page.get_by_role("table", name="Messages of orders").get_by_role("checkbox")
    expect(boxes).to_have_count(61)  # with that of all
    page.get_by_role("row", name=re.compile("order 03")).get_by_role("checkbox").check()
    page.get_by_role("row", name=re.compile("order 05")).get_by_role("checkbox").check()
    expect(page).to_have_url(re.compile("selected="))
    address = page.url

    # Opened anew, and by somebody else.
    page.goto("about:blank")
    page.goto(address)
    expect(page.get_by_text("2 selected")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("order 05")).get_by_role("checkbox")).to_be_checked()
    page.get_by_role("row", name=re.compile("order 03")).get_by_role("button").click()
    expect(page.get_by_role("region", name=re.compile("^Message "))).to_be_visible()
    expect(page.get_by_text("2 selected")).to_be_visible()

    # One of them is gone: the page does not say that it is there.
    orders.ack(next(each for each in orders.receive_many(60) if each.body == "order 05"))
    page.goto(address)
    expect(page.get_by_text("2 not in these rows")).to_be_visible()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_text("1 message is affected.")).to_be_visible()
    page.keyboard.press("Escape")

    # Another list, and an empty selection, have none in their address.
    page.goto(f"{address}&state=all")
    expect(boxes).to_have_count(60)
    page.get_by_role("button", name="Clear").click()
    expect(page).not_to_have_url(re.compile("selected="))
    page.get_by_role("row", name=re.compile("order 03")).get_by_role("checkbox").check()
    page.get_by_role("button", name="Delayed", exact=True).click()
    expect(page).not_to_have_url(re.compile("selected="))
    expect(page.get_by_text(re.compile("selected"))).to_have_count(0)

    # Too many for an address: they are selected all the same.
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_role("checkbox", name="Select all rows").check()
    expect(page.get_by_text("59 selected")).to_be_visible()
    expect(page).not_to_have_url(re.compile("selected="))
