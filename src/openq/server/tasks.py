"""Long operations of the server: they have an id and a progress, and can be paused and cancelled.

In the REST API and on the command line they are called tasks (`/tasks`, `openq task`); tasks of workers are
something else. An operation continues when its client disconnects; its result is kept for a while.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping

from ..errors import OpenQError, public_text

log = logging.getLogger("openq.tasks")

MAX_KEPT = 1_000  # finished tasks that can still be queried
MAX_RUNNING = 32
MAX_RUNNING_OF_ACCOUNT = 8  # so that one account cannot use all of them

RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"


class LongOperation:
    """One task. `done` counts messages; `total` is the expected number, if known."""

    def __init__(
        self,
        id: str,
        kind: str,
        account: str,
        queue: str,
        total: int | None,
        details: Mapping[str, object],
        now_ms: Callable[[], int],
    ) -> None:
        self.id = id
        self.kind = kind
        self.account = account
        self.queue = queue  # as its protocol names it
        self.total = total
        self.details = dict(details)
        self.state = RUNNING
        self.done = 0
        self.error: str | None = None
        self.code: str | None = None  # of the error, for programs
        self.result: dict[str, object] = {}
        self._now_ms = now_ms
        self.started_ms = now_ms()
        self.ended_ms: int | None = None
        self.cancelling = threading.Event()
        self.is_watched = True  # it may wait for what becomes of its messages
        self._resumed = threading.Event()
        self._resumed.set()

    def progress(self, done: int) -> bool:
        """Called by the work; False means that it should stop. Blocks while the task is paused."""
        self.done = done
        self._resumed.wait()
        return not self.cancelling.is_set()

    @property
    def paused(self) -> bool:
        """It waits, or will as soon as it reports its progress. Its state is still `RUNNING`."""
        return self.state == RUNNING and not self._resumed.is_set()

    def pause(self) -> bool:
        """False if the task has already ended, or is being cancelled."""
        if self.state != RUNNING or self.cancelling.is_set():
            return False
        self._resumed.clear()
        if self.cancelling.is_set():  # meanwhile, by another thread
            self._resumed.set()
        return True

    def resume(self, *, is_watched: bool = True) -> bool:
        """False if the task has already ended. One that is no longer watched stays so."""
        self.is_watched &= is_watched
        self._resumed.set()
        return self.state == RUNNING

    def cancel(self) -> bool:
        """False if the task has already ended."""
        if self.state != RUNNING:
            return False
        self.cancelling.set()
        self._resumed.set()
        return True

    def run(self, work: Callable[[LongOperation], object]) -> None:
        try:
            result = work(self)
            if isinstance(result, int):
                self.done = result
            elif isinstance(result, dict):
                self.result = result
            self.state = CANCELLED if self.cancelling.is_set() else DONE
        except OpenQError as error:
            self.error, self.code, self.state = public_text(error), error.code, FAILED
        except Exception:
            log.exception("task %s (%s) failed", self.id, self.kind)
            self.error, self.state = "internal error; see the log of the server", FAILED
        finally:
            self.ended_ms = self._now_ms()


class NotAllowed(OpenQError):
    code = "forbidden"


class RedriveAuthorizer:
    """The queues that a redrive may return dead letters to, by the permissions of its caller.

    Each queue is checked once: a task keeps the permissions that it began with.
    """

    def __init__(self, may_fill: Callable[[str], bool]) -> None:
        self._may_fill = may_fill
        self._known: dict[str, bool] = {}

    def allowed(self, queue_key: str) -> bool:
        known = self._known.get(queue_key)
        if known is None:
            known = self._known[queue_key] = self._may_fill(queue_key)
        return known

    @property
    def refused(self) -> bool:
        return not all(self._known.values())

    def refusal(self, user: str) -> NotAllowed:
        # The names are not shown: the caller may not know them.
        return NotAllowed(
            f"{user} may not send to all source queues of these dead letters; the others stayed"
        )


class TooManyTasks(OpenQError):
    code = "too_many_tasks"

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} long operations are running; wait until one is done, or cancel one")


class TaskList:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._tasks: dict[str, LongOperation] = {}
        self._lock = threading.Lock()

    def start(
        self,
        kind: str,
        account: str,
        queue: str,
        work: Callable[[LongOperation], object],
        total: int | None = None,
        details: Mapping[str, object] | None = None,
    ) -> LongOperation:
        """Run `work` in a new thread; it returns the count or the result."""
        task = LongOperation(os.urandom(8).hex(), kind, account, queue, total, details or {}, self._now_ms)
        with self._lock:
            running = [each.account for each in self._tasks.values() if each.state == RUNNING]
            if len(running) >= MAX_RUNNING:
                raise TooManyTasks(MAX_RUNNING)
            if running.count(account) >= MAX_RUNNING_OF_ACCOUNT:
                raise TooManyTasks(MAX_RUNNING_OF_ACCOUNT)
            ended = [each for each in self._tasks.values() if each.state != RUNNING]
            for old in ended[: max(0, len(ended) - MAX_KEPT)]:
                del self._tasks[old.id]
            self._tasks[task.id] = task
        threading.Thread(target=task.run, args=(work,), name=f"openq-{kind}", daemon=True).start()
        return task

    def get(self, id: str) -> LongOperation | None:
        return self._tasks.get(id)

    def all(self) -> list[LongOperation]:
        """The newest last."""
        with self._lock:
            return list(self._tasks.values())

    def cancel_all(self) -> None:
        for task in self.all():
            task.cancel()
