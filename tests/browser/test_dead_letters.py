"""Dead letters: grouped over queues, changed while they are redriven, halted, discarded and brought back."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from openq import OpenQ
from tests.browser.shell import copied, run
from tests.serving import Served
from tests.waiting import until


def fail(url: str, name: str, count: int, reason: str) -> OpenQ:
    dead = OpenQ(f"{name}-dead", url=url)
    queue = OpenQ(name, url=url, dlq=dead, max_receives=1)
    queue.publish_many([{"order": number, "state": "new"} for number in range(count)])
    for number, message in enumerate(queue.receive_many(count, 10)):
        queue.nack(message, reason=f"{reason} {number}")
    return queue


def test_a_group_of_two_queues_is_changed_and_redriven(served: Served, page: Page) -> None:
    orders = fail(served.url, "orders", 4, "timeout after")
    mails = fail(served.url, "mails", 2, "timeout after")
    page.goto("/ui/dead-letters")
    row = page.get_by_role("row", name=re.compile("timeout after <n>"))
    expect(row.get_by_role("cell").nth(1)).to_have_text("6")
    expect(row.get_by_role("img", name="6 in the last 24 h")).to_be_visible()
    expect(page.get_by_role("columnheader", name=re.compile("000"))).to_have_count(5)  # samples
    expect(page.get_by_role("row", name="body.order")).to_have_class("differs")

    for key in ("j", "r"):
        page.keyboard.press(key)
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("6 messages are affected.")).to_be_visible()
    dialog.get_by_text("Change fields of JSON bodies").click()
    dialog.get_by_label("Set").fill("state=again\ncustomer.id=7")
    expect(dialog.get_by_text("state: new → again").first).to_be_visible()
    assert OpenQ("orders-dead", url=served.url).stats().ready == 4  # a dry run changes nothing
    dialog.get_by_role("button", name="Redrive 6").click()

    until(lambda: (orders.stats().ready, mails.stats().ready) == (4, 2), "all are back")
    body = mails.peek().body
    assert body == {"order": body["order"], "state": "again", "customer": {"id": 7}}


@pytest.mark.ui
def test_a_redrive_without_consumers_says_what_it_waits_for_and_sends_the_rest(
    served: Served, page: Page
) -> None:
    orders = fail(served.url, "orders", 60, "down")
    page.goto("/ui/dead-letters")
    page.get_by_role("button", name="Redrive 60").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Stop after failures")).to_have_value("100")  # more than there are
    dialog.get_by_label("Stop after failures").fill("12")
    dialog.get_by_role("button", name="Redrive 60").click()

    expect(page.get_by_text("Waits until consumers are done with 12 messages")).to_be_visible()
    page.get_by_role("button", name="Send the rest of orders-dead").click()
    page.get_by_role("dialog").get_by_role("button", name="Send the rest").click()
    until(lambda: orders.stats().ready == 60, "all are back")
    expect(page.get_by_role("cell", name="done")).to_be_visible()


@pytest.mark.ui
def test_a_redrive_is_paused_resumed_and_cancelled(served: Served, page: Page) -> None:
    orders = fail(served.url, "orders", 50, "down")
    page.goto("/ui/dead-letters")
    page.get_by_role("button", name="Redrive 50").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Messages per second").fill("0.1")
    dialog.get_by_role("button", name="Redrive 50").click()

    page.get_by_role("button", name="Pause redrive of orders-dead").click()
    expect(page.get_by_role("cell", name="paused")).to_be_visible()
    page.get_by_role("button", name="Resume redrive of orders-dead").click()
    expect(page.get_by_role("cell", name="running")).to_be_visible()
    page.get_by_role("button", name="Cancel redrive of orders-dead").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the operation").click()
    expect(page.get_by_role("cell", name="cancelled")).to_be_visible()
    assert orders.stats().ready < 50


def test_a_discard_is_exported_first_and_undone(served: Served, page: Page) -> None:
    fail(served.url, "orders", 3, "broken")
    dead = OpenQ("orders-dead", url=served.url)
    page.goto("/ui/dead-letters?group=broken%20%3Cn%3E")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export JSONL").click()
    lines = download.value.path().read_text().splitlines()
    assert sorted(json.loads(line)["payload"]["order"] for line in lines) == [0, 1, 2]

    page.get_by_role("button", name="Discard…").click()
    page.get_by_role("dialog").get_by_role("button", name="Discard 3").click()
    until(lambda: dead.stats().ready == 0, "they are gone")
    page.get_by_role("button", name="Undo discard of orders-dead").click()
    until(lambda: dead.stats().ready == 3, "they are back")
    expect(page.get_by_role("row", name=re.compile("broken <n>"))).to_be_visible()


def test_a_queue_has_its_own_samples_also_where_another_has_newer_ones(served: Served, page: Page) -> None:
    fail(served.url, "orders", 2, "timeout after 7 s")
    fail(served.url, "mails", 8, "timeout after 9 s")
    page.goto("/ui/dead-letters?queue=orders-dead")

    expect(page.get_by_text("2 in 1 queue")).to_be_visible()
    samples = page.get_by_role("region", name="Samples")
    expect(samples.get_by_role("columnheader")).to_have_count(3)
    expect(samples.get_by_role("row", name=re.compile("^queue"))).to_contain_text("orders-dead")
    page.get_by_label("Queue", exact=True).select_option("All queues")
    expect(page.get_by_text("10 in 2 queues")).to_be_visible()


@pytest.mark.ui
def test_samples_show_what_differs_first(served: Served, page: Page) -> None:
    with OpenQ("orders", url=served.url, dlq=OpenQ("orders-dead", url=served.url), max_receives=1) as orders:
        for number in range(2):
            orders.publish({"shop": "north", "order": number})
            orders.nack(orders.receive(), reason=f"no order {number}")
    page.goto("/ui/dead-letters")

    rows = page.get_by_role("region", name="Samples").get_by_role("row")
    expect(rows.nth(2)).to_have_text("reasonno order 1no order 0")
    expect(rows.nth(3)).to_have_text("body.order10")
    expect(rows.nth(4)).to_have_text("body.shopnorthnorth")


@pytest.mark.ui
def test_what_runs_stands_above_what_failed(served: Served, page: Page) -> None:
    fail(served.url, "orders", 50, "down")
    page.goto("/ui/dead-letters")
    page.get_by_role("button", name="Redrive 50").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Messages per second").fill("0.1")
    dialog.get_by_role("button", name="Redrive 50").click()
    running = page.get_by_role("region", name="Running now")
    expect(running.get_by_role("progressbar")).to_be_visible()
    expect(page.locator("section.card").first).to_contain_text("Running now")

    running.get_by_role("button", name="Cancel redrive of orders-dead").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the operation").click()
    expect(page.get_by_text("Redrive of orders-dead was cancelled:")).to_be_visible()
    expect(page.get_by_role("region", name="Ended operations")).to_be_visible()
    expect(running).to_have_count(0)


@pytest.mark.ui
def test_the_lines_for_a_group_without_a_reason_touch_only_that_group(served: Served, page: Page) -> None:
    orders = fail(served.url, "orders", 2, "broken")
    dead = OpenQ("orders-dead", url=served.url)
    with OpenQ("orders", url=served.url, dlq=dead, max_receives=1) as queue:
        queue.publish("no reason")
        queue.nack(queue.receive())
    page.goto("/ui/dead-letters?queue=orders-dead")
    page.get_by_role("row", name=re.compile("max_receives|no reason given")).get_by_role("link").first.click()
    page.get_by_role("button", name="Redrive 1").click()
    cli, _curl = copied(page.get_by_role("dialog"))
    run(f"{cli} --yes")
    until(lambda: orders.stats().ready == 1, "one is back")
    assert (orders.peek().body, dead.stats().ready) == ("no reason", 2)
