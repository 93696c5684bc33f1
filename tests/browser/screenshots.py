"""Pictures of the main screens, light, dark and 360 px wide, with data of `openq demo` and real clients.

    python -m tests.browser.screenshots              # every screen, below build/screenshots/
    python -m tests.browser.screenshots --only alerts,queues
    python -m tests.browser.screenshots --docs       # writes docs/images/ anew, too

A person looks at them: nothing is compared.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, Page, expect, sync_playwright

from openq import OpenQ
from tests import serving
from tests.browser.conftest import find_browser
from tests.browser.filled import PASSWORD, Filled, filled
from tests.browser.visitor import Visitor
from tests.isolation import ROOT

DEMO_S = 45.0
LOOKS = (("light", 1280, 860), ("dark", 1280, 860), ("light", 360, 740))
QUALITY = 78
MAX_BYTES = 60_000  # of a picture in git

# `{dead}` is the id of a dead letter, `{group}` the group of its reason.
SCREENS = {
    "overview": "",
    "queues": "queues",
    "queue": "queues/demo-orders",
    "messages": "queues/demo-orders-dead/messages?id={dead}",
    "history": "queues/demo-orders/messages?state=history",
    "send": "queues/demo-orders/send",
    "queue-dead-letters": "queues/demo-orders/dead-letters",
    "queue-consumers": "queues/shipments/consumers",
    "settings": "queues/demo-orders/settings",
    "limits": "queues/demo-orders/limits",
    "queue-permissions": "queues/demo-orders/permissions",
    "queue-schedules": "queues/mails/schedules",
    "queue-webhooks": "queues/mails/webhooks",
    "message": "messages/{dead}?queue=demo-orders-dead",
    "search": "search?text=tea",
    "dead-letters": "dead-letters",
    "dead-letter-samples": "dead-letters?queue=demo-orders-dead&group={group}",
    "replay": "replay?queue=demo-orders",
    "exchanges": "exchanges?exchange=shop&key=order.7.paid",
    "tasks": "tasks",
    "connections": "connections",
    "consumers": "connections/consumers",
    "servers": "connections/servers",
    "workers": "workers",
    "alerts": "alerts",
    "alert-rules": "alerts/rules",
    "alert-destinations": "alerts/destinations",
    "alert-silences": "alerts/silences",
    "alert-history": "alerts/history",
    "schedules": "schedules",
    "webhooks": "webhooks",
    "webhook": "webhooks/mailer",
    "pipeline": "pipeline",
    "users": "admin/users",
    "keys": "admin/keys",
    "permissions": "admin/permissions",
    "audit": "admin/audit",
    "node": "admin/node",
    "config": "admin/config",
    "components": "components",
    "no-such-queue": "queues/no-such-queue",
}
# As they look to a user who may only send to and peek into some queues.
FEW = {
    "few-overview": "",
    "few-queues": "queues",
    "few-queue": "queues/orders",
    "few-messages": "queues/orders/messages?id={order}",
    "few-dead-letters": "dead-letters",
    "few-settings": "queues/orders/settings",
    "few-alerts": "alerts",
    "few-schedules": "schedules",
    "few-webhooks": "webhooks",
    "few-users": "admin/users",
    "few-no-rights": "queues/mails",
}
# Half of the last minute is seen on the overview.
SPARKLINES = (
    "() => [...document.querySelectorAll('.spark path')].some((each) => each.getAttribute('d').length > 300)"
)
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
# Name in docs/images, screen, look.
PUBLISHED = (
    ("overview", "overview", 0),
    ("overview-dark", "overview", 1),
    ("dead-letters", "dead-letters", 0),
    ("message", "message", 0),
    ("overview-phone", "overview", 2),
)


@contextmanager
def demo_at_work(data: Filled) -> Iterator[None]:
    """`openq demo` as a user starts it, and a task of the page."""
    env = {"OPENQ_URL": data.server.url, "OPENQ_TOKEN": data.token}
    command = [sys.executable, "-m", "openq", "demo", "--seconds"]
    subprocess.run([*command, str(DEMO_S)], env=env, check=True, stdout=subprocess.DEVNULL)
    # Its producer goes on while the pictures are taken: live values are not all 0.
    more = subprocess.Popen([*command, "600"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        more.terminate()
        more.wait()


def values_of(data: Filled) -> dict[str, str]:
    """What the addresses of the screens need."""
    with OpenQ("demo-orders-dead", url=data.server.url, token=data.token) as dead:
        [letter] = dead.peek_many(1)
    [group, *_] = data.client.get("/queues/demo-orders-dead/dead-letters/groups").value["groups"]
    with OpenQ("orders", url=data.server.url, token=data.token) as orders:
        [order] = orders.peek_many(1)
    return {"dead": str(letter.id), "group": quote(group["reason"], safe=""), "order": str(order.id)}


def settle(page: Page, screen: str) -> None:
    """Loaded, with what is loaded next, and drawn as it stays: charts follow their box one frame later."""
    for _ in range(3):
        expect(page.get_by_role("status", name="Loading")).to_have_count(1 if screen == "components" else 0)
        expect(page.locator("h1, .title").first).to_be_attached()
        page.evaluate(TWO_FRAMES)
    if screen == "overview":
        page.wait_for_function(SPARKLINES, timeout=120_000)


def picture(page: Page, path: Path) -> None:
    """The whole page, not only what is seen without scrolling."""
    size = page.evaluate("() => ({width: innerWidth, height: document.documentElement.scrollHeight})")
    shot(page, path.with_suffix(".png"), size["width"], min(size["height"], 4000), "png")


def shot(page: Page, path: Path, width: int, height: int, kind: str) -> int:
    session = page.context.new_cdp_session(page)
    taken = session.send(
        "Page.captureScreenshot",
        {
            "format": kind,
            "captureBeyondViewport": True,
            "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
            **({"quality": QUALITY} if kind != "png" else {}),
        },
    )
    session.detach()
    data = base64.b64decode(taken["data"])
    path.write_bytes(data)
    return len(data)


def first_screens(browser: Browser, into: Path) -> None:
    """A server without queues, and the page of the login."""
    with tempfile.TemporaryDirectory() as folder, serving.served(Path(folder) / "data") as server:
        for theme, width, height in LOOKS:
            visitor = Visitor(
                browser, server.url, color_scheme=theme, viewport={"width": width, "height": height}
            )
            visitor.page.goto("/ui/")
            settle(visitor.page, "first-visit")
            picture(visitor.page, into / f"first-visit-{theme}-{width}")
            visitor.close()


def main_screens(browser: Browser, into: Path, only: set[str], images: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder)) as data, demo_at_work(data):
        values = values_of(data)
        for look, (theme, width, height) in enumerate(LOOKS):
            size = {"width": width, "height": height}
            visitor = Visitor(browser, data.server.url, color_scheme=theme, viewport=size)
            page = visitor.page
            page.goto("/ui/")
            expect(page.get_by_role("heading", name="Sign in to OpenQ")).to_be_visible()
            picture(page, into / f"login-{theme}-{width}")
            visitor.sign_in("ann", PASSWORD)
            for name, screen in SCREENS.items():
                if only and name not in only:
                    continue
                page.goto(f"/ui/{screen.format(**values)}")
                settle(page, name)
                picture(page, into / f"{name}-{theme}-{width}")
                for public, source, wanted in PUBLISHED if images else ():
                    if (source, wanted) == (name, look):
                        assert images is not None
                        path = images / f"{public}.webp"
                        written = shot(page, path, width, height, "webp")
                        assert written <= MAX_BYTES, f"{path} has {written} bytes"
            visitor.close()
            visitor = Visitor(browser, data.server.url, color_scheme=theme, viewport=size)
            visitor.sign_in("cid", PASSWORD)
            for name, screen in FEW.items():
                if not only or name in only:
                    visitor.page.goto(f"/ui/{screen.format(**values)}")
                    settle(visitor.page, name)
                    picture(visitor.page, into / f"{name}-{theme}-{width}")
            visitor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "screenshots")
    parser.add_argument("--only", default="", help="names of screens, with commas")
    parser.add_argument("--docs", action="store_true", help="write docs/images/")
    options = parser.parse_args()
    path = find_browser()
    if path is None:
        raise SystemExit("no Chromium on this machine (Debian: apt-get install chromium)")
    options.into.mkdir(parents=True, exist_ok=True)
    images = ROOT / "docs" / "images" if options.docs else None
    if images is not None:
        images.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        only = {each for each in options.only.split(",") if each}
        if not only:
            first_screens(browser, options.into)
        main_screens(browser, options.into, only, images)
        browser.close()
    print(json.dumps({"into": str(options.into), "pictures": len(list(options.into.glob("*.png")))}))


if __name__ == "__main__":
    main()
