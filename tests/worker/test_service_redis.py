"""Workers on Redis: jobs, the registry and commands, and a Redis that restarts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from openq import OpenQ
from openq.broker.workers import COMMANDS, WORKERS, WorkerCommand, WorkerEntry, decode, encode
from tests.redis.servers import FORCED, single
from tests.waiting import until
from tests.worker.service import lines_of, worker


def test_jobs_and_commands_go_on_after_redis_was_restarted(tmp_path: Path) -> None:
    with single(*FORCED) as redis:
        url = redis.url
        queue = OpenQ("jobs", url=url)
        with worker(
            tmp_path,
            "--exec",
            "cat >> seen; echo >> seen",
            "--queue",
            "jobs",
            "--url",
            url,
            "--name",
            "on-redis",
        ) as service:
            queue.publish("before")
            until(lambda: lines_of(tmp_path / "seen") == ["before"])
            redis.kill9()
            redis.start()
            queue.publish("after")
            until(lambda: lines_of(tmp_path / "seen") == ["before", "after"])
            until(lambda: len(queue.kv(WORKERS).list()) == 1)
            [found] = queue.kv(WORKERS).list()
            entry = decode(found.value, WorkerEntry)
            assert entry is not None
            assert (entry.service, entry.queues) == ("on-redis", {"jobs": 1})

            command = WorkerCommand(command="stop", instance=entry.instance)
            queue.kv(COMMANDS).put(entry.name, encode(command), ttl=60)
            assert service.wait() == 0
            until(lambda: queue.kv(WORKERS).list() == [])
        queue.close()


def test_the_jobs_of_a_killed_process_return_within_their_lease(tmp_path: Path) -> None:
    with single(*FORCED) as redis:
        queue = OpenQ("jobs", url=redis.url, visibility_timeout=2)
        queue.publish("x")
        command = "echo $OPENQ_RECEIVE_COUNT >> started; [ $OPENQ_RECEIVE_COUNT = 2 ] || sleep 600"
        with worker(
            tmp_path, "--exec", command, "--queue", "jobs", "--url", redis.url, "--name", "killed"
        ) as service:
            until(lambda: lines_of(tmp_path / "started") == ["1"])
            until(lambda: len(queue.kv(WORKERS).list()) == 1)
            entry = decode(queue.kv(WORKERS).list()[0].value, WorkerEntry)
            assert entry is not None
            os.kill(entry.pid, signal.SIGKILL)
            until(lambda: lines_of(tmp_path / "started") == ["1", "2"])
            until(lambda: queue.stats().in_flight == queue.stats().ready == 0)
            service.signal(signal.SIGTERM)
            assert service.wait() == 0
        queue.close()
