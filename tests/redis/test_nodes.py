"""Sentinels and clusters: real ones, whose masters die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from openq.errors import StoreError, StoreUnavailable
from openq.redis.net import greenlets
from openq.redis.net.calls import Calls
from openq.redis.net.nodes import slot_of
from openq.redis.net.url import parse
from tests.redis.servers import Cluster, Sentinel, Server, cluster, sentinel
from tests.serving import free_port

RunStory = Callable[[str, Callable[[Calls], Any]], Any]


def by_thread(url: str, story: Callable[[Calls], Any]) -> Any:
    calls = Calls(parse(url))
    try:
        return story(calls)
    finally:
        calls.close()


def by_loop(url: str, story: Callable[[Calls], Any]) -> Any:
    async def main() -> Any:
        calls = Calls(parse(url), loop=asyncio.get_running_loop())
        try:
            return await greenlets.run(story, calls)
        finally:
            calls.close()
            await asyncio.sleep(0)

    return asyncio.run(main())


either_way = pytest.mark.parametrize("run_story", [by_thread, by_loop])


@pytest.mark.parametrize("key", [b"foo", b"oq:{17}:q", b"a{}b", b"a{b", b"{a}{b}", b"{{a}}", b""])
def test_a_key_is_where_the_cluster_thinks_it_is(key: bytes, one_cluster: Cluster) -> None:
    assert slot_of(key) == one_cluster.servers[0].ask("CLUSTER", "KEYSLOT", key.decode())


@pytest.fixture(scope="module")
def one_cluster() -> Any:
    with cluster(3, 0) as made:
        yield made


@either_way
def test_calls_find_their_node(one_cluster: Cluster, run_story: RunStory) -> None:
    keys = [b"k%d" % number for number in range(50)]

    def story(calls: Calls) -> None:
        for key in keys:
            assert calls.call(key, "SET", key, b"v" + key) == b"OK"
        assert calls.many([(key, ("GET", key)) for key in keys]) == [b"v" + key for key in keys]
        replies = calls.many([(keys[0], ("LPUSH", keys[0], 1)), (keys[1], ("GET", keys[1]))])
        assert isinstance(replies[0], StoreError)
        assert replies[1] == b"v" + keys[1]

    run_story(one_cluster.url, story)
    assert all(int(server.ask("DBSIZE")) > 0 for server in one_cluster.servers)


@either_way
def test_one_node_is_enough_to_find_the_others(one_cluster: Cluster, run_story: RunStory) -> None:
    url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{one_cluster.servers[2].port}"

    assert run_story(url, lambda calls: calls.many([(b"%d" % n, ("TTL", n)) for n in range(9)])) == [-2] * 9


@either_way
def test_a_slot_that_moves_is_followed(one_cluster: Cluster, run_story: RunStory) -> None:
    key = b"{moving}:a"
    slot = slot_of(key)

    def owner() -> Server:
        ports = [m.port for m in one_cluster.members(one_cluster.servers[0]) if covers(m.slots, slot)]
        return next(server for server in one_cluster.servers if [server.port] == ports)

    def covers(ranges: tuple[str, ...], slot: int) -> bool:
        bounds = [part.partition("-") for part in ranges if part[0] != "["]
        return any(int(first) <= slot <= int(last or first) for first, _, last in bounds)

    def story(calls: Calls) -> None:
        calls.call(key, "SET", key, "here")
        source = owner()
        target = next(server for server in one_cluster.servers if server is not source)
        source_id, target_id = one_cluster.id_of(source), one_cluster.id_of(target)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        # What is not at the source any more is asked for at the target: ASK.
        assert calls.call(b"{moving}:b", "SET", "{moving}:b", "new") == b"OK"
        assert calls.call(key, "GET", key) == b"here"
        assert calls.many([(b"{moving}:b", ("GET", "{moving}:b")), (key, ("GET", key))]) == [b"new", b"here"]
        source.ask("MIGRATE", "127.0.0.1", target.port, key.decode(), 0, 5000)
        for server in (target, source, *one_cluster.servers):
            server.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        # And now it has moved: MOVED.
        assert calls.call(key, "GET", key) == b"here"
        assert calls.call(key, "DEL", key, "{moving}:b") == 2

    run_story(one_cluster.url, story)


def test_a_single_servers_url_does_not_reach_a_cluster(one_cluster: Cluster) -> None:
    def story(calls: Calls) -> None:
        with pytest.raises(StoreError, match=r"redis\+cluster://"):
            [calls.call(b"k", "GET", number) for number in range(10)]

    by_thread(one_cluster.servers[0].url, story)


@either_way
def test_nobody_answers(run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        with pytest.raises(StoreUnavailable, match="nothing was done"):
            calls.call(b"a", "SET", "a", 1)
        assert isinstance(calls.many([(b"a", ("GET", "a"))])[0], StoreUnavailable)

    for kind in ("redis+cluster://127.0.0.1:%d", "redis+sentinel://127.0.0.1:%d/main"):
        run_story(f"{kind % free_port()}?reconnect=0.1", story)


@pytest.mark.slow
@either_way
def test_a_clusters_replica_takes_over(run_story: RunStory) -> None:
    with cluster(3, 1) as made:

        def story(calls: Calls) -> None:
            key = b"a"
            calls.call(key, "SET", key, 1)
            calls.wait_for_copies()
            master = next(
                server
                for server in made.masters()
                if server.ask("CLUSTER", "COUNTKEYSINSLOT", slot_of(key)) == 1
            )
            master.kill9()
            assert calls.call(key, "GET", key) == b"1"
            assert calls.call(key, "INCR", key) == 2

        run_story(made.url, story)


@pytest.mark.slow
@either_way
def test_the_sentinels_name_another_master(run_story: RunStory) -> None:
    with sentinel(1) as made:

        def story(calls: Calls) -> None:
            calls.call(b"a", "SET", "a", 1)
            calls.wait_for_copies()
            made.master.kill9()
            assert calls.call(b"a", "GET", "a") == b"1"
            assert calls.call(b"a", "INCR", "a") == 2
            calls.wait_for_copies()  # the copy that the dead master had is not waited for

        run_story(made.url, story)


@pytest.mark.slow
@either_way
@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_a_frozen_master_is_left_when_another_took_its_place_whatever_the_timeout(
    run_story: RunStory, kind: str
) -> None:
    """A machine that lost its power answers nothing, and nothing ends its connections."""
    with cluster(3, 1) if kind == "cluster" else sentinel(1) as made:

        def story(calls: Calls) -> None:
            key = b"a"
            calls.call(key, "SET", key, 1)
            calls.wait_for_copies()
            master = made.master if isinstance(made, Sentinel) else _master_of(made, key)
            master.freeze()
            try:
                assert calls.call(key, "GET", key) == b"1"
                assert calls.call(key, "INCR", key, idempotent=True) == 2
            finally:
                master.thaw()

        separator = "&" if "?" in made.url else "?"
        run_story(f"{made.url}{separator}timeout=600", story)


def _master_of(made: Cluster, key: bytes) -> Server:
    holding = lambda server: server.ask("CLUSTER", "COUNTKEYSINSLOT", slot_of(key)) == 1  # noqa: E731
    return next(server for server in made.masters() if holding(server))
