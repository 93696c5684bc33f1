"""Queue attributes of SQS <-> `QueueSettings`.

Attributes that the engine knows are fields of `QueueSettings`; the others are notes of the queue with the
prefix `sqs.`. Queues of other protocols have no notes: every attribute has a default, and settings that SQS
cannot express are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..auth import policy, policy_document
from ..auth.errors import InvalidAccessPolicy
from ..errors import QueueNotFound
from ..model import QueueSettings
from ..names import qualified_name, split_name
from . import errors
from .errors import SqsError
from .limits import SqsLimits

if TYPE_CHECKING:
    from .call import SqsCall  # imports this module

PREFIX = "sqs."
TAG_PREFIX = PREFIX + "tag."
POLICY_REMOVED = PREFIX + "PolicyRemoved"  # its last label was removed
_REDRIVE = PREFIX + "RedrivePolicy"
_REDRIVE_ALLOW = PREFIX + "RedriveAllowPolicy"
_SIZE = PREFIX + "MaximumMessageSize"
_WAIT = PREFIX + "ReceiveMessageWaitTimeSeconds"
_SCOPE = PREFIX + "DeduplicationScope"  # if it was changed
_THROUGHPUT = PREFIX + "FifoThroughputLimit"
_KMS_KEY = PREFIX + "KmsMasterKeyId"
_KMS_REUSE = PREFIX + "KmsDataKeyReusePeriodSeconds"
_SSE = PREFIX + "SqsManagedSseEnabled"
_MODIFIED = PREFIX + "LastModified"  # seconds

COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
# In the order in which they are shown.
ATTRIBUTES = (
    "QueueArn",
    *COUNTS,
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "VisibilityTimeout",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "DelaySeconds",
    "ReceiveMessageWaitTimeSeconds",
    "Policy",
    "RedrivePolicy",
    "RedriveAllowPolicy",
    "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds",
    "SqsManagedSseEnabled",
    "FifoQueue",
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoThroughputLimit",
)

_INTEGER = re.compile(r"[0-9]{1,15}", re.ASCII)


# -- ARNs -------------------------------------------------------------------------------------


class Arn(NamedTuple):
    service: str
    region: str
    account: str
    name: str


def parse_arn(text: object) -> Arn | None:
    parts = text.split(":") if isinstance(text, str) else []
    if len(parts) != 6 or parts[0] != "arn" or not all(parts):
        return None
    return Arn(*parts[2:])


# -- for the message actions -------------------------------------------------------------


def wait_s(settings: QueueSettings) -> int:
    """The default WaitTimeSeconds."""
    return int(settings.notes.get(_WAIT, "0"))


def max_message_size(settings: QueueSettings, limits: SqsLimits) -> int:
    """Body and message attributes together."""
    text = settings.notes.get(_SIZE)
    if text is not None:
        return int(text)
    return limits.max_body if settings.max_body is None else min(settings.max_body, limits.max_body)


# -- reading attributes -----------------------------------------------------------------------


class _SettingsChange:
    """Settings that are being changed by the attributes of one request."""

    def __init__(
        self, call: SqsCall, queue_key: str, settings: QueueSettings, limits: SqsLimits, is_new: bool
    ) -> None:
        self.call = call
        self.queue_key = queue_key
        self.base = settings
        self.limits = limits
        self.is_new = is_new
        self.fields: dict[str, object] = {}
        self.notes = dict(settings.notes)

    def note(self, key: str, text: str) -> None:
        """Set a note; an empty text removes it."""
        if text:
            self.notes[key] = text
        else:
            self.notes.pop(key, None)

    def done(self) -> QueueSettings:
        return self.base.with_(**self.fields, notes=self.notes)


_Reader = Callable[[_SettingsChange, str], None]


def _integer(attribute: str, text: str, minimum: int, maximum: int) -> int:
    if _INTEGER.fullmatch(text) is None or not minimum <= int(text) <= maximum:
        raise errors.invalid_attribute_value(attribute)
    return int(text)


def _flag(attribute: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise errors.invalid_attribute_value(attribute)
    return text.lower() == "true"


def _read_visibility(draft: _SettingsChange, text: str) -> None:
    seconds = _integer("VisibilityTimeout", text, 0, draft.limits.max_visibility_s)
    draft.fields["visibility_ms"] = seconds * 1000


def _read_delay(draft: _SettingsChange, text: str) -> None:
    draft.fields["delay_ms"] = _integer("DelaySeconds", text, 0, draft.limits.max_delay_s) * 1000


def _read_retention(draft: _SettingsChange, text: str) -> None:
    limits = draft.limits
    seconds = _integer("MessageRetentionPeriod", text, limits.min_retention_s, limits.max_retention_s)
    # A queue that keeps messages longer than SQS allows shows the maximum. Writing the maximum back is no
    # change.
    if seconds < limits.max_retention_s or draft.base.retention_ms < seconds * 1000:
        draft.fields["retention_ms"] = seconds * 1000


def _read_size(draft: _SettingsChange, text: str) -> None:
    size = _integer("MaximumMessageSize", text, draft.limits.min_body, draft.limits.max_body)
    draft.note(_SIZE, str(size))


def _read_wait(draft: _SettingsChange, text: str) -> None:
    draft.note(_WAIT, str(_integer("ReceiveMessageWaitTimeSeconds", text, 0, draft.limits.max_wait_s)))


def _read_policy(draft: _SettingsChange, text: str) -> None:
    if text:
        check_policy(text, draft.limits)
    draft.note(policy.POLICY_NOTE, text)


def check_policy(text: str, limits: SqsLimits) -> None:
    """Raise the SQS error for an invalid or too long policy."""
    try:
        count = len(policy_document.parse(text).statements)
    except InvalidAccessPolicy:
        raise errors.invalid_attribute_value("Policy") from None
    if count > limits.max_statements:
        raise too_many_statements(count, limits)


def too_many_statements(count: int, limits: SqsLimits) -> SqsError:
    return errors.over_limit(
        f"{count} statements were found in the submitted policy, max allowed is {limits.max_statements}"
    )


def _json_map(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _receive_count(value: object) -> int | None:
    """A number, or a number as text: AWS accepts both."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_redrive(draft: _SettingsChange, text: str) -> None:
    draft.note(_REDRIVE, text)
    if not text:
        draft.fields |= {"dead_letter": None, "max_receives": None}
        return
    found = _json_map(text)
    if found is None:
        raise errors.invalid_attribute_value("RedrivePolicy", "Redrive policy is not a valid JSON map.")

    def refused(reason: str) -> SqsError:
        return errors.invalid_value(text, "RedrivePolicy", reason)

    for key in ("maxReceiveCount", "deadLetterTargetArn"):
        if key not in found:
            raise refused(f"Redrive policy does not contain mandatory attribute: {key}.")
    if len(found) > 2:
        raise refused("Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].")
    count = _receive_count(found["maxReceiveCount"])
    maximum = draft.limits.max_receive_count
    if count is None or not 1 <= count <= maximum:
        said = found["maxReceiveCount"]
        raise refused(
            f"Invalid value for maxReceiveCount: {said}, valid values are from 1 to {maximum} both inclusive."
        )
    draft.fields |= {
        "dead_letter": _dead_letter(draft, found["deadLetterTargetArn"], refused),
        "max_receives": count,
    }


def _dead_letter(draft: _SettingsChange, said: object, refused: Callable[[str], SqsError]) -> str:
    call = draft.call
    own = parse_arn(call.arn_of(draft.queue_key))
    assert own is not None
    arn = parse_arn(said)
    if arn is None:
        raise refused("Invalid value for deadLetterTargetArn.")
    if arn.service != "sqs":
        raise refused("Only SQS queues are valid resources for deadLetterTargetArn.")
    if arn.region != own.region:
        raise refused("Dead-letter target must be in same region as the source.")
    if arn.account != own.account:
        raise refused("Dead-letter target owner should be same as the source.")
    queue_key = qualified_name(split_name(draft.queue_key)[0], arn.name)
    # Repeating the current target needs no further permission.
    if queue_key != draft.base.dead_letter and not call.may_fill(queue_key):
        raise errors.access_to_resource_denied(str(said))
    try:
        queue = call.context.broker.get_queue(queue_key)
    except QueueNotFound:
        raise refused("Dead letter target does not exist.") from None
    if queue.settings.fifo != draft.base.fifo:
        raise refused("Dead-letter queue must be same type of queue as the source.")
    if not _may_use(queue.settings, call.arn_of(draft.queue_key)):
        raise refused("The redrive allow policy of the dead-letter queue doesn't permit this source queue.")
    return queue_key


def _may_use(dead_letter: QueueSettings, source_arn: str) -> bool:
    """Whether the RedriveAllowPolicy of the dead-letter queue allows this source."""
    allow = _json_map(dead_letter.notes.get(_REDRIVE_ALLOW, "")) or {}
    match allow.get("redrivePermission", "allowAll"):
        case "allowAll":
            return True
        case "byQueue":
            return source_arn in allow.get("sourceQueueArns", ())
        case _:
            return False


def _read_redrive_allow(draft: _SettingsChange, text: str) -> None:
    if text:
        _check_redrive_allow(text, draft.limits)
    draft.note(_REDRIVE_ALLOW, text)


def _check_redrive_allow(text: str, limits: SqsLimits) -> None:
    found = _json_map(text)
    arns = None if found is None else found.get("sourceQueueArns")
    if (
        found is None
        or found.get("redrivePermission") not in ("allowAll", "denyAll", "byQueue")
        or not found.keys() <= {"redrivePermission", "sourceQueueArns"}
        or not (arns is None or (isinstance(arns, list) and all(isinstance(each, str) for each in arns)))
    ):
        raise errors.invalid_attribute_value(
            "RedriveAllowPolicy",
            "Amazon SQS can't create the redrive allow policy, as it\u2019s in an unsupported format.",
        )
    reason = ""
    if found["redrivePermission"] != "byQueue":
        if arns:
            reason = "To specify one or more source queue ARNs, you must set redrivePermission to byQueue."
    elif not arns:
        reason = (
            "When you specify the byQueue permission type, you must also specify one or more "
            "sourceQueueArns values."
        )
    elif len(arns) > limits.max_source_arns:
        reason = f"The maximum number of source queue ARNs you can specify is {limits.max_source_arns}."
    if reason:
        sentence = f"Amazon SQS can't create the redrive allow policy. {reason}"
        raise errors.invalid_value(text, "RedriveAllowPolicy", sentence)


def _read_kms_key(draft: _SettingsChange, text: str) -> None:
    if len(text) > 2048:
        raise errors.invalid_attribute_value("KmsMasterKeyId")
    draft.note(_KMS_KEY, text)
    if text:
        draft.note(_SSE, "false")


def _read_kms_reuse(draft: _SettingsChange, text: str) -> None:
    draft.note(_KMS_REUSE, str(_integer("KmsDataKeyReusePeriodSeconds", text, 60, 86_400)))


def _read_sse(draft: _SettingsChange, text: str) -> None:
    enabled = _flag("SqsManagedSseEnabled", text)
    draft.note(_SSE, "true" if enabled else "false")
    if enabled:
        draft.note(_KMS_KEY, "")
        draft.note(_KMS_REUSE, "")


def _read_fifo(draft: _SettingsChange, text: str) -> None:
    if draft.is_new:
        if not draft.base.fifo and not draft.limits.lenient:
            raise errors.invalid_attribute_name("FifoQueue")
    elif not draft.base.fifo:
        raise errors.invalid_attribute_name("FifoQueue")
    elif not _flag("FifoQueue", text):
        raise errors.invalid_attribute_value("FifoQueue", "Modifying queue type is not supported.")


def _read_content_dedup(draft: _SettingsChange, text: str) -> None:
    if not draft.base.fifo:
        raise errors.invalid_attribute_name("ContentBasedDeduplication")
    draft.fields["dedup_by_content"] = _flag("ContentBasedDeduplication", text)


def _fifo_choice(draft: _SettingsChange, attribute: str, text: str, choices: tuple[str, str]) -> None:
    if not draft.base.fifo:
        raise SqsError(
            "InvalidAttributeName", f"You can specify the {attribute} only when FifoQueue is set to true."
        )
    if text not in choices:
        raise errors.invalid_attribute_value(attribute)


def _read_dedup_scope(draft: _SettingsChange, text: str) -> None:
    _fifo_choice(draft, "DeduplicationScope", text, ("messageGroup", "queue"))
    per_group = text == "messageGroup"
    if draft.is_new:
        draft.fields["dedup_per_group"] = per_group
    else:
        # SQS shows the new scope but keeps deduplicating in the scope of the creation.
        draft.note(_SCOPE, "" if per_group == draft.base.dedup_per_group else text)


def _scope(settings: QueueSettings) -> str:
    return settings.notes.get(_SCOPE) or ("messageGroup" if settings.dedup_per_group else "queue")


def _read_throughput(draft: _SettingsChange, text: str) -> None:
    _fifo_choice(draft, "FifoThroughputLimit", text, ("perQueue", "perMessageGroupId"))
    draft.note(_THROUGHPUT, text)


_READERS: dict[str, _Reader] = {
    "VisibilityTimeout": _read_visibility,
    "MaximumMessageSize": _read_size,
    "MessageRetentionPeriod": _read_retention,
    "DelaySeconds": _read_delay,
    "ReceiveMessageWaitTimeSeconds": _read_wait,
    "Policy": _read_policy,
    "RedrivePolicy": _read_redrive,
    "RedriveAllowPolicy": _read_redrive_allow,
    "KmsMasterKeyId": _read_kms_key,
    "KmsDataKeyReusePeriodSeconds": _read_kms_reuse,
    "SqsManagedSseEnabled": _read_sse,
    "FifoQueue": _read_fifo,
    "ContentBasedDeduplication": _read_content_dedup,
    "DeduplicationScope": _read_dedup_scope,
    "FifoThroughputLimit": _read_throughput,
}


def with_attributes(
    call: SqsCall,
    queue_key: str,
    settings: QueueSettings,
    attributes: Mapping[str, str],
    limits: SqsLimits,
    is_new: bool = False,
) -> QueueSettings:
    """The settings with these attributes; raises AWS's error for the first invalid one."""
    if limits.lenient:
        attributes = {name.strip(): value for name, value in attributes.items()}
    for name in attributes:
        if name not in _READERS:
            raise errors.invalid_attribute_name(name)
    if attributes.get("KmsMasterKeyId") and attributes.get("SqsManagedSseEnabled", "").lower() == "true":
        raise SqsError(
            "InvalidAttributeName",
            "You can use one type of server-side encryption (SSE) at one time. "
            "You can either enable KMS SSE or SQS SSE.",
        )
    draft = _SettingsChange(call, queue_key, settings, limits, is_new)
    for name, text in attributes.items():
        _READERS[name](draft, text)
    changed = draft.done()
    if changed.notes.get(_THROUGHPUT) == "perMessageGroupId" and _scope(changed) != "messageGroup":
        raise errors.invalid_attribute_value(
            "FifoThroughputLimit",
            "To set FifoThroughputLimit to perMessageGroupId, the DeduplicationScope must be messageGroup.",
        )
    return changed


def with_modified_time(settings: QueueSettings, now_ms: int) -> QueueSettings:
    """The same settings, changed now."""
    return settings.with_(notes={**settings.notes, _MODIFIED: str(now_ms // 1000)})


# -- showing attributes -----------------------------------------------------------------------


def _seconds(ms: int) -> str:
    """Whole seconds, rounded up: queues of other protocols may have a timeout of half a second."""
    return str(-(-ms // 1000))


def _show_retention(settings: QueueSettings, limits: SqsLimits) -> str:
    """Queues of other protocols may keep messages longer than SQS allows."""
    return _seconds(min(settings.retention_ms, limits.max_retention_s * 1000))


def _show_redrive(call: SqsCall, settings: QueueSettings) -> str | None:
    if settings.dead_letter is None or settings.max_receives is None:
        return None
    arn = call.arn_of(settings.dead_letter)
    shown = {"deadLetterTargetArn": arn, "maxReceiveCount": settings.max_receives}
    said = settings.notes.get(_REDRIVE, "")
    # As it was sent, unless another protocol changed the settings since, or a number came as text.
    return said if _json_map(said) == shown else json.dumps(shown, separators=(",", ":"))


def attribute_values(
    call: SqsCall, queue_key: str, settings: QueueSettings, limits: SqsLimits
) -> dict[str, str]:
    """All attributes except the counts. Attributes without value and default are left out."""
    notes = settings.notes
    created_s = str(call.context.broker.get_queue(queue_key).created_ms // 1000)
    key = notes.get(_KMS_KEY)
    values: dict[str, str | None] = {
        "QueueArn": call.arn_of(queue_key),
        "CreatedTimestamp": created_s,
        "LastModifiedTimestamp": notes.get(_MODIFIED, created_s),
        "VisibilityTimeout": _seconds(settings.visibility_ms),
        "MaximumMessageSize": str(max_message_size(settings, limits)),
        "MessageRetentionPeriod": _show_retention(settings, limits),
        "DelaySeconds": _seconds(settings.delay_ms),
        "ReceiveMessageWaitTimeSeconds": notes.get(_WAIT, "0"),
        "Policy": notes.get(policy.POLICY_NOTE),
        "RedrivePolicy": _show_redrive(call, settings),
        "RedriveAllowPolicy": notes.get(_REDRIVE_ALLOW),
        "KmsMasterKeyId": key,
        "KmsDataKeyReusePeriodSeconds": notes.get(_KMS_REUSE, "300") if key else None,
        "SqsManagedSseEnabled": notes.get(_SSE, "true"),
    }
    if settings.fifo:
        values |= {
            "FifoQueue": "true",
            "ContentBasedDeduplication": "true" if settings.dedup_by_content else "false",
            "DeduplicationScope": _scope(settings),
            "FifoThroughputLimit": notes.get(_THROUGHPUT, "perQueue"),
        }
    return {name: value for name in ATTRIBUTES if (value := values.get(name)) is not None}


def differing_attribute(
    call: SqsCall, queue_key: str, settings: QueueSettings, attributes: Mapping[str, str], limits: SqsLimits
) -> str | None:
    """The first attribute of the request that differs from the queue's."""
    wanted = attribute_values(
        call, queue_key, with_attributes(call, queue_key, settings, attributes, limits, True), limits
    )
    current = attribute_values(call, queue_key, settings, limits)
    for name in attributes:
        if not _same(current.get(name), wanted.get(name)):
            return name
    return None


def _same(one: str | None, other: str | None) -> bool:
    if one == other:
        return True
    # Policies are JSON: spaces and the order of keys do not matter.
    maps = _json_map(one or ""), _json_map(other or "")
    return maps[0] is not None and maps[0] == maps[1]
