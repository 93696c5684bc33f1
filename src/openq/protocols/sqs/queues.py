"""What SQS clients do to queues: create, look, change, list, purge, tag, permit, delete.

Each action is a plain function of the call and its typed request. It acts at once and returns the reply,
or None where SQS answers with nothing; the door holds the reply back until the change is on disk.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import QueueNotFound
from ...model import QueueSettings
from ...names import full_name, split_name
from ...security import policy
from ...security.errors import InvalidPolicy
from . import errors, limits, moves, settings
from . import requests as sqs
from .attributes import check_queue_name, is_valid_queue_name
from .call import Call, View
from .errors import SqsError
from .limits import Limits, limits_of, server_limits

PAGE = 1_000

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_ACCOUNT = re.compile(r"[0-9]{12}", re.ASCII)
# What another account can be allowed to do; the rest is the owner's alone.
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


def create_queue(call: Call, request: sqs.CreateQueue) -> sqs.Reply:
    attributes = request.attributes or {}
    tags = request.tags or {}
    is_fifo = attributes.get("FifoQueue", "").lower() == "true"
    check_queue_name(request.queue_name, is_fifo)
    full = call.full(request.queue_name)
    broker = call.site.broker
    try:
        present = broker.about(full).settings
    except QueueNotFound:
        present = None
    if present is not None:
        if is_fifo and not present.fifo:  # another door gave it the suffix and nothing else
            raise errors.queue_name_exists("FifoQueue")
        allowed = limits_of(present, call.site.config)
        other = settings.difference(call, full, present, attributes, allowed)
        if other is not None:
            raise errors.queue_name_exists(other)
        return sqs.CreateQueueReply(queue_url=call.url_of(full))
    new = QueueSettings(fifo=is_fifo)
    if tags:
        new = _with_tags(request.queue_name, new, tags, server_limits(call.site.config))
    allowed = limits_of(new, call.site.config)
    new = settings.with_attributes(call, full, new, attributes, allowed, is_new=True)
    recent = call.names.deleted
    if recent.within(full, call.now_ms, allowed.reuse_name_s):
        raise errors.queue_deleted_recently()
    recent.forget(full)
    broker.declare(full, new)
    return sqs.CreateQueueReply(queue_url=call.url_of(full))


def delete_queue(call: Call, request: sqs.DeleteQueue) -> None:
    view = call.queue(request.queue_url)
    call.site.broker.delete(view.full)
    call.names.purged.forget(view.full)
    if view.limits.reuse_name_s:
        recent = call.names.deleted
        recent.note(view.full, call.now_ms, view.limits.reuse_name_s)


def purge_queue(call: Call, request: sqs.PurgeQueue) -> None:
    view = call.queue(request.queue_url)
    recent = call.names.purged
    now_ms, every_s = call.now_ms, view.limits.purge_every_s
    if recent.within(view.full, now_ms, every_s):
        raise errors.purge_queue_in_progress(view.name)
    call.site.broker.purge(view.full)
    if every_s:
        recent.note(view.full, now_ms, every_s)


# -- look -------------------------------------------------------------------------------------


def get_queue_url(call: Call, request: sqs.GetQueueUrl) -> sqs.Reply:
    full = call.full(request.queue_name, request.queue_owner_aws_account_id or None)
    if not is_valid_queue_name(request.queue_name):
        raise errors.queue_does_not_exist()
    try:
        call.names.view(full)
    except SqsError:
        call.names.hint_region(full, call.region_key)
        raise
    return sqs.GetQueueUrlReply(queue_url=call.url_of(full))


def list_queues(call: Call, request: sqs.ListQueues) -> sqs.Reply:
    prefix = request.queue_name_prefix or ""
    names = [name for name in _named(call.site.broker.queues(), call.namespace) if name.startswith(prefix)]
    page, token = _page(names, request.next_token, request.max_results)
    urls = [call.url_of(call.full(name)) for name in page]
    return sqs.ListQueuesReply(queue_urls=urls or None, next_token=token)


def list_dead_letter_source_queues(call: Call, request: sqs.ListDeadLetterSourceQueues) -> sqs.Reply:
    view = call.queue(request.queue_url)
    names = _named(call.site.broker.dead_letter_sources(view.full), view.namespace)
    page, token = _page(names, request.next_token, request.max_results)
    urls = [call.url_of(full_name(view.namespace, name)) for name in page]
    return sqs.ListDeadLetterSourceQueuesReply(queue_urls=urls, next_token=token)


def _named(queues: Iterable[str], namespace: str) -> list[str]:
    """The queues of one account and region that SQS can name, by their names there."""
    return [
        name
        for full in queues
        if (place := split_name(full))[0] == namespace
        and is_valid_queue_name(name := place[1])
        and full_name(namespace, name) == full
    ]


def _page(names: Iterable[str], token: str | None, max_results: int | None) -> tuple[list[str], str | None]:
    """One page in the order of names, and where the next begins.

    A token holds the last name that was shown, so pages neither repeat nor skip a queue when others come
    and go meanwhile. Whoever does not say how many gets no token, as with AWS.
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


def get_queue_attributes(call: Call, request: sqs.GetQueueAttributes) -> sqs.Reply:
    view = call.queue(request.queue_url)
    asked = request.attribute_names or []
    for name in asked:
        if name != "All" and name not in settings.ATTRIBUTES:
            raise errors.invalid_attribute_name(name)
    if not asked:
        return sqs.GetQueueAttributesReply()
    wanted = frozenset(settings.ATTRIBUTES if "All" in asked else asked)
    values = settings.described(call, view.full, view.settings, view.limits)
    if not wanted.isdisjoint(settings.COUNTS):
        stats = call.site.broker.stats(view.full)
        counts = (stats.ready, stats.in_flight, stats.delayed)
        values |= zip(settings.COUNTS, map(str, counts), strict=True)
    shown = {name: values[name] for name in settings.ATTRIBUTES if name in wanted and name in values}
    return sqs.GetQueueAttributesReply(attributes=shown or None)


def set_queue_attributes(call: Call, request: sqs.SetQueueAttributes) -> None:
    view = call.queue(request.queue_url)
    if not request.attributes:
        raise errors.missing_parameter("Attribute.Name")
    changed = settings.with_attributes(call, view.full, view.settings, request.attributes, view.limits)
    _change(call, view, changed)


def _change(call: Call, view: View, changed: QueueSettings) -> None:
    call.site.broker.declare(view.full, settings.modified(changed, call.now_ms), change=True)


# -- tags -------------------------------------------------------------------------------------


def tag_queue(call: Call, request: sqs.TagQueue) -> None:
    view = call.queue(request.queue_url)
    if not request.tags:
        raise errors.missing_parameter("Tags")
    changed = _with_tags(view.name, view.settings, request.tags, view.limits)
    call.site.broker.declare(view.full, changed, change=True)


def _with_tags(name: str, old: QueueSettings, tags: Mapping[str, str], allowed: Limits) -> QueueSettings:
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
        notes[settings.TAG_PREFIX + key] = value
    if sum(key.startswith(settings.TAG_PREFIX) for key in notes) > allowed.max_tags:
        raise errors.invalid_parameter_value(f"Too many tags added for queue {name}.")
    return old.with_(notes=notes)


def untag_queue(call: Call, request: sqs.UntagQueue) -> None:
    view = call.queue(request.queue_url)
    if not request.tag_keys or not all(1 <= len(key) <= 128 for key in request.tag_keys):
        raise errors.invalid_parameter_value("Tag keys must be between 1 and 128 characters in length.")
    notes = dict(view.settings.notes)
    for key in request.tag_keys:
        if notes.pop(settings.TAG_PREFIX + key, None) is not None and key == limits.TAG:
            notes.pop(limits.NOTE, None)
    call.site.broker.declare(view.full, view.settings.with_(notes=notes), change=True)


def list_queue_tags(call: Call, request: sqs.ListQueueTags) -> sqs.Reply:
    notes = call.queue(request.queue_url).settings.notes
    prefix = settings.TAG_PREFIX
    tags = {key.removeprefix(prefix): value for key, value in notes.items() if key.startswith(prefix)}
    return sqs.ListQueueTagsReply(tags=tags or None)


# -- permissions ------------------------------------------------------------------------------


def add_permission(call: Call, request: sqs.AddPermission) -> None:
    view = call.queue(request.queue_url)
    _check_permission(view, request)
    accounts = list(dict.fromkeys(request.aws_account_ids))
    actions = list(dict.fromkeys(request.actions))
    try:
        text = policy.add_permission(view.policy, request.label, accounts, actions, view.arn)
    except policy.LabelExists:
        raise errors.invalid_value(request.label, "Label", "Already exists.") from None
    except InvalidPolicy:  # full
        most = view.limits.max_statements
        raise settings.too_many_statements(most + 1, view.limits) from None
    _set_policy(call, view, text)


def _check_permission(view: View, request: sqs.AddPermission) -> None:
    if not request.actions:
        raise errors.missing_parameter("Actions")
    accounts = request.aws_account_ids
    if not accounts or not all(map(_ACCOUNT.fullmatch, accounts)):
        raise errors.invalid_value(f"[{', '.join(accounts)}]", "PrincipalId", "Unable to verify.")
    count, most = len(request.actions), view.limits.max_permission_actions
    if count > most:
        raise errors.over_limit(f"{count} Actions were found, maximum allowed is {most}.")
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


def remove_permission(call: Call, request: sqs.RemovePermission) -> None:
    view = call.queue(request.queue_url)
    try:
        text = policy.remove_permission(view.policy, request.label)
    except policy.LabelNotFound:
        # Both sentences are AWS's: the longer one for a queue that has never had a policy.
        had_policy = view.policy is not None or settings.POLICY_REMOVED in view.settings.notes
        reason = "can't find label." if had_policy else "can't find label on existing policy."
        raise errors.invalid_value(request.label, "Label", reason) from None
    _set_policy(call, view, text)


def _set_policy(call: Call, view: View, text: str | None) -> None:
    notes = {key: note for key, note in view.settings.notes.items() if key != settings.POLICY}
    if text is None:
        notes[settings.POLICY_REMOVED] = "true"
    else:
        notes[settings.POLICY] = text
    _change(call, view, view.settings.with_(notes=notes))


QUEUE_ACTIONS: dict[str, Callable[[Call, Any], sqs.Reply | None]] = {
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
