"""What operators do to workers, schedules, webhooks and alert rules, and what users with few rights see."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from openq import OpenQ
from tests import serving
from tests.browser.filled import PASSWORD, Filled, by_amqp, config, fail_some, filled
from tests.browser.visitor import Visitor
from tests.redis.servers import FORCED, single
from tests.rest.helpers import Client
from tests.serving import Served, free_port
from tests.waiting import until
from tests.worker.service import worker

pytestmark = pytest.mark.ui

OTHER = "canary-other-password"
# What each screen shows, and the first words of buttons that change something.
READ_ONLY = {
    "": "orders-dead",
    "queues": "orders-dead",
    "queues/orders": "orders",
    "queues/orders/messages": "total",
    "queues/orders/settings": "Visibility timeout",
    "dead-letters": "timeout calling payment",
    "replay?queue=orders": "Which messages",
    "exchanges": "Bindings",
    "connections": "shop backend",
    "workers": "No worker runs",
    "alerts": "orders has",
    "alerts/rules": "backlog",
    "schedules": "No schedules",
    "webhooks": "No webhooks",
    "tasks": "No operations",
    "pipeline": "Start a job",
    "admin/users": "No users",
    "admin/keys": "No",
    "admin/node": "written now",
}
CHANGING = {
    "Add",
    "Create",
    "Send",
    "Redrive",
    "Discard",
    "Replay",
    "Pause",
    "Delete",
    "Save",
    "Bind",
    "Close",
}
APP = """
from openq.worker import App

app = App(url={url!r})

@app.task(queue="jobs")
def pack(number: int) -> int:
    return number
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with filled(tmp_path_factory.mktemp("operations")) as found:
        yield found


@pytest.fixture
def admin(browser: Browser, shown: Filled) -> Iterator[Visitor]:
    visitor = Visitor(browser, shown.server.url)
    visitor.sign_in("ann", PASSWORD)
    yield visitor
    visitor.close()
    visitor.check()


def run_action(page: Page, button: str, line: str, verb: str) -> None:
    """Open the dialog of a button, look for its line to copy, and do it."""
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Copy as a command").click()
    lines = dialog.locator(".code.line pre")
    expect(lines.first).to_contain_text(line)
    expect(lines.last).to_contain_text("curl")
    dialog.get_by_role("button", name=verb, exact=True).click()
    expect(dialog).to_have_count(0)


def test_operations_show_their_commands_and_can_be_undone(shown: Filled, admin: Visitor) -> None:
    page, client = admin.page, shown.client

    page.goto("/ui/schedules")
    run_action(page, "Pause tidy", "openq schedule pause tidy", "Pause")
    until(lambda: client.get("/schedules/tidy").value["paused"], "the schedule is paused")
    page.get_by_role("button", name="Undo").click()
    until(lambda: not client.get("/schedules/tidy").value["paused"], "the schedule runs again")

    page.goto("/ui/webhooks/shop")
    run_action(page, "Disable…", "openq webhook disable shop", "Disable")
    expect(page.get_by_text("Nothing is sent until it is enabled.")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    until(lambda: client.get("/webhooks/shop").value["enabled"], "the webhook is enabled again")
    run_action(page, "Send a sample…", "openq webhook test shop", "Send")
    expect(page.get_by_text("The endpoint answered 200")).to_be_visible()

    page.goto("/ui/alerts/rules")
    run_action(page, "Switch off backlog", "openq alert set backlog --off", "Switch off")
    expect(page.get_by_role("button", name="Switch on backlog", exact=True)).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="Switch off backlog", exact=True)).to_be_visible()
    page.get_by_role("button", name="Send a test of backlog", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_text("There is no destination yet.")).to_be_visible()


def test_a_worker_is_quieted_and_stopped(served: Served, page: Page, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.format(url=served.url))
    with worker(tmp_path, "shop:app") as service:
        page.goto("/ui/workers")
        row = page.get_by_role("table", name="Processes of workers").get_by_role("row").nth(1)
        expect(row.get_by_text("running")).to_be_visible()
        for command, state in (("Quiet", "quiet"), ("Stop", "")):
            row.get_by_role("button", name=re.compile(f"^{command} ")).click()
            page.get_by_role("dialog").get_by_role("button", name=command, exact=True).click()
            if state:
                expect(row.get_by_text(state, exact=True)).to_be_visible()
        expect(page.get_by_text("No worker runs")).to_be_visible()
        assert service.process.wait(30) == 0


def test_a_refresh_waits_for_the_answer_before_it(served: Served, page: Page) -> None:
    """A server that needs longer than the time between two refreshes still gets its answer on the screen."""
    asked: list[Route] = []
    page.clock.install()
    page.route("**/api/v1/workers", lambda route: asked.append(route))
    page.goto("/ui/workers")
    until(lambda: page.evaluate("1") == 1 and len(asked) == 1, "the list is asked for")
    page.clock.run_for(20_000)
    assert len(asked) == 1

    asked[0].continue_()
    expect(page.get_by_text("No worker runs")).to_be_visible()
    page.clock.run_for(2_500)
    until(lambda: page.evaluate("1") == 1 and len(asked) == 2, "it is refreshed")
    asked[1].continue_()


def test_a_user_with_few_rights_is_shown_no_screens_of_the_server(shown: Filled, browser: Browser) -> None:
    visitor = Visitor(browser, shown.server.url)
    visitor.sign_in("cid", PASSWORD)  # may send to and peek into orders*
    page = visitor.page
    page.goto("/ui/")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    menu = page.get_by_role("navigation", name="Screens").get_by_role("link")
    names = menu.all_inner_texts()
    assert "Alerts" not in names
    assert "Administration" not in names

    for name in names:  # and no request of these is refused: that would be an error in the console
        page.get_by_role("navigation", name="Screens").get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        text = page.locator("#main").inner_text()
        assert "You may not see this" not in text, name
        for hidden in ("mails", "shipments", "reports", "shop backend"):
            assert hidden not in text, (name, hidden)
    page.goto("/ui/connections")
    expect(page.get_by_role("link", name="Consumers")).to_be_visible()
    expect(page.get_by_role("link", name="Servers")).to_have_count(0)
    visitor.close()
    visitor.check()


@pytest.mark.parametrize("plots", [None, {"queues": None}, {"from_us": 1, "step_us": 1, "queues": {"a": {}}}])
def test_results_that_cannot_be_read_leave_the_rest_of_the_screen(
    served: Served, page: Page, plots: object
) -> None:
    result: dict[str, object] = {"made": "x", "queues": [None], "failures": [{}], "plots": plots}
    if plots is None:
        result["groups"] = [None]
    name = "triage" if plots is None else "analytics"
    kind = {"content-type": "application/octet-stream"}
    body = json.dumps(result).encode()
    assert Client(served.url).send("PUT", f"/api/v1/kv/openq-pipeline/{name}", body, kind).status < 300
    page.goto("/ui/pipeline")

    expect(page.get_by_text("The results on this server cannot be read")).to_be_visible()
    expect(page.get_by_role("region", name="Start a job")).to_be_visible()


def test_two_servers_on_one_redis_have_a_screen_without_errors(browser: Browser) -> None:
    with single(*FORCED) as store:
        arguments = ["--store", store.url, "--profile", "fast"]
        servers = [Served(arguments, free_port()) for _ in range(2)]
        try:
            for server in servers:
                server.wait()
            OpenQ("orders", url=servers[0].url).publish("one")
            visitor = Visitor(browser, servers[1].url)
            page = visitor.page
            page.goto("/ui/admin/node")
            table = page.get_by_role("table", name="Servers of this store")
            expect(table.get_by_role("row")).to_have_count(3)  # with the head
            expect(table.get_by_text("● healthy")).to_have_count(2)
            expect(
                page.get_by_role("row", name=re.compile("its machine loses power.*nothing"))
            ).to_be_visible()
            expect(page.get_by_text("Messages are kept in Redis.")).to_be_visible()
            page.goto("/ui/queues")
            expect(page.get_by_role("row", name=re.compile("orders"))).to_be_visible()
            visitor.close()
            visitor.check()
        finally:
            for server in servers:
                server.stop()


def test_a_table_offers_its_buttons_without_scrolling(shown: Filled, admin: Visitor) -> None:
    page = admin.page
    for width in (1280, 900):
        page.set_viewport_size({"width": width, "height": 900})
        for screen, button in (
            ("connections", re.compile("^Close the connection")),
            ("admin/users", "Delete ann"),
            ("schedules", "Delete tidy"),
            ("alerts/rules", "Switch off backlog"),
        ):
            page.goto(f"/ui/{screen}")
            found = page.get_by_role("button", name=button, exact=isinstance(button, str))
            expect(found).to_be_visible()
            right = "each => each.getBoundingClientRect().right"
            box = "each => each.closest('.table-box').getBoundingClientRect().right"
            assert found.evaluate(right) <= found.evaluate(box), (screen, width)
            assert found.evaluate("each => each.scrollWidth <= each.clientWidth"), (screen, width)


def test_signing_out_everywhere_ends_the_other_pages_of_the_user(shown: Filled, browser: Browser) -> None:
    visitors = [Visitor(browser, shown.server.url) for _ in range(2)]
    for visitor in visitors:
        visitor.sign_in("bob", OTHER)
        visitor.expect("401 (Unauthorized)")
        visitor.page.goto("/ui/queues")
        expect(visitor.page.get_by_role("row", name=re.compile("mails"))).to_be_visible()
    here, there = (visitor.page for visitor in visitors)
    here.get_by_role("button", name="bob").click()
    here.get_by_role("button", name="Sign out everywhere").click()

    for page in (here, there):
        expect(page.get_by_role("heading", name="Sign in to OpenQ")).to_be_visible()
        assert "mails" not in page.content()
    for visitor in visitors:
        visitor.close()
        visitor.check()


def test_a_read_only_dashboard_offers_no_action(tmp_path: Path, browser: Browser) -> None:
    with serving.served_amqp(tmp_path / "data", *config(tmp_path), "--ui-read-only") as (server, port):
        fail_some(server.url)
        connection = by_amqp(port, "guest", "guest")
        visitor = Visitor(browser, server.url)
        page = visitor.page
        for screen, shows in READ_ONLY.items():
            page.goto(f"/ui/{screen}")
            expect(page.locator("#main").get_by_text(shows).first).to_be_visible()
            found = page.locator("#main .button:not([aria-pressed])").all_inner_texts()
            assert [each for each in found if each.endswith("…") or each.split(" ")[0] in CHANGING] == [], (
                screen
            )
        visitor.close()
        visitor.check()
        connection.close()
