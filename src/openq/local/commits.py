"""Waiting for the disk on an event loop: for the callbacks of the server and for the tasks of `openq.aio`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..broker.interface import Committed
from ..errors import Closed, JournalFailed, OpenQError
from .turn_runs import AckRuns, PublishRuns

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from .broker import LocalBroker

log = logging.getLogger("openq")

# Many connections often begin a round with one request, and the others arrive during its sync: the loop must
# be free for them.
LONE_IN_A_ROW = 4


class MemorySession:
    """The `LoopSession` of a broker whose answers wait for no disk."""

    publish_later = None
    ack_later = None

    def enter(self, work: Callable[..., object], *arguments: Any) -> None:
        work(*arguments)

    def after_commit(self, callback: Committed, at: int | None = None) -> None:
        callback(None)


class _Group:
    """The callbacks and futures that wait for one group commit."""

    __slots__ = ("callbacks", "deliveries", "futures", "requests")

    def __init__(self) -> None:
        self.callbacks: list[Committed] = []
        self.requests = 0  # that wait for a record of their own; several may share a callback
        self.deliveries = 0  # callbacks that wait for a record of another request
        self.futures: list[Future[None]] = []

    @property
    def is_lone(self) -> bool:
        """Whether it is one request, or one publish and the delivery of its message.

        Tasks never are: their loop is not ours to block.
        """
        return self.deliveries <= 1 and self.requests <= 1 and not self.futures


class CommitNotifier:
    """The `LoopSession` of a journal: one wake-up of the loop per group commit.

    The journal is flushed when the current tick of the loop is over, so that all calls of a tick share a
    commit. If there is only one request, time after time, the loop commits by itself while the disk is fast:
    no thread is woken. A message that a waiting consumer gets at once does not make it two.
    """

    def __init__(self, broker: LocalBroker, loop: AbstractEventLoop) -> None:
        assert broker.journal is not None, "without a disk there is nothing to wait for"
        self.broker = broker
        self.loop = loop
        self._journal = broker.journal
        self._lock = broker.lock
        self._number = -1  # of the journal's group that `_group` belongs to
        self._group = _Group()
        self._on_commit: Callable[[], None] = _nothing  # what the journal calls for `_group`
        self._work: list[Callable[[], None]] = []  # before the next flush
        self._ending = False  # the end of this turn is scheduled
        self._flushing = False  # it will flush the journal
        self._awaited = 0  # groups that are not notified yet
        self._lone_groups = 0  # in a row, with one callback each and no other group awaited
        self.publish_later = PublishRuns(broker, self).add
        self.ack_later = AckRuns(broker, self).add

    def enter(self, work: Callable[..., object], *arguments: Any) -> None:
        work(*arguments)

    @property
    def is_idle(self) -> bool:
        """No caller waits for the disk, in this turn or from an earlier one."""
        return self._awaited == 0

    def at_end_of_turn(self, work: Callable[[], None]) -> None:
        """Call `work` when the current turn of the loop is over, before the journal is flushed."""
        self._work.append(work)
        if not self._ending:
            self._ending = True
            self.loop.call_soon(self._end_turn)

    def after_commit(self, callback: Committed, at: int | None = None, callers: int = 1) -> None:
        """Call back on the loop once all changes so far are on disk, or with the error that prevents it.

        With `at`, the records up to that location are enough: they may be in the commit in progress.
        `callers` is the number of requests that the callback answers.
        """
        journal = self._journal
        with self._lock:
            error = journal.error
            awaited = journal.end_location - 1 if at is None else at
            if error is None and awaited >= journal.durable_location:
                if at is not None and journal.after_commit_of(at, partial(self._committed_one, callback)):
                    return
                if journal.group != self._number:
                    self._open_group()
                group = self._group
                group.callbacks.append(callback)
                if at is None:
                    group.requests += callers
                else:
                    group.deliveries += 1
                self._flush_later()
                return
        callback(None if error is None else _failure(error))

    def future(self) -> Future[None] | None:
        """A future for all changes so far; None if they are on disk already. Raises JournalFailed."""
        journal = self._journal
        with self._lock:
            if journal.error is not None:
                raise _failure(journal.error)
            if journal.end_location <= journal.durable_location:
                return None
            future: Future[None] = self.loop.create_future()
            if journal.group != self._number:
                self._open_group()
            self._group.futures.append(future)
        self._flush_later()
        return future

    def _open_group(self) -> None:
        group = _Group()
        self._on_commit = partial(self._committed, group)
        self._journal.after_commit(self._on_commit)
        self._awaited += 1
        self._number, self._group = self._journal.group, group

    def _flush_later(self) -> None:
        self._flushing = True
        if not self._ending:
            self._ending = True
            self.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        work, self._work = self._work, []
        for each in work:
            try:
                each()
            except Exception:
                log.exception("work at the end of a turn failed")  # the others are answered all the same
        # A refusal is answered at once, and then the next request of that connection may add work.
        self._ending = bool(self._work)
        if self._ending:
            self.loop.call_soon(self._end_turn)
        if self._flushing:
            self._flushing = False
            self._flush()

    def _flush(self) -> None:
        group, journal = self._group, self._journal
        # Not while another group is awaited: its callbacks come first.
        if group.is_lone and self._awaited == 1:
            self._lone_groups += 1
        else:
            self._lone_groups = 0
        if self._lone_groups > LONE_IN_A_ROW and journal.commit_here(self._on_commit):
            self._notify(group, journal.error)
        else:
            journal.flush()

    def _committed(self, group: _Group) -> None:
        """Called in the writer thread. Only here is it certain whether this group failed."""
        try:
            self.loop.call_soon_threadsafe(self._notify, group, self._journal.error)
        except RuntimeError:
            pass  # the loop is closed: no caller waits any more

    def _committed_one(self, callback: Committed) -> None:
        """Like `_committed`, for a callback that waits for a commit in progress."""
        try:
            self.loop.call_soon_threadsafe(_notify_one, callback, self._journal.error)
        except RuntimeError:
            pass

    def _notify(self, group: _Group, error: OpenQError | None) -> None:
        self._awaited -= 1
        failure = None if error is None else _failure(error)
        for callback in group.callbacks:
            try:
                callback(failure)
            except Exception:
                log.exception("a callback after a commit failed")  # the others must run all the same
        for future in group.futures:
            if future.done():
                continue  # its task was cancelled
            if error is None:
                future.set_result(None)
            else:
                # A new one for each task: a raised exception carries that task's traceback.
                future.set_exception(_failure(error))


def _nothing() -> None:
    pass


def _notify_one(callback: Committed, error: OpenQError | None) -> None:
    callback(None if error is None else _failure(error))


def _failure(error: OpenQError) -> OpenQError:
    return JournalFailed(error.reason) if isinstance(error, JournalFailed) else Closed()
