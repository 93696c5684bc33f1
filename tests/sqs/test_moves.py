"""Message move tasks of SQS: who may, what is shown, and that every message is in exactly one place."""

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from openq.auth.guard import Principal
from openq.auth.rules import ROLES, Rule
from openq.model import QueueSettings
from openq.names import qualified_name
from openq.server.tasks import MAX_RUNNING_OF_ACCOUNT, LongOperation
from tests.sqs.service import ARN, Service, redrive_policy, serving

OTHER = "111122223333"


@pytest.fixture
def sqs() -> Iterator[Service]:
    with serving() as service:
        service.create("dead")
        service.create("orders", RedrivePolicy=redrive_policy("dead"))
        service.create("elsewhere")
        yield service


def start(sqs: Service, **members: Any) -> str:
    handle: str = sqs.do("StartMessageMoveTask", source_arn=ARN + "dead", **members)["TaskHandle"]
    return handle


def listed(sqs: Service, **members: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sqs.do("ListMessageMoveTasks", source_arn=ARN + "dead", **members)[
        "Results"
    ]
    return found


def bodies(sqs: Service, queue: str) -> set[bytes | None]:
    return {entry.body for entry in sqs.broker.inspect.entries(queue)}


def handle(task_id: object, arn: object) -> str:
    return base64.b64encode(json.dumps({"taskId": task_id, "sourceArn": arn}).encode()).decode()


# -- moving ------------------------------------------------------------------------------------


def test_dead_letters_go_back_to_where_they_died(sqs: Service) -> None:
    sqs.create("payments", RedrivePolicy=redrive_policy("dead"))
    sqs.dead_letter("orders", "o1", "o2")
    sqs.dead_letter("payments", "p1")
    assert bodies(sqs, "dead") == {b"o1", b"o2", b"p1"}

    start(sqs)
    sqs.finish()

    assert bodies(sqs, "dead") == set()
    assert bodies(sqs, "orders") == {b"o1", b"o2"}
    assert bodies(sqs, "payments") == {b"p1"}
    assert listed(sqs) == [
        {
            "Status": "COMPLETED",
            "SourceArn": ARN + "dead",
            "ApproximateNumberOfMessagesMoved": 3,
            "ApproximateNumberOfMessagesToMove": 3,
            "StartedTimestamp": sqs.clock.now_ms(),
        }
    ]


def test_dead_letters_go_where_they_are_sent(sqs: Service) -> None:
    sqs.dead_letter("orders", "o1", "o2")
    sqs.send("dead", "never died")

    start(sqs, destination_arn=ARN + "elsewhere", max_number_of_messages_per_second=500)
    sqs.finish()

    assert bodies(sqs, "elsewhere") == {b"o1", b"o2", b"never died"}
    [shown] = listed(sqs)
    assert shown["DestinationArn"] == ARN + "elsewhere"
    assert shown["MaxNumberOfMessagesPerSecond"] == 500
    assert (shown["Status"], shown["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 3)


def test_what_never_died_has_nowhere_to_go_back_to(sqs: Service) -> None:
    sqs.send("dead", "never died")
    sqs.dead_letter("orders", "o1")

    start(sqs)
    sqs.finish()

    [shown] = listed(sqs)
    assert (shown["Status"], shown["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
    assert shown["ApproximateNumberOfMessagesMoved"] == 1
    assert (bodies(sqs, "dead"), bodies(sqs, "orders")) == ({b"never died"}, {b"o1"})


def test_letters_of_a_queue_that_is_gone_stay_where_they_are(sqs: Service) -> None:
    sqs.dead_letter("orders", "o1")
    sqs.broker.delete("orders")

    start(sqs)
    sqs.finish()

    assert listed(sqs)[0]["FailureReason"] == "CouldNotDetermineMessageSource"
    assert bodies(sqs, "dead") == {b"o1"}


def test_a_move_fails_when_its_destination_is_deleted(sqs: Service) -> None:
    sqs.dead_letter("orders", *(f"o{n}" for n in range(10)))

    start(sqs, destination_arn=ARN + "elsewhere", max_number_of_messages_per_second=1)
    sqs.broker.delete("elsewhere")
    sqs.finish()

    [shown] = listed(sqs)
    assert (shown["Status"], shown["FailureReason"]) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    assert "TaskHandle" not in shown


def test_a_running_move_can_be_cancelled_and_nothing_is_lost(sqs: Service) -> None:
    everything = {f"o{n}" for n in range(10)}
    sqs.dead_letter("orders", *everything)

    task = start(sqs, max_number_of_messages_per_second=1)
    [running] = listed(sqs)
    assert (running["Status"], running["TaskHandle"]) == ("RUNNING", task)
    assert running["ApproximateNumberOfMessagesToMove"] == 10
    moved = sqs.do("CancelMessageMoveTask", task_handle=task)["ApproximateNumberOfMessagesMoved"]
    assert 0 <= moved < 10
    [stopping] = listed(sqs)
    assert stopping["Status"] in ("CANCELLING", "CANCELLED")
    assert "TaskHandle" not in stopping
    sqs.finish()

    [ended] = listed(sqs)
    assert ended["Status"] == "CANCELLED"
    assert ended["ApproximateNumberOfMessagesMoved"] == len(bodies(sqs, "orders")) < 10
    assert bodies(sqs, "orders") | bodies(sqs, "dead") == {body.encode() for body in everything}


def test_there_is_one_move_at_a_time_for_a_queue(sqs: Service) -> None:
    sqs.dead_letter("orders", *(f"o{n}" for n in range(10)))
    task = start(sqs, max_number_of_messages_per_second=1)

    for attempt in (1, 2):
        error = sqs.refused("StartMessageMoveTask", source_arn=ARN + "dead")
        assert error.code == "InvalidParameterValue"
        assert error.message == (
            "There is already a task running. "
            "Only one active task is allowed for a source queue arn at a given time."
        )
        if attempt == 1:
            sqs.create("dead2")
            sqs.create("orders2", RedrivePolicy=redrive_policy("dead2"))
            sqs.do("StartMessageMoveTask", source_arn=ARN + "dead2")
    sqs.do("CancelMessageMoveTask", task_handle=task)
    sqs.finish()
    start(sqs)
    sqs.finish()
    assert bodies(sqs, "dead") == set()


def test_the_newest_moves_are_listed_first(sqs: Service) -> None:
    assert listed(sqs) == []
    for rate in range(1, 13):
        start(sqs, max_number_of_messages_per_second=rate)
        sqs.finish()

    assert [each["MaxNumberOfMessagesPerSecond"] for each in listed(sqs)] == [12]
    assert [each["MaxNumberOfMessagesPerSecond"] for each in listed(sqs, max_results=10)] == [
        *range(12, 2, -1)
    ]


def test_a_handle_has_the_form_that_aws_gives_it(sqs: Service) -> None:
    shown = json.loads(base64.b64decode(start(sqs)))

    assert shown.keys() == {"taskId", "sourceArn"}
    assert str(uuid.UUID(shown["taskId"])) == shown["taskId"]
    assert shown["sourceArn"] == ARN + "dead"


# -- refusals ----------------------------------------------------------------------------------

FORMAT = "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"


@pytest.mark.parametrize("wrong", ["invalid", "", "arn:aws:sqs:us-east-1:dead", ARN, ARN + "dead:more"])
def test_an_arn_has_six_parts(sqs: Service, wrong: str) -> None:
    sentence = "You must use this format to specify the {}: " + FORMAT
    for action, members, parameter in (
        ("StartMessageMoveTask", {"source_arn": wrong}, "SourceArn"),
        ("StartMessageMoveTask", {"source_arn": ARN + "dead", "destination_arn": wrong}, "DestinationArn"),
        ("ListMessageMoveTasks", {"source_arn": wrong}, "SourceArn"),
    ):
        error = sqs.refused(action, **members)
        assert (error.code, error.message) == ("InvalidParameterValue", sentence.format(parameter))


@pytest.mark.parametrize(
    "nowhere",
    [
        ARN + "missing",
        "arn:aws:sqs:eu-west-1:000000000000:dead",
        "arn:aws:sns:us-east-1:000000000000:dead",
        f"arn:aws:sqs:us-east-1:{OTHER}:dead",
    ],
)
def test_both_queues_of_a_move_must_exist(sqs: Service, nowhere: str) -> None:
    sentence = "The resource that you specified for the {} parameter doesn't exist."
    for action, members, parameter in (
        ("StartMessageMoveTask", {"source_arn": nowhere}, "SourceArn"),
        ("StartMessageMoveTask", {"source_arn": ARN + "dead", "destination_arn": nowhere}, "DestinationArn"),
        ("ListMessageMoveTasks", {"source_arn": nowhere}, "SourceArn"),
        ("CancelMessageMoveTask", {"task_handle": handle("x", nowhere)}, "SourceArn"),
    ):
        error = sqs.refused(action, **members)
        assert (error.name, error.status) == ("ResourceNotFoundException", 404)
        assert error.message == sentence.format(parameter)


def test_only_a_dead_letter_queue_can_be_redriven(sqs: Service) -> None:
    sqs.send("elsewhere", "never died")

    error = sqs.refused("StartMessageMoveTask", source_arn=ARN + "elsewhere", destination_arn=ARN + "orders")

    assert error.code == "InvalidParameterValue"
    assert error.message == "Source queue must be configured as a Dead Letter Queue."


def test_a_queue_that_still_holds_dead_letters_can_be_redriven(sqs: Service) -> None:
    sqs.dead_letter("orders", "o1")
    sqs.set("http://x/000000000000/orders", RedrivePolicy="")

    start(sqs)
    sqs.finish()

    assert bodies(sqs, "orders") == {b"o1"}


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"destination_arn": ARN + "dead"}, "Source queue arn and destination queue arn cannot be the same."),
        (
            {"destination_arn": ARN + "other.fifo"},
            "The source queue and destination queue must be of the same queue type.",
        ),
        *(
            (
                {"max_number_of_messages_per_second": rate},
                "Value for parameter MaxNumberOfMessagesPerSecond is invalid. "
                "Reason: You must enter a number that's between 1 and 500.",
            )
            for rate in (0, -1, 501)
        ),
    ],
)
def test_a_move_that_cannot_be_is_refused(sqs: Service, members: dict[str, Any], sentence: str) -> None:
    sqs.create("other.fifo", FifoQueue="true")

    error = sqs.refused("StartMessageMoveTask", source_arn=ARN + "dead", **members)

    assert (error.code, error.message) == ("InvalidParameterValue", sentence)
    assert listed(sqs) == []


@pytest.mark.parametrize("wrong", [0, 11, -1])
def test_one_to_ten_moves_are_listed(sqs: Service, wrong: int) -> None:
    error = sqs.refused("ListMessageMoveTasks", source_arn=ARN + "dead", max_results=wrong)

    assert error.code == "InvalidParameterValue"


@pytest.mark.parametrize(
    "wrong",
    [
        "foobared",
        "",
        "\u00e9",
        base64.b64encode(b"[]").decode(),
        base64.b64encode(b"\xff\xfe").decode(),
        base64.b64encode(b"[" * 100_000).decode(),
        handle(5, ARN + "dead"),
        handle("x", "no arn"),
    ],
)
def test_a_handle_that_is_none_is_refused(sqs: Service, wrong: str) -> None:
    error = sqs.refused("CancelMessageMoveTask", task_handle=wrong)

    assert error.code == "InvalidParameterValue"
    assert error.message == "Value for parameter TaskHandle is invalid."


def test_only_a_running_move_can_be_cancelled(sqs: Service) -> None:
    ended = start(sqs)
    sqs.finish()

    for wrong in (ended, handle(str(uuid.uuid4()), ARN + "dead")):
        error = sqs.refused("CancelMessageMoveTask", task_handle=wrong)
        assert (error.name, error.message) == ("ResourceNotFoundException", "Task does not exist.")


def test_too_many_tasks_are_throttled_as_sqs_does_it(sqs: Service) -> None:
    def wait(task: LongOperation) -> None:
        task.cancelling.wait(60)

    for number in range(MAX_RUNNING_OF_ACCOUNT):
        sqs.context.tasks.start("redrive", "000000000000", f"q{number}", wait)

    error = sqs.refused("StartMessageMoveTask", source_arn=ARN + "dead")

    assert error.name == "RequestThrottled"


def test_tasks_of_other_protocols_are_not_listed_as_move_tasks(sqs: Service) -> None:
    sqs.context.tasks.start("redrive", "000000000000", "dead", lambda task: 0, details={"source": "dead"})
    sqs.finish()

    assert listed(sqs) == []


# -- other people's queues ---------------------------------------------------------------------

THEIRS = f"arn:aws:sqs:us-east-1:{OTHER}:theirs"


def manager(account: str) -> Principal:
    return Principal(account, "mia", False, ROLES["manager"])


def test_nobody_cancels_a_move_of_another_account(sqs: Service) -> None:
    sqs.dead_letter("orders", *(f"o{n}" for n in range(10)))
    task = start(sqs, max_number_of_messages_per_second=1)

    error = sqs.refused("CancelMessageMoveTask", manager(OTHER), task_handle=task)

    assert (error.code, error.status) == ("AccessDenied", 403)
    assert listed(sqs)[0]["Status"] == "RUNNING"
    sqs.do("CancelMessageMoveTask", manager("000000000000"), task_handle=task)


def test_messages_are_moved_to_another_account_only_where_that_allows_it(sqs: Service) -> None:
    url = sqs.do("CreateQueue", sqs.guard.open_principal(OTHER), queue_name="theirs")["QueueUrl"]
    sqs.dead_letter("orders", "o1")
    members = {"source_arn": ARN + "dead", "destination_arn": THEIRS}

    error = sqs.refused("StartMessageMoveTask", manager("000000000000"), **members)
    assert (error.code, error.status) == ("AccessDenied", 403)
    assert bodies(sqs, "dead") == {b"o1"}

    sqs.do(
        "AddPermission",
        queue_url=url,
        label="dead-letters",
        actions=["SendMessage"],
        aws_account_ids=["000000000000"],
    )
    sqs.do("StartMessageMoveTask", manager("000000000000"), **members)
    sqs.finish()
    assert bodies(sqs, qualified_name(OTHER, "theirs")) == {b"o1"}


def test_messages_go_back_only_by_somebody_who_may_send_there(sqs: Service) -> None:
    sqs.dead_letter("orders", "o1")
    only_dead = Rule("allow", frozenset({"manage"}), "dead")

    error = sqs.refused(
        "StartMessageMoveTask",
        Principal("000000000000", "mia", False, (only_dead,)),
        source_arn=ARN + "dead",
    )

    assert (error.code, error.message) == (
        "AccessDenied",
        f"Access to the resource {ARN}orders is denied.",
    )


def test_letters_of_queues_that_are_no_sources_any_more_go_back_only_with_permission(sqs: Service) -> None:
    sqs.create("secret", RedrivePolicy=redrive_policy("dead"))
    sqs.dead_letter("secret", "s1")
    sqs.dead_letter("orders", "o1")
    sqs.broker.declare("secret", QueueSettings(), change=True)
    all_but_one = (*ROLES["manager"], Rule("deny", frozenset({"send"}), "secret"))

    sqs.do(
        "StartMessageMoveTask",
        Principal("000000000000", "mia", False, all_but_one),
        source_arn=ARN + "dead",
    )
    sqs.finish()

    [shown] = listed(sqs)
    assert (shown["Status"], shown["FailureReason"]) == ("FAILED", "AccessDenied")
    assert shown["ApproximateNumberOfMessagesMoved"] == 1
    assert (bodies(sqs, "secret"), bodies(sqs, "orders"), bodies(sqs, "dead")) == (set(), {b"o1"}, {b"s1"})


@pytest.mark.parametrize(
    "condition",
    [
        {"DateGreaterThan": {"aws:CurrentTime": "1960-01-01T00:00:00Z"}},
        {"NumericGreaterThanEquals": {"aws:EpochTime": "0"}},
        {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}},  # not known of this request
    ],
)
def test_a_deny_on_condition_keeps_a_move_from_its_destination(sqs: Service, condition: Any) -> None:
    statement = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage", "Condition": condition}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [{**statement, "Resource": "*"}]})
    sqs.broker.declare("elsewhere", QueueSettings(notes={"sqs.Policy": policy}), change=True)
    sqs.dead_letter("orders", "o1")

    error = sqs.refused(
        "StartMessageMoveTask",
        manager("000000000000"),
        source_arn=ARN + "dead",
        destination_arn=ARN + "elsewhere",
    )

    assert error.code == "AccessDenied"
