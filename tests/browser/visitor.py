"""Somebody who uses the dashboard, and what their pages did that no page of ours may do."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.isolation import ROOT

STEP_MS = 30_000  # of one step; only a story that has failed waits as long
expect.set_options(timeout=STEP_MS)  # without it 5 s, which a busy machine does not keep
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"


class Visitor:
    """A browser context with one page. Its faults: console errors, failed scripts, foreign requests."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.host = urlsplit(url).netloc
        self.faults: list[str] = []
        self.expected: list[str] = []
        settings: dict[str, Any] = {
            "viewport": {"width": 1280, "height": 900},
            "locale": "en-GB",
            "reduced_motion": "reduce",  # nobody looks at the pictures in between, and each costs time
            **options,
        }
        self.context = browser.new_context(base_url=url, **settings)
        self.context.set_default_timeout(STEP_MS)
        self.context.on("page", self._watch)
        self.page = self.context.new_page()

    def _watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", self._read)
        page.on("request", lambda request: self._check_host(request.url))

    def _read(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _check_host(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != self.host:
            self.faults.append(f"request to another host: {url}")

    def sign_in(self, user: str, password: str) -> None:
        """Without the page of the login: the cookie is that of the context."""
        body = {"user": user, "password": password}
        reply = self.context.request.post("/api/v1/session", data=body, headers={"X-OpenQ-Request": "1"})
        assert reply.status == 201, reply.text()

    def expect(self, *texts: str) -> None:
        """Faults with these texts belong to the story: a server that is down, a login that is refused."""
        self.expected += texts

    def check(self) -> None:
        unexpected = [each for each in self.faults if not any(text in each for text in self.expected)]
        assert not unexpected, unexpected

    def close(self) -> None:
        self.context.close()

    def violations(self) -> list[str]:
        """What axe finds on the page as it is: WCAG 2.1 A and AA."""
        # Evaluated by the debugger, which the policy of the page does not concern.
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate(
            "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
        )
        return [
            f"{each['id']}: {each['help']} at {node['target']} {node['failureSummary']}"
            for each in found["violations"]
            for node in each["nodes"]
        ]
