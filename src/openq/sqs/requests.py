"""One typed request and one typed reply per SQS action, for both wire formats.

Attributes are snake_case; `wire_name` gives the spelling on the wire, so the two codecs share these
classes. None is left out of replies. These values cannot be part of a cycle, so the garbage collector
need not track them (`gc=False`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

# AWS treats an empty value of a required parameter as a missing one.
Text = Annotated[str, Meta(min_length=1)]
# The range of AWS; larger numbers are rejected by the decoder.
Integer = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]

_ODD_NAMES = {
    "aws_account_ids": "AWSAccountIds",
    "queue_owner_aws_account_id": "QueueOwnerAWSAccountId",
}


def wire_name(name: str) -> str:
    """`message_body` -> `MessageBody`, `md5_of_body` -> `MD5OfBody`."""
    if name in _ODD_NAMES:
        return _ODD_NAMES[name]
    return "".join("MD5" if word == "md5" else word.capitalize() for word in name.split("_"))


class SqsRequest(msgspec.Struct, rename=wire_name, gc=False, kw_only=True):
    """A request. Unknown members are ignored, as in AWS."""


class SqsReply(msgspec.Struct, rename=wire_name, gc=False, kw_only=True, omit_defaults=True):
    """A reply. Pass None instead of an empty list (`found or None`): it is left out."""


# Values inside requests and replies.


class MessageAttributeValue(msgspec.Struct, rename=wire_name, gc=False, kw_only=True, omit_defaults=True):
    """In requests and replies, for message attributes and message system attributes alike."""

    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None
    data_type: str | None = None  # required; its absence has its own error, see message_attributes.py


AttributeValues = dict[str, MessageAttributeValue]


class SendMessageBatchRequestEntry(SqsRequest):
    id: str
    message_body: str
    delay_seconds: Integer | None = None
    message_attributes: AttributeValues | None = None
    message_system_attributes: AttributeValues | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageBatchResultEntry(SqsReply):
    id: str
    message_id: str
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class DeleteMessageBatchRequestEntry(SqsRequest):
    id: str
    receipt_handle: str


class DeleteMessageBatchResultEntry(SqsReply):
    id: str


class ChangeMessageVisibilityBatchRequestEntry(SqsRequest):
    id: str
    receipt_handle: str
    visibility_timeout: Integer | None = None


class ChangeMessageVisibilityBatchResultEntry(SqsReply):
    id: str


class BatchResultErrorEntry(SqsReply):
    id: str
    sender_fault: bool
    code: str
    message: str | None = None


class Message(SqsReply):
    message_id: str | None = None
    receipt_handle: str | None = None
    md5_of_body: str | None = None
    body: str | None = None
    attributes: dict[str, str] | None = None
    md5_of_message_attributes: str | None = None
    message_attributes: AttributeValues | None = None


class ListMessageMoveTasksResultEntry(SqsReply):
    task_handle: str | None = None
    status: str | None = None
    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int | None = None
    approximate_number_of_messages_to_move: int | None = None
    failure_reason: str | None = None
    started_timestamp: int | None = None


# Messages.


class SendMessage(SqsRequest):
    queue_url: str
    message_body: Text
    delay_seconds: Integer | None = None
    message_attributes: AttributeValues | None = None
    message_system_attributes: AttributeValues | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageReply(SqsReply):
    md5_of_message_body: str | None = None
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    message_id: str | None = None
    sequence_number: str | None = None


class SendMessageBatch(SqsRequest):
    queue_url: str
    entries: list[SendMessageBatchRequestEntry]


class SendMessageBatchReply(SqsReply):
    successful: list[SendMessageBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class ReceiveMessage(SqsRequest):
    queue_url: str
    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: Integer | None = None
    visibility_timeout: Integer | None = None
    wait_time_seconds: Integer | None = None
    receive_request_attempt_id: str | None = None


class ReceiveMessageReply(SqsReply):
    messages: list[Message] | None = None


class DeleteMessage(SqsRequest):
    queue_url: str
    receipt_handle: Text


class DeleteMessageBatch(SqsRequest):
    queue_url: str
    entries: list[DeleteMessageBatchRequestEntry]


class DeleteMessageBatchReply(SqsReply):
    successful: list[DeleteMessageBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class ChangeMessageVisibility(SqsRequest):
    queue_url: str
    receipt_handle: Text
    visibility_timeout: Integer


class ChangeMessageVisibilityBatch(SqsRequest):
    queue_url: str
    entries: list[ChangeMessageVisibilityBatchRequestEntry]


class ChangeMessageVisibilityBatchReply(SqsReply):
    successful: list[ChangeMessageVisibilityBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


# Queues.


class CreateQueue(SqsRequest):
    queue_name: Text
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(default=None, name="tags")


class CreateQueueReply(SqsReply):
    queue_url: str | None = None


class DeleteQueue(SqsRequest):
    queue_url: str


class PurgeQueue(SqsRequest):
    queue_url: str


class GetQueueUrl(SqsRequest):
    queue_name: Text
    queue_owner_aws_account_id: str | None = None


class GetQueueUrlReply(SqsReply):
    queue_url: str | None = None


class ListQueues(SqsRequest):
    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: Integer | None = None


class ListQueuesReply(SqsReply):
    queue_urls: list[str] | None = None
    next_token: str | None = None


class GetQueueAttributes(SqsRequest):
    queue_url: str
    attribute_names: list[str] | None = None


class GetQueueAttributesReply(SqsReply):
    attributes: dict[str, str] | None = None


class SetQueueAttributes(SqsRequest):
    queue_url: str
    attributes: dict[str, str]


class TagQueue(SqsRequest):
    queue_url: str
    tags: dict[str, str]


class UntagQueue(SqsRequest):
    queue_url: str
    tag_keys: list[str]


class ListQueueTags(SqsRequest):
    queue_url: str


class ListQueueTagsReply(SqsReply):
    tags: dict[str, str] | None = None


class AddPermission(SqsRequest):
    queue_url: str
    label: Text
    aws_account_ids: list[str]
    actions: list[str]


class RemovePermission(SqsRequest):
    queue_url: str
    label: Text


# Dead letters.


class ListDeadLetterSourceQueues(SqsRequest):
    queue_url: str
    next_token: str | None = None
    max_results: Integer | None = None


class ListDeadLetterSourceQueuesReply(SqsReply):
    # The one list that is shown even when it is empty, and the one name that begins in lower case.
    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | None = None


class StartMessageMoveTask(SqsRequest):
    source_arn: Text
    destination_arn: str | None = None
    max_number_of_messages_per_second: Integer | None = None


class StartMessageMoveTaskReply(SqsReply):
    task_handle: str | None = None


class CancelMessageMoveTask(SqsRequest):
    task_handle: Text


class CancelMessageMoveTaskReply(SqsReply):
    # Zero is an answer here, so it has no default.
    approximate_number_of_messages_moved: int


class ListMessageMoveTasks(SqsRequest):
    source_arn: Text
    max_results: Integer | None = None


class ListMessageMoveTasksReply(SqsReply):
    results: list[ListMessageMoveTasksResultEntry] | None = None


REQUESTS: dict[str, type[SqsRequest]] = {
    action.__name__: action
    for action in (
        AddPermission,
        CancelMessageMoveTask,
        ChangeMessageVisibility,
        ChangeMessageVisibilityBatch,
        CreateQueue,
        DeleteMessage,
        DeleteMessageBatch,
        DeleteQueue,
        GetQueueAttributes,
        GetQueueUrl,
        ListDeadLetterSourceQueues,
        ListMessageMoveTasks,
        ListQueueTags,
        ListQueues,
        PurgeQueue,
        ReceiveMessage,
        RemovePermission,
        SendMessage,
        SendMessageBatch,
        SetQueueAttributes,
        StartMessageMoveTask,
        TagQueue,
        UntagQueue,
    )
}

# The other actions have no reply (None).
REPLIES: dict[str, type[SqsReply]] = {
    reply.__name__.removesuffix("Reply"): reply
    for reply in (
        CancelMessageMoveTaskReply,
        ChangeMessageVisibilityBatchReply,
        CreateQueueReply,
        DeleteMessageBatchReply,
        GetQueueAttributesReply,
        GetQueueUrlReply,
        ListDeadLetterSourceQueuesReply,
        ListMessageMoveTasksReply,
        ListQueueTagsReply,
        ListQueuesReply,
        ReceiveMessageReply,
        SendMessageBatchReply,
        SendMessageReply,
        StartMessageMoveTaskReply,
    )
}
