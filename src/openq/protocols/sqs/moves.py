"""Message move tasks: dead letters back to where they came from, or elsewhere, at a chosen rate.

A move is a task of the server like any other: the broker's redrive in a thread of its own, with progress
and cancel. It ends with the process; what was moved by then stays moved, and the rest is still in the
dead-letter queue for the next one.
"""

from __future__ import annotations

import binascii
import json
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable

from ...broker.full import FullBroker
from ...errors import OpenQError, QueueNotFound
from ..site import Site
from ..tasks import CANCELLED, DONE, FAILED, RUNNING, Task, TooManyTasks, WayBack
from . import errors
from . import requests as sqs
from .call import Call, View
from .errors import SqsError
from .settings import parse_arn

KIND = "redrive"
MAX_LISTED = 10
_LOOKED_AT = 100
_HANDLE_ID = "sqs.task"  # in a task's details: marks those that were started here

_STATUS = {DONE: "COMPLETED", FAILED: "FAILED", CANCELLED: "CANCELLED"}


class MoveFailed(OpenQError):
    """Why a move stopped, in AWS's own word."""

    code = "move_failed"


# -- start ------------------------------------------------------------------------------------


def start_message_move_task(call: Call, request: sqs.StartMessageMoveTask) -> sqs.Reply:
    source = _view(call, request.source_arn, "SourceArn")
    target = None
    if request.destination_arn is not None:
        target = _target(call, request.destination_arn)
        if target.region != source.region:  # one region knows nothing of another's queues
            raise _not_there("DestinationArn")
    rate, most = request.max_number_of_messages_per_second, source.limits.max_move_rate
    if rate is not None and not 1 <= rate <= most:
        raise errors.invalid_parameter_value(
            "Value for parameter MaxNumberOfMessagesPerSecond is invalid. "
            f"Reason: You must enter a number that's between 1 and {most}."
        )
    if target is not None and target.full == source.full:
        raise errors.invalid_parameter_value("Source queue arn and destination queue arn cannot be the same.")
    if target is not None and target.fifo != source.fifo:
        raise errors.invalid_parameter_value(
            "The source queue and destination queue must be of the same queue type."
        )
    sources = call.site.broker.dead_letter_sources(source.full)
    if not sources and not _has_dead_letters(call.site.broker, source.full):
        raise errors.invalid_parameter_value("Source queue must be configured as a Dead Letter Queue.")
    if any(task.state == RUNNING for task in _tasks(call.site, source.full)):
        raise errors.invalid_parameter_value(
            "There is already a task running. "
            "Only one active task is allowed for a source queue arn at a given time."
        )
    for each in () if target is not None else map(call.names.view, sources):
        _check_allowed(call, each, "send", "SendMessage")
    details: dict[str, object] = {
        _HANDLE_ID: str(uuid.uuid4()),
        "source": source.full,
        "from": source.name,
        "to": None if target is None else target.name,
        "target": None if target is None else target.full,
        "rate": rate,
    }
    total = call.site.broker.stats(source.full).ready
    back = WayBack(lambda full: _may_send(call, call.names.view(full)))
    work = _work(call.site.broker, source.full, None if target is None else target.full, rate, back)
    try:
        task = call.site.tasks.start(KIND, source.namespace, source.name, work, total, details)
    except TooManyTasks as error:
        raise errors.request_throttled(str(error)) from None
    return sqs.StartMessageMoveTaskReply(task_handle=_handle_of(task, source.arn))


def _work(
    broker: FullBroker, source: str, target: str | None, rate: int | None, back: WayBack
) -> Callable[[Task], int]:
    def work(task: Task) -> int:
        try:
            moved = broker.redrive(source, target, rate=rate, progress=task.progress, allowed=back.allowed)
            is_stuck = target is None and not task.cancelling.is_set() and _holds_strays(broker, source)
        except QueueNotFound:
            raise MoveFailed("AWS.SimpleQueueService.NonExistentQueue") from None
        if back.refused and not task.cancelling.is_set():
            task.progress(moved)
            raise MoveFailed("AccessDenied")
        if is_stuck:
            task.progress(moved)
            raise MoveFailed("CouldNotDetermineMessageSource")
        return moved

    return work


def _holds_strays(broker: FullBroker, source: str) -> bool:
    """Whether what is left in the queue has nowhere to go back to."""
    known = set(broker.queues())
    return any(
        entry.extra is None or not entry.extra.deaths or entry.extra.deaths[0][0] not in known
        for entry in broker.peek(source, _LOOKED_AT)
    )


def _has_dead_letters(broker: FullBroker, full: str) -> bool:
    """It was somebody's dead-letter queue while those lasted."""
    return any(entry.extra is not None and entry.extra.deaths for entry in broker.peek(full, 1))


def _check_allowed(call: Call, view: View, permission: str, action: str) -> None:
    """The door asks about the queue that a request names; a move also touches others."""
    if not _may(call, view, permission, action):
        raise errors.access_to_resource_denied(view.arn)


def _may_send(call: Call, view: View) -> bool:
    return _may(call, view, "send", "SendMessage")


def _may(call: Call, view: View, permission: str, action: str) -> bool:
    return call.site.guard.may(
        call.principal,
        permission,
        view.namespace,
        view.name,
        policy=view.policy,
        sqs_action=f"sqs:{action}",
        resource_arn=view.arn,
        context=call.context(view),
    )


def _target(call: Call, arn: str) -> View:
    """Whoever may not send there does not learn whether it exists, or of which type it is."""
    try:
        target = _view(call, arn, "DestinationArn")
    except SqsError:
        full = call.names.full_of_arn(arn)
        if full is not None:
            account, name = call.names.split(full)
            if not call.site.guard.may(call.principal, "send", account, name):
                raise errors.access_to_resource_denied(arn) from None
        raise
    _check_allowed(call, target, "send", "SendMessage")
    return target


def _view(call: Call, arn: str, parameter: str) -> View:
    if parse_arn(arn) is None:
        raise errors.invalid_parameter_value(
            f"You must use this format to specify the {parameter}: "
            "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        )
    full = call.names.full_of_arn(arn)
    try:
        if full is None or arn != call.arn_of(full):
            raise errors.queue_does_not_exist()
        return call.names.view(full)
    except SqsError:
        raise _not_there(parameter) from None


def _not_there(parameter: str) -> SqsError:
    return errors.resource_not_found(
        f"The resource that you specified for the {parameter} parameter doesn't exist."
    )


# -- cancel and list --------------------------------------------------------------------------


def cancel_message_move_task(call: Call, request: sqs.CancelMessageMoveTask) -> sqs.Reply:
    task_id, arn = _read_handle(request.task_handle)
    source = _view(call, arn, "SourceArn")
    _check_allowed(call, source, "manage", "CancelMessageMoveTask")
    for task in _tasks(call.site, source.full):
        if task.details[_HANDLE_ID] == task_id and _status(task) == "RUNNING" and task.cancel():
            return sqs.CancelMessageMoveTaskReply(approximate_number_of_messages_moved=task.done)
    raise errors.resource_not_found("Task does not exist.")


def list_message_move_tasks(call: Call, request: sqs.ListMessageMoveTasks) -> sqs.Reply:
    source = _view(call, request.source_arn, "SourceArn")
    limit = 1 if request.max_results is None else request.max_results
    if not 1 <= limit <= MAX_LISTED:
        raise errors.invalid_parameter_value(
            "Value for parameter MaxResults is invalid. "
            f"Reason: You must enter a number that's between 1 and {MAX_LISTED}."
        )
    newest = _tasks(call.site, source.full)[-limit:][::-1]
    return sqs.ListMessageMoveTasksReply(results=[_shown(call, task, source.arn) for task in newest])


def _tasks(site: Site, source: str) -> list[Task]:
    """The moves out of one queue, the newest last."""
    return [
        task for task in site.tasks.all() if _HANDLE_ID in task.details and task.details["source"] == source
    ]


def _status(task: Task) -> str:
    # Read once: the task's thread may end it at any moment.
    state = task.state
    if state != RUNNING:
        return _STATUS[state]
    return "CANCELLING" if task.cancelling.is_set() else "RUNNING"


def _shown(call: Call, task: Task, arn: str) -> sqs.ListMessageMoveTasksResultEntry:
    status = _status(task)
    target, rate = task.details["target"], task.details["rate"]
    return sqs.ListMessageMoveTasksResultEntry(
        task_handle=_handle_of(task, arn) if status == "RUNNING" else None,
        status=status,
        source_arn=arn,
        destination_arn=call.arn_of(target) if isinstance(target, str) else None,
        max_number_of_messages_per_second=rate if isinstance(rate, int) else None,
        approximate_number_of_messages_moved=task.done,
        approximate_number_of_messages_to_move=task.total,
        failure_reason=task.error if status == "FAILED" else None,
        started_timestamp=task.started_ms,
    )


def _handle_of(task: Task, arn: str) -> str:
    """Base64 of JSON, the form that AWS uses too."""
    handle = {"taskId": task.details[_HANDLE_ID], "sourceArn": arn}
    return b64encode(json.dumps(handle, separators=(",", ":")).encode()).decode()


def _read_handle(text: str) -> tuple[str, str]:
    try:
        handle = json.loads(b64decode(text, validate=True))
        task_id, arn = handle["taskId"], handle["sourceArn"]
    except (binascii.Error, ValueError, TypeError, KeyError, RecursionError):
        task_id = arn = None
    if not isinstance(task_id, str) or not isinstance(arn, str) or parse_arn(arn) is None:
        raise errors.invalid_parameter_value("Value for parameter TaskHandle is invalid.")
    return task_id, arn
