"""Threads and tasks of the server: what is slow does not keep what is quick from its turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from openq.auth.guard import Guard
from openq.auth.store import UserStore
from openq.config import Config
from openq.errors import Closed
from openq.local.broker import LocalBroker
from openq.server.context import (
    MAX_COMMITS,
    MAX_COMMITS_OF_JOB,
    MAX_SCANS,
    ServerContext,
    TooManyCommits,
    TooManySearches,
)
from openq.server.tasks import MAX_RUNNING, MAX_RUNNING_OF_ACCOUNT, LongOperation, TaskList, TooManyTasks


@pytest.fixture
def context() -> Iterator[ServerContext]:
    loop = asyncio.new_event_loop()
    with closing(LocalBroker(None)) as broker:
        context = ServerContext(broker, loop, Config(memory=True), Guard(UserStore(None), lambda: 0.0))
        yield context
        context.close()
    loop.close()


def test_commits_of_a_job_wait_for_one_another_without_a_thread(context: ServerContext) -> None:
    go_on = threading.Event()
    finished: list[object] = []
    wanted = 0

    def end(result: object, error: BaseException | None) -> None:
        finished.append(error or result)
        if len(finished) == wanted:
            context.loop.stop()

    def slow(name: str) -> str:
        assert go_on.wait(60)
        return name

    for number in range(MAX_COMMITS_OF_JOB):
        is_wanted = number != 1
        context.commit("a", partial(slow, f"a{number}"), end, partial(bool, is_wanted))
    with pytest.raises(TooManyCommits):
        context.commit("a", partial(slow, "no"), end)
    wanted = 2
    context.commit("b", lambda: "b", end)  # they hold one thread, not all
    context.run(lambda: "quick", end)
    context.loop.run_forever()
    assert sorted(map(str, finished)) == ["b", "quick"]

    for number in range(MAX_COMMITS - MAX_COMMITS_OF_JOB):
        context.commit(f"c{number}", partial(slow, "c"), end)
    with pytest.raises(TooManyCommits):
        context.commit("d", partial(slow, "no"), end)
    wanted = 2 + MAX_COMMITS - 1  # one is gone
    go_on.set()
    context.loop.run_forever()

    assert [each for each in finished if str(each)[0] == "a"] == ["a0", "a2", "a3"]
    wanted += 1
    context.commit("a", lambda: "again", end)
    context.loop.run_forever()
    assert finished[-1] == "again"


def test_searches_and_sign_ins_do_not_stand_in_the_way_of_anything_else(context: ServerContext) -> None:
    go_on = threading.Event()
    finished: list[object] = []

    def slow() -> bool:
        return go_on.wait(60)

    def end(count: int, result: object, error: BaseException | None) -> None:
        finished.append(error or result)
        if len(finished) == count:
            context.loop.stop()

    for _ in range(MAX_SCANS):
        context.seek(slow, partial(end, MAX_SCANS + 2))
    with pytest.raises(TooManySearches):
        context.seek(slow, partial(end, 0))
    context.run(lambda: "quick", partial(end, 1))
    context.loop.run_forever()
    context.check(lambda: "who", partial(end, 2))
    context.loop.run_forever()
    assert finished == ["quick", "who"]

    go_on.set()
    context.loop.run_forever()
    assert finished[2:] == [True] * MAX_SCANS
    context.seek(lambda: "again", partial(end, MAX_SCANS + 3))  # there is room once they are done
    context.loop.run_forever()
    assert finished[-1] == "again"


def test_one_account_does_not_keep_others_from_starting_tasks() -> None:
    tasks = TaskList(lambda: 0)

    def wait(task: LongOperation) -> None:
        task.cancelling.wait(60)

    try:
        for _ in range(MAX_RUNNING_OF_ACCOUNT):
            tasks.start("wait", "greedy", "q", wait)
        with pytest.raises(TooManyTasks):
            tasks.start("wait", "greedy", "q", wait)
        for number in range(MAX_RUNNING - MAX_RUNNING_OF_ACCOUNT):
            tasks.start("wait", f"account-{number}", "q", wait)
        with pytest.raises(TooManyTasks):
            tasks.start("wait", "one-more", "q", wait)
    finally:
        tasks.cancel_all()


def test_work_that_is_due_after_the_end_gets_an_error_that_says_so(context: ServerContext) -> None:
    context.close()
    got: list[tuple[object, BaseException | None]] = []

    context.run(lambda: 1, lambda result, error: got.append((result, error)))
    context.loop.run_until_complete(asyncio.sleep(0))

    [(result, error)] = got
    assert result is None
    assert isinstance(error, Closed)
