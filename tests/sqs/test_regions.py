"""Regions: one account has queues of its own in each, and their URLs and ARNs tell which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openq.auth.guard import Guard, Principal
from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.names import arn_of, is_region, namespace_of, owner_of, qualified_name, split_namespace
from openq.server.http import HttpConnection
from openq.server.http_request import HttpRequest
from openq.server.listener import Listener
from openq.sqs.call import SqsCall
from openq.sqs.errors import SqsError
from openq.sqs.queues import QUEUE_ACTIONS
from openq.sqs.regions import Regions
from openq.sqs.requests import REQUESTS
from tests.sqs.service import ARN, HOST, Service, serving

ACCOUNT = "000000000000"
WEST = "eu-west-1"


def request_of(
    host: str = HOST, region: str | None = None, target: bytes = b"/", key: str = "AKIDEXAMPLE"
) -> HttpRequest:
    fields = {b"host": host.encode()}
    if region is not None:
        scope = f"AWS4-HMAC-SHA256 Credential={key}/20260131/{region}/sqs/aws4_request, "
        fields[b"authorization"] = f"{scope}SignedHeaders=host, Signature={'0' * 64}".encode()
    return HttpRequest(HttpConnection(Listener(lambda request: None)), "POST", target, fields, [], b"", True)


def do(sqs: Service, action: str, region: str | None = None, host: str = HOST, **members: Any) -> Any:
    """An action of a client in that region."""
    request = request_of(host, region)
    call = SqsCall(sqs.context, sqs.names, request, sqs.principal, sqs.names.regions.of_request(request))
    if "queue_url" in members:
        call.queue = sqs.names.find(call.key_of_url(members["queue_url"]))
    return QUEUE_ACTIONS[action](call, REQUESTS[action](**members))


def made(sqs: Service, name: str, region: str | None = None, **attributes: str) -> str:
    url: str = do(sqs, "CreateQueue", region, queue_name=name, attributes=attributes or None).queue_url
    return url


def arn(sqs: Service, url: str, region: str | None = None) -> str:
    asked = {"queue_url": url, "attribute_names": ["QueueArn"]}
    found: str = do(sqs, "GetQueueAttributes", region, **asked).attributes["QueueArn"]
    return found


def refused(sqs: Service, action: str, region: str | None = None, **members: Any) -> SqsError:
    with pytest.raises(SqsError) as caught:
        do(sqs, action, region, **members)
    return caught.value


# -- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["us-east-1", "eu-west-3", "us-gov-west-1", "ap-southeast-12", "us-isob-east-1"]
)
def test_a_region_is_known_by_its_shape(name: str) -> None:
    assert is_region(name)


@pytest.mark.parametrize(
    "name",
    ["", "elasticmq", "local", "us-east", "US-EAST-1", "us-east-1.", "eu-west-1\n", "x" * 300, "a-b-1"],
)
def test_what_has_another_shape_is_no_region(name: str) -> None:
    assert not is_region(name)


def test_a_namespace_is_an_account_or_an_account_in_a_region() -> None:
    assert namespace_of(ACCOUNT, None) == ACCOUNT
    assert namespace_of(ACCOUNT, WEST) == f"{WEST}.{ACCOUNT}"
    assert split_namespace(f"{WEST}.{ACCOUNT}") == (WEST, ACCOUNT)
    for plain in (ACCOUNT, "shop", "shop.example", "eu-west-1.shop", f"west.{ACCOUNT}"):
        assert split_namespace(plain) == (None, plain)
    assert owner_of(f"{WEST}.{ACCOUNT}") == ACCOUNT
    assert arn_of(f"{WEST}.{ACCOUNT}", "q", "us-east-1") == f"arn:aws:sqs:{WEST}:{ACCOUNT}:q"
    assert arn_of("shop", "q", "us-east-1") == "arn:aws:sqs:us-east-1:shop:q"


# -- which region a request means ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "signed", "expected"),
    [
        ("localhost:9324", None, None),
        ("localhost:9324", "us-east-1", None),
        ("localhost:9324", WEST, WEST),
        ("localhost:9324", "elasticmq", None),
        (f"sqs.{WEST}.localhost:9324", None, WEST),
        (f"sqs.{WEST}.amazonaws.com", "elasticmq", WEST),
        (f"{WEST}.queue.localhost:9324", None, WEST),
        ("sqs.us-east-1.amazonaws.com", None, None),
        ("queue.amazonaws.com", None, None),
        ("sqs.somewhere.example", None, None),
        (f"sqs.{WEST}.localhost", "ap-south-1", "ap-south-1"),
        (f"sqs.{WEST}.localhost", "us-east-1", None),
    ],
)
def test_the_signature_decides_the_region_and_then_the_host(
    host: str, signed: str | None, expected: str | None
) -> None:
    regions = Regions("us-east-1")

    for _ in range(2):  # the second time from memory
        assert regions.of_request(request_of(host, signed)) == expected


def test_a_presigned_request_has_its_region_in_the_query() -> None:
    target = f"/?Action=ListQueues&X-Amz-Credential=KEY%2F20260131%2F{WEST}%2Fsqs%2Faws4_request".encode()

    assert Regions("us-east-1").of_request(request_of(target=target)) == WEST


@pytest.mark.parametrize("rest", ["SignedHeaders=host, Signature=00", "Signature=00", "", "x" * 300])
def test_the_credential_names_the_region_whatever_follows_it(rest: str) -> None:
    regions = Regions("us-east-1")

    for region in (WEST, "ap-south-1", WEST):
        request = request_of()
        signed = f"AWS4-HMAC-SHA256 Credential=any/20260131/{region}/sqs/aws4_request, {rest}"
        request.fields[b"authorization"] = signed.encode()
        assert regions.of_request(request) == region


def test_random_regions_are_not_remembered_for_ever() -> None:
    regions = Regions("us-east-1")
    for number in range(25_000):
        regions.of_request(request_of(region=WEST, key=f"KEY{number}"))
        regions.of_request(request_of(host=f"host{number}"))

    assert len(regions._signed) <= 10_000
    assert len(regions._hosts) <= 10_000


# -- queues -------------------------------------------------------------------------------------


def test_a_name_exists_once_in_each_region(sqs: Service) -> None:
    own, west = made(sqs, "orders"), made(sqs, "orders", WEST)

    assert own == f"http://{HOST}/{ACCOUNT}/orders"
    assert west == f"http://{HOST}/queue/{WEST}/{ACCOUNT}/orders"
    assert arn(sqs, own) == ARN + "orders"
    assert arn(sqs, west) == f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders"
    for region, url in ((None, own), ("us-east-1", own), (WEST, west)):
        assert do(sqs, "GetQueueUrl", region, queue_name="orders").queue_url == url
        assert do(sqs, "ListQueues", region).queue_urls == [url]
    assert do(sqs, "ListQueues", "ap-south-1").queue_urls is None
    assert set(sqs.broker.queues()) == {"orders", f"@{WEST}.{ACCOUNT}/orders"}
    do(sqs, "DeleteQueue", WEST, queue_url=west)
    assert do(sqs, "ListQueues").queue_urls == [own]


def test_a_url_has_its_region_for_every_caller(sqs: Service) -> None:
    made(sqs, "orders")
    west = made(sqs, "orders", WEST)

    for region in (None, "us-east-1", WEST, "ap-south-1"):
        assert arn(sqs, west, region) == f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders"
    for url in (
        f"http://sqs.{WEST}.localhost:9324/{ACCOUNT}/orders",
        f"https://{WEST}.queue.amazonaws.com/{ACCOUNT}/orders",
        f"/queue/{WEST}/{ACCOUNT}/orders",
    ):
        assert arn(sqs, url) == f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders"


@pytest.mark.parametrize("region", [None, WEST, "ap-south-1"])
@pytest.mark.parametrize(
    "path",
    [
        f"/queue/{WEST}/{WEST}.{ACCOUNT}/orders",
        f"/queue/{WEST.upper()}/{ACCOUNT}/orders",
        f"/queue/{WEST}/shop/orders",
        f"/queue/{WEST}/orders",
        f"/queue/{ACCOUNT}/orders",
        f"/queue/queue/{WEST}/{ACCOUNT}/orders",
        f"/{WEST}/{ACCOUNT}/orders",
        f"/{WEST}/orders",
        f"/{WEST}.shop/orders",
        f"/{ACCOUNT}/more/orders",
        f"/more/{ACCOUNT}/orders",
        "/nonsense/more/orders",
        "/shop/orders",
        "/\u0663\u0663/orders",
    ],
)
def test_a_malformed_url_is_of_no_queue(sqs: Service, path: str, region: str | None) -> None:
    made(sqs, "orders")
    made(sqs, "orders", WEST)
    before = set(sqs.broker.queues())

    for url in (path, f"http://{HOST}{path}"):
        for action in ("GetQueueAttributes", "PurgeQueue", "DeleteQueue"):
            error = refused(sqs, action, region, queue_url=url)
            assert (error.name, error.status) == ("InvalidAddress", 404)
            assert error.message == f"The address {url} is not valid for this endpoint."
    assert set(sqs.broker.queues()) == before


def test_a_url_may_name_a_namespace_as_the_other_protocols_do(sqs: Service) -> None:
    made(sqs, "orders")
    made(sqs, "orders", WEST)

    for region in (None, WEST, "ap-south-1"):
        assert arn(sqs, f"/{WEST}.{ACCOUNT}/orders", region) == f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders"
        assert arn(sqs, f"/us-east-1.{ACCOUNT}/orders", region) == ARN + "orders"
        error = refused(sqs, "DeleteQueue", region, queue_url=f"/ap-south-1.{ACCOUNT}/orders")
        assert error.name == "QueueDoesNotExist"
    assert set(sqs.broker.queues()) == {"orders", f"@{WEST}.{ACCOUNT}/orders"}


@pytest.mark.parametrize("account", ["shop", "shop.example", "a/b", "42"])
def test_an_account_that_is_no_number_uses_the_urls_it_is_given(sqs: Service, account: str) -> None:
    made(sqs, "orders")
    made(sqs, "orders", WEST)
    sqs.principal = sqs.guard.open_principal(account)

    for region in (None, WEST):
        url = made(sqs, "orders", region)
        assert do(sqs, "GetQueueUrl", region, queue_name="orders").queue_url == url
        do(sqs, "DeleteQueue", region, queue_url=url)
    assert set(sqs.broker.queues()) == {"orders", f"@{WEST}.{ACCOUNT}/orders"}


def test_an_arn_names_its_region_once(sqs: Service) -> None:
    assert sqs.names.key_of_arn(f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders") == f"@{WEST}.{ACCOUNT}/orders"
    assert sqs.names.key_of_arn(f"arn:aws:sqs:us-east-1:{WEST}.{ACCOUNT}:orders") is None


def test_a_url_without_a_region_means_that_of_the_caller_and_then_the_servers_own(sqs: Service) -> None:
    own = made(sqs, "orders")

    assert arn(sqs, own, WEST) == ARN + "orders"
    made(sqs, "orders", WEST)
    assert arn(sqs, own, WEST) == f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders"
    assert arn(sqs, own) == ARN + "orders"
    assert arn(sqs, "orders", WEST) == f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders"


def test_a_host_with_the_region_makes_the_path_of_its_urls_short(sqs: Service) -> None:
    host = f"sqs.{WEST}.localhost:9324"

    west = do(sqs, "CreateQueue", host=host, queue_name="orders").queue_url
    assert west == f"http://{host}/{ACCOUNT}/orders"
    assert arn(sqs, west) == f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders"
    own = do(sqs, "CreateQueue", "us-east-1", host, queue_name="orders").queue_url
    assert own == f"http://{host}/queue/us-east-1/{ACCOUNT}/orders"
    assert arn(sqs, own, WEST) == ARN + "orders"


def test_plain_urls_are_the_same_in_every_region() -> None:
    with serving(queue_urls="plain") as sqs:
        own, west = made(sqs, "orders"), made(sqs, "orders", WEST)

        assert own == west == f"http://{HOST}/{ACCOUNT}/orders"
        assert arn(sqs, west, WEST) == f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders"
        assert arn(sqs, own) == ARN + "orders"


def test_looking_for_a_queue_in_a_region_creates_nothing(sqs: Service) -> None:
    made(sqs, "orders")
    for number in range(50):
        region = f"xx-test-{number}"
        assert refused(sqs, "GetQueueUrl", region, queue_name="orders").name == "QueueDoesNotExist"
        assert do(sqs, "ListQueues", region).queue_urls is None

    assert list(sqs.broker.queues()) == ["orders"]
    assert len(sqs.names._queues) <= 1


def test_a_client_in_the_wrong_region_is_named_once_in_the_log(
    sqs: Service, caplog: pytest.LogCaptureFixture
) -> None:
    made(sqs, "orders")
    with caplog.at_level("INFO", "openq.sqs"):
        for name in ("orders", "orders", "nothing"):
            refused(sqs, "GetQueueUrl", WEST, queue_name=name)
        refused(sqs, "GetQueueUrl", queue_name="nothing")

    [record] = caplog.records
    assert f"region {WEST}" in record.getMessage()
    assert f"--region {WEST}" in record.getMessage()


def test_a_deleted_name_waits_in_its_own_region_only(sqs: Service) -> None:
    url = made(sqs, "orders", WEST)
    do(sqs, "DeleteQueue", WEST, queue_url=url)

    assert refused(sqs, "CreateQueue", WEST, queue_name="orders").name == "QueueDeletedRecently"
    made(sqs, "orders")


def test_the_servers_own_region_may_have_any_name() -> None:
    with serving(region="elasticmq") as sqs:
        url = made(sqs, "orders")

        assert url == made(sqs, "orders", "elasticmq") == f"http://{HOST}/{ACCOUNT}/orders"
        assert arn(sqs, url) == f"arn:aws:sqs:elasticmq:{ACCOUNT}:orders"
        assert made(sqs, "orders", "us-east-1") == f"http://{HOST}/queue/us-east-1/{ACCOUNT}/orders"


def test_regions_survive_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as before:
        made(before, "orders")
        made(before, "orders", WEST)
    with serving(tmp_path) as after:
        assert do(after, "ListQueues").queue_urls == [f"http://{HOST}/{ACCOUNT}/orders"]
        [west] = do(after, "ListQueues", WEST).queue_urls
        assert arn(after, west) == f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders"


# -- dead letters -------------------------------------------------------------------------------


def redrive_to(target: str) -> str:
    return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 1})


def test_a_dead_letter_queue_is_in_the_same_region(sqs: Service) -> None:
    own, west = made(sqs, "dead"), made(sqs, "dead", WEST)

    error = refused(
        sqs, "CreateQueue", WEST, queue_name="orders", attributes={"RedrivePolicy": redrive_to(arn(sqs, own))}
    )
    assert error.message.endswith("Reason: Dead-letter target must be in same region as the source.")
    url = made(sqs, "orders", WEST, RedrivePolicy=redrive_to(arn(sqs, west)))
    assert do(sqs, "ListDeadLetterSourceQueues", WEST, queue_url=west).queue_urls == [url]
    assert do(sqs, "ListDeadLetterSourceQueues", queue_url=own).queue_urls == []


def test_a_move_stays_in_its_region(sqs: Service) -> None:
    dead = made(sqs, "dead", WEST)
    made(sqs, "orders", WEST, RedrivePolicy=redrive_to(arn(sqs, dead)))
    own = made(sqs, "orders")
    queue_key = f"@{WEST}.{ACCOUNT}/orders"
    sqs.dead_letter(queue_key, "lost")

    error = refused(
        sqs, "StartMessageMoveTask", WEST, source_arn=arn(sqs, dead), destination_arn=arn(sqs, own)
    )
    assert error.name == "ResourceNotFoundException"
    do(sqs, "StartMessageMoveTask", WEST, source_arn=arn(sqs, dead))
    sqs.finish()
    assert sqs.broker.stats(queue_key).ready == 1
    [task] = do(sqs, "ListMessageMoveTasks", WEST, source_arn=arn(sqs, dead)).results
    assert (task.status, task.source_arn) == ("COMPLETED", arn(sqs, dead))


# -- permissions --------------------------------------------------------------------------------


def _named(guard: Guard, name: str) -> Principal:
    principal = guard.named(name)
    assert principal is not None
    return principal


def test_rules_of_an_account_hold_in_all_its_regions() -> None:
    store = UserStore(None)
    store.add_user("alice", role="manager")
    store.add_user("bob", account="111122223333", role="manager")
    store.add_user(
        "carol",
        account="111122223333",
        rules=[Rule("allow", frozenset({"send"}), account=f"{WEST}.{ACCOUNT}")],
    )
    guard = Guard(store, lambda: 0.0)
    alice, bob, carol = (_named(guard, name) for name in ("alice", "bob", "carol"))
    west = namespace_of(ACCOUNT, WEST)

    assert guard.may(alice, "send", west, "orders")
    assert not guard.may(bob, "send", west, "orders")
    assert guard.may(carol, "send", west, "orders")  # a rule may name one region
    assert not guard.may(carol, "send", ACCOUNT, "orders")


def test_a_policy_names_the_region_of_its_queue() -> None:
    store = UserStore(None)
    store.add_user("bob", account="111122223333", role="none")
    guard = Guard(store, lambda: 0.0)
    bob = _named(guard, "bob")
    policy = json.dumps(
        {
            "Statement": {
                "Effect": "Allow",
                "Principal": "*",
                "Action": "sqs:SendMessage",
                "Resource": f"arn:aws:sqs:{WEST}:{ACCOUNT}:orders",
            }
        }
    )

    assert guard.may(bob, "send", namespace_of(ACCOUNT, WEST), "orders", policy=policy)
    assert not guard.may(bob, "send", ACCOUNT, "orders", policy=policy)


def test_the_engines_name_of_a_queue_in_a_region() -> None:
    assert qualified_name(namespace_of(ACCOUNT, None), "orders") == "orders"
    assert qualified_name(namespace_of("111122223333", WEST), "orders") == f"@{WEST}.111122223333/orders"
