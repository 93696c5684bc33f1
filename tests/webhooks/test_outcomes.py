"""What the response of an endpoint means."""

from __future__ import annotations

import pytest

from openq.webhooks.delivery_log import FAILED, PAUSED
from openq.webhooks.http_client import Response
from openq.webhooks.outcomes import MIN_PAUSE_MS, judge

NOW_S = 1_800_000_000.0


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("text", ["0", "-5", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_an_endpoint_that_asks_for_no_pause_gets_a_short_one(status: int, text: str) -> None:
    outcome = judge(Response(status, text, b""), "", NOW_S)

    assert (outcome.kind, outcome.pause_ms) == (PAUSED, MIN_PAUSE_MS)


def test_a_pause_is_as_long_as_the_endpoint_asks_for() -> None:
    assert judge(Response(503, "7", b""), "", NOW_S).pause_ms == 7_000


def test_a_pause_that_cannot_be_read_is_a_failure() -> None:
    assert judge(Response(429, "soon", b""), "", NOW_S).kind == FAILED
