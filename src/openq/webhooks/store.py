"""Webhooks in the key-values of the broker: records, owners, positions and the delivery log.

The buckets are reserved: the API of key-values does not reach them. The records contain secrets.

    openq.server.webhooks       name -> Webhook
    openq.server.webhook-state  owner/NAME -> Owner, with a TTL; position/NAME -> Position
    openq.server.webhook-log    NAME/TIME -> a part of the delivery log, with a TTL
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from ..broker.kv import KeyValues, KvConflict, KvEntry, KvPut
from ..broker.workers import decode, list_values
from ..errors import OpenQError, WebhookNotFound
from .model import Webhook

RECORDS, STATE, LOG = "openq.server.webhooks", "openq.server.webhook-state", "openq.server.webhook-log"


class Stored(NamedTuple):
    webhook: Webhook
    version: int


class WebhookStore:
    """Its calls may read the disk or Redis: they run in threads."""

    def __init__(self, kv: KeyValues) -> None:
        self._kv = kv

    def get(self, name: str) -> Webhook:
        return self._stored(name).webhook

    def find(self, name: str) -> Webhook | None:
        try:
            return self.get(name)
        except WebhookNotFound:
            return None

    def list(self) -> list[Stored]:
        """In the order of their names."""
        found: list[Stored] = []
        after = ""
        while page := self._kv.list(RECORDS, "", after):
            self._kv.load(page)
            for entry in page:
                webhook = decode(entry.value, Webhook)
                if webhook is not None:
                    found.append(Stored(webhook, entry.version))
            after = page[-1].key
        return found

    def change(self, name: str, change: Callable[[Webhook | None], Webhook]) -> Webhook:
        """Replace a record by what `change` makes of it; None: there was none. Repeated after a conflict."""
        while True:
            try:
                stored = self._stored(name)
                known: Webhook | None = stored.webhook
                version = stored.version
            except WebhookNotFound:
                known, version = None, 0
            changed = change(known)
            if changed == known:
                return changed
            put = KvPut(name, msgspec.json.encode(changed), None, version)
            if put_one(self._kv, RECORDS, put) is not None:
                return changed

    def delete(self, name: str) -> None:
        [is_deleted] = self._kv.delete_many(RECORDS, [name])
        if not is_deleted:
            raise WebhookNotFound(name)
        self._kv.delete_many(STATE, [f"owner/{name}", f"position/{name}"])
        keys = [key for key, _ in list_values(self._kv, LOG, msgspec.Raw) if key.rpartition("/")[0] == name]
        while keys:
            self._kv.delete_many(LOG, keys[:500])
            keys = keys[500:]

    def _stored(self, name: str) -> Stored:
        entry = get_one(self._kv, RECORDS, name)
        webhook = None if entry is None else decode(entry.value, Webhook)
        if entry is None or webhook is None:
            raise WebhookNotFound(name)
        return Stored(webhook, entry.version)


def get_one(kv: KeyValues, bucket: str, key: str) -> KvEntry | None:
    [entry] = kv.get_many(bucket, [key])
    kv.load([entry])
    return entry


def put_one(kv: KeyValues, bucket: str, put: KvPut) -> int | None:
    """The new version; None if the key has another version than the expected one."""
    [result] = kv.put_many(bucket, [put])
    if isinstance(result, KvConflict):
        return None
    if isinstance(result, OpenQError):
        raise result
    return result


def pages_of(kv: KeyValues, bucket: str, prefix: str) -> Iterator[KvEntry]:
    after = ""
    while page := kv.list(bucket, prefix, after):
        kv.load(page)
        yield from page
        after = page[-1].key
