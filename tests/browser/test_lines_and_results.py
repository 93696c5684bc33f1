"""The lines to copy do what their button does; results of pipeline jobs are drawn."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from openq import OpenQ
from openq.cli.pipeline_results import publish, shorter_analytics
from tests.browser.shell import copied, run
from tests.serving import Served


@pytest.mark.ui
def test_the_lines_to_copy_work(served: Served, page: Page) -> None:
    dead = OpenQ("orders-dead", url=served.url)
    orders = OpenQ("orders", url=served.url, dlq=dead, max_receives=1)
    orders.publish_many([{"order": number} for number in range(3)])
    for message in orders.receive_many(3, 10):
        orders.nack(message, reason="it's $HOME: `broken`")
    page.goto("/ui/dead-letters")
    page.get_by_role("button", name="Redrive 3").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Change fields of JSON bodies").click()
    dialog.get_by_label("Set").fill("state=it's again")
    expect(dialog.get_by_text("→ it's again").first).to_be_visible()
    cli, curl = copied(dialog)
    run(f"{cli} --yes")
    assert orders.stats().ready == 3
    assert orders.peek().body["state"] == "it's again"

    page.goto("/ui/queues/orders")
    page.get_by_role("button", name="Purge…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("3 messages are affected.")).to_be_visible()
    cli, curl = copied(dialog)
    run(f"{curl} --fail --silent --show-error")
    assert orders.stats().ready == 0
    run(f"{cli} --yes")


def summary() -> dict[str, Any]:
    numbers = {"published": 40, "acked": 30, "retried": 5, "dead_lettered": 2, "waiting": 8}
    sketch = {"p50_us": 1_000, "p90_us": 2_000, "p99_us": 9_000_000}
    points: dict[str, Any] = {name: [10, 20, 10] for name in numbers}
    for kind in ("wait", "processing"):
        points |= {f"{kind}_{name}": [value] * 3 for name, value in sketch.items()}
    hour = 3_600_000_000
    return {
        "made": "2026-05-03T12:00:00Z",
        "from": 1_777_800_000_000_000,
        "until": 1_777_800_000_000_000 + 3 * hour,
        "queues": [{"queue": "orders", **numbers, "wait": sketch, "processing": None}],
        "plots": {"from_us": 1_777_800_000_000_000, "step_us": hour, "queues": {"orders": points}},
        "failures": [],
        "types": [],
        "consumers": [],
        "producers": [],
    }


@pytest.mark.ui
def test_results_of_a_job_are_drawn(served: Served, page: Page) -> None:
    page.goto("/ui/pipeline")
    expect(page.get_by_text("There are no results on this server yet").first).to_be_visible()
    options = Namespace(url=served.url, token=None, token_file=None)
    publish(options, "analytics", summary(), shorter_analytics(summary()))

    page.reload()
    card = page.get_by_role("region", name="Analytics")
    expect(card.get_by_role("img", name=re.compile("Rates of orders"))).to_be_visible()
    card.get_by_role("group", name="Plot").get_by_role("button", name="Waiting").click()
    expect(card.get_by_role("img", name=re.compile("Waiting of orders. p50: now 1 ms"))).to_be_visible()
    expect(card.get_by_role("table", name="Messages published to orders by day and hour")).to_be_visible()
    expect(card.get_by_role("cell", name="9 s")).to_be_visible()
    expect(page).to_have_url(re.compile("plot=wait"))
