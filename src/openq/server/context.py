"""The state that all protocols of a server share: broker, loop, guard, thread pools, commit notifications.

Calls to a remote store suspend the calling greenlet until the store answers; other requests run meanwhile. So
everything that a protocol does on the loop starts with `enter`, which is a plain call for a local broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..auth.guard import Guard
from ..broker.interface import Broker
from ..config import Config
from ..errors import OpenQError
from ..metrics import Family
from .admission import Admission
from .audit import AuditLog
from .buffers import BufferLimit, buffer_bytes
from .connection_info import ConnectionInfo, IdOf
from .consumer_events import ConsumerEvents
from .event_bridge import EventBridge
from .event_log import EventLog
from .fleet import Fleet
from .http_request import HttpRequest
from .listener import Listener
from .process_metrics import ProcessFigures
from .reload import Reloader
from .series_thread import SeriesThread
from .stream_login import SharedTickets, StreamLogin, TicketOffice, Tickets
from .tasks import TaskList
from .threads import submit
from .traffic import Traffic
from .undo import UndoList

if TYPE_CHECKING:
    from .connections import Connections
    from .event_hub import EventHub
    from .live_feed import LiveFeed
    from .process_member import Member

log = logging.getLogger("openq.server")


class LongPoll(Protocol):
    def end(self) -> None: ...


class AmqpView(Protocol):
    """The AMQP server, as other protocols see it."""

    @property
    def open_connections(self) -> Sized: ...
    @property
    def errors(self) -> Mapping[int, int]: ...
    def close_connections(self, is_meant: Callable[[dict[str, Any]], bool], reason: str) -> None: ...
    def described(self, id_of: IdOf) -> list[ConnectionInfo]: ...
    def close_numbered(self, number: int, reason: str) -> bool: ...
    def connections(self) -> list[dict[str, Any]]: ...
    def channels(self) -> list[dict[str, Any]]: ...
    def consumers(self) -> list[dict[str, Any]]: ...
    def consumers_of(self, queue_key: str) -> int: ...


class WebhookView(Protocol):
    """The webhooks, as the parts below them see them."""

    def families(self, all_accounts: bool) -> list[Family]: ...
    def described(self, id_of: IdOf) -> list[ConnectionInfo]: ...
    def states_for(self, queue_key: str) -> list[str]: ...


class AlertView(Protocol):
    """The alerts, as the parts below them see them."""

    def families(self) -> list[Family]: ...


class StreamView(Protocol):
    """The WebSocket streams, as other protocols see them."""

    closing: int
    opened: int
    cut: int

    @property
    def sockets(self) -> Sized: ...
    def upgrade(self, request: HttpRequest, login: StreamLogin, account: str) -> None: ...
    def described(self, id_of: IdOf) -> list[ConnectionInfo]: ...
    def close_numbered(self, number: int, reason: str) -> bool: ...
    def consumers(self) -> int: ...
    def drain(self) -> None: ...
    def stop(self) -> None: ...


T = TypeVar("T")

Then = Callable[[T | None, BaseException | None], None]

WORK_THREADS = 4  # threads for work that would block the loop
AUTH_THREADS = 2  # for passwords, which take long on purpose
SCAN_THREADS = 4  # for scans of whole queues
MAX_SCANS = 16
COMMIT_THREADS = 3  # for staged batches
MAX_COMMITS = 32
MAX_COMMITS_OF_JOB = 4


class TooManySearches(OpenQError):
    code = "too_many_searches"

    def __init__(self) -> None:
        super().__init__(f"{MAX_SCANS} searches are running or waiting; try again later")


class TooManyCommits(OpenQError):
    code = "too_many_commits"

    def __init__(self) -> None:
        super().__init__("too many commits are running or waiting; try again later")


class ServerContext:
    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, config: Config, guard: Guard) -> None:
        self.broker = broker
        self.loop = loop
        self.config = config
        self.guard = guard
        session = broker.attach(loop)
        self.enter = session.enter
        self.after_commit = session.after_commit
        self.publish_later = session.publish_later
        self.ack_later = session.ack_later
        self.buffers = BufferLimit(buffer_bytes(config))
        self.admission = Admission(config.max_connections)
        self.process = ProcessFigures(None if config.memory or config.store is not None else config.data)
        self.traffic = Traffic(broker.statistics.measure())
        self.series = SeriesThread(broker)
        self.now_ms = broker.now_ms
        self.tasks = TaskList(broker.now_ms)
        self.undo = UndoList()
        self.started_ms = broker.now_ms()
        self._threads = ThreadPoolExecutor(WORK_THREADS, thread_name_prefix="openq-work")
        self._auth_threads = ThreadPoolExecutor(AUTH_THREADS, thread_name_prefix="openq-check")
        self._scan_threads = ThreadPoolExecutor(SCAN_THREADS, thread_name_prefix="openq-seek")
        self._scans = 0
        self._commit_threads = ThreadPoolExecutor(COMMIT_THREADS, thread_name_prefix="openq-commit")
        self._commits: dict[str, deque[Callable[[], None]]] = {}  # by job: waiting commits
        self.listener: Listener | None = None  # set by the server; has the number of connections
        self.amqp: AmqpView | None = None  # set by the server; lists connections and consumers
        self.webhooks: WebhookView | None = None  # set by the server
        self.alerts: AlertView | None = None  # set by the server
        self.open_streams: Callable[[], StreamView] | None = None  # set by the server
        self._streams: StreamView | None = None
        shared = broker.storage.waits
        self.tickets: TicketOffice = SharedTickets(broker.kv, guard) if shared else Tickets()
        self.event_log = EventLog(broker)
        self.reload: Reloader | None = None  # set by the server; reads its configuration again
        self.audit = AuditLog(broker.audit, broker.now_ms)
        self.long_polls: set[LongPoll] = set()  # ended when the server stops
        self._event_hub: EventHub | None = None
        self._live_feed: LiveFeed | None = None
        self.consumer_events = ConsumerEvents(self)
        self.event_bridge = EventBridge(self)
        self.fleet = Fleet(self)
        self.member: Member | None = None  # set by the server, if it is one of several processes
        self._connections: Connections | None = None

    @property
    def connections(self) -> Connections:
        if self._connections is None:
            from .connections import Connections  # it imports this module

            self._connections = Connections(self)
        return self._connections

    @property
    def event_hub(self) -> EventHub:
        """Made for the first reader of events."""
        if self._event_hub is None:
            from .event_hub import EventHub  # it imports this module

            self._event_hub = EventHub(self, self.broker.events)
        return self._event_hub

    @property
    def live_feed(self) -> LiveFeed:
        """Made for the first page that shows counts."""
        if self._live_feed is None:
            from .live_feed import LiveFeed  # it imports this module

            self._live_feed = LiveFeed(self)
        return self._live_feed

    @property
    def event_hub_or_none(self) -> EventHub | None:
        return self._event_hub

    @property
    def streams(self) -> StreamView:
        """Made with the first stream: a server without one does not load the library for WebSockets."""
        if self._streams is None:
            assert self.open_streams is not None
            self._streams = self.open_streams()
        return self._streams

    @property
    def has_streams(self) -> bool:
        return self._streams is not None

    def run(self, work: Callable[[], T], then: Then[T]) -> None:
        """Run `work` in a thread, then `then` on the loop."""
        self._submit(self._threads, work, then)

    def check(self, work: Callable[[], T], then: Then[T]) -> None:
        """Like `run`, on a separate pool, so that logins and other work do not delay each other."""
        self._submit(self._auth_threads, work, then)

    def seek(self, work: Callable[[], T], then: Then[T]) -> None:
        """Like `run`, for work that may take seconds. Called on the loop; raises TooManySearches."""
        if self._scans >= MAX_SCANS:
            raise TooManySearches()
        self._scans += 1

        def done(result: T | None, error: BaseException | None) -> None:
            self._scans -= 1
            then(result, error)

        self._submit(self._scan_threads, work, done)

    def commit(
        self, job: str, work: Callable[[], T], then: Then[T], is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Like `run`, for commits of staged batches: one at a time for each job. A waiting commit has no
        thread, and is skipped if its client is gone. Called on the loop; raises TooManyCommits."""
        waiting = self._commits.get(job)
        count = sum(1 + len(each) for each in self._commits.values())
        if count >= MAX_COMMITS or (waiting is not None and len(waiting) + 1 >= MAX_COMMITS_OF_JOB):
            raise TooManyCommits()

        def start() -> None:
            if is_wanted():
                self._submit(self._commit_threads, work, done)
            else:
                go_on()

        def done(result: T | None, error: BaseException | None) -> None:
            try:
                then(result, error)
            finally:
                go_on()

        def go_on() -> None:
            if self._commits.get(job):
                self._commits[job].popleft()()
            else:
                self._commits.pop(job, None)

        if waiting is None:
            self._commits[job] = deque()
            start()
        else:
            waiting.append(start)

    def _submit(self, threads: ThreadPoolExecutor, work: Callable[[], T], then: Then[T]) -> None:
        submit(threads, self.loop, work, partial(self.enter, then))

    def close(self) -> None:
        self.tasks.cancel_all()
        if self._event_hub is not None:
            self._event_hub.close()
        if self._live_feed is not None:
            self._live_feed.end()
        self._commits.clear()
        for threads in (self._threads, self._auth_threads, self._scan_threads, self._commit_threads):
            threads.shutdown(wait=False, cancel_futures=True)


def unless_gone(
    request: HttpRequest, then: Callable[[T], None], fail: Callable[[Exception], None]
) -> Then[T]:
    """A callback that calls `then` with the result, or `fail` with the error of the work or of `then`.

    It does nothing if the client is gone.
    """

    def finished(result: T | None, error: BaseException | None) -> None:
        if request.gone:
            return
        try:
            if error is not None:
                raise error
            then(result)  # type: ignore[arg-type]
        except Exception as problem:
            fail(problem)

    return finished
