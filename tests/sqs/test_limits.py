"""Strict limits give AWS's error, relaxed ones lift it: for the whole server, or for one queue by a tag."""

import json
from collections.abc import Iterator
from dataclasses import fields

import pytest

from openq.config import Config
from openq.model import MAX_SPAN_MS, QueueSettings
from openq.sqs import limits
from openq.sqs.limits import SqsLimits, limits_of, server_limits
from tests.sqs.service import ARN, Service, redrive_policy, serving

RELAXED = Config(limits="relaxed")


@pytest.fixture
def strict() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def relaxed() -> Iterator[Service]:
    with serving(limits="relaxed") as service:
        yield service


def test_the_strict_limits_are_those_of_aws() -> None:
    strict = limits_of(QueueSettings(), Config())

    assert strict is server_limits(Config())
    assert (strict.max_body, strict.max_batch_bytes, strict.min_body) == (1 << 20, 1 << 20, 1024)
    assert (strict.max_batch, strict.max_receive, strict.max_attributes) == (10, 10, 10)
    assert (strict.max_delay_s, strict.max_visibility_s, strict.max_wait_s) == (900, 12 * 3600, 20)
    assert (strict.min_retention_s, strict.max_retention_s) == (60, 14 * 86_400)
    assert (strict.max_in_flight, strict.max_receive_count) == (120_000, 1000)
    assert (strict.reuse_name_s, strict.purge_every_s, strict.max_move_rate) == (60, 60, 500)


def test_no_relaxed_limit_is_narrower() -> None:
    strict, relaxed = limits.STRICT, server_limits(RELAXED)
    for field in fields(SqsLimits):
        ours, theirs = getattr(relaxed, field.name), getattr(strict, field.name)
        if field.name.startswith("max_"):
            assert ours is None or ours >= theirs, field.name
        elif field.name.startswith(("min_", "reuse_", "purge_")):
            assert ours < theirs, field.name


def test_relaxed_times_fit_the_engine() -> None:
    relaxed = server_limits(RELAXED)
    for seconds in (relaxed.max_delay_s, relaxed.max_visibility_s, relaxed.max_retention_s):
        assert seconds * 1000 <= MAX_SPAN_MS
    assert relaxed.max_delay_s >= 365 * 86_400
    assert relaxed.max_visibility_s > 7 * 86_400
    assert relaxed.max_wait_s == 600
    assert relaxed.max_batch == 1_000


def test_a_relaxed_body_is_as_large_as_a_request() -> None:
    assert server_limits(Config(limits="relaxed", max_request_bytes=5_000_000)).max_body == 5_000_000


def test_a_queues_own_choice_goes_before_the_servers() -> None:
    for kind in limits.KINDS:
        own = QueueSettings(notes={limits.NOTE: kind})
        for config in (Config(), RELAXED):
            assert limits_of(own, config).kind == kind
    assert limits_of(QueueSettings(), RELAXED).kind == "relaxed"


def test_the_limits_of_a_queue_are_not_made_anew_each_time() -> None:
    assert limits_of(QueueSettings(), RELAXED) is limits_of(QueueSettings(), RELAXED)


BEYOND = [
    ("DelaySeconds", "31536000"),
    ("VisibilityTimeout", "864000"),
    ("MessageRetentionPeriod", "315360000"),
    ("MessageRetentionPeriod", "5"),
    ("ReceiveMessageWaitTimeSeconds", "600"),
    ("MaximumMessageSize", "10485760"),
    ("MaximumMessageSize", "10"),
]


@pytest.mark.parametrize(("name", "value"), BEYOND)
def test_what_aws_refuses_works_on_a_relaxed_server(
    strict: Service, relaxed: Service, name: str, value: str
) -> None:
    error = strict.refused("CreateQueue", queue_name="orders", attributes={name: value})
    assert error.code == "InvalidAttributeValue"

    url = relaxed.create("orders", **{name: value})
    assert relaxed.attributes(url, name) == {name: value}


@pytest.mark.parametrize(("name", "value"), BEYOND)
def test_what_aws_refuses_works_on_a_queue_with_the_tag(strict: Service, name: str, value: str) -> None:
    born = strict.create("born-so", tags={"openq:limits": "relaxed"}, **{name: value})
    made = strict.create("made-so")
    strict.do("TagQueue", queue_url=made, tags={"openq:limits": "relaxed"})
    strict.set(made, **{name: value})

    assert strict.attributes(born, name) == strict.attributes(made, name) == {name: value}


def test_without_the_tag_the_limits_are_back(strict: Service) -> None:
    url = strict.create("orders", tags={"openq:limits": "relaxed"})
    strict.set(url, DelaySeconds="1000")
    strict.do("UntagQueue", queue_url=url, tag_keys=["openq:limits"])

    error = strict.refused("SetQueueAttributes", queue_url=url, attributes={"DelaySeconds": "1000"})
    assert error.code == "InvalidAttributeValue"
    assert limits.NOTE not in strict.broker.settings("orders").notes


def test_limits_that_were_not_set_by_a_tag_are_not_removed_by_one(strict: Service) -> None:
    strict.broker.declare("orders", QueueSettings(notes={limits.NOTE: "relaxed"}))
    url = strict.do("GetQueueUrl", queue_name="orders")["QueueUrl"]
    strict.do("UntagQueue", queue_url=url, tag_keys=["openq:limits"])

    strict.set(url, DelaySeconds="1000")


def test_a_strict_queue_stays_strict_on_a_relaxed_server(relaxed: Service) -> None:
    attributes = {"DelaySeconds": "901"}

    error = relaxed.refused(
        "CreateQueue", queue_name="orders", attributes=attributes, tags={"openq:limits": "strict"}
    )

    assert error.message == "Invalid value for the parameter DelaySeconds."


def test_a_relaxed_queue_can_be_made_again_at_once(strict: Service, relaxed: Service) -> None:
    relaxed.do("DeleteQueue", queue_url=relaxed.create("orders"))
    relaxed.create("orders")
    tags = {"openq:limits": "relaxed"}
    strict.do("DeleteQueue", queue_url=strict.create("orders", tags=tags))
    strict.create("orders")


def test_a_relaxed_queue_can_be_purged_again_at_once(strict: Service, relaxed: Service) -> None:
    tagged = strict.create("orders", tags={"openq:limits": "relaxed"})
    for service, url in ((relaxed, relaxed.create("orders")), (strict, tagged)):
        service.do("PurgeQueue", queue_url=url)
        service.do("PurgeQueue", queue_url=url)


def test_relaxed_policies_may_be_longer(relaxed: Service) -> None:
    arns = [f"{ARN}q{n}" for n in range(50)]
    allow = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": arns})
    relaxed.create("dead", RedriveAllowPolicy=allow)
    url = relaxed.create("q7", RedrivePolicy=redrive_policy("dead", 5_000))

    assert json.loads(relaxed.attributes(url)["RedrivePolicy"])["maxReceiveCount"] == 5_000
    relaxed.do("TagQueue", queue_url=url, tags={f"k{n}": "v" for n in range(200)})


def test_a_relaxed_standard_queue_may_say_that_it_is_none(relaxed: Service) -> None:
    url = relaxed.create("orders", FifoQueue="false")

    assert "FifoQueue" not in relaxed.attributes(url)
