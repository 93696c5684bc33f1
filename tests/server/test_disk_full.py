"""A disk that is full or broken, seen through the protocols: who is refused, how, and who goes on."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq.journal import writer
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from tests.crash.faults import FaultyDisk
from tests.crash.loop_disk import LoopDisk, why_not
from tests.server.in_process import InProcessServer, in_process_server
from tests.server.raw_http import ACCOUNT, Answer, RawHttpClient, queue_url
from tests.serving import served
from tests.waiting import until

MIB = 1 << 20
BODY = "x" * 100_000
needs_loop_disk = pytest.mark.skipif(why_not() is not None, reason=f"no loop-mounted disk: {why_not()}")


def indoor_broker(path: Path, disk: FaultyDisk) -> LocalBroker:
    journal = Journal(
        path / "d",
        segment_bytes=MIB,
        first_segment_bytes=MIB // 4,
        reserve_bytes=2 * MIB,
        io=disk,
    )
    return LocalBroker(journal=journal)


class Full:
    """A server whose disk has just become full, by publishing through SQS."""

    def __init__(self, server: InProcessServer, disk: FaultyDisk) -> None:
        self.server = server
        self.disk = disk
        self.wire = server.wire()
        self.accepted = 0
        dead = f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"
        policy = f'{{"deadLetterTargetArn": "{dead}", "maxReceiveCount": 1}}'
        assert self.wire.sqs("CreateQueue", QueueName="dead").status == 200
        made = self.wire.sqs("CreateQueue", QueueName="q", Attributes={"RedrivePolicy": policy})
        assert made.status == 200
        self.refusal = self.fill()

    def fill(self) -> Answer:
        """To the last byte: a large message finds no room before a small one does."""
        refusals = []
        for size in (100_000, 1_000, 10):
            while (answer := self.send("x" * size)).status == 200:
                self.accepted += 1
            refusals.append(answer)
        return refusals[0]

    def send(self, body: str = BODY) -> Answer:
        return self.wire.sqs("SendMessage", QueueUrl=queue_url("q"), MessageBody=body)

    def receive(self, **more: Any) -> list[dict[str, Any]]:
        answer = self.wire.sqs(
            "ReceiveMessage", QueueUrl=queue_url("q"), MaxNumberOfMessages=10, VisibilityTimeout=600, **more
        )
        assert answer.status == 200
        found: list[dict[str, Any]] = answer.json().get("Messages", [])
        return found


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Full]:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)
    disk = FaultyDisk(tmp_path, capacity=8 * MIB)
    with in_process_server(indoor_broker(tmp_path, disk)) as server:
        full = Full(server, disk)
        try:
            yield full
        finally:
            full.wire.close()


def test_sqs_publishers_get_a_503_that_names_the_disk(full: Full) -> None:
    refusal = full.refusal

    assert full.accepted > 10
    assert refusal.status == 503
    assert refusal.json()["__type"].endswith("#ServiceUnavailableException")
    assert "disk full" in refusal.json()["message"]
    assert refusal.headers["x-amzn-query-error"] == "ServiceUnavailable;Receiver"


def test_sqs_publishers_in_xml_and_in_batches_get_a_503_too(full: Full) -> None:
    form = f"Action=SendMessage&MessageBody={BODY}&QueueUrl={queue_url('q')}".encode()
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(form)}\r\n"
    kind = "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
    entry = {"Id": "a", "MessageBody": BODY}

    xml = full.wire.ask((head + kind).encode() + form)
    batch = full.wire.sqs("SendMessageBatch", QueueUrl=queue_url("q"), Entries=[entry])

    assert xml.status == 503
    assert b"<Code>ServiceUnavailable</Code>" in xml.body
    if batch.status == 200:
        [failed] = batch.json()["Failed"]
        assert (failed["Code"], failed["SenderFault"]) == ("ServiceUnavailable", False)
    else:
        assert batch.status == 503


def test_rest_publishers_get_a_507_with_a_hint(full: Full) -> None:
    one = full.wire.rest("POST", "queues/q/messages", {"payload": BODY})
    many = full.wire.rest("POST", "queues/q/messages/batch", [BODY, BODY])

    for answer in (one, many):
        assert answer.status == 507
        assert answer.json()["code"] == "disk_full"
        assert answer.json()["hint"]


def test_no_answer_names_a_path_of_the_server(full: Full, tmp_path: Path) -> None:
    """The log has the whole sentence; a client learns that the disk is full, not where it is."""
    answers = [
        full.refusal,
        full.wire.rest("POST", "queues/q/messages", {"payload": BODY}),
        full.wire.rest("POST", "queues/q/messages/batch", [BODY, BODY]),
        full.wire.rest("PUT", "queues/new", {}),
        full.wire.rest("GET", "health"),
        full.wire.ask(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        full.wire.ask(b"PUT /api/queues/%2F/new HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"),
    ]

    for answer in answers:
        assert b"full" in answer.body, answer.body
        assert os.fsencode(tmp_path) not in answer.body


def test_changes_of_settings_do_not_eat_the_reserve_of_acks(full: Full) -> None:
    journal = full.server.server.broker.journal
    assert journal is not None
    end_at = journal.end_location
    for n in range(20):
        assert full.wire.rest("PUT", f"queues/new-{n}", {}).status == 507
        assert full.wire.sqs("CreateQueue", QueueName=f"new-{n}").status == 503
        changed = full.wire.sqs(
            "SetQueueAttributes", QueueUrl=queue_url("q"), Attributes={"VisibilityTimeout": str(100 + n)}
        )
        assert changed.status == 503
        assert full.wire.rest("PUT", f"exchanges/new-{n}", {"kind": "fanout"}).status == 507
    assert journal.end_location == end_at

    # What is there already may be declared, and what is there may be removed.
    assert full.wire.sqs("CreateQueue", QueueName="dead").status == 200
    assert full.wire.rest("PUT", "queues/dead", {}).status in (200, 201)
    for message in full.receive():
        handle = message["ReceiptHandle"]
        done = full.wire.sqs("DeleteMessage", QueueUrl=queue_url("q"), ReceiptHandle=handle)
        assert done.status == 200

    full.disk.capacity = 64 * MIB
    until(lambda: full.wire.rest("PUT", "queues/new", {}).status in (200, 201))


def test_consumers_go_on_while_the_disk_is_full(full: Full) -> None:
    first, second, *rest = full.receive()
    for message in rest:
        assert (
            full.wire.sqs(
                "DeleteMessage", QueueUrl=queue_url("q"), ReceiptHandle=message["ReceiptHandle"]
            ).status
            == 200
        )
    extended = full.wire.sqs(
        "ChangeMessageVisibility",
        QueueUrl=queue_url("q"),
        ReceiptHandle=first["ReceiptHandle"],
        VisibilityTimeout=900,
    )
    returned = full.wire.sqs(
        "ChangeMessageVisibility",
        QueueUrl=queue_url("q"),
        ReceiptHandle=second["ReceiptHandle"],
        VisibilityTimeout=0,
    )
    through_rest = full.wire.rest("POST", "queues/q/receive", {"max": 2}).json()["messages"]
    acked = full.wire.rest(
        "POST", "queues/q/ack", {"receipts": [each["receipt_id"] for each in through_rest]}
    )
    dead = full.wire.rest("GET", "queues/dead/stats").json()

    assert extended.status == returned.status == 200
    assert acked.json()["count"] == 2
    assert dead["ready"] == 1  # its one receive was used up: a move, with the disk full


def test_health_reports_a_full_disk_and_stays_up_for_consumers(full: Full) -> None:
    ready = full.wire.get("/readyz")
    metrics = full.wire.get("/metrics").body

    assert ready.status == 200
    assert ready.body == b"not ready: disk full: publishing is refused\n"
    assert b"openq_healthy 0" in metrics


def test_publishing_resumes_by_itself_when_space_returns(full: Full) -> None:
    full.disk.capacity = 64 * MIB
    until(lambda: full.wire.get("/readyz").body.startswith(b"ready"))

    assert full.send().status == 200
    assert full.wire.rest("POST", "queues/q/messages", {"payload": BODY}).status == 201
    seen = 0
    while messages := full.receive():
        assert all(set(each["Body"]) == {"x"} for each in messages)
        seen += len(messages)
    assert seen == full.accepted + 2
    assert full.server.records.at_least("error") == []


@needs_loop_disk
def test_a_real_full_disk_refuses_publishers_and_recovers(tmp_path: Path) -> None:
    with (
        LoopDisk(tmp_path) as disk,
        served(disk.mounted / "d", "--segment-bytes", "1MiB") as server,
        RawHttpClient(server.port) as wire,
    ):
        wire.sqs("CreateQueue", QueueName="q")
        ballast = disk.mounted / "ballast"
        with ballast.open("wb") as file:
            space = os.statvfs(disk.mounted)
            os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - 2 * MIB)
        accepted = 0
        for size in (100_000, 1_000, 10):
            message = {"QueueUrl": queue_url("q"), "MessageBody": "x" * size}
            while (answer := wire.sqs("SendMessage", **message)).status == 200:
                accepted += 1
        rest = wire.rest("POST", "queues/q/messages", {"payload": BODY})
        received = wire.rest("POST", "queues/q/receive", {"max": 5}).json()["messages"]
        acked = wire.rest("POST", "queues/q/ack", {"receipts": [each["receipt_id"] for each in received]})
        ballast.unlink()
        until(lambda: wire.get("/readyz").body.startswith(b"ready"))
        again = wire.sqs("SendMessage", QueueUrl=queue_url("q"), MessageBody=BODY)

        assert (answer.status, rest.status) == (503, 507)
        assert acked.json()["count"] == 5
        assert again.status == 200
        assert accepted > 5


# -- a disk that fails


class Breaking(FaultyDisk):
    """Once switched on, every sync of a file fails."""

    broken = False

    def fdatasync(self, fd: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


def test_after_a_failed_sync_nothing_is_acknowledged_and_health_is_red(tmp_path: Path) -> None:
    disk = Breaking(tmp_path)
    with in_process_server(indoor_broker(tmp_path, disk)) as server, server.wire() as wire:
        wire.sqs("CreateQueue", QueueName="q")
        assert wire.sqs("SendMessage", QueueUrl=queue_url("q"), MessageBody="kept").status == 200
        [held] = wire.rest("POST", "queues/q/receive", {}).json()["messages"]
        disk.broken = True

        sent = wire.sqs("SendMessage", QueueUrl=queue_url("q"), MessageBody="lost")
        disk.broken = False  # the next sync would claim to work; it must not be tried
        again = wire.sqs("SendMessage", QueueUrl=queue_url("q"), MessageBody="lost too")
        published = wire.rest("POST", "queues/q/messages", {"payload": "lost as well"})
        acked = wire.rest("POST", "queues/q/ack", {"receipt_id": held["receipt_id"]})
        created = wire.rest("PUT", "queues/other", {})
        ready = wire.get("/readyz")

        for answer in (sent, again):
            assert answer.status in (500, 503)
            assert answer.headers["x-amzn-query-error"].endswith(";Receiver")
        for answer in (published, acked, created):
            assert answer.status == 503
            assert answer.json()["code"] == "journal_failed"
        assert ready.status == 503
        assert b"journal failed" in ready.body

    broker = LocalBroker(tmp_path / "d")
    try:
        assert broker.inspect.find("q", held["id"]).body == b"kept"
        assert broker.inspect.status("q", held["id"]) == "in_flight"  # neither lost nor acked
    finally:
        broker.close()


def test_all_waiters_of_a_commit_that_fails_get_an_error(tmp_path: Path) -> None:
    disk = Breaking(tmp_path)
    with in_process_server(indoor_broker(tmp_path, disk)) as server:
        with server.wire() as wire:
            wire.sqs("CreateQueue", QueueName="q")
        disk.broken = True
        statuses: list[int] = []

        def send() -> None:
            with server.wire() as wire:
                answer = wire.sqs("SendMessage", QueueUrl=queue_url("q"), MessageBody="x")
                statuses.append(answer.status)

        threads = [threading.Thread(target=send) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(statuses) == 20
    assert set(statuses) <= {500, 503}
