"""Each error with the code and the status that AWS gives it."""

from __future__ import annotations

import pytest

from openq import errors as ours
from openq.auth.errors import InvalidSignature, LoginFailed, TooManyFailedLogins
from openq.sqs import errors
from openq.sqs.errors import SqsError
from tests.sqs.model import DESCRIPTION

PREFIX = "AWS.SimpleQueueService."

# One of each: the error, its code in the Query protocol, its status. As AWS's own SDKs have it.
MODELLED: list[tuple[SqsError, str, int]] = [
    (errors.batch_entry_ids_not_distinct("a"), PREFIX + "BatchEntryIdsNotDistinct", 400),
    (errors.batch_request_too_long(10, 11), PREFIX + "BatchRequestTooLong", 400),
    (errors.empty_batch_request("SendMessageBatchRequestEntry"), PREFIX + "EmptyBatchRequest", 400),
    (errors.invalid_address("x"), "InvalidAddress", 404),
    (errors.invalid_attribute_name("x"), "InvalidAttributeName", 400),
    (errors.invalid_attribute_value("x"), "InvalidAttributeValue", 400),
    (errors.invalid_batch_entry_id(), PREFIX + "InvalidBatchEntryId", 400),
    (errors.invalid_id_format("x"), "InvalidIdFormat", 400),
    (errors.invalid_message_contents("\x01"), "InvalidMessageContents", 400),
    (errors.invalid_security(), "InvalidSecurity", 403),
    (errors.kms_access_denied(), "KMS.AccessDeniedException", 400),
    (errors.kms_disabled(), "KMS.DisabledException", 400),
    (errors.kms_invalid_key_usage(), "KMS.InvalidKeyUsageException", 400),
    (errors.kms_invalid_state(), "KMS.InvalidStateException", 400),
    (errors.kms_not_found(), "KMS.NotFoundException", 400),
    (errors.kms_opt_in_required(), "KMS.OptInRequired", 403),
    (errors.kms_throttled(), "KMS.ThrottlingException", 400),
    (errors.message_not_inflight(), PREFIX + "MessageNotInflight", 400),
    (errors.over_limit("x"), "OverLimit", 403),
    (errors.purge_queue_in_progress("q"), PREFIX + "PurgeQueueInProgress", 403),
    (errors.queue_deleted_recently(), PREFIX + "QueueDeletedRecently", 400),
    (errors.queue_does_not_exist(), PREFIX + "NonExistentQueue", 400),
    (errors.queue_name_exists("x"), "QueueAlreadyExists", 400),
    (errors.receipt_handle_is_invalid("x"), "ReceiptHandleIsInvalid", 404),
    (errors.request_throttled(), "RequestThrottled", 403),
    (errors.resource_not_found("x"), "ResourceNotFoundException", 404),
    (errors.too_many_entries_in_batch_request(20), PREFIX + "TooManyEntriesInBatchRequest", 400),
    (errors.unsupported_operation("x"), PREFIX + "UnsupportedOperation", 400),
]

COMMON: list[tuple[SqsError, str, str, int]] = [
    (errors.invalid_parameter_value("x"), "InvalidParameterValueException", "InvalidParameterValue", 400),
    (errors.missing_parameter("x"), "MissingRequiredParameterException", "MissingParameter", 400),
    (errors.serialization("x"), "SerializationException", "MalformedInput", 400),
    (errors.unknown_operation("x"), "UnknownOperationException", "InvalidAction", 400),
    (errors.missing_action(), "UnknownOperationException", "MissingAction", 400),
    (errors.invalid_version("x"), "NoSuchVersionException", "NoSuchVersion", 400),
    (errors.invalid_query_parameter("x"), "InvalidQueryParameter", "InvalidQueryParameter", 400),
    (errors.malformed_query_string("x"), "MalformedQueryStringException", "MalformedQueryString", 404),
    (errors.access_denied(), "AccessDeniedException", "AccessDenied", 403),
    (errors.access_to_resource_denied("x"), "AccessDeniedException", "AccessDenied", 403),
    (errors.invalid_client_token_id(), "UnrecognizedClientException", "InvalidClientTokenId", 403),
    (
        errors.missing_authentication_token(),
        "MissingAuthenticationTokenException",
        "MissingAuthenticationToken",
        403,
    ),
    (errors.incomplete_signature("x"), "IncompleteSignatureException", "IncompleteSignature", 400),
    (errors.signature_does_not_match(), "InvalidSignatureException", "SignatureDoesNotMatch", 403),
    (errors.request_expired(), "RequestExpiredException", "RequestExpired", 400),
]


def test_the_model_has_no_error_that_we_do_not_have() -> None:
    modelled = sorted(name for name, shape in DESCRIPTION["shapes"].items() if shape.get("exception"))

    assert len(modelled) == 28
    assert sorted(error.name for error, _, _ in MODELLED) == modelled


@pytest.mark.parametrize(("error", "code", "status"), MODELLED, ids=[one[0].name for one in MODELLED])
def test_an_error_of_the_service_has_its_code_and_status(error: SqsError, code: str, status: int) -> None:
    assert (error.code, error.status, error.fault) == (code, status, "Sender")
    assert error.type == f"com.amazonaws.sqs#{error.name}"
    assert error.message
    assert str(error) == error.message


@pytest.mark.parametrize(("error", "name", "code", "status"), COMMON, ids=[one[2] for one in COMMON])
def test_a_common_error_has_its_code_and_status(error: SqsError, name: str, code: str, status: int) -> None:
    assert (error.name, error.code, error.status, error.fault) == (name, code, status, "Sender")
    assert error.type == f"com.amazon.coral.service#{name}"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (errors.internal_error(), "InternalError", 500),
        (errors.service_unavailable("x"), "ServiceUnavailable", 503),
    ],
)
def test_what_is_our_fault_says_so(error: SqsError, code: str, status: int) -> None:
    assert (error.code, error.status, error.fault) == (code, status, "Receiver")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.batch_entry_ids_not_distinct("a"), "Id a repeated."),
        (
            errors.batch_request_too_long(262144, 262145),
            "Batch requests cannot be longer than 262144 bytes. You have sent 262145 bytes.",
        ),
        (
            errors.too_many_entries_in_batch_request(20),
            "Maximum number of entries per request are 10. You have sent 20.",
        ),
        (
            errors.purge_queue_in_progress("orders"),
            "Only one PurgeQueue operation on orders is allowed every 60 seconds.",
        ),
        (
            errors.queue_name_exists("DelaySeconds"),
            "A queue already exists with the same name and a different value for attribute DelaySeconds",
        ),
        (
            errors.message_too_long(1024),
            "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.",
        ),
        (errors.receipt_handle_is_invalid("not-one"), "The input receipt handle is invalid."),
        (
            errors.receipt_handle_is_invalid("garbage"),
            'The input receipt handle "garbage" is not a valid receipt handle.',
        ),
        (
            errors.receipt_handle_of_another_queue("x"),
            'The receipt handle "x" is not valid for this queue.',
        ),
        (
            errors.batch_message_too_long(1024),
            "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes.",
        ),
        (
            errors.receipt_handle_expired("x"),
            "Value x for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
        ),
        (
            errors.invalid_message_contents("\uffff"),
            "Invalid binary character '#xFFFF' was found in the message body, "
            "the set of allowed characters is #x9 | #xA | #xD | "
            "[#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF].",
        ),
        (
            errors.invalid_attribute_value("FifoQueue", "Modifying queue type is not supported."),
            "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
        ),
    ],
)
def test_the_wording_is_that_of_aws(error: SqsError, text: str) -> None:
    assert error.message == text


def test_a_missing_queue_is_called_differently_in_each_protocol() -> None:
    error = errors.queue_does_not_exist()

    assert error.message == "The specified queue does not exist."
    assert error.query_message == "The specified queue does not exist for this wsdl version."


OURS: list[tuple[ours.OpenQError, str, int]] = [
    (ours.QueueNotFound("q"), PREFIX + "NonExistentQueue", 400),
    (ours.MessageNotFoundError("m"), PREFIX + "MessageNotInflight", 400),
    (ours.VisibilityTimeoutExpired("m"), PREFIX + "MessageNotInflight", 400),
    (ours.QueueExists("q", "fifo"), "QueueAlreadyExists", 400),
    (ours.QueueInUse("q", "consumers"), PREFIX + "UnsupportedOperation", 400),
    (ours.QueueFull("q", "max_length=1"), "OverLimit", 403),
    (ours.TooManyInFlight("q", 5), "OverLimit", 403),
    (ours.ExchangeNotFound("x"), "ResourceNotFoundException", 404),
    (ours.ExchangeInUse("x"), PREFIX + "UnsupportedOperation", 400),
    (ours.ScheduleNotFound("s"), "ResourceNotFoundException", 404),
    (ours.WebhookNotFound("w"), "ResourceNotFoundException", 404),
    (ours.KvConflict("b", "k", 1), PREFIX + "UnsupportedOperation", 400),
    (ours.KvFull(5), "ServiceUnavailable", 503),
    (ours.InvalidSetting("no"), "InvalidParameterValue", 400),
    (ours.InvalidSearch("no"), "InvalidParameterValue", 400),
    (ours.DiskFull("no space"), "ServiceUnavailable", 503),
    (ours.Exhausted("Too many open files"), "ServiceUnavailable", 503),
    (ours.Unconfirmed("no space"), "ServiceUnavailable", 503),
    (ours.JournalFailed("fsync"), "InternalError", 500),
    (ours.CannotOpen("/d", "not a directory"), "InternalError", 500),
    (ours.JournalDamaged("f", 1, "crc"), "InternalError", 500),
    (ours.DirectoryInUse("/d", 1), "ServiceUnavailable", 503),
    (ours.NewerFormat("/d", "format 2", "OpenQ reads 1"), "InternalError", 500),
    (ours.UnfinishedMigration("/d", "redis://h", "openq migrate"), "InternalError", 500),
    (ours.HistoryUnavailable("gone"), "ResourceNotFoundException", 404),
    (ours.Closed(), "ServiceUnavailable", 503),
    (ours.ConnectionClosed("maintenance"), "ServiceUnavailable", 503),
    (ours.Forked("q", None), "ServiceUnavailable", 503),
    (ours.OutOfRoom("no room"), "ServiceUnavailable", 503),
    (ours.StoreError("WRONGTYPE"), "ServiceUnavailable", 503),
    (ours.StoreUnavailable("away"), "ServiceUnavailable", 503),
    (ours.StoreFull("maxmemory"), "ServiceUnavailable", 503),
    (ours.NotReplicated("0 of 1"), "ServiceUnavailable", 503),
    (ours.FunctionError("GONE", "queue"), "ServiceUnavailable", 503),
    (ours.NotOnThisStore("cursors", "read by time"), PREFIX + "UnsupportedOperation", 400),
    (ours.OpenQError("what"), "InternalError", 500),
    (LoginFailed(), "AccessDenied", 403),
    (TooManyFailedLogins(5), "AccessDenied", 403),
]


@pytest.mark.parametrize(("error", "code", "status"), OURS, ids=[type(one[0]).__name__ for one in OURS])
def test_each_of_our_errors_has_one_of_theirs(error: ours.OpenQError, code: str, status: int) -> None:
    shown = errors.from_openq(error)

    assert (shown.code, shown.status) == (code, status)


def test_none_of_our_errors_was_forgotten() -> None:
    known = {
        value
        for value in vars(ours).values()
        if isinstance(value, type) and issubclass(value, ours.OpenQError)
    }

    assert known <= {type(error) for error, _, _ in OURS}


def test_a_full_disk_says_what_to_do() -> None:
    assert "publishing resumes by itself" in errors.from_openq(ours.DiskFull("no space")).message


def test_with_a_receipt_handle_the_error_quotes_it() -> None:
    gone = errors.from_openq(ours.MessageNotFoundError("m"), "handle")
    late = errors.from_openq(ours.VisibilityTimeoutExpired("m"), "handle")

    assert gone.message == (
        "Value handle for parameter ReceiptHandle is invalid. "
        "Reason: Message does not exist or is not available for visibility timeout change."
    )
    assert late.message == (
        "Value handle for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    )


@pytest.mark.parametrize(
    ("code", "name", "status"),
    [
        ("SignatureDoesNotMatch", "InvalidSignatureException", 403),
        ("IncompleteSignature", "IncompleteSignatureException", 400),
        ("InvalidClientTokenId", "UnrecognizedClientException", 403),
        ("SomethingNew", "SomethingNew", 403),
    ],
)
def test_what_the_sign_in_refused_keeps_its_code(code: str, name: str, status: int) -> None:
    error = errors.from_openq(InvalidSignature(code, "why"))

    assert (error.code, error.name, error.status, error.message) == (code, name, status, "why")
