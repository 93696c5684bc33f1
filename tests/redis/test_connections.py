"""One server, and both ways to it: threads that block and work on a loop that is suspended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from openq.errors import FunctionError, NotReplicated, StoreError, StoreFull, StoreUnavailable
from openq.redis.net import greenlets
from openq.redis.net.calls import Calls
from openq.redis.net.connection import ThreadConnection
from openq.redis.net.loop_connection import LoopConnection
from openq.redis.net.resp import pack
from openq.redis.net.url import parse
from tests.certificates import make_certificate
from tests.redis.servers import Server, fake_server, replicated, single, until_reachable, versions
from tests.serving import free_port

Story = Callable[[Calls], Any]
RunStory = Callable[[str, Story], Any]


def by_thread(url: str, story: Story) -> Any:
    calls = Calls(parse(url))
    try:
        return story(calls)
    finally:
        calls.close()


def _by_loop(run: Callable[..., Any]) -> RunStory:
    def run_story(url: str, story: Story) -> Any:
        async def main() -> Any:
            calls = Calls(parse(url), loop=asyncio.get_running_loop())
            try:
                return await greenlets.run(story, calls)
            finally:
                calls.close()
                await asyncio.sleep(0)

        return run(main())

    return run_story


WAYS = [
    pytest.param(by_thread, id="threads"),
    pytest.param(_by_loop(asyncio.run), id="asyncio"),
    pytest.param(_by_loop(uvloop.run), id="uvloop"),
]
either_way = pytest.mark.parametrize("run_story", WAYS)


@pytest.mark.parametrize("redis_server", versions(), indirect=True, ids=str)
@either_way
def test_replies_are_bytes_numbers_and_lists(redis_server: Server, run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        assert calls.call(b"a", "SET", b"a", 5) == b"OK"
        assert calls.call(b"a", b"INCR", "a") == 6
        assert calls.call(b"a", "GET", "nothing") is None
        assert calls.call(b"h", "HSET", "h", "\u00e9", b"\x00\r\n") == 1
        assert calls.call(b"h", "HGETALL", "h") == ["\u00e9".encode(), b"\x00\r\n"]

    run_story(redis_server.url, story)


@either_way
def test_errors_have_types(redis_server: Server, run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        calls.call(b"s", "SET", "s", "text")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            calls.call(b"s", "LPUSH", "s", 1)
        with pytest.raises(FunctionError) as refused:
            calls.call(b"s", "EVAL", "return redis.error_reply('OQ gone the message is gone')", 0)
        assert (refused.value.code, refused.value.text) == ("gone", "the message is gone")

    run_story(redis_server.url, story)


@either_way
def test_a_redis_without_room_is_full(run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        calls.call(b"a", "SET", "a", 1)
        calls.call(b"a", "CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreFull, match="maxmemory"):
            calls.call(b"a", "SET", "a", 2)
        assert calls.call(b"a", "GET", "a") == b"1"

    with single() as server:
        run_story(server.url, story)


@either_way
def test_many_gives_errors_as_items_and_keeps_the_order(redis_server: Server, run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        replies = calls.many(
            [(b"a", ("SET", "a", "x")), (b"a", ("INCR", "a")), (b"a", ("GET", "a")), (b"a", ("DEL", "a"))]
        )
        assert isinstance(replies[1], StoreError)
        assert [replies[0], *replies[2:]] == [b"OK", b"x", 1]
        assert calls.many([]) == []

    run_story(redis_server.url, story)


@either_way
def test_large_values_pass_both_ways(redis_server: Server, run_story: RunStory) -> None:
    large = os.urandom(5_000_000)

    def story(calls: Calls) -> None:
        calls.call(b"large", "SET", "large", large)
        replies = calls.many([(b"large", ("GET", "large"))] * 4)
        assert replies == [large] * 4

    run_story(redis_server.url, story)


@either_way
def test_a_password_a_database_and_a_name(run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        calls.call(b"a", "SET", "a", 1)
        assert b"name=openq" in calls.call(b"a", "CLIENT", "INFO")

    with single() as server:
        server.ask("CONFIG", "SET", "requirepass", "se/cret")
        where = f"127.0.0.1:{server.port}"
        run_story(f"redis://:se%2Fcret@{where}/3", story)
        assert (
            run_story(f"redis://default:se%2Fcret@{where}/3", lambda calls: calls.call(b"a", "GET", "a"))
            == b"1"
        )
        for wrong in (f"redis://:wrong@{where}", f"redis://{where}"):
            # Nobody waits for a password to become right.
            with pytest.raises(StoreError, match=r"WRONGPASS|NOAUTH") as refused:
                run_story(wrong, lambda calls: calls.call(b"a", "GET", "a"))
            assert not isinstance(refused.value, StoreUnavailable)


@either_way
def test_a_unix_socket(tmp_path: Path, run_story: RunStory) -> None:
    with single("--unixsocket", str(tmp_path / "s")):
        assert run_story(f"redis+unix://{tmp_path / 's'}", lambda calls: calls.call(b"a", "PING")) == b"PONG"


def started_with_tls(*options: str) -> Server:
    for kind in versions():
        server = Server("--save", "", *options, program=kind.path)
        try:
            return server.start()
        except AssertionError:  # it ended at once: built without TLS
            server.discard()
    pytest.skip("no server that is here speaks TLS")


@either_way
def test_tls(tmp_path: Path, run_story: RunStory) -> None:
    cert, key, authority = make_certificate(tmp_path)
    port = free_port()
    large = b"x" * 1_000_000

    def story(calls: Calls) -> Any:
        assert calls.call(b"a", "SET", "a", large) == b"OK"
        return calls.call(b"a", "GET", "a")

    server = started_with_tls(
        *("--tls-port", str(port), "--tls-cert-file", str(cert), "--tls-key-file", str(key)),
        *("--tls-ca-cert-file", str(authority), "--tls-auth-clients", "no"),
    )
    try:
        assert run_story(f"rediss://127.0.0.1:{port}?ca={authority}", story) == large
        assert run_story(f"rediss://127.0.0.1:{port}?insecure=yes", story) == large
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            run_story(f"rediss://127.0.0.1:{port}?reconnect=0", story)
    finally:
        server.discard()


# Many callers.


def test_threads_share_one_connection_and_get_their_own_replies(redis_server: Server) -> None:
    calls = Calls(parse(redis_server.url))
    calls.call(b"a", "PING")
    before = int(redis_server.info("stats")["total_connections_received"])
    wrong: list[tuple[int, Any]] = []

    def work(number: int) -> None:
        for turn in range(200):
            said = b"%d-%d" % (number, turn)
            if calls.call(b"a", "ECHO", said) != said:
                wrong.append((number, turn))
            if calls.many([(b"a", ("ECHO", said)), (b"a", ("ECHO", turn))]) != [said, b"%d" % turn]:
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    # One more is the one that asks.
    assert int(redis_server.info("stats")["total_connections_received"]) == before + 1
    calls.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_work_on_a_loop_shares_one_connection_and_its_writes(
    redis_server: Server, run: Callable[..., Any]
) -> None:
    async def main() -> None:
        calls = Calls(parse(redis_server.url), loop=asyncio.get_running_loop())
        await greenlets.run(calls.call, b"a", "PING")
        before = redis_server.info("stats")

        def work(number: int) -> None:
            for turn in range(20):
                said = b"%d-%d" % (number, turn)
                assert calls.call(b"a", "ECHO", said) == said
                assert calls.many([(b"a", ("ECHO", said))] * 3) == [said] * 3

        await asyncio.gather(*(greenlets.run(work, number) for number in range(50)))
        after = redis_server.info("stats")
        done = int(after["total_commands_processed"]) - int(before["total_commands_processed"])
        reads = int(after["total_reads_processed"]) - int(before["total_reads_processed"])
        assert done >= 4000
        assert reads < done / 20
        assert int(after["total_connections_received"]) == int(before["total_connections_received"]) + 1
        calls.close()
        await asyncio.sleep(0)

    run(main())


def test_threads_beside_the_loop_block_and_do_not_disturb_it(redis_server: Server) -> None:
    async def main() -> None:
        calls = Calls(parse(redis_server.url), loop=asyncio.get_running_loop())
        replies = await asyncio.gather(
            asyncio.to_thread(calls.call, b"a", "ECHO", "thread"),
            greenlets.run(calls.call, b"a", "ECHO", "loop"),
        )
        assert replies == [b"thread", b"loop"]
        calls.close()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_child_process_opens_its_own_connection(redis_server: Server) -> None:
    calls = Calls(parse(redis_server.url))
    parents = calls.call(b"a", "CLIENT", "ID")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, b"%d" % calls.call(b"a", "CLIENT", "ID"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert int(os.read(reading, 100)) != parents
    assert calls.call(b"a", "CLIENT", "ID") == parents
    os.close(reading)
    os.close(writing)
    calls.close()


# A signal in the middle of connecting leaves a socket that only the collector closes.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_caller_leaves_the_others_their_replies(redis_server: Server) -> None:
    calls = Calls(parse(redis_server.url))
    stop = threading.Event()
    wrong: list[Any] = []

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                reply = calls.call(b"a", "ECHO", number)
            except StoreUnavailable as lost:
                reply = b"%d" % number if lost.sent else lost
            if reply != b"%d" % number:
                wrong.append(reply)

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    former = signal.signal(signal.SIGUSR1, interrupt)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(20):
            timer = threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGUSR1))
            try:
                timer.start()
                while True:
                    calls.call(b"a", "ECHO", "main")
            except Interrupted:
                timer.join()
        assert calls.call(b"a", "ECHO", "still here") == b"still here"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        signal.signal(signal.SIGUSR1, former)
    assert wrong == []
    calls.close()


# Redis goes away.


@either_way
def test_a_call_waits_until_redis_is_back(run_story: RunStory) -> None:
    with single() as server:

        def story(calls: Calls) -> None:
            calls.call(b"a", "PING")
            server.kill9()
            comeback = threading.Timer(0.3, server.begin)
            comeback.start()
            # A read may be repeated; a write goes out on the new connection only.
            assert calls.call(b"a", "GET", "a") is None
            assert calls.call(b"a", "INCR", "a") == 1
            comeback.join()

        run_story(server.url, story)


@either_way
def test_a_call_gives_up_in_the_end(run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        with pytest.raises(StoreUnavailable, match="nothing was done") as lost:
            calls.call(b"a", "INCR", "a")
        assert not lost.value.sent
        replies = calls.many([(b"a", ("GET", "a"))] * 2)
        assert [type(reply) for reply in replies] == [StoreUnavailable] * 2

    run_story(f"redis://127.0.0.1:{free_port()}?reconnect=0.1", story)


@contextmanager
def closing_server(times: int) -> Iterator[tuple[int, list[bytes]]]:
    """A server that takes a command and ends the connection, `times` times; then it answers +DONE."""
    commands: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        while data := connection.recv(65536):
            if b"SETNAME" in data:
                connection.sendall(b"+OK\r\n")
                continue
            commands.append(data)
            if len(commands) <= times:
                return
            connection.sendall(b"+DONE\r\n")

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                talk(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], commands
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@either_way
def test_a_call_whose_outcome_is_unknown_is_not_repeated(run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        with pytest.raises(StoreUnavailable, match="outcome is unknown") as lost:
            calls.call(b"a", "INCR", "a")
        assert lost.value.sent

    with closing_server(1) as (port, commands):
        run_story(f"redis://127.0.0.1:{port}?profile=fast", story)
        assert len(commands) == 1


@either_way
def test_a_call_that_may_be_done_twice_is_repeated(run_story: RunStory) -> None:
    with closing_server(2) as (port, commands):
        url = f"redis://127.0.0.1:{port}?profile=fast"
        assert run_story(url, lambda calls: calls.call(b"a", "SET", "a", 1, idempotent=True)) == b"DONE"
        assert commands == [pack(("SET", "a", 1))] * 3


@either_way
def test_a_server_that_does_not_answer_is_dropped(run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        calls.call(b"a", "PING")
        server.freeze()
        try:
            with pytest.raises(StoreUnavailable, match="no answer in time") as lost:
                calls.call(b"a", "INCR", "a")
            assert lost.value.sent
        finally:
            server.thaw()
        assert calls.call(b"a", "PING") == b"PONG"

    with single() as server:
        run_story(f"{server.url}?timeout=1", story)


@either_way
def test_a_server_that_speaks_another_protocol_is_one_typed_error(run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="does not answer as Redis does: got") as lost:
                calls.call(b"a", "INCR", "a")
            assert not lost.value.sent
            assert str(lost.value).count("Redis is not available") == 1

    with fake_server() as port:
        run_story(f"redis://127.0.0.1:{port}?reconnect=0", story)


@either_way
def test_a_server_that_turns_to_another_protocol_leaves_the_outcome_unknown(run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        with pytest.raises(StoreUnavailable, match="does not answer as Redis does: got") as lost:
            calls.call(b"a", "INCR", "a")
        assert lost.value.sent

    with fake_server(greets=True) as port:
        run_story(f"redis://127.0.0.1:{port}?profile=fast&reconnect=0", story)


@either_way
def test_a_port_that_accepts_and_says_nothing_is_one_typed_error(run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        with pytest.raises(StoreUnavailable, match="no answer in time") as lost:
            calls.call(b"a", "INCR", "a")
        assert not lost.value.sent

    with socket.create_server(("127.0.0.1", free_port())) as listener:
        run_story(f"redis://127.0.0.1:{listener.getsockname()[1]}?timeout=0.2&reconnect=0", story)


def test_a_closed_link_takes_nothing(redis_server: Server) -> None:
    def story(calls: Calls) -> None:
        calls.call(b"a", "PING")
        calls.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            calls.call(b"a", "PING")

    by_thread(redis_server.url, story)
    _by_loop(asyncio.run)(redis_server.url, story)


# Copies.


@either_way
def test_a_safe_write_waits_for_its_replica(run_story: RunStory) -> None:
    with replicated(1) as group:

        def story(calls: Calls) -> None:
            for number in range(20):
                calls.call(b"a", "SET", "a", number)
                calls.wait_for_copies()
                assert group.replicas[0].ask("GET", "a") == str(number)
            reported: list[Any] = []
            calls.call(b"a", "SET", "a", "last")
            calls.after_copies(reported.append)
            calls.wait_for_copies()
            assert reported == [None]
            assert group.replicas[0].ask("GET", "a") == "last"

        run_story(group.url, story)


@either_way
def test_a_write_that_its_replica_does_not_confirm_is_not_certain(run_story: RunStory) -> None:
    with replicated(1) as group:

        def story(calls: Calls) -> None:
            calls.call(b"a", "SET", "a", 1)
            calls.wait_for_copies()
            group.replicas[0].freeze()
            calls.call(b"a", "SET", "a", 2)
            with pytest.raises(NotReplicated, match="0 of 1 replicas"):
                calls.wait_for_copies()
            group.replicas[0].thaw()
            calls.call(b"a", "SET", "a", 3)
            calls.wait_for_copies()

        run_story(f"{group.url}?timeout=1", story)


@either_way
def test_the_fast_profile_and_a_lone_server_wait_for_nobody(run_story: RunStory) -> None:
    def story(calls: Calls) -> None:
        calls.call(b"a", "SET", "a", 1)
        calls.wait_for_copies()
        reported: list[Any] = []
        calls.after_copies(reported.append)
        assert reported == [None]

    with replicated(1) as group:
        for server in (group.master, group.replicas[0]):
            server.ask("CONFIG", "RESETSTAT")
        run_story(f"{group.url}?profile=fast", story)
        group.replicas[0].ask("REPLICAOF", "NO", "ONE")
        until_reachable(lambda: group.master.info("replication")["connected_slaves"] == "0", "alone")
        run_story(group.url, story)
        assert "cmdstat_wait" not in group.master.info("commandstats")


@either_way
def test_what_a_lost_connection_wrote_is_not_confirmed_by_the_next(run_story: RunStory) -> None:
    with replicated(1) as group:

        def story(calls: Calls) -> None:
            calls.call(b"a", "SET", "a", 1)
            group.master.ask("CLIENT", "KILL", "TYPE", "normal")
            # Another caller opens the next connection, and has its own writes confirmed.
            calls.call(b"a", "GET", "a")
            with pytest.raises(NotReplicated, match="connection was lost"):
                calls.wait_for_copies()
            calls.call(b"a", "SET", "a", 2)
            calls.wait_for_copies()

        run_story(group.url, story)


@either_way
def test_a_later_write_does_not_answer_for_one_of_a_lost_connection(run_story: RunStory) -> None:
    with replicated(1) as group:

        def story(calls: Calls) -> None:
            calls.call(b"a", "SET", "a", 1)
            group.master.ask("CLIENT", "KILL", "TYPE", "normal")
            calls.call(b"b", "SET", "b", 1, idempotent=True)
            with pytest.raises(NotReplicated, match="connection was lost"):
                calls.wait_for_copies()
            calls.call(b"b", "SET", "b", 2)
            calls.wait_for_copies()

        run_story(group.url, story)


@either_way
def test_work_apart_does_not_answer_for_what_was_written_before(run_story: RunStory) -> None:
    with replicated(1) as group:

        def story(calls: Calls) -> None:
            calls.call(b"a", "SET", "a", 1)
            with calls.separate_writes():
                group.master.ask("CLIENT", "KILL", "TYPE", "normal")
                calls.call(b"b", "SET", "b", 1, idempotent=True)
                calls.wait_for_copies()
            with pytest.raises(NotReplicated, match="connection was lost"):
                calls.wait_for_copies()
            with calls.separate_writes():
                calls.call(b"b", "SET", "b", 2)
            calls.wait_for_copies()
            assert group.replicas[0].ask("GET", "b") == "2"

        run_story(group.url, story)


def test_those_who_wait_for_copies_at_the_same_time_ask_once(tmp_path: Path) -> None:
    async def main(url: str) -> None:
        calls = Calls(parse(url), loop=asyncio.get_running_loop())

        def work(number: int) -> None:
            calls.call(b"a", "SET", number, 1)
            calls.wait_for_copies()

        await greenlets.run(calls.call, b"a", "PING")
        await asyncio.gather(*(greenlets.run(work, number) for number in range(100)))
        calls.close()
        await asyncio.sleep(0)

    with replicated(1) as group:
        asyncio.run(main(group.url))
        said = group.master.info("commandstats")
        asked = int(said["cmdstat_wait"].partition("calls=")[2].partition(",")[0])
        assert 1 <= asked < 50


@pytest.mark.skipif(all(kind.version < (7, 2) for kind in versions()), reason="no server has WAITAOF")
@either_way
def test_a_server_with_a_file_is_asked_for_its_disk(run_story: RunStory) -> None:
    kind = next(kind for kind in versions() if kind.version >= (7, 2))

    def story(calls: Calls) -> None:
        calls.call(b"a", "SET", "a", 1)
        calls.wait_for_copies()

    with single("--appendonly", "yes", "--appendfsync", "always", program=kind.path) as server:
        run_story(server.url, story)
        assert "cmdstat_waitaof" in server.info("commandstats")


# The links themselves.


def test_a_thread_may_wait_for_several_links_at_once(redis_server: Server) -> None:
    from openq.redis.net.connection import PendingCommands

    address = parse(redis_server.url)
    links = [ThreadConnection(address, address.hosts[0]) for _ in range(3)]
    turns = [PendingCommands(pack(("ECHO", number)), 1) for number in range(3)]
    for link, turn in zip(links, turns, strict=True):
        link.begin(turn)
    other = threading.Thread(target=links[0].exchange, args=(pack(("PING",)), 1))
    other.start()
    replies = [link.finish(turn).replies for link, turn in zip(links, turns, strict=True)]
    other.join()

    assert replies == [[b"0"], [b"1"], [b"2"]]
    begun = PendingCommands(pack(("ECHO", "unread")), 1)
    links[0].begin(begun)
    links[0].abandon(begun)
    assert links[0].exchange(pack(("ECHO", "own")), 1).replies == [b"own"]
    for link in links:
        link.close()


def test_a_callback_that_fails_takes_nobody_with_it(
    redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> list[Any]:
        address = parse(redis_server.url)
        link = LoopConnection(address, address.hosts[0], asyncio.get_running_loop())
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        link.send(pack(("PING",)), lambda reply: reply / 0)
        link.send(pack(("ECHO", "next")), answered.set_result)
        replies = [await answered]
        link.close()
        return replies

    assert asyncio.run(main()) == [b"next"]
    assert "a callback failed" in caplog.text


def test_sends_wait_while_the_socket_is_full(redis_server: Server) -> None:
    async def main() -> None:
        calls = Calls(parse(redis_server.url), loop=asyncio.get_running_loop())
        large = b"x" * 1_000_000
        replies = await asyncio.gather(*(greenlets.run(calls.call, b"a", "ECHO", large) for _ in range(20)))
        assert replies == [large] * 20
        calls.close()
        await asyncio.sleep(0)

    asyncio.run(main())
