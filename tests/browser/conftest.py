"""A real Chromium on the dashboard of a real server.

`OPENQ_BROWSER` names another browser than the one on the PATH. `make test-ui` runs all stories, `make test`
those that are not marked `ui`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests import serving
from tests.browser.visitor import Visitor
from tests.isolation import ROOT
from tests.serving import Served

BUILD = ROOT / "src" / "openq" / "ui" / "static" / "index.html"
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    return os.environ.get("OPENQ_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of one file: as long as Playwright runs, no other test of this process can run an event loop."""
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    if not BUILD.exists():
        pytest.skip("the dashboard is not built: `make web` needs Node 20.19 or later")
    with sync_playwright() as playwright:
        # Without its sandbox, because tests may run as root. Every page that it opens is our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving.served_amqp(tmp_path / "data") as (server, _port):
        yield server


@pytest.fixture
def visitor(browser: Browser, served: Served) -> Iterator[Visitor]:
    """A visitor without cookies and storage of another one; what its pages did wrong fails the test."""
    visitor = Visitor(browser, served.url)
    yield visitor
    visitor.close()
    visitor.check()


@pytest.fixture
def page(visitor: Visitor) -> Page:
    return visitor.page
