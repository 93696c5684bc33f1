"""Ten thousand queues, a million messages: the page shows a part, and finds the rest.

How long it takes is measured by `python -m tests.browser.measure`, not here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests import serving
from tests.browser.large import MESSAGES, NEEDLE, QUEUES, many_messages, many_queues
from tests.browser.visitor import Visitor

pytestmark = pytest.mark.ui


def test_ten_thousand_queues_are_filtered_sorted_and_scrolled(tmp_path: Path, browser: Browser) -> None:
    many_queues(tmp_path / "data")
    with serving.served(tmp_path / "data") as server:
        visitor = Visitor(browser, server.url)
        page = visitor.page
        page.goto("/ui/queues")
        table = page.get_by_role("table", name="Queues with their messages and rates")
        expect(page.get_by_role("heading", name=f"Queues {QUEUES:,}")).to_be_visible(timeout=60_000)
        expect(table).to_have_attribute("aria-rowcount", str(QUEUES + 1))
        assert table.get_by_role("row").count() < 120  # what is seen, and a little more

        page.get_by_role("searchbox", name="Filter by name").fill("team-7-queue-01")
        expect(page.get_by_role("heading", name=f"Queues 100 of {QUEUES:,}")).to_be_visible()
        page.get_by_role("searchbox", name="Filter by name").fill("queue-04321")
        expect(table.get_by_role("row")).to_have_count(2)
        expect(table.get_by_role("link", name="team-1-queue-04321")).to_be_visible()

        page.get_by_role("searchbox", name="Filter by name").fill("")
        table.get_by_role("button", name="Ready").click()
        expect(table.get_by_role("row").nth(1)).to_have_text(re.compile("team-0-queue-0[0-9]000"))
        table.get_by_role("button", name=re.compile("^Queue")).click()
        expect(table.get_by_role("row").nth(1)).to_have_text(re.compile("team-0-queue-00000"))
        page.get_by_role("region", name="Queues with their messages and rates").focus()
        page.keyboard.press("End")
        expect(table.get_by_role("link", name=f"team-9-queue-{QUEUES - 1:05}")).to_be_visible()
        visitor.close()
        visitor.check()


def test_a_million_messages_are_browsed_and_searched(tmp_path: Path, browser: Browser) -> None:
    many_messages(tmp_path / "data")
    with serving.served(tmp_path / "data") as server:
        visitor = Visitor(browser, server.url)
        page = visitor.page
        page.goto("/ui/queues/orders/messages")
        expect(page.get_by_text("100 messages shown of 1M")).to_be_visible()
        page.get_by_role("button", name="Load more").click()
        expect(page.get_by_text("200 messages shown of 1M")).to_be_visible()

        page.get_by_role("searchbox", name="Search messages").fill("body.note=needle")
        page.get_by_role("button", name="Search", exact=True).click()
        found = page.get_by_role("row", name=re.compile("needle"))
        more = page.get_by_role("button", name="Continue")
        for _ in range(100):  # as long as the budget of a search lasts, somebody goes on
            expect(found.or_(more.and_(page.locator(":enabled"))).first).to_be_visible(timeout=60_000)
            if found.count():
                break
            more.click()
        found.get_by_role("button").click()
        detail = page.get_by_role("region", name=re.compile("^Message "))
        expect(detail.get_by_text(str(NEEDLE))).to_be_visible()
        assert NEEDLE < MESSAGES
        visitor.close()
        visitor.check()
