"""Every screen, filled, in both themes: nothing for axe, nothing in the console, nothing cut or too wide.

`make test` looks at a few of them, `make test-ui` at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.filled import PASSWORD, Filled, filled
from tests.browser.visitor import Visitor
from tests.isolation import ROOT

WIDTHS = (360, 1280, 2560)
THEMES = ("light", "dark")
SCREENS = (
    "",
    "?range=1h",
    "queues",
    "queues/orders",
    "queues/orders/messages",
    "queues/orders/messages?state=delayed",
    "queues/orders/messages?state=in_flight",
    "queues/orders/messages?state=history",
    "queues/orders-dead/messages?id={message}",
    "queues/orders/send",
    "queues/orders/dead-letters",
    "queues/orders/consumers",
    "queues/shipments/consumers",
    "queues/orders/settings",
    "queues/orders/limits",
    "queues/orders/permissions",
    "queues/mails/schedules",
    "queues/orders/webhooks",
    "queues/no-such-queue",
    "messages/{message}",
    "messages/no-such-message",
    "search?text=order",
    "search?text=not-in-any-body",
    "components",
    "dead-letters",
    "dead-letters?queue=orders-dead",
    "replay?queue=orders",
    "exchanges?exchange=shop&key=order.7.paid",
    "tasks",
    "connections",
    "connections/consumers",
    "connections/servers",
    "workers",
    "alerts",
    "alerts/rules",
    "alerts/destinations",
    "alerts/silences",
    "alerts/history",
    "schedules",
    "webhooks",
    "webhooks/shop",
    "pipeline",
    "admin/users",
    "admin/keys",
    "admin/permissions",
    "admin/audit",
    "admin/node",
    "admin/config",
    "admin/config?shown=all",
    "no-such-screen",
)
SHORT = {("", "light"), ("queues/orders-dead/messages?id={message}", "dark")}

# The width of the page once it has been drawn twice: charts follow the size of their box.
SETTLED_WIDTH = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(
    () => done(document.documentElement.scrollWidth))))"""


# Buttons of tables that lie outside of their box, or whose text does.
CUT = """() => Array.from(document.querySelectorAll("td.actions .button")).filter((each) => {
    const [box, own] = [each.closest(".table-box"), each].map((part) => part.getBoundingClientRect());
    return own.left < box.left - 1 || own.right > box.right + 1 || each.scrollWidth > each.clientWidth + 1;
}).map((each) => each.ariaLabel)"""


def cases() -> list[object]:
    return [
        pytest.param(screen, theme, marks=() if (screen, theme) in SHORT else pytest.mark.ui)
        for screen in SCREENS
        for theme in THEMES
    ]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with filled(tmp_path_factory.mktemp("screens")) as found:
        yield found


@pytest.fixture(scope="module")
def visitors(browser: Browser, shown: Filled) -> Iterator[dict[str, Visitor]]:
    """An admin who has signed in, once for each theme."""
    with ExitStack() as stack:
        found = {}
        for theme in THEMES:
            found[theme] = visitor = Visitor(browser, shown.server.url, color_scheme=theme)
            stack.callback(visitor.close)
            visitor.sign_in("ann", PASSWORD)
        yield found


def loaded(page: Page, screen: str) -> None:
    # The screen of components shows every state, that of loading too.
    waiting = page.get_by_role("status", name="Loading")
    expect(waiting).to_have_count(1 if screen == "components" else 0)
    expect(page.locator("#main h1, #main .title").first).to_be_attached()


@pytest.mark.parametrize(("screen", "theme"), cases())
def test_a_screen(screen: str, theme: str, shown: Filled, visitors: dict[str, Visitor]) -> None:
    visitor = visitors[theme]
    page = visitor.page
    page.goto("about:blank")  # what the last screen asked for is not of this one
    visitor.faults.clear()
    page.set_viewport_size({"width": 1280, "height": 900})
    # A screen of something that is not there asks for it all the same.
    visitor.expected = ["404 (Not Found)"] if "no-such" in screen else []

    page.goto(f"/ui/{screen.format(message=shown.message_id)}")
    loaded(page, screen)
    found = visitor.violations()
    cut = page.evaluate(CUT)
    wide = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        wide[width] = page.evaluate(SETTLED_WIDTH)

    assert found == []
    assert cut == []
    assert all(wide[width] <= width for width in WIDTHS), wide
    visitor.check()


def words_of(path: str, pattern: str) -> set[str]:
    return set(re.findall(pattern, (ROOT / "web" / "src" / "screens" / path).read_text()))


def test_no_screen_is_left_out() -> None:
    listed = [re.split(r"[/?]", screen) for screen in SCREENS]

    assert words_of("index.ts", r'\{ path: "([\w-]*)"') <= {words[0] for words in listed}
    tabs = words_of("queue.tsx", r'\{ id: "([\w-]+)"') - {"overview"}
    assert tabs <= {words[2] for words in listed if words[0] == "queues" and len(words) > 2}
    assert words_of("admin.tsx", r'\{ id: "([\w-]+)"') <= {w[1] for w in listed if w[0] == "admin"}
    assert words_of("alerts.tsx", r'\{ id: "([\w-]+)", title: "[\w ]+", href') - {"now"} <= {
        words[1] for words in listed if words[0] == "alerts" and len(words) > 1
    }
