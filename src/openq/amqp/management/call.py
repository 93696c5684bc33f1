"""One request of the management API: caller, permissions and replies; lists with pages, filters and rates."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

from ...auth.errors import AuthenticationFailed, TooManyFailedLogins, UserStoreDamaged, UserStoreUnwritable
from ...auth.guard import Principal
from ...auth.policy import POLICY_NOTE
from ...errors import Closed, JournalFailed, OpenQError, OutOfRoom, StoreError, public_text
from ...names import DEFAULT_ACCOUNT, owner_of, qualified_name, split_name, split_namespace
from ...server.condition_keys import request_condition_keys
from ...server.context import unless_gone
from ...server.http_request import HttpRequest
from ..arguments import account_of
from ..errors import ACCESS_REFUSED, CONNECTION_FORCED, INTERNAL_ERROR, NOT_FOUND, RESOURCE_ERROR, AmqpError
from ..publishing import PublishingBlocked

if TYPE_CHECKING:
    from .api import ManagementApi

log = logging.getLogger("openq.management")

T = TypeVar("T")
Json = dict[str, Any]

MAX_PAGE = 500
MIN_RATE_MS = 1_000  # the shortest interval of a rate

_JSON = b"application/json"
_CHALLENGE = b'WWW-Authenticate: Basic realm="OpenQ"\r\n'


class ManagementError(Exception):
    """Ends a request with an error reply."""

    def __init__(self, status: int, error: str, reason: object) -> None:
        super().__init__(str(reason))
        self.status = status
        self.body = {"error": error, "reason": reason}


def not_found() -> ManagementError:
    return ManagementError(404, "Object Not Found", "Not Found")


def first_or_404(found: list[Json]) -> Json:
    """The first; raises 404 if there is none."""
    if not found:
        raise not_found()
    return found[0]


def bad_request(reason: object) -> ManagementError:
    return ManagementError(400, "bad_request", reason)


def access_refused() -> ManagementError:
    return ManagementError(401, "not_authorised", "Access refused.")


_UNAVAILABLE = (
    OutOfRoom,
    StoreError,
    JournalFailed,
    UserStoreDamaged,
    UserStoreUnwritable,
    Closed,
    PublishingBlocked,
)


class ManagementCall:
    """One request."""

    def __init__(self, api: ManagementApi, request: HttpRequest) -> None:
        self.api = api
        self.context = api.context
        self.topology = api.topology
        self.request = request
        self.principal: Principal
        self.names: list[str] = []  # the {names} of the path
        self.query = dict(parse_qsl(request.query, keep_blank_values=True))

    # -- the body

    def body(self) -> Json:
        if not self.request.body:
            return {}
        try:
            body = json.loads(self.request.body)
        except (ValueError, RecursionError):
            raise bad_request("the body is not JSON") from None
        if not isinstance(body, dict):
            raise bad_request("the body must be a JSON object")
        return body

    def required(self, *names: str) -> Json:
        body = self.body()
        missing = [name for name in names if name not in body]
        if missing:
            raise bad_request("[" + ",".join(f"{{key_missing,{name}}}" for name in missing) + "]")
        return body

    # -- names

    def vhost(self, reason: str | None = None) -> str:
        """The vhost in the path. Raises 404 if it does not exist or the caller may not see it."""
        vhost = self.names[0]
        if not self.topology.vhost_exists(vhost) or not self.can_see_vhost(vhost):
            raise not_found() if reason is None else ManagementError(404, "not_found", reason)
        return vhost

    def key_of(self, name: str) -> str:
        return qualified_name(account_of(self.names[0]), name)

    # -- permissions

    def can_see_vhost(self, vhost: str) -> bool:
        if self.context.guard.is_open or self.may_admin():
            return True
        account = account_of(vhost)
        owner = owner_of(account)
        principal = self.principal
        return principal.account == owner or any(
            rule.effect == "allow" and rule.account in ("*", account, owner) for rule in principal.rules
        )

    def may(self, action: str, queue_key: str, *, is_queue: bool) -> bool:
        """By the caller's rules and, for a queue, its policy."""
        guard, principal = self.context.guard, self.principal
        account, name = split_name(queue_key)
        policy: str | None = None
        if is_queue:
            try:
                policy = self.context.broker.get_queue(queue_key).settings.notes.get(POLICY_NOTE)
            except OpenQError:
                pass  # an unknown queue has no policy
        if policy is None:
            return guard.may(principal, action, account, name)
        region = split_namespace(account)[0] or self.context.config.region
        condition_keys = request_condition_keys(self.request, principal, region, self.context.now_ms())
        return guard.may(principal, action, account, name, policy=policy, condition_keys=condition_keys)

    def require(self, action: str, queue_key: str, *, is_queue: bool) -> None:
        if not self.may(action, queue_key, is_queue=is_queue):
            raise access_refused()

    def require_publish(self, name: object, key: object = None) -> None:
        """For a dead-letter or alternate exchange: the caller must be allowed to send to it, or manage it.

        For the default exchange, the queue that `key` names; without a key, any queue.
        """
        if name == "" and isinstance(key, str):
            self.require("send", self.key_of(key), is_queue=True)
        elif name == "":
            if not self.context.guard.may_everywhere(self.principal, "send", account_of(self.names[0])):
                raise access_refused()
        elif isinstance(name, str):
            queue_key = self.key_of(name)
            if not any(self.may(action, queue_key, is_queue=False) for action in ("send", "manage")):
                raise access_refused()

    def may_admin(self) -> bool:
        return self.context.guard.may(self.principal, "admin", DEFAULT_ACCOUNT, None)

    def require_admin(self) -> None:
        if not self.may_admin():
            raise access_refused()

    def require_monitoring(self) -> None:
        """To look at the whole server."""
        if not self.context.guard.may(self.principal, "peek", DEFAULT_ACCOUNT, None):
            raise access_refused()

    # -- replies

    def answer(self, value: object, status: int = 200, headers: bytes = b"") -> None:
        self.request.answer(status, json.dumps(value).encode(), _JSON, headers)

    def answer_object(self, value: object) -> None:
        """An object, or the fields that `?columns=` selects."""
        columns = self.query.get("columns")
        self.answer(
            _select_columns(value, columns.split(",")) if columns and isinstance(value, dict) else value
        )

    def answer_changed(self, is_new: bool = False, location: str | None = None) -> None:
        """201 or 204, when the change is durable."""
        headers = b"" if location is None else b"location: " + location.encode("ascii") + b"\r\n"

        def committed(error: OpenQError | None) -> None:
            if error is not None:
                self.fail(error)
            else:
                self.request.answer(201 if is_new else 204, b"", _JSON, headers)

        self.context.after_commit(committed)

    def run_in_thread(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """`work` in a thread, `then` on the loop."""
        self.context.run(work, unless_gone(self.request, then, self.fail))

    def answer_from_thread(self, work: Callable[[], object]) -> None:
        self.run_in_thread(work, self.answer_object)

    def answer_list(self, work: Callable[[], list[Json]]) -> None:
        self.run_in_thread(lambda: paginate(work(), self.query), self.answer)

    def fail(self, error: BaseException) -> None:
        if isinstance(error, AmqpError):
            error = _from_amqp_error(error)
        if isinstance(error, TooManyFailedLogins):
            wait = b"Retry-After: %d\r\n" % error.retry_after_s
            self.answer({"error": "not_authorized", "reason": str(error)}, 429, wait)
        elif isinstance(error, AuthenticationFailed):
            self.answer({"error": "not_authorized", "reason": "Login failed"}, 401, _CHALLENGE)
        elif isinstance(error, ManagementError):
            headers = b"" if error.status != 405 else b"Allow: GET, HEAD\r\n"
            self.answer(error.body, error.status, headers)
        elif isinstance(error, _UNAVAILABLE):
            self.answer({"error": "unavailable", "reason": public_text(error)}, 503)
        elif isinstance(error, OSError):
            # A file could not be written; the log names it.
            log.error("%s %r failed: %s", self.request.method, self.request.path[:200], error)
            self.answer({"error": "unavailable", "reason": error.strerror or "disk error"}, 503)
        elif isinstance(error, OpenQError):
            self.answer({"error": "bad_request", "reason": public_text(error)}, 400)
        else:
            log.error("%s %r failed", self.request.method, self.request.path[:200], exc_info=error)
            self.answer({"error": "internal_error", "reason": "internal error; see the server's log"}, 500)


def _from_amqp_error(error: AmqpError) -> ManagementError:
    if error.code == NOT_FOUND:
        return ManagementError(404, "not_found", error.text)
    if error.code == ACCESS_REFUSED:
        return access_refused()
    if error.code in (RESOURCE_ERROR, INTERNAL_ERROR, CONNECTION_FORCED):
        return ManagementError(
            503, "unavailable", error.text
        )  # disk full, Redis unreachable, or the server stops
    return bad_request(error.text)


# -- lists ----------------------------------------------------------------------------------------


def _number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 0 < int(text) <= most:
        raise bad_request(f"{name} must be a number from 1 to {most}")
    return int(text)


def paginate(items: list[Json], query: Mapping[str, str]) -> object:
    """Sort, filter, paginate and select columns, as the query says."""
    total = len(items)
    name = query.get("name", "")
    if name:
        if query.get("use_regex") == "true" and re.escape(name) != name:
            raise bad_request("use_regex: only literal text is supported")
        items = [each for each in items if name in str(each.get("name", ""))]
    if "sort" in query:
        items = sorted(items, key=lambda each: _rank(field_of(each, query["sort"])))
        if query.get("sort_reverse") == "true":
            items.reverse()
    filtered = len(items)
    paged = "page" in query
    page = size = count = 0
    if paged:
        page = _number(query, "page", 1, 10**9)
        size = _number(query, "page_size", 100, MAX_PAGE)
        count = max(1, -(-filtered // size))
        if page > count:
            raise ManagementError(
                400, "page_out_of_range", f"page out of range, page: {page}, last page: {count}"
            )
        items = items[(page - 1) * size : page * size]
    if query.get("columns"):
        columns = query["columns"].split(",")
        items = [_select_columns(each, columns) for each in items]
    if not paged:
        return items
    return {
        "filtered_count": filtered,
        "item_count": len(items),
        "items": items,
        "page": page,
        "page_count": count,
        "page_size": size,
        "total_count": total,
    }


def field_of(item: object, path: str) -> object:
    for name in path.split("."):
        item = item.get(name) if isinstance(item, Mapping) else None
    return item


def _rank(value: object) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return 0, float(value), ""
    return 1, 0.0, "" if value is None else str(value)


def _select_columns(item: Json, paths: Iterable[str]) -> Json:
    chosen: Json = {}
    for path in paths:
        *above, last = path.split(".")
        source: object = item
        for name in above:
            source = source.get(name) if isinstance(source, Mapping) else None
        if isinstance(source, Mapping) and last in source:
            target = chosen
            for name in above:
                target = target.setdefault(name, {})
            target[last] = source[last]
    return chosen


class Rates:
    """Rates of counters, from one request to the next."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, dict[str, int], dict[str, float]]] = {}

    def of(self, key: str, counts: dict[str, int]) -> Json:
        now_ms = self._now_ms()
        with self._lock:
            then_ms, before, rates = self._seen.get(key, (0, counts, {}))
            if now_ms - then_ms >= MIN_RATE_MS:
                span_s = (now_ms - then_ms) / 1000
                rates = {name: max(0, count - before.get(name, 0)) / span_s for name, count in counts.items()}
                self._seen[key] = (now_ms, counts, rates)
        found: Json = {}
        for name, count in counts.items():
            found[name] = count
            found[f"{name}_details"] = {"rate": round(rates.get(name, 0.0), 3)}
        return found

    def retain(self, keys: Iterable[str]) -> None:
        """Remove all others: their queues are deleted."""
        wanted = set(keys)
        with self._lock:
            self._seen = {key: seen for key, seen in self._seen.items() if key in wanted}
