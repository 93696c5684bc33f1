"""The limits of SQS: `strict` as in AWS, `relaxed` as far as OpenQ can go.

`testing` is strict, except that the name of a deleted queue can be reused at once, and that some requests are
accepted that other SQS servers accept and AWS does not.

The configuration chooses for the whole server; the note `limits` of a queue, which the tag `openq:limits`
sets, chooses for that queue. Error texts are the same in all: they name the limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from ..config import Config
from ..model import MAX_SPAN_MS, QueueSettings

NOTE = "limits"  # of a queue's settings: "strict" or "relaxed"
TAG = "openq:limits"
KINDS = ("strict", "testing", "relaxed")

_MIB = 1 << 20
_YEAR_S = 365 * 86_400
_UNLIMITED = 1 << 31  # no limit


@dataclass(frozen=True, slots=True)
class SqsLimits:
    """Limits of requests: maximum counts and sizes; times in seconds."""

    kind: str = "strict"
    # Messages.
    max_body: int = _MIB  # the upper end of MaximumMessageSize: body and message attributes together
    min_body: int = 1_024  # the lower end of MaximumMessageSize, not of a message
    max_batch: int = 10
    max_batch_bytes: int = _MIB
    max_receive: int = 10
    max_attributes: int = 10
    max_delay_s: int = 900
    max_visibility_s: int = 43_200
    max_wait_s: int = 20
    # Beyond it a standard queue answers OverLimit; a FIFO queue returns no messages and no error.
    max_in_flight: int | None = 120_000
    # Queues.
    min_retention_s: int = 60
    max_retention_s: int = 1_209_600
    max_receive_count: int = 1_000  # of a RedrivePolicy
    reuse_name_s: int = 60  # before the name of a deleted queue can be taken again
    purge_every_s: int = 60
    max_tags: int = 50
    max_source_arns: int = 10  # of a RedriveAllowPolicy
    max_permission_actions: int = 7
    max_statements: int = 20
    max_move_rate: int = 500
    # Accept what AWS rejects: FifoQueue=false, spaces around an attribute's name, a deduplication id on
    # a standard queue.
    lenient: bool = False


STRICT = SqsLimits()
TESTING = replace(STRICT, kind="testing", reuse_name_s=0, min_retention_s=1, lenient=True)

_RELAXED = SqsLimits(
    kind="relaxed",
    min_body=1,
    max_batch=1_000,
    max_receive=1_000,
    max_attributes=1_000,
    max_delay_s=100 * _YEAR_S,
    max_visibility_s=_YEAR_S,
    max_wait_s=600,
    max_in_flight=None,
    min_retention_s=1,
    max_retention_s=100 * _YEAR_S,
    max_receive_count=_UNLIMITED,
    reuse_name_s=0,
    purge_every_s=0,
    max_tags=1_000,
    max_source_arns=1_000,
    max_permission_actions=100,
    max_move_rate=1_000_000,
    lenient=True,
)
assert _RELAXED.max_delay_s * 1000 < MAX_SPAN_MS


@cache
def _relaxed(max_request_bytes: int) -> SqsLimits:
    """A body can be no larger than the request that brings it."""
    return replace(_RELAXED, max_body=max_request_bytes, max_batch_bytes=max_request_bytes)


def limits_of(settings: QueueSettings, config: Config) -> SqsLimits:
    """The limits of one queue: its own choice, else the server's."""
    kind = settings.notes.get(NOTE) if settings.notes else None
    return _limits(kind or config.limits, config)


def server_limits(config: Config) -> SqsLimits:
    """The limits where no queue is involved yet."""
    return _limits(config.limits, config)


def _limits(kind: str, config: Config) -> SqsLimits:
    if kind == "relaxed":
        return _relaxed(config.max_request_bytes)
    return TESTING if kind == "testing" else STRICT
