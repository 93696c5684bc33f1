"""Administration in the browser: a user is made, sees only its queues, and the audit log has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from openq import OpenQ
from openq.auth.store import UserStore
from tests import serving
from tests.browser.visitor import Visitor
from tests.serving import Served

PASSWORD = "canary-admin-password"
OTHER = "canary-other-password"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server with one admin, and two queues that are not for everybody."""
    data = tmp_path / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("ann", role="admin", password=PASSWORD)
    token = store.create_token("ann", "setup")
    with serving.served(data) as server:
        for name in ("orders", "secrets"):
            OpenQ(name, url=server.url, token=token)
        yield server


def sign_in(page: Page, user: str, password: str) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def add_user(page: Page, name: str, password: str, rules: str) -> None:
    page.get_by_role("button", name="Add a user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Password").fill(password)
    dialog.get_by_label("Rules").fill(rules)
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog).to_be_hidden()


def test_a_new_user_signs_in_and_sees_only_its_queues_and_the_audit_log_has_it(
    served: Served, browser: Browser, visitor: Visitor
) -> None:
    page = visitor.page
    page.goto("/ui/admin/users")
    sign_in(page, "ann", PASSWORD)
    add_user(page, "bob", OTHER, "allow send,peek orders*")
    expect(page.get_by_role("row", name=re.compile("bob.*allow peek,send orders"))).to_be_visible()
    assert OTHER not in page.content()

    other = Visitor(browser, served.url)
    other.page.goto("/ui/queues")
    sign_in(other.page, "bob", OTHER)
    expect(other.page.get_by_role("row", name=re.compile("orders"))).to_be_visible()
    expect(other.page.get_by_role("row")).to_have_count(2)  # with the head
    expect(other.page.get_by_role("link", name="Administration")).to_have_count(0)
    # The charts of the overview have the queues that it may see.
    other.page.goto("/ui/")
    expect(other.page.get_by_text("None of the queues that you may see has a history")).to_be_visible()
    headers = {"X-OpenQ-Request": "1"}
    address = "/api/v1/queues/orders/messages"
    assert other.context.request.post(address, data={"payload": "hello"}, headers=headers).status == 201
    expect(other.page.get_by_text("The sum of 1 queue that you may see.")).to_be_visible()
    for chart in ("Messages per second", "Messages waiting", "Age and waiting time"):
        expect(other.page.get_by_role("region", name=chart).locator(".u-wrap")).to_be_visible()
    assert other.violations() == []
    # It may send and peek, and is offered nothing else.
    other.page.goto("/ui/queues/orders/messages")
    expect(other.page.get_by_role("link", name="Send message")).to_be_visible()
    for name in ("Pause", "Purge…", "Delete…"):
        expect(other.page.get_by_role("button", name=name)).to_have_count(0)
    other.page.goto("/ui/webhooks")
    expect(other.page.get_by_text("No webhooks")).to_be_visible()
    expect(other.page.get_by_role("button", name="Add a webhook")).to_have_count(0)
    other.page.goto("/ui/admin/users")
    expect(other.page.get_by_text("for users with the role admin")).to_be_visible()
    other.close()
    other.check()

    page.get_by_role("link", name="Audit log").click()
    page.get_by_label("Target", exact=True).fill("bob")
    expect(page).to_have_url(re.compile("target=bob"))
    expect(page.get_by_role("row", name=re.compile("ann put_user bob ok"))).to_be_visible()
    page.get_by_label("Outcome").select_option("refused")
    expect(page.get_by_text("No such records")).to_be_visible()


@pytest.mark.ui
def test_a_secret_is_shown_once_and_a_permission_has_its_row(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/ui/admin/keys")
    sign_in(page, "ann", PASSWORD)
    page.get_by_role("button", name="Create a key").click()
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    secret = page.get_by_text("AWS_SECRET_ACCESS_KEY")
    expect(secret).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name=re.compile("Revoke key"))).to_be_visible()
    expect(secret).to_have_count(0)

    page.get_by_role("link", name="Permissions").click()
    row = page.get_by_role("row", name=re.compile("^ann"))
    expect(row.get_by_text("allowed")).to_have_count(4)
    page.get_by_role("link", name="Node").click()
    expect(page.get_by_text("● ok")).to_be_visible()
    expect(
        page.get_by_role("table", name="Segments of the journal").get_by_text("written now")
    ).to_be_visible()
