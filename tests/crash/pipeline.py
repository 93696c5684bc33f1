"""Exactly once between queues and Spark, with everything dying: `python -m tests.crash.pipeline --kills 50`.

One job does all of it: a stream from the journal into a queue, a stream that consumes a queue into Parquet,
and a write of a table into a queue. The server, the job with its JVM, or a Python worker of Spark's is killed
(-9) at a random point, again and again, and started again; in the end every message is there once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.isolation import with_tests
from tests.serving import Served, free_port, start

SOURCE, COPY, WORK, TABLE = "source", "copy", "work", "table"
SLICES = 4  # of the table, each written by a job of its own
STEPS = ("log", "consume", "table")
LONGEST_JOB_S = 600
KINDS = ("driver", "server", "worker")
TASKS = (b"pyspark.worker",)  # the module of those that do tasks
SPARK = {
    "driver_memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.sql.streaming.minBatchesToRetain": "1000",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
}

# -- the job: a process of its own ----------------------------------------------------------------------


def job(url: str, folder: Path, messages: int, limit: int) -> None:
    """Everything that is there when it starts, then the end. Run again, it goes on where it was."""
    from openq.pipeline.session import session

    # A worker that was killed costs a task one of its attempts. One query after the other: on a machine with
    # few cores so many Python processes at once do not start in the ten seconds that Spark gives them.
    spark: Any = session("local[2,4]", app_name="openq-crash", **SPARK)
    (
        spark.readStream.format("openq")
        .options(url=url, queues=SOURCE, maxMessagesPerTrigger=limit, cursor="crash")
        .load()
        .select("body")
        .writeStream.format("openq")
        .options(url=url, queue=COPY, checkpointLocation=str(folder / "log"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    (
        spark.readStream.format("openq")
        .options(url=url, mode="consume", queue=WORK, subscription="crash", maxMessagesPerTrigger=limit)
        .load()
        .writeStream.foreachBatch(
            # A folder for each batch, replaced as a whole: the same batch again changes nothing.
            lambda frame, n: frame.select("body").write.mode("overwrite").parquet(f"{folder}/out/{n}")
        )
        .option("checkpointLocation", str(folder / "consume"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    (folder / "table" / "commits").mkdir(parents=True, exist_ok=True)
    for n in range(SLICES):
        first, end = messages * n // SLICES, messages * (n + 1) // SLICES
        table = spark.range(first, end).selectExpr("CAST(id AS STRING) AS body")
        # All of them each time: what was written before is written no second time.
        table.write.format("openq").options(url=url, queue=TABLE, jobId=f"slice-{n}").mode("append").save()
        (folder / "table" / "commits" / str(n)).touch()
    spark.stop()


# -- those who kill ---------------------------------------------------------------------------------------


class PipelineLoop:
    """`apart`: as many steps of the job are at most between two kills. `gentle`: no process that plans or
    follows a stream is killed; that ends a query, and the job has to start once more, which takes long."""

    def __init__(
        self, folder: Path, seed: int, messages: int, limit: int, apart: int = 4, gentle: bool = False
    ) -> None:
        self._folder = folder
        self._messages = messages
        self._limit = limit
        self._apart = apart
        self._victims = TASKS if gentle else (b"pyspark.",)
        self._random = random.Random(seed)
        self._port = free_port()
        self._server: Served | None = None
        self.killed: Counter[str] = Counter()
        self.starts = 0

    # -- the server

    def _serve(self) -> Served:
        # Small segments: batches, marks and leases cross their ends.
        flags = ("--segment-bytes", str(1 << 20), "--log-level", "warning")
        self._server = start(self._folder / "data", *flags, port=self._port)
        return self._server.wait()

    def _fill(self, server: Served) -> None:
        from openq import OpenQ

        bodies = [b"%d" % n for n in range(self._messages)]
        for name in (SOURCE, WORK):
            with OpenQ(name, url=server.url, codec="raw") as queue:
                for first in range(0, len(bodies), 1000):
                    queue.publish_many(bodies[first : first + 1000])
        for name in (COPY, TABLE):
            OpenQ(name, url=server.url, codec="raw").close()

    # -- the job

    def _started(self, server: Served) -> subprocess.Popen[bytes]:
        self.starts += 1
        log = open(self._folder / "job.log", "ab")  # noqa: SIM115
        command = [
            *(sys.executable, "-m", "tests.crash.pipeline", "--job", server.url),
            *("--folder", str(self._folder), "--messages", str(self._messages), "--limit", str(self._limit)),
        ]
        with log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=with_tests(), start_new_session=True)

    def _progress(self) -> int:
        """How many steps the job has made: entries of Spark's logs."""
        found = 0
        for name in STEPS:
            for log in ("offsets", "commits"):
                try:
                    found += sum(each.isdigit() for each in os.listdir(self._folder / name / log))
                except FileNotFoundError:
                    pass
        return found

    def run(self, kinds: Sequence[str]) -> str:
        """Kill in this order, then let it end. What was lost or doubled, or nothing."""
        server = self._serve()
        process = None
        try:
            self._fill(server)
            waiting = list(kinds)
            process = self._started(server)
            while True:
                if waiting and self._moment(process):
                    server = self._kill(waiting.pop(0), process, server)
                    continue
                status = process.wait(LONGEST_JOB_S)
                if status == 0 and not waiting:
                    break
                if status == 0:
                    # All done before the last kill: more to do.
                    return f"the job was done after {self.killed}; give it more messages"
                process = self._started(server)
            return self._verdict(server)
        finally:
            if process is not None and process.poll() is None:
                _end(process)
            if self._server is not None:
                self._server.stop()

    def _moment(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for a random point of the work. False: the job has ended before."""
        until = self._progress() + self._random.randint(1, self._apart)
        end = time.monotonic() + LONGEST_JOB_S
        while self._progress() < until:
            if process.poll() is not None:
                return False
            assert time.monotonic() < end, "the job does not get on"
            time.sleep(0.01)
        time.sleep(self._random.uniform(0, 0.5))
        return process.poll() is None

    def _kill(self, kind: str, process: subprocess.Popen[bytes], server: Served) -> Served:
        self.killed[kind] += 1
        if kind == "server":
            server.kill()
            time.sleep(self._random.uniform(0, 1))
            return self._serve()
        if kind == "worker":
            workers = _workers(process.pid, self._victims)
            if workers:
                _kill_one(self._random.choice(workers))
            return server
        _end(process)
        return server

    # -- afterwards

    def _verdict(self, server: Served) -> str:
        wanted = Counter(b"%d" % n for n in range(self._messages))
        complaints = []
        for name in (COPY, TABLE):
            complaints += _compare(name, wanted, _drained(server.url, name))
        complaints += _compare("parquet", wanted, _parquet(self._folder / "out", self._folder / "consume"))
        stats = json.loads(server.get(f"/api/v1/queues/{WORK}/stats")[1])
        if stats["ready"] or stats["in_flight"]:
            complaints.append(f"{WORK} still has {stats['ready']} ready and {stats['in_flight']} in flight")
        return "; ".join(complaints)


def _compare(name: str, wanted: Counter[bytes], found: Counter[bytes]) -> list[str]:
    lost, more = wanted - found, found - wanted
    said = []
    if lost:
        said.append(f"{name}: {lost.total()} lost, such as {sorted(lost)[:3]}")
    if more:
        said.append(f"{name}: {more.total()} too many, such as {sorted(more)[:3]}")
    return said


def _drained(url: str, name: str) -> Counter[bytes]:
    from openq import OpenQ

    found: Counter[bytes] = Counter()
    with OpenQ(name, url=url, codec="raw") as queue:
        while messages := queue.receive_many(1000, timeout=0):  # nobody sends any more
            found.update(message.body for message in messages)
            queue.ack_many(messages)
    return found


def _parquet(folder: Path, checkpoint: Path) -> Counter[bytes]:
    """What a reader of the table sees: the batches that Spark has committed."""
    import pyarrow.parquet as pq

    found: Counter[bytes] = Counter()
    for batch in (checkpoint / "commits").iterdir():
        if batch.name.isdigit():
            for file in (folder / batch.name).glob("*.parquet"):
                found.update(pq.read_table(file).column("body").to_pylist())
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """The driver and its JVM; they are a group of their own, which nobody else is in."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kill_one(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it was faster


def _workers(driver: int, named: tuple[bytes, ...]) -> list[int]:
    """Spark's Python processes below a driver: workers, and those that plan and follow a stream."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as stat:
                    parents[int(entry)] = int(stat.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # gone in this moment

    def is_below(pid: int) -> bool:
        while pid in parents and pid > 1:
            pid = parents[pid]
            if pid == driver:
                return True
        return False

    return [pid for pid in parents if pid != driver and is_below(pid) and _is_python(pid, named)]


def _is_python(pid: int, named: tuple[bytes, ...]) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    # Forks of a daemon have its command line; the daemon itself is their parent and is as good a victim.
    return any(each.startswith(named) for each in command)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.pipeline", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--messages", type=int, default=100_000, help="for each of the three ways")
    parser.add_argument("--limit", type=int, help="messages in a micro-batch")
    parser.add_argument("--seed", type=int, help="to repeat an earlier campaign")
    parser.add_argument("--job", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    limit = options.limit or max(100, options.messages // (2 * options.kills + 10))
    if options.job:
        job(options.job, options.folder, options.messages, limit)
        return 0
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        loop = PipelineLoop(Path(folder), seed, options.messages, limit)
        complaint = loop.run([chance.choice(KINDS) for _ in range(options.kills)])
        print(f"{dict(loop.killed)} kills, {options.messages} messages each way: {complaint or 'good'}")
        if complaint:
            print(Path(folder, "job.log").read_text(errors="replace")[-4000:])
    return 1 if complaint else 0


if __name__ == "__main__":
    sys.exit(main())
