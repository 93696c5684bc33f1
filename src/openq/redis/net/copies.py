"""How many copies a write has, and how a connection confirms them. Pure.

`WAIT` covers the writes of its own connection only. So each connection counts the writes sent through it. A
confirmation covers the writes counted when it was requested, and a new connection does not cover the writes
of its predecessor.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from openq.errors import NotReplicated
from openq.redis.net.resp import pack
from openq.redis.net.url import Address

REFRESH_S = 10.0
# Without automatic failover, a missing replica is waited for this long before answers do without it. Behind
# sentinels a connection never lowers the number that it waits for: a master that was cut off must not take
# its replicas for gone while another server takes its place. In a cluster the nodes agree on which of them
# failed.
LOWER_AFTER_S = 20.0
_MAX_REMEMBERED = 16
_CONNECTION_LOST = "the connection was lost before the copies were confirmed"

_READ_COMMANDS = [
    *("PING", "ECHO", "INFO", "TIME", "SCAN", "TYPE", "EXISTS", "PTTL", "CONFIG", "MEMORY"),
    *("GET", "MGET", "HGET", "HMGET", "HGETALL", "HLEN", "LLEN", "LRANGE", "SMEMBERS", "SISMEMBER"),
    *("ZCARD", "ZRANGE", "ZSCORE", "XLEN", "XRANGE", "XREVRANGE", "XREAD", "FCALL_RO", "EVAL_RO", "PUBLISH"),
]
READ_COMMANDS: frozenset[bytes | str | int] = frozenset(
    [*_READ_COMMANDS, *(name.encode() for name in _READ_COMMANDS)]
)
"""Commands that leave nothing to copy; one that is not listed is taken for a write."""


class WriteMark(NamedTuple):
    """A point in the writes of a link: its connection, and how many writes it had then."""

    connection_number: int
    written: int


class ConfirmRequest(NamedTuple):
    data: bytes
    commands: int
    mark: WriteMark
    replicas: int
    refreshes_info: bool
    """Whether its last commands look again how many replicas there are."""


class ReplicaFloor:
    """How many replicas there were lately, under any master.

    A master that was frozen or cut off during a failover does not know of it when it answers again, and sees
    no replicas. Its count of zero must not be trusted.
    """

    def __init__(self) -> None:
        self.replicas = 0
        self._seen_s = float("-inf")

    def without_one(self) -> ReplicaFloor:
        """After a replica was promoted to master: the former master is not yet among the replicas."""
        floor = ReplicaFloor()
        floor.replicas = max(self.replicas - 1, 0)
        floor._seen_s = self._seen_s
        return floor

    def observe(self, online: int, now_s: float) -> int:
        if online >= self.replicas or now_s - self._seen_s >= LOWER_AFTER_S:
            self.replicas = online
            self._seen_s = now_s
        return self.replicas


class Copies:
    """The state of the copies of the writes of one link."""

    def __init__(self, address: Address, floor: ReplicaFloor | None = None) -> None:
        self.wanted = address.profile == "safe"
        self._fixed_replicas = address.replicas
        self._wait_ms = max(1, int(address.timeout_s * 500))
        self.replicas = address.replicas or 0
        self.on_disk = False
        self._is_master = True
        self.written = 0
        self.confirmed = 0
        self._abandoned = 0
        self.connection_number = 0
        self._refreshed_s = float("-inf")
        self._is_cluster = address.kind == "cluster"
        self._may_lower = address.kind != "sentinel"
        # Where a replica may be promoted at any time, the first replica must be noticed at once.
        self._first_replica_s = REFRESH_S if address.kind == "single" else 0.0
        self._floor = floor or ReplicaFloor()
        self._confirmed_before: dict[int, int] = {}

    def info_commands(self) -> list[tuple[str, ...]]:
        """The commands whose replies `parse_info` and `new_connection` take."""
        if not self.wanted:
            return []
        info = ("INFO", "server", "persistence", "replication")
        return [info, ("CLUSTER", "NODES")] if self._is_cluster else [info]

    def new_connection(self, replies: list[Any], now_s: float) -> None:
        self._confirmed_before[self.connection_number] = self.confirmed
        self._confirmed_before.pop(self.connection_number - _MAX_REMEMBERED, None)
        self.connection_number += 1
        self._refreshed_s = now_s
        if self._fixed_replicas is None:
            self.replicas = 0
        self.parse_info(replies, now_s)

    def parse_info(self, replies: list[Any], now_s: float) -> None:
        """A forbidden command gives no information and changes nothing."""
        if not replies or not isinstance(replies[0], bytes):
            return
        facts = dict(line.split(b":", 1) for line in replies[0].splitlines() if b":" in line)
        if self._fixed_replicas is None:
            states = [
                b"state=online" in value
                for name, value in facts.items()
                if name.startswith(b"slave") and name[5:].isdigit()
            ]
            online = sum(states)
            if self._is_cluster:
                # A replica that is still in its initial sync would delay all writes until it is done.
                self.replicas = max(online, _count_live_replicas(replies[1]) - (len(states) - online))
            else:
                lately = self._floor.observe(online, now_s)
                self.replicas = lately if self._may_lower else max(lately, self.replicas)
        self._is_master = facts.get(b"role", b"master") == b"master"
        version = tuple(int(part) for part in facts.get(b"redis_version", b"0").split(b".")[:2])
        self.on_disk = facts.get(b"aof_enabled") == b"1" and version >= (7, 2)

    def mark(self) -> WriteMark:
        self.written += 1
        return WriteMark(self.connection_number, self.written)

    def is_safe(self, mark: WriteMark, now_s: float) -> bool:
        """Whether no confirmation is needed. Raises if none is possible, because the connection of the writes
        is lost."""
        if self.is_confirmed(mark):
            return True
        if mark.connection_number == self.connection_number:
            return self._is_master and not (self.replicas or self.on_disk or self._needs_refresh(now_s))
        raise NotReplicated(_CONNECTION_LOST)

    def require(self, mark: WriteMark) -> None:
        """Checked after the reply: it may have come over a newer connection than that of the writes."""
        if not self.is_confirmed(mark):
            raise NotReplicated(_CONNECTION_LOST)

    def is_confirmed(self, mark: WriteMark) -> bool:
        if mark.connection_number == self.connection_number:
            return self.confirmed >= mark.written
        return self._confirmed_before.get(mark.connection_number, -1) >= mark.written

    def _needs_refresh(self, now_s: float) -> bool:
        return now_s - self._refreshed_s >= (REFRESH_S if self.replicas else self._first_replica_s)

    @property
    def has_open_writes(self) -> bool:
        """Whether some writes may still be confirmed."""
        return self.written > max(self.confirmed, self._abandoned)

    def now(self) -> WriteMark:
        return WriteMark(self.connection_number, self.written)

    def confirm_request(self, now_s: float) -> ConfirmRequest:
        """The request that confirms the copies of all writes answered so far.

        It covers the master's append-only file and the memory of the replicas: a replica without such a file
        would never answer WAITAOF. With `appendfsync everysec` the confirmation of the file is not reliable:
        Valkey 9.1.2 was observed (strace) to give it five times in half a second with one fdatasync.
        """
        commands: list[tuple[str | int, ...]] = []
        if self.replicas:
            commands.append(("WAIT", self.replicas, self._wait_ms))
        if self.on_disk:
            commands.append(("WAITAOF", 1, 0, self._wait_ms))
        looks = self._needs_refresh(now_s)
        if looks:
            commands += self.info_commands()
            self._refreshed_s = now_s
        data = b"".join([pack(command) for command in commands])
        return ConfirmRequest(data, len(commands), self.now(), self.replicas, looks)

    def check_replies(
        self, question: ConfirmRequest, replies: list[Any]
    ) -> NotReplicated | Literal["ask again"] | None:
        """Apply the replies to all writes before the request."""
        if question.refreshes_info:
            seen = len(self.info_commands())
            self.parse_info(replies[-seen:], self._refreshed_s)
            replies = replies[:-seen]
        refused = _first_failure(replies, question.replicas)
        if refused is None and not self._is_master:
            # It has no replicas, and the data written to it is about to be discarded.
            refused = NotReplicated("another server is master now")
            self._abandoned = question.mark.written
        if refused is not None:
            self._refreshed_s = float("-inf")  # the next request counts the replicas again
            return refused
        if question.refreshes_info and self.replicas > question.replicas:
            return "ask again"
        if question.mark.connection_number == self.connection_number:
            self.confirmed = max(self.confirmed, question.mark.written)
        return None


def _first_failure(replies: list[Any], replicas: int) -> NotReplicated | None:
    for reply in replies:
        if isinstance(reply, Exception):
            return NotReplicated(str(reply))
        if isinstance(reply, list):
            if reply[0] < 1:
                return NotReplicated("the append-only file was not synced in time")
        elif reply < replicas:
            return NotReplicated(f"{reply} of {replicas} replicas confirmed in time")
    return None


def _count_live_replicas(nodes: Any) -> int:
    """The number of a cluster node's own replicas that are not reported as failed.

    Marking a replica as failed takes a majority of masters: a master that was replaced while it was frozen or
    cut off cannot have received that. Until it learns of the new master it has its replicas on this list,
    connected or not.
    """
    if not isinstance(nodes, bytes):
        return 0
    known = [words for line in nodes.decode().splitlines() if len(words := line.split(" ")) >= 4]
    flags = {words[0]: words[2].split(",") for words in known}
    own = next((name for name, mine in flags.items() if "myself" in mine), None)
    return sum(
        words[3] == own and "slave" in flags[words[0]] and "fail" not in flags[words[0]] for words in known
    )
