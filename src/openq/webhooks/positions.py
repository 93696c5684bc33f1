"""How far the events of a webhook are delivered: a position in key-values.

It is stored with the version that was read, so of two servers that both believe to own a webhook only one
advances it. The other one notices and stops.
"""

from __future__ import annotations

import msgspec

from ..broker.kv import KeyValues, KvPut
from ..broker.workers import decode
from .model import Webhook
from .store import STATE, get_one, put_one


class WebhookPosition(msgspec.Struct, kw_only=True):
    after: str | None  # the id of the last event that is done; None: from the oldest that is kept
    created_ms: int  # of the webhook: a later one of the same name begins anew


class StoredPosition:
    """Its calls run in threads."""

    def __init__(self, kv: KeyValues, webhook: Webhook) -> None:
        self._kv = kv
        self._key = f"position/{webhook.name}"
        self._webhook = webhook
        self._version = 0

    def load(self) -> str | None:
        entry = get_one(self._kv, STATE, self._key)
        if entry is None:
            return self._webhook.position
        self._version = entry.version
        found = decode(entry.value, WebhookPosition)
        if found is None or found.created_ms != self._webhook.created_ms:
            return self._webhook.position
        return found.after

    def save(self, after: str | None) -> bool:
        """Whether it is still ours to advance."""
        value = msgspec.json.encode(WebhookPosition(after=after, created_ms=self._webhook.created_ms))
        version = put_one(self._kv, STATE, KvPut(self._key, value, None, self._version))
        if version is None:
            return False
        self._version = version
        return True
