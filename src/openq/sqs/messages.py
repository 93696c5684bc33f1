"""The actions on messages: send, receive, delete, change visibility; singly and in batches."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence

from ..errors import MessageNotFoundError, OpenQError, TooManyInFlight, VisibilityTimeoutExpired
from ..model import ENCODING_TEXT, Delivery, Draft, Entry
from ..server import long_polls
from ..trace_context import AMAZON_SYSTEM_ATTRIBUTE
from . import errors
from . import message_attributes as attrs
from . import requests as sqs
from .call import SqsCall, SqsQueue
from .errors import SqsError

ReplyCallback = Callable[["sqs.SqsReply | SqsError | None"], None]

ENCODING = "openq.encoding"  # attribute of a binary body, which is sent as base64
_HEX = frozenset("0123456789abcdef")
ATTEMPT_MS = 300_000  # how long a ReceiveRequestAttemptId is valid
MAX_ATTEMPTS = 1_000
# Bodies in one reply. AWS's maximum, ten messages of 1 MiB, always fits; AMQP messages may be larger.
MAX_ANSWER_BYTES = 16 << 20

# Sequence numbers of SQS have twenty digits from the first one on: this and the position of the message.
FIRST_SEQUENCE = 18_800_000_000_000_000_000

text_md5 = attrs.md5_of_body

# -- receipt handles ----------------------------------------------------------------------------
# The queue, the message and the number of the delivery. A queue that is created again under the same name
# has another number, so old handles are invalid.


def handle_of(number: int, delivery: Delivery) -> str:
    return f"{number:08x}{delivery.entry.seq:016x}{delivery.number:016x}"


def receipt_of(queue: SqsQueue, handle: str) -> tuple[int, int]:
    if len(handle) == 40 and handle.isascii():
        try:
            number, seq, delivery = int(handle[:8], 16), int(handle[8:24], 16), int(handle[24:], 16)
        except ValueError:
            raise errors.receipt_handle_is_invalid(handle) from None
        if number == queue.number:
            return seq, delivery
        raise errors.receipt_handle_of_another_queue(handle)
    raise errors.receipt_handle_is_invalid(handle)


# -- send ---------------------------------------------------------------------------------------


class BatchRejected(Exception):
    """An error of one entry for which SQS rejects the whole batch."""

    def __init__(self, error: SqsError) -> None:
        super().__init__(str(error))
        self.error = error


class PreparedMessage:
    """A checked message, and the digests for the reply."""

    __slots__ = ("attributes_md5", "draft", "size", "system_md5")

    def __init__(self, draft: Draft, size: int, attributes_md5: str | None, system_md5: str | None) -> None:
        self.draft = draft
        self.size = size  # as it counts towards the limits: body and attributes
        self.attributes_md5 = attributes_md5
        self.system_md5 = system_md5


def prepare_message(
    call: SqsCall,
    queue: SqsQueue,
    message: sqs.SendMessage | sqs.SendMessageBatchRequestEntry,
    sender: str | None,
) -> PreparedMessage:
    """Check one message, in the order of SQS."""
    if not message.message_body:
        raise errors.missing_parameter("MessageBody")
    attrs.check_body(message.message_body)
    body = message.message_body.encode()
    draft = Draft(body, ENCODING_TEXT, publisher=sender)
    attributes_md5 = system_md5 = None
    size = len(body)
    if message.message_attributes:
        size += attrs.check_message_attributes(message.message_attributes, queue.limits.max_attributes)
        attributes_md5 = attrs.md5_of(message.message_attributes)
    if message.message_system_attributes:
        attrs.check_system_attributes(message.message_system_attributes)
        system_md5 = attrs.md5_of(message.message_system_attributes)
    system = message.message_system_attributes or attrs.trace_of(call.http.fields.get(attrs.TRACE_FIELD))
    if message.message_attributes or system:
        draft.type, draft.attributes = attrs.to_openq(message.message_attributes, system)
    if message.delay_seconds is not None:
        delay_s = message.delay_seconds
        if not 0 <= delay_s <= queue.limits.max_delay_s:
            raise errors.invalid_value(
                delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {queue.limits.max_delay_s}."
            )
        if queue.fifo and delay_s:
            raise errors.invalid_value(
                delay_s,
                "DelaySeconds",
                "The request include parameter that is not valid for this queue type.",
            )
        if not queue.fifo:
            draft.delay_ms = delay_s * 1000
    group, dedup = message.message_group_id, message.message_deduplication_id
    if group is not None:
        attrs.check_fifo_id(group, "MessageGroupId")
        draft.group = group
    elif queue.fifo and isinstance(message, sqs.SendMessageBatchRequestEntry):
        raise BatchRejected(errors.missing_group_in_batch())
    elif queue.fifo:
        raise BatchRejected(errors.missing_parameter("MessageGroupId"))
    if dedup is not None:
        if not queue.fifo and not queue.limits.lenient:
            raise errors.invalid_value(
                dedup,
                "MessageDeduplicationId",
                "The request include parameter that is not valid for this queue type.",
            )
        attrs.check_fifo_id(dedup, "MessageDeduplicationId")
        draft.dedup = dedup
    elif queue.fifo and not queue.settings.dedup_by_content:
        raise BatchRejected(
            errors.invalid_parameter_value(
                "The queue should either have ContentBasedDeduplication enabled or "
                "MessageDeduplicationId provided explicitly"
            )
        )
    return PreparedMessage(draft, size, attributes_md5, system_md5)


def sequence_number(call: SqsCall, message_id: str) -> str | None:
    """The SequenceNumber of FIFO queues, twenty digits that grow; None if the publisher chose the id."""
    prefix = call.context.broker.storage.id_prefix
    digits = message_id[len(prefix) :]
    # A publisher may have chosen an id that only begins like ours.
    if not message_id.startswith(prefix) or len(digits) != 12 or not set(digits) <= _HEX:
        return None
    return sequence_text(int(digits, 16))


def sequence_text(seq: int) -> str:
    return str(FIRST_SEQUENCE + seq)


def send_message(call: SqsCall, message: sqs.SendMessage, answer: ReplyCallback) -> None:
    queue = call.queue
    try:
        ready = prepare_message(call, queue, message, sender_of(call, queue))
    except BatchRejected as refused:
        raise refused.error from None
    if ready.size > queue.max_bytes:
        raise errors.message_too_long(queue.max_bytes)
    [result] = call.context.broker.publish_many(queue.queue_key, [ready.draft])
    if isinstance(result, OpenQError):
        raise result
    message_id, is_duplicate = result
    call.context.traffic.sqs.published += not is_duplicate
    reply = sqs.SendMessageReply(
        md5_of_message_body=text_md5(ready.draft.body),
        md5_of_message_attributes=ready.attributes_md5,
        md5_of_message_system_attributes=ready.system_md5,
        message_id=message_id,
        sequence_number=sequence_number(call, message_id) if queue.fifo else None,
    )
    answer(reply)


def send_message_batch(call: SqsCall, batch: sqs.SendMessageBatch, answer: ReplyCallback) -> None:
    queue = call.queue
    attrs.check_batch(batch.entries, "SendMessageBatchRequestEntry", queue.limits.max_batch)
    sender = sender_of(call, queue)
    failed: list[sqs.BatchResultErrorEntry] = []
    chosen: list[tuple[sqs.SendMessageBatchRequestEntry, PreparedMessage]] = []
    total = 0
    for entry in batch.entries:
        try:
            ready = prepare_message(call, queue, entry, sender)
            if ready.size > queue.max_bytes:
                raise errors.batch_message_too_long(queue.max_bytes)
        except BatchRejected as refused:
            raise refused.error from None
        except SqsError as error:
            failed.append(batch_error(entry.id, error))
            total += len(entry.message_body.encode("utf-8", "surrogatepass"))
            continue
        total += ready.size
        chosen.append((entry, ready))
    if total > queue.limits.max_batch_bytes:
        raise errors.batch_request_too_long(queue.limits.max_batch_bytes, total)
    successful: list[sqs.SendMessageBatchResultEntry] = []
    results = call.context.broker.publish_many(queue.queue_key, [ready.draft for _, ready in chosen])
    for (entry, ready), result in zip(chosen, results, strict=True):
        if isinstance(result, OpenQError):
            failed.append(batch_error(entry.id, errors.from_openq(result)))
            continue
        call.context.traffic.sqs.published += not result[1]
        successful.append(
            sqs.SendMessageBatchResultEntry(
                id=entry.id,
                message_id=result[0],
                md5_of_message_body=text_md5(ready.draft.body),
                md5_of_message_attributes=ready.attributes_md5,
                md5_of_message_system_attributes=ready.system_md5,
                sequence_number=sequence_number(call, result[0]) if queue.fifo else None,
            )
        )
    answer(sqs.SendMessageBatchReply(successful=successful or None, failed=failed or None))


def sender_of(call: SqsCall, queue: SqsQueue) -> str | None:
    """The SenderId: the account for a root user, as in AWS. None stands for the queue's own account."""
    principal = call.principal
    if not principal.is_root:
        return principal.user
    return None if principal.account == queue.account else principal.account


def batch_error(entry_id: str, error: SqsError) -> sqs.BatchResultErrorEntry:
    return sqs.BatchResultErrorEntry(
        id=entry_id, sender_fault=error.fault == errors.SENDER, code=error.code, message=error.message
    )


def batch_receipt_error(entry_id: str, handle: str, error: SqsError) -> sqs.BatchResultErrorEntry:
    """In a batch, SQS always names an invalid handle."""
    entry = batch_error(entry_id, error)
    if error.name == "ReceiptHandleIsInvalid" and handle not in error.message:
        entry.message = errors.receipt_handle_is_none(handle)
    return entry


# -- receive ------------------------------------------------------------------------------------


class AttributeSelection:
    """The attributes that a receiver requests."""

    __slots__ = ("attributes", "system")

    def __init__(self, system: Sequence[str], attributes: Sequence[str] | None) -> None:
        for name in system:
            if name not in attrs.MESSAGE_SYSTEM_ATTRIBUTES and name not in attrs.OTHER_SYSTEM_ATTRIBUTES:
                raise errors.invalid_attribute_name(name)
        self.system = frozenset(attrs.MESSAGE_SYSTEM_ATTRIBUTES if "All" in system else system)
        self.attributes = attributes


class ReceiveAttempts:
    """ReceiveRequestAttemptId: a repeated receive returns the same messages, if they are unchanged."""

    def __init__(self) -> None:
        # By queue and attempt: the expiry, and (sequence, number, end of the lease) of each delivery. Not the
        # messages: they may be large.
        self._known: dict[tuple[str, str], tuple[int, list[tuple[int, int, int]]]] = {}

    def note(self, queue_key: str, attempt: str, deliveries: list[Delivery], now_ms: int) -> None:
        if len(self._known) >= MAX_ATTEMPTS:
            self._known = {key: value for key, value in self._known.items() if value[0] > now_ms}
            if len(self._known) >= MAX_ATTEMPTS:
                self._known.clear()
        self._known[queue_key, attempt] = (now_ms + ATTEMPT_MS, _leases(deliveries))

    def repeat(self, call: SqsCall, queue: SqsQueue, attempt: str, lease_ms: int) -> list[Delivery] | None:
        """The deliveries of an attempt with renewed leases; None if it cannot be repeated."""
        queue_key = queue.queue_key
        found = self._known.get((queue_key, attempt))
        if found is None:
            return None
        expires_ms, leases = found
        broker = call.context.broker
        seqs = [seq for seq, _, _ in leases]
        del self._known[queue_key, attempt]
        if expires_ms <= call.now_ms or _leases(broker.inspect.leases_of(queue_key, seqs).values()) != leases:
            return None  # expired, or a message was deleted, changed or delivered again
        try:
            broker.extend(queue_key, [(seq, number) for seq, number, _ in leases], lease_ms)
            now = broker.inspect.leases_of(queue_key, seqs)
            deliveries = [now[seq] for seq in seqs]
        except (OpenQError, KeyError):
            return None
        self._known[queue_key, attempt] = (expires_ms, _leases(deliveries))
        return deliveries


def _leases(deliveries: Iterable[Delivery]) -> list[tuple[int, int, int]]:
    return [(each.entry.seq, each.number, each.until_ms) for each in deliveries]


def receive_message(
    call: SqsCall, wanted: sqs.ReceiveMessage, attempts: ReceiveAttempts, answer: ReplyCallback
) -> None:
    queue = call.queue
    system = [*(wanted.message_system_attribute_names or ()), *(wanted.attribute_names or ())]
    shown = AttributeSelection(system, wanted.message_attribute_names)
    limits = queue.limits
    count = 1 if wanted.max_number_of_messages is None else wanted.max_number_of_messages
    if not 1 <= count <= limits.max_receive:
        raise errors.invalid_value(
            count, "MaxNumberOfMessages", f"Must be between 1 and {limits.max_receive}, if provided."
        )
    wait_s = queue.wait_s if wanted.wait_time_seconds is None else wanted.wait_time_seconds
    if not 0 <= wait_s <= limits.max_wait_s:
        raise errors.invalid_value(
            wait_s, "WaitTimeSeconds", f"Must be >= 0 and <= {limits.max_wait_s}, if provided."
        )
    lease_ms = queue.settings.visibility_ms
    if wanted.visibility_timeout is not None:
        check_visibility(queue, wanted.visibility_timeout)
        lease_ms = wanted.visibility_timeout * 1000
    attempt = wanted.receive_request_attempt_id
    if attempt is not None:
        if not queue.fifo:
            raise errors.invalid_value(
                attempt,
                "ReceiveRequestAttemptId",
                "The request include parameter that is not valid for this queue type.",
            )
        attrs.check_fifo_id(attempt, "ReceiveRequestAttemptId")

    def then(deliveries: list[Delivery], error: OpenQError | None) -> None:
        if error is not None:
            answer(errors.from_openq(error))
            return
        if attempt is not None and deliveries:
            attempts.note(queue.queue_key, attempt, deliveries, call.now_ms)
        messages = [show_delivery(call, queue, each, shown) for each in deliveries]
        answer(sqs.ReceiveMessageReply(messages=messages or None))

    if attempt is not None:
        again = attempts.repeat(call, queue, attempt, lease_ms)
        if again is not None:
            long_polls.load_and_answer(
                call.context, call.http, queue.queue_key, again, then, MAX_ANSWER_BYTES
            )
            return
    asked = (count, lease_ms, call.http.peer, None, wait_s, then, MAX_ANSWER_BYTES, limits.max_in_flight)
    try:
        long_polls.receive(call.context, call.http, queue.queue_key, *asked)
    except TooManyInFlight:
        if not queue.fifo:
            raise errors.over_limit(
                f"The maximum number of in flight messages is {limits.max_in_flight}; delete some first."
            ) from None
        then([], None)


def text_of(body: bytes) -> tuple[str, bool]:
    """The body as text, and whether it is base64: binary bodies are encoded."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), True
    if attrs.is_valid_text(text):
        return text, False
    return base64.b64encode(body).decode(), True


def show_delivery(
    call: SqsCall, queue: SqsQueue, delivery: Delivery, wanted: AttributeSelection
) -> sqs.Message:
    return show_message(call, queue, delivery.entry, delivery, handle_of(queue.number, delivery), wanted)


def show_message(
    call: SqsCall,
    queue: SqsQueue,
    entry: Entry,
    delivery: Delivery | None,
    handle: str,
    wanted: AttributeSelection,
) -> sqs.Message:
    text, encoded = text_of(entry.body or b"")
    message = sqs.Message(
        message_id=call.context.broker.inspect.message_id(entry),
        receipt_handle=handle,
        md5_of_body=text_md5(text.encode() if encoded else entry.body or b""),
        body=text,
    )
    if wanted.system:
        message.attributes = system_attributes(call, queue, entry, delivery, wanted.system) or None
    if wanted.attributes and (entry.options is not None or entry.properties is not None or encoded):
        ours = entry.properties.attributes if entry.properties is not None else None
        everything = attrs.from_openq(ours, entry.options.type if entry.options is not None else None)
        if encoded:
            everything[ENCODING] = sqs.MessageAttributeValue(string_value="base64", data_type="String")
        chosen = attrs.select(everything, wanted.attributes)
        if chosen:
            message.message_attributes = chosen
            message.md5_of_message_attributes = attrs.md5_of(chosen)
    return message


def earlier_receives(queue: SqsQueue, entry: Entry) -> int:
    """The receives of a dead letter in its source queues: SQS counts across all queues."""
    if entry.options is None or not entry.options.deaths:
        return 0
    total, passed = 0, {queue.queue_key}
    for death in entry.options.deaths:
        if death.queue in passed:  # redriven: the count started again
            break
        passed.add(death.queue)
        total += death.count
    return total


def sent_ms_of(queue: SqsQueue, entry: Entry) -> int:
    """A dead letter of a standard queue keeps its sent time; any other move counts as sending."""
    options = entry.options
    if options is None or not options.born_ms or queue.fifo:
        return entry.sent_ms
    is_dead_letter = bool(options.deaths) and options.deaths[0][0] != queue.queue_key
    return options.born_ms if is_dead_letter or not options.deaths else entry.sent_ms


def system_attributes(
    call: SqsCall, queue: SqsQueue, entry: Entry, delivery: Delivery | None, wanted: frozenset[str]
) -> dict[str, str]:
    options, properties = entry.options, entry.properties
    found: dict[str, str] = {}
    if "SenderId" in wanted:
        publisher = properties.publisher if properties is not None else None
        found["SenderId"] = publisher or queue.account
    if "SentTimestamp" in wanted:
        found["SentTimestamp"] = str(sent_ms_of(queue, entry))
    known_count = options.count if options is not None else 0
    known_first_ms = options.first_ms if options is not None else 0
    if "ApproximateReceiveCount" in wanted:
        count = known_count if delivery is None else delivery.count
        found["ApproximateReceiveCount"] = str(count + earlier_receives(queue, entry))
    if "ApproximateFirstReceiveTimestamp" in wanted:
        first_ms = known_first_ms or (0 if delivery is None else delivery.delivered_ms)
        if first_ms:
            found["ApproximateFirstReceiveTimestamp"] = str(first_ms)
    if options is not None:
        if "MessageGroupId" in wanted and options.group is not None:
            found["MessageGroupId"] = options.group
        if "MessageDeduplicationId" in wanted and options.dedup is not None:
            found["MessageDeduplicationId"] = options.dedup
        elif "MessageDeduplicationId" in wanted and queue.fifo and options.born_ms:
            # A moved message is known by its id: two may have come with one deduplication id.
            found["MessageDeduplicationId"] = call.context.broker.inspect.message_id(entry)
        # A death in this queue itself is older than a redrive.
        if (
            "DeadLetterQueueSourceArn" in wanted
            and options.deaths
            and options.deaths[0][0] != queue.queue_key
        ):
            found["DeadLetterQueueSourceArn"] = call.resolver.arn_of(options.deaths[0][0])
    if "SequenceNumber" in wanted and queue.fifo:
        # The position in this queue: a moved message is behind those that were here before.
        found["SequenceNumber"] = sequence_text(entry.seq)
    if AMAZON_SYSTEM_ATTRIBUTE in wanted and properties is not None:
        trace = attrs.trace_header(properties.attributes)
        if trace is not None:
            found[AMAZON_SYSTEM_ATTRIBUTE] = trace
    return found


# -- delete, change visibility -------------------------------------------------------------------


def delete_message(call: SqsCall, wanted: sqs.DeleteMessage, answer: ReplyCallback) -> None:
    [failed] = delete_by_handle(call, call.queue, [wanted.receipt_handle])
    if failed is not None:
        raise failed
    answer(None)


def delete_by_handle(call: SqsCall, queue: SqsQueue, handles: Sequence[str]) -> list[SqsError | None]:
    """The error of each that cannot be deleted.

    Late deletes of a standard queue succeed, and delete the message unless it was delivered again. To delete
    a message twice is no error, as in AWS.
    """
    receipts = [receipt_of(queue, handle) for handle in handles]
    traffic = call.context.traffic.sqs
    traffic.acking()
    results = call.context.broker.ack(queue.queue_key, receipts, late=not queue.fifo)
    traffic.acked += results.count(None)
    if not queue.fifo:
        return [None] * len(handles)
    return [
        errors.receipt_handle_expired(handle) if isinstance(error, VisibilityTimeoutExpired) else None
        for handle, error in zip(handles, results, strict=True)
    ]


def delete_message_batch(call: SqsCall, batch: sqs.DeleteMessageBatch, answer: ReplyCallback) -> None:
    queue = call.queue
    attrs.check_batch(batch.entries, "DeleteMessageBatchRequestEntry", queue.limits.max_batch)
    failed: list[sqs.BatchResultErrorEntry] = []
    chosen: list[sqs.DeleteMessageBatchRequestEntry] = []
    for entry in batch.entries:
        try:
            receipt_of(queue, entry.receipt_handle)
        except SqsError as error:
            failed.append(batch_receipt_error(entry.id, entry.receipt_handle, error))
        else:
            chosen.append(entry)
    successful: list[sqs.DeleteMessageBatchResultEntry] = []
    results = delete_by_handle(call, queue, [entry.receipt_handle for entry in chosen])
    for entry, refused in zip(chosen, results, strict=True):
        if refused is not None:
            failed.append(batch_receipt_error(entry.id, entry.receipt_handle, refused))
        else:
            successful.append(sqs.DeleteMessageBatchResultEntry(id=entry.id))
    answer(sqs.DeleteMessageBatchReply(successful=successful or None, failed=failed or None))


def check_visibility(queue: SqsQueue, seconds: int) -> None:
    if not 0 <= seconds <= queue.limits.max_visibility_s:
        raise errors.invalid_value(
            seconds,
            "VisibilityTimeout",
            f"VisibilityTimeout must be an integer between 0 and {queue.limits.max_visibility_s}",
        )


def change_one(call: SqsCall, queue: SqsQueue, handle: str, seconds: int) -> None:
    check_visibility(queue, seconds)
    seq, number = receipt_of(queue, handle)
    broker = call.context.broker
    lent = broker.inspect.lease(queue.queue_key, seq)
    if lent is not None and lent.number > number and not queue.fifo:
        # AWS lets an older receipt change the lease of the current consumer, and clients rely on extending
        # it. It is never shortened here: a receipt must not take a message from its current consumer.
        if lent.until_ms and call.now_ms + seconds * 1000 <= lent.until_ms:
            return
        number = lent.number
    longest_s = queue.limits.max_visibility_s
    if lent is not None and (call.now_ms - lent.delivered_ms) / 1000 + seconds > longest_s:
        raise errors.invalid_value(
            seconds,
            "VisibilityTimeout",
            f"Total VisibilityTimeout for the message is beyond the limit [{longest_s} seconds]",
        )
    receipts = [(seq, number)]
    result: object = broker.nack(queue.queue_key, receipts, 0)[0] if seconds == 0 else None
    call.context.traffic.sqs.nacked += isinstance(result, str)
    if seconds > 0 or isinstance(result, VisibilityTimeoutExpired):
        # Late changes succeed too, unless the message was delivered again.
        [result] = broker.extend(queue.queue_key, receipts, seconds * 1000, late=True)
    if isinstance(result, VisibilityTimeoutExpired):
        raise errors.message_not_inflight()
    if isinstance(result, MessageNotFoundError):
        raise errors.receipt_handle_is_stale(handle)


def change_message_visibility(
    call: SqsCall, wanted: sqs.ChangeMessageVisibility, answer: ReplyCallback
) -> None:
    queue = call.queue
    change_one(call, queue, wanted.receipt_handle, wanted.visibility_timeout)
    answer(None)


def change_message_visibility_batch(
    call: SqsCall, batch: sqs.ChangeMessageVisibilityBatch, answer: ReplyCallback
) -> None:
    queue = call.queue
    attrs.check_batch(batch.entries, "ChangeMessageVisibilityBatchRequestEntry", queue.limits.max_batch)
    successful: list[sqs.ChangeMessageVisibilityBatchResultEntry] = []
    failed: list[sqs.BatchResultErrorEntry] = []
    for entry in batch.entries:
        try:
            if entry.visibility_timeout is None:
                raise errors.missing_parameter("VisibilityTimeout")
            change_one(call, queue, entry.receipt_handle, entry.visibility_timeout)
        except SqsError as error:
            failed.append(batch_receipt_error(entry.id, entry.receipt_handle, error))
        else:
            successful.append(sqs.ChangeMessageVisibilityBatchResultEntry(id=entry.id))
    answer(sqs.ChangeMessageVisibilityBatchReply(successful=successful or None, failed=failed or None))
