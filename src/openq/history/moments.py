"""Points in time as whole microseconds since 1970 in UTC, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(moment: datetime) -> int:
    """Exact: no floating point is involved. A datetime without a zone is in UTC."""
    since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def to_datetime(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)
