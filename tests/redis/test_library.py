"""The library in Redis: what it promises elsewhere, and what only processes that share a Redis can try."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

import openq
from openq import (
    Closed,
    Consumer,
    InvalidSetting,
    Message,
    MessageNotFoundError,
    OpenQ,
    OpenQError,
    VisibilityTimeoutExpired,
)
from tests import test_contract, test_contract_delivery, test_contract_formats
from tests.client import (
    test_arguments,
    test_errors,
    test_exchanges,
    test_hooks,
    test_library,
    test_remote,
    test_threads,
)
from tests.client.concurrency import check_each_is_done_once, environment, received_while_closing, run
from tests.client.helpers import Make, bodies, ended, in_thread, opening, take, until_waiting
from tests.redis.servers import FORCED, Server, single
from tests.redis.shared_tests import collect_tests
from tests.waiting import until

pytest_plugins = "tests.client.fixtures"


@pytest.fixture
def url(redis_server: Server) -> str:
    """Fast: this server keeps nothing on disk, which the safe profile would refuse."""
    return f"{redis_server.url}?profile=fast"


@pytest.fixture
def durable() -> Iterator[Server]:
    """One of the test's own, that it may kill."""
    with single(*FORCED) as server:
        yield server


@pytest.fixture
def make(url: str, request: pytest.FixtureRequest) -> Iterator[Make]:
    """On Redis's own clock, unless the test has one that it moves."""
    place: dict[str, Any] = {"url": url}
    if "clock" in request.fixturenames:
        place["clock"] = request.getfixturevalue("clock")
    with opening(place) as open_queue:
        yield open_queue


# -- what holds in every place ------------------------------------------------------------------------

# Tests about another place, each with what they are about.
ELSEWHERE: dict[ModuleType, dict[str, str]] = {
    test_contract: {},
    test_contract_delivery: {},
    test_contract_formats: {
        "test_M7_pickle_can_be_chosen_for_local_queues": "many write to a Redis",
    },
    test_library: {},
    test_threads: {
        "test_messages_served_while_the_queue_closes_are_released_uncounted": "served a moment later here",
        "test_closing_during_a_publish_leaves_no_lease_behind": "given back a moment later here",
        "test_an_interrupted_receive_leaves_the_line": "a signal may come before it sleeps",
    },
    test_errors: {},
    test_hooks: {},
    test_arguments: {},
    test_exchanges: {},
}
for _module, _without in ELSEWHERE.items():
    globals().update(collect_tests(_module, "make", _without))


# -- opening ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"path": "data"},
        {"storage": "memory"},
        {"codec": "pickle"},
        {"token": "oq_x"},
        {"reconnect": -1},
        {"clock": 5},
    ],
)
def test_what_does_not_go_with_redis_is_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        OpenQ("jobs", url=url, **options)


@pytest.mark.parametrize(
    "address", ["redis://:port", "redis://host/x", "redis://h?colour=red", "redis+sentinel://h"]
)
def test_an_address_that_cannot_be_is_refused(address: str) -> None:
    with pytest.raises(InvalidSetting):
        OpenQ("jobs", url=address)


def test_without_the_extra_the_error_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['hiredis'] = None\n"
        "from openq import OpenQ, InvalidSetting\n"
        "try:\n"
        "    OpenQ('jobs', url='redis://localhost')\n"
        "except InvalidSetting as error:\n"
        "    print(error)\n"
    )

    done = run(program)

    assert 'pip install "openq[redis]"' in done.stdout, done.stderr


def test_queue_objects_of_one_url_share_one_broker(url: str) -> None:
    with OpenQ("dead", url=url) as dead, OpenQ("jobs", dlq=dead) as jobs, OpenQ("other", url=url) as other:
        assert jobs.broker is dead.broker is other.broker
        assert "redis://" in repr(jobs)
        moved = jobs.publish("x")
        jobs.move(moved, dead)
        assert bodies(dead) == ["x"]
    with pytest.raises(Closed):
        jobs.publish("x")


def test_the_password_is_not_shown() -> None:
    with single() as server:
        server.ask("CONFIG", "SET", "requirepass", "se/cret")
        secret = server.url.replace("://", "://:se%2Fcret@") + "?profile=fast"
        with OpenQ("jobs", url=secret) as jobs:
            jobs.publish("x")
            assert "cret" not in repr(jobs)


def test_a_dlq_elsewhere_is_refused(url: str) -> None:
    with OpenQ("dead") as here, pytest.raises(InvalidSetting, match="in the Redis of its queue"):
        OpenQ("jobs", dlq=here, url=url)


def test_a_queue_on_the_broker_of_another_is_in_its_place(url: str) -> None:
    with OpenQ("jobs", url=url) as jobs, OpenQ("jobs", broker=jobs.broker) as other:
        jobs.publish("x")
        other.ack(take(other))
        assert jobs.messages == []


def test_settings_stay_when_a_queue_is_opened_again(url: str) -> None:
    with OpenQ("jobs", url=url, visibility_timeout=7, max_length=5):
        pass
    with OpenQ("jobs", url=url) as again:
        assert again.visibility_timeout == 7
        assert again.settings.max_length == 5


def test_a_lease_belongs_to_the_queue_object_that_has_it(url: str) -> None:
    with OpenQ("jobs", url=url) as mine, OpenQ("jobs", url=url) as other:
        message_id = mine.publish("x")
        take(mine)

        with pytest.raises(VisibilityTimeoutExpired):
            other.ack(message_id)
        mine.ack(message_id)

        assert mine.messages == []


def test_the_founding_sample_runs_here_too(durable: Server) -> None:
    place = f"visibility_timeout=100, url={durable.url!r})"
    done = run(test_remote.FOUNDING_SAMPLE.replace("visibility_timeout=100)", place), OPENQ_IDLE_TIMEOUT="2")

    assert (done.returncode, done.stdout, done.stderr) == (0, "10 0 0 0\n", "")


# -- processes ----------------------------------------------------------------------------------------


@contextmanager
def program(text: str, url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(OPENQ_URL=url),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_processes_share_a_queue_by_its_address(url: str) -> None:
    with OpenQ("jobs", url=url) as queue:
        done = run(
            "from openq import OpenQ; OpenQ('jobs', url='env:OPENQ_URL').publish({'from': 'afar'})",
            OPENQ_URL=url,
        )
        assert done.returncode == 0, done.stderr

        with queue.processing() as message:
            assert message is not None
            assert message.body == {"from": "afar"}

        assert queue.messages == []


def test_who_waits_is_served_by_another_process(url: str) -> None:
    with OpenQ("jobs", url=url) as queue:
        got: list[Message | None] = []
        waiting = in_thread(lambda: got.append(queue.receive(timeout=60)))
        until_waiting(queue, 1)

        assert (
            run(
                "from openq import OpenQ; OpenQ('jobs', url='env:OPENQ_URL').publish('afar')", OPENQ_URL=url
            ).returncode
            == 0
        )

        assert ended(waiting)
        assert [message and message.body for message in got] == ["afar"]


def test_a_close_beside_a_publish_gives_back_what_was_on_its_way(url: str) -> None:
    with OpenQ("jobs", url=url) as other:
        for _ in range(20):
            mine = OpenQ("jobs", url=url)
            held = int(received_while_closing(mine, other))
            until(lambda held=held: other.stats().in_flight == held, "nobody holds what nobody got")  # type: ignore[misc]
            assert len(other) + held == 1
            other.purge()


def test_the_message_of_a_killed_consumer_comes_back(url: str) -> None:
    text = (
        "from openq import OpenQ\n"
        "print(OpenQ('jobs', url='env:OPENQ_URL').receive().body, flush=True)\n"
        "input()\n"
    )
    with OpenQ("jobs", url=url, visibility_timeout=1) as queue:
        queue.publish("x")
        with program(text, url) as consumer:
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == "x\n"
            os.kill(consumer.pid, signal.SIGKILL)
            consumer.wait()

            message = queue.receive(timeout=60)

        assert message is not None
        assert (message.body, message.receive_count) == ("x", 2)
        message.ack()
        assert queue.messages == []


def test_a_heartbeat_keeps_a_lease_for_as_long_as_its_process_lives(url: str) -> None:
    text = (
        "from openq import OpenQ\n"
        "with OpenQ('jobs', url='env:OPENQ_URL').processing(heartbeat=True) as message:\n"
        "    print('mine', flush=True)\n"
        "    input()\n"
    )
    with OpenQ("jobs", url=url, visibility_timeout=1) as queue:
        queue.publish("x")
        with program(text, url) as consumer:
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == "mine\n"
            [(held, _)] = queue.in_flight.values()
            first = held.deadline
            assert first is not None
            until(lambda: any(m.deadline > first for m, _ in queue.in_flight.values()), "it is extended")
            os.kill(consumer.pid, signal.SIGKILL)
            consumer.wait()

            message = queue.receive(timeout=60)
        assert message is not None
        assert message.receive_count == 2


def test_a_forked_child_has_connections_of_its_own(durable: Server) -> None:
    text = (
        "import os\n"
        "from openq import OpenQ\n"
        "queue = OpenQ('jobs', url='env:OPENQ_URL')\n"
        "queue.publish('parent')\n"
        "child = os.fork()\n"
        "own = OpenQ('jobs', url='env:OPENQ_URL') if not child else queue\n"
        "for i in range(20):\n"
        "    queue.publish(f'{bool(child)} {i}')\n"
        "    own.publish(f'own {bool(child)} {i}')\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "else:\n"
        "    own.ack(own.receive(timeout=60))\n"
        "    own.close()\n"
        "    os._exit(0)\n"
    )

    done = run(text, OPENQ_URL=durable.url)

    assert (done.returncode, done.stderr) == (0, "")
    with OpenQ("jobs", url=durable.url) as queue:
        assert len(queue) == 80


def test_every_message_of_two_processes_is_done_once(url: str) -> None:
    text = (
        "from openq import OpenQ, Consumer, Producer\n"
        "queue = OpenQ('jobs', url='env:OPENQ_URL')\n"
        "def tell(message): print(message.id + chr(10), end='', flush=True)\n"
        "work = [Producer(queue, source=[f'{n}' for n in range(100)]),\n"
        "        *(Consumer(queue, tell, idle_timeout=5.0) for _ in range(2))]\n"
        "[each.start() for each in work]\n"
        "[each.join() for each in work]\n"
    )
    with program(text, url) as one, program(text, url) as two:
        done = Counter((one.communicate()[0] + two.communicate()[0]).split())

        assert set(done.values()) == {1}
        assert len(done) == 200
    with OpenQ("jobs", url=url) as queue:
        assert queue.messages == []


def test_every_message_of_many_threads_is_done_once(url: str) -> None:
    with OpenQ("jobs", url=url) as queue:
        check_each_is_done_once(queue)


def test_an_interrupted_program_ends(url: str) -> None:
    text = (
        "from openq import OpenQ\n"
        "queue = OpenQ('jobs', url='env:OPENQ_URL')\n"
        "print('up', flush=True)\n"
        "queue.receive(timeout=None)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        env=environment(OPENQ_URL=url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    _, problems = process.communicate(timeout=60)

    assert "KeyboardInterrupt" in problems


# -- Redis goes and comes back ------------------------------------------------------------------------


def test_the_library_goes_on_when_redis_was_restarted(durable: Server) -> None:
    with OpenQ("jobs", url=durable.url) as queue:
        kept = queue.publish("before")
        held = take(queue)

        durable.kill9()
        durable.start()

        queue.ack(held)
        after = queue.publish("after")
        assert [message.id for message in queue.queue] == [after]
        assert queue.status(kept) == "processed"


def test_who_waits_over_a_restart_is_served_after_it(durable: Server) -> None:
    with OpenQ("jobs", url=durable.url) as queue:
        got: list[Message | None] = []
        waiting = in_thread(lambda: got.append(queue.receive(timeout=None)))
        until_waiting(queue, 1)

        durable.kill9()
        durable.start()
        queue.publish("after")

        assert ended(waiting)
        assert [message and message.body for message in got] == ["after"]


def test_consumers_work_on_over_a_restart(durable: Server) -> None:
    with OpenQ("jobs", url=durable.url, visibility_timeout=2) as queue:
        done: set[str] = set()
        consumers = [Consumer(queue, lambda m: done.add(m.body), idle_timeout=None) for _ in range(2)]
        for consumer in consumers:
            consumer.start()
        sent: set[str] = set()

        def publish(name: str) -> None:
            try:
                queue.publish(name)
            except OpenQError:
                return  # its outcome is unknown
            sent.add(name)

        for i in range(200):
            publish(f"{i}")
            if i in (50, 120):
                durable.kill9()
                durable.start()

        until(lambda: done >= sent, "everything is done")
        for consumer in consumers:
            consumer.stop()
        assert ended(*consumers)


def test_a_redis_that_stays_unreachable_is_reported(durable: Server) -> None:
    with OpenQ("jobs", url=durable.url, reconnect=0.2) as queue:
        durable.kill9()
        with pytest.raises(openq.StoreUnavailable):
            queue.publish("x")
        durable.start()

        def is_published() -> bool:
            try:
                return bool(queue.publish("y"))
            except openq.StoreUnavailable:
                return False  # it has tried a moment ago, and does not try again yet

        until(is_published, "it is found again")
        assert bodies(queue) == ["y"]


def test_closing_does_not_wait_for_an_unreachable_redis(durable: Server) -> None:
    queue = OpenQ("jobs", url=durable.url)
    queue.publish("x")
    durable.kill9()

    closing = in_thread(queue.close)

    assert ended(closing)


def test_what_was_published_survives_a_kill_of_redis(durable: Server) -> None:
    with OpenQ("jobs", url=durable.url) as queue:
        ids = [queue.publish(i) for i in range(50)]
        durable.kill9()
        durable.start()
        assert [message.id for message in queue.queue] == ids
        with pytest.raises(MessageNotFoundError):
            queue.ack("none-of-ours")
