"""What a server writes into its audit log, and the thread that does it.

A change goes on if the record cannot be written: records wait until the store is back, up to a limit; what is
lost then is counted and logged (docs/decisions/0020-audit.md). A record follows its change by milliseconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..auth.failed_logins import RefusedLogin
from ..broker.audit import FAILED, FIRST_HASH, OK, REFUSED, UNKNOWN, AuditEntry, AuditStore, AuditUnavailable
from ..logs import emit
from ..settings import SETTINGS
from .http_request import HttpRequest

log = logging.getLogger("openq.audit")

MAX_WAITING = 10_000
BATCH = 200
RETRY_S = 1.0
STOP_S = 5.0
READ_S = 10.0  # a machine that stands still for a while must not hide a record from its reader
_MAX_TEXT = 300
_MAX_ITEMS = 50

# Fields of requests that a record shows. Others are named, but their values are not shown: a password, a
# secret or the body of a message must not get here by accident.
SHOWN_FIELDS = frozenset(
    [
        *(setting.name for setting in SETTINGS),
        *("name", "user", "account", "role", "rules", "disabled", "expires", "queue", "queues", "exchange"),
        *("type", "kind", "durable", "auto_delete", "internal", "source", "destination", "destination_type"),
        *("routing_key", "arguments", "cron", "every", "timezone", "enabled", "paused", "to", "ids", "rate"),
        *("since", "until", "limit", "dry_run", "missed", "jitter", "mode", "batch", "concurrency", "events"),
        *("vhost", "pattern", "priority", "apply_to", "definition", "configure", "write", "read", "tags"),
        *("queue_name", "attributes", "label", "actions", "aws_account_ids", "source_arn", "destination_arn"),
        *("max_number_of_messages_per_second", "task_handle", "due", "delay", "state", "if_empty"),
    ]
)
NOT_SHOWN = "(not shown)"


def shown_detail(fields: Any) -> dict[str, Any]:
    """The fields of a request (a mapping, or a msgspec struct) as its record shows them."""
    found: dict[str, Any] = {}
    for name, value in _items(fields)[:_MAX_ITEMS]:
        if value is None:
            continue
        if name == "url" and isinstance(value, str):
            found["host"] = _host(value)  # paths and users of an address may be secret
        else:
            found[str(name)[:100]] = _plain(value) if name in SHOWN_FIELDS else NOT_SHOWN
    return found


def _items(fields: Any) -> list[tuple[Any, Any]]:
    if isinstance(fields, Mapping):
        return list(fields.items())
    if isinstance(fields, msgspec.Struct):
        pairs = msgspec.structs.asdict(fields).items()
        return [(name, value) for name, value in pairs if value is not msgspec.UNSET]
    return []


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "")[:_MAX_TEXT]
    except ValueError:
        return ""


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping | msgspec.Struct):
        items = _items(value)[:_MAX_ITEMS]
        return {str(name)[:100]: _plain(each) for name, each in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in list(value)[:_MAX_ITEMS]]
    return str(value)[:_MAX_TEXT]


def outcome_of(status: int) -> str:
    """Of the status of a reply; 0: there was none."""
    if status == 0:
        return UNKNOWN
    if status in (401, 403):
        return REFUSED
    return OK if status < 400 else FAILED


class AuditLog:
    def __init__(self, store: AuditStore, now_ms: Callable[[], int]) -> None:
        self.store = store
        self._now_ms = now_ms
        self._waiting: deque[AuditEntry] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._is_failing = False
        self.written = 0
        self.lost = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # -- what is recorded

    def record(
        self,
        protocol: str,
        action: str,
        target: str = "",
        outcome: str = OK,
        *,
        user: str = "",
        peer: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Never blocks. Any thread."""
        entry = AuditEntry(
            self._now_ms(),
            user,
            peer,
            protocol,
            action,
            "".join(char if char.isprintable() else "?" for char in target[:_MAX_TEXT]),
            outcome,
            detail or {},
        )
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self.lost += 1
                return
            self._waiting.append(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="openq-audit", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def watch(
        self,
        request: HttpRequest,
        protocol: str,
        action: str,
        target: str,
        user: str,
        *,
        only_refused: bool = False,
    ) -> dict[str, Any]:
        """Record the request when it is answered. Returns its detail, to be filled until then."""
        detail: dict[str, Any] = {}

        def answered(status: int, size: int) -> None:
            outcome = outcome_of(status)
            if only_refused and outcome != REFUSED:
                return
            if outcome == FAILED:
                detail["status"] = status
            self.record(protocol, action, target, outcome, user=user, peer=request.peer, detail=detail)

        request.when_answered(answered)
        return detail

    def login_refused(self, refused: RefusedLogin) -> None:
        self.record(
            refused.protocol,
            "login",
            outcome=REFUSED,
            user=refused.user,
            peer=refused.peer,
            detail={"reason": refused.reason, "count": refused.count},
        )

    # -- writing

    def flush(self) -> None:
        """Wait for the records that were recorded before this call. Blocks.

        A reader sees its own changes. While the store cannot be written, it reads what is there.
        """
        with self._changed:
            end = self.written + len(self._waiting)
            self._changed.wait_for(lambda: self.written >= end or self._is_failing or self._stopping, READ_S)

    def stop(self) -> None:
        """Write what waits; what cannot be written now is lost, and said so. Blocks."""
        with self._changed:
            thread, self._stopping = self._thread, True
            self._changed.notify_all()
        if thread is not None:
            thread.join(STOP_S)
        lost = len(self._waiting)
        if lost:
            self.lost += lost
            emit(log, logging.ERROR, "audit_lost", count=lost)

    def head(self) -> tuple[int, str]:
        """Number and hash of the newest record."""
        try:
            newest = self.store.newest()
        except AuditUnavailable:
            newest = None
        return (0, FIRST_HASH) if newest is None else (newest.number, newest.hash)

    def _run(self) -> None:
        failing_since_s: float | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._stopping)
                if not self._waiting:
                    return
                batch = [self._waiting[index] for index in range(min(len(self._waiting), BATCH))]
            try:
                self.store.append(batch)
            except Exception as error:
                if failing_since_s is None:
                    failing_since_s = time.monotonic()
                    reason = str(error) if isinstance(error, AuditUnavailable) else repr(error)
                    emit(log, logging.ERROR, "audit_unavailable", reason=reason, waiting=len(self._waiting))
                with self._changed:
                    if self._stopping:
                        return
                    self._is_failing = True
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._stopping, RETRY_S)
                continue
            if failing_since_s is not None:
                duration_s = round(time.monotonic() - failing_since_s, 3)
                emit(log, logging.WARNING, "audit_resumed", duration_s=duration_s, lost=self.lost)
                failing_since_s = None
            with self._changed:
                for _ in batch:
                    self._waiting.popleft()
                self.written += len(batch)
                self._is_failing = False
                self._changed.notify_all()
