"""A game day: real faults, the default rules, real receivers. `make gameday`; minutes, so not in `make test`.

Each fault must be notified within 15 seconds, once, with the command that helps, and be over by itself.
"""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.auth.store import UserStore
from tests.alerts.receivers import Receivers, receivers
from tests.crash.loop_disk import LoopDisk, why_not
from tests.redis.servers import FORCED, QUICK, sentinel, single
from tests.rest.helpers import Client
from tests.serving import Served, free_port, served
from tests.waiting import until
from tests.worker.service import WorkerService

WITHIN_S = 15.0
SHORT = """
[alerts.rules.{name}]
window = "20s"
"""


@pytest.fixture
def receiving() -> Iterator[Receivers]:
    with receivers() as found:
        yield found


def until_in_time(receiving: Receivers, rule: str, since_s: float) -> None:
    receiving.until_notified(rule, "firing")
    took_s = time.monotonic() - since_s
    print(f"{rule}: notified after {took_s:.1f} s")
    assert took_s <= WITHIN_S


def config(receiving: Receivers, folder: Path, *names: str) -> str:
    """Default limits; a shorter window where the end of an alert would take five minutes."""
    return str(receiving.write(folder, "".join(SHORT.format(name=name) for name in names), interval=3))


def test_poison_messages(tmp_path: Path, receiving: Receivers) -> None:
    with served(tmp_path / "data", "--config", config(receiving, tmp_path, "dead-letters")) as server:
        client = Client(server.url)
        client.put("/queues/dead", {})
        client.put("/queues/orders", {"dlq": "dead", "max_receives": 1})
        client.post("/queues/orders/messages", {"payload": "x"})
        [message] = client.post("/queues/orders/receive", {}).value["messages"]
        client.post("/queues/orders/nack", {"receipts": [message["receipt_id"]]})
        until_in_time(receiving, "dead-letters", time.monotonic())
        receiving.until_notified("dead-letters", "resolved", 120)

    receiving.notified_once("dead-letters", "openq dlq redrive dead --rate 50")


def test_a_login_attack(tmp_path: Path, receiving: Receivers) -> None:
    data = tmp_path / "data"
    data.mkdir()
    UserStore(data / "users.json").add_user("admin", role="admin", password="a-good-password")
    with served(data, "--config", config(receiving, tmp_path, "login-attack")) as server:
        guess = base64.b64encode(b"admin:guess").decode()
        for _ in range(15):
            Client(server.url, headers={"authorization": f"Basic {guess}"}).get("/queues")
        until_in_time(receiving, "login-attack", time.monotonic())
        receiving.until_notified("login-attack", "resolved", 120)

    receiving.notified_once("login-attack", "openq audit ls --action login --outcome refused")


@pytest.mark.skipif(why_not() is not None, reason=f"no loop-mounted disk: {why_not()}")
def test_the_disk_fills(tmp_path: Path, receiving: Receivers) -> None:
    with LoopDisk(tmp_path / "disk" if (tmp_path / "disk").mkdir() is None else tmp_path) as disk:
        data = disk.mounted / "data"
        flags = ["--segment-bytes", "1MiB", "--config", config(receiving, tmp_path)]
        with served(data, *flags) as server:
            client = Client(server.url)
            client.put("/queues/orders", {})
            ballast = disk.mounted / "ballast"
            free = os.statvfs(disk.mounted)
            with ballast.open("wb") as file:
                file.write(b"x" * max(0, free.f_bavail * free.f_frsize - (8 << 20)))
            body = "x" * 100_000
            while client.post("/queues/orders/messages", {"payload": body}).status == 201:
                pass
            until_in_time(receiving, "disk-full", time.monotonic())
            ballast.unlink()
            receiving.until_notified("disk-full", "resolved", 120)
            assert client.post("/queues/orders/messages", {"payload": body}).status == 201

    receiving.notified_once("disk-full", "openq queue purge orders")


def test_a_worker_dies(tmp_path: Path, receiving: Receivers) -> None:
    with served(tmp_path / "data", "--config", config(receiving, tmp_path)) as server:
        client = Client(server.url)
        client.put("/queues/jobs", {})
        words = ["--exec", "exec sleep 60 >/dev/null 2>&1", "--queue", "jobs", "--url", server.url]
        worker = WorkerService(tmp_path, *words, group=True).wait_ready()
        client.post("/queues/jobs/messages", {"payload": "x"})
        until(lambda: any(each["busy"] for each in client.get("/workers").value["workers"]))
        os.killpg(worker.process.pid, signal.SIGKILL)
        since_s = time.monotonic()
        until_in_time(receiving, "worker-lost", since_s)
        worker.close()
        again = WorkerService(tmp_path, *words, group=True).wait_ready()
        receiving.until_notified("worker-lost", "resolved", 120)
        os.killpg(again.process.pid, signal.SIGKILL)
        again.close()

    assert len(receiving.hooks("worker-lost", "firing")) == 1
    assert receiving.hooks("worker-lost", "firing")[0]["command"].startswith("openq worker run ")


def test_redis_is_killed(tmp_path: Path, receiving: Receivers) -> None:
    with single(*FORCED) as redis:
        flags = ["--store", redis.url, "--config", config(receiving, tmp_path)]
        servers = [Served(flags, free_port()) for _ in range(2)]
        try:
            for each in servers:
                each.wait()
            until(lambda: any(b"openq_alert_evaluator 1" in each.get("/metrics")[1] for each in servers))
            redis.kill9()
            until_in_time(receiving, "store-failed", time.monotonic())
            redis.start()
            receiving.until_notified("store-failed", "resolved", 120)
        finally:
            for each in servers:
                each.stop()

    receiving.notified_once("store-failed", f"openq doctor --store redis://127.0.0.1:{redis.port}")


def test_the_master_of_redis_is_killed(tmp_path: Path, receiving: Receivers) -> None:
    with sentinel(1, *FORCED, *QUICK) as redis:
        flags = ["--store", redis.url, "--config", config(receiving, tmp_path)]
        server = Served(flags, free_port())
        try:
            server.wait()
            until(lambda: b"openq_redis_replicas 1" in server.get("/metrics")[1])
            until(lambda: b"openq_alert_evaluation_seconds_count 3" in server.get("/metrics")[1])
            old = redis.master
            old.kill9()
            redis.wait_for_another(old)
            until_in_time(receiving, "replica-missing", time.monotonic())
            old.start()
            redis.wait_whole()
            receiving.until_notified("replica-missing", "resolved", 120)
        finally:
            server.stop()

    assert len(receiving.hooks("replica-missing", "firing")) == 1
    assert receiving.hooks("replica-missing", "firing")[0]["command"].startswith("openq doctor --store ")
