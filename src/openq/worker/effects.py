"""`once(key)`: an effect that happens once, whichever attempt of whichever job comes to it.

    with once("charge-4711") as first:
        if first:
            charge()

A key is first claimed for a short time, then marked as done. The claim is extended while the block runs in a
worker. If the block raises, the claim is removed and the next attempt is the first again. If the process dies
in the block, the claim expires and the next attempt is the first again: whether the effect happened is known
only to the other side, so give it the same key.
"""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import InvalidSetting, KvConflict
from .active import current_job_or_none
from .errors import Retry
from .store import DAY_S, ONCE

if TYPE_CHECKING:
    from ..client.kv import KeyValue
    from ..client.queues import Queue
    from .app import App

DEFAULT_KEEP_S = 30 * DAY_S
DEFAULT_CLAIM_S = 60.0
_DONE = b"done"


class once:
    """A context manager, also for `async with`. Its value is True for the first that comes.

    While another job is in the block it waits until that has ended, at most `wait` seconds (by default as
    long as the `claim` lasts), then raises Retry. `keep` is how long the key stays done. Outside of a job
    give the `app`.
    """

    def __init__(
        self,
        key: str,
        *,
        keep: float = DEFAULT_KEEP_S,
        claim: float = DEFAULT_CLAIM_S,
        wait: float | None = None,
        app: App | None = None,
    ) -> None:
        job = current_job_or_none()
        if app is None:
            if job is None:
                raise InvalidSetting("once() outside of a job needs app=")
            app = job.app
        self._key = key
        self._keep_s = keep
        self._claim_s = claim
        self._wait_s = claim if wait is None else wait
        self._job = job
        self._kv: KeyValue = app.store.bucket(ONCE)
        self._claim_value = b"claimed " + os.urandom(8).hex().encode()
        self._version = 0  # of our claim
        self.extend_at = 0.0

    def __enter__(self) -> bool:
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                self._version = self._kv.put(self._key, self._claim_value, self._claim_s, 0)
            except KvConflict:
                entry = self._kv.get(self._key)
                if entry is None:
                    continue  # it expired or was removed just now
                if entry.value == _DONE:
                    return False
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Retry(self._claim_s, f"another job is within once({self._key!r})") from None
                # A removed claim wakes nobody: look again every second.
                self._kv.wait(self._key, min(left, 1.0), entry.version)
                continue
            self._hold()
            return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._version:
            return
        version, self._version = self._version, 0
        self._let_go()
        if error is None:
            # Whatever happened to the claim: the effect has happened.
            self._kv.put(self._key, _DONE, self._keep_s)
        else:
            self._kv.delete(self._key, version)

    async def __aenter__(self) -> bool:
        from .job import in_thread

        return await in_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from .job import in_thread

        await in_thread(lambda: self.__exit__(kind, error, trace))

    # -- the claim, while the block runs --------------------------------------------------------

    def _hold(self) -> None:
        self.extend_at = time.monotonic() + self._claim_s / 3
        if self._job is not None:
            if self._job.claims is None:
                self._job.claims = []
            self._job.claims.append(self)

    def _let_go(self) -> None:
        if self._job is not None and self._job.claims is not None:
            self._job.claims.remove(self)

    def extend(self, queue: Queue) -> None:
        """Called by the lease thread of a worker."""
        version = self._version
        if not version:
            return
        try:
            renewed = queue.kv(ONCE).put(self._key, self._claim_value, self._claim_s, version)
        except KvConflict:
            return  # it expired, or the block has ended meanwhile
        if self._version == version:
            self._version = renewed
        self.extend_at = time.monotonic() + self._claim_s / 3
