"""Dead letters of all queues, or of one, grouped by normalised reason, with their trend and samples."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta

from ..broker.dead_letter_queues import all_dead_letter_queues
from ..broker.interface import Broker
from ..broker.reasons import MAX_REASON, normalised, reason_of
from ..documents.values import iso
from ..errors import QueueNotFound
from ..model import Entry
from .call import RestCall
from .routes import route
from .schemas import QueryParameters, ReplyBody
from .views import is_dead

MAX_GROUPS = 1_000
SAMPLES = 5
BUCKETS = 24


class GroupsQuery(QueryParameters, kw_only=True):
    budget: Annotated[float, Meta(gt=0, le=30, description="seconds")] = 5.0
    limit: Annotated[int, Meta(ge=1, le=MAX_GROUPS)] = 100
    span: Annotated[int, Meta(ge=60, le=30 * 86_400, description="seconds that the trend covers")] = 86_400
    queue: Annotated[str, Meta(max_length=255, description="only those in this dead-letter queue")] = ""
    match: Annotated[str, Meta(max_length=255, description="a part of the reason, in any case")] = ""


class GroupPart(ReplyBody, kw_only=True):
    """The part of a group in one dead-letter queue: what redrive and discard are called with."""

    queue: str
    count: int


class GroupSample(ReplyBody, kw_only=True):
    queue: str
    id: str
    reason: str


class ReasonGroup(ReplyBody, kw_only=True):
    """Dead letters whose reasons differ only in numbers, ids and addresses."""

    reason: str  # as `reason_group` of a filter
    count: int
    queues: list[GroupPart]
    sources: list[str]
    first: str
    last: str
    trend: list[int]  # dead letters in each of 24 equal parts of the span; the last part ends now
    samples: list[GroupSample]  # the newest ones


class ReasonGroups(ReplyBody, kw_only=True):
    groups: list[ReasonGroup]
    total: int  # dead letters that were counted
    matched: int  # groups, of which `groups` are the largest
    scanned: int
    complete: bool  # false: the time was up, or there are more than 1,000 groups
    span: int


@route(
    "GET",
    "dead-letter-groups",
    permission="peek",
    scope="each",
    sqs_actions=("ReceiveMessage",),
    summary="Dead letters of all queues, grouped by reason",
    query=GroupsQuery,
    reply=ReasonGroups,
)
def group_all_dead_letters(call: RestCall) -> None:
    call.seek(lambda: Grouping(call).result())


class Group:
    __slots__ = ("count", "first_ms", "last_ms", "queues", "samples", "sources", "trend")

    def __init__(self) -> None:
        self.count = 0
        self.queues: dict[str, int] = {}
        self.sources: dict[str, None] = {}
        self.first_ms = 1 << 62
        self.last_ms = 0
        self.trend = [0] * BUCKETS
        self.samples: list[tuple[int, GroupSample]] = []


class Grouping:
    def __init__(self, call: RestCall) -> None:
        self._call = call
        self._broker: Broker = call.broker
        query = call.query
        self._query = query
        self._deadline = time.monotonic() + query.budget
        self._now_ms = call.context.now_ms()
        self._groups: dict[str, Group] = {}
        self._keys: dict[str, str] = {}  # reason -> normalised: many are equal to the letter
        self._scanned = 0
        self._complete = True

    def result(self) -> ReasonGroups:
        for queue in self._dead_letter_queues():
            if not self._add_queue(queue):
                break
        match = self._query.match.lower()
        chosen = [item for item in self._groups.items() if match in item[0].lower()]
        chosen.sort(key=lambda item: (-item[1].count, item[0]))
        return ReasonGroups(
            groups=[_view(reason, group) for reason, group in chosen[: self._query.limit]],
            total=sum(group.count for _, group in chosen),
            matched=len(chosen),
            scanned=self._scanned,
            complete=self._complete,
            span=self._query.span,
        )

    def _dead_letter_queues(self) -> list[str]:
        """Those that queues name as theirs, and that the caller may peek."""
        call, find = self._call, self._broker.find_queue
        views = [view for each in self._broker.queues() if call.is_own(each) and (view := find(each))]
        own = ((view.name, view.settings) for view in views)
        targets = all_dead_letter_queues(self._broker.exchanges.router, own)
        names = sorted(view.name for view in views if view.name in targets)
        wanted = self._query.queue
        shorts = [(name, call.short_name(name)) for name in names]
        return [name for name, short in shorts if wanted in ("", short) and call.may("peek", short)]

    def _add_queue(self, queue: str) -> bool:
        """False if the time is up."""
        short, inspect = self._call.short_name(queue), self._broker.inspect
        try:
            for entry, _, _ in inspect.walk(queue, "all", None):
                self._scanned += 1
                if self._scanned % 1000 == 0 and time.monotonic() > self._deadline:
                    self._complete = False
                    return False
                if is_dead(entry, queue) and entry.options is not None:
                    self._add(short, entry)
        except QueueNotFound:
            pass  # deleted meanwhile
        return True

    def _add(self, queue: str, entry: Entry) -> None:
        assert entry.options is not None
        reason = reason_of(entry)
        key = self._keys.get(reason)
        if key is None:
            key = normalised(reason)
            if len(self._keys) < 10 * MAX_GROUPS:
                self._keys[reason] = key
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) == MAX_GROUPS:
                self._complete = False
                return
            group = self._groups[key] = Group()
        source, _, died_ms, *_ = entry.options.deaths[0]
        group.count += 1
        group.queues[queue] = group.queues.get(queue, 0) + 1
        if len(group.sources) < 100:
            group.sources[self._call.short_name(source)] = None
        group.first_ms = min(group.first_ms, died_ms)
        group.last_ms = max(group.last_ms, died_ms)
        age_ms = self._now_ms - died_ms
        if 0 <= age_ms < self._query.span * 1000:
            group.trend[BUCKETS - 1 - age_ms * BUCKETS // (self._query.span * 1000)] += 1
        if len(group.samples) < SAMPLES or died_ms >= group.samples[-1][0]:
            id = self._broker.inspect.message_id(entry)
            # In front: of those of one millisecond the later one of a queue is the newer one.
            group.samples.insert(0, (died_ms, GroupSample(queue=queue, id=id, reason=reason[:MAX_REASON])))
            group.samples.sort(key=lambda each: -each[0])
            del group.samples[SAMPLES:]


def _view(reason: str, group: Group) -> ReasonGroup:
    parts = sorted(group.queues.items(), key=lambda part: -part[1])
    return ReasonGroup(
        reason=reason,
        count=group.count,
        queues=[GroupPart(queue=queue, count=count) for queue, count in parts],
        sources=list(group.sources),
        first=iso(group.first_ms),
        last=iso(group.last_ms),
        trend=group.trend,
        samples=[sample for _, sample in group.samples],
    )
