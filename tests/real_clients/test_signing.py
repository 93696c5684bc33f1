"""A server with users believes only what is signed with their keys, and lets each do what it may."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from botocore import UNSIGNED
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from openq.auth.rules import Rule
from openq.auth.store import CreatedKey, UserStore
from tests.real_clients import boto
from tests.real_clients.boto import arn_of, bodies, fresh, make, take
from tests.serving import Served, served
from tests.waiting import until

OTHER = "444455556666"


class Guarded:
    """A server with users: `root` and `worker` in the default account, `stranger` in another."""

    def __init__(self, server: Served, store: UserStore, keys: dict[str, CreatedKey]) -> None:
        self.server = server
        self.store = store
        self.keys = keys
        self._clients: list[Any] = []

    def client(self, user: str, protocol: str = "json", **more: Any) -> Any:
        key = self.keys[user]
        return self.signed_with(**{"key": key.id, "secret": key.secret, "protocol": protocol, **more})

    def signed_with(self, **details: Any) -> Any:
        client = boto.client(self.server.url, **details)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("guarded")
    store = UserStore(data / "users.json")
    store.add_user("root", is_root=True, role="manager")
    store.add_user("worker", rules=[Rule("allow", frozenset({"send"}), "jobs-*")])
    store.add_user("stranger", account=OTHER, is_root=True, role="manager")
    keys = {name: store.create_key(name) for name in ("root", "worker", "stranger")}
    with served(data) as server:
        found = Guarded(server, store, keys)
        yield found
        found.close()


@pytest.fixture(params=["json", "query"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def refusal(call: Any, **arguments: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def test_a_signed_request_is_accepted(guarded: Guarded, protocol: str) -> None:
    sqs = guarded.client("root", protocol)
    url = make(sqs)

    sqs.send_message(QueueUrl=url, MessageBody="signed & sealed ü")

    assert bodies(take(sqs, url)) == ["signed & sealed ü"]


def test_a_key_is_good_in_every_region(guarded: Guarded, protocol: str) -> None:
    """And a rule for `jobs-*` is about queues of that name in each of them."""
    root, worker = (guarded.client(user, protocol, region="eu-west-1") for user in ("root", "worker"))
    name = boto.fresh()
    url = root.create_queue(QueueName=f"jobs-{name}")["QueueUrl"]
    other = root.create_queue(QueueName=name)["QueueUrl"]

    worker.send_message(QueueUrl=url, MessageBody="west")

    assert refusal(worker.send_message, QueueUrl=other, MessageBody="west") == ("AccessDenied", 403)
    assert bodies(take(root, url)) == ["west"]
    assert refusal(guarded.client("root", protocol).get_queue_url, QueueName=name) == (
        "AWS.SimpleQueueService.NonExistentQueue",
        400,
    )
    stranger = guarded.client("stranger", protocol, region="eu-west-1")
    assert refusal(stranger.send_message, QueueUrl=url, MessageBody="x") == ("AccessDenied", 403)


def test_a_wrong_secret_and_an_unknown_key_are_refused(guarded: Guarded, protocol: str) -> None:
    wrong = guarded.client("root", protocol, secret="x" * 40)
    unknown = guarded.signed_with(protocol=protocol, key="AKIAUNKNOWNUNKNOWN00", secret="x" * 40)

    assert refusal(wrong.list_queues) == ("SignatureDoesNotMatch", 403)
    assert refusal(unknown.list_queues) == ("InvalidClientTokenId", 403)


def test_an_unsigned_request_needs_a_policy_for_everybody(guarded: Guarded, protocol: str) -> None:
    root = guarded.client("root", protocol)
    nobody = guarded.signed_with(
        protocol=protocol, config=boto.CONFIG.merge(Config(signature_version=UNSIGNED))
    )
    url = make(root)
    assert refusal(nobody.send_message, QueueUrl=url, MessageBody="x")[1] == 403

    public = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": arn_of(root, url)}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [public]})
    root.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})

    nobody.send_message(QueueUrl=url, MessageBody="from the street")
    assert refusal(nobody.receive_message, QueueUrl=url)[1] == 403
    assert bodies(take(root, url)) == ["from the street"]


def test_a_session_needs_its_token(guarded: Guarded, protocol: str) -> None:
    key = guarded.store.create_key("root", is_session=True, expires_s=time.time() + 3600)
    details = {"protocol": protocol, "key": key.id, "secret": key.secret}
    sqs = guarded.signed_with(token=key.session_token, **details)
    until(lambda: not is_unknown(sqs))

    assert make(sqs)
    assert refusal(guarded.signed_with(**details).list_queues)[1] == 403
    assert refusal(guarded.signed_with(token="another", **details).list_queues)[1] == 403


def test_a_user_may_do_only_what_its_rules_allow(guarded: Guarded, protocol: str) -> None:
    root, worker = guarded.client("root", protocol), guarded.client("worker", protocol)
    jobs = root.create_queue(QueueName=f"jobs-{fresh()}")["QueueUrl"]
    other = make(root)

    worker.send_message(QueueUrl=jobs, MessageBody="x")
    worker.send_message_batch(QueueUrl=jobs, Entries=[{"Id": "1", "MessageBody": "y"}])

    denied = ("AccessDenied", 403)
    assert refusal(worker.send_message, QueueUrl=other, MessageBody="x") == denied
    assert refusal(worker.receive_message, QueueUrl=jobs) == denied
    assert refusal(worker.delete_queue, QueueUrl=jobs) == denied
    assert refusal(worker.create_queue, QueueName=fresh()) == denied
    # Nor does a refusal tell which queues there are.
    none = other + "-none"
    receipts = [{"Id": "1", "ReceiptHandle": "0" * 40}]
    assert refusal(worker.send_message, QueueUrl=none, MessageBody="x") == denied
    assert (
        refusal(worker.send_message_batch, QueueUrl=none, Entries=[{"Id": "1", "MessageBody": "x"}]) == denied
    )
    assert refusal(worker.receive_message, QueueUrl=none) == denied
    assert refusal(worker.delete_message_batch, QueueUrl=none, Entries=receipts) == denied
    got = take(root, jobs, AttributeNames=["SenderId"])
    assert [each["Attributes"]["SenderId"] for each in got] == ["worker", "worker"]


def test_accounts_share_a_queue_by_its_policy_alone(guarded: Guarded, protocol: str) -> None:
    root, stranger = guarded.client("root", protocol), guarded.client("stranger", protocol)
    url = make(root)
    assert refusal(stranger.send_message, QueueUrl=url, MessageBody="x") == ("AccessDenied", 403)

    root.add_permission(QueueUrl=url, Label="them", AWSAccountIds=[OTHER], Actions=["SendMessage"])

    stranger.send_message(QueueUrl=url, MessageBody="theirs")
    assert refusal(stranger.receive_message, QueueUrl=url) == ("AccessDenied", 403)
    [got] = take(root, url, AttributeNames=["SenderId"])
    assert (got["Body"], got["Attributes"]["SenderId"]) == ("theirs", OTHER)


def test_a_presigned_url_works_until_it_is_altered(guarded: Guarded) -> None:
    sqs = guarded.client("root", "query")
    url = make(sqs)

    link = sqs.generate_presigned_url(
        "send_message", {"QueueUrl": url, "MessageBody": "by link"}, ExpiresIn=60, HttpMethod="GET"
    )
    with urllib.request.urlopen(link, timeout=30) as answer:
        reply = ElementTree.fromstring(answer.read())

    assert reply.tag.endswith("SendMessageResponse")
    assert bodies(take(sqs, url)) == ["by link"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(link.replace("by%20link", "forged"), timeout=30)
    with caught.value as answer:
        assert (answer.code, b"SignatureDoesNotMatch" in answer.read()) == (403, True)
    assert take(sqs, url) == []


@pytest.mark.parametrize("minutes", [-20, 20])
def test_a_clock_skew_of_twenty_minutes_is_reported(guarded: Guarded, minutes: int) -> None:
    key = guarded.keys["root"]
    moment = datetime.now(UTC) + timedelta(minutes=minutes)
    request = AWSRequest(
        "POST",
        f"{guarded.server.url}/",
        headers={"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"},
        data=b"{}",
    )
    signer = SigV4Auth(Credentials(key.id, key.secret), "sqs", boto.REGION)
    # The steps of botocore's `add_auth`, which would ask the clock of this machine.
    request.context["timestamp"] = moment.strftime("%Y%m%dT%H%M%SZ")
    signer._modify_request_before_signing(request)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    signer._inject_signature_to_request(request, signer.signature(text, request))

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(
            urllib.request.Request(request.url, b"{}", dict(request.headers), method="POST"), timeout=30
        )

    with caught.value as answer:
        assert answer.code == 403
        assert answer.headers["x-amzn-query-error"] == "SignatureDoesNotMatch;Sender"
        said = json.loads(answer.read())
    assert said["__type"].endswith("#InvalidSignatureException")
    assert ("expired" if minutes < 0 else "not yet current") in said["message"]


def is_unknown(sqs: Any) -> bool:
    """Keys that another process made or revoked are taken over within moments."""
    try:
        sqs.get_queue_url(QueueName="none")
    except ClientError as error:
        return bool(error.response["Error"]["Code"] == "InvalidClientTokenId")
    return False


def test_a_running_server_picks_up_key_changes_made_by_the_cli(guarded: Guarded) -> None:
    path = guarded.store.path
    assert path is not None
    where = ["--data", str(Path(path).parent)]

    def openq(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "openq", *command, *where], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = json.loads(openq("key", "create", "root", "--json"))
    sqs = guarded.signed_with(key=made["id"], secret=made["secret"])

    until(lambda: not is_unknown(sqs))
    assert make(sqs)
    openq("key", "revoke", made["id"], "--yes")
    until(lambda: is_unknown(sqs))


def test_an_unauthorized_client_cannot_learn_whether_a_queue_exists(guarded: Guarded, protocol: str) -> None:
    root, worker = guarded.client("root", protocol), guarded.client("worker", protocol)
    there = make(root)
    missing = there + "-not"
    own = root.create_queue(QueueName=f"own-{fresh()}")["QueueUrl"]
    guarded.store.grant("worker", Rule("allow", frozenset({"manage"}), own.rpartition("/")[2]))
    until(lambda: _may_tag(worker, own))
    redrive = {"deadLetterTargetArn": arn_of(root, own), "maxReceiveCount": "3"}
    root.set_queue_attributes(
        QueueUrl=make(root), Attributes={"RedrivePolicy": json.dumps(redrive)}
    )  # so that messages may be moved out of it
    entries = [{"Id": "a", "ReceiptHandle": "x"}]

    def redriven(url: str) -> dict[str, str]:
        arn = arn_of(root, there).replace(there.rpartition("/")[2], url.rpartition("/")[2])
        return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})}

    def arn(url: str) -> str:
        return str(json.loads(redriven(url)["RedrivePolicy"])["deadLetterTargetArn"])

    def reported(url: str) -> list[str]:
        name = url.rpartition("/")[2]
        named: dict[str, Any] = {"QueueUrl": url}
        calls: list[tuple[str, dict[str, Any]]] = [
            ("get_queue_url", {"QueueName": name}),
            ("create_queue", {"QueueName": name}),
            ("create_queue", {"QueueName": name, "Attributes": {"VisibilityTimeout": "7"}}),
            ("get_queue_attributes", named),
            ("set_queue_attributes", {**named, "Attributes": {"VisibilityTimeout": "7"}}),
            ("set_queue_attributes", {"QueueUrl": own, "Attributes": redriven(url)}),
            ("delete_queue", named),
            ("purge_queue", named),
            ("send_message", {**named, "MessageBody": "x"}),
            ("send_message_batch", {**named, "Entries": [{"Id": "a", "MessageBody": "x"}]}),
            ("receive_message", named),
            ("delete_message", {**named, "ReceiptHandle": "x"}),
            ("delete_message_batch", {**named, "Entries": entries}),
            ("change_message_visibility", {**named, "ReceiptHandle": "x", "VisibilityTimeout": 0}),
            ("change_message_visibility_batch", {**named, "Entries": entries}),
            ("list_dead_letter_source_queues", named),
            ("list_queue_tags", named),
            ("tag_queue", {**named, "Tags": {"a": "b"}}),
            ("untag_queue", {**named, "TagKeys": ["a"]}),
            ("add_permission", {**named, "Label": "l", "AWSAccountIds": [OTHER], "Actions": ["*"]}),
            ("remove_permission", {**named, "Label": "l"}),
            ("start_message_move_task", {"SourceArn": arn(url)}),
            ("start_message_move_task", {"SourceArn": arn_of(root, own), "DestinationArn": arn(url)}),
            ("list_message_move_tasks", {"SourceArn": arn(url)}),
        ]
        found = []
        for verb, arguments in calls:
            with pytest.raises(ClientError) as caught:
                getattr(worker, verb)(**arguments)
            error = caught.value.response["Error"]
            assert error["Code"] in ("AccessDenied", "AccessDeniedException"), (verb, error)
            found.append(f"{verb}: {error['Code']} {error['Message'].replace(name, 'NAME')}")
        return found

    assert reported(there) == reported(missing)


def _may_tag(sqs: Any, url: str) -> bool:
    try:
        sqs.tag_queue(QueueUrl=url, Tags={"a": "b"})
    except ClientError:
        return False
    return True
