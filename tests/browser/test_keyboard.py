"""Everything by the keyboard alone: no story here uses the mouse."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from openq import OpenQ
from tests.serving import Served

NAME = """() => {
    const element = document.activeElement;
    return element.getAttribute("aria-label") ?? element.textContent ?? "";
}"""


def focused(page: Page) -> str:
    return str(page.evaluate(NAME)).strip()


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until the element has the focus, as somebody without a mouse does."""
    for _ in range(80):
        if wanted.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the tab order does not reach {wanted}")


def test_keys_lead_everywhere_and_are_listed(served: Served, page: Page) -> None:
    OpenQ("orders", url=served.url).publish("one")
    OpenQ("mails", url=served.url)
    page.goto("/ui/")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"

    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    expect(dialog.get_by_text("Go to queues")).to_be_visible()
    for _ in range(12):  # the focus stays in the dialog, whichever way it goes
        page.keyboard.press("Tab")
        assert page.evaluate("!document.activeElement || document.activeElement === document.body "
                             "|| document.activeElement.closest('dialog') !== null")  # fmt: skip
    page.keyboard.press("g")  # a dialog has the keyboard for itself
    page.keyboard.press("q")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)

    for keys, heading in (("gq", "Queues"), ("gd", "Dead letters"), ("gc", "Connections"), ("ga", "Alerts")):
        for key in keys:
            page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1, name=heading)).to_be_attached()
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("row")).to_have_count(3)
    for key in ("j", "j", "Enter"):
        page.keyboard.press(key)
    expect(page).to_have_url(re.compile("/ui/queues/orders"))


@pytest.mark.ui
def test_a_queue_is_found_and_a_message_sent_without_a_mouse(served: Served, page: Page) -> None:
    queue = OpenQ("orders", url=served.url)
    page.goto("/ui/")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("orders")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/ui/queues/orders"))
    link = page.get_by_role("link", name="Send", exact=True)
    tab_to(page, link)
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("textbox", name="Body"))
    page.keyboard.type("typed, not clicked")
    tab_to(page, page.get_by_role("button", name="Send 1 message"))
    page.keyboard.press("Enter")
    expect(page.get_by_text("Sent:")).to_be_visible()

    assert queue.peek().body == "typed, not clicked"


def test_a_dialog_gives_the_focus_back(served: Served, page: Page) -> None:
    queue = OpenQ("orders", url=served.url)
    queue.publish_many(["one", "two"])
    page.goto("/ui/queues")
    button = page.get_by_role("button", name="Purge orders")
    expect(button).to_be_visible()
    tab_to(page, button)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("2 messages are affected.")).to_be_visible()
    page.keyboard.press("Escape")

    expect(dialog).to_have_count(0)
    expect(button).to_be_focused()
    assert queue.stats().ready == 2  # nothing was done


@pytest.mark.ui
def test_rows_are_marked_selected_and_peeked_into_by_keys(served: Served, page: Page) -> None:
    OpenQ("orders", url=served.url).publish_many(["first", "second", "third"])
    page.goto("/ui/queues/orders/messages")
    expect(page.get_by_role("row")).to_have_count(4)
    for key in ("j", "j", "x", "j", "x", "k"):
        page.keyboard.press(key)
    expect(page.get_by_text("2 selected")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("first")).get_by_role("checkbox")).not_to_be_checked()
    page.keyboard.press("p")
    expect(page.get_by_role("region", name=re.compile("^Message ")).get_by_text("second")).to_be_visible()

    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    for text in ("Next row", "Select the row", "Peek into the message"):
        expect(dialog.get_by_text(text)).to_be_visible()
