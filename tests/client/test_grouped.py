"""Calls of many tasks or threads that share requests: each caller has its own result, as if it were alone."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from openq import (
    Closed,
    InvalidSetting,
    MessageNotFoundError,
    OpenQ,
    OpenQError,
    QueueFull,
    QueueNotFound,
    Refused,
    Uncertain,
    Unreachable,
    aio,
)
from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.client.grouped import MAX_BYTES, MAX_CALLS, MAX_DIRECT, GroupedCalls, leading
from openq.local.broker import LocalBroker
from tests.client.helpers import bodies, ended, in_thread, take
from tests.client.lossy_proxy import LossyProxy
from tests.client.thread_server import ThreadServer
from tests.redis.servers import single
from tests.serving import Served, free_port, served, start
from tests.waiting import until, until_async


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    with ThreadServer(LocalBroker()) as running:
        yield running


@pytest.fixture
def wire(server: ThreadServer) -> Iterator[LossyProxy]:
    with LossyProxy(server.url) as proxy:
        yield proxy


@pytest.fixture(scope="module", params=["memory", "journal", "redis"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that the tests share; each has a queue of its own."""
    with ExitStack() as stack:
        if request.param == "redis":
            redis = stack.enter_context(single())
            server = Served(["--store", redis.url, "--profile", "fast"], free_port())
            stack.callback(server.stop)
            server.wait()
        else:
            data = None if request.param == "memory" else tmp_path_factory.mktemp("data")
            server = stack.enter_context(served(data))
        yield server.url


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(main())


async def outcomes(*calls: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


# -- threads, without a server ------------------------------------------------------------------------


class Wire:
    """Answers a request once a test lets it."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.answers = threading.Semaphore(0)
        self.error: OpenQError | None = None

    def send(self, items: list[int]) -> Sequence[int | OpenQError]:
        self.requests.append(items)
        self.answers.acquire()
        if self.error is not None:
            raise self.error
        return [item * 10 if item >= 0 else InvalidSetting(f"{item} is negative") for item in items]


class Callers:
    def __init__(self, calls: "GroupedCalls[int, int]") -> None:
        self._calls = calls
        self.results: dict[int, int | OpenQError] = {}
        self.threads: list[threading.Thread] = []

    def start(self, item: int) -> None:
        self.threads.append(in_thread(lambda: self._call(item)))

    def _call(self, item: int) -> None:
        try:
            self.results[item] = self._calls.call(item)
        except OpenQError as error:
            self.results[item] = error


def start_in_turn(
    wire: Wire, calls: "GroupedCalls[int, int]", callers: Callers, items: Sequence[int]
) -> None:
    """The first calls go out, one by one; the others wait, in order."""
    for at, item in enumerate(items):
        callers.start(item)
        sent = min(at + 1, MAX_DIRECT + 1)
        until(lambda sent=sent, at=at: (len(wire.requests), calls.waiting) == (sent, at + 1 - sent))  # type: ignore[misc]


def test_calls_gather_while_others_are_under_way() -> None:
    wire = Wire()
    calls = GroupedCalls(wire.send, lambda item: 0)
    callers = Callers(calls)

    start_in_turn(wire, calls, callers, [1, 2, 3, 4, 5, 6, -7, 8])
    wire.answers.release(MAX_DIRECT + 2)

    assert ended(*callers.threads)
    assert wire.requests == [[1], [2], [3], [4], [5], [6, -7, 8]]
    assert isinstance(callers.results.pop(-7), InvalidSetting)
    assert callers.results == {item: item * 10 for item in (1, 2, 3, 4, 5, 6, 8)}


def test_results_that_are_not_as_many_as_the_calls_are_an_error_of_each_caller() -> None:
    answers: list[Any] = [[], [1, 2]]
    calls = GroupedCalls[int, int](lambda items: answers.pop(), lambda item: 0)
    for text in ("2 of 1", "0 of 1"):
        with pytest.raises(OpenQError, match=text):
            calls.call(1)

    class Short(Wire):
        def send(self, items: list[int]) -> Sequence[int | OpenQError]:
            return super().send(items)[len(items) > 1 :]

    wire = Short()
    calls = GroupedCalls(wire.send, lambda item: 0)
    callers = Callers(calls)

    start_in_turn(wire, calls, callers, [1, 2, 3, 4, 5, 6, 7])
    wire.answers.release(MAX_DIRECT + 2)

    assert ended(*callers.threads)
    errors = {item: str(each) for item, each in callers.results.items() if isinstance(each, OpenQError)}
    assert errors == dict.fromkeys((6, 7), "the server answered 1 of 2 calls")
    assert len(callers.results) == 7


def test_each_caller_of_a_request_that_fails_raises_an_error_of_its_own() -> None:
    wire = Wire()
    wire.error = QueueNotFound("jobs")
    calls = GroupedCalls(wire.send, lambda item: 0)
    callers = Callers(calls)

    start_in_turn(wire, calls, callers, [1, 2, 3, 4, 5, 6, 7])
    wire.answers.release(MAX_DIRECT + 2)

    assert ended(*callers.threads)
    errors = [error for error in callers.results.values() if isinstance(error, QueueNotFound)]
    assert {(str(error), error.name) for error in errors} == {("queue 'jobs' does not exist", "jobs")}
    assert len(errors) == 7
    assert callers.results[6] is not callers.results[7]


def test_a_caller_that_is_interrupted_takes_its_call_back_and_disturbs_nobody() -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    wire = Wire()
    calls = GroupedCalls(wire.send, lambda item: 0)
    callers = Callers(calls)
    start_in_turn(wire, calls, callers, [1, 2, 3, 4, 5, 6])
    main = threading.main_thread().ident
    assert main == threading.get_ident(), "signals reach the main thread"

    def interrupt_later() -> None:
        until(lambda: calls.waiting == 2)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        interrupter = in_thread(interrupt_later)
        with pytest.raises(Interrupted):
            calls.call(7)
        assert ended(interrupter)
    finally:
        signal.signal(signal.SIGUSR1, before)
    wire.answers.release(MAX_DIRECT + 2)

    assert ended(*callers.threads)
    assert wire.requests == [[1], [2], [3], [4], [5], [6]]
    assert callers.results == {item: item * 10 for item in range(1, 7)}


def test_a_request_has_limits() -> None:
    assert leading([0] * (MAX_CALLS + 5)) == MAX_CALLS
    assert leading([MAX_BYTES - 1, 1, 1]) == 2
    assert leading([MAX_BYTES + 1, 1]) == 1
    assert leading([7]) == 1


# -- tasks and threads, on every store ----------------------------------------------------------------


def test_every_task_has_the_result_that_it_would_have_alone(url: str) -> None:
    async def test() -> None:
        async with await aio.OpenQ.open("tasks", url=url, max_body=1_000) as queue:
            trace = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902{:02x}-01"
            found = await outcomes(
                *[queue.publish(f"plain {i}") for i in range(50)],
                *[queue.publish({"n": i}, attributes={"traceparent": trace.format(i)}) for i in range(20)],
                *[queue.publish(b"bytes", dedup_id="one") for _ in range(5)],
                queue.publish("x" * 1_001),
                queue.publish("of its own", id="my-id"),
            )
            ids, (refused, own) = found[:75], found[75:]
            assert all(isinstance(each, str) for each in ids)
            assert len(set(ids)) == 71
            assert len(set(ids[70:])) == 1
            assert isinstance(refused, InvalidSetting)
            with pytest.raises(InvalidSetting) as alone:
                await queue.publish("x" * 1_001)
            assert str(refused) == str(alone.value)
            assert own == "my-id"

            messages = await queue.receive_many(100)
            assert [message.id for message in messages] == [*ids[:71], own]
            assert [message.body for message in messages[:50]] == [f"plain {i}" for i in range(50)]
            assert [message.body for message in messages[50:70]] == [{"n": i} for i in range(20)]
            assert [message.attributes["traceparent"] for message in messages[50:70]] == [
                trace.format(i) for i in range(20)
            ]

            await queue.ack(messages[3])
            late = await outcomes(*[queue.ack(message) for message in messages])
            assert [type(each) for each in late if each is not None] == [MessageNotFoundError]
            assert late[3].args[0].startswith(f"message {messages[3].id} ")
            assert (await queue.stats()).in_flight == 0

    run(test)


def test_a_full_queue_refuses_those_that_do_not_fit(url: str) -> None:
    async def test() -> None:
        async with await aio.OpenQ.open("small", url=url, max_length=7, overflow="reject") as queue:
            found = await outcomes(*[queue.publish(i) for i in range(10)])
            assert [type(each) for each in found] == [str] * 7 + [QueueFull] * 3
            assert [each.body for each in await queue.receive_many(10)] == list(range(7))

    run(test)


def test_threads_share_requests(url: str) -> None:
    each, names = 20, "abcdefghijkl"
    with OpenQ("threads", url=url, max_body=1_000) as queue:
        ids: list[str] = []
        refused: list[InvalidSetting] = []

        def publish(name: str) -> None:
            for i in range(each):
                ids.append(queue.publish(f"{name} {i}"))
            try:
                queue.publish("x" * 1_001)
            except InvalidSetting as error:
                refused.append(error)

        def consume() -> None:
            for _ in range(each):
                queue.ack(take(queue))

        assert ended(*[in_thread(lambda name=name: publish(name)) for name in names])  # type: ignore[misc]
        assert len(set(ids)) == each * len(names)
        assert len(refused) == len(names)
        found: list[str] = bodies(queue)
        assert len(found) == each * len(names)
        for name in names:
            assert [body for body in found if body[0] == name] == [f"{name} {i}" for i in range(each)]

        assert ended(*[in_thread(consume) for _ in names])
        assert queue.stats().in_flight == 0
        assert queue.messages == []


# -- what else a caller may meet -----------------------------------------------------------------------


def test_tasks_share_a_request_and_keep_their_order(wire: LossyProxy) -> None:
    async def test() -> None:
        async with await aio.OpenQ.open("jobs", url=wire.url) as queue:
            wire.requests.clear()
            await outcomes(*[queue.publish(i, group="g") for i in range(100)])
            assert wire.requests == [b"POST /api/v1/queues/jobs/messages/batch"]
            messages = await queue.receive_many(100)
            assert [message.body for message in messages] == list(range(len(messages)))
            wire.requests.clear()
            await queue.publish("alone")
            assert wire.requests == [b"POST /api/v1/queues/jobs/messages"]

    run(test)


def test_a_cancelled_task_disturbs_nobody(server: ThreadServer) -> None:
    async def test() -> None:
        async with await aio.OpenQ.open("jobs", url=server.url) as queue:
            tasks = [asyncio.create_task(queue.publish(i)) for i in range(20)]
            await asyncio.sleep(0)  # all have begun, and none has left
            for task in tasks[::2]:
                task.cancel()
            found = await outcomes(*tasks)
            assert [type(each) for each in found] == [asyncio.CancelledError, str] * 10
            assert [each.body for each in await queue.receive_many(20)] == list(range(1, 20, 2))

    run(test)


def test_after_a_lost_answer_only_what_cannot_double_is_sent_again(
    wire: LossyProxy, server: ThreadServer
) -> None:
    async def test() -> None:
        async with await aio.OpenQ.open("jobs", url=wire.url) as queue:
            wire.lose = 2
            found = await outcomes(
                *[queue.publish(i, **({} if i % 2 else {"dedup_id": str(i)})) for i in range(10)]
            )
            assert [type(each) for each in found] == [str, Uncertain] * 5
            assert all("it is not known whether it was published" in str(each) for each in found[1::2])
            with OpenQ("jobs", url=server.url) as direct:
                assert bodies(direct) == list(range(10))

    run(test)


def test_what_a_killed_server_has_confirmed_is_there(tmp_path: Path) -> None:
    port = free_port()
    server = start(tmp_path / "data", port=port).wait()
    confirmed: list[str] = []
    errors: list[OpenQError] = []

    async def test() -> None:
        nonlocal server
        async with await aio.OpenQ.open("jobs", url=server.url, reconnect=0) as queue:

            async def publish(name: int) -> None:
                for i in range(100_000):
                    try:
                        await queue.publish(f"{name} {i}")
                    except OpenQError as error:
                        errors.append(error)
                        return
                    confirmed.append(f"{name} {i}")

            tasks = [asyncio.create_task(publish(name)) for name in range(50)]
            await until_async(lambda: len(confirmed) > 1_000)
            await asyncio.to_thread(server.kill)
            await asyncio.gather(*tasks)

    try:
        run(test)
        server = start(tmp_path / "data", port=port).wait()
        with OpenQ("jobs", url=server.url) as queue:
            stored: list[str] = []
            while messages := queue.receive_many(1_000, 0):
                stored += [message.body for message in messages]
        assert len(stored) == len(set(stored))
        assert set(confirmed) <= set(stored)
        assert len(errors) == 50
        assert {type(error) for error in errors} <= {Uncertain, Unreachable}
        # What nobody confirmed and is stored is what was in doubt.
        assert len(stored) - len(confirmed) <= sum(isinstance(error, Uncertain) for error in errors)
    finally:
        server.stop()


def test_a_publisher_without_permission_is_refused_each_time(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("root", role="admin", password="correct horse")
    store.add_user("viewer", rules=[Rule("allow", frozenset(["peek"]), "jobs")])
    token = store.create_token("viewer", "test")
    with served(data) as server:
        with OpenQ("jobs", url=server.url.replace("//", "//root:correct%20horse@")):
            pass

        async def test() -> None:
            async with await aio.OpenQ.open("jobs", url=server.url, token=token) as queue:
                found = await outcomes(*[queue.publish(i) for i in range(20)])
                assert [(type(each), each.code) for each in found] == [(Refused, "forbidden")] * 20
                assert len({id(each) for each in found}) == 20

        run(test)


def test_closing_ends_every_call(server: ThreadServer) -> None:
    async def test() -> None:
        queue = await aio.OpenQ.open("jobs", url=server.url)
        tasks = [asyncio.create_task(queue.publish(i)) for i in range(100)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(queue.close())
        found = await outcomes(*tasks)
        await closing
        assert {type(each) for each in found} <= {str, Closed}
        with pytest.raises(Closed):
            await queue.publish("late")
        with OpenQ("jobs", url=server.url) as direct:
            assert len(bodies(direct)) == sum(isinstance(each, str) for each in found)

    run(test)
