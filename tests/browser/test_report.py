"""The report of `openq pipeline analytics` in a browser: nothing is cut at the width of a laptop."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from openq.pipeline.report import render
from tests.browser.visitor import Visitor
from tests.pipeline.test_report import summary

pytestmark = pytest.mark.ui

CUT = """() => Array.from(document.querySelectorAll(".wide, main, td, th")).filter(
    (each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.outerHTML.slice(0, 120))"""
LONG = "urn:example:warehouse/europe/orders-of-the-day?shift=night&station=packing-line-17"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_fits_1280_px_and_is_accessible(browser: Browser, tmp_path: Path, theme: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(summary(LONG)))
    visitor = Visitor(browser, "http://127.0.0.1:1", color_scheme=theme)
    page = visitor.page
    page.goto(path.as_uri())

    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert page.evaluate(CUT) == []
    assert visitor.violations() == []
    visitor.close()
    visitor.check()
