"""What may be in a random life of random queues, for all that are compared with the model."""

from __future__ import annotations

from hypothesis import strategies as st

from openq.model import Draft, QueueSettings, RetryPolicy

NAMES = ("a", "b", "c", "d")
FANOUT = "amq.fanout"

few = st.integers(1, 4)
index = st.integers(0, 1 << 16)
types = st.sampled_from((None, None, None, frozenset("t"), frozenset(("t", "u"))))

_retries = st.one_of(
    st.just(RetryPolicy()),
    st.builds(RetryPolicy, kind=st.just("fixed"), base_ms=st.integers(0, 6)),
    st.builds(RetryPolicy, kind=st.just("exponential"), base_ms=st.integers(1, 3), max_ms=st.just(9)),
)


def queue_settings(
    names: st.SearchStrategy[str],
    limits: int,
    history_ms: tuple[int, ...] = (QueueSettings().history_ms,),
    rates: tuple[str | None, ...] = (None,),
) -> st.SearchStrategy[QueueSettings]:
    """One of `limits` queues has a most of messages, and one of bytes."""
    unlimited = (None,) * (limits - 1)
    return st.builds(
        QueueSettings,
        fifo=st.booleans(),
        visibility_ms=st.integers(1, 20),
        delay_ms=st.sampled_from((0, 0, 0, 3)),
        retention_ms=st.sampled_from((10_000, 10_000, 25)),
        ttl_ms=st.sampled_from((None, None, None, 9, 0)),
        max_receives=st.sampled_from((None, 1, 2)),
        exhausted=st.sampled_from(("keep", "keep", "drop")),
        dead_letter=st.none() | names,
        dead_letter_exchange=st.sampled_from((None, None, None, FANOUT)),
        dead_letter_key=st.sampled_from((None, "dead")),
        dead_letter_expired=st.booleans(),
        max_length=st.sampled_from((*unlimited, 3)),
        max_bytes=st.sampled_from((*unlimited, 9)),
        overflow=st.sampled_from(("drop-head", "reject", "dead-letter", "reject-dead-letter")),
        max_priority=st.sampled_from((None, None, 0, 1)),
        dedup_window_ms=st.sampled_from((0, 6, 20)),
        dedup_by_content=st.sampled_from((False, False, False, True)),
        dedup_per_group=st.booleans(),
        retry=_retries,
        paused=st.sampled_from((False, False, False, True)),
        history_ms=st.sampled_from(history_ms),
        concurrency=st.sampled_from((*unlimited, 2)),
        key_concurrency=st.sampled_from((*unlimited, 1, 2)),
        rate=st.sampled_from((*unlimited, *rates)),
        key_rate=st.sampled_from((*unlimited, *rates)),
        key_limits=st.sampled_from(({}, {}, {"g": {"concurrency": 3, "rate": None}})),
    )


def drafts(**more: st.SearchStrategy[object]) -> st.SearchStrategy[Draft]:
    return st.builds(
        Draft,
        body=st.sampled_from((b"", b"x", b"yy", b"three")),
        encoding=st.integers(0, 3),
        delay_ms=st.none() | st.sampled_from((0, 2, 15)),
        priority=st.sampled_from((0, 0, 0, 1, 255)),
        group=st.sampled_from((None, None, "g", "h")),
        type=st.sampled_from((None, "t", "u")),
        dedup=st.sampled_from((None, None, None, "d", "e")),
        unique=st.sampled_from((None, None, None, "only")),
        ttl_ms=st.none() | st.sampled_from((0, 1, 8, 60)),
        id=st.sampled_from((None, None, None, "mine", "other")),
        attributes=st.none() | st.just({"k": b"v"}),
        publisher=st.none() | st.just("someone"),
        **more,
    )
