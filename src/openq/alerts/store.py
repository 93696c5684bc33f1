"""Alerts in the key-values of the broker, in a reserved bucket. Nothing here is secret.

openq.server.alerts   state           the alerts of the store, one document
                      server/NAME     the alerts of one server, one document, with a TTL
                      rule/NAME       a rule that was changed over REST
                      silence/ID      a silence, with a TTL
                      history/TIME    one change of an alert, with a TTL
                      owner/alerts    the server that evaluates; see `webhooks/owners.py`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..broker.kv import SERVER_BUCKETS, KeyValues, KvConflict, KvPut
from ..broker.workers import decode
from ..errors import OpenQError
from .model import Alert, HistoryEntry, Silence

BUCKET = SERVER_BUCKETS + "alerts"
STATE = "state"
SERVER = "server/"
SERVER_TTL_MS = 86_400_000
HISTORY_TTL_MS = 30 * 86_400_000
MAX_HISTORY = 2_000
_PRUNE_EVERY = 200


class StateLost(OpenQError):
    """Another server has taken over."""

    code = "alert_state_lost"


class StateDocument(msgspec.Struct, kw_only=True):
    alerts: list[Alert] = []
    replicas_seen: int = 0
    evaluated_ms: int = 0
    evaluator: str = ""


class AlertStore:
    """Its calls may read the disk or Redis: they run in threads."""

    def __init__(self, kv: KeyValues) -> None:
        self._kv = kv
        self._written = 0

    # -- state ----------------------------------------------------------------------------------

    def load(self, key: str) -> tuple[StateDocument, int]:
        """The document and its version; an empty one if there is none, or if it cannot be read."""
        [entry] = self._kv.get_many(BUCKET, [key])
        self._kv.load([entry])
        found = None if entry is None else decode(entry.value, StateDocument)
        return found or StateDocument(), 0 if entry is None else entry.version

    def save(self, key: str, document: StateDocument, version: int, ttl_ms: int | None = None) -> int:
        """Returns the new version. Raises StateLost if another server has changed the document."""
        put = KvPut(key, msgspec.json.encode(document), ttl_ms, version)
        [result] = self._kv.put_many(BUCKET, [put])
        if isinstance(result, KvConflict):
            raise StateLost("another server evaluates the alerts now")
        if isinstance(result, OpenQError):
            raise result
        return result

    def servers(self) -> list[StateDocument]:
        """The documents of all servers."""
        return [found for _, found in self._listed(SERVER, StateDocument)]

    # -- rules and silences -----------------------------------------------------------------------

    def rules(self) -> dict[str, dict[str, Any]]:
        """Changed rules: the fields of each, as `tables.read_rule` reads them."""
        return {key.removeprefix("rule/"): value for key, value in self._listed("rule/", dict[str, Any])}

    def put_rule(self, name: str, fields: dict[str, Any]) -> None:
        self._put(KvPut(f"rule/{name}", msgspec.json.encode(fields)))

    def delete_rule(self, name: str) -> bool:
        return self._kv.delete_many(BUCKET, [f"rule/{name}"])[0]

    def silences(self) -> list[Silence]:
        return [silence for _, silence in self._listed("silence/", Silence)]

    def put_silence(self, silence: Silence, now_ms: int) -> None:
        ttl_ms = max(1, silence.until_ms - now_ms)
        self._put(KvPut(f"silence/{silence.id}", msgspec.json.encode(silence), ttl_ms))

    def delete_silence(self, silence_id: str) -> bool:
        return self._kv.delete_many(BUCKET, [f"silence/{silence_id}"])[0]

    # -- history ----------------------------------------------------------------------------------

    def add_history(self, entries: Sequence[HistoryEntry]) -> None:
        for entry in entries:
            key = f"history/{entry.time_ms:015d}-{entry.id}-{entry.state}"
            self._put(KvPut(key, msgspec.json.encode(entry), HISTORY_TTL_MS))
        before, self._written = self._written, self._written + len(entries)
        if before // _PRUNE_EVERY != self._written // _PRUNE_EVERY:
            keys = [key for key, _ in self._listed("history/", msgspec.Raw)]
            for start in range(0, len(keys) - MAX_HISTORY, 500):
                self._kv.delete_many(BUCKET, keys[start : min(start + 500, len(keys) - MAX_HISTORY)])

    def history(self) -> list[HistoryEntry]:
        """The newest first."""
        found = [entry for _, entry in self._listed("history/", HistoryEntry)]
        found.reverse()
        return found

    # -- inside -----------------------------------------------------------------------------------

    def _listed(self, prefix: str, kind: Any) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        after = ""
        while page := self._kv.list(BUCKET, prefix, after):
            self._kv.load(page)
            for entry in page:
                value = decode(entry.value, kind)
                if value is not None:
                    found.append((entry.key, value))
            after = page[-1].key
        return found

    def _put(self, put: KvPut) -> None:
        [result] = self._kv.put_many(BUCKET, [put])
        if isinstance(result, OpenQError):
            raise result
