"""How many copies a write has, and how a connection asks for them. Pure.

`WAIT` answers for the writes of its own connection only. So each connection counts what was written through
it; a confirmation covers what was counted when it was asked for, and a new connection knows nothing of what
its predecessor wrote.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from openq.errors import NotReplicated
from openq.redis.url import Address
from openq.redis.wire import pack

LOOK_AGAIN_S = 10.0
# A replica that is gone is waited for so long before answers do without it. A master that was cut off must
# not take its replicas for gone while another one takes its place: a cluster stops it before that; behind
# sentinels nobody does, so there a connection never lowers what it waits for.
FEWER_AFTER_S = 20.0
_REMEMBERED = 16

_READING = [
    *("PING", "ECHO", "INFO", "TIME", "SCAN", "TYPE", "EXISTS", "PTTL", "CONFIG", "MEMORY"),
    *("GET", "MGET", "HGET", "HMGET", "HGETALL", "HLEN", "LLEN", "LRANGE", "SMEMBERS", "SISMEMBER"),
    *("ZCARD", "ZRANGE", "ZSCORE", "XLEN", "XRANGE", "XREVRANGE", "XREAD", "FCALL_RO", "EVAL_RO", "PUBLISH"),
]
READS: frozenset[bytes | str | int] = frozenset([*_READING, *(name.encode() for name in _READING)])
"""Commands that leave nothing to copy; one that is not listed is taken for a write."""


class Mark(NamedTuple):
    """A point in what was written through a link: its connection, and how many writes it had then."""

    opened: int
    written: int


class Question(NamedTuple):
    data: bytes
    commands: int
    mark: Mark
    replicas: int
    looks: bool
    """Whether its last command looks again how many replicas there are."""


class Floor:
    """How many replicas a shard had lately, whoever was its master.

    A master that was frozen, or cut off, while another one took its place does not know that yet when it
    answers again, and sees no replicas: it must not be believed that there are none.
    """

    def __init__(self) -> None:
        self.replicas = 0
        self._seen_s = float("-inf")

    def note(self, online: int, now_s: float) -> int:
        if online >= self.replicas or now_s - self._seen_s >= FEWER_AFTER_S:
            self.replicas = online
            self._seen_s = now_s
        return self.replicas


class Copies:
    """What one link knows of the copies of its writes."""

    def __init__(self, address: Address, floor: Floor | None = None) -> None:
        self.wanted = address.profile == "safe"
        self._asked_for = address.replicas
        self._limit_ms = max(1, int(address.timeout_s * 500))
        self.replicas = address.replicas or 0
        self.on_disk = False
        self.written = 0
        self.confirmed = 0
        self.opened = 0
        self._looked_s = float("-inf")
        self._may_lower = address.kind != "sentinel"
        self._floor = floor or Floor()
        self._confirmed_before: dict[int, int] = {}

    def new_connection(self, info: Any, now_s: float) -> None:
        self._confirmed_before[self.opened] = self.confirmed
        self._confirmed_before.pop(self.opened - _REMEMBERED, None)
        self.opened += 1
        self._looked_s = now_s
        if self._asked_for is None:
            self.replicas = 0
        self.learn(info, now_s)

    def learn(self, info: Any, now_s: float) -> None:
        """From the reply to INFO; one that is forbidden tells nothing and changes nothing."""
        if not isinstance(info, bytes):
            return
        facts = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
        if self._asked_for is None:
            self._count(
                sum(
                    b"state=online" in value
                    for name, value in facts.items()
                    if name.startswith(b"slave") and name[5:].isdigit()
                ),
                now_s,
            )
        version = tuple(int(part) for part in facts.get(b"redis_version", b"0").split(b".")[:2])
        self.on_disk = facts.get(b"aof_enabled") == b"1" and version >= (7, 2)

    def _count(self, online: int, now_s: float) -> None:
        lately = self._floor.note(online, now_s)
        self.replicas = lately if self._may_lower else max(lately, self.replicas)

    def mark(self) -> Mark:
        self.written += 1
        return Mark(self.opened, self.written)

    def is_safe(self, mark: Mark, now_s: float) -> bool:
        """Whether nothing needs to be asked. Raises when it is too late: who could confirm it is gone."""
        if mark.opened == self.opened:
            if self.confirmed >= mark.written:
                return True
            return not (self.replicas or self.on_disk) and now_s - self._looked_s < LOOK_AGAIN_S
        if self._confirmed_before.get(mark.opened, -1) >= mark.written:
            return True
        raise NotReplicated("the connection was lost before the copies were confirmed")

    def now(self) -> Mark:
        return Mark(self.opened, self.written)

    def question(self, now_s: float) -> Question:
        """What asks for the copies of everything that has been answered by now.

        The master's append-only file and the memory of the replicas: a replica without such a file would
        never answer WAITAOF. With `appendfsync everysec` the file's part is the server's word and no more:
        Valkey 9.1.2 was seen (strace) to give it five times in half a second with one fdatasync.
        """
        commands: list[tuple[str | int, ...]] = []
        if self.replicas:
            commands.append(("WAIT", self.replicas, self._limit_ms))
        if self.on_disk:
            commands.append(("WAITAOF", 1, 0, self._limit_ms))
        looks = now_s - self._looked_s >= LOOK_AGAIN_S
        if looks:
            commands.append(("INFO",))
            self._looked_s = now_s
        data = b"".join([pack(command) for command in commands])
        return Question(data, len(commands), self.now(), self.replicas, looks)

    def verdict(self, question: Question, replies: list[Any]) -> NotReplicated | None:
        """What the replies say of all that was written up to the question."""
        if question.looks:
            self.learn(replies[-1], self._looked_s)
            replies = replies[:-1]
        for reply in replies:
            if isinstance(reply, Exception):
                return NotReplicated(str(reply))
            if isinstance(reply, list):
                if reply[0] < 1:
                    return NotReplicated("the append-only file was not synced in time")
            elif reply < question.replicas:
                return NotReplicated(f"{reply} of {question.replicas} replicas confirmed in time")
        if question.mark.opened == self.opened:
            self.confirmed = max(self.confirmed, question.mark.written)
        return None
