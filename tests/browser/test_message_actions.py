"""What can be done to messages, by the page and by the lines that it offers to copy."""

from __future__ import annotations

import gzip
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pika
import pytest
from playwright.sync_api import Browser, Page, expect

from openq import OpenQ
from tests import serving
from tests.browser.shell import copied, run
from tests.browser.visitor import Visitor
from tests.serving import Served

pytestmark = pytest.mark.ui

LONG = 12345678901234567890123  # a number of JavaScript would make 1.2345678901234568e+22 of it


def select(page: Page, *texts: str) -> None:
    for text in texts:
        page.get_by_role("row", name=re.compile(text)).get_by_role("checkbox").check()


def found(served: Served, queue: str) -> dict[str, dict[str, Any]]:
    lines = run(f"openq search {queue} --json --url {served.url} || test $? = 5").splitlines()
    return {message["id"]: message for message in map(json.loads, lines)}


def time_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def bodies(queue: OpenQ) -> list[object]:
    return [message.body for message in queue.peek_many(20)]


def test_the_lines_of_the_first_page_work(served: Served, page: Page) -> None:
    page.goto("/ui/")
    expect(page.get_by_role("heading", name="This server has no queues yet")).to_be_visible()
    # The port of AMQP is that of this server.
    expect(page.get_by_role("region", name="pika (AMQP)")).to_contain_text("amqp://guest:guest@127.0.0.1:")
    cards = ("Python", "boto3 (SQS)", "pika (AMQP)", "Shell")
    lines = [page.get_by_role("region", name=card, exact=True).locator("pre").inner_text() for card in cards]
    for card in cards:
        expect(page.get_by_role("button", name=f"Copy the lines for {card}", exact=True)).to_be_visible()
    *programs, shell = lines
    for program in programs:
        run(f"python - <<'END'\n{program}\nEND")
    run(shell.replace("curl ", "curl --fail --silent --show-error "))

    assert len(bodies(OpenQ("hello", url=served.url))) == 5
    expect(page.get_by_role("link", name="hello")).to_be_visible()


@pytest.mark.ui
def test_the_lines_for_selected_messages_do_what_their_buttons_do(served: Served, page: Page) -> None:
    queue = OpenQ("my jobs", url=served.url)
    other = OpenQ("other", url=served.url)
    queue.publish_many(["one", "two", "three", "four"])
    page.goto("/ui/queues/my%20jobs/messages?state=all")
    dialog = page.get_by_role("dialog")

    select(page, "one", "two")
    page.get_by_role("button", name="Move…").click()
    dialog.get_by_label("To queue").fill("other")
    cli, curl = copied(dialog)
    run(cli)
    assert (bodies(queue), bodies(other)) == (["three", "four"], ["one", "two"])
    page.keyboard.press("Escape")

    page.get_by_role("button", name="Reload").click()
    page.get_by_role("checkbox", name="Select all rows").check()
    page.get_by_role("button", name="Move…").click()
    dialog.get_by_label("To queue").fill("other")
    cli, curl = copied(dialog)
    run(curl.replace("curl ", "curl --fail --silent --show-error "))
    assert bodies(other) == ["one", "two", "three", "four"]
    page.keyboard.press("Escape")

    page.goto("/ui/queues/other/messages?state=all")
    select(page, "one", "two")
    page.get_by_role("button", name="Delay…").click()
    cli, curl = copied(dialog)
    run(cli)
    assert other.stats().delayed == 2
    dialog.get_by_label("For").fill("0")
    expect(dialog.locator(".code.line pre").last).to_contain_text('{"delay":0}')
    run(dialog.locator(".code.line pre").last.inner_text())
    assert other.stats().delayed == 0
    dialog.get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Cancel…").click()
    cli, curl = copied(dialog)
    run(f"{cli} --yes")
    assert sorted(map(str, bodies(other))) == ["four", "three"]


def test_an_edited_message_keeps_its_long_numbers(served: Served, page: Page) -> None:
    queue = OpenQ("orders", url=served.url)
    queue.publish({"id": LONG, "state": "new"})
    page.goto("/ui/queues/orders/messages")
    page.get_by_role("row", name=re.compile(str(LONG))).get_by_role("button").click()
    detail = page.get_by_role("region", name=re.compile("^Message "))
    expect(detail.get_by_text(str(LONG))).to_be_visible()
    detail.get_by_role("button", name="Edit…").click()
    dialog = page.get_by_role("dialog")
    body = dialog.get_by_label("Body (JSON)")
    expect(body).to_have_value(re.compile(str(LONG)))
    body.fill(json.dumps({"id": LONG, "state": "mended"}))
    cli, _curl = copied(dialog)
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The message is changed.")).to_be_visible()
    assert bodies(queue) == [{"id": LONG, "state": "mended"}]

    run(cli.replace("mended", "mended by a line"))
    assert bodies(queue) == [{"id": LONG, "state": "mended by a line"}]

    detail.get_by_role("link", name="Edit and send a copy").click()
    expect(page.get_by_role("textbox", name="Body")).to_have_value(re.compile(str(LONG)))
    page.get_by_role("button", name="Send 1 message").click()
    expect(page.get_by_text("Sent:")).to_be_visible()
    assert [dict(body)["id"] for body in bodies(queue)] == [LONG, LONG]  # type: ignore[call-overload]


@pytest.mark.ui
def test_undoing_a_delay_gives_every_message_its_own_due_time_back(served: Served, page: Page) -> None:
    queue = OpenQ("jobs", url=served.url)
    queue.publish("soon")
    queue.publish("tomorrow", delay=86_400)
    page.goto("/ui/queues/jobs/messages?state=all")
    select(page, "soon", "tomorrow")
    page.get_by_role("button", name="Delay…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delay 2").click()
    expect(page.get_by_text("2 messages delayed by 10m.")).to_be_visible()
    assert queue.stats().delayed == 2
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("2 messages due as before.")).to_be_visible()

    assert (queue.stats().ready, queue.stats().delayed) == (1, 1)
    page.goto("/ui/queues/jobs/messages?state=delayed")
    expect(page.get_by_role("row", name=re.compile("tomorrow"))).to_contain_text(re.compile("in (24|23) h"))


@pytest.mark.ui
def test_undoing_a_cancel_keeps_due_times_times_to_live_and_counts(served: Served, page: Page) -> None:
    queue = OpenQ("jobs", url=served.url)
    queue.publish("failed once")
    queue.nack(queue.receive(), reason="no such product", delay=0)
    queue.publish("tomorrow", delay=86_400, ttl=7_200)
    before = found(served, "jobs")
    page.goto("/ui/queues/jobs/messages?state=all")
    page.get_by_role("checkbox", name="Select all rows").check()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel and delete 2").click()
    expect(page.get_by_text("2 messages cancelled.")).to_be_visible()
    assert found(served, "jobs") == {}
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("2 messages restored at the end of jobs.")).to_be_visible()

    after = found(served, "jobs")
    assert after.keys() == before.keys()
    for id, message in before.items():
        for name in ("payload", "state", "timestamp", "receive_count", "reason", "due_at"):
            assert after[id].get(name) == message.get(name), name
    [life_s] = [time_of(each["expires_at"]) for each in before.values() if "expires_at" in each]
    [back_s] = [time_of(each["expires_at"]) for each in after.values() if "expires_at" in each]
    assert back_s == pytest.approx(life_s, abs=1)


@pytest.mark.ui
def test_large_messages_are_counted_and_restored_all_of_them(served: Served, page: Page) -> None:
    """More than an answer of the server holds."""
    queue = OpenQ("photos", url=served.url)
    for number in range(4):
        queue.publish(f"{number} {'x' * (3 << 20)}")
    page.goto("/ui/queues/photos/messages?state=all")
    page.get_by_role("button", name="Load more").click()
    expect(page.get_by_role("row")).to_have_count(5)  # with the head
    page.get_by_role("checkbox", name="Select all rows").check()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel and delete 4").click()
    expect(page.get_by_text("4 messages cancelled.")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("4 messages restored at the end of photos.")).to_be_visible()

    assert queue.stats().ready == 4


@pytest.mark.ui
def test_the_send_form_has_every_field_and_its_lines_send_the_same(
    served: Served, page: Page, tmp_path: Path
) -> None:
    queue = OpenQ("orders", url=served.url)
    page.goto("/ui/queues/orders/send")
    page.get_by_role("button", name="JSON", exact=True).click()
    page.get_by_role("textbox", name="Body").fill('{"note": "it\'s -new-"}')
    for label, value in (
        ("Delay", "1h"),
        ("Time to live", "2h"),
        ("Message type", "order.new"),
        ("Priority", "7"),
        ("Message group", "customer 4"),
        ("Times", "3"),
    ):
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_role("button", name="Add attribute").click()
    page.get_by_label("Name of attribute 1").fill("colour")
    page.get_by_label("Value of attribute 1").fill("dark red")
    cli, curl = copied(page.locator("form.stack"))
    page.get_by_role("button", name="Send 3 messages").click()
    expect(page.get_by_text("3 messages sent.")).to_be_visible()
    run(cli)
    run(curl.replace("curl ", "curl --fail --silent --show-error "))

    assert queue.stats().delayed == 9
    found = json.loads(f"[{','.join(run(f'openq search orders --json --url {served.url}').splitlines())}]")
    for name, value in (
        ("payload", {"note": "it's -new-"}),
        ("message_type", "order.new"),
        ("priority", 7),
        ("group", "customer 4"),
        ("attributes", {"colour": "dark red"}),
    ):
        assert [message[name] for message in found] == [value] * 9
    assert all(message["expires_at"] > message["due_at"] for message in found)

    page.reload()
    (tmp_path / "lines.txt").write_text("first\nsecond\n\n-third\n")
    page.get_by_label("From a file").set_input_files(tmp_path / "lines.txt")
    page.get_by_role("button", name="Each line is a message").click()
    page.get_by_label("Message type").fill("lines")
    cli, curl = copied(page.locator("form.stack"))
    page.get_by_role("button", name="Send 3 messages").click()
    expect(page.get_by_text("3 messages sent.").last).to_be_visible()
    run(curl.replace("curl ", "curl --fail --silent --show-error "))
    assert [message.body for message in queue.peek_many(20)] == ["first", "second", "-third"] * 2


@pytest.mark.ui
def test_a_message_is_deduplicated_by_the_id_of_the_form(served: Served, page: Page) -> None:
    queue = OpenQ("orders", url=served.url)
    page.goto("/ui/queues/orders/send")
    page.get_by_role("textbox", name="Body").fill("once")
    page.get_by_label("Deduplication id").fill("invoice 7")
    page.get_by_role("button", name="Send 1 message").click()
    expect(page.get_by_text("Sent:")).to_be_visible()
    page.get_by_role("button", name="Send 1 message").click()
    expect(page.get_by_text("The queue has it already:")).to_be_visible()

    assert queue.stats().ready == 1


@pytest.mark.ui
def test_bodies_and_properties_of_every_kind_are_readable(browser: Browser, tmp_path: Path) -> None:
    with serving.served_amqp(tmp_path / "data") as (served, port):
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        channel = connection.channel()
        channel.queue_declare("mixed", durable=True)
        properties = pika.BasicProperties(
            content_type="application/json",
            content_encoding="gzip",
            correlation_id="corr-7",
            reply_to="replies",
            headers={"x-shop": "north"},
        )
        channel.basic_publish("", "mixed", gzip.compress(b'{"packed": "by gzip"}'), properties)
        channel.basic_publish("", "mixed", bytes([0x81, 0xA4]) + b"kind" + bytes([0xA7]) + b"msgpack")
        channel.basic_publish("", "mixed", b"eyJpbnNpZGUiOiAiYmFzZTY0In0=")
        connection.close()
        visitor = Visitor(browser, served.url)
        page = visitor.page
        page.goto("/ui/queues/mixed/messages")
        detail = page.get_by_role("region", name=re.compile("^Message "))
        for row, layers, text in (
            (1, ("gzip", "JSON"), '"by gzip"'),
            (2, ("msgpack",), '"msgpack"'),
            (3, ("base64", "JSON"), '"base64"'),
        ):
            page.get_by_role("row").nth(row).get_by_role("button").click()
            expect(detail.locator(".row.between > .soft")).to_have_text(re.compile(f"^{'.+'.join(layers)}$"))
            expect(detail.get_by_text(text)).to_be_visible()
        page.get_by_role("row").nth(1).get_by_role("button").click()
        detail.get_by_label("Decode").select_option("hex")
        expect(detail.get_by_text("00000000  1f 8b")).to_be_visible()
        detail.get_by_role("tab", name="Properties").click()
        for text in ("corr-7", "replies", "application/json", "north"):
            expect(detail.get_by_text(text)).to_be_visible()
        visitor.close()
        visitor.check()


@pytest.mark.ui
def test_past_messages_have_the_line_of_their_span(served: Served, page: Page) -> None:
    with OpenQ("orders", url=served.url) as queue:
        queue.publish("done")
        queue.ack(queue.receive())
    page.goto("/ui/queues/orders/messages?state=history&span=24h")
    expect(page.get_by_role("row", name=re.compile("done"))).to_be_visible()
    expect(page.get_by_role("columnheader", name="Deliveries")).to_have_count(0)
    cli, _curl = copied(page.get_by_role("region", name="Messages", exact=True))

    assert "--since 24h" in cli
    assert "would" in run(cli)


def test_a_search_that_cannot_be_read_finds_nothing(served: Served, page: Page) -> None:
    OpenQ("orders", url=served.url).publish("hello")
    page.goto("/ui/queues/orders/messages?q=deliveries%3E%3Dmany")
    expect(page.get_by_text("deliveries takes a whole number")).to_be_visible()
    expect(page.get_by_text("Nothing was searched")).to_be_visible()
    page.get_by_role("searchbox", name="Search messages").fill("deliveries>=0")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("Searched 1 of 1 messages, 1 found")).to_be_visible()
