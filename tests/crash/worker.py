"""Jobs of every kind, with everything dying: `python -m tests.crash.worker --jobs 100000 --kills 200`.

A real `openq worker` runs the jobs of `worker_app.py`. One of its processes, the whole service, or the
broker (a server with its journal, or Redis) is killed (-9) at a random point, again and again, and started
again. In the end every job has had its effect: at least once, and exactly once where `once` guards it. No
limit was exceeded, and every due time of a schedule has one message.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from openq import OpenQ
from openq.errors import OpenQError
from openq.worker import group
from tests.isolation import with_tests
from tests.redis.servers import FORCED
from tests.redis.servers import Server as RedisServer
from tests.serving import Served, free_port, start
from tests.waiting import until
from tests.worker.service import WorkerService

VICTIMS = ("process", "service", "broker")
APP = "tests.crash.worker_app"
QUEUES = ("jobs", "coroutines", "limited", "ticks")
EVERY_S = 1.0
MIN_TICKS = 3
MAX_DRAIN_S = 120


class CrashingBroker(Protocol):
    url: str

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class JournalBroker:
    """A server with its journal."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._server: Served | None = None

    def start(self) -> None:
        flags = ("--segment-bytes", str(4 << 20), "--log-level", "warning")
        self._server = start(self._data, *flags, port=self._port).wait()

    def kill(self) -> None:
        assert self._server is not None
        self._server.kill()

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()


class RedisBroker:
    """Redis, which answers after the disk has a change."""

    def __init__(self, folder: Path) -> None:
        self._server = RedisServer("--save", "", *FORCED)
        self.url = self._server.url

    def start(self) -> None:
        self._server.start()

    def kill(self) -> None:
        self._server.kill9()

    def close(self) -> None:
        self._server.discard()


BROKERS: dict[str, Callable[[Path], CrashingBroker]] = {"journal": JournalBroker, "redis": RedisBroker}


class WorkerLoop:
    def __init__(self, folder: Path, seed: int, broker: str, jobs: int, processes: int = 2) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._jobs = jobs
        self._processes = processes
        self._broker = BROKERS[broker](folder)
        self._service: WorkerService | None = None
        self._sent = 0
        self._dead: set[str] = set()  # processes that were killed
        self.killed: Counter[str] = Counter()
        for name in ("charges", "slots"):
            (folder / name).mkdir()
        self._env = {**with_tests(), "CRASH_FOLDER": str(folder), "CRASH_URL": self._broker.url}
        self._tasks = self._import_app()

    def _import_app(self) -> Any:
        """The tasks, to send jobs. The module reads its target when it is imported: each loop has its own."""
        before = dict(os.environ)
        os.environ.update(self._env)
        sys.modules.pop(APP, None)
        try:
            return importlib.import_module(APP)
        finally:
            os.environ.clear()
            os.environ.update(before)

    # -- running ----------------------------------------------------------------------------------

    def run(self, victims: Sequence[str]) -> str:
        """Send the jobs, and kill the victims meanwhile. Returns what is wrong, "" if nothing is."""
        self._broker.start()
        try:
            with self._ticking(), ThreadPoolExecutor(1) as sender:
                self._serve()
                sending = sender.submit(self._send)
                for number, victim in enumerate(victims, 1):
                    self._wait_for_work(self._jobs * number // (len(victims) + 1), sending)
                    self._kill(victim)
                sending.result()
            self._drain()
            return "; ".join(self._complaints())
        except BaseException:
            if self._service is not None:
                print("\n".join(self._service.log[-40:]), file=sys.stderr)
            raise
        finally:
            if self._service is not None:
                self._service.close()
            self._broker.close()

    def _serve(self) -> None:
        self._service = WorkerService(
            self._folder,
            f"{APP}:app",
            *("--processes", str(self._processes), "--threads", "4"),
            env=self._env,
        )

    @contextmanager
    def _ticking(self) -> Iterator[None]:
        with self._queue("ticks") as ticks:
            ticks.schedules.add("tick", "tick", every=EVERY_S, misfire="all")
        yield
        until(lambda: len(self._ticks()) >= MIN_TICKS, "ticks are worked off", seconds=MAX_DRAIN_S)
        with self._queue("ticks") as ticks:
            ticks.schedules.remove("tick")

    def _queue(self, name: str) -> OpenQ:
        return OpenQ(name, url=self._broker.url, reconnect=60)

    def _send(self) -> None:
        """Jobs of every kind in turn, also while the broker is down."""
        for number in range(self._jobs):
            self._sent = number
            while not self._is_sent(number):
                pass

    def _is_sent(self, number: int) -> bool:
        """False: the outcome is not certain, so it is sent again. Then the job may exist twice."""
        tasks = self._tasks
        kind = tasks.KINDS[number % len(tasks.KINDS)]
        try:
            if kind == "chained":
                tasks.double.s(number).then(tasks.chained).send()
            elif kind == "grouped":
                group([tasks.double.s(number), tasks.double.s(0)]).then(tasks.grouped).send()
            elif kind == "limited":
                tasks.limited.send_with(key=str(number % tasks.KEYS))(number)
            else:
                getattr(tasks, kind).send(number)
        except OpenQError:
            return False
        return True

    def _effects(self) -> list[list[str]]:
        try:
            lines = (self._folder / "effects").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [line.split() for line in lines]

    def _ticks(self) -> list[list[str]]:
        return [effect for effect in self._effects() if effect[0] == "tick"]

    def _wait_for_work(self, sent: int, sending: Future[None]) -> None:
        """Until so many jobs are sent, and a few more done, so that the next kill hits work."""
        until(lambda: self._sent >= sent or sending.done(), "jobs are sent", seconds=MAX_DRAIN_S)
        wanted = len(self._effects()) + self._random.randrange(1, 30)
        until(
            lambda: len(self._effects()) >= wanted or self._is_idle(),
            "jobs are worked off",
            seconds=MAX_DRAIN_S,
            ignoring=(OpenQError,),
        )

    def _kill(self, victim: str) -> None:
        assert self._service is not None
        self.killed[victim] += 1
        if victim == "broker":
            self._broker.kill()
            self._broker.start()
        elif victim == "process":
            children = _children(self._service.process.pid)
            if children:
                child = self._random.choice(children)
                self._dead.add(str(child))
                _kill(child)
        else:
            for pid in (*_children(self._service.process.pid), self._service.process.pid):
                self._dead.add(str(pid))
                _kill(pid)
            self._service.wait()
            self._service.close()
            self._serve()

    def _left(self) -> int:
        """Messages in the queues that are worked off."""
        count = 0
        for name in QUEUES:
            with self._queue(name) as queue:
                stats = queue.stats()
                count += stats.ready + stats.delayed + stats.in_flight
        return count

    def _is_idle(self) -> bool:
        return self._left() == 0

    def _drain(self) -> None:
        until(self._is_idle, "all jobs are done", seconds=MAX_DRAIN_S, ignoring=(OpenQError,))

    # -- judging ------------------------------------------------------------------------------------

    def _complaints(self) -> Iterator[str]:
        tasks = self._tasks
        effects = self._effects()
        done: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for kind, number, _ in effects:
            done[kind][number] += 1
        for index, kind in enumerate(tasks.KINDS):
            wanted = {str(number) for number in range(index, self._jobs, len(tasks.KINDS))}
            lost = wanted - done[kind].keys()
            if lost:
                yield f"{len(lost)} jobs {kind} lost, such as {sorted(lost)[:5]}"
            if done[kind].keys() - wanted:
                yield f"{kind} that nobody sent: {sorted(done[kind].keys() - wanted)[:5]}"
        if done["exceeded"]:
            yield f"limits exceeded: {dict(done['exceeded'])}"
        yield from self._once_complaints(effects)
        yield from self._tick_complaints(done["tick"])
        for name in ("jobs-dead", "coroutines-dead", "limited-dead"):
            with self._queue(name) as dead:
                if len(dead):
                    letter: Any = dead.peek()
                    yield f"{len(dead)} dead letters in {name}, the first: {letter.body} {letter.reason}"

    def _once_complaints(self, effects: list[list[str]]) -> Iterator[str]:
        """A guarded block is entered once, unless the process died in it."""
        open_by: dict[str, str] = {}
        left: set[str] = set()
        for kind, number, pid in effects:
            if kind == "enter":
                if number in left:
                    yield f"charge {number} happened again"
                elif number in open_by and open_by[number] not in self._dead:
                    yield f"charge {number} was entered twice at a time"
                open_by[number] = pid
            elif kind == "left":
                left.add(number)

    def _tick_complaints(self, ticks: Counter[str]) -> Iterator[str]:
        """One message for each due time, none missing in between."""
        messages: defaultdict[str, set[str]] = defaultdict(set)
        for tick in ticks:
            due, _, message = tick.partition("=")
            messages[due].add(message)
        for due, several in messages.items():
            if len(several) > 1:
                yield f"{len(several)} messages for the due time {due}"
        times = sorted(datetime.fromisoformat(due).timestamp() for due in messages)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        if not times:
            yield "no tick at all"
        if any(gap > EVERY_S * 1.001 for gap in gaps):
            yield f"due times are missing: {[gap for gap in gaps if gap > EVERY_S * 1.001]}"


def _children(pid: int) -> list[int]:
    """Processes that run jobs: those below the service that have no children of their own."""
    found: list[int] = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    for child in map(int, children):
        found += _children(child) or [child]
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.worker", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--broker", choices=BROKERS, default="journal")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        loop = WorkerLoop(Path(folder), options.seed, options.broker, options.jobs)
        complaint = loop.run([chance.choice(VICTIMS) for _ in range(options.kills)])
    print(f"seed {options.seed}: {options.jobs} jobs, killed {dict(loop.killed)}: {complaint or 'clean'}")
    return 1 if complaint else 0


if __name__ == "__main__":
    sys.exit(main())
