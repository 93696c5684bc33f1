"""One typed request and one typed reply per SQS action, whatever the wire format.

Attributes are snake_case; `wire_name` gives the spelling on the wire, so the two codecs share these
classes. A reply's None is left out on the wire. None of these values can be part of a cycle, which is
why the garbage collector need not look at them (`gc=False`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

# AWS treats an empty value of a required parameter as a missing one.
Text = Annotated[str, Meta(min_length=1)]
# As wide as AWS's own; what is larger is refused before anybody computes with it.
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


class Request(msgspec.Struct, rename=wire_name, gc=False, kw_only=True):
    """What a client asks for. Members that an action does not know are ignored, as AWS does."""


class Reply(msgspec.Struct, rename=wire_name, gc=False, kw_only=True, omit_defaults=True):
    """What a client gets. An empty list is not shown either: pass None instead (`found or None`)."""


# Values inside requests and replies.


class MessageAttributeValue(msgspec.Struct, rename=wire_name, gc=False, kw_only=True, omit_defaults=True):
    """Travels both ways, and serves message system attributes too: AWS gives both the same members."""

    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None
    data_type: str | None = None  # required, but its absence has an error of its own: see attributes.py


AttributeValues = dict[str, MessageAttributeValue]


class SendMessageBatchRequestEntry(Request):
    id: str
    message_body: str
    delay_seconds: Integer | None = None
    message_attributes: AttributeValues | None = None
    message_system_attributes: AttributeValues | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageBatchResultEntry(Reply):
    id: str
    message_id: str
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class DeleteMessageBatchRequestEntry(Request):
    id: str
    receipt_handle: str


class DeleteMessageBatchResultEntry(Reply):
    id: str


class ChangeMessageVisibilityBatchRequestEntry(Request):
    id: str
    receipt_handle: str
    visibility_timeout: Integer | None = None


class ChangeMessageVisibilityBatchResultEntry(Reply):
    id: str


class BatchResultErrorEntry(Reply):
    id: str
    sender_fault: bool
    code: str
    message: str | None = None


class Message(Reply):
    message_id: str | None = None
    receipt_handle: str | None = None
    md5_of_body: str | None = None
    body: str | None = None
    attributes: dict[str, str] | None = None
    md5_of_message_attributes: str | None = None
    message_attributes: AttributeValues | None = None


class ListMessageMoveTasksResultEntry(Reply):
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


class SendMessage(Request):
    queue_url: str
    message_body: Text
    delay_seconds: Integer | None = None
    message_attributes: AttributeValues | None = None
    message_system_attributes: AttributeValues | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageReply(Reply):
    md5_of_message_body: str | None = None
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    message_id: str | None = None
    sequence_number: str | None = None


class SendMessageBatch(Request):
    queue_url: str
    entries: list[SendMessageBatchRequestEntry]


class SendMessageBatchReply(Reply):
    successful: list[SendMessageBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class ReceiveMessage(Request):
    queue_url: str
    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: Integer | None = None
    visibility_timeout: Integer | None = None
    wait_time_seconds: Integer | None = None
    receive_request_attempt_id: str | None = None


class ReceiveMessageReply(Reply):
    messages: list[Message] | None = None


class DeleteMessage(Request):
    queue_url: str
    receipt_handle: Text


class DeleteMessageBatch(Request):
    queue_url: str
    entries: list[DeleteMessageBatchRequestEntry]


class DeleteMessageBatchReply(Reply):
    successful: list[DeleteMessageBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class ChangeMessageVisibility(Request):
    queue_url: str
    receipt_handle: Text
    visibility_timeout: Integer


class ChangeMessageVisibilityBatch(Request):
    queue_url: str
    entries: list[ChangeMessageVisibilityBatchRequestEntry]


class ChangeMessageVisibilityBatchReply(Reply):
    successful: list[ChangeMessageVisibilityBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


# Queues.


class CreateQueue(Request):
    queue_name: Text
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(default=None, name="tags")


class CreateQueueReply(Reply):
    queue_url: str | None = None


class DeleteQueue(Request):
    queue_url: str


class PurgeQueue(Request):
    queue_url: str


class GetQueueUrl(Request):
    queue_name: Text
    queue_owner_aws_account_id: str | None = None


class GetQueueUrlReply(Reply):
    queue_url: str | None = None


class ListQueues(Request):
    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: Integer | None = None


class ListQueuesReply(Reply):
    queue_urls: list[str] | None = None
    next_token: str | None = None


class GetQueueAttributes(Request):
    queue_url: str
    attribute_names: list[str] | None = None


class GetQueueAttributesReply(Reply):
    attributes: dict[str, str] | None = None


class SetQueueAttributes(Request):
    queue_url: str
    attributes: dict[str, str]


class TagQueue(Request):
    queue_url: str
    tags: dict[str, str]


class UntagQueue(Request):
    queue_url: str
    tag_keys: list[str]


class ListQueueTags(Request):
    queue_url: str


class ListQueueTagsReply(Reply):
    tags: dict[str, str] | None = None


class AddPermission(Request):
    queue_url: str
    label: Text
    aws_account_ids: list[str]
    actions: list[str]


class RemovePermission(Request):
    queue_url: str
    label: Text


# Dead letters.


class ListDeadLetterSourceQueues(Request):
    queue_url: str
    next_token: str | None = None
    max_results: Integer | None = None


class ListDeadLetterSourceQueuesReply(Reply):
    # The one list that is shown even when it is empty, and the one name that begins in lower case.
    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | None = None


class StartMessageMoveTask(Request):
    source_arn: Text
    destination_arn: str | None = None
    max_number_of_messages_per_second: Integer | None = None


class StartMessageMoveTaskReply(Reply):
    task_handle: str | None = None


class CancelMessageMoveTask(Request):
    task_handle: Text


class CancelMessageMoveTaskReply(Reply):
    # Zero is an answer here, so it has no default.
    approximate_number_of_messages_moved: int


class ListMessageMoveTasks(Request):
    source_arn: Text
    max_results: Integer | None = None


class ListMessageMoveTasksReply(Reply):
    results: list[ListMessageMoveTasksResultEntry] | None = None


REQUESTS: dict[str, type[Request]] = {
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

# The other actions answer with nothing (None).
REPLIES: dict[str, type[Reply]] = {
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
