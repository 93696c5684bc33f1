"""The queue actions of SQS: create, delete, purge, list, attributes, tags, permissions.

An action is a function of the call and its typed request. It acts at once and returns the reply, or None
where SQS has no reply; the handler sends it when the change is on disk.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..auth import policy
from ..auth.errors import InvalidAccessPolicy
from ..errors import QueueNotFound
from ..model import QueueSettings
from ..names import qualified_name, split_name
from . import errors, limits, moves, queue_attributes
from . import requests as sqs
from .call import SqsCall, SqsQueue
from .errors import SqsError
from .limits import SqsLimits, limits_of, server_limits
from .message_attributes import check_queue_name, is_valid_queue_name
from .moves import dead_letter_sources

PAGE = 1_000

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_ACCOUNT = re.compile(r"[0-9]{12}", re.ASCII)
# Actions that can be allowed to other accounts; the others are the owner's.
SHARED_ACTIONS = frozenset(
    {
        "*",
        "ChangeMessageVisibility",
        "DeleteMessage",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
        "ReceiveMessage",
        "SendMessage",
    }
)
_BATCHES = frozenset({"ChangeMessageVisibilityBatch", "DeleteMessageBatch", "SendMessageBatch"})


# -- create and delete ------------------------------------------------------------------------


def create_queue(call: SqsCall, request: sqs.CreateQueue) -> sqs.SqsReply:
    attributes = request.attributes or {}
    tags = request.tags or {}
    is_fifo = attributes.get("FifoQueue", "").lower() == "true"
    check_queue_name(request.queue_name, is_fifo)
    queue_key = call.queue_key(request.queue_name)
    broker = call.context.broker
    try:
        present = broker.get_queue(queue_key).settings
    except QueueNotFound:
        present = None
    if present is not None:
        if is_fifo and not present.fifo:  # created by another protocol, with the suffix only
            raise errors.queue_name_exists("FifoQueue")
        allowed = limits_of(present, call.context.config)
        other = queue_attributes.differing_attribute(call, queue_key, present, attributes, allowed)
        if other is not None:
            raise errors.queue_name_exists(other)
        return sqs.CreateQueueReply(queue_url=call.url_of(queue_key))
    new = QueueSettings(fifo=is_fifo)
    if tags:
        new = _with_tags(request.queue_name, new, tags, server_limits(call.context.config))
    allowed = limits_of(new, call.context.config)
    new = queue_attributes.with_attributes(call, queue_key, new, attributes, allowed, is_new=True)
    recent = call.resolver.deleted
    if recent.within(queue_key, call.now_ms, allowed.reuse_name_s):
        raise errors.queue_deleted_recently()
    recent.forget(queue_key)
    broker.declare(queue_key, new)
    return sqs.CreateQueueReply(queue_url=call.url_of(queue_key))


def delete_queue(call: SqsCall, request: sqs.DeleteQueue) -> None:
    queue = call.queue
    call.context.broker.delete(queue.queue_key)
    call.resolver.purged.forget(queue.queue_key)
    if queue.limits.reuse_name_s:
        recent = call.resolver.deleted
        recent.add(queue.queue_key, call.now_ms, queue.limits.reuse_name_s)


def purge_queue(call: SqsCall, request: sqs.PurgeQueue) -> None:
    queue = call.queue
    recent = call.resolver.purged
    now_ms, every_s = call.now_ms, queue.limits.purge_every_s
    if recent.within(queue.queue_key, now_ms, every_s):
        raise errors.purge_queue_in_progress(queue.name)
    call.context.broker.purge(queue.queue_key)
    if every_s:
        recent.add(queue.queue_key, now_ms, every_s)


# -- list -------------------------------------------------------------------------------------


def get_queue_url(call: SqsCall, request: sqs.GetQueueUrl) -> sqs.SqsReply:
    queue_key = call.queue_key(request.queue_name, request.queue_owner_aws_account_id or None)
    if not is_valid_queue_name(request.queue_name):
        raise errors.queue_does_not_exist()
    try:
        call.resolver.find(queue_key)
    except SqsError:
        call.resolver.hint_region(queue_key, call.region_key)
        raise
    return sqs.GetQueueUrlReply(queue_url=call.url_of(queue_key))


def list_queues(call: SqsCall, request: sqs.ListQueues) -> sqs.SqsReply:
    prefix = request.queue_name_prefix or ""
    names = [name for name in _named(call.context.broker.queues(), call.namespace) if name.startswith(prefix)]
    page, token = _page(names, request.next_token, request.max_results)
    urls = [call.url_of(call.queue_key(name)) for name in page]
    return sqs.ListQueuesReply(queue_urls=urls or None, next_token=token)


def list_dead_letter_source_queues(call: SqsCall, request: sqs.ListDeadLetterSourceQueues) -> sqs.SqsReply:
    queue = call.queue
    names = _named(dead_letter_sources(call.context.broker, queue.queue_key), queue.namespace)
    page, token = _page(names, request.next_token, request.max_results)
    urls = [call.url_of(qualified_name(queue.namespace, name)) for name in page]
    return sqs.ListDeadLetterSourceQueuesReply(queue_urls=urls, next_token=token)


def _named(queues: Iterable[str], namespace: str) -> list[str]:
    """The queues of one account and region that SQS can name, by their names there."""
    return [
        name
        for queue_key in queues
        if (place := split_name(queue_key))[0] == namespace
        and is_valid_queue_name(name := place[1])
        and qualified_name(namespace, name) == queue_key
    ]


def _page(names: Iterable[str], token: str | None, max_results: int | None) -> tuple[list[str], str | None]:
    """One page in the order of names, and where the next begins.

    A token holds the last name of the page, so pages neither repeat nor skip queues when others are created
    or deleted meanwhile. Without MaxResults there is no token, as in AWS.
    """
    if max_results is not None and not 1 <= max_results <= PAGE:
        raise errors.invalid_parameter_value(
            "Value for parameter MaxResults is invalid. "
            f"Reason: MaxResults must be an integer between 1 and {PAGE}."
        )
    after = _read_token(token) if token else ""
    ordered = sorted(name for name in names if name > after)
    limit = max_results or PAGE
    page = ordered[:limit]
    more = max_results is not None and len(ordered) > limit
    return page, urlsafe_b64encode(page[-1].encode()).decode() if more else None


def _read_token(token: str) -> str:
    try:
        name = urlsafe_b64decode(token).decode()
    except (binascii.Error, ValueError):
        name = ""
    if not is_valid_queue_name(name):
        raise errors.invalid_parameter_value("Invalid or expired next token.")
    return name


# -- attributes -------------------------------------------------------------------------------


def get_queue_attributes(call: SqsCall, request: sqs.GetQueueAttributes) -> sqs.SqsReply:
    queue = call.queue
    asked = request.attribute_names or []
    for name in asked:
        if name != "All" and name not in queue_attributes.ATTRIBUTES:
            raise errors.invalid_attribute_name(name)
    if not asked:
        return sqs.GetQueueAttributesReply()
    wanted = frozenset(queue_attributes.ATTRIBUTES if "All" in asked else asked)
    values = queue_attributes.attribute_values(call, queue.queue_key, queue.settings, queue.limits)
    if not wanted.isdisjoint(queue_attributes.COUNTS):
        stats = call.context.broker.stats(queue.queue_key)
        counts = (stats.ready, stats.in_flight, stats.delayed)
        values |= zip(queue_attributes.COUNTS, map(str, counts), strict=True)
    shown = {name: values[name] for name in queue_attributes.ATTRIBUTES if name in wanted and name in values}
    return sqs.GetQueueAttributesReply(attributes=shown or None)


def set_queue_attributes(call: SqsCall, request: sqs.SetQueueAttributes) -> None:
    queue = call.queue
    if not request.attributes:
        raise errors.missing_parameter("Attribute.Name")
    changed = queue_attributes.with_attributes(
        call, queue.queue_key, queue.settings, request.attributes, queue.limits
    )
    _change(call, queue, changed)


def _change(call: SqsCall, queue: SqsQueue, changed: QueueSettings) -> None:
    call.context.broker.declare(
        queue.queue_key, queue_attributes.with_modified_time(changed, call.now_ms), change=True
    )


# -- tags -------------------------------------------------------------------------------------


def tag_queue(call: SqsCall, request: sqs.TagQueue) -> None:
    queue = call.queue
    if not request.tags:
        raise errors.missing_parameter("Tags")
    changed = _with_tags(queue.name, queue.settings, request.tags, queue.limits)
    call.context.broker.declare(queue.queue_key, changed, change=True)


def _with_tags(name: str, old: QueueSettings, tags: Mapping[str, str], allowed: SqsLimits) -> QueueSettings:
    notes = dict(old.notes)
    for key, value in tags.items():
        if not 1 <= len(key) <= 128:
            raise errors.invalid_parameter_value("Tag keys must be between 1 and 128 characters in length.")
        if len(value) > 256:
            raise errors.invalid_parameter_value("Tag values must be between 0 and 256 characters in length.")
        if key.lower().startswith("aws:"):
            raise errors.invalid_parameter_value("Tag keys must not begin with aws:, which AWS reserves.")
        if key == limits.TAG:
            if value not in limits.KINDS:
                choice = ", ".join(limits.KINDS)
                raise errors.invalid_parameter_value(f"The tag {key} must be one of {choice}, not {value!r}.")
            notes[limits.NOTE] = value
        notes[queue_attributes.TAG_PREFIX + key] = value
    if sum(key.startswith(queue_attributes.TAG_PREFIX) for key in notes) > allowed.max_tags:
        raise errors.invalid_parameter_value(f"Too many tags added for queue {name}.")
    return old.with_(notes=notes)


def untag_queue(call: SqsCall, request: sqs.UntagQueue) -> None:
    queue = call.queue
    if not request.tag_keys or not all(1 <= len(key) <= 128 for key in request.tag_keys):
        raise errors.invalid_parameter_value("Tag keys must be between 1 and 128 characters in length.")
    notes = dict(queue.settings.notes)
    for key in request.tag_keys:
        if notes.pop(queue_attributes.TAG_PREFIX + key, None) is not None and key == limits.TAG:
            notes.pop(limits.NOTE, None)
    call.context.broker.declare(queue.queue_key, queue.settings.with_(notes=notes), change=True)


def list_queue_tags(call: SqsCall, request: sqs.ListQueueTags) -> sqs.SqsReply:
    notes = call.queue.settings.notes
    prefix = queue_attributes.TAG_PREFIX
    tags = {key.removeprefix(prefix): value for key, value in notes.items() if key.startswith(prefix)}
    return sqs.ListQueueTagsReply(tags=tags or None)


# -- permissions ------------------------------------------------------------------------------


def add_permission(call: SqsCall, request: sqs.AddPermission) -> None:
    queue = call.queue
    _check_permission(queue, request)
    accounts = list(dict.fromkeys(request.aws_account_ids))
    actions = list(dict.fromkeys(request.actions))
    try:
        text = policy.add_permission(queue.policy, request.label, accounts, actions, queue.arn)
    except policy.LabelExists:
        raise errors.invalid_value(request.label, "Label", "Already exists.") from None
    except InvalidAccessPolicy:  # the policy is full
        maximum = queue.limits.max_statements
        raise queue_attributes.too_many_statements(maximum + 1, queue.limits) from None
    _set_policy(call, queue, text)


def _check_permission(queue: SqsQueue, request: sqs.AddPermission) -> None:
    if not request.actions:
        raise errors.missing_parameter("Actions")
    accounts = request.aws_account_ids
    if not accounts or not all(map(_ACCOUNT.fullmatch, accounts)):
        raise errors.invalid_value(f"[{', '.join(accounts)}]", "PrincipalId", "Unable to verify.")
    count, maximum = len(request.actions), queue.limits.max_permission_actions
    if count > maximum:
        raise errors.over_limit(f"{count} Actions were found, maximum allowed is {maximum}.")
    for action in request.actions:
        if action in SHARED_ACTIONS:
            continue
        known = action in sqs.REQUESTS and action not in _BATCHES
        raise errors.invalid_value(
            f"SQS:{action}",
            "ActionName",
            "Only the queue owner is allowed to invoke this action."
            if known
            else "Please refer to the appropriate WSDL for a list of valid actions.",
        )
    if _LABEL.fullmatch(request.label) is None:
        raise errors.invalid_value(
            request.label,
            "Label",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )


def remove_permission(call: SqsCall, request: sqs.RemovePermission) -> None:
    queue = call.queue
    try:
        text = policy.remove_permission(queue.policy, request.label)
    except policy.LabelNotFound:
        # Both sentences are AWS's: the longer one for a queue that has never had a policy.
        had_policy = queue.policy is not None or queue_attributes.POLICY_REMOVED in queue.settings.notes
        reason = "can't find label." if had_policy else "can't find label on existing policy."
        raise errors.invalid_value(request.label, "Label", reason) from None
    _set_policy(call, queue, text)


def _set_policy(call: SqsCall, queue: SqsQueue, text: str | None) -> None:
    notes = {key: note for key, note in queue.settings.notes.items() if key != policy.POLICY_NOTE}
    if text is None:
        notes[queue_attributes.POLICY_REMOVED] = "true"
    else:
        notes[policy.POLICY_NOTE] = text
    _change(call, queue, queue.settings.with_(notes=notes))


QUEUE_ACTIONS: dict[str, Callable[[SqsCall, Any], sqs.SqsReply | None]] = {
    "AddPermission": add_permission,
    "CancelMessageMoveTask": moves.cancel_message_move_task,
    "CreateQueue": create_queue,
    "DeleteQueue": delete_queue,
    "GetQueueAttributes": get_queue_attributes,
    "GetQueueUrl": get_queue_url,
    "ListDeadLetterSourceQueues": list_dead_letter_source_queues,
    "ListMessageMoveTasks": moves.list_message_move_tasks,
    "ListQueueTags": list_queue_tags,
    "ListQueues": list_queues,
    "PurgeQueue": purge_queue,
    "RemovePermission": remove_permission,
    "SetQueueAttributes": set_queue_attributes,
    "StartMessageMoveTask": moves.start_message_move_task,
    "TagQueue": tag_queue,
    "UntagQueue": untag_queue,
}
