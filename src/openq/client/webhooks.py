"""Webhooks of a queue: the server sends its messages, or its events, to a URL. See docs/WEBHOOKS.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting, OpenQError, WebhookNotFound
from . import checks
from .parts import QueuePart
from .rest_client import path_part
from .times import moment_ms, parse_iso

if TYPE_CHECKING:
    from .server_api import ServerApi

_POLL_S = 0.1
_AttemptList = list["WebhookAttempt"]


@dataclass(frozen=True, slots=True)
class WebhookInfo:
    """A webhook as the server has it. `details` has all fields as REST shows them."""

    name: str
    url: str
    enabled: bool
    reason: str | None  # why it is disabled
    state: str  # such as sending, idle, paused, elsewhere
    delivered: int
    failed: int
    last_error: str | None
    secret: str | None = field(repr=False)  # only of a call that made one: it is never shown again
    details: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class WebhookAttempt:
    """One request to the endpoint. `status` is None if there was no response; `detail` then says why."""

    id: str
    time: datetime
    outcome: str  # delivered, failed, paused or gone
    status: int | None
    duration: float
    attempt: int
    messages: int
    detail: str


class QueueWebhooks(QueuePart):
    """The webhooks of a queue behind a server: `queue.webhooks`.

        made = orders.webhooks.add("shop", "https://example.com/hook", attributes={"shop": "eu"})
        print(made.secret)  # the endpoint verifies requests with it; it is shown this once
        orders.webhooks.test("shop")

    A queue in this process has none: the sender is a server.
    """

    __slots__ = ()

    def add(
        self,
        name: str,
        url: str,
        *,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, Any] | None = None,
        events: Iterable[str] | None = None,
        bodies: bool = False,
        mode: str | None = None,
        batch: int = 1,
        headers: Mapping[str, str] | None = None,
        secret: str | None = None,
        concurrency: int = 8,
        rate: str | None = None,
        timeout: float = 30.0,
        failures: int = 10,
        max_attempts: int | None = None,
    ) -> WebhookInfo:
        """Declare a webhook; one of this name is replaced, and keeps its secret.

        It sends the messages of this queue, those of `types` and with `attributes` if they are given. With
        `events` it sends these events of the queue instead (`[]`: all), with `bodies` if wanted. The other
        options are those of docs/WEBHOOKS.md.
        """
        chosen: dict[str, Any] = {
            "types": [] if types is None else checks.text_list(types, "types"),
            "attributes": dict(attributes or {}),
        }
        body: dict[str, Any] = {
            "url": checks.text(url, "url"),
            "mode": mode,
            "batch": batch,
            "headers": dict(headers or {}),
            "secret": secret,
            "concurrency": concurrency,
            "rate": rate,
            "timeout": timeout,
            "failures": failures,
            "max_attempts": max_attempts,
        }
        if events is None:
            body |= {"queue": self.core.name, **chosen}
        else:
            names = checks.text_list(events, "events")
            body["events"] = {"queues": [self.core.name], "events": names, "bodies": bodies, **chosen}
        return _info(self._call("PUT", _path(name), body))

    def list(self) -> list[WebhookInfo]:
        """The webhooks that send messages or events of this queue."""
        return [_info(each) for each in self._call("GET", "webhooks")["webhooks"] if self._is_mine(each)]

    def get(self, name: str) -> WebhookInfo:
        """Raises WebhookNotFound, also for a webhook of other queues."""
        found = self._call("GET", _path(name))
        if not self._is_mine(found):
            raise WebhookNotFound(name)
        return _info(found)

    def remove(self, name: str) -> None:
        self._call("DELETE", _path(name))

    def enable(self, name: str) -> WebhookInfo:
        return _info(self._call("POST", f"{_path(name)}/enable", {}))

    def disable(self, name: str, reason: str | None = None) -> WebhookInfo:
        """Nothing is sent until `enable`. Declaring the webhook again does not enable it."""
        return _info(self._call("POST", f"{_path(name)}/disable", {"reason": reason}))

    def rotate(self, name: str, secret: str | None = None, keep: float = 86_400.0) -> WebhookInfo:
        """Sign with a new secret; older ones stay valid for `keep` seconds."""
        return _info(self._call("POST", f"{_path(name)}/secrets", {"secret": secret, "keep": keep}))

    def test(self, name: str) -> WebhookAttempt:
        """Send a signed sample, and return what the endpoint answered."""
        return _attempt(self._call("POST", f"{_path(name)}/test", {}))

    def log(self, name: str, limit: int = 100, outcome: str | None = None) -> _AttemptList:
        """The last attempts, the newest first."""
        path = f"{_path(name)}/deliveries?limit={checks.integer(limit, 'limit', 1)}"
        if outcome is not None:
            path += f"&outcome={path_part(outcome)}"
        return [_attempt(each) for each in self._call("GET", path)["deliveries"]]

    def replay(
        self,
        name: str,
        *,
        since: datetime | float | str | None = None,
        until: datetime | float | str | None = None,
        ids: Sequence[str] | None = None,
        rate: str | None = None,
    ) -> int:
        """Send past messages again, by the time of their publishing or by id, and wait for the end.

        Returns how many were delivered. Raises OpenQError if the endpoint refuses one in five attempts.
        """
        body = {
            "since": None if since is None else moment_ms(since, "since") / 1000,
            "until": None if until is None else moment_ms(until, "until") / 1000,
            "ids": None if ids is None else checks.text_list(ids, "ids"),
            "rate": rate,
        }
        task = self._call("POST", f"{_path(name)}/replay", body)
        while task["state"] == "running":
            self._api().sleep(_POLL_S)
            task = self._call("GET", f"tasks/{task['id']}")
        if task["state"] != "done":
            raise OpenQError(f"the replay of webhook {name!r} is {task['state']}: {task.get('error') or ''}")
        return int(task["done"])

    def _api(self) -> ServerApi:
        if not self.core.handle.is_remote:
            raise InvalidSetting('webhooks are sent by a server: open the queue with url="http://..."')
        api: ServerApi = self.core.broker.api  # type: ignore[attr-defined]
        return api

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        given = None if body is None else {name: value for name, value in body.items() if value is not None}
        is_repeatable = method != "POST"
        return self._api().call(method, path, given, queue=self.core.name, idempotent=is_repeatable).value

    def _is_mine(self, webhook: Mapping[str, Any]) -> bool:
        name, events = self.core.name, webhook["events"]
        return webhook["queue"] == name or (events is not None and events["queues"] == [name])


def _path(name: str) -> str:
    return f"webhooks/{path_part(checks.text(name, 'name'))}"


def _info(found: Mapping[str, Any]) -> WebhookInfo:
    status = found["status"]
    return WebhookInfo(
        found["name"],
        found["url"],
        found["enabled"],
        found["reason"],
        status["state"],
        status["delivered"],
        status["failed"],
        status["last_error"],
        found.get("secret"),
        {name: value for name, value in found.items() if name != "secret"},
    )


def _attempt(found: Mapping[str, Any]) -> WebhookAttempt:
    return WebhookAttempt(
        found["id"],
        parse_iso(found["time"]),
        found["outcome"],
        found["status"],
        found["duration"],
        found["attempt"],
        found["messages"],
        found["detail"],
    )
