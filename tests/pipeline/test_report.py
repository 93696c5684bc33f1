"""The report as a browser gets it: whole, self-contained, and deaf to what strangers wrote."""

from __future__ import annotations

import copy
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest

from openq.pipeline.analytics import short_window_us
from openq.pipeline.report import count, escape, line_plot, render, size, span
from tests.isolation import ROOT

HOSTILE = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"'&\u202e\x00\ud800"
VOID = {"meta", "br", "path", "rect"}


class Page(HTMLParser):
    """What is in a page: its tags, its attributes, its texts; complains if tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID or (tag in ("path", "rect") and not self.get_starttag_text().endswith("/>")):  # type: ignore[union-attr]
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def summary(text: str) -> dict[str, Any]:
    """A summary in which every text that a stranger may choose is `text`."""
    sketch = {"count": 3, "p50_us": 1_000, "p90_us": 5_000, "p99_us": 90_000_000, "max_us": 90_000_000}
    numbers = ("published", "delivered", "acked", "retried", "dead_lettered")
    points: dict[str, Any] = {name: [1, 0, 5] for name in numbers}
    for kind in ("wait", "processing"):
        points |= {f"{kind}_{p}_us": [1_000, None, 90_000_000] for p in ("p50", "p90", "p99")}
    queue = {
        "queue": text,
        **dict.fromkeys((*numbers, "expired", "redriven", "in_flight", "waiting", "bytes"), 6),
        "oldest_age_us": 90_000_000,
        "wait": sketch,
        "processing": None,
        "retry_depth": [{"deliveries": 1, "ack": 4}, {"deliveries": 3, "dead_letter": 2, "other": 1}],
    }
    seen = {"first_seen": 1_790_000_000_000_000, "last_seen": 1_790_000_900_000_000}
    failure = {"queue": text, "event": "nack", "type": text, "error_type": text, "error_signature": text}
    answers = dict.fromkeys(("deliveries", "acks", "nacks", "timeouts", "abandoned", "dead_lettered"), 2)
    return {
        "made": "2026-11-16T07:00:00Z",
        "window_s": 300.0,
        "from": 1_790_000_000_000_000,
        "until": 1_790_000_900_000_000,
        "queues": [queue],
        "plots": {
            "from_us": 1_790_000_000_000_000,
            "step_us": 300_000_000,
            "queues": {text: points},
            "dead_letters": [{"signature": text, "count": 6, "counts": [1, 0, 5]}],
        },
        "failures": [{**failure, "count": 6, "examples": [text], **seen}],
        "types": [{"queue": text, "type": text, "count": 6, "dead_lettered": 6, **seen}],
        "consumers": [
            {
                "queue": text,
                "consumer": text,
                **answers,
                "holding": 1,
                "slowest_us": 5,
                "slowest_id": text,
                **seen,
            }
        ],
        "producers": [{"queue": text, "producer": text, "published": 6, "bytes": 600, **seen}],
    }


def test_untrusted_texts_are_escaped() -> None:
    plain, hostile = Page(render(summary("orders"))), Page(render(summary(HOSTILE)))

    # The same elements and attributes, whatever the texts say: nothing broke out of its place.
    assert hostile.tags == plain.tags
    assert [each[:2] for each in hostile.attributes] == [each[:2] for each in plain.attributes]
    assert hostile.tags["script"] == 1
    shown = "".join(hostile.texts)
    assert "<img src=x onerror='alert(2)'>" in shown  # as text
    assert "\u202e" not in shown
    render(summary(HOSTILE)).encode()  # a lone half of a character does not stop the file


def test_the_page_has_no_external_resources_and_labels_its_plots() -> None:
    text = render(summary("orders"))
    page = Page(text)

    assert not {"link", "iframe", "img", "object", "embed", "base", "a", "form"} & page.tags.keys()
    names = {name for _, name, _ in page.attributes}
    assert not {"src", "href", "action", "style", "srcset"} & names
    assert not [name for name in names if name.startswith("on")]
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert "@import" not in text
    [policy] = [
        value for tag, name, value in page.attributes if tag == "meta" and (value or "").startswith("default")
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    pictures = sum(value == "img" for tag, name, value in page.attributes if (tag, name) == ("svg", "role"))
    labels = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert pictures == page.tags["svg"] == len(labels) == 4 + 2 + 1
    assert all(labels)
    assert page.tags["caption"] == page.tags["table"]
    assert "color-scheme:light dark" in text
    assert "width=device-width" in text


def test_an_empty_analysis_has_a_page() -> None:
    nothing = copy.deepcopy(summary("x")) | {"until": None, "from": None, "queues": [], "plots": None}

    assert "no events" in Page(render(nothing)).texts[0] + "".join(Page(render(nothing)).texts)


def test_a_line_without_values_and_one_with_a_single_value_are_drawn() -> None:
    assert line_plot("empty", 0, 1, [("a", "c1", [None, None])], span) == ""
    assert line_plot("zeros", 0, 1, [("a", "c1", [0, 0])], count) == ""
    for log in (False, True):
        assert "M" in line_plot("one", 0, 1, [("a", "c1", [5.0])], count, log=log)


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (None, "\u2013"),
        (0, "0 \u00b5s"),
        (1_500, "1.5 ms"),
        (90e6, "90 s"),
        (3 * 3600e6, "3 h"),
        (5 * 86_400e6, "5 d"),
    ],
)
def test_durations_have_readable_units(us: float | None, text: str) -> None:
    assert span(us) == text


def test_numbers_and_long_texts_are_readable() -> None:
    assert count(1_234_567) == "1,234,567"
    assert count(2.5) == "2.50"
    assert size(1_572_864) == "1.5 MiB"
    assert len(escape("x" * 1000)) == 240


def test_colours_are_those_of_the_dashboard() -> None:
    tokens = re.findall(r"light-dark\([^)]*\)", (ROOT / "web" / "src" / "styles" / "tokens.css").read_text())
    known = {each.replace(" ", "") for each in tokens}
    used = {each.replace(" ", "") for each in re.findall(r"light-dark\([^)]*\)", render(summary("a")))}

    assert used
    assert used <= known


def test_queues_without_messages_are_named_in_one_line() -> None:
    quiet = summary("quiet")
    [points] = quiet["plots"]["queues"].values()
    for name, values in points.items():
        points[name] = [None if name.endswith("_us") else 0 for _ in values]
    for queue in quiet["queues"]:
        queue["retry_depth"] = []
    shown = render(quiet)

    assert "<figure>" not in shown
    assert shown.count("Without messages in this time") == 1


@pytest.mark.parametrize(
    ("span_s", "window_s"), [(0, 1), (120, 1), (600, 5), (2280, 30), (7200, 60), (7201, 300), (86_400, 300)]
)
def test_a_short_history_has_short_windows(span_s: float, window_s: int) -> None:
    assert short_window_us(span_s) == window_s * 1_000_000
