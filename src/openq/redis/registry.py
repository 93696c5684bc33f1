"""The data that all clients of a store share: queues and their settings, exchanges, documents. Cached here.

Every document has a version that is never reused. A change must name the latest version, so two servers never
overwrite each other's changes. Changes are announced, and the other clients refresh their cache.
"""

from __future__ import annotations

import itertools
import json
import logging
import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..broker.message_ids import new_prefix
from ..engine.queue import is_plain_queue
from ..engine.record_values import pack_value, unpack_value
from ..engine.routing import ExchangeRouter
from ..errors import StoreError
from ..model import QueueSettings
from .functions import call_function
from .net.calls import Calls

log = logging.getLogger("openq.redis")

Result = TypeVar("Result")

_QUEUE = "queue/"
_EXCHANGES = "exchanges"
_TRIES = 50
BLOCK = 1 << 20  # sequences that a queue gets at a time
# Sequences have 13 digits from the first on: Redis sorts messages with equal due times as text, which keeps
# them in order.
_FIRST_BLOCK = 1 << 20
_MAX_START = 1 << 22  # of the blocks of a store: as many again are left until sequences have 14 digits

_wakes = itertools.count(1)


class CachedQueue:
    """One queue as known to this process. `settings` is the same object until the settings change."""

    __slots__ = (
        "created_ms",
        "deleted",
        "fifo",
        "is_plain",
        "key",
        "last_wake",
        "name",
        "number",
        "settings",
        "version",
    )

    def __init__(self, name: str, number: int, settings: QueueSettings, created_ms: int, key: bytes) -> None:
        self.name = name
        self.number = number
        self.created_ms = created_ms
        self.key = key
        self.deleted = False
        self.version = 0
        self.last_wake = 0  # changes when the queue announces messages
        self.set_settings(settings)

    def set_settings(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.fifo = settings.fifo
        self.is_plain = is_plain_queue(settings)

    def wake(self) -> None:
        self.last_wake = next(_wakes)  # unique: two threads may do this at once


class Registry:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.docs_key = f"{prefix}:{{meta}}:docs".encode()
        self.versions_key = self.docs_key + b"v"
        self.counters_key = f"{prefix}:{{meta}}:counters".encode()
        self.queues: dict[str, CachedQueue] = {}
        self.numbered: dict[int, CachedQueue] = {}
        self.router = ExchangeRouter()
        self.version = -1
        self.id_prefix = ""
        self.stores = 0  # how often the store was replaced by another one
        self.now_argument: Callable[[], int] = lambda: 0  # the time for functions; 0: Redis's own clock
        self.revives = False  # whether to restore the documents of an emptied store; false for readers
        self.lock = threading.Lock()  # guards the application of a reply; no call to Redis is made under it
        self._begun = 0  # how often versions were reset
        self._taken = 0  # how often a reply had changes
        self._documents: dict[str, tuple[int, bytes]] = {}

    def key_of(self, number: int) -> bytes:
        """The key of a queue. It includes a part of the store's name: numbers start again in an emptied
        store, and clients that know its old queues must not find other queues under their numbers."""
        return f"{self.prefix}:{{{self.id_prefix[:6]}.{number}}}:q".encode()

    def view_of_key(self, key: bytes) -> CachedQueue | None:
        number = key[key.find(b".", key.find(b"{")) + 1 : key.find(b"}")]
        return self.numbered.get(int(number)) if number.isdigit() else None

    # -- reading --------------------------------------------------------------------------------

    def refresh(self, calls: Calls, *, always: bool = False) -> bool:
        """Returns whether anything changed. May run several times at once: an outdated reply is ignored.

        A store under another name than before was emptied, or replaced. Then the cached documents are
        restored in it, queues without their messages, unless another client has done so.
        """
        key = self.versions_key
        if not always:
            version, store = _replies(calls, (key, ("HGET", key, "")), self._asks_name())
            if int(version or 0) == self.version and _text(store) == self.id_prefix:
                return False
        restored = None
        for _ in range(_TRIES):
            begun, taken, known = self._begun, self._taken, self.version
            versions, texts, store = self._read(calls)
            if self.id_prefix not in ("", store) and self.revives and store != restored:
                restored = self._revive(calls)
            elif self._take_all(versions, texts, store, begun, taken, known):
                return True
        raise StoreError("Redis is emptied, or loses its latest writes, again and again; try again")

    def _take_all(
        self,
        versions: dict[str, int],
        texts: dict[str, bytes],
        store: str,
        begun: int,
        taken: int,
        known: int,
    ) -> bool:
        """Apply the result of `_read`; False: read again, as another thread has applied other data meanwhile.

        `begun`, `taken` and `known` (`version`) are the values before the read. Only these distinguish a
        Redis that went back in time from a slow reply.
        """
        version = versions.pop("", 0)
        with self.lock:
            is_older = version < known or store != self.id_prefix
            if begun != self._begun or (is_older and taken != self._taken):
                return False
            if not self.id_prefix:  # a reader
                self.id_prefix = store
            if store != self.id_prefix:
                self._begin_anew()
                self.id_prefix = store
                self.stores += 1
            elif version < known:
                self._begin_anew()  # Redis went back in time: its current state counts
            elif version < self.version:
                return True  # another thread read later and was faster
            for name, data in texts.items():
                if versions[name] > self._documents.get(name, (0, b""))[0]:
                    self._take(name, versions[name], data)
            for name in [name for name in self._documents if name not in versions]:
                self._drop(name)
            if version != self.version:
                self._taken += 1
            self.version = version
        return True

    def _begin_anew(self) -> None:
        """Reset the versions; in another store, the numbers of queues too."""
        self.version = -1  # first: until all is applied, every caller reads again
        # Their data is kept until the new documents are read: a store may be emptied once more before that.
        self._documents = {name: (0, data) for name, (_, data) in self._documents.items()}
        self._begun += 1

    def _asks_name(self) -> tuple[bytes, tuple[Any, ...]]:
        return self.counters_key, ("HGET", self.counters_key, "id_prefix")

    def _read(self, calls: Calls) -> tuple[dict[str, int], dict[str, bytes], str]:
        """The versions of all documents, the documents that are newer than the cached ones, and the name of
        their store."""
        key = self.versions_key
        pairs, found = _replies(calls, (key, ("HGETALL", key)), self._asks_name())
        store = _text(found)
        versions = {name.decode(): int(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        is_same = store == self.id_prefix and versions.get("", 0) >= self.version
        known = self._documents if is_same else {}
        changed = [name for name, value in versions.items() if name and value > known.get(name, (0, b""))[0]]
        if not changed:
            return versions, {}, store
        texts = calls.call(self.docs_key, "HMGET", self.docs_key, *changed, idempotent=True)
        return versions, {n: d for n, d in zip(changed, texts, strict=True) if d is not None}, store

    def _revive(self, calls: Calls) -> str:
        """Restore the cached documents in an emptied store, unless other clients have. Returns the name of
        the store.

        All in one step: other clients see all queues or none, even if the store is emptied again
        meanwhile.
        """
        log.warning("Redis was emptied, or is another one: its queues are made again, empty")
        with self.lock:
            documents, queues = dict(self._documents), dict(self.queues)
        flat: list[bytes | str | int] = []
        for name, (_, data) in documents.items():
            view = queues.get(name.removeprefix(_QUEUE)) if name.startswith(_QUEUE) else None
            if view is not None:
                data = _queue_fields(view)
            flat += (name, int(view is not None), data)
        start = random.randrange(_MAX_START)
        now = self.now_argument()
        found = call_function(calls, self.docs_key, "put_documents", new_prefix(), start, now, *flat)
        return _text(found)

    def _take(self, name: str, version: int, data: bytes) -> None:
        self._documents[name] = (version, data)
        if name.startswith(_QUEUE):
            self._take_queue(name.removeprefix(_QUEUE), version, json.loads(data))
        elif name == _EXCHANGES:
            self.router.load(unpack_value(data))

    def _take_queue(self, name: str, version: int, fields: dict[str, Any]) -> None:
        known = self.queues.get(name)
        settings = QueueSettings.from_json(fields["settings"])
        number = fields["number"]
        if known is not None and known.key == self.key_of(number):  # in the same store, too
            if known.settings != settings:
                known.set_settings(settings)
            known.version = version
            return
        view = CachedQueue(name, number, settings, fields["created_ms"], self.key_of(number))
        view.version = version
        self.queues[name] = self.numbered[number] = view
        if known is not None:
            self._forget(known)  # last: a caller that finds it deleted finds the new one

    def _drop(self, name: str) -> None:
        del self._documents[name]
        if name.startswith(_QUEUE):
            view = self.queues.pop(name.removeprefix(_QUEUE), None)
            if view is not None:
                self._forget(view)
        elif name == _EXCHANGES:
            self.router.load({"exchanges": [], "bindings": []})

    def _forget(self, view: CachedQueue) -> None:
        view.deleted = True
        if self.numbered.get(view.number) is view:  # in another store the number may belong to another queue
            del self.numbered[view.number]

    # -- changing -------------------------------------------------------------------------------

    def put_queue(self, calls: Calls, view: CachedQueue) -> bool:
        """Store the queue as the view has it, unless another client changed it meanwhile."""
        return bool(self.put(calls, _QUEUE + view.name, view.version, _queue_data(view.number, view)))

    def drop_queue(self, calls: Calls, view: CachedQueue) -> None:
        self.put(calls, _QUEUE + view.name, view.version, b"")

    def document(self, calls: Calls, name: str) -> tuple[int, bytes | None]:
        self.refresh(calls)
        return self._documents.get(name, (0, None))

    def put(self, calls: Calls, name: str, version: int, data: bytes) -> int:
        """Store the document if `version` is still the latest; empty data removes it. Returns the new
        version; 0: outdated."""
        now = self.now_argument()
        made = call_function(calls, self.docs_key, "put_document", name, version, data, now, idempotent=False)
        self.refresh(calls, always=True)
        return int(made)

    def change_router(self, calls: Calls, change: Callable[[ExchangeRouter], Result]) -> Result:
        """Apply `change` to a copy; repeated on a newer one if another client changed it meanwhile."""
        for _ in range(_TRIES):
            self.refresh(calls)
            version = self._documents.get(_EXCHANGES, (0, b""))[0]
            before = self.router.dump()
            trial = ExchangeRouter()
            trial.load(before)
            result = change(trial)
            after = trial.dump()
            if after == before or self.put(calls, _EXCHANGES, version, pack_value(after)):
                return result
        raise StoreError("the exchanges are changed by others all the time; try again")

    def next_number(self, calls: Calls) -> tuple[int, int]:
        """A number for a new queue, and until when events are watched."""
        key = self.counters_key
        number, until_ms = _replies(
            calls, (key, ("HINCRBY", key, "queues", 1)), (key, ("HGET", key, "events_watched"))
        )
        return int(number), int(until_ms or 0)

    def watch_events(self, calls: Calls, until_ms: int) -> None:
        """Let queues that are created until then announce their events from the first on."""
        key = self.counters_key
        calls.call(key, "HSET", key, "events_watched", until_ms, idempotent=True, is_confirmed=False)

    def raise_blocks(self, calls: Calls, seq: int) -> None:
        """Ensure that no block with this sequence, or an earlier one, is assigned again."""
        key = self.counters_key
        behind = seq // BLOCK + 1 - int(calls.call(key, "HGET", key, "blocks", idempotent=True) or 0)
        if behind > 0:
            calls.call(key, "HINCRBY", key, "blocks", behind, idempotent=True)

    def next_block(self, calls: Calls, count: int = 1) -> tuple[int, int]:
        """Reserve a block of sequences: the first and the last."""
        blocks = -(-count // BLOCK)
        key = self.counters_key
        last = _FIRST_BLOCK + int(calls.call(key, "HINCRBY", key, "blocks", blocks, idempotent=True))
        return (last - blocks) * BLOCK + 1, last * BLOCK

    def load_prefix(self, calls: Calls, proposal: str) -> str:
        """The name of this store, which is the prefix of all its message ids: the first client chooses it.

        Sequences start at a random number: a receipt from before the store was emptied must not match another
        message.
        """
        key = self.counters_key
        start = random.randrange(_MAX_START)
        replies = _replies(
            calls,
            (key, ("HSETNX", key, "id_prefix", proposal)),
            (key, ("HSETNX", key, "blocks", start)),
            (key, ("HGET", key, "id_prefix")),
        )
        return _text(replies[2])


def _replies(calls: Calls, *commands: tuple[bytes, tuple[Any, ...]]) -> list[Any]:
    """The replies of one round trip; raises the errors of Redis."""
    replies = calls.many(list(commands), idempotent=True)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode()


def _queue_data(number: int, view: CachedQueue) -> bytes:
    return b'{"number": %d, %b' % (number, _queue_fields(view))


def _queue_fields(view: CachedQueue) -> bytes:
    """All fields but the number, which precedes them."""
    fields = {"created_ms": view.created_ms, "settings": view.settings.to_json()}
    return json.dumps(fields).encode()[1:]
