"""What queues in Redis survive: servers killed and frozen under load, frozen consumers, a full memory.

`python -m tests.crash.redis --minutes N --seed S [scenario]`; `--rounds` is the number of faults in one
run. Publishers and consumers are processes of their own; nobody restarts them, and each must go on by itself
after every fault. In the end everything is taken out and compared with what was promised.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.crash.client import Client, Died, Refused, Uncertain
from tests.crash.client_log import Notes, Reading, lines_of
from tests.crash.kill_loop import QUEUES, SPACES
from tests.crash.ledger import Ledger, Verdict
from tests.crash.seeds import chosen_seed
from tests.isolation import with_tests
from tests.redis.servers import FORCED, PLAIN, Server, cluster, sentinel, single, until_reachable

if TYPE_CHECKING:
    from tests.redis.servers import Cluster

CAST = {
    "senders": ["produce1", "produce2", "order"],
    "receivers": ["consume1", "follow1", "dead_letter"],
    "others": ["consume2", "follow2"],
}
TIMEOUT_S = 120.0
RECENT = 1 << 18  # bytes of notes in which a living actor has left a line
MANY = 50  # complaints: it is no use to wait for more
FROZEN_S = 1.5  # past every lease of those who hold
FULL_BYTES = 4 << 20
FULL_BODY = 8 << 10


@dataclass(slots=True)
class Outcome:
    verdict: Verdict
    done: str
    ledger: Ledger

    @property
    def confirmed(self) -> int:
        return self.ledger.confirmed


class Troupe:
    """The processes that use one store, and their notes."""

    def __init__(self, url: str, folder: Path, seed: int, profile: str = "safe") -> None:
        self.folder = folder
        self._options = {"url": url, "seed": seed, "profile": profile, "spaces": SPACES}
        self.own = Notes(folder / "own", SPACES)  # of who keeps the others
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._actors: dict[str, list[str]] = {}
        self._host = _host(url, profile, self.own)
        self.client = Client(self.own, self._host.answer, "own.")  # type: ignore[arg-type]

    def declare(self, queues: dict[str, dict[str, Any]]) -> None:
        for queue, settings in queues.items():
            self.client.do("declare", queue=queue, settings=settings)
        if "fan-a" in queues:
            bindings = [["fan-a", "eu.*"], ["fan-b", "#"]]
            self.client.do("exchange", name="fan", kind="topic", bindings=bindings)

    def start(self, cast: dict[str, list[str]]) -> None:
        for name, actors in cast.items():
            options = {**self._options, "cast": actors, "notes": str(self.folder / name)}
            self._actors[name] = actors
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.redis_client", json.dumps(options)],
                stdin=subprocess.PIPE,
                env=with_tests(),
            )
        self.wait_alive()

    def wait_alive(self) -> None:
        """Until every actor was answered after now: nobody helps them."""
        since_ns, end = time.monotonic_ns(), time.monotonic() + TIMEOUT_S
        while silent := self.silent(since_ns):
            wrong = self._complaints()
            if time.monotonic() > end or len(wrong) > MANY:
                for name in self.processes:
                    self.signal(name, signal.SIGUSR1)  # each shows where its threads are
                time.sleep(1)
                raise AssertionError(f"not heard of: {silent}; {self._reasons(silent)}; {wrong[-3:]}")
            time.sleep(0.05)

    def _reasons(self, silent: set[str]) -> dict[str, str]:
        """The last that each of them was reported."""
        paths = [self.folder / name for name in self._actors]
        lines = [line for path in paths if path.exists() for line in lines_of(path, RECENT)]
        return {line[3][0]: line[3][1] for line in lines if line[2] == "away" and line[3][0] in silent}

    def _complaints(self) -> list[str]:
        paths = [path for path in self.folder.iterdir() if path.name in self._actors]
        return [line[3][0] for path in paths for line in lines_of(path, RECENT) if line[2] == "complain"]

    def silent(self, since_ns: int) -> set[str]:
        missing = set()
        for name, actors in self._actors.items():
            path = self.folder / name
            lines = lines_of(path, RECENT) if path.exists() else []
            heard = {line[3][0] for line in lines if line[2] == "alive" and line[0] > since_ns}
            missing.update(set(actors) - heard)
            ended = self.processes[name].poll()
            assert ended is None, f"{name} ended by itself with status {ended}"
        return missing

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.processes[name].pid, number)

    def stop(self) -> None:
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for name, process in self.processes.items():
            status = process.wait(TIMEOUT_S)
            if status:
                self.own.complain(f"{name} ended with status {status}")
        self.processes.clear()

    def kill(self) -> None:
        """Whatever is left of them."""
        for process in self.processes.values():
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._host.broker.close()
        self.own.close()

    def drain(self) -> None:
        """Everything out, and then nothing more."""
        end = time.monotonic() + TIMEOUT_S
        while left := self._drain_once():
            if time.monotonic() > end:
                self.own.complain(f"{left} messages do not come out")
                return
            time.sleep(0.02)  # for leases and delays to end
        self._drain_once()

    def _drain_once(self) -> int:
        left = 0
        try:
            for queue in self.client.do("settings", changes=False):
                while found := self.client.receive(queue, 100, 5000):
                    self.client.ack(*found)
                left += sum(self.client.do("stats", changes=False, queue=queue).values())
        except Died:
            left += 1  # the connection was to a server that is no more; the next one is not
        except (Refused, Uncertain) as error:
            self.own.complain(f"the store is well, but {error!r}")
        return left

    def outcome(self, done: str) -> Outcome:
        reading = Reading(self.folder, SPACES)
        confirmed, delivered = reading.ledger.confirmed, reading.ledger.delivered
        late = sum(reading.late.values())
        text = f"{done}: {confirmed} calls confirmed, {delivered} deliveries, {late} late acks refused"
        return Outcome(reading.ledger.judge(), text, reading.ledger)


def _host(url: str, profile: str, notes: Notes) -> Any:
    from openq.redis.broker import RedisBroker
    from tests.crash.redis_client import RedisHost

    return RedisHost(RedisBroker(url, profile=profile), notes)


@contextmanager
def playing(
    url: str, seed: int, cast: dict[str, list[str]], queues: dict[str, dict[str, Any]], profile: str = "safe"
) -> Iterator[Troupe]:
    with tempfile.TemporaryDirectory() as folder:
        troupe = Troupe(url, Path(folder), seed, profile)
        try:
            troupe.declare(queues)
            troupe.start(cast)
            yield troupe
        finally:
            troupe.kill()


# -- the scenarios ---------------------------------------------------------------------------------


def restarts(
    seed: int,
    rounds: int = 3,
    *,
    program: str | None = None,
    options: tuple[str, ...] = FORCED,
    profile: str = "safe",
) -> Outcome:
    """One server that answers after its disk, killed and started again."""
    chance = random.Random(seed)
    with (
        single(*options, program=program) as server,
        playing(server.url, seed, CAST, QUEUES, profile) as troupe,
    ):
        for _ in range(rounds):
            time.sleep(chance.uniform(0.0, 0.6))
            server.kill9()
            time.sleep(chance.choice((0.0, 0.0, 0.3)))
            server.start()
            troupe.wait_alive()
        troupe.stop()
        troupe.drain()
        return troupe.outcome(f"{rounds} kills and restarts")


def cluster_kills(seed: int, rounds: int = 1, *, program: str | None = None) -> Outcome:
    """Masters of a cluster killed one at a time: a replica takes over, and has the dead one for a replica."""
    chance = random.Random(seed)
    with (
        cluster(3, 1, *FORCED, program=program) as servers,
        playing(servers.url, seed, CAST, QUEUES) as troupe,
    ):
        for _ in range(rounds):
            time.sleep(chance.uniform(0.0, 0.6))
            master = chance.choice(servers.masters())
            heirs = servers.replicas_of(master)
            troupe.own.leases_count(False)
            master.kill9()
            servers.wait_replaced(master, heirs)
            troupe.wait_alive()
            troupe.own.leases_count(True)
            master.start()
            servers.wait_whole()
            troupe.wait_alive()
        troupe.stop()
        troupe.drain()
        return troupe.outcome(f"{rounds} masters killed")


def sentinel_kills(seed: int, rounds: int = 1, *, program: str | None = None) -> Outcome:
    """The master behind sentinels killed: its replica takes over, and has the dead one for a replica."""
    chance = random.Random(seed)
    with (
        sentinel(1, *FORCED, program=program) as servers,
        playing(servers.url, seed, CAST, QUEUES) as troupe,
    ):
        for _ in range(rounds):
            time.sleep(chance.uniform(0.0, 0.6))
            master = servers.master
            troupe.own.leases_count(False)
            master.kill9()
            servers.wait_for_another(master)
            troupe.wait_alive()
            troupe.own.leases_count(True)
            master.start()
            servers.wait_whole()
            troupe.wait_alive()
        troupe.stop()
        troupe.drain()
        return troupe.outcome(f"{rounds} masters behind sentinels killed")


def partition(seed: int, rounds: int = 1, *, program: str | None = None, longest_s: float = 0.5) -> Outcome:
    """A master that stands still until a replica is master, and then goes on as if nothing had happened.

    What its clients had sent it meanwhile it does when it wakes up, and then throws away.
    """
    chance = random.Random(seed)
    with (
        cluster(3, 1, *FORCED, program=program) as servers,
        playing(servers.url, seed, CAST, QUEUES) as troupe,
    ):
        for _ in range(rounds):
            time.sleep(chance.uniform(0.0, 0.6))
            troupe.own.leases_count(False)
            _freeze_one(servers, chance, longest_s)
            troupe.wait_alive()
            troupe.own.leases_count(True)
        troupe.stop()
        troupe.drain()
        return troupe.outcome(f"{rounds} masters frozen and thawed")


def _freeze_one(servers: Cluster, chance: random.Random, longest_s: float) -> None:
    master: Server = chance.choice(servers.masters())
    heirs = servers.replicas_of(master)
    master.freeze()
    try:
        servers.wait_replaced(master, heirs)
        time.sleep(chance.uniform(0.0, longest_s))
    finally:
        master.thaw()
    servers.wait_whole()


def frozen(seed: int, rounds: int = 2, *, program: str | None = None) -> Outcome:
    """Of two consumers one stands still for longer than its leases last: its acks come too late."""
    chance = random.Random(seed)
    cast = {"senders": ["supply"], "sleeper": ["hold1", "hold2", "hold3"], "waker": ["hold4"]}
    with (
        single(*FORCED, program=program) as server,
        playing(server.url, seed, cast, {"held": {}}) as troupe,
    ):
        for _ in range(rounds):
            time.sleep(chance.uniform(0.05, 0.4))
            troupe.signal("sleeper", signal.SIGSTOP)
            time.sleep(FROZEN_S)
            troupe.signal("sleeper", signal.SIGCONT)
            troupe.wait_alive()
        troupe.stop()
        late = sum(line[3][0] for line in lines_of(troupe.folder / "sleeper") if line[2] == "late")
        if not late:
            troupe.own.complain("it slept over its leases, but no ack of it was refused")
        troupe.drain()
        return troupe.outcome(f"{rounds} sleeps past the leases")


def full(seed: int, rounds: int = 1, *, program: str | None = None) -> Outcome:
    """Memory is at its limit: publishing is refused by name, the rest goes on; then there is room again."""
    chance = random.Random(seed)
    with (
        single(*FORCED, "--maxmemory-policy", "noeviction", program=program) as server,
        playing(server.url, seed, {}, {"heap": {"history_ms": 0}}) as troupe,
    ):
        used = int(server.info("memory")["used_memory"])
        server.ask("CONFIG", "SET", "maxmemory", used + FULL_BYTES)
        published = 0
        for _ in range(rounds):
            published += _fill(troupe, chance)
            _empty_by_hand(troupe)
            until_reachable(lambda: _has_room(troupe), "publishing works again", TIMEOUT_S)
        troupe.drain()
        return troupe.outcome(f"filled {rounds} times, {published} messages")


def _fill(troupe: Troupe, chance: random.Random) -> int:
    """Until it is refused; how many were not."""
    for count in range(4 * FULL_BYTES // FULL_BODY):
        try:
            troupe.client.publish("heap", size=FULL_BODY + chance.randrange(512))
        except Refused as refused:
            if refused.error != "StoreFull":
                troupe.own.complain(f"full, but {refused}")
            return count
    troupe.own.complain("it was never full")
    return count


def _empty_by_hand(troupe: Troupe) -> None:
    """Receive, extend, return and ack, all with a full memory."""
    client = troupe.client
    try:
        for delivery in client.receive("heap", 3):
            client.extend(delivery, 30_000)
            client.nack(delivery, 0)
        while found := client.receive("heap", 10):
            client.ack(*found)
    except (Refused, Uncertain, Died) as error:
        troupe.own.complain(f"only publishing may be refused, but {error!r}")


def _has_room(troupe: Troupe) -> bool:
    try:
        troupe.client.publish("heap")
    except Refused:
        return False
    return True


SCENARIOS: dict[str, Callable[..., Outcome]] = {
    "restarts": restarts,
    "cluster": cluster_kills,
    "sentinel": sentinel_kills,
    "partition": partition,
    "frozen": frozen,
    "full": full,
}
CAMPAIGN_ROUNDS = {"restarts": 100, "cluster": 10, "sentinel": 10, "partition": 10, "frozen": 20, "full": 5}
# How a store that keeps nothing looks: what a judge must convict.
FORGETFUL: dict[str, Any] = {"options": PLAIN, "profile": "fast"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.redis", description=__doc__)
    parser.add_argument("scenario", nargs="*", choices=[[], *SCENARIOS], help="all, if none is named")
    parser.add_argument("--minutes", type=float, help="again and again until then; without it, once through")
    parser.add_argument("--seed", type=int, help="to repeat an earlier campaign")
    parser.add_argument("--rounds", type=int, help="faults in each run of a scenario")
    parser.add_argument("--program", help="the redis-server or valkey-server to use")
    options = parser.parse_args()
    seed = chosen_seed() if options.seed is None else options.seed
    logging.disable(logging.CRITICAL)
    started, bad = time.monotonic(), 0
    while True:
        for name in options.scenario or SCENARIOS:
            rounds = options.rounds or CAMPAIGN_ROUNDS[name]
            outcome = SCENARIOS[name](seed, rounds, program=options.program)
            bad += not outcome.verdict.clean
            spent = time.monotonic() - started
            print(f"{spent:7.1f} s  {name}, seed {seed}: {outcome.done}: {outcome.verdict}", flush=True)
        seed += 1
        if options.minutes is None or time.monotonic() - started > options.minutes * 60:
            return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
