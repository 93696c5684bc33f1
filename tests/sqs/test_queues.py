"""The queue actions of SQS, as its API reference and botocore's model describe them."""

import json
from pathlib import Path

import botocore.session
import pytest

from openq.model import QueueSettings
from openq.names import qualified_name
from openq.sqs import limits, queue_attributes
from openq.sqs.queues import QUEUE_ACTIONS
from openq.sqs.recent_queues import RecentQueues
from openq.sqs.requests import REQUESTS
from tests.sqs.service import (
    ARN,
    HOST,
    OTHER,
    POLICY,
    Service,
    dead_letter_policy,
    redrive_allow_policy,
    redrive_policy,
    serving,
)

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
    policy = dead_letter_policy(f"arn:aws:sqs:us-east-1:{OTHER}:dead")
    url = sqs.do("CreateQueue", theirs, queue_name="orders", attributes={"RedrivePolicy": policy})["QueueUrl"]

    assert sqs.do("ListDeadLetterSourceQueues", queue_url=dead) == {"queueUrls": [url]}


# -- PurgeQueue --------------------------------------------------------------------------------


def test_a_purge_takes_everything_and_the_next_waits_a_minute(sqs: Service) -> None:
    url = sqs.create("orders")
    sqs.send("orders", "one", "two")
    [leased] = sqs.broker.receive("orders", 1)
    sqs.do("PurgeQueue", queue_url=url)

    assert set(sqs.attributes(url, *queue_attributes.COUNTS).values()) == {"0"}
    assert sqs.broker.ack("orders", [(leased.entry.seq, leased.number)])[0] is not None
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


# -- restarts ----------------------------------------------------------------------------------


def test_everything_about_a_queue_survives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as before:
        before.create("dead", RedriveAllowPolicy=redrive_allow_policy("byQueue", ARN + "orders"))
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
