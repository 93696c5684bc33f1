"""The servers that the other tests stand on: they do what their names say, and nothing is left of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.isolation import with_tests
from tests.redis.servers import (
    FORCED,
    Server,
    ServerKind,
    cluster,
    replicated,
    sentinel,
    single,
    until_reachable,
    versions,
)

every_kind = pytest.mark.parametrize("kind", versions()[:1], ids=str)


def is_alive(pid: int) -> bool:
    """And not only waiting for its parent to hear of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_there_is_a_server_to_test_with() -> None:
    assert versions()


@pytest.mark.parametrize("redis_server", versions(), indirect=True, ids=str)
@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_finds_its_server_empty(redis_server: Server, turn: int) -> None:
    assert redis_server.ask("DBSIZE") == 0
    redis_server.ask("SET", "key", turn)


@every_kind
def test_a_server_comes_back_where_it_was_with_what_it_kept(kind: ServerKind) -> None:
    with single(*FORCED, program=kind.path) as server:
        url, pid = server.url, server.pid
        server.ask("SET", "key", "kept")
        server.kill9()
        server.start()
        assert server.ask("GET", "key") == "kept"
        server.stop()
        server.start()

        assert server.ask("GET", "key") == "kept"
        assert server.url == url
        assert server.pid != pid


@every_kind
def test_a_frozen_server_answers_only_when_it_is_thawed(kind: ServerKind) -> None:
    with single(program=kind.path) as server:
        server.freeze()
        with pytest.raises(TimeoutError):
            server.ask("PING", timeout=0.2)
        server.thaw()

        assert server.ask("PING") == "PONG"


@every_kind
def test_replicas_follow(kind: ServerKind) -> None:
    with replicated(2, program=kind.path) as servers:
        servers.master.ask("SET", "key", "copied")

        for replica in servers.replicas:
            until_reachable(lambda replica=replica: replica.ask("GET", "key") == "copied", "the copy")


@every_kind
def test_sentinels_replace_a_dead_master(kind: ServerKind) -> None:
    with sentinel(program=kind.path) as servers:
        old = servers.master
        old.kill9()

        assert servers.wait_for_another(old) is not old


@every_kind
def test_a_cluster_replaces_a_dead_master_and_takes_it_back(kind: ServerKind) -> None:
    with cluster(program=kind.path) as servers:
        old = servers.masters()[0]
        [heir] = servers.replicas_of(old)
        old.kill9()
        assert servers.wait_replaced(old, [heir]) is heir
        old.start()
        servers.wait_whole()

        assert servers.replicas_of(heir) == [old]
        assert len(servers.masters()) == 3


KILLED = """
import os
from tests.redis.servers import single

with single() as server:
    print(server.pid, server.folder, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_nothing_is_left_of_a_test_that_was_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], env=with_tests(), stdout=subprocess.PIPE, text=True, timeout=60
    )
    pid, folder = done.stdout.split()

    until_reachable(lambda: not is_alive(int(pid)), "the server ends with who started it")
    assert not Path(folder).exists()
