"""Is the memory of an open page flat? One page shows the overview, another walks through the screens.

    python -m tests.browser.memory                            # 30 minutes at 2,000 messages/s
    python -m tests.browser.memory --minutes 10 --rate 500

Messages go through three queues all the time, and some of them fail, so dead letters and alerts change too.
The heap is read after a collection of garbage. The result is one line of JSON: the mean of the first and of
the last fifth of the samples, and the growth in an hour by the slope of the second half.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from openq import OpenQ
from tests import serving
from tests.browser.conftest import find_browser
from tests.browser.visitor import Visitor

QUEUES = ("orders", "mails", "events")
BATCH = 100
SAMPLE_S = 15.0
WARM_S = 60.0
WALK = ("Queues", "Dead letters", "Replay", "Exchanges", "Connections", "Workers", "Alerts", "Schedules",
        "Webhooks", "Pipeline", "Overview")  # fmt: skip


class Load:
    """Messages published, received and acknowledged at a rate, in a thread, until it is stopped."""

    def __init__(self, url: str, rate: int) -> None:
        self.done = 0
        self._url, self._rate = url, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        dead = OpenQ("dead", url=self._url)
        queues = [OpenQ(name, url=self._url, dlq=dead, max_receives=1) for name in QUEUES]
        begin = time.monotonic()
        turn = 0
        while not self._stop.is_set():
            queue = queues[turn % len(queues)]
            queue.publish_many({"order": turn, "number": number} for number in range(BATCH))
            messages = queue.receive_many(BATCH, 1)
            for message in messages[:1] if turn % 10 == 0 else ():
                queue.nack(message, reason=f"no such product: {turn}")
            queue.ack_many(messages[1:] if turn % 10 == 0 else messages)
            if turn % 1000 == 999:
                dead.purge()
            turn += 1
            self.done += len(messages)
            self._stop.wait(max(0.0, begin + turn * BATCH / self._rate - time.monotonic()))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def sample(session: CDPSession) -> dict[str, float]:
    session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return {
        "heap_mib": found["JSHeapUsedSize"] / (1 << 20),
        "nodes": found["Nodes"],
        "listeners": found["JSEventListeners"],
    }


def walk(page: Page, turn: int) -> None:
    """One screen further, by its link as a user goes."""
    screens = page.get_by_role("navigation", name="Screens")
    screens.get_by_role("link", name=WALK[turn % len(WALK)], exact=True).click()


def slope_of(samples: list[tuple[float, float]]) -> float:
    """By least squares, in units per hour."""
    if len(samples) < 2:
        return 0.0
    return (
        statistics.linear_regression([each[0] for each in samples], [each[1] for each in samples]).slope
        * 3600
    )


def summary(samples: list[tuple[float, dict[str, float]]]) -> dict[str, Any]:
    part = max(1, len(samples) // 5)
    return {
        name: {
            "first": round(statistics.mean(each[name] for _, each in samples[:part]), 2),
            "last": round(statistics.mean(each[name] for _, each in samples[-part:]), 2),
            "per_hour": round(slope_of([(at, each[name]) for at, each in samples[len(samples) // 2 :]]), 2),
            "all": [round(each[name], 1) for _, each in samples],
        }
        for name in samples[0][1]
    }


def measure(browser: Browser, minutes: float, rate: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, serving.served(Path(folder) / "data") as server:
        load = Load(server.url, rate)
        stays, walks = Visitor(browser, server.url), Visitor(browser, server.url)
        sessions: dict[str, CDPSession] = {}
        samples: dict[str, list[tuple[float, dict[str, float]]]] = {"overview": [], "walk": []}
        for name, visitor in (("overview", stays), ("walk", walks)):
            visitor.page.goto("/ui/")
            sessions[name] = visitor.context.new_cdp_session(visitor.page)
            sessions[name].send("Performance.enable")
        begin = time.monotonic()
        turn = 0
        while (now := time.monotonic() - begin) < WARM_S + minutes * 60:
            walk(walks.page, turn)
            turn += 1
            stays.page.wait_for_timeout(1500)  # the load goes on; it is a time of use, nothing is waited for
            due = WARM_S + len(samples["overview"]) * SAMPLE_S
            # The page that walks is looked at on one and the same screen.
            if now >= due and WALK[(turn - 1) % len(WALK)] == "Overview":
                for name, session in sessions.items():
                    samples[name].append((now, sample(session)))
        load.stop()
        for visitor in (stays, walks):
            visitor.close()
            visitor.check()
        return {
            "minutes": minutes,
            "messages_per_s": round(load.done / (time.monotonic() - begin)),
            "screens_opened": turn,
            **{name: summary(found) for name, found in samples.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=2000, help="messages per second")
    options = parser.parse_args()
    path = find_browser()
    if path is None:
        raise SystemExit("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        print(json.dumps(measure(browser, options.minutes, options.rate)))
        browser.close()


if __name__ == "__main__":
    main()
