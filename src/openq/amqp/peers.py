"""What the servers of a store share about AMQP: which servers are alive, and which queues they consume.

Consumers and connections live in a server, queues in the store. An auto-delete queue may be deleted only when
no server has a consumer of it, an exclusive queue when its server is dead. So each server announces its
consumers in an entry of the store that expires. With a local broker there are no peers.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import OpenQError
from ..server.context import ServerContext

log = logging.getLogger("openq.amqp")

ANNOUNCE_S = 3.0
PEER_TIMEOUT_MS = 15_000  # without an announcement, a server is dead then
MAX_AGE_S = 1.0  # of an answer that is only displayed


class ConsumerPresence(NamedTuple):
    """The consumers of one server on one queue."""

    consumers: int
    exclusive: bool
    since_ms: int  # of the first consumer


PresenceByQueue = dict[str, ConsumerPresence]  # by queue key


class PeerServers:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._cluster = context.broker.cluster  # None: there is only this server
        self.name = secrets.token_hex(8)
        self.is_single = self._cluster is None
        self.local_consumers: Callable[[], PresenceByQueue] = dict  # set by the server
        self._known: dict[str, PresenceByQueue] = {}
        self._known_s = -MAX_AGE_S
        self._missing_since: dict[str, float] = {}  # servers that are named but not announced
        self._is_announcing = False

    def announce(self) -> None:
        """Announce the consumers of this server. Raises what the store raises."""
        if self._cluster is None:
            return
        data = json.dumps(
            {"amqp": {queue_key: list(each) for queue_key, each in self.local_consumers().items()}}
        )
        self._cluster.heartbeat(self.name, data.encode(), PEER_TIMEOUT_MS)

    def heartbeat(self) -> None:
        """Announce and refresh; called regularly on the loop."""
        if self.is_single or self._is_announcing:
            return
        self._is_announcing = True
        try:
            self.announce()
            self.refresh()
        except OpenQError as error:
            log.warning("this server is not announced to the others: %s", error)
        finally:
            self._is_announcing = False

    def leave(self) -> None:
        if self._cluster is not None:
            try:
                self._cluster.remove_server(self.name)
            except OpenQError as error:
                log.warning("the other servers treat this one as alive until it times out: %s", error)

    def refresh(self) -> None:
        """Read the announcements of the other servers."""
        if self._cluster is None:
            return
        found = self._cluster.servers()
        self._known = {name: _parse_presence(data) for name, data in found.items() if name != self.name}
        self._known_s = self._context.loop.time()

    def consumers_elsewhere(self, queue_key: str, *, now: bool = False) -> list[ConsumerPresence]:
        """The consumers of a queue on other servers. `now`: ask the store instead of a recent answer."""
        return [each for _, each in self._presence_elsewhere(queue_key, now)]

    def _presence_elsewhere(self, queue_key: str, now: bool) -> list[tuple[str, ConsumerPresence]]:
        if self.is_single:
            return []
        if now or self._context.loop.time() - self._known_s > MAX_AGE_S:
            self.refresh()
        return [(name, found[queue_key]) for name, found in self._known.items() if queue_key in found]

    def is_leader(self, queue_key: str, since_ms: int) -> bool:
        """Whether the consumers here are the earliest, for a queue with a single active consumer.

        By the last announcements, which are read again with every heartbeat.
        """
        own = (since_ms, self.name)
        others = (
            (found[queue_key].since_ms, name) for name, found in self._known.items() if queue_key in found
        )
        return all(own < each for each in others)

    def is_dead(self, name: str, *, at_start: bool = False) -> bool:
        """Whether the objects of this server may be deleted.

        A missing announcement is not enough, except at the start: a store that was unreachable may come back
        without announcements, and living servers need a moment to announce themselves again.
        """
        if name == self.name or name in self._known:
            self._missing_since.pop(name, None)
            return False
        now_s = self._context.loop.time()
        return at_start or now_s - self._missing_since.setdefault(name, now_s) > PEER_TIMEOUT_MS / 1000


def _parse_presence(data: bytes) -> PresenceByQueue:
    try:
        source: Any = json.loads(data)
        return {queue_key: ConsumerPresence(*each) for queue_key, each in source["amqp"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # of another version
