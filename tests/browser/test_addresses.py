"""What an address or a key alone opens: a connection, a message that is gone, the dead letters of a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from openq import OpenQ
from tests import serving
from tests.browser.filled import by_amqp
from tests.browser.visitor import Visitor


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
