"""What all clients of a store share: queues and their settings, exchanges, documents. Kept here as a cache.

Every document has a version that is never used again. A change is made by whoever still knows the latest
version, so two servers never overwrite each other; the others hear of it and look again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from ..engine.queue import is_simple
from ..engine.records import pack_value, unpack_value
from ..engine.routing import Router
from ..errors import StoreError
from ..model import QueueSettings
from .calls import Calls
from .library import call_function

Result = TypeVar("Result")

_QUEUE = "queue/"
_EXCHANGES = "exchanges"
_TRIES = 50
BLOCK = 1 << 20  # sequences that a queue gets at a time
# Of 13 digits from the first on: Redis sorts what is due at once as text, and so keeps it in order.
_FIRST_BLOCK = 1 << 20


class QueueView:
    """One queue as this process knows it. `settings` is the same object until they change."""

    __slots__ = ("created_ms", "deleted", "fifo", "key", "name", "number", "settings", "simple", "version")

    def __init__(self, name: str, number: int, settings: QueueSettings, created_ms: int, key: bytes) -> None:
        self.name = name
        self.number = number
        self.created_ms = created_ms
        self.key = key
        self.deleted = False
        self.version = 0
        self.set_settings(settings)

    def set_settings(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.fifo = settings.fifo
        self.simple = is_simple(settings)


class Registry:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.docs_key = f"{prefix}:{{meta}}:docs".encode()
        self.versions_key = self.docs_key + b"v"
        self.counters_key = f"{prefix}:{{meta}}:counters".encode()
        self.queues: dict[str, QueueView] = {}
        self.numbered: dict[int, QueueView] = {}
        self.router = Router()
        self.version = -1
        self.id_prefix = ""
        self._documents: dict[str, tuple[int, bytes]] = {}

    def key_of(self, number: int) -> bytes:
        """With a piece of the store's own name: one that was emptied begins to count anew, and who knows its
        queues from before must not meet others under their numbers."""
        return f"{self.prefix}:{{{self.id_prefix[:6]}.{number}}}:q".encode()

    # -- looking --------------------------------------------------------------------------------

    def is_current(self, calls: Calls) -> bool:
        found = calls.call(self.versions_key, "HGET", self.versions_key, "", idempotent=True)
        return int(found or 0) == self.version

    def refresh(self, calls: Calls, *, always: bool = False) -> bool:
        """Whether anything was new. May run several times at once: only newer versions count."""
        if not always and self.is_current(calls):
            return False
        if not self.id_prefix:  # of one who only reads
            found = calls.call(self.counters_key, "HGET", self.counters_key, "id_prefix", idempotent=True)
            self.id_prefix = "" if found is None else found.decode()
        key = self.versions_key
        pairs = calls.call(key, "HGETALL", key, idempotent=True)
        versions = {name.decode(): int(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        version = versions.pop("", 0)
        if version < self.version:
            # Redis went back in time, or was emptied: what it says now is what counts.
            self._documents = dict.fromkeys(self._documents, (0, b""))
            self.version = -1
        changed = [name for name, value in versions.items() if value > self._documents.get(name, (0, b""))[0]]
        texts: list[bytes | None] = []
        if changed:
            texts = calls.call(self.docs_key, "HMGET", self.docs_key, *changed, idempotent=True)
        # From here on nothing waits, so nobody sees half of it.
        for name, data in zip(changed, texts, strict=True):
            if data is not None and versions[name] > self._documents.get(name, (0, b""))[0]:
                self._take(name, versions[name], data)
        if version >= self.version:
            for name in [name for name in self._documents if name not in versions]:
                self._drop(name)
            self.version = version
        return True

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
        if known is not None and known.number == number:
            if known.settings != settings:
                known.set_settings(settings)
            known.version = version
            return
        if known is not None:
            known.deleted = True
            self.numbered.pop(known.number, None)
        view = QueueView(name, number, settings, fields["created_ms"], self.key_of(number))
        view.version = version
        self.queues[name] = self.numbered[number] = view

    def _drop(self, name: str) -> None:
        del self._documents[name]
        if name.startswith(_QUEUE):
            view = self.queues.pop(name.removeprefix(_QUEUE), None)
            if view is not None:
                view.deleted = True
                self.numbered.pop(view.number, None)
        elif name == _EXCHANGES:
            self.router.load({"exchanges": [], "bindings": []})

    # -- changing -------------------------------------------------------------------------------

    def put_queue(self, calls: Calls, view: QueueView) -> bool:
        """As it stands in the view, if nobody changed it meanwhile."""
        fields = {
            "number": view.number,
            "created_ms": view.created_ms,
            "settings": view.settings.to_json(),
        }
        return bool(self.put(calls, _QUEUE + view.name, view.version, json.dumps(fields).encode()))

    def drop_queue(self, calls: Calls, view: QueueView) -> None:
        self.put(calls, _QUEUE + view.name, view.version, b"")

    def document(self, calls: Calls, name: str) -> tuple[int, bytes | None]:
        self.refresh(calls)
        return self._documents.get(name, (0, None))

    def put(self, calls: Calls, name: str, version: int, data: bytes) -> int:
        """Only if `version` is still the latest; no data removes it. The new version; 0: outrun."""
        made = call_function(calls, self.docs_key, "put_document", name, version, data, idempotent=False)
        self.refresh(calls, always=True)
        return int(made)

    def change_router(self, calls: Calls, change: Callable[[Router], Result]) -> Result:
        """`change` is tried on a copy, and again on a newer one if somebody was faster."""
        for _ in range(_TRIES):
            self.refresh(calls)
            version = self._documents.get(_EXCHANGES, (0, b""))[0]
            before = self.router.dump()
            trial = Router()
            trial.load(before)
            result = change(trial)
            after = trial.dump()
            if after == before or self.put(calls, _EXCHANGES, version, pack_value(after)):
                return result
        raise StoreError("the exchanges are changed by others all the time; try again")

    def next_number(self, calls: Calls) -> int:
        return int(calls.call(self.counters_key, "HINCRBY", self.counters_key, "queues", 1, idempotent=True))

    def look_at_store(self, calls: Calls, proposal: str) -> tuple[list[QueueView], dict[str, Any]] | None:
        """If it is another one than before, emptied or exchanged: queues and exchanges that it had."""
        before = self.id_prefix
        if self.load_prefix(calls, proposal) == before:
            return None
        views, wiring = list(self.queues.values()), self.router.dump()
        for view in views:
            view.deleted = True
        self.queues.clear()
        self.numbered.clear()
        self._documents.clear()
        self.router.load({"exchanges": [], "bindings": []})
        self.version = -1
        self.refresh(calls, always=True)
        return views, wiring

    def raise_blocks(self, calls: Calls, seq: int) -> None:
        """No block that holds this sequence, or one before it, is given out again."""
        key = self.counters_key
        behind = seq // BLOCK + 1 - int(calls.call(key, "HGET", key, "blocks", idempotent=True) or 0)
        if behind > 0:
            calls.call(key, "HINCRBY", key, "blocks", behind, idempotent=True)

    def next_block(self, calls: Calls, count: int = 1) -> tuple[int, int]:
        """First and last of sequences that nobody else has."""
        blocks = -(-count // BLOCK)
        key = self.counters_key
        last = _FIRST_BLOCK + int(calls.call(key, "HINCRBY", key, "blocks", blocks, idempotent=True))
        return (last - blocks) * BLOCK + 1, last * BLOCK

    def load_prefix(self, calls: Calls, proposal: str) -> str:
        """Of the ids of all messages in this store: the first client chooses it."""
        key = self.counters_key
        replies = calls.many(
            [
                (key, ("HSETNX", key, "id_prefix", proposal)),
                (key, ("HGET", key, "id_prefix")),
            ],
            idempotent=True,
        )
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        self.id_prefix = replies[1].decode()
        return self.id_prefix
