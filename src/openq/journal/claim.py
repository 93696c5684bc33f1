"""The file of a planned segment: a spare, a new one, or the reserve if the disk is full."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Lock

from openq.journal.disk import TRANSIENT
from openq.journal.pending import SegmentFile
from openq.journal.pool import SegmentPool, SpareSegment


# Not written where it is used, inside a `with`: see `writer._beyond`.
def _fitting(spares: Iterable[SpareSegment], size: int) -> list[SpareSegment]:
    return [spare for spare in spares if spare.size >= size]


def claim_file(
    segment: SegmentFile, pool: SegmentPool, lock: Lock, wait_for_space: Callable[[OSError, float], None]
) -> None:
    """Set `segment.spare`. Blocks while the disk is full, as long as `wait_for_space` returns."""
    since = time.monotonic()
    while True:
        with lock:
            spares = _fitting(pool.spares, segment.size)
            if spares:
                _assign(spares[0], segment, pool)
                return
        try:
            segment.spare = pool.make(segment.size)
            return
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            with lock:
                pool.set_shortage(error)
                reserve = pool.reserve
                if reserve is not None and reserve.size >= segment.size:
                    _assign(reserve, segment, pool)
                    return
            wait_for_space(error, since)
        time.sleep(0.02)


def _assign(spare: SpareSegment, segment: SegmentFile, pool: SegmentPool) -> None:
    """Lock held."""
    try:
        pool.take(spare)
        segment.spare = spare
    except BaseException:
        if segment.spare is None:
            pool.put_back(spare)
        raise
