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

from ...errors import OpenQError
from ..site import Site

log = logging.getLogger("openq.amqp")

BEAT_S = 3.0
ALIVE_MS = 15_000  # after so long without a word a server counts as gone
FRESH_S = 1.0  # an answer for people may be as old as this


class Presence(NamedTuple):
    """The consumers of one server on one queue."""

    consumers: int
    exclusive: bool
    since_ms: int  # of the first of them


Found = dict[str, Presence]  # by the engine's names of queues


class Neighbours:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._broker = site.broker
        self.name = secrets.token_hex(8)
        self.is_alone = not site.broker.is_shared
        self.present: Callable[[], Found] = dict  # what this server has; set by the door
        self._known: dict[str, Found] = {}
        self._known_s = -FRESH_S
        self._missed: dict[str, float] = {}  # servers that were named and not heard of, since when
        self._is_beating = False

    def tell(self) -> None:
        """What is here, to all. Waits until it is told; raises what the store raises."""
        if self.is_alone:
            return
        data = json.dumps({"amqp": {full: list(each) for full, each in self.present().items()}})
        self._broker.beat(self.name, data.encode(), ALIVE_MS)

    def beat(self) -> None:
        """On the loop, now and then."""
        if self.is_alone or self._is_beating:
            return
        self._is_beating = True
        try:
            self.tell()
            self.look()
        except OpenQError as error:
            log.warning("the other servers do not hear of this one: %s", error)
        finally:
            self._is_beating = False

    def leave(self) -> None:
        if not self.is_alone:
            try:
                self._broker.leave_servers(self.name)
            except OpenQError as error:
                log.warning("the other servers take this one for alive a while longer: %s", error)

    def look(self) -> None:
        """What the others say, as of now."""
        if self.is_alone:
            return
        found = self._broker.servers()
        self._known = {name: _read(data) for name, data in found.items() if name != self.name}
        self._known_s = self._site.loop.time()

    def elsewhere(self, full: str, *, now: bool = False) -> list[Presence]:
        """The consumers of a queue on other servers; `now` if something depends on it."""
        return [each for _, each in self._elsewhere(full, now)]

    def _elsewhere(self, full: str, now: bool) -> list[tuple[str, Presence]]:
        if self.is_alone:
            return []
        if now or self._site.loop.time() - self._known_s > FRESH_S:
            self.look()
        return [(name, found[full]) for name, found in self._known.items() if full in found]

    def leads(self, full: str, since_ms: int) -> bool:
        """Whether the consumers here came first, of a queue on which one alone may be active.

        By what is known: it is looked at again with every beat.
        """
        own = (since_ms, self.name)
        others = ((found[full].since_ms, name) for name, found in self._known.items() if full in found)
        return all(own < each for each in others)

    def is_gone(self, name: str, *, at_start: bool = False) -> bool:
        """Whether what was to go with this server may go.

        Not on the store's word alone, but at the start: a store that was away comes back without the notes
        of those who live, and they need a moment to say so.
        """
        if name == self.name or name in self._known:
            self._missed.pop(name, None)
            return False
        now_s = self._site.loop.time()
        return at_start or now_s - self._missed.setdefault(name, now_s) > ALIVE_MS / 1000


def _read(data: bytes) -> Found:
    try:
        source: Any = json.loads(data)
        return {full: Presence(*each) for full, each in source["amqp"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # of a version that says it otherwise
