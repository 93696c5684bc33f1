"""Webhooks: messages of a queue, or events, that the server sends to a URL.

A webhook needs `manage` of its queue, and the permission to read what it sends: `receive` for messages,
`peek` for events. Users who may not manage its queue do not see it. Records are read and changed in threads.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from ..broker.history import HistoryRange
from ..documents.values import iso, iso_or_none, moment_ms, read_attributes, seconds, span_ms
from ..errors import InvalidSetting, WebhookNotFound
from ..limits import rate_text
from ..parsing import without_password
from ..server.tasks import LongOperation
from ..webhooks.declaring import Declared, declare_webhook, rotate_secret
from ..webhooks.delivery_log import Attempt, stored_parts
from ..webhooks.model import Webhook
from ..webhooks.service import WebhookService
from ..webhooks.single import PAGE, PAGE_BYTES, Replay, send_sample
from .call import RestCall
from .message_schemas import TaskView
from .problems import Problem
from .routes import route
from .views import attributes_of, task_view
from .webhook_schemas import (
    AttemptList,
    AttemptQuery,
    AttemptView,
    Disabling,
    EventChoice,
    NewSecret,
    SecretView,
    WebhookChange,
    WebhookId,
    WebhookList,
    WebhookReplay,
    WebhookStatus,
    WebhookView,
)

_MANAGE = ("SetQueueAttributes",)


def _service(call: RestCall) -> WebhookService:
    service = call.context.webhooks
    assert isinstance(service, WebhookService)
    return service


# -- permissions --------------------------------------------------------------------------------


def _may(call: RestCall, action: str, queue: str | None, patterns: list[str]) -> bool:
    """Whether the caller may do this to all queues of a webhook; names without the account."""
    if queue is not None:
        return call.may(action, queue)
    if patterns and not any("*" in each or "?" in each for each in patterns):
        return all(call.may(action, each) for each in patterns)
    # New queues may match a pattern, so it needs the permission for all queues.
    return call.context.guard.may_everywhere(call.principal, action, call.account)


def _may_manage(call: RestCall, webhook: Webhook) -> bool:
    queue = None if webhook.queue is None else call.short_name(webhook.queue)
    patterns = [] if webhook.events is None else webhook.events.queues
    return _may(call, "manage", queue, [call.short_name(each) for each in patterns])


def _require_source(call: RestCall, body: WebhookChange) -> None:
    patterns = [] if body.events is None else body.events.queues
    for action in ("manage", "receive" if body.events is None else "peek"):
        if not _may(call, action, body.queue, patterns):
            what = body.queue or ", ".join(patterns) or "all queues"
            raise Problem("forbidden", f"{call.principal.user} may not {action} {what[:100]!r}")


def _webhook(call: RestCall) -> Webhook:
    """The webhook in the path, read in a thread. Not found if the caller may not manage its queue."""
    name = _name(call)
    webhook = _service(call).store.get(name)
    if not _may_manage(call, webhook):
        raise WebhookNotFound(name)
    return webhook


def _name(call: RestCall) -> str:
    return call.qualified(call.args[0], "webhook")


# -- views --------------------------------------------------------------------------------------


def _view(call: RestCall, webhook: Webhook, secret: str | None = None) -> WebhookView:
    selected = webhook.events
    return WebhookView(
        name=call.short_name(webhook.name),
        url=without_password(webhook.url),
        queue=None if webhook.queue is None else call.short_name(webhook.queue),
        types=webhook.types,
        attributes=attributes_of(webhook.attributes, call.format),
        events=None
        if selected is None
        else EventChoice(
            queues=[call.short_name(each) for each in selected.queues],
            events=selected.events,
            types=selected.types,
            attributes=attributes_of(selected.attributes, call.format),
            bodies=selected.bodies,
        ),
        mode=webhook.mode,
        batch=webhook.batch,
        headers=list(webhook.headers),
        secrets=[
            SecretView(created=iso(each.created_ms), expires=iso_or_none(each.until_ms))
            for each in webhook.secrets
        ],
        concurrency=webhook.concurrency,
        rate=webhook.rate,
        timeout=seconds(webhook.timeout_ms),
        failures=webhook.failures,
        max_attempts=webhook.max_attempts,
        enabled=webhook.enabled,
        reason=webhook.reason,
        created=iso(webhook.created_ms),
        status=_status(call, webhook),
        secret=UNSET if secret is None else secret,
    )


def _status(call: RestCall, webhook: Webhook) -> WebhookStatus:
    status = _service(call).status(webhook)
    return WebhookStatus(
        state=status.state,
        breaker=status.breaker,
        paused_until=iso_or_none(status.until_ms),
        in_flight=status.in_flight,
        trouble=status.trouble,
        delivered=status.delivered,
        failed=status.failed,
        last_attempt=None if status.last is None else iso(status.last.time_ms),
        last_error=None if status.last_failure is None else _error_text(status.last_failure),
        owner=UNSET if status.owner is None else status.owner,
    )


def _error_text(attempt: Attempt) -> str:
    if attempt.status is None:
        return attempt.detail
    return f"HTTP {attempt.status}: {attempt.detail}" if attempt.detail else f"HTTP {attempt.status}"


def _attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        id=attempt.id,
        time=iso(attempt.time_ms),
        outcome=attempt.outcome,
        status=attempt.status,
        duration=attempt.duration_ms / 1000,
        attempt=attempt.attempt,
        messages=attempt.messages,
        detail=attempt.detail,
    )


# -- records ------------------------------------------------------------------------------------


@route(
    "GET",
    "webhooks",
    permission="manage",
    scope="each",
    sqs_actions=_MANAGE,
    summary="List webhooks",
    reply=WebhookList,
)
def list_webhooks(call: RestCall) -> None:
    def work() -> WebhookList:
        found = [each.webhook for each in _service(call).store.list()]
        return WebhookList(
            webhooks=[
                _view(call, each) for each in found if call.is_own(each.name) and _may_manage(call, each)
            ]
        )

    call.answer_with(work)


@route(
    "GET",
    "webhooks/{webhook}",
    permission="manage",
    scope="webhook",
    sqs_actions=_MANAGE,
    summary="Show a webhook and its state",
    reply=WebhookView,
)
def show_webhook(call: RestCall) -> None:
    call.answer_with(lambda: _view(call, _webhook(call)))


@route(
    "PUT",
    "webhooks/{webhook}",
    permission="manage",
    scope="body",
    sqs_actions=_MANAGE,
    summary="Declare a webhook",
    request=WebhookChange,
    reply=WebhookView,
    status=(200, 201),
)
def put_webhook(call: RestCall) -> None:
    """An existing webhook is replaced. It keeps its secrets unless a secret is given, and stays disabled if
    it was. The reply to a new one shows the secret that was made for it, this once."""
    body = call.body
    name = _name(call)
    if (body.queue is None) == (body.events is None):
        raise InvalidSetting("give one of queue and events")
    _require_source(call, body)

    def work() -> Declared:
        service = _service(call)
        known = service.store.find(name)
        if known is not None and not _may_manage(call, known):
            raise Problem("name_taken", f"webhook {call.args[0][:100]!r} belongs to a queue of others")
        return declare_webhook(service, name, _fields(call, body))

    _change(call, work)


def _fields(call: RestCall, body: WebhookChange) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "url": body.url,
        "queue": None if body.queue is None else call.qualified(body.queue),
        "types": body.types,
        "attributes": read_attributes(body.attributes, call.sent.is_json),
        "batch": body.batch,
        "headers": body.headers,
        "concurrency": body.concurrency,
        "rate": body.rate,
        "timeout_ms": span_ms(body.timeout, "timeout"),
        "failures": body.failures,
        "max_attempts": body.max_attempts,
        "declared_by": "" if call.context.guard.is_open else call.principal.user,
    }
    if body.mode is not None:
        fields["mode"] = body.mode
    if body.secret is not None:
        fields["secret"] = body.secret
    if body.events is not None:
        selected = msgspec.structs.asdict(body.events)
        selected["queues"] = [call.qualified(each) for each in body.events.queues]
        fields["events"] = selected
    return fields


def _change(call: RestCall, work: Any) -> None:
    """Run `work`, which returns `Declared`, in a thread, and answer with the webhook when it is on disk."""

    def safely() -> Declared:
        declared: Declared = work()
        call.broker.sync()
        return declared

    def answer(declared: Declared) -> None:
        call.answer(_view(call, declared.webhook, declared.secret), 201 if declared.is_new else 200)

    call.work(safely, answer)


@route(
    "DELETE",
    "webhooks/{webhook}",
    permission="manage",
    scope="webhook",
    sqs_actions=_MANAGE,
    summary="Delete a webhook with its delivery log",
    reply=WebhookId,
)
def delete_webhook(call: RestCall) -> None:
    def work() -> WebhookId:
        service = _service(call)
        service.store.delete(_webhook(call).name)
        service.changed()
        return WebhookId(id=call.args[0])

    call.change(work)


@route(
    "POST",
    "webhooks/{webhook}/enable",
    permission="manage",
    scope="webhook",
    sqs_actions=_MANAGE,
    summary="Enable a webhook",
    reply=WebhookView,
)
def enable_webhook(call: RestCall) -> None:
    _change(call, lambda: Declared(_service(call).enable(_webhook(call).name), False, None))


@route(
    "POST",
    "webhooks/{webhook}/disable",
    permission="manage",
    scope="webhook",
    sqs_actions=_MANAGE,
    summary="Disable a webhook: nothing is sent until it is enabled",
    request=Disabling,
    reply=WebhookView,
)
def disable_webhook(call: RestCall) -> None:
    """Running requests are answered first. Messages stay in the queue, events in the history."""
    reason = call.body.reason or f"disabled by {call.principal.user}"
    _change(call, lambda: Declared(_service(call).disable(_webhook(call).name, reason), False, None))


@route(
    "POST",
    "webhooks/{webhook}/secrets",
    permission="manage",
    scope="webhook",
    sqs_actions=_MANAGE,
    summary="Rotate the secret of a webhook",
    request=NewSecret,
    reply=WebhookView,
)
def rotate_webhook_secret(call: RestCall) -> None:
    """The reply shows the secret that was made, this once. Until the older ones expire, every request has a
    signature for each."""
    body = call.body
    keep_ms = span_ms(body.keep, "keep")
    _change(call, lambda: rotate_secret(_service(call), _webhook(call).name, body.secret, keep_ms))


# -- what it does -------------------------------------------------------------------------------


@route(
    "GET",
    "webhooks/{webhook}/deliveries",
    permission="manage",
    scope="webhook",
    sqs_actions=_MANAGE,
    summary="Show the delivery log of a webhook: its last attempts",
    reply=AttemptList,
    query=AttemptQuery,
)
def list_deliveries(call: RestCall) -> None:
    """Attempts are kept for a week, the last 2,000 at most; of a busy webhook not all of them."""
    query = call.query
    service = _service(call)
    unstored = service.take_parts()

    def work() -> AttemptList:
        service.store_parts(unstored)
        parts = stored_parts(call.broker.kv, _webhook(call).name)
        shown = [
            each
            for part in parts
            for each in part.attempts
            if query.outcome is None or each.outcome == query.outcome
        ]
        shown.reverse()  # attempts of the same millisecond in order too
        shown.sort(key=lambda each: -each.time_ms)
        return AttemptList(
            deliveries=[_attempt_view(each) for each in shown[: query.limit]],
            skipped=sum(part.skipped for part in parts),
        )

    call.answer_with(work)


@route(
    "POST",
    "webhooks/{webhook}/test",
    permission="manage",
    scope="webhook",
    sqs_actions=_MANAGE,
    summary="Send a sample to the endpoint of a webhook",
    reply=AttemptView,
)
def test_webhook(call: RestCall) -> None:
    """A signed request of the type openq.test, also if the webhook is disabled. The reply says what the
    endpoint answered."""

    def found(webhook: Webhook) -> None:
        def answered(attempt: Attempt) -> None:
            if not call.request.gone:
                call.answer(_attempt_view(attempt))

        send_sample(_service(call), webhook, answered)

    call.work(lambda: _webhook(call), found)


@route(
    "POST",
    "webhooks/{webhook}/replay",
    permission="manage",
    scope="webhook",
    sqs_actions=("ReceiveMessage", *_MANAGE),
    summary="Send past messages of the queue to the endpoint again",
    request=WebhookReplay,
    reply=TaskView,
    status=(202,),
)
def replay_webhook(call: RestCall) -> None:
    """By time or by id, as far as history is kept, oldest first. The queue is not changed. The task fails if
    a message is not accepted in five attempts."""
    body = call.body
    if body.ids is None and body.since is None:
        raise InvalidSetting("a replay needs ids, or since: the time of the oldest message")
    span = HistoryRange(
        since_ms=0 if body.since is None else moment_ms(body.since, "since"),
        until_ms=None if body.until is None else moment_ms(body.until, "until"),
        limit=PAGE,
        max_bytes=PAGE_BYTES,
    )
    rate = rate_text(body.rate, "rate")
    ids = None if body.ids is None else set(body.ids)

    def found(webhook: Webhook) -> None:
        if webhook.queue is None:
            raise InvalidSetting("events are not replayed: delete the webhook and declare it again")
        queue = call.short_name(webhook.queue)
        call.require("receive", queue)

        def work(task: LongOperation) -> int:
            return Replay(_service(call), webhook, span, ids, rate, task.progress, task.cancelling).run()

        task = call.context.tasks.start(
            "webhook-replay",
            call.account,
            queue,
            work,
            total=None if ids is None else len(ids),
            details={"webhook": call.args[0], "since": body.since, "until": body.until},
        )
        path = call.request.path
        location = f"Location: {path[: path.index('/webhooks/')]}/tasks/{task.id}\r\n"
        call.answer(task_view(task), 202, location.encode())

    call.work(lambda: _webhook(call), found)
