"""A game day with short times: disk, worker and Redis fail for real, and real receivers are notified once.

Poison messages, a login attack and a certificate near its end are in `test_server.py`. `make gameday` plays
all of it with the default limits, and looks at the time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from openq.alert_rules.tables import read_alerts
from openq.config import Config
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from tests.alerts.receivers import Receivers, receivers
from tests.crash.faults import FaultyDisk
from tests.crash.loop_disk import LoopDisk, why_not
from tests.redis.servers import FORCED, HOST, in_sync, replicated, until_reachable
from tests.rest.helpers import Client
from tests.server.in_process import in_process_server
from tests.serving import Served, free_port, served
from tests.waiting import until
from tests.worker.service import worker

QUICK = """
[alerts.rules.disk-full]
keep = "0.1s"
[alerts.rules.disk-filling]
window = "2s"
for = 0
keep = "0.1s"
[alerts.rules.worker-lost]
keep = "0.1s"
[alerts.rules.store-failed]
for = 0
keep = "0.1s"
[alerts.rules.replica-missing]
for = 0
keep = "0.1s"
[alerts.rules.loss-window]
for = 0
keep = "0.1s"
seconds = "500ms"
"""


@pytest.fixture
def receiving() -> Iterator[Receivers]:
    with receivers() as found:
        yield found


@pytest.mark.skipif(why_not() is not None, reason=f"no loop-mounted disk: {why_not()}")
def test_a_disk_that_fills_is_predicted_reported_and_over_when_there_is_room(
    tmp_path: Path, receiving: Receivers
) -> None:
    (tmp_path / "disk").mkdir()
    with LoopDisk(tmp_path / "disk") as disk:
        flags = ["--segment-bytes", "1MiB", "--config", str(receiving.write(tmp_path, QUICK))]
        with served(disk.mounted / "data", *flags) as server:
            client = Client(server.url)
            client.queue("orders")
            ballast = disk.mounted / "ballast"
            with ballast.open("wb") as file:

                def grow(bytes_: int) -> None:
                    file.write(b"x" * bytes_)
                    file.flush()

                grow(free(disk) - (20 << 20))  # less than half of the disk is free

                def is_foreseen() -> bool:
                    if free(disk) > 12 << 20:
                        grow(32 << 10)
                    return bool(receiving.hooks("disk-filling", "firing"))

                until(is_foreseen, "the forecast")
                grow(max(0, free(disk) - (6 << 20)))
            body = "x" * 100_000
            while client.post("/queues/orders/messages", {"payload": body}).status == 201:
                pass
            receiving.until_notified("disk-full", "firing")
            ballast.unlink()
            receiving.until_notified("disk-full", "resolved")
            receiving.until_notified("disk-filling", "resolved")
            assert client.post("/queues/orders/messages", {"payload": body}).status == 201

    receiving.notified_once("disk-full", "openq queue purge orders")
    [foreseen] = receiving.hooks("disk-filling", "firing")
    assert 0 <= foreseen["figures"]["left"] < 4 * 3600
    assert foreseen["command"].startswith("openq queue purge ")


def free(disk: LoopDisk) -> int:
    found = os.statvfs(disk.mounted)
    return found.f_bavail * found.f_frsize


def test_a_journal_that_fails_raises_an_alert(tmp_path: Path, receiving: Receivers) -> None:
    """Nothing can be stored any more, so this one comes from memory. It ends with a restart."""
    import tomllib

    disk = FaultyDisk(tmp_path)
    broker = LocalBroker(journal=Journal(tmp_path / "d", io=disk))
    table = tomllib.loads(receiving.write(tmp_path, QUICK).read_text())["alerts"]
    config = Config(data=str(tmp_path / "d"), drain_timeout_s=1, alerts=read_alerts(table))
    with in_process_server(broker, config) as server:
        client = Client(f"http://127.0.0.1:{server.port}")
        client.queue("orders")
        disk.nth, disk.kind = 0, "broken"  # every call from now on
        client.post("/queues/orders/messages", {"payload": "x"})
        firing = receiving.until_notified("store-failed", "firing")
        mails = receiving.mails("store-failed", "firing")

    assert "cannot use its store: " in firing["summary"]
    assert firing["command"] == f"openq doctor --data {tmp_path / 'd'}"
    assert firing["severity"] == "critical"
    assert len(receiving.hooks("store-failed", "firing")) == len(mails) == 1


def test_a_worker_that_dies_raises_an_alert_until_it_is_started_again(
    tmp_path: Path, receiving: Receivers
) -> None:
    with served(tmp_path / "data", "--config", str(receiving.write(tmp_path, QUICK))) as server:
        client = Client(server.url)
        client.queue("jobs")
        # The job outlives its worker, without its output, and is ended by its own id.
        job = "echo $$ >> pids; exec sleep 60 >/dev/null 2>&1"
        words = ["--exec", job, "--queue", "jobs", "--url", server.url]
        with worker(tmp_path, *words, group=True) as first:
            client.post("/queues/jobs/messages", {"payload": "x"})
            until(lambda: any(each["busy"] for each in client.get("/workers").value["workers"]))
            os.killpg(first.process.pid, signal.SIGKILL)
            firing = receiving.until_notified("worker-lost", "firing")
            end_jobs(tmp_path / "pids")
        with worker(tmp_path, *words, group=True) as again:
            receiving.until_notified("worker-lost", "resolved")
            os.killpg(again.process.pid, signal.SIGKILL)
            end_jobs(tmp_path / "pids")

    receiving.notified_once("worker-lost", firing["command"])
    assert firing["command"].startswith("openq worker run ")
    assert "it ran 1 job" in firing["summary"]


def end_jobs(pids: Path) -> None:
    for pid in map(int, pids.read_text().split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_redis_loses_a_replica_its_safety_and_its_master(tmp_path: Path, receiving: Receivers) -> None:
    with replicated(1, *FORCED) as redis:
        command = f"openq doctor --store redis://127.0.0.1:{redis.master.port}"
        flags = ["--store", redis.url, "--config", str(receiving.write(tmp_path, QUICK))]
        server = Served(flags, free_port())
        try:
            server.wait()
            until(lambda: b"openq_redis_replicas 1" in server.get("/metrics")[1])
            until(lambda: b"openq_alert_evaluator 1" in server.get("/metrics")[1])
            until(lambda: Client(server.url).get("/alerts").value["evaluated"])

            [replica] = redis.replicas
            replica.kill9()
            receiving.until_notified("replica-missing", "firing")
            replica.start()
            replica.ask("REPLICAOF", HOST, redis.master.port)
            until_reachable(lambda: in_sync(replica), "the replica is in sync")
            receiving.until_notified("replica-missing", "resolved")
            receiving.notified_once("replica-missing", command)

            redis.master.ask("CONFIG", "SET", "appendfsync", "everysec")
            receiving.until_notified("loss-window", "firing")
            redis.master.ask("CONFIG", "SET", "appendfsync", "always")
            receiving.until_notified("loss-window", "resolved")

            redis.master.kill9()
            receiving.until_notified("store-failed", "firing")
            redis.master.start()
            receiving.until_notified("store-failed", "resolved")
        finally:
            server.stop()

    for rule in ("loss-window", "store-failed"):
        receiving.notified_once(rule, command)
    assert "Redis has 0 replicas, there were 1" in receiving.hooks("replica-missing", "firing")[0]["summary"]
    assert [line for line in server.log if "Traceback" in line] == []
    receiving.no_secrets(*server.log)
