"""The errors of SQS with AWS's codes, statuses and wording, and the mapping of OpenQ's errors to them.

An error has two names: `name` is its shape in AWS JSON (`QueueDoesNotExist`), `code` its name in the older
Query protocol (`AWS.SimpleQueueService.NonExistentQueue`). boto3 always shows the second one: JSON replies
carry it in a header.
"""

from __future__ import annotations

import re

from ..auth.errors import AuthenticationFailed, InvalidSignature
from ..errors import (
    Closed,
    DirectoryInUse,
    ExchangeInUse,
    ExchangeNotFound,
    HistoryUnavailable,
    InvalidSetting,
    KvConflict,
    MessageNotFoundError,
    NotOnThisStore,
    OpenQError,
    OutOfRoom,
    QueueExists,
    QueueFull,
    QueueInUse,
    QueueNotFound,
    ScheduleNotFound,
    StoreError,
    TooManyInFlight,
    VisibilityTimeoutExpired,
    WebhookNotFound,
    public_text,
)

SENDER = "Sender"
RECEIVER = "Receiver"

# The errors of the service itself, and those of the framework that all of AWS's services share.
_SERVICE = "com.amazonaws.sqs#"
_FRAMEWORK = "com.amazon.coral.service#"

_PREFIX = "AWS.SimpleQueueService."

_BASE64 = re.compile("[A-Za-z0-9+/=]+")

ALLOWED_CHARACTERS = "#x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]"


class SqsError(Exception):
    """An error reply."""

    def __init__(
        self,
        name: str,
        message: str,
        *,
        code: str | None = None,
        status: int = 400,
        fault: str = SENDER,
        query_message: str | None = None,
        namespace: str = _SERVICE,
    ) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.code = name if code is None else code
        self.status = status
        self.fault = fault
        self.query_message = message if query_message is None else query_message
        self.type = namespace + name  # `__type` in JSON


# The 28 errors of the service.


def batch_entry_ids_not_distinct(entry_id: str) -> SqsError:
    name = "BatchEntryIdsNotDistinct"
    return SqsError(name, f"Id {entry_id} repeated.", code=_PREFIX + name)


def batch_request_too_long(limit: int, size: int) -> SqsError:
    name = "BatchRequestTooLong"
    text = f"Batch requests cannot be longer than {limit} bytes. You have sent {size} bytes."
    return SqsError(name, text, code=_PREFIX + name)


def empty_batch_request(entry: str) -> SqsError:
    """`entry`: the missing member, for example `SendMessageBatchRequestEntry`."""
    name = "EmptyBatchRequest"
    return SqsError(name, f"There should be at least one {entry} in the request.", code=_PREFIX + name)


def invalid_address(address: str) -> SqsError:
    return SqsError("InvalidAddress", f"The address {address} is not valid for this endpoint.", status=404)


def invalid_attribute_name(attribute: str) -> SqsError:
    return SqsError("InvalidAttributeName", f"Unknown Attribute {attribute}.")


def invalid_attribute_value(attribute: str, reason: str = "") -> SqsError:
    text = f"Invalid value for the parameter {attribute}."
    return SqsError("InvalidAttributeValue", f"{text} Reason: {reason}" if reason else text)


def invalid_batch_entry_id() -> SqsError:
    name = "InvalidBatchEntryId"
    text = (
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long."
    )
    return SqsError(name, text, code=_PREFIX + name)


def invalid_id_format(receipt_handle: str) -> SqsError:
    return SqsError("InvalidIdFormat", f"The receipt handle {receipt_handle} is not valid for this version.")


def invalid_message_contents(character: str) -> SqsError:
    """`character`: the first one of the body that XML 1.0 does not allow."""
    text = f"Invalid binary character '#x{ord(character):X}' was found in the message body, "
    return SqsError("InvalidMessageContents", f"{text}the set of allowed characters is {ALLOWED_CHARACTERS}.")


def invalid_security(
    text: str = "Requests to this queue must be signed with Signature Version 4.",
) -> SqsError:
    return SqsError("InvalidSecurity", text, status=403)


def kms_access_denied(text: str = "The caller does not have the required KMS access.") -> SqsError:
    return SqsError("KmsAccessDenied", text, code="KMS.AccessDeniedException")


def kms_disabled(text: str = "The KMS key is disabled.") -> SqsError:
    return SqsError("KmsDisabled", text, code="KMS.DisabledException")


def kms_invalid_key_usage(text: str = "The KMS key cannot be used for this purpose.") -> SqsError:
    return SqsError("KmsInvalidKeyUsage", text, code="KMS.InvalidKeyUsageException")


def kms_invalid_state(text: str = "The state of the KMS key does not allow this request.") -> SqsError:
    return SqsError("KmsInvalidState", text, code="KMS.InvalidStateException")


def kms_not_found(text: str = "The KMS key could not be found.") -> SqsError:
    return SqsError("KmsNotFound", text, code="KMS.NotFoundException")


def kms_opt_in_required(text: str = "This account has not opted in to KMS.") -> SqsError:
    return SqsError("KmsOptInRequired", text, code="KMS.OptInRequired", status=403)


def kms_throttled(text: str = "KMS is throttling requests.") -> SqsError:
    return SqsError("KmsThrottled", text, code="KMS.ThrottlingException")


def message_not_inflight() -> SqsError:
    name = "MessageNotInflight"
    return SqsError(name, "The specified message isn't in flight.", code=_PREFIX + name)


def over_limit(text: str) -> SqsError:
    return SqsError("OverLimit", text, status=403)


def purge_queue_in_progress(queue: str) -> SqsError:
    name = "PurgeQueueInProgress"
    text = f"Only one PurgeQueue operation on {queue} is allowed every 60 seconds."
    return SqsError(name, text, code=_PREFIX + name, status=403)


def queue_deleted_recently() -> SqsError:
    name = "QueueDeletedRecently"
    text = "You must wait 60 seconds after deleting a queue before you can create another with the same name."
    return SqsError(name, text, code=_PREFIX + name)


def queue_does_not_exist() -> SqsError:
    return SqsError(
        "QueueDoesNotExist",
        "The specified queue does not exist.",
        code=_PREFIX + "NonExistentQueue",
        query_message="The specified queue does not exist for this wsdl version.",
    )


def queue_name_exists(attribute: str) -> SqsError:
    """`attribute`: the first one whose value differs from the queue's."""
    text = f"A queue already exists with the same name and a different value for attribute {attribute}"
    return SqsError("QueueNameExists", text, code="QueueAlreadyExists")


def receipt_handle_is_invalid(receipt_handle: str) -> SqsError:
    """Not a receipt handle at all. AWS names the handle, unless it has characters that Base64 does not."""
    text = "The input receipt handle is invalid."
    if _BASE64.fullmatch(receipt_handle):
        text = receipt_handle_is_none(receipt_handle)
    return SqsError("ReceiptHandleIsInvalid", text, status=404)


def receipt_handle_is_none(receipt_handle: str) -> str:
    """The text for an invalid receipt handle that names it, as batches always do."""
    return f'The input receipt handle "{receipt_handle}" is not a valid receipt handle.'


def receipt_handle_of_another_queue(receipt_handle: str) -> SqsError:
    """For a handle of this queue at another time see `receipt_handle_is_stale`."""
    text = f'The receipt handle "{receipt_handle}" is not valid for this queue.'
    return SqsError("ReceiptHandleIsInvalid", text, status=404)


def request_throttled(text: str = "The request was denied due to request throttling.") -> SqsError:
    return SqsError("RequestThrottled", text, status=403)


def resource_not_found(text: str) -> SqsError:
    return SqsError("ResourceNotFoundException", text, status=404)


def too_many_entries_in_batch_request(count: int, limit: int = 10) -> SqsError:
    name = "TooManyEntriesInBatchRequest"
    text = f"Maximum number of entries per request are {limit}. You have sent {count}."
    return SqsError(name, text, code=_PREFIX + name)


def unsupported_operation(text: str) -> SqsError:
    name = "UnsupportedOperation"
    return SqsError(name, text, code=_PREFIX + name)


# Errors of any AWS service.


def _common(name: str, text: str, code: str, status: int = 400, fault: str = SENDER) -> SqsError:
    return SqsError(name, text, code=code, status=status, fault=fault, namespace=_FRAMEWORK)


def invalid_parameter_value(text: str) -> SqsError:
    return _common("InvalidParameterValueException", text, "InvalidParameterValue")


def invalid_value(value: object, parameter: str, reason: str) -> SqsError:
    """The usual text of SQS for an invalid value."""
    return invalid_parameter_value(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def receipt_handle_expired(receipt_handle: str) -> SqsError:
    """A FIFO queue rejects the delete of a message whose lease expired."""
    return invalid_value(receipt_handle, "ReceiptHandle", "The receipt handle has expired.")


def receipt_handle_is_stale(receipt_handle: str) -> SqsError:
    """ChangeMessageVisibility of a message that is deleted, or leased to another consumer."""
    reason = "Message does not exist or is not available for visibility timeout change."
    return invalid_value(receipt_handle, "ReceiptHandle", reason)


def message_too_long(limit: int) -> SqsError:
    return invalid_parameter_value(
        f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes."
    )


def batch_message_too_long(limit: int) -> SqsError:
    """The same for one entry of a batch, for which AWS has another text."""
    return invalid_parameter_value(
        f"One or more parameters cannot be validated. Reason: Message must be shorter than {limit} bytes."
    )


def missing_parameter(parameter: str) -> SqsError:
    text = f"The request must contain the parameter {parameter}."
    return _common("MissingRequiredParameterException", text, "MissingParameter")


def missing_group_in_batch() -> SqsError:
    """The text of a missing parameter with the code of an invalid one, as AWS answers for a batch."""
    return invalid_parameter_value(missing_parameter("MessageGroupId").message)


def missing_queue_name() -> SqsError:
    """The one parameter whose absence SQS reports as an invalid value."""
    return invalid_parameter_value(
        "Value for parameter QueueName is invalid. Reason: Must specify a queue name."
    )


def empty_queue_name() -> SqsError:
    return invalid_parameter_value(
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
    )


def serialization(text: str) -> SqsError:
    return _common("SerializationException", text, "MalformedInput")


def unknown_operation(action: str) -> SqsError:
    """An action that does not exist: `UnknownOperationException` in JSON, `InvalidAction` in Query."""
    text = f"The action {action} is not valid for this endpoint."
    return _common("UnknownOperationException", text, "InvalidAction")


def missing_action() -> SqsError:
    return _common(
        "UnknownOperationException", "The request must contain the parameter Action.", "MissingAction"
    )


def invalid_version(version: str) -> SqsError:
    text = f"The requested version ( {version} ) is not valid."
    return _common("NoSuchVersionException", text, "NoSuchVersion")


def invalid_query_parameter(text: str) -> SqsError:
    return _common("InvalidQueryParameter", text, "InvalidQueryParameter")


def malformed_query_string(text: str) -> SqsError:
    return _common("MalformedQueryStringException", text, "MalformedQueryString", status=404)


def access_denied(text: str = "Access to the resource is denied.") -> SqsError:
    return _common("AccessDeniedException", text, "AccessDenied", status=403)


def access_to_resource_denied(resource: str) -> SqsError:
    return access_denied(f"Access to the resource {resource} is denied.")


def invalid_client_token_id() -> SqsError:
    text = "The security token included in the request is invalid."
    return _common("UnrecognizedClientException", text, "InvalidClientTokenId", status=403)


def missing_authentication_token() -> SqsError:
    text = "Request is missing Authentication Token"
    return _common("MissingAuthenticationTokenException", text, "MissingAuthenticationToken", status=403)


def incomplete_signature(text: str) -> SqsError:
    return _common("IncompleteSignatureException", text, "IncompleteSignature", status=400)


def signature_does_not_match(text: str = "") -> SqsError:
    sentence = text or (
        "The request signature we calculated does not match the signature you provided. "
        "Check your AWS Secret Access Key and signing method. Consult the service documentation for details."
    )
    return _common("InvalidSignatureException", sentence, "SignatureDoesNotMatch", status=403)


def request_expired(text: str = "Request has expired.") -> SqsError:
    return _common("RequestExpiredException", text, "RequestExpired", status=400)


def service_unavailable(text: str) -> SqsError:
    return _common("ServiceUnavailableException", text, "ServiceUnavailable", 503, RECEIVER)


def internal_error(text: str = "We encountered an internal error. Please try again.") -> SqsError:
    return _common("InternalFailure", text, "InternalError", 500, RECEIVER)


# AWS JSON has other names for some authentication errors; the others keep their code.
_SIGN_IN = {
    "AccessDenied": ("AccessDeniedException", 403),
    "IncompleteSignature": ("IncompleteSignatureException", 400),
    "InvalidClientTokenId": ("UnrecognizedClientException", 403),
    "MissingAuthenticationToken": ("MissingAuthenticationTokenException", 403),
    "RequestExpired": ("RequestExpiredException", 400),
    "SignatureDoesNotMatch": ("InvalidSignatureException", 403),
    "RequestTimeTooSkewed": ("InvalidSignatureException", 403),
}


def from_sign_in(code: str, text: str) -> SqsError:
    """An authentication error: `code` is AWS's, the wire format is added here."""
    name, status = _SIGN_IN.get(code, (code, 403))
    if code == "RequestTimeTooSkewed":
        code = "SignatureDoesNotMatch"  # the name in SQS; the text explains the clock skew
    return _common(name, text, code, status)


def from_openq(error: OpenQError, receipt_handle: str | None = None) -> SqsError:
    """The SQS error for one of OpenQ's; `receipt_handle` as the client sent it, if it sent one."""
    match error:
        case InvalidSignature():
            return from_sign_in(error.code, error.message)
        case AuthenticationFailed():
            return access_denied(public_text(error))
        case QueueNotFound():
            return queue_does_not_exist()
        case MessageNotFoundError():
            return receipt_handle_is_stale(receipt_handle) if receipt_handle else message_not_inflight()
        case VisibilityTimeoutExpired():
            return receipt_handle_expired(receipt_handle) if receipt_handle else message_not_inflight()
        case QueueExists():
            return SqsError("QueueNameExists", public_text(error), code="QueueAlreadyExists")
        case QueueFull() | TooManyInFlight():
            return over_limit(public_text(error))
        case InvalidSetting():
            return invalid_parameter_value(public_text(error))
        case OutOfRoom() | DirectoryInUse() | Closed() | StoreError():
            # Clients wait and retry after a 503, which is right: the error may be transient.
            return service_unavailable(public_text(error))
        case QueueInUse() | ExchangeInUse() | NotOnThisStore() | KvConflict():
            return unsupported_operation(public_text(error))
        case ExchangeNotFound() | HistoryUnavailable() | ScheduleNotFound() | WebhookNotFound():
            return resource_not_found(public_text(error))
        case _:
            # A failed or damaged journal, and anything else: the text says what to do.
            return internal_error(public_text(error))
