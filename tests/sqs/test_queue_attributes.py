"""The attributes of a queue in SQS: values, defaults, encryption and redrive policies."""

import json

import pytest

from openq.model import MAX_SPAN_MS, QueueSettings
from openq.sqs import queue_attributes
from tests.sqs.service import (
    ARN,
    HOST,
    OTHER,
    Service,
    dead_letter_policy,
    redrive_allow_policy,
    redrive_policy,
)

# -- values ------------------------------------------------------------------------------------

RANGES = [
    ("VisibilityTimeout", 0, 43_200),
    ("DelaySeconds", 0, 900),
    ("ReceiveMessageWaitTimeSeconds", 0, 20),
    ("MessageRetentionPeriod", 60, 1_209_600),
    ("MaximumMessageSize", 1_024, 1_048_576),
    ("KmsDataKeyReusePeriodSeconds", 60, 86_400),
]


@pytest.mark.parametrize(("name", "least", "most"), RANGES)
def test_both_ends_of_a_range_are_allowed_and_nothing_beyond(
    sqs: Service, name: str, least: int, most: int
) -> None:
    url = sqs.create("orders", KmsMasterKeyId="key")
    for value in (least, most):
        sqs.set(url, **{name: str(value)})
        assert sqs.attributes(url, name) == {name: str(value)}

    for wrong in (str(least - 1), str(most + 1), "", " 70", "70 ", "7e2", "70.5", "+70", "x", "9" * 5000):
        for error in (
            sqs.refused("SetQueueAttributes", queue_url=url, attributes={name: wrong}),
            sqs.refused("CreateQueue", queue_name="other", attributes={name: wrong}),
        ):
            assert error.code == "InvalidAttributeValue"
            assert error.message == f"Invalid value for the parameter {name}."
    assert sqs.attributes(url, name) == {name: str(most)}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("ContentBasedDeduplication", "yes"),
        ("SqsManagedSseEnabled", "1"),
        ("DeduplicationScope", "MessageGroup"),
        ("FifoThroughputLimit", "perqueue"),
    ],
)
def test_a_choice_takes_only_its_own_words(sqs: Service, name: str, wrong: str) -> None:
    url = sqs.create("orders.fifo", FifoQueue="true")

    error = sqs.refused("SetQueueAttributes", queue_url=url, attributes={name: wrong})

    assert error.code == "InvalidAttributeValue"
    assert error.message == f"Invalid value for the parameter {name}."


@pytest.mark.parametrize("name", ["Nonsense", "", "visibilitytimeout", "QueueArn", *queue_attributes.COUNTS])
def test_an_attribute_that_cannot_be_set_is_unknown(sqs: Service, name: str) -> None:
    url = sqs.create("orders")
    given = {"DelaySeconds": "9", name: "1"}

    for error in (
        sqs.refused("SetQueueAttributes", queue_url=url, attributes=given),
        sqs.refused("CreateQueue", queue_name="other", attributes=given),
    ):
        assert (error.code, error.message) == ("InvalidAttributeName", f"Unknown Attribute {name}.")
    assert sqs.attributes(url, "DelaySeconds") == {"DelaySeconds": "0"}


FIFO_ONLY = {
    "FifoQueue": ("false", "Unknown Attribute FifoQueue."),
    "ContentBasedDeduplication": ("true", "Unknown Attribute ContentBasedDeduplication."),
    "DeduplicationScope": (
        "queue",
        "You can specify the DeduplicationScope only when FifoQueue is set to true.",
    ),
    "FifoThroughputLimit": (
        "perQueue",
        "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
    ),
}


@pytest.mark.parametrize("name", FIFO_ONLY)
def test_a_standard_queue_has_no_fifo_attributes(sqs: Service, name: str) -> None:
    url = sqs.create("orders")
    value, sentence = FIFO_ONLY[name]

    for error in (
        sqs.refused("SetQueueAttributes", queue_url=url, attributes={name: value}),
        sqs.refused("CreateQueue", queue_name="other", attributes={name: value}),
    ):
        assert (error.code, error.message) == ("InvalidAttributeName", sentence)


def test_the_type_of_a_queue_cannot_be_changed(sqs: Service) -> None:
    url = sqs.create("orders.fifo", FifoQueue="true")

    sqs.set(url, FifoQueue="true", DelaySeconds="1")
    error = sqs.refused("SetQueueAttributes", queue_url=url, attributes={"FifoQueue": "false"})

    assert error.code == "InvalidAttributeValue"
    assert error.message == (
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    )


def test_high_throughput_needs_deduplication_by_group(sqs: Service) -> None:
    url = sqs.create("orders.fifo", FifoQueue="true")
    sentence = (
        "Invalid value for the parameter FifoThroughputLimit. Reason: To set FifoThroughputLimit to "
        "perMessageGroupId, the DeduplicationScope must be messageGroup."
    )

    error = sqs.refused(
        "SetQueueAttributes", queue_url=url, attributes={"FifoThroughputLimit": "perMessageGroupId"}
    )
    assert (error.code, error.message) == ("InvalidAttributeValue", sentence)

    sqs.set(url, FifoThroughputLimit="perMessageGroupId", DeduplicationScope="messageGroup")
    error = sqs.refused("SetQueueAttributes", queue_url=url, attributes={"DeduplicationScope": "queue"})
    assert (error.code, error.message) == ("InvalidAttributeValue", sentence)
    assert sqs.attributes(url, "DeduplicationScope", "FifoThroughputLimit") == {
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }


# -- GetQueueAttributes ------------------------------------------------------------------------


def test_only_what_was_asked_for_is_shown(sqs: Service) -> None:
    url = sqs.create("orders", DelaySeconds="3")

    assert sqs.attributes(url, "DelaySeconds", "QueueArn") == {
        "DelaySeconds": "3",
        "QueueArn": ARN + "orders",
    }
    assert sqs.attributes(url, "QueueArn", "All") == sqs.attributes(url, "All")


@pytest.mark.parametrize("names", [None, [], ["Policy"], ["KmsMasterKeyId", "FifoQueue"]])
def test_no_attribute_means_no_member_in_the_reply(sqs: Service, names: list[str] | None) -> None:
    url = sqs.create("orders")

    assert sqs.do("GetQueueAttributes", queue_url=url, attribute_names=names) == {}


@pytest.mark.parametrize("name", ["not-existing", "", "all"])
def test_asking_for_an_unknown_attribute_is_an_error(sqs: Service, name: str) -> None:
    url = sqs.create("orders")

    error = sqs.refused("GetQueueAttributes", queue_url=url, attribute_names=["All", name])

    assert (error.code, error.message) == ("InvalidAttributeName", f"Unknown Attribute {name}.")


def test_messages_are_counted_by_their_state(sqs: Service) -> None:
    url = sqs.create("orders")
    sqs.send("orders", "one", "two", "three")
    sqs.broker.receive("orders", 1)
    sqs.set(url, DelaySeconds="60")
    sqs.send("orders", "later", "later still")

    assert sqs.attributes(url, *queue_attributes.COUNTS) == {
        "ApproximateNumberOfMessages": "2",
        "ApproximateNumberOfMessagesNotVisible": "1",
        "ApproximateNumberOfMessagesDelayed": "2",
    }
    sqs.clock.advance(60)
    assert sqs.attributes(url, "ApproximateNumberOfMessages") == {"ApproximateNumberOfMessages": "5"}


def test_a_change_moves_the_time_of_modification_and_not_of_creation(sqs: Service) -> None:
    url = sqs.create("orders")
    born = sqs.attributes(url)["CreatedTimestamp"]
    sqs.clock.advance(100)
    sqs.set(url, DelaySeconds="1")

    found = sqs.attributes(url)
    assert found["CreatedTimestamp"] == born
    assert found["LastModifiedTimestamp"] == str(int(born) + 100)


def test_a_queue_created_by_another_protocol_has_sqs_attributes(sqs: Service) -> None:
    sqs.broker.declare("dead", QueueSettings())
    sqs.broker.declare(
        "orders",
        QueueSettings(
            visibility_ms=1_500, retention_ms=500, max_receives=2, dead_letter="dead", max_body=5_000
        ),
    )
    sqs.broker.declare("no-count", QueueSettings(dead_letter="dead"))
    url = sqs.do("GetQueueUrl", queue_name="orders")["QueueUrl"]

    found = sqs.attributes(url)
    assert found["VisibilityTimeout"] == "2"
    assert found["MessageRetentionPeriod"] == "1"
    assert found["MaximumMessageSize"] == "5000"
    assert json.loads(found["RedrivePolicy"]) == {"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": 2}
    assert found["SqsManagedSseEnabled"] == "true"
    assert sqs.attributes(f"http://{HOST}/000000000000/no-count", "RedrivePolicy") == {}


def test_a_queue_that_keeps_messages_for_ever_shows_the_longest_time_and_keeps_it_when_that_is_written_back(
    sqs: Service,
) -> None:
    sqs.broker.declare("kept", QueueSettings(retention_ms=MAX_SPAN_MS))
    url = sqs.do("GetQueueUrl", queue_name="kept")["QueueUrl"]
    shown = sqs.attributes(url)["MessageRetentionPeriod"]
    assert shown == "1209600"

    written = {"MessageRetentionPeriod": shown, "DelaySeconds": "5"}
    sqs.do("SetQueueAttributes", queue_url=url, attributes=written)
    assert sqs.create("kept", MessageRetentionPeriod=shown) == url
    found = sqs.broker.settings("kept")
    assert (found.retention_ms, found.delay_ms) == (MAX_SPAN_MS, 5_000)

    sqs.do("SetQueueAttributes", queue_url=url, attributes={"MessageRetentionPeriod": "1209599"})
    sqs.do("SetQueueAttributes", queue_url=url, attributes={"MessageRetentionPeriod": "1209600"})
    assert sqs.broker.settings("kept").retention_ms == 1_209_600_000


def test_attributes_show_changes_made_by_other_protocols(sqs: Service) -> None:
    sqs.create("dead")
    url = sqs.create("orders", RedrivePolicy=redrive_policy("dead", 5))
    sqs.broker.declare("orders", sqs.broker.settings("orders").with_(max_receives=9), change=True)

    assert json.loads(sqs.attributes(url)["RedrivePolicy"])["maxReceiveCount"] == 9


def test_setting_attributes_keeps_settings_of_other_protocols(sqs: Service) -> None:
    sqs.broker.declare("orders", QueueSettings(max_length=10, notes={"rest.color": "blue"}))
    sqs.set(f"http://{HOST}/000000000000/orders", DelaySeconds="1")

    found = sqs.broker.settings("orders")
    assert (found.max_length, found.notes["rest.color"], found.delay_ms) == (10, "blue", 1_000)


def test_no_attributes_to_set_is_a_missing_parameter(sqs: Service) -> None:
    url = sqs.create("orders")

    error = sqs.refused("SetQueueAttributes", queue_url=url, attributes={})

    assert error.code == "MissingParameter"
    assert error.message == "The request must contain the parameter Attribute.Name."


# -- encryption --------------------------------------------------------------------------------


def test_a_key_turns_the_servers_own_encryption_off_and_back(sqs: Service) -> None:
    url = sqs.create("orders")
    sse = ("KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled")

    sqs.set(url, KmsMasterKeyId="alias/aws/sqs")
    assert sqs.attributes(url, *sse) == {
        "KmsMasterKeyId": "alias/aws/sqs",
        "KmsDataKeyReusePeriodSeconds": "300",
        "SqsManagedSseEnabled": "false",
    }
    sqs.set(url, KmsDataKeyReusePeriodSeconds="600")
    assert sqs.attributes(url, "KmsDataKeyReusePeriodSeconds") == {"KmsDataKeyReusePeriodSeconds": "600"}
    sqs.set(url, SqsManagedSseEnabled="true")
    assert sqs.attributes(url, *sse) == {"SqsManagedSseEnabled": "true"}
    sqs.set(url, KmsMasterKeyId="key")
    sqs.set(url, KmsMasterKeyId="")
    assert sqs.attributes(url, *sse) == {"SqsManagedSseEnabled": "false"}


def test_only_one_kind_of_encryption_at_a_time(sqs: Service) -> None:
    both = {"KmsMasterKeyId": "key", "SqsManagedSseEnabled": "true"}

    error = sqs.refused("CreateQueue", queue_name="orders", attributes=both)

    assert error.code == "InvalidAttributeName"
    assert error.message == (
        "You can use one type of server-side encryption (SSE) at one time. "
        "You can either enable KMS SSE or SQS SSE."
    )


def test_the_name_of_a_key_has_an_end(sqs: Service) -> None:
    attributes = {"KmsMasterKeyId": "k" * 2049}

    error = sqs.refused("CreateQueue", queue_name="orders", attributes=attributes)

    assert error.message == "Invalid value for the parameter KmsMasterKeyId."


# -- redrive policies --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 1000, "1", "1000"])
def test_a_receive_count_may_be_a_number_or_text(sqs: Service, count: object) -> None:
    sqs.create("dead")
    url = sqs.create("orders", RedrivePolicy=redrive_policy("dead", count))

    shown = json.loads(sqs.attributes(url)["RedrivePolicy"])
    assert shown == {"deadLetterTargetArn": ARN + "dead", "maxReceiveCount": int(str(count))}
    assert sqs.broker.settings("orders").max_receives == int(str(count))


def test_a_policy_is_shown_as_it_was_sent(sqs: Service) -> None:
    sqs.create("dead")
    sent = f'{{ "maxReceiveCount" : 7,  "deadLetterTargetArn":"{ARN}dead"}}'

    assert sqs.attributes(sqs.create("orders", RedrivePolicy=sent))["RedrivePolicy"] == sent


def test_an_empty_redrive_policy_removes_it(sqs: Service) -> None:
    sqs.create("dead")
    url = sqs.create("orders", RedrivePolicy=redrive_policy("dead"))
    sqs.set(url, RedrivePolicy="")

    assert "RedrivePolicy" not in sqs.attributes(url)
    found = sqs.broker.settings("orders")
    assert (found.dead_letter, found.max_receives) == (None, None)


BAD_REDRIVE = [
    ("{}", "Redrive policy does not contain mandatory attribute: maxReceiveCount."),
    ('{"maxReceiveCount":5}', "Redrive policy does not contain mandatory attribute: deadLetterTargetArn."),
    (
        dead_letter_policy(ARN + "dead", 5, extra=1),
        "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].",
    ),
    ('{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}', "Invalid value for deadLetterTargetArn."),
    (dead_letter_policy(""), "Invalid value for deadLetterTargetArn."),
    (json.dumps({"deadLetterTargetArn": 7, "maxReceiveCount": 5}), "Invalid value for deadLetterTargetArn."),
    (
        dead_letter_policy("arn:aws:sns:us-east-1:000000000000:dead"),
        "Only SQS queues are valid resources for deadLetterTargetArn.",
    ),
    (
        dead_letter_policy("arn:aws:sqs:eu-west-1:000000000000:dead"),
        "Dead-letter target must be in same region as the source.",
    ),
    (
        dead_letter_policy(f"arn:aws:sqs:us-east-1:{OTHER}:dead"),
        "Dead-letter target owner should be same as the source.",
    ),
    (dead_letter_policy(ARN + "missing"), "Dead letter target does not exist."),
    (dead_letter_policy(ARN + "dead.fifo"), "Dead-letter queue must be same type of queue as the source."),
]


@pytest.mark.parametrize(("text", "reason"), BAD_REDRIVE)
def test_a_redrive_policy_that_cannot_be_is_refused_with_its_reason(
    sqs: Service, text: str, reason: str
) -> None:
    sqs.create("dead")
    sqs.create("dead.fifo", FifoQueue="true")

    error = sqs.refused("CreateQueue", queue_name="orders", attributes={"RedrivePolicy": text})

    assert error.code == "InvalidParameterValue"
    assert error.message == f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}"


@pytest.mark.parametrize("count", [0, -36, 1001, "x", "", 1.5, None, True, [3]])
def test_a_receive_count_is_one_to_a_thousand(sqs: Service, count: object) -> None:
    sqs.create("dead")
    url = sqs.create("orders")

    error = sqs.refused(
        "SetQueueAttributes", queue_url=url, attributes={"RedrivePolicy": redrive_policy("dead", count)}
    )

    assert error.code == "InvalidParameterValue"
    assert error.message.endswith(
        f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive."
    )


@pytest.mark.parametrize("text", [" ", "[]", "4", '"x"', "{", "[" * 100_000])
def test_a_redrive_policy_is_a_json_map(sqs: Service, text: str) -> None:
    error = sqs.refused("CreateQueue", queue_name="orders", attributes={"RedrivePolicy": text})

    assert error.code == "InvalidAttributeValue"
    assert error.message == (
        "Invalid value for the parameter RedrivePolicy. Reason: Redrive policy is not a valid JSON map."
    )


@pytest.mark.parametrize(
    ("allow", "is_allowed"),
    [
        (redrive_allow_policy("allowAll"), True),
        (redrive_allow_policy("denyAll"), False),
        (redrive_allow_policy("byQueue", ARN + "orders"), True),
        (redrive_allow_policy("byQueue", ARN + "others"), False),
        ("", True),
    ],
)
def test_a_dead_letter_queue_says_who_may_use_it(sqs: Service, allow: str, is_allowed: bool) -> None:
    dead = sqs.create("dead")
    sqs.set(dead, RedriveAllowPolicy=allow)
    url = sqs.create("orders")

    assert sqs.attributes(dead, "RedriveAllowPolicy") == ({"RedriveAllowPolicy": allow} if allow else {})
    if is_allowed:
        sqs.set(url, RedrivePolicy=redrive_policy("dead"))
        assert "RedrivePolicy" in sqs.attributes(url)
    else:
        wanted = {"RedrivePolicy": redrive_policy("dead")}
        error = sqs.refused("SetQueueAttributes", queue_url=url, attributes=wanted)
        assert error.code == "InvalidParameterValue"
        assert "redrive allow policy" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "badjson",
        "[]",
        "{}",
        redrive_allow_policy("dummy"),
        redrive_allow_policy([]),
        '{"redrivePermission":"allowAll","dummy":1}',
        redrive_allow_policy("byQueue", 5),
        '{"redrivePermission":"byQueue","sourceQueueArns":"arn:aws:sqs"}',
    ],
)
def test_a_redrive_allow_policy_in_another_format_is_refused(sqs: Service, text: str) -> None:
    error = sqs.refused("CreateQueue", queue_name="dead", attributes={"RedriveAllowPolicy": text})

    assert error.code == "InvalidAttributeValue"
    assert error.message.startswith("Invalid value for the parameter RedriveAllowPolicy. Reason: ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            redrive_allow_policy("byQueue"),
            "When you specify the byQueue permission type, you must also specify one or more",
        ),
        (
            redrive_allow_policy("allowAll", ARN + "a"),
            "To specify one or more source queue ARNs, you must set",
        ),
        (
            redrive_allow_policy("byQueue", *[f"{ARN}q{n}" for n in range(11)]),
            "The maximum number of source queue ARNs you can specify is 10.",
        ),
    ],
)
def test_a_redrive_allow_policy_names_sources_by_queue_only(sqs: Service, text: str, reason: str) -> None:
    error = sqs.refused("CreateQueue", queue_name="dead", attributes={"RedriveAllowPolicy": text})

    assert error.code == "InvalidParameterValue"
    assert error.message.startswith(
        f"Value {text} for parameter RedriveAllowPolicy is invalid. "
        f"Reason: Amazon SQS can't create the redrive allow policy. {reason}"
    )
