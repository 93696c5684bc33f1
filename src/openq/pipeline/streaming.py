"""Runs a stream of Spark to its end, and acks the last batch of one that consumed a queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_POLL_S = 0.1


def run_stream(
    frame: DataFrame,
    kind: str,
    options: Mapping[str, str],
    checkpoint: str,
    *,
    continuous: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, int]:
    """Run a stream to its end, or until it is interrupted. Returns the number of rows and of batches."""
    writer = frame.writeStream.format(kind).options(**options).option("checkpointLocation", checkpoint)
    if not continuous:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    rows: dict[int, int] = {}

    def look() -> None:
        for each in query.recentProgress:
            rows[each.batchId] = max(each.numInputRows, rows.get(each.batchId, 0))
        if progress is not None:
            progress(sum(rows.values()))

    try:
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
            look()
    except KeyboardInterrupt:
        query.stop()
        if not continuous:
            raise
    except BaseException:
        query.stop()
        raise
    look()
    return sum(rows.values()), sum(1 for count in rows.values() if count)


def ack_last_batch(checkpoint: str, url: str, token: str | None = None) -> None:
    """Ack the last batch of a stream with mode=consume that has ended, if there is one."""
    from .closer import close_stream

    if not os.path.isdir(os.path.join(checkpoint, "commits")):
        return
    close_stream(checkpoint, url, token)
