"""A queue and its messages: send, find, read, change, and what others have put into them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from openq import OpenQ
from tests import serving
from tests.browser.visitor import Visitor
from tests.serving import Served

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def test_a_message_is_sent_found_by_its_body_and_read(served: Served, page: Page) -> None:
    OpenQ("orders", url=served.url).publish_many([{"customer": number} for number in range(20)])
    page.goto("/ui/queues/orders/send")
    page.get_by_role("button", name="JSON", exact=True).click()
    page.get_by_role("textbox", name="Body").fill('{"customer": 42, "note": "refund')
    expect(page.get_by_text("Not JSON:")).to_be_visible()
    expect(page.get_by_role("button", name="Send 1 message")).to_be_disabled()
    page.get_by_role("textbox", name="Body").fill('{"customer": 42, "note": "refund"}')
    page.get_by_role("textbox", name="Message type").fill("order.refund")
    page.get_by_role("button", name="Send 1 message").click()
    expect(page.get_by_text("Sent:")).to_be_visible()

    page.get_by_role("link", name="See the messages").click()
    page.get_by_role("searchbox", name="Search messages").fill("body.customer=42 type:order.refund")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("Searched 21 of 21 messages, 1 found")).to_be_visible()
    page.get_by_role("row", name=re.compile("refund")).get_by_role("button").click()

    detail = page.get_by_role("region", name=re.compile("^Message "))
    expect(detail.get_by_text('"refund"')).to_be_visible()
    detail.get_by_role("tab", name="Timeline").click()
    expect(detail.get_by_text("published", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile(r"q=body.customer.*id="))


def test_the_story_of_a_message_that_failed(served: Served, visitor: Visitor) -> None:
    page = visitor.page
    dead = OpenQ("orders-dead", url=served.url)
    with OpenQ("orders", url=served.url, dlq=dead, max_receives=1) as orders:
        message_id = orders.publish({"order": 1})
        orders.nack(orders.receive(), reason="timeout calling payment")
    page.goto(f"/ui/messages/{message_id}")  # finds its queue by itself

    expect(page.get_by_role("heading", name=re.compile(str(message_id)))).to_be_visible()
    expect(page.get_by_text("max_receives: timeout calling payment")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Timeline to scale"))).to_be_visible()
    page.get_by_role("button", name="Redrive…").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive 1").click()
    expect(page.get_by_text("redriven", exact=True)).to_be_visible()

    assert OpenQ("orders", url=served.url).stats().ready == 1


def test_selected_messages_are_moved_and_cancelled_with_a_way_back(served: Served, page: Page) -> None:
    queue = OpenQ("jobs", url=served.url)
    queue.publish_many(["one", "two", "three"])
    other = OpenQ("other", url=served.url)
    page.goto("/ui/queues/jobs/messages")
    page.get_by_role("row", name=re.compile("two")).get_by_role("checkbox").check()
    page.get_by_role("button", name="Move…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("1 message is affected.")).to_be_visible()
    dialog.get_by_label("To queue").fill("other")
    dialog.get_by_role("button", name="Move 1").click()
    expect(page.get_by_text("1 message moved to other.")).to_be_visible()
    assert [message.body for message in other.peek_many(5)] == ["two"]
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("1 message moved back to jobs.")).to_be_visible()

    page.get_by_role("checkbox", name="Select all rows").check()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel and delete 3").click()
    expect(page.get_by_text("3 messages cancelled.")).to_be_visible()
    assert queue.stats().ready == 0
    page.get_by_role("button", name="Undo").last.click()
    expect(page.get_by_text("3 messages restored")).to_be_visible()
    assert sorted(message.body for message in queue.peek_many(5)) == ["one", "three", "two"]


def test_settings_are_shown_as_a_difference_before_they_are_saved(served: Served, page: Page) -> None:
    queue = OpenQ("orders", url=served.url)
    page.goto("/ui/queues/orders/settings")
    page.get_by_label("Visibility timeout").fill("soon")
    expect(page.get_by_text("A time such as 30, 500ms, 5m, 2h or 14d.")).to_be_visible()
    page.get_by_label("Visibility timeout").fill("2m")
    page.get_by_role("button", name="Review and save").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("row", name="Visibility timeout 30s 2m")).to_be_visible()
    dialog.get_by_text("Copy as a command").click()
    expect(dialog.get_by_text("openq queue edit orders --visibility-timeout 2m")).to_be_visible()
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()

    assert queue.settings.visibility_ms == 120_000


@pytest.mark.ui
def test_a_queue_is_created_and_deleted(served: Served, page: Page) -> None:
    OpenQ("first", url=served.url)
    page.goto("/ui/queues")
    page.get_by_role("button", name="Create queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("payments")
    dialog.get_by_label("Keep messages that fail in a dead-letter queue").check()
    dialog.get_by_role("button", name="Create").click()
    expect(page).to_have_url(re.compile("/ui/queues/payments"))
    expect(page.get_by_text("payments-dead")).to_be_visible()

    page.get_by_role("button", name="Delete…").click()
    dialog.get_by_label("Type payments to delete it").fill("payments")
    dialog.get_by_role("button", name="Delete the queue").click()
    expect(page.get_by_text("Queue payments is deleted, with 0 messages.")).to_be_visible()


def test_what_others_send_is_shown_as_text(served: Served, page: Page) -> None:
    queue = OpenQ("hostile", url=served.url)
    queue.publish(HOSTILE, message_type=HOSTILE[:60], attributes={"<b>name</b>": HOSTILE})
    queue.publish(json.dumps({HOSTILE: HOSTILE}))
    queue.publish("\0nul " + "x" * 1_000_000)
    for message in queue.receive_many(3, 5):
        queue.nack(message, reason=HOSTILE, delay=0)
    ids = [message.id for message in queue.peek_many(3)]
    for message_id in ids:
        page.goto(f"/ui/queues/hostile/messages?id={message_id}")
        detail = page.get_by_role("region", name=re.compile("^Message "))
        for tab in ("Body", "Properties", "Timeline", "Raw", "As curl"):
            detail.get_by_role("tab", name=tab).click()
            expect(detail.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
        page.goto(f"/ui/messages/{message_id}?queue=hostile")
        expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
        assert "owned" not in page.title()
    assert page.locator("main img, main script").count() == 0


@pytest.mark.ui
def test_a_search_over_all_queues(served: Served, page: Page) -> None:
    OpenQ("a", url=served.url).publish("a needle here")
    OpenQ("b", url=served.url).publish_many(["hay"] * 50 + ["the needle"])
    page.goto("/ui/search?text=needle")
    expect(page.get_by_text("Searched 52 messages in 2 of 2 queues, 2 found")).to_be_visible()
    page.get_by_role("row", name=re.compile("the needle")).get_by_role("button").click()
    expect(page).to_have_url(re.compile("/ui/messages/.*queue=b"))


@pytest.mark.ui
def test_a_trace_is_a_link_where_the_server_knows_who_shows_it(browser: Browser, tmp_path: Path) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    (tmp_path / "openq.toml").write_text('ui_trace_url = "https://tempo.example/trace/{trace_id}"\n')
    with serving.served(tmp_path / "data", "--config", str(tmp_path / "openq.toml")) as served:
        queue = OpenQ("orders", url=served.url)
        id = queue.publish("x", attributes={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
        visitor = Visitor(browser, served.url)
        visitor.page.goto(f"/ui/messages/{id}?queue=orders")
        link = visitor.page.get_by_role("link", name=trace)
        expect(link).to_have_attribute("href", f"https://tempo.example/trace/{trace}")
        expect(link).to_have_attribute("rel", re.compile("noreferrer"))
        visitor.close()
        visitor.check()  # nothing was asked of the other host
