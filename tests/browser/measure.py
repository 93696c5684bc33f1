"""How quick the dashboard is: one JSON line for each question. Nothing of it is asserted by the tests.

python -m tests.browser.measure              # all
python -m tests.browser.measure first live   # some of: first, live, queues, messages
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from openq import OpenQ
from tests import serving
from tests.browser.conftest import find_browser
from tests.browser.large import MESSAGES, QUEUES, many_messages, many_queues
from tests.browser.visitor import Visitor

# The page notes when the first row of the table of queues is there: the screen is drawn and takes keys.
WATCH = """
new MutationObserver((_, self) => {
  if (!document.querySelector("main a[href^='/ui/queues/']")) return;
  self.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.shownAt = performance.now(); }));
}).observe(document, {childList: true, subtree: true});
"""
# When the number of ready messages of the only queue becomes another one, by the clock of the machine.
SEEN = """(wanted) => new Promise((done) => {
  const look = () => {
    const cell = document.querySelector("table.data tbody tr td:nth-child(2)");
    if (cell?.textContent === wanted) done(Date.now());
    else requestAnimationFrame(look);
  };
  look();
})"""
# Types into the filter, and returns the milliseconds until the frame with the rows of it is drawn.
TYPE = """async ([text, shown]) => {
  const input = document.querySelector("main input[type=search]");
  const heading = document.querySelector("section[aria-label=Queues] h2");
  const begin = performance.now();
  input.value = text;
  input.dispatchEvent(new Event("input", {bubbles: true}));
  do await new Promise((done) => requestAnimationFrame(done));
  while (!heading.textContent.includes(shown));
  await new Promise((done) => setTimeout(done));
  return performance.now() - begin;
}"""


def first(browser: Browser) -> dict[str, Any]:
    """Milliseconds from the address to the overview with its queues: with an empty cache, and again."""
    found: dict[str, list[float]] = {"empty_cache_ms": [], "cached_ms": []}
    with serving.served(None) as server:
        OpenQ("orders", url=server.url).publish_many(["x"] * 5)
        for _ in range(7):
            visitor = Visitor(browser, server.url)
            visitor.context.add_init_script(WATCH)
            for name in found:
                visitor.page.goto("/ui/")
                visitor.page.wait_for_function("() => window.shownAt")
                found[name].append(visitor.page.evaluate("() => window.shownAt"))
            visitor.close()
    return {name: spread(values) for name, values in found.items()}


def live(browser: Browser) -> dict[str, Any]:
    """Milliseconds from the answer of a publish by another client to the number on the screen."""
    values = []
    with serving.served(None) as server:
        queue = OpenQ("live", url=server.url)
        visitor = Visitor(browser, server.url)
        visitor.page.goto("/ui/queues")
        expect(visitor.page.get_by_role("row", name=re.compile("live"))).to_be_visible()
        for count in range(1, 21):
            time.sleep(0.37 * (count % 3))  # at another moment of the server's second each time
            queue.publish("x")
            sent = time.time() * 1000
            values.append(visitor.page.evaluate(SEEN, str(count)) - sent)
        visitor.close()
    return {**spread(values), "all": sorted(map(round, values))}


def queues(browser: Browser) -> dict[str, Any]:
    """Milliseconds from a key in the filter of 10,000 queues to the drawn rows."""
    with tempfile.TemporaryDirectory() as folder:
        many_queues(Path(folder) / "data")
        with serving.served(Path(folder) / "data") as server:
            visitor = Visitor(browser, server.url)
            page = visitor.page
            began = time.monotonic()
            page.goto("/ui/queues")
            expect(page.get_by_role("heading", name=f"Queues {QUEUES:,}")).to_be_visible(timeout=60_000)
            shown = time.monotonic() - began
            values = []
            texts = [
                ("t", QUEUES),
                ("team-7", 1000),
                ("team-7-queue-01", 100),
                ("queue-04321", 1),
                ("queue", QUEUES),
            ]
            for text, rows in texts * 4:
                values.append(page.evaluate(TYPE, [text, f"{rows:,} of {QUEUES:,}"]))
            visitor.close()
    return {"first_view_ms": round(shown * 1000), "filter_ms": spread(values)}


def messages(browser: Browser) -> dict[str, Any]:
    """Seconds of a search of the page in a million messages, with the clicks to go on."""
    with tempfile.TemporaryDirectory() as folder:
        many_messages(Path(folder) / "data")
        with serving.served(Path(folder) / "data") as server:
            visitor = Visitor(browser, server.url)
            page = visitor.page
            began = time.monotonic()
            page.goto("/ui/queues/orders/messages")
            expect(page.get_by_text("100 messages shown of 1M")).to_be_visible()
            browse = time.monotonic() - began
            found = {text: search(page, text) for text in ("needle", "body.note=needle")}
            visitor.close()
    return {"messages": MESSAGES, "browse_ms": round(browse * 1000), "search": found}


def search(page: Page, text: str) -> dict[str, Any]:
    row = page.get_by_role("row", name=re.compile("needle"))
    more = page.get_by_role("button", name="Continue").and_(page.locator(":enabled"))
    page.get_by_role("searchbox", name="Search messages").fill(text)
    began = time.monotonic()
    page.get_by_role("button", name="Search", exact=True).click()
    clicks = 0
    while True:
        expect(row.or_(more).first).to_be_visible(timeout=60_000)
        if row.count():
            return {"seconds": round(time.monotonic() - began, 2), "clicks_to_go_on": clicks}
        more.click()
        clicks += 1


def spread(values: list[float]) -> dict[str, Any]:
    return {"median": round(statistics.median(values)), "max": round(max(values)), "n": len(values)}


MEASURED: dict[str, Callable[[Browser], dict[str, Any]]] = {
    each.__name__: each for each in (first, live, queues, messages)
}


def main() -> None:
    path = find_browser()
    if path is None:
        raise SystemExit("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for name in sys.argv[1:] or MEASURED:
            print(json.dumps({"measured": name, **MEASURED[name](browser)}), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
