"""Message move tasks: redrive of dead letters to their source queues or to another queue, at a chosen rate.

A move is a task of the server: the broker's redrive in a thread, with progress and cancel. It ends with the
process; the messages that were not moved yet are still in the dead-letter queue.
"""

from __future__ import annotations

import binascii
import json
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable

from ..broker.interface import Broker
from ..errors import OpenQError, QueueNotFound
from ..server.context import ServerContext
from ..server.tasks import CANCELLED, DONE, FAILED, RUNNING, LongOperation, RedriveAuthorizer, TooManyTasks
from . import errors
from . import requests as sqs
from .call import SqsCall, SqsQueue
from .errors import SqsError
from .queue_attributes import parse_arn

KIND = "redrive"
MAX_LISTED = 10
_MAX_EXAMINED = 100
_HANDLE_ID = "sqs.task"  # in a task's details: marks those that were started here

_STATUS = {DONE: "COMPLETED", FAILED: "FAILED", CANCELLED: "CANCELLED"}


class MoveFailed(OpenQError):
    """Why a move stopped, as AWS's error code."""

    code = "move_failed"


# -- start ------------------------------------------------------------------------------------


def start_message_move_task(call: SqsCall, request: sqs.StartMessageMoveTask) -> sqs.SqsReply:
    source = _view(call, request.source_arn, "SourceArn")
    target = None
    if request.destination_arn is not None:
        target = _target(call, request.destination_arn)
        if target.region != source.region:  # regions are separate
            raise _not_there("DestinationArn")
    rate, maximum = request.max_number_of_messages_per_second, source.limits.max_move_rate
    if rate is not None and not 1 <= rate <= maximum:
        raise errors.invalid_parameter_value(
            "Value for parameter MaxNumberOfMessagesPerSecond is invalid. "
            f"Reason: You must enter a number that's between 1 and {maximum}."
        )
    if target is not None and target.queue_key == source.queue_key:
        raise errors.invalid_parameter_value("Source queue arn and destination queue arn cannot be the same.")
    if target is not None and target.fifo != source.fifo:
        raise errors.invalid_parameter_value(
            "The source queue and destination queue must be of the same queue type."
        )
    sources = dead_letter_sources(call.context.broker, source.queue_key)
    if not sources and not _has_dead_letters(call.context.broker, source.queue_key):
        raise errors.invalid_parameter_value("Source queue must be configured as a Dead Letter Queue.")
    if any(task.state == RUNNING for task in _tasks(call.context, source.queue_key)):
        raise errors.invalid_parameter_value(
            "There is already a task running. "
            "Only one active task is allowed for a source queue arn at a given time."
        )
    for each in () if target is not None else map(call.resolver.find, sources):
        _check_allowed(call, each, "send", "SendMessage")
    details: dict[str, object] = {
        _HANDLE_ID: str(uuid.uuid4()),
        "source": source.queue_key,
        "from": source.name,
        "to": None if target is None else target.name,
        "target": None if target is None else target.queue_key,
        "rate": rate,
    }
    total = call.context.broker.stats(source.queue_key).ready
    back = RedriveAuthorizer(lambda queue_key: _may_send(call, call.resolver.find(queue_key)))
    work = _work(
        call.context.broker, source.queue_key, None if target is None else target.queue_key, rate, back
    )
    try:
        task = call.context.tasks.start(KIND, source.namespace, source.name, work, total, details)
    except TooManyTasks as error:
        raise errors.request_throttled(str(error)) from None
    return sqs.StartMessageMoveTaskReply(task_handle=_handle_of(task, source.arn))


def _work(
    broker: Broker, source: str, target: str | None, rate: int | None, back: RedriveAuthorizer
) -> Callable[[LongOperation], int]:
    def work(task: LongOperation) -> int:
        try:
            moved = broker.admin.redrive(
                source, target, rate=rate, progress=task.progress, allowed=back.allowed
            )
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


def dead_letter_sources(broker: Broker, queue_key: str) -> list[str]:
    """The queues whose dead letters go to this one after too many receives."""
    found = ((name, broker.find_queue(name)) for name in broker.queues())
    return [
        name
        for name, queue in found
        if queue is not None
        and queue.settings.dead_letter == queue_key
        and queue.settings.max_receives is not None
    ]


def _holds_strays(broker: Broker, source: str) -> bool:
    """Whether the remaining messages have no source queue."""
    known = set(broker.queues())
    return any(
        entry.options is None or not entry.options.deaths or entry.options.deaths[0][0] not in known
        for entry in broker.inspect.peek(source, _MAX_EXAMINED)
    )


def _has_dead_letters(broker: Broker, queue_key: str) -> bool:
    """Whether it was a dead-letter queue of queues that are deleted now."""
    return any(
        entry.options is not None and entry.options.deaths for entry in broker.inspect.peek(queue_key, 1)
    )


def _check_allowed(call: SqsCall, queue: SqsQueue, permission: str, action: str) -> None:
    """The handler authorises the queue of the request; a move also needs its target and sources."""
    if not _may(call, queue, permission, action):
        raise errors.access_to_resource_denied(queue.arn)


def _may_send(call: SqsCall, queue: SqsQueue) -> bool:
    return _may(call, queue, "send", "SendMessage")


def _may(call: SqsCall, queue: SqsQueue, permission: str, action: str) -> bool:
    return call.context.guard.may(
        call.principal,
        permission,
        queue.namespace,
        queue.name,
        policy=queue.policy,
        sqs_action=f"sqs:{action}",
        resource_arn=queue.arn,
        condition_keys=call.condition_keys(queue),
    )


def _target(call: SqsCall, arn: str) -> SqsQueue:
    """Without permission to send, the reply does not reveal whether the target exists, or its type."""
    try:
        target = _view(call, arn, "DestinationArn")
    except SqsError:
        queue_key = call.resolver.key_of_arn(arn)
        if queue_key is not None:
            account, name = call.resolver.split(queue_key)
            if not call.context.guard.may(call.principal, "send", account, name):
                raise errors.access_to_resource_denied(arn) from None
        raise
    _check_allowed(call, target, "send", "SendMessage")
    return target


def _view(call: SqsCall, arn: str, parameter: str) -> SqsQueue:
    if parse_arn(arn) is None:
        raise errors.invalid_parameter_value(
            f"You must use this format to specify the {parameter}: "
            "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        )
    queue_key = call.resolver.key_of_arn(arn)
    try:
        if queue_key is None or arn != call.arn_of(queue_key):
            raise errors.queue_does_not_exist()
        return call.resolver.find(queue_key)
    except SqsError:
        raise _not_there(parameter) from None


def _not_there(parameter: str) -> SqsError:
    return errors.resource_not_found(
        f"The resource that you specified for the {parameter} parameter doesn't exist."
    )


# -- cancel and list --------------------------------------------------------------------------


def cancel_message_move_task(call: SqsCall, request: sqs.CancelMessageMoveTask) -> sqs.SqsReply:
    task_id, arn = _read_handle(request.task_handle)
    source = _view(call, arn, "SourceArn")
    _check_allowed(call, source, "manage", "CancelMessageMoveTask")
    for task in _tasks(call.context, source.queue_key):
        if task.details[_HANDLE_ID] == task_id and _status(task) == "RUNNING" and task.cancel():
            return sqs.CancelMessageMoveTaskReply(approximate_number_of_messages_moved=task.done)
    raise errors.resource_not_found("Task does not exist.")


def list_message_move_tasks(call: SqsCall, request: sqs.ListMessageMoveTasks) -> sqs.SqsReply:
    source = _view(call, request.source_arn, "SourceArn")
    limit = 1 if request.max_results is None else request.max_results
    if not 1 <= limit <= MAX_LISTED:
        raise errors.invalid_parameter_value(
            "Value for parameter MaxResults is invalid. "
            f"Reason: You must enter a number that's between 1 and {MAX_LISTED}."
        )
    newest = _tasks(call.context, source.queue_key)[-limit:][::-1]
    return sqs.ListMessageMoveTasksReply(results=[_shown(call, task, source.arn) for task in newest])


def _tasks(context: ServerContext, source: str) -> list[LongOperation]:
    """The moves out of one queue, the newest last."""
    return [
        task
        for task in context.tasks.all()
        if _HANDLE_ID in task.details and task.details["source"] == source
    ]


def _status(task: LongOperation) -> str:
    # Read once: the task's thread may end it at any moment.
    state = task.state
    if state != RUNNING:
        return _STATUS[state]
    return "CANCELLING" if task.cancelling.is_set() else "RUNNING"


def _shown(call: SqsCall, task: LongOperation, arn: str) -> sqs.ListMessageMoveTasksResultEntry:
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


def _handle_of(task: LongOperation, arn: str) -> str:
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
