"""What the response to a request means, and the attempt that the log keeps of it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ..http_text import excerpt, retry_after_s
from .delivery_log import DELIVERED, FAILED, GONE, PAUSED, Attempt
from .http_client import Response

MIN_PAUSE_MS = 1_000  # `Retry-After: 0`, or a date that is over, must not cause requests without a pause


class AttemptOutcome(NamedTuple):
    kind: str
    status: int | None = None
    detail: str = ""  # the excerpt of the response, or why there is none
    pause_ms: int = 0  # that the endpoint asked for

    @property
    def reason(self) -> str:
        """As the queue keeps it."""
        if self.status is None:
            return self.detail
        return f"HTTP {self.status}: {self.detail}" if self.detail else f"HTTP {self.status}"


class SentRequest(NamedTuple):
    """A request that runs."""

    id: str
    time_ms: int
    started_s: float  # on the clock of the loop

    def attempt(self, outcome: AttemptOutcome, now_s: float, number: int = 1, messages: int = 1) -> Attempt:
        return Attempt(
            id=self.id,
            time_ms=self.time_ms,
            outcome=outcome.kind,
            status=outcome.status,
            duration_ms=round((now_s - self.started_s) * 1000),
            attempt=number,
            messages=messages,
            detail=outcome.detail,
        )


def judge(response: Response | None, error: str, now_s: float) -> AttemptOutcome:
    if response is None:
        return AttemptOutcome(FAILED, None, error)
    status, shown = response.status, excerpt(response.body)
    if 200 <= status < 300:
        return AttemptOutcome(DELIVERED, status, shown)
    if status == 410:
        return AttemptOutcome(GONE, status, shown)
    if 300 <= status < 400:
        return AttemptOutcome(FAILED, status, "redirects are not followed; change the URL of the webhook")
    if status in (429, 503):
        wait_s = retry_after_s(response.retry_after, now_s)
        if wait_s is not None:
            return AttemptOutcome(PAUSED, status, shown, max(round(wait_s * 1000), MIN_PAUSE_MS))
    return AttemptOutcome(FAILED, status, shown)
