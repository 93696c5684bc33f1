"""Threads and tasks of the server: what is slow does not keep what is quick from its turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from openq.broker.local import LocalBroker
from openq.config import Config
from openq.protocols.site import (
    MAX_COMMITTING,
    MAX_OF_JOB,
    MAX_SEEKING,
    Site,
    TooManyCommits,
    TooManySearches,
)
from openq.protocols.tasks import MAX_OF_ACCOUNT, MAX_RUNNING, Task, Tasks, TooManyTasks
from openq.security.guard import Guard
from openq.security.store import Store


@pytest.fixture
def site() -> Iterator[Site]:
    loop = asyncio.new_event_loop()
    with closing(LocalBroker(None)) as broker:
        site = Site(broker, loop, Config(memory=True), Guard(Store(None), lambda: 0.0))
        yield site
        site.close()
    loop.close()


def test_commits_of_a_job_wait_for_one_another_without_a_thread(site: Site) -> None:
    go_on = threading.Event()
    finished: list[object] = []
    wanted = 0

    def end(result: object, error: BaseException | None) -> None:
        finished.append(error or result)
        if len(finished) == wanted:
            site.loop.stop()

    def slow(name: str) -> str:
        assert go_on.wait(60)
        return name

    for number in range(MAX_OF_JOB):
        is_wanted = number != 1
        site.commit("a", partial(slow, f"a{number}"), end, partial(bool, is_wanted))
    with pytest.raises(TooManyCommits):
        site.commit("a", partial(slow, "no"), end)
    wanted = 2
    site.commit("b", lambda: "b", end)  # they hold one thread, not all
    site.run(lambda: "quick", end)
    site.loop.run_forever()
    assert sorted(map(str, finished)) == ["b", "quick"]

    for number in range(MAX_COMMITTING - MAX_OF_JOB):
        site.commit(f"c{number}", partial(slow, "c"), end)
    with pytest.raises(TooManyCommits):
        site.commit("d", partial(slow, "no"), end)
    wanted = 2 + MAX_COMMITTING - 1  # one is gone
    go_on.set()
    site.loop.run_forever()

    assert [each for each in finished if str(each)[0] == "a"] == ["a0", "a2", "a3"]
    wanted += 1
    site.commit("a", lambda: "again", end)
    site.loop.run_forever()
    assert finished[-1] == "again"


def test_searches_and_sign_ins_do_not_stand_in_the_way_of_anything_else(site: Site) -> None:
    go_on = threading.Event()
    finished: list[object] = []

    def slow() -> bool:
        return go_on.wait(60)

    def end(count: int, result: object, error: BaseException | None) -> None:
        finished.append(error or result)
        if len(finished) == count:
            site.loop.stop()

    for _ in range(MAX_SEEKING):
        site.seek(slow, partial(end, MAX_SEEKING + 2))
    with pytest.raises(TooManySearches):
        site.seek(slow, partial(end, 0))
    site.run(lambda: "quick", partial(end, 1))
    site.loop.run_forever()
    site.check(lambda: "who", partial(end, 2))
    site.loop.run_forever()
    assert finished == ["quick", "who"]

    go_on.set()
    site.loop.run_forever()
    assert finished[2:] == [True] * MAX_SEEKING
    site.seek(lambda: "again", partial(end, MAX_SEEKING + 3))  # there is room once they are done
    site.loop.run_forever()
    assert finished[-1] == "again"


def test_one_account_does_not_keep_others_from_starting_tasks() -> None:
    tasks = Tasks(lambda: 0)

    def wait(task: Task) -> None:
        task.cancelling.wait(60)

    try:
        for _ in range(MAX_OF_ACCOUNT):
            tasks.start("wait", "greedy", "q", wait)
        with pytest.raises(TooManyTasks):
            tasks.start("wait", "greedy", "q", wait)
        for number in range(MAX_RUNNING - MAX_OF_ACCOUNT):
            tasks.start("wait", f"account-{number}", "q", wait)
        with pytest.raises(TooManyTasks):
            tasks.start("wait", "one-more", "q", wait)
    finally:
        tasks.cancel_all()
