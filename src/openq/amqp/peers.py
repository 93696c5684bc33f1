"""What the servers of one store tell each other about AMQP: who is alive, and who consumes from what.

Consumers and connections live in a server, queues in the store. So that a queue that goes with its last
consumer, or with its connection, goes when that is true of all servers, each of them says what it has in a
note that vanishes with it. Where a broker is not shared there is nobody else, and nothing is said.
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
PEER_TIMEOUT_MS = 15_000  # after so long without a word a server counts as gone
MAX_AGE_S = 1.0  # an answer for people may be as old as this


class ConsumerPresence(NamedTuple):
    """The consumers of one server on one queue."""

    consumers: int
    exclusive: bool
    since_ms: int  # of the first of them


PresenceByQueue = dict[str, ConsumerPresence]  # by the engine's names of queues


class PeerServers:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._broker = context.broker
        self.name = secrets.token_hex(8)
        self.is_single = not context.broker.is_shared
        self.local_consumers: Callable[[], PresenceByQueue] = dict  # what this server has; set by the door
        self._known: dict[str, PresenceByQueue] = {}
        self._known_s = -MAX_AGE_S
        self._missing_since: dict[str, float] = {}  # servers that were named and not heard of, since when
        self._is_announcing = False

    def announce(self) -> None:
        """What is here, to all. Waits until it is told; raises what the store raises."""
        if self.is_single:
            return
        data = json.dumps(
            {"amqp": {queue_key: list(each) for queue_key, each in self.local_consumers().items()}}
        )
        self._broker.heartbeat(self.name, data.encode(), PEER_TIMEOUT_MS)

    def beat(self) -> None:
        """On the loop, now and then."""
        if self.is_single or self._is_announcing:
            return
        self._is_announcing = True
        try:
            self.announce()
            self.refresh()
        except OpenQError as error:
            log.warning("the other servers do not hear of this one: %s", error)
        finally:
            self._is_announcing = False

    def leave(self) -> None:
        if not self.is_single:
            try:
                self._broker.remove_server(self.name)
            except OpenQError as error:
                log.warning("the other servers take this one for alive a while longer: %s", error)

    def refresh(self) -> None:
        """What the others say, as of now."""
        if self.is_single:
            return
        found = self._broker.servers()
        self._known = {name: _parse_presence(data) for name, data in found.items() if name != self.name}
        self._known_s = self._context.loop.time()

    def consumers_elsewhere(self, queue_key: str, *, now: bool = False) -> list[ConsumerPresence]:
        """The consumers of a queue on other servers; `now` if something depends on it."""
        return [each for _, each in self._presence_elsewhere(queue_key, now)]

    def _presence_elsewhere(self, queue_key: str, now: bool) -> list[tuple[str, ConsumerPresence]]:
        if self.is_single:
            return []
        if now or self._context.loop.time() - self._known_s > MAX_AGE_S:
            self.refresh()
        return [(name, found[queue_key]) for name, found in self._known.items() if queue_key in found]

    def is_leader(self, queue_key: str, since_ms: int) -> bool:
        """Whether the consumers here came first, of a queue on which one alone may be active.

        By what is known: it is looked at again with every beat.
        """
        own = (since_ms, self.name)
        others = (
            (found[queue_key].since_ms, name) for name, found in self._known.items() if queue_key in found
        )
        return all(own < each for each in others)

    def is_dead(self, name: str, *, at_start: bool = False) -> bool:
        """Whether what was to go with this server may go.

        Not on the store's word alone, but at the start: a store that was away comes back without the notes
        of those who live, and they need a moment to say so.
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
        return {}  # of a version that says it otherwise
