"""The pages of `openq pipeline analytics` and `triage` in a browser: nothing is cut at 1280 px."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from openq.pipeline import report
from tests.browser.visitor import Visitor
from tests.pipeline.test_report import summary

pytestmark = pytest.mark.ui

CUT = """() => Array.from(document.querySelectorAll(".wide, main, td, th")).filter(
    (each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.outerHTML.slice(0, 120))"""
LONG = "urn:example:warehouse/europe/orders-of-the-day?shift=night&station=packing-line-17"


@pytest.fixture(params=["analytics", "triage"])
def text(request: pytest.FixtureRequest) -> str:
    if request.param == "analytics":
        return report.render(summary(LONG))
    triage = pytest.importorskip("openq.pipeline.triage")
    sample = {"id": "1e721607-b281-80ce-81e7-000000000001", "time": "2026-11-16", "error": LONG, "body": LONG}
    group = triage.TriageGroup(
        source=LONG,
        dead_queue=f"{LONG}-dead",
        type="order",
        error_type="TimeoutError",
        signature=LONG,
        count=12_345,
        first_us=1_790_000_000_000_000,
        last_us=1_790_000_900_000_000,
        there=12_000,
        redriven=300,
        discarded=45,
        timeline=(1, 0, 5),
        samples=(sample,),
        action="redrive",
        advice="looks transient",
        command=f"openq dlq redrive '{LONG}-dead' --rate 50",
    )
    return str(triage.render(triage.Triage(12_345, 1, 1_790_000_000_000_000, 300_000_000, (group,))))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_fits_1280_px_and_is_accessible(
    browser: Browser, tmp_path: Path, text: str, theme: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(text)
    visitor = Visitor(browser, "http://127.0.0.1:1", color_scheme=theme)
    page = visitor.page
    page.goto(path.as_uri())

    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert page.evaluate(CUT) == []
    assert visitor.violations() == []
    visitor.close()
    visitor.check()
