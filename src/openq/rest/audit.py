"""The audit log, for admins: records in order, with the hashes that show tampering."""

from __future__ import annotations

from collections import deque
from itertools import islice, takewhile
from typing import Annotated, Any

from msgspec import Meta

from ..broker.audit import AuditFilter, AuditRecord, records
from ..documents.values import iso, moment_ms
from .call import RestCall
from .routes import route
from .schemas import QueryParameters, ReplyBody

MAX_PAGE = 1000


class AuditQuery(QueryParameters):
    after: Annotated[int, Meta(ge=0, description="only records with a greater number")] = 0
    before: Annotated[int, Meta(ge=0, description="only records with a smaller number; 0: all")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    newest: Annotated[bool, Meta(description="the newest records instead of the oldest")] = False
    user: str | None = None
    action: str | None = None
    target: str | None = None
    protocol: str | None = None
    outcome: Annotated[str | None, Meta(description="ok, refused, failed or unknown")] = None
    since: Annotated[str | None, Meta(description="a time, ISO 8601")] = None


class AuditView(ReplyBody, kw_only=True):
    number: int
    time: str
    time_ms: int
    user: str
    peer: str
    protocol: str
    action: str
    target: str
    outcome: str
    detail: dict[str, Any]
    previous: str
    hash: str


class AuditPage(ReplyBody, kw_only=True):
    records: list[AuditView]
    next: int | None = None


@route(
    "GET",
    "audit",
    permission="admin",
    scope="server",
    summary="Records of the audit log",
    query=AuditQuery,
    reply=AuditPage,
)
def list_audit(call: RestCall) -> None:
    """Records in order. Continue after the number `next`; without it there are no more."""
    query, store = call.query, call.broker.audit
    wanted = AuditFilter(
        user=query.user,
        action=query.action,
        target=query.target,
        protocol=query.protocol,
        outcome=query.outcome,
        since_ms=0 if query.since is None else moment_ms(query.since, "since"),
    )

    def work() -> AuditPage:
        call.context.audit.flush()
        stored = records(store.lines(query.after))
        if query.before:
            stored = takewhile(lambda each: each.number < query.before, stored)
        found = (each for each in stored if each.number > query.after and wanted.accepts(each))
        if query.newest:
            return AuditPage(records=[_view(each) for each in deque(found, query.limit)])
        page = [_view(each) for each in islice(found, query.limit)]
        return AuditPage(records=page, next=page[-1].number if len(page) == query.limit else None)

    call.seek(work)


def _view(record: AuditRecord) -> AuditView:
    entry = record.entry
    return AuditView(
        number=record.number,
        time=iso(entry.time_ms),
        time_ms=entry.time_ms,
        user=entry.user,
        peer=entry.peer,
        protocol=entry.protocol,
        action=entry.action,
        target=entry.target,
        outcome=entry.outcome,
        detail=dict(entry.detail),
        previous=record.previous,
        hash=record.hash,
    )
