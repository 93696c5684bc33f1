"""A worker with a token: what it needs, and what it does without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from openq import OpenQ
from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.broker.workers import COMMANDS, WORKERS, RunningJob, WorkerCommand, WorkerEntry, encode
from openq.client.http import HttpClient
from tests.serving import served
from tests.waiting import WAIT_S, until
from tests.worker.service import lines_of, worker


def test_a_worker_needs_its_queue_and_is_listed_if_it_may_write_to_the_registry(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("root", role="admin")
    store.add_user("plain", rules=[Rule("allow", frozenset({"send", "receive", "manage"}), "jobs")])
    rules = [
        Rule("allow", frozenset({"send", "receive", "manage"}), "jobs"),
        Rule("allow", frozenset({"send"}), "workers"),
        Rule("allow", frozenset({"send"}), "worker-stats"),
        Rule("allow", frozenset({"receive"}), "worker-commands"),
    ]
    store.add_user("listed", rules=rules)
    tokens = {name: store.create_token(name, "test") for name in ("root", "plain", "listed")}
    with served(data) as server:
        queue = OpenQ("jobs", url=server.url, token=tokens["root"])
        flags = ("--exec", "cat >> seen; echo >> seen", "--queue", "jobs", "--url", server.url)

        def openq(token: str, *words: str) -> subprocess.CompletedProcess[str]:
            words = (*words, "--url", server.url, "--token", tokens[token])
            return subprocess.run(
                [sys.executable, "-m", "openq", *words], capture_output=True, text=True, timeout=WAIT_S
            )

        with worker(tmp_path, *flags, env={"OPENQ_TOKEN": tokens["plain"]}) as service:
            queue.publish("one")
            until(lambda: lines_of(tmp_path / "seen") == ["one"])
            until(lambda: service.logged("not in the list of workers"))
            assert service.logged("allow send on workers and worker-stats, and receive on worker-commands")
            assert tokens["plain"] not in "".join(service.log + service.raw)
        with worker(tmp_path, *flags, env={"OPENQ_TOKEN": tokens["listed"]}) as service:
            queue.publish("two")
            until(lambda: lines_of(tmp_path / "seen") == ["one", "two"])
            until(lambda: openq("root", "worker", "ls", "--json").stdout)
            [line] = openq("root", "worker", "ls", "--json").stdout.splitlines()
            assert json.loads(line)["service"] == service.name
            assert openq("root", "worker", "stop", service.name).returncode == 0
            assert service.wait() == 0
        queue.close()


def test_a_token_that_is_refused_ends_the_service_with_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    UserStore(data / "users.json").add_user("root", role="admin")
    with served(data) as server:
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "openq",
                "worker",
                "--exec",
                "true",
                "--queue",
                "jobs",
                "--url",
                server.url,
            ],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )

    assert ended.returncode == 1
    assert "authentication required" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_sender_can_neither_stop_a_worker_nor_see_jobs_of_other_queues(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("root", role="admin")
    rules = [
        Rule("allow", frozenset({"send", "receive"}), "*"),
        Rule("allow", frozenset({"peek"}), "mine"),
    ]
    store.add_user("sender", rules=rules)
    tokens = {name: store.create_token(name, "test") for name in ("root", "sender")}
    running = [
        RunningJob(id="1", task="t", queue=queue, attempt=1, since="2026-01-01T00:00:00Z")
        for queue in ("mine", "other")
    ]
    entry = WorkerEntry(
        name="w.1",
        service="w",
        instance="i",
        host="h",
        pid=1,
        started="",
        version="",
        python="",
        runs="",
        queues={"mine": 1, "other": 1},
        slots=2,
        busy=2,
        state="running",
        running=running,
    )
    with served(data) as server, OpenQ("mine", url=server.url, token=tokens["root"]) as queue:
        queue.kv(WORKERS).put("w.1", encode(entry), ttl=60)
        client = HttpClient(server.url, token=tokens["sender"])
        command = encode(WorkerCommand(command="stop", instance="i"))
        raw = "application/octet-stream"
        many = json.dumps({"puts": [{"key": "w.1", "value": ""}]}).encode()

        [shown] = client.request("GET", "/api/v1/workers").json()["workers"]
        refused = [
            client.request("POST", "/api/v1/workers/w/stop").status,
            client.request("PUT", "/api/v1/kv/worker-commands/w.1", command, raw).status,
            client.request("POST", "/api/v1/kv/worker-commands/put", many).status,
            client.request("DELETE", "/api/v1/kv/worker-commands/w.1").status,
        ]
        client.close()
        assert [job["queue"] for job in shown["running"]] == ["mine"]
        assert refused == [403] * 4
        assert queue.kv(COMMANDS).get("w.1") is None
