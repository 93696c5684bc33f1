"""Data shared by the servers of one store: documents, heartbeats, and the health of Redis."""

from __future__ import annotations

import contextlib

from ..broker.interface import Health, LossWindow
from ..errors import StoreError
from ..metrics import Family
from .safety import FAULTS, loss_window, loss_window_gauges
from .store import RedisStore

_HEALTH_TIMEOUT_S = 1.0  # a health check answers soon, whatever `reconnect` is
_FORGOTTEN_MS = 3_600_000  # age at which entries of stopped servers are removed


class ServerDirectory:
    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._calls = store.calls
        self._key = self._key_of("servers")

    def _key_of(self, kind: str) -> bytes:
        return f"{self._store.address.prefix}:{{meta}}:{kind}".encode()

    def document(self, name: str) -> tuple[int, bytes | None]:
        return self._store.registry.document(self._calls, name)

    def put_document(self, name: str, version: int, data: bytes) -> int:
        return self._store.registry.put(self._calls, name, version, data)

    def heartbeat(self, server: str, data: bytes, ttl_ms: int, kind: str = "servers") -> None:
        key, until_ms = self._key_of(kind), self._store.server_time_ms() + ttl_ms
        self._calls.call(key, "HSET", key, server, b"%d %b" % (until_ms, data), idempotent=True)

    def servers(self, kind: str = "servers") -> dict[str, bytes]:
        key = self._key_of(kind)
        pairs = self._calls.call(key, "HGETALL", key, idempotent=True)
        now_ms = self._store.server_time_ms()
        alive: dict[str, bytes] = {}
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            until_ms, _, data = value.partition(b" ")
            if int(until_ms) > now_ms:
                alive[name.decode()] = data
            elif int(until_ms) < now_ms - _FORGOTTEN_MS:
                self._calls.call(key, "HDEL", key, name, idempotent=True)
        return alive

    def remove_server(self, server: str, kind: str = "servers") -> None:
        key = self._key_of(kind)
        with contextlib.suppress(StoreError):
            self._calls.call(key, "HDEL", key, server, idempotent=True)

    def roles(self) -> list[str]:
        return ["sweeper"] if self._store.state.is_sweeper else []

    def announce_url(self, url: str) -> None:
        """Does nothing: only a data directory names its server."""

    def health(self) -> Health:
        if self._store.state.closed:
            return Health(False, "closed")
        try:
            info = self._calls.call(self._key, "INFO", "memory", timeout_s=_HEALTH_TIMEOUT_S)
        except StoreError as error:
            return Health(False, str(error))
        fields = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
        max_bytes = int(fields.get(b"maxmemory", 0))
        is_full = bool(max_bytes) and int(fields.get(b"used_memory", 0)) >= max_bytes
        detail = "Redis is full: publishing is refused" if is_full else "redis"
        return Health(not is_full, detail, is_full, self._store.state.damage.reasons())

    def loss_window(self) -> list[LossWindow]:
        report = self._store.state.report
        lines = [] if report is None else loss_window(report)
        return [LossWindow(line.fault, FAULTS[line.fault], line.seconds, line.text) for line in lines]

    def gauges(self) -> list[Family]:
        state = self._store.state
        keys, size = state.kv_totals
        key_values = [
            Family("openq_kv_keys", "gauge", "Keys of all buckets.", [({}, keys)]),
            Family("openq_kv_bytes", "gauge", "Bytes of keys and values.", [({}, size)]),
        ]
        return [
            *key_values,
            *state.damage.families(),
            *([] if state.report is None else loss_window_gauges(state.report)),
            *self._server_gauges(),
        ]

    def _server_gauges(self) -> list[Family]:
        """Of the Redis server that has the list of queues; with a cluster, of one of its nodes."""
        try:
            text = b"\r\n".join(
                self._calls.call(self._key, "INFO", part, timeout_s=_HEALTH_TIMEOUT_S)
                for part in ("memory", "replication")
            )
        except StoreError:
            return []
        fields = dict(line.split(b":", 1) for line in text.splitlines() if b":" in line)
        reached = int(fields.get(b"master_repl_offset", 0))
        lags: list[tuple[dict[str, str], float]] = []
        for at in range(int(fields.get(b"connected_slaves", 0))):
            pairs = dict(
                each.split(b"=", 1) for each in fields.get(b"slave%d" % at, b"").split(b",") if b"=" in each
            )
            address = b"%b:%b" % (pairs.get(b"ip", b""), pairs.get(b"port", b""))
            lags.append(({"replica": address.decode()}, max(0, reached - int(pairs.get(b"offset", 0)))))
        return [
            Family(
                "openq_redis_used_memory_bytes",
                "gauge",
                "Memory that Redis uses.",
                [({}, int(fields.get(b"used_memory", 0)))],
            ),
            Family(
                "openq_redis_memory_limit_bytes",
                "gauge",
                "Memory at which Redis refuses writes (maxmemory); 0: no limit.",
                [({}, int(fields.get(b"maxmemory", 0)))],
            ),
            Family("openq_redis_replicas", "gauge", "Connected replicas of Redis.", [({}, len(lags))]),
            Family(
                "openq_redis_replica_lag_bytes",
                "gauge",
                "Bytes of the replication stream that a replica has not confirmed.",
                lags,
            ),
        ]
