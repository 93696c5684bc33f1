"""The same library over the network: only the address changes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import openq
from openq import (
    CannotOpen,
    Closed,
    InvalidSetting,
    MessageNotFoundError,
    OpenQ,
    OpenQError,
    QueueFull,
    QueueNotFound,
    Refused,
    Unreachable,
    VirtualClock,
    aio,
)
from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.client import documents, remote, server_target
from openq.client.interface import OnlyInProcess
from openq.local.broker import LocalBroker
from openq.model import (
    ENCODING_JSON,
    ENCODING_PICKLE,
    DeadLetterEvent,
    DeliveryOptions,
    Draft,
    QueueSettings,
    RetryPolicy,
)
from tests.budget import examples
from tests.client.concurrency import check_each_is_done_once, received_while_closing, run
from tests.client.helpers import bodies, ended, in_thread, take
from tests.client.test_formats import attributes as any_attributes
from tests.client.test_formats import bodies as any_body
from tests.client.thread_server import ThreadServer
from tests.serving import free_port, served
from tests.waiting import until


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    with ThreadServer(LocalBroker()) as running:
        yield running


# -- the same program -----------------------------------------------------------------------------

FOUNDING_SAMPLE = """
from OpenQ import OpenQ, Producer, Consumer

dlq = OpenQ(name="dead-letter-queue", visibility_timeout=100)
queue = OpenQ(name="main-queue", visibility_timeout=100, dlq=dlq)
producer = Producer(queue, num_tasks=10)
consumer = Consumer(queue)
producer.start()
consumer.start()
producer.join()
consumer.join()
print(consumer.processed, len(queue), len(queue.in_flight), len(dlq))
"""


@pytest.mark.parametrize("kind", ["memory", "path", "url"])
def test_P9_the_founding_sample_runs_on_every_target(kind: str, tmp_path: Path, server: ThreadServer) -> None:
    place = {"memory": "", "path": f", path={str(tmp_path / 'd')!r}", "url": ", url='env:OPENQ_URL'"}[kind]
    program = FOUNDING_SAMPLE.replace("visibility_timeout=100)", f"visibility_timeout=100{place})")

    done = run(program, OPENQ_IDLE_TIMEOUT="0.5", OPENQ_URL=server.url)

    assert (done.returncode, done.stdout, done.stderr) == (0, "10 0 0 0\n", "")
    assert ("main-queue" in server.broker.queues()) == (kind == "url")
    if kind == "url":
        assert server.broker.stats("main-queue").counters["acked"] == 10


def test_P9_processes_share_a_queue_by_its_address(server: ThreadServer) -> None:
    with OpenQ("jobs", url=server.url) as queue:
        done = run(
            "from openq import OpenQ; OpenQ('jobs', url='env:OPENQ_URL').publish({'from': 'afar'})",
            OPENQ_URL=server.url,
        )
        assert done.returncode == 0, done.stderr

        with queue.processing() as message:
            assert message is not None
            assert message.body == {"from": "afar"}

        assert queue.messages == []


def test_queue_objects_of_one_url_share_one_broker(server: ThreadServer) -> None:
    with OpenQ("dead", url=server.url) as dead, OpenQ("jobs", dlq=dead) as jobs:
        assert jobs.broker is dead.broker
        assert server.url in repr(jobs)
        moved = jobs.publish("x")
        jobs.move(moved, dead)
        assert bodies(dead) == ["x"]
    assert jobs.closed


def test_a_lease_belongs_to_the_queue_object_that_has_it(server: ThreadServer) -> None:
    with OpenQ("jobs", url=server.url) as mine, OpenQ("jobs", url=server.url) as other:
        message_id = mine.publish("x")
        take(mine)

        with pytest.raises(openq.VisibilityTimeoutExpired):
            other.ack(message_id)
        mine.ack(message_id)

        assert mine.messages == []


def test_the_rest_of_the_library_stays_light() -> None:
    done = run(
        "import sys; from openq import OpenQ, Consumer; q = OpenQ('x'); q.publish('x'); q.receive()\n"
        "print({'msgspec', 'ssl', 'openq.client.remote', 'openq.config', 'asyncio'} & set(sys.modules))"
    )

    assert (done.stdout, done.stderr) == ("set()\n", "")


# -- invalid targets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"url": "amqp://localhost"},
        {"url": "ftp://localhost"},
        {"url": "localhost:9324"},
        {"url": "http://localhost:port"},
        {"url": "http://"},
        {"url": 5},
        {"url": "http://127.0.0.1:1", "path": "data"},
        {"url": "http://127.0.0.1:1", "clock": VirtualClock()},
        {"url": "http://127.0.0.1:1", "storage": "memory"},
        {"url": "http://127.0.0.1:1", "codec": "pickle"},
        {"url": "http://127.0.0.1:1", "token": "two words"},
        {"url": "http://127.0.0.1:1", "reconnect": -1},
        {"token": "oq_x"},
        {"reconnect": 5},
    ],
)
def test_an_address_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        OpenQ("jobs", **options)


def test_the_environment_moves_no_queue_that_did_not_ask_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: ThreadServer
) -> None:
    monkeypatch.setenv("OPENQ_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENQ_PATH", str(tmp_path / "data"))
    with OpenQ("jobs") as queue:
        assert queue.broker.storage.name == "memory"
    asyncio.run(aio.OpenQ("jobs").close())
    assert not (tmp_path / "data").exists()

    with OpenQ("jobs", path="env:OPENQ_PATH") as queue:
        assert str(tmp_path / "data") in repr(queue)
    monkeypatch.setenv("ORDERS_SERVER", server.url)
    with OpenQ("jobs", url="env:ORDERS_SERVER") as queue:
        assert server.url in repr(queue)
    monkeypatch.delenv("OPENQ_URL")
    with pytest.raises(InvalidSetting, match="the environment variable OPENQ_URL, which is not set"):
        OpenQ("jobs", url="env:OPENQ_URL")


@pytest.mark.parametrize("open_queue", [OpenQ, aio.OpenQ])
def test_an_error_of_a_target_from_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, open_queue: Any
) -> None:
    (tmp_path / "file").write_text("x")
    for keyword, value, kind in (
        ("url", "nonsense", InvalidSetting),
        ("url", "amqp://127.0.0.1", InvalidSetting),
        ("url", f"http://127.0.0.1:{free_port()}", Unreachable),
        ("url", f"redis://127.0.0.1:{free_port()}?reconnect=0", OpenQError),
        ("path", str(tmp_path / "file"), CannotOpen),
    ):
        monkeypatch.setenv("ORDERS", value)
        with pytest.raises(kind, match=f"{keyword} is that of the environment variable ORDERS"):
            open_queue("jobs", **{keyword: "env:ORDERS"})
    with pytest.raises(
        InvalidSetting, match="url='env:' names no environment variable; write url='env:NAME'"
    ):
        open_queue("jobs", url="env:")


def test_a_dlq_elsewhere_is_refused(server: ThreadServer) -> None:
    with OpenQ("dead") as here, pytest.raises(InvalidSetting, match="on the server of its queue"):
        OpenQ("jobs", dlq=here, url=server.url)
    with OpenQ("dead", url=server.url) as there, pytest.raises(InvalidSetting, match="its own path"):
        OpenQ("jobs", dlq=there, path="data")
    with pytest.raises(Closed):
        OpenQ("jobs", dlq=there)


def test_an_unreachable_server_fails_at_once_with_advice() -> None:
    port = free_port()

    with pytest.raises(Unreachable, match=rf"http://127.0.0.1:{port}: nothing listens there; .*openq serve"):
        OpenQ("jobs", url=f"http://user:secret@127.0.0.1:{port}")


def test_something_else_that_listens_there_is_not_taken_for_a_server() -> None:
    with served() as other, pytest.raises(Refused):
        OpenQ("jobs", url=other.url + "/somewhere")


def test_calls_not_offered_over_the_network_raise(server: ThreadServer) -> None:
    with OpenQ("jobs", url=server.url) as queue:
        with pytest.raises(OnlyInProcess):
            queue.broker.subscribe(print)
        with pytest.raises(InvalidSetting, match="pickle"):
            queue.broker.publish("jobs", Draft(b"x", ENCODING_PICKLE))


# -- authentication -------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a server with users, and their tokens."""
    data = tmp_path / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("root", role="admin", password="correct horse")
    store.add_user("sender", rules=[Rule("allow", frozenset(["send"]), "jobs")])
    store.add_user("viewer", rules=[Rule("allow", frozenset(["peek"]), "jobs")])
    tokens = {user: store.create_token(user, "test") for user in ("root", "sender", "viewer")}
    with served(data) as running:
        yield running.url, tokens


def test_a_token_signs_in(
    guarded: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, tokens = guarded
    with OpenQ("jobs", url=url, token=tokens["root"]) as queue:
        queue.publish("by keyword")
    monkeypatch.setenv("OPENQ_TOKEN", tokens["root"])
    with OpenQ("jobs", url=url) as queue:
        queue.publish("by environment")
    monkeypatch.delenv("OPENQ_TOKEN")
    file = tmp_path / "token"
    file.write_text(tokens["root"] + "\n")
    monkeypatch.setenv("OPENQ_TOKEN_FILE", str(file))
    with OpenQ("jobs", url=url) as queue:
        queue.publish("by file")
    monkeypatch.delenv("OPENQ_TOKEN_FILE")
    with OpenQ("jobs", url=url.replace("//", "//root:correct%20horse@")) as queue:
        queue.publish("by password")
        assert bodies(queue) == ["by keyword", "by environment", "by file", "by password"]
        assert "horse" not in repr(queue)


def test_without_the_right_token_nothing_opens(guarded: tuple[str, dict[str, str]]) -> None:
    url, _ = guarded
    with pytest.raises(Refused, match="OPENQ_TOKEN") as nobody:
        OpenQ("jobs", url=url)
    with pytest.raises(Refused, match="check token=") as wrong:
        OpenQ("jobs", url=url, token="oq_canary")

    assert (nobody.value.code, wrong.value.code) == ("unauthorized", "login_refused")
    assert "canary" not in str(wrong.value)


def test_a_send_only_user_can_send_and_nothing_else(guarded: tuple[str, dict[str, str]]) -> None:
    url, tokens = guarded
    with (
        OpenQ("jobs", url=url, token=tokens["root"]) as all_mighty,
        OpenQ("jobs", url=url, token=tokens["sender"]) as queue,
    ):
        queue.publish("x")
        queue.publish_many(["y", "z"])
        for forbidden in (lambda: queue.receive(timeout=0), queue.purge, queue.stats, queue.peek):
            with pytest.raises(Refused) as refused:
                forbidden()
            assert refused.value.code == "forbidden"
        assert bodies(all_mighty) == ["x", "y", "z"]
    with pytest.raises(Refused):
        OpenQ("jobs", 60, url=url, token=tokens["sender"])


def test_a_read_only_user_sees_everything_and_can_settle_nothing(
    guarded: tuple[str, dict[str, str]],
) -> None:
    url, tokens = guarded
    with (
        OpenQ("jobs", url=url, token=tokens["root"]) as all_mighty,
        OpenQ("jobs", url=url, token=tokens["viewer"]) as queue,
    ):
        message_id = all_mighty.publish("x")
        held = take(all_mighty)

        [(seen, _)] = queue.in_flight.values()

        assert (seen.id, seen.body, seen.deadline) == (message_id, "x", held.deadline)
        assert seen.delivery.number == 0, "a receipt is for those who may receive"
        for verb in (seen.ack, seen.nack, lambda: queue.ack(held.receipt_id)):
            with pytest.raises(Refused):
                verb()
        held.ack()


def test_restoring_a_messages_past_needs_permission(
    guarded: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    url, tokens = guarded
    with (
        OpenQ("jobs", url=url, token=tokens["root"]) as all_mighty,
        OpenQ("jobs", url=url, token=tokens["sender"]) as queue,
    ):
        death = DeadLetterEvent("mail", "lost", 9, 2, "rejected", times=3, first_ms=1)
        draft = Draft(b"x", id="old", past=DeliveryOptions(count=7, deaths=(death,)))

        with pytest.raises(Refused):
            queue.broker.publish("jobs", draft)
        with pytest.raises(Refused):
            queue.broker.publish_many("jobs", [draft, draft])
        all_mighty.broker.publish("jobs", draft)

        [restored] = all_mighty.queue
        assert restored.receive_count == 7
        [reported] = restored.deaths
        assert (reported["queue"], reported["reason"], reported["receive_count"]) == ("mail", "lost", 2)
        assert (reported["kind"], reported["times"]) == ("rejected", 3)
        assert reported["first_time"] < reported["time"]


# -- waiting --------------------------------------------------------------------------------------


def test_a_wait_is_several_polls(server: ThreadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_target, "POLL_S", 0.05)
    with OpenQ("jobs", url=server.url) as queue:
        got: list[Any] = []
        waiting = in_thread(lambda: got.append(queue.receive(timeout=None)))
        until(lambda: server.server.listener.requests > 6, "some polls")
        queue.publish("x")

        assert ended(waiting)
        assert got[0].body == "x"
        assert queue.receive(timeout=0.12) is None


def test_closing_during_a_publish_leaves_no_lease_behind(server: ThreadServer) -> None:
    with OpenQ("jobs", url=server.url) as other:
        for _ in range(30):
            mine = OpenQ("jobs", url=server.url)
            got = received_while_closing(mine, other)

            until(lambda: other.stats().waiters == 0, "nobody waits")
            until(lambda got=got: other.stats().in_flight == got, "only what was received is leased")  # type: ignore[misc]
            assert other.stats().ready == 1 - got
            other.purge()


def test_an_item_that_was_got_stays_ours_until_it_is_done(
    server: ThreadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ENDLESS_LEASE_MS", 300)
    with OpenQ("jobs", url=server.url) as queue:
        queue.put("x")
        assert queue.get() == "x"
        [(held, _)] = queue.in_flight.values()
        until(lambda: _deadline(queue) > held.deadline, "its lease is extended")
        with pytest.raises(Empty):
            queue.get_nowait()

        queue.task_done()
        queue.join()

        assert queue.empty()


def _deadline(queue: OpenQ) -> Any:
    [(held, _)] = queue.in_flight.values()
    return held.deadline


def test_a_put_waits_for_room_over_the_network(server: ThreadServer) -> None:
    with OpenQ("jobs", url=server.url, maxsize=1) as queue:
        queue.put("a")
        waiting = in_thread(lambda: queue.put("b"))
        take(queue).ack()

        assert ended(waiting)
        assert bodies(queue) == ["b"]


def test_every_message_of_many_threads_is_done_once(tmp_path: Path) -> None:
    with served(tmp_path / "data") as running, OpenQ("jobs", url=running.url) as queue:
        check_each_is_done_once(queue)


def test_a_forked_child_has_connections_of_its_own(server: ThreadServer) -> None:
    program = (
        "import os, sys\n"
        "from openq import OpenQ\n"
        "queue = OpenQ('jobs', url='env:OPENQ_URL')\n"
        "queue.publish('parent')\n"
        "child = os.fork()\n"
        "for i in range(20):\n"
        "    queue.publish(f'{bool(child)} {i}')\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "else:\n"
        "    os._exit(0)\n"
    )

    done = run(program, OPENQ_URL=server.url)

    assert (done.returncode, done.stderr) == (0, "")
    assert server.broker.stats("jobs").ready == 41


def test_an_interrupted_program_ends(server: ThreadServer) -> None:
    program = (
        "from openq import OpenQ\n"
        "print('up', flush=True)\n"
        "OpenQ('jobs', url='env:OPENQ_URL').receive(timeout=None)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "OPENQ_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: "jobs" in server.broker.queues() and server.broker.stats("jobs").waiters == 1, "it waits")
    process.send_signal(signal.SIGINT)
    _, problems = process.communicate(timeout=30)

    assert "KeyboardInterrupt" in problems
    until(lambda: server.broker.stats("jobs").waiters == 0, "the server has noticed")


# -- everything comes out as it went in -----------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
@given(
    body=any_body,
    attributes=any_attributes,
    priority=st.integers(0, 255),
    codec=st.sampled_from(["auto", "json", "msgpack"]),
)
def test_a_message_comes_out_as_it_went_in(
    server: ThreadServer, body: Any, attributes: dict[str, Any], priority: int, codec: str
) -> None:
    attributes = {name: value for name, value in attributes.items() if name and not name.startswith("openq.")}
    if codec == "json" and isinstance(body, bytes):
        codec = "auto"
    with OpenQ("jobs", url=server.url, codec=codec) as queue:
        message_id = queue.publish(
            body, attributes=attributes, priority=priority, group="g", message_type="t", publisher="p"
        )
        peeked = queue.peek()
        received = take(queue)
        received.ack()

    for message in (peeked, received):
        assert message is not None
        assert (message.id, message.body, type(message.body)) == (message_id, body, type(body))
        assert (message.attributes, message.priority) == (attributes, priority)
        assert (message.group, message.message_type, message.publisher) == ("g", "t", "p")


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".", "a b?c#d%", "ü€", "@me", "@me/x", "%2e%2e", "x" * 255, '"']
)
def test_every_name_reaches_its_queue(server: ThreadServer, name: str) -> None:
    with OpenQ(name, url=server.url) as queue:
        message_id = queue.publish("x", id=name)

        assert queue.stats().ready == 1
        assert queue.status(message_id) == "unprocessed"
        assert name in queue.broker.queues()
        with queue.processing(timeout=0) as message:
            assert message is not None
            assert message.id == name
        assert queue.status(name) == "processed"


def test_more_than_one_request_holds_goes_in_several(server: ThreadServer) -> None:
    with OpenQ("jobs", url=server.url) as queue:
        ids = queue.publish_many([f"{i}" for i in range(2_500)])
        large = queue.publish_many([bytes(3 << 20)] * 3)

        assert len(set(ids + large)) == 2_503
        assert [message.id for message in queue.queue] == ids + large
        assert queue.peek_many(1_500, rear=True)[-1].id == ids[1_003]
        messages = []
        while received := queue.receive_many(5_000, timeout=0):
            messages += received
        assert [message.id for message in messages] == ids + large
        assert len(queue.in_flight) == 2_503
        queue.ack_many(messages)
        assert queue.messages == []


def test_one_invalid_item_does_not_stop_the_others(server: ThreadServer) -> None:
    with OpenQ("jobs", url=server.url) as queue:
        with pytest.raises(InvalidSetting):
            queue.publish_many(["a", {"body": "b", "id": "x" * 300}, "c"])

        assert bodies(queue) == ["a", "c"]


def test_an_ack_of_the_same_twice_counts_once(server: ThreadServer) -> None:
    with OpenQ("jobs", url=server.url) as queue:
        queue.publish_many(["a", "b"])
        first, second = queue.receive_many(2, timeout=0)

        results = queue.broker.ack(
            "jobs", [(each.delivery.entry.seq, each.delivery.number) for each in (first, second, first)]
        )

        assert [type(result) for result in results] == [type(None), type(None), MessageNotFoundError]


def test_settings_come_back_as_they_were_given(server: ThreadServer) -> None:
    retry = RetryPolicy("exponential", base_ms=1_500, max_ms=60_001, factor=1.5, jitter=0.25)
    wanted = QueueSettings(
        visibility_ms=1_234,
        delay_ms=1,
        ttl_ms=5_000,
        max_receives=None,
        dead_letter="dead",
        max_length=7,
        max_bytes=8,
        max_body=9,
        overflow="reject-dead-letter",
        max_priority=3,
        exhausted="drop",
        fifo=True,
        dedup_by_content=True,
        dedup_per_group=True,
        retry=retry,
        history_ms=0,
        paused=True,
    )
    with OpenQ("dead", url=server.url) as dead:
        broker = dead.broker

        assert broker.declare("jobs", wanted) == wanted == broker.settings("jobs")
        assert broker.declare("jobs", wanted) == wanted
        with pytest.raises(openq.QueueExists, match="delay"):
            broker.declare("jobs", wanted.with_(delay_ms=2))
        assert broker.declare("jobs", wanted.with_(delay_ms=2), change=True).delay_ms == 2


def test_the_progress_callback_of_a_redrive_can_stop_it(server: ThreadServer) -> None:
    with OpenQ("dead", url=server.url) as dead, OpenQ("jobs", dlq=dead, max_receives=1) as jobs:
        jobs.publish_many(range(500))
        for message in jobs.receive_many(500, timeout=0):
            message.reject("no")
        seen: list[int] = []

        def stop_soon(done: int) -> bool:
            seen.append(done)
            return False

        moved = dead.redrive(rate=100, progress=stop_soon)

        assert 0 < seen[0] <= moved < 500
        assert dead.redrive() == 500 - moved


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        MessageNotFoundError("m", "jobs"),
        openq.VisibilityTimeoutExpired("m", "jobs"),
        QueueNotFound("jo'bs"),
        openq.QueueExists("jobs", "delay"),
        openq.QueueInUse("jobs", "busy"),
        QueueFull("jobs", "max_length 2"),
        openq.ExchangeNotFound("x"),
        openq.ExchangeInUse("x"),
        InvalidSetting("no"),
        openq.DiskFull("no room"),
        openq.JournalFailed("broken"),
        openq.HistoryUnavailable("gone"),
    ],
)
def test_errors_of_a_server_are_those_of_the_library(error: OpenQError) -> None:
    again = documents.parse_error(Refused(400, error.code, str(error)), "jobs")

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert getattr(again, "name", None) == getattr(error, "name", getattr(again, "name", None))


def test_an_error_that_only_a_server_knows_keeps_its_code() -> None:
    error = documents.parse_error(Refused(429, "too_many_tasks", "32 tasks", "wait"))

    assert isinstance(error, Refused)
    assert (error.code, str(error)) == ("too_many_tasks", "32 tasks; wait")


def test_bodies_come_byte_for_byte(server: ThreadServer) -> None:
    spaced = b'{ "a":1.0,  "b": [] }'
    with OpenQ("jobs", url=server.url, codec="raw") as queue:
        server.broker.publish("jobs", Draft(spaced, ENCODING_JSON))

        assert queue.queue[0].body == spaced
        assert take(queue).body == spaced
