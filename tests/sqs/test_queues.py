"""The queue actions of SQS, as its API reference and botocore's model describe them."""

import json
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import pytest

from openq.model import MAX_SPAN_MS, QueueSettings
from openq.names import qualified_name
from openq.sqs import limits, queue_attributes
from openq.sqs.queues import QUEUE_ACTIONS
from openq.sqs.recent_queues import RecentQueues
from openq.sqs.requests import REQUESTS
from tests.sqs.service import ARN, HOST, Service, redrive_policy, serving

OTHER = "111122223333"


@pytest.fixture
def sqs() -> Iterator[Service]:
    with serving() as service:
        yield service


# -- the table ---------------------------------------------------------------------------------


def test_every_action_that_is_not_about_messages_is_here() -> None:
    messages = {"SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility"}
    messages |= {f"{name}Batch" for name in messages - {"ReceiveMessage"}}

    assert QUEUE_ACTIONS.keys() == REQUESTS.keys() - messages


def test_the_attributes_are_those_of_the_model() -> None:
    model = botocore.session.get_session().get_service_model("sqs")

    assert set(queue_attributes.ATTRIBUTES) | {"All"} == set(model.shape_for("QueueAttributeName").enum)


# -- CreateQueue -------------------------------------------------------------------------------


def test_a_new_queue_has_the_defaults_of_aws(sqs: Service) -> None:
    url = sqs.create("orders")

    assert url == f"http://{HOST}/000000000000/orders"
    now = str(sqs.clock.now_ms() // 1000)
    assert sqs.attributes(url) == {
        "QueueArn": ARN + "orders",
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "CreatedTimestamp": now,
        "LastModifiedTimestamp": now,
        "VisibilityTimeout": "30",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "DelaySeconds": "0",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
    }


def test_a_new_fifo_queue_shows_its_four_attributes_too(sqs: Service) -> None:
    shown = sqs.attributes(sqs.create("orders.fifo", FifoQueue="true"))

    fifo = {name: shown[name] for name in shown.keys() - sqs.attributes(sqs.create("plain")).keys()}
    assert fifo == {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }
    assert sqs.broker.settings("orders.fifo").fifo


def test_attributes_of_a_new_queue_reach_the_engine(sqs: Service) -> None:
    sqs.create("dead.fifo", FifoQueue="true")
    sqs.create(
        "orders.fifo",
        FifoQueue="true",
        VisibilityTimeout="45",
        DelaySeconds="7",
        MessageRetentionPeriod="60",
        ContentBasedDeduplication="true",
        DeduplicationScope="messageGroup",
        FifoThroughputLimit="perMessageGroupId",
        RedrivePolicy=redrive_policy("dead.fifo", 4),
    )

    found = sqs.broker.settings("orders.fifo")
    assert (found.visibility_ms, found.delay_ms, found.retention_ms) == (45_000, 7_000, 60_000)
    assert (found.dedup_by_content, found.dedup_per_group) == (True, True)
    assert (found.dead_letter, found.max_receives) == ("dead.fifo", 4)


def test_what_the_message_actions_ask_comes_from_the_attributes(sqs: Service) -> None:
    sqs.create("orders", MaximumMessageSize="2048", ReceiveMessageWaitTimeSeconds="20")

    found = sqs.broker.settings("orders")
    assert queue_attributes.max_message_size(found, limits.STRICT) == 2048
    assert queue_attributes.wait_s(found) == 20
    assert queue_attributes.max_message_size(QueueSettings(), limits.STRICT) == 1_048_576
    assert queue_attributes.wait_s(QueueSettings()) == 0


PLAIN_RULE = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
FIFO_RULE = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "


@pytest.mark.parametrize(
    "name", ["", "a" * 81, "with.dot", "slash/es", "caf\u00e9", "orders.fifo", "a b", "a\n"]
)
def test_a_name_that_sqs_does_not_allow_is_refused(sqs: Service, name: str) -> None:
    error = sqs.refused("CreateQueue", queue_name=name)

    assert (error.code, error.message) == ("InvalidParameterValue", PLAIN_RULE)


@pytest.mark.parametrize("name", ["orders", "or.ders.fifo", "a" * 76 + ".fifo", ".fifo", "orders.FIFO"])
def test_a_fifo_queue_needs_the_suffix(sqs: Service, name: str) -> None:
    error = sqs.refused("CreateQueue", queue_name=name, attributes={"FifoQueue": "true"})

    assert error.code == "InvalidParameterValue"
    assert error.message.startswith(FIFO_RULE)


def test_names_are_case_sensitive_and_may_have_eighty_characters(sqs: Service) -> None:
    sqs.create("Orders")
    sqs.create("orders")
    sqs.create("a" * 80)
    sqs.create("a" * 75 + ".fifo", FifoQueue="true")

    assert len(sqs.do("ListQueues")["QueueUrls"]) == 4


def test_the_same_attributes_again_give_the_same_url(sqs: Service) -> None:
    sqs.create("dead")
    wanted = {"DelaySeconds": "5", "RedrivePolicy": redrive_policy("dead"), "Policy": POLICY}
    url = sqs.create("orders", **wanted)
    spaced = json.dumps(json.loads(redrive_policy("dead")), indent=1)

    assert sqs.create("orders", **wanted) == url
    assert sqs.create("orders") == url
    assert sqs.create("orders", DelaySeconds="5") == url
    assert sqs.create("orders", VisibilityTimeout="30", SqsManagedSseEnabled="true") == url
    assert sqs.create("orders", RedrivePolicy=spaced) == url


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DelaySeconds", "1"),
        ("VisibilityTimeout", "31"),
        ("MaximumMessageSize", "1024"),
        ("KmsMasterKeyId", "alias/key"),
        ("SqsManagedSseEnabled", "false"),
        ("RedriveAllowPolicy", '{"redrivePermission":"denyAll"}'),
    ],
)
def test_a_different_attribute_is_named(sqs: Service, name: str, value: str) -> None:
    sqs.create("orders", ReceiveMessageWaitTimeSeconds="3")
    given = {"ReceiveMessageWaitTimeSeconds": "3", name: value}

    error = sqs.refused("CreateQueue", queue_name="orders", attributes=given)

    assert (error.name, error.code, error.status) == ("QueueNameExists", "QueueAlreadyExists", 400)
    assert error.message == (
        f"A queue already exists with the same name and a different value for attribute {name}"
    )
    assert sqs.attributes(sqs.create("orders"), "ReceiveMessageWaitTimeSeconds", name).get(name) != value


def test_a_queue_that_only_looks_like_fifo_is_not_taken_for_one(sqs: Service) -> None:
    sqs.broker.declare("orders.fifo", QueueSettings())

    error = sqs.refused("CreateQueue", queue_name="orders.fifo", attributes={"FifoQueue": "true"})

    assert error.name == "QueueNameExists"
    assert error.message.endswith("FifoQueue")


def test_a_queue_of_another_account_is_another_queue(sqs: Service) -> None:
    mine = sqs.create("orders")
    theirs = sqs.do("CreateQueue", sqs.guard.open_principal(OTHER), queue_name="orders")["QueueUrl"]

    assert theirs == f"http://{HOST}/{OTHER}/orders" != mine
    assert sqs.attributes(theirs, "QueueArn") == {"QueueArn": f"arn:aws:sqs:us-east-1:{OTHER}:orders"}
    assert sqs.do("ListQueues")["QueueUrls"] == [mine]
    assert sqs.do("ListQueues", sqs.guard.open_principal(OTHER))["QueueUrls"] == [theirs]
    assert sorted(sqs.broker.queues()) == sorted(["orders", qualified_name(OTHER, "orders")])


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


def test_an_empty_redrive_policy_takes_it_away(sqs: Service) -> None:
    sqs.create("dead")
    url = sqs.create("orders", RedrivePolicy=redrive_policy("dead"))
    sqs.set(url, RedrivePolicy="")

    assert "RedrivePolicy" not in sqs.attributes(url)
    found = sqs.broker.settings("orders")
    assert (found.dead_letter, found.max_receives) == (None, None)


def _arn(text: str, count: object = 3, **more: object) -> str:
    return json.dumps({"deadLetterTargetArn": text, "maxReceiveCount": count, **more})


BAD_REDRIVE = [
    ("{}", "Redrive policy does not contain mandatory attribute: maxReceiveCount."),
    ('{"maxReceiveCount":5}', "Redrive policy does not contain mandatory attribute: deadLetterTargetArn."),
    (
        _arn(ARN + "dead", 5, extra=1),
        "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].",
    ),
    ('{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}', "Invalid value for deadLetterTargetArn."),
    (_arn(""), "Invalid value for deadLetterTargetArn."),
    (json.dumps({"deadLetterTargetArn": 7, "maxReceiveCount": 5}), "Invalid value for deadLetterTargetArn."),
    (
        _arn("arn:aws:sns:us-east-1:000000000000:dead"),
        "Only SQS queues are valid resources for deadLetterTargetArn.",
    ),
    (
        _arn("arn:aws:sqs:eu-west-1:000000000000:dead"),
        "Dead-letter target must be in same region as the source.",
    ),
    (
        _arn(f"arn:aws:sqs:us-east-1:{OTHER}:dead"),
        "Dead-letter target owner should be same as the source.",
    ),
    (_arn(ARN + "missing"), "Dead letter target does not exist."),
    (_arn(ARN + "dead.fifo"), "Dead-letter queue must be same type of queue as the source."),
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


def _allow(permission: object, *arns: object) -> str:
    return json.dumps({"redrivePermission": permission} | ({"sourceQueueArns": list(arns)} if arns else {}))


@pytest.mark.parametrize(
    ("allow", "is_allowed"),
    [
        (_allow("allowAll"), True),
        (_allow("denyAll"), False),
        (_allow("byQueue", ARN + "orders"), True),
        (_allow("byQueue", ARN + "others"), False),
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
        _allow("dummy"),
        _allow([]),
        '{"redrivePermission":"allowAll","dummy":1}',
        _allow("byQueue", 5),
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
            _allow("byQueue"),
            "When you specify the byQueue permission type, you must also specify one or more",
        ),
        (_allow("allowAll", ARN + "a"), "To specify one or more source queue ARNs, you must set"),
        (
            _allow("byQueue", *[f"{ARN}q{n}" for n in range(11)]),
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


# -- DeleteQueue, GetQueueUrl ------------------------------------------------------------------


def test_a_deleted_queue_is_gone_and_its_name_rests_for_a_minute(sqs: Service) -> None:
    url = sqs.create("orders")
    sqs.do("DeleteQueue", queue_url=url)

    assert sqs.refused("GetQueueUrl", queue_name="orders").name == "QueueDoesNotExist"
    assert sqs.refused("DeleteQueue", queue_url=url).code == "AWS.SimpleQueueService.NonExistentQueue"
    sqs.clock.advance(59.999)
    error = sqs.refused("CreateQueue", queue_name="orders")
    assert error.code == "AWS.SimpleQueueService.QueueDeletedRecently"
    sqs.clock.advance(0.001)
    assert sqs.create("orders") == url


def test_a_name_rests_only_where_it_was_deleted(sqs: Service) -> None:
    sqs.do("DeleteQueue", queue_url=sqs.create("orders"))

    sqs.do("CreateQueue", sqs.guard.open_principal(OTHER), queue_name="orders")
    with serving() as another:
        another.create("orders")


def test_what_is_remembered_for_a_minute_is_forgotten_afterwards() -> None:
    recent = RecentQueues()
    for second in range(1000):
        recent.add(f"queue-{second}", second * 1000, 60)

    assert len(recent._times) == 60
    assert recent.within("queue-999", 999_000, 60)
    assert not recent.within("queue-0", 999_000, 60)


def test_the_url_of_a_queue_is_found_by_its_name(sqs: Service) -> None:
    url = sqs.create("orders")

    assert sqs.do("GetQueueUrl", queue_name="orders") == {"QueueUrl": url}
    theirs = sqs.guard.open_principal(OTHER)
    found = sqs.do("GetQueueUrl", theirs, queue_name="orders", queue_owner_aws_account_id="000000000000")
    assert found == {"QueueUrl": url}
    for name in ("Orders", "nothing", "a.b", "@/orders"):
        error = sqs.refused("GetQueueUrl", queue_name=name)
        assert (error.name, error.status) == ("QueueDoesNotExist", 400)


# -- ListQueues --------------------------------------------------------------------------------


def test_queues_are_listed_in_order_and_by_prefix(sqs: Service) -> None:
    for name in ("b", "a2", "a1", "A0"):
        sqs.create(name)

    def listed(**members: object) -> list[str]:
        return [url.rpartition("/")[2] for url in sqs.do("ListQueues", **members).get("QueueUrls", [])]

    assert listed() == ["A0", "a1", "a2", "b"]
    assert listed(queue_name_prefix="a") == ["a1", "a2"]
    assert sqs.do("ListQueues", queue_name_prefix="zzz") == {}


def test_queues_that_sqs_cannot_name_are_not_listed(sqs: Service) -> None:
    sqs.create("orders")
    for name in ("with.dot", "caf\u00e9", "a" * 81, "@x/y", "@/z"):
        sqs.broker.declare(name, QueueSettings())

    assert sqs.do("ListQueues")["QueueUrls"] == [f"http://{HOST}/000000000000/orders"]


def test_pages_neither_repeat_nor_skip_while_queues_come_and_go(sqs: Service) -> None:
    urls = [sqs.create(f"q{n}") for n in range(6)]

    first = sqs.do("ListQueues", max_results=2)
    assert first["QueueUrls"] == urls[:2]
    sqs.do("DeleteQueue", queue_url=urls[1])
    sqs.create("q0a")
    second = sqs.do("ListQueues", max_results=2, next_token=first["NextToken"])
    assert second["QueueUrls"] == urls[2:4]
    third = sqs.do("ListQueues", max_results=2, next_token=second["NextToken"])
    assert third == {"QueueUrls": urls[4:]}


def test_without_max_results_there_are_a_thousand_and_no_token(sqs: Service) -> None:
    for number in range(1_003):
        sqs.broker.declare(f"q{number:04}", QueueSettings())

    everything = sqs.do("ListQueues")
    assert len(everything["QueueUrls"]) == 1_000
    assert "NextToken" not in everything
    page = sqs.do("ListQueues", max_results=1_000)
    rest = sqs.do("ListQueues", next_token=page["NextToken"])
    assert [url[-5:] for url in rest["QueueUrls"]] == ["q1000", "q1001", "q1002"]


@pytest.mark.parametrize("wrong", [0, -1, 1_001])
def test_a_page_has_one_to_a_thousand_queues(sqs: Service, wrong: int) -> None:
    url = sqs.create("orders")

    for error in (
        sqs.refused("ListQueues", max_results=wrong),
        sqs.refused("ListDeadLetterSourceQueues", queue_url=url, max_results=wrong),
    ):
        assert error.code == "InvalidParameterValue"
        assert error.message.endswith("MaxResults must be an integer between 1 and 1000.")


@pytest.mark.parametrize("wrong", ["x", "====", "!!", "w6k=", "\u00e9", "YSBi"])
def test_a_token_that_is_none_is_refused(sqs: Service, wrong: str) -> None:
    assert sqs.refused("ListQueues", next_token=wrong).code == "InvalidParameterValue"


def test_the_sources_of_a_dead_letter_queue_are_listed(sqs: Service) -> None:
    dead = sqs.create("dead")
    assert sqs.do("ListDeadLetterSourceQueues", queue_url=dead) == {"queueUrls": []}
    sqs.create("bystander")
    urls = [sqs.create(f"q{n}", RedrivePolicy=redrive_policy("dead")) for n in range(3)]

    assert sqs.do("ListDeadLetterSourceQueues", queue_url=dead) == {"queueUrls": urls}
    page = sqs.do("ListDeadLetterSourceQueues", queue_url=dead, max_results=2)
    assert page["queueUrls"] == urls[:2]
    rest = sqs.do("ListDeadLetterSourceQueues", queue_url=dead, max_results=2, next_token=page["NextToken"])
    assert rest == {"queueUrls": urls[2:]}


def test_the_sources_in_another_account_have_that_accounts_urls(sqs: Service) -> None:
    theirs = sqs.guard.open_principal(OTHER)
    dead = sqs.do("CreateQueue", theirs, queue_name="dead")["QueueUrl"]
    policy = _arn(f"arn:aws:sqs:us-east-1:{OTHER}:dead")
    url = sqs.do("CreateQueue", theirs, queue_name="orders", attributes={"RedrivePolicy": policy})["QueueUrl"]

    assert sqs.do("ListDeadLetterSourceQueues", queue_url=dead) == {"queueUrls": [url]}


# -- PurgeQueue --------------------------------------------------------------------------------


def test_a_purge_takes_everything_and_the_next_waits_a_minute(sqs: Service) -> None:
    url = sqs.create("orders")
    sqs.send("orders", "one", "two")
    [lent] = sqs.broker.receive("orders", 1)
    sqs.do("PurgeQueue", queue_url=url)

    assert set(sqs.attributes(url, *queue_attributes.COUNTS).values()) == {"0"}
    assert sqs.broker.ack("orders", [(lent.entry.seq, lent.number)])[0] is not None
    sqs.clock.advance(59.999)
    error = sqs.refused("PurgeQueue", queue_url=url)
    assert (error.code, error.status) == ("AWS.SimpleQueueService.PurgeQueueInProgress", 403)
    assert error.message == "Only one PurgeQueue operation on orders is allowed every 60 seconds."
    sqs.clock.advance(0.001)
    sqs.send("orders", "three")
    sqs.do("PurgeQueue", queue_url=url)
    assert sqs.broker.stats("orders").ready == 0


def test_every_queue_has_its_own_minute(sqs: Service) -> None:
    for name in ("one", "two"):
        sqs.do("PurgeQueue", queue_url=sqs.create(name))


# -- tags --------------------------------------------------------------------------------------


def test_tags_are_added_replaced_and_taken_away(sqs: Service) -> None:
    url = sqs.create("orders", tags={"team": "a", "empty": ""})
    assert sqs.do("ListQueueTags", queue_url=url) == {"Tags": {"team": "a", "empty": ""}}

    sqs.do("TagQueue", queue_url=url, tags={"team": "b", "Team": "c"})
    sqs.do("UntagQueue", queue_url=url, tag_keys=["empty", "never-there"])
    assert sqs.do("ListQueueTags", queue_url=url) == {"Tags": {"team": "b", "Team": "c"}}

    sqs.do("UntagQueue", queue_url=url, tag_keys=["team", "Team"])
    assert sqs.do("ListQueueTags", queue_url=url) == {}


@pytest.mark.parametrize(
    ("tags", "sentence"),
    [
        ({}, "The request must contain the parameter Tags."),
        ({"": "x"}, "Tag keys must be between 1 and 128 characters in length."),
        ({"k" * 129: "x"}, "Tag keys must be between 1 and 128 characters in length."),
        ({"k": "v" * 257}, "Tag values must be between 0 and 256 characters in length."),
        ({"aws:k": "v"}, "Tag keys must not begin with aws:, which AWS reserves."),
        ({f"k{n}": "v" for n in range(50)}, "Too many tags added for queue orders."),
        (
            {"openq:limits": "none"},
            "The tag openq:limits must be one of strict, testing, relaxed, not 'none'.",
        ),
    ],
)
def test_tags_that_cannot_be_change_nothing(sqs: Service, tags: dict[str, str], sentence: str) -> None:
    url = sqs.create("orders", tags={"one": "1"})

    assert sqs.refused("TagQueue", queue_url=url, tags=tags).message == sentence
    assert sqs.do("ListQueueTags", queue_url=url) == {"Tags": {"one": "1"}}


@pytest.mark.parametrize("keys", [[], [""], ["k" * 129]])
def test_tags_are_taken_away_by_key(sqs: Service, keys: list[str]) -> None:
    url = sqs.create("orders")

    error = sqs.refused("UntagQueue", queue_url=url, tag_keys=keys)

    assert error.code == "InvalidParameterValue"
    assert error.message == "Tag keys must be between 1 and 128 characters in length."


# -- permissions -------------------------------------------------------------------------------

POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "all",
                "Effect": "Allow",
                "Principal": "*",
                "Action": "sqs:SendMessage",
                "Resource": ARN + "orders",
            }
        ],
    }
)


def _permit(sqs: Service, url: str, label: str, *actions: str, accounts: list[str] | None = None) -> None:
    sqs.do(
        "AddPermission",
        queue_url=url,
        label=label,
        actions=list(actions),
        aws_account_ids=accounts or [OTHER],
    )


def test_a_policy_is_kept_word_for_word_and_an_empty_one_takes_it_away(sqs: Service) -> None:
    url = sqs.create("orders", Policy=POLICY)
    assert sqs.attributes(url, "Policy") == {"Policy": POLICY}

    sqs.set(url, Policy="")
    assert sqs.attributes(url, "Policy") == {}


@pytest.mark.parametrize(
    "text",
    [
        "badjson",
        "[]",
        "null",
        '{"Version":"4532-10-17","Statement":[]}',
        '{"Version":"2012-10-17","Statement":[]}',
        POLICY.replace("Allow", "Maybe"),
        POLICY.replace("Effect", "Efect"),
    ],
)
def test_a_policy_that_is_none_is_refused(sqs: Service, text: str) -> None:
    error = sqs.refused("CreateQueue", queue_name="orders", attributes={"Policy": text})

    assert (error.code, error.message) == (
        "InvalidAttributeValue",
        "Invalid value for the parameter Policy.",
    )


def test_a_policy_has_at_most_twenty_statements(sqs: Service) -> None:
    url = sqs.create("orders")
    statement = json.loads(POLICY)["Statement"][0]
    long = json.dumps(
        {"Version": "2012-10-17", "Statement": [{**statement, "Sid": f"s{n}"} for n in range(22)]}
    )
    error = sqs.refused("SetQueueAttributes", queue_url=url, attributes={"Policy": long})
    assert (error.code, error.status) == ("OverLimit", 403)
    assert error.message == "22 statements were found in the submitted policy, max allowed is 20"

    for number in range(20):
        _permit(sqs, url, f"label{number}", "SendMessage")
    members = {"label": "label20", "actions": ["SendMessage"], "aws_account_ids": [OTHER]}
    error = sqs.refused("AddPermission", queue_url=url, **members)
    assert error.message == "21 statements were found in the submitted policy, max allowed is 20"


def test_permissions_make_the_policy_that_aws_makes(sqs: Service) -> None:
    url = sqs.create("orders")
    _permit(sqs, url, "one", "ReceiveMessage", accounts=["668614515564", OTHER])
    _permit(sqs, url, "two", "*", "SendMessage")

    assert json.loads(sqs.attributes(url, "Policy")["Policy"]) == {
        "Version": "2008-10-17",
        "Id": f"{ARN}orders/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "one",
                "Effect": "Allow",
                "Principal": {"AWS": ["arn:aws:iam::668614515564:root", f"arn:aws:iam::{OTHER}:root"]},
                "Action": "SQS:ReceiveMessage",
                "Resource": ARN + "orders",
            },
            {
                "Sid": "two",
                "Effect": "Allow",
                "Principal": {"AWS": f"arn:aws:iam::{OTHER}:root"},
                "Action": ["SQS:*", "SQS:SendMessage"],
                "Resource": ARN + "orders",
            },
        ],
    }
    sqs.do("RemovePermission", queue_url=url, label="one")
    assert [each["Sid"] for each in json.loads(sqs.attributes(url)["Policy"])["Statement"]] == ["two"]
    sqs.do("RemovePermission", queue_url=url, label="two")
    assert sqs.attributes(url, "Policy") == {}


def test_a_permission_joins_a_policy_that_was_set(sqs: Service) -> None:
    url = sqs.create("orders", Policy=POLICY.replace("[{", "{").replace("}]", "}"))
    _permit(sqs, url, "mine", "SendMessage")

    sids = [each["Sid"] for each in json.loads(sqs.attributes(url)["Policy"])["Statement"]]
    assert sids == ["all", "mine"]


BAD_PERMISSIONS = [
    ({"actions": []}, "MissingParameter", "The request must contain the parameter Actions."),
    (
        {"aws_account_ids": []},
        "InvalidParameterValue",
        "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.",
    ),
    (
        {"aws_account_ids": ["*"]},
        "InvalidParameterValue",
        "Value [*] for parameter PrincipalId is invalid. Reason: Unable to verify.",
    ),
    (
        {"actions": ["RemovePermission"]},
        "InvalidParameterValue",
        "Value SQS:RemovePermission for parameter ActionName is invalid. "
        "Reason: Only the queue owner is allowed to invoke this action.",
    ),
    (
        {"actions": ["Nonsense"]},
        "InvalidParameterValue",
        "Value SQS:Nonsense for parameter ActionName is invalid. "
        "Reason: Please refer to the appropriate WSDL for a list of valid actions.",
    ),
    (
        {"actions": ["SendMessageBatch"]},
        "InvalidParameterValue",
        "Value SQS:SendMessageBatch for parameter ActionName is invalid. "
        "Reason: Please refer to the appropriate WSDL for a list of valid actions.",
    ),
    ({"actions": ["SendMessage"] * 8}, "OverLimit", "8 Actions were found, maximum allowed is 7."),
    (
        {"label": "taken"},
        "InvalidParameterValue",
        "Value taken for parameter Label is invalid. Reason: Already exists.",
    ),
    (
        {"label": "a b"},
        "InvalidParameterValue",
        "Value a b for parameter Label is invalid. Reason: "
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
    ),
]


@pytest.mark.parametrize(("change", "code", "sentence"), BAD_PERMISSIONS)
def test_a_permission_that_cannot_be_is_refused(
    sqs: Service, change: dict[str, object], code: str, sentence: str
) -> None:
    url = sqs.create("orders")
    _permit(sqs, url, "taken", "SendMessage")
    before = sqs.attributes(url, "Policy")
    members = {"label": "new", "actions": ["SendMessage"], "aws_account_ids": [OTHER]} | change

    error = sqs.refused("AddPermission", queue_url=url, **members)

    assert (error.code, error.message) == (code, sentence)
    assert sqs.attributes(url, "Policy") == before


def test_a_label_that_is_not_there_cannot_be_removed(sqs: Service) -> None:
    url = sqs.create("orders")
    sentence = "Value none for parameter Label is invalid. Reason: can't find label"

    error = sqs.refused("RemovePermission", queue_url=url, label="none")
    assert (error.code, error.message) == ("InvalidParameterValue", f"{sentence} on existing policy.")
    _permit(sqs, url, "other", "SendMessage")
    assert sqs.refused("RemovePermission", queue_url=url, label="none").message == f"{sentence}."
    sqs.do("RemovePermission", queue_url=url, label="other")
    assert sqs.refused("RemovePermission", queue_url=url, label="none").message == f"{sentence}."


# -- restarts ----------------------------------------------------------------------------------


def test_everything_about_a_queue_survives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as before:
        before.create("dead", RedriveAllowPolicy=_allow("byQueue", ARN + "orders"))
        url = before.create(
            "orders",
            tags={"team": "a", "openq:limits": "relaxed"},
            RedrivePolicy=redrive_policy("dead"),
            Policy=POLICY,
            DelaySeconds="1000",
            MaximumMessageSize="5000",
            ReceiveMessageWaitTimeSeconds="4",
            KmsMasterKeyId="key",
        )
        before.clock.advance(5)
        before.set(url, VisibilityTimeout="9")
        shown, tags = before.attributes(url), before.do("ListQueueTags", queue_url=url)
        before.broker.sync()

    with serving(tmp_path) as after:
        assert after.attributes(url) == shown
        assert after.do("ListQueueTags", queue_url=url) == tags
        after.set(url, DelaySeconds="2000")
        error = after.refused(
            "CreateQueue", queue_name="others", attributes={"RedrivePolicy": redrive_policy("dead")}
        )
        assert error.code == "InvalidParameterValue"


# -- a queue that is not there -------------------------------------------------------------------

BY_URL = {
    "DeleteQueue": {},
    "PurgeQueue": {},
    "GetQueueAttributes": {"attribute_names": ["Nonsense"]},
    "SetQueueAttributes": {"attributes": {"Nonsense": "1"}},
    "TagQueue": {"tags": {}},
    "UntagQueue": {"tag_keys": []},
    "ListQueueTags": {},
    "ListDeadLetterSourceQueues": {"max_results": 0},
    "AddPermission": {"label": "x", "actions": [], "aws_account_ids": []},
    "RemovePermission": {"label": "x"},
}


@pytest.mark.parametrize("action", BY_URL)
def test_a_queue_that_does_not_exist_is_said_before_anything_else(sqs: Service, action: str) -> None:
    url = f"http://{HOST}/000000000000/nowhere"

    error = sqs.refused(action, queue_url=url, **BY_URL[action])

    assert (error.name, error.code) == ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
