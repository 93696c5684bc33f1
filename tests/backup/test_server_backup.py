"""Backups of a real server, while clients publish and acknowledge."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq import OpenQ
from openq.backup import Repository, create, open_source, restore
from openq.local.broker import LocalBroker
from tests.cli.helpers import run_in_process, run_openq
from tests.serving import Served, start
from tests.waiting import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    running = start(tmp_path / "data").wait()
    yield running
    running.stop()


class Load:
    """A publisher and a consumer, and what was acknowledged to them, in order."""

    def __init__(self, url: str) -> None:
        self.published: list[str] = []
        self.acked: list[str] = []
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._publish, self._consume)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _publish(self) -> None:
        with OpenQ("orders", url=self._url) as queue:
            while not self._stop.is_set():
                # Several pieces, which fill segments quickly.
                self.published += queue.publish_many([os.urandom(20_000) for _ in range(10)])

    def _consume(self) -> None:
        with OpenQ("orders", url=self._url) as queue:
            while not self._stop.is_set():
                messages = queue.receive_many(7, timeout=0.2)
                queue.ack_many(messages)
                self.acked += [message.id for message in messages]


def test_a_backup_under_load_has_all_that_was_acknowledged_before_it(server: Served, tmp_path: Path) -> None:
    repository = Repository.open(str(tmp_path / "repo"), create=True)
    known = []
    with Load(server.url) as load:
        until(lambda: len(load.acked) > 150)
        for _ in range(3):
            published, acked = list(load.published), list(load.acked)
            with open_source(server.url) as source:
                size = len(load.published)
                until(lambda size=size: len(load.published) > size + 30)  # the load goes on meanwhile
                create(source, repository)
            known.append((set(published), set(acked)))
    acked_ever = set(load.acked)

    assert len(repository.ids()) == 3
    for number, (id, (published, acked)) in enumerate(zip(repository.ids(), known, strict=True)):
        path = tmp_path / f"restored-{number}"
        restore(repository, repository.manifest(id), str(path))
        broker = LocalBroker(path)
        found = {broker.inspect.message_id(entry) for entry in broker.inspect.entries("orders")}
        broker.close()
        assert published - acked_ever <= found, "a message that was acknowledged before the backup is missing"
        assert not acked & found, "a message came back that was acknowledged before the backup"


def test_the_commands_for_a_server(server: Served, tmp_path: Path) -> None:
    with OpenQ("orders", url=server.url) as queue:
        queue.publish_many([b"one", b"two"])
    repo, target = tmp_path / "repo", tmp_path / "restored"
    passphrase = {"OPENQ_BACKUP_PASSPHRASE": "correct horse"}
    made = run_in_process("backup", repo, "--encrypt", "--url", server.url, "--json", **passphrase)
    assert made.code == 0, made.err
    assert json.loads(made.out)["messages"] == 2

    listed = run_in_process("backup", "ls", repo, "--json", **passphrase)
    assert json.loads(listed.out)["id"] == json.loads(made.out)["id"]
    checked = run_in_process("backup", "verify", repo, **passphrase)
    assert (checked.code, "all intact" in checked.out) == (0, True)
    restored = run_in_process("restore", repo, target, **passphrase)
    assert "2 messages in 1 queue" in restored.out
    again = run_in_process("restore", repo, target, **passphrase)
    assert (again.code, "--replace" in again.err) == (2, True)
    refused = run_in_process("backup", "verify", repo, OPENQ_BACKUP_PASSPHRASE="another one")
    assert (refused.code, "passphrase" in refused.err) == (1, True)

    audited = run_in_process("audit", "ls", "--data", target, "--json")
    assert [json.loads(line)["action"] for line in audited.out.splitlines()][-1] == "restore"
    live = run_in_process("audit", "ls", "--url", server.url, "--json")
    ended = [record for record in map(json.loads, live.out.splitlines()) if record["action"] == "end_backup"]
    assert ended[-1]["detail"]["outcome"] == "done"


def test_a_directory_in_use_names_its_server(server: Served, tmp_path: Path) -> None:
    result = run_openq("backup", tmp_path / "repo", "--data", tmp_path / "data")
    assert result.code == 1
    assert server.url in result.err


def test_only_admins_back_up(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for user, role in (("root", "admin"), ("joe", "producer")):
        words = ("user", "add", user, "--role", role, "--password", "--data", data)
        assert run_in_process(*words, OPENQ_PASSWORD=f"password-of-{user}").code == 0
    server = start(data).wait()
    try:
        words = ("backup", tmp_path / "repo", "--url", server.url)
        refused = run_in_process(*words, "--user", "joe", OPENQ_PASSWORD="password-of-joe")
        assert refused.code != 0
        assert "may not admin" in refused.err
        allowed = run_in_process(*words, "--user", "root", OPENQ_PASSWORD="password-of-root")
        assert allowed.code == 0, allowed.err
        audited = run_in_process(
            "audit", "ls", "--url", server.url, "--user", "root", "--json", OPENQ_PASSWORD="password-of-root"
        )
        outcomes = {
            (each["user"], each["action"], each["outcome"])
            for each in map(json.loads, audited.out.splitlines())
        }
        assert {("joe", "begin_backup", "refused"), ("root", "begin_backup", "ok")} <= outcomes
    finally:
        server.stop()


def test_a_server_without_a_directory_says_why_not(tmp_path: Path) -> None:
    server = start(None).wait()
    try:
        result = run_in_process("backup", tmp_path / "repo", "--url", server.url)
        assert result.code == 1
        assert "nothing to back up" in result.err
    finally:
        server.stop()
