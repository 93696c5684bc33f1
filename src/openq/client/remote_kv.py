"""Key-values behind a server: the calls of `KeyValues` over its REST API, and waiting by long polls."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from ..broker.kv import (
    MAX_BATCH,
    BucketInfo,
    KeyValues,
    KvConflict,
    KvEntry,
    KvPut,
    KvWaiter,
    check_key,
    check_put,
)
from ..errors import OpenQError
from .connections import PollConnection
from .documents import Document, parse_error
from .http import HttpClient, Refused
from .interface import OnlyInProcess
from .kv_waiting import KvWait
from .rest_client import path_part
from .server_api import ServerApi
from .times import moment_ms
from .waiting import WaitRegistry

POLL_S = 20.0  # one long poll; a longer wait is several


class RemoteKeyValues:
    def __init__(self, api: ServerApi) -> None:
        self._api = api
        self.sleep = api.sleep

    def _post(self, bucket: str, verb: str, body: object, idempotent: bool, what: str = "it was done") -> Any:
        path = f"kv/{path_part(bucket)}/{verb}"
        return self._api.call("POST", path, body, queue=bucket, idempotent=idempotent, what=what).value

    def get_many(self, bucket: str, keys: Sequence[str]) -> builtins.list[KvEntry | None]:
        found: builtins.list[KvEntry | None] = []
        while len(found) < len(keys):
            some = keys[len(found) : len(found) + MAX_BATCH]
            reply = self._post(bucket, "get", {"keys": some}, True)
            found += [None if each is None else _entry(each) for each in reply["entries"]]
        return found

    def put_many(self, bucket: str, puts: Sequence[KvPut]) -> builtins.list[int | OpenQError]:
        results: builtins.list[int | OpenQError] = []
        sent: builtins.list[tuple[int, KvPut]] = []
        for i, put in enumerate(puts):
            results.append(0)
            try:
                check_put(put)
                sent.append((i, put))
            except OpenQError as error:
                results[i] = error
        if sent:
            documents = [_put_document(put) for _, put in sent]
            # A second put of the same value does no harm, unless the first one changed what it expects.
            idempotent = all(put.version is None for _, put in sent)
            what = "it was put: without a version it would have been sent again by itself"
            reply = self._post(bucket, "put", {"puts": documents}, idempotent, what)
            for (i, put), outcome in zip(sent, reply["results"], strict=True):
                results[i] = _outcome(bucket, put.key, outcome)
        return results

    def delete_many(
        self, bucket: str, keys: Sequence[str], versions: Sequence[int] | None = None
    ) -> builtins.list[bool]:
        for key in keys:
            check_key(key)
        body: Document = {"keys": keys}
        if versions is not None:
            body["versions"] = versions
        deleted: builtins.list[bool] = self._post(bucket, "delete", body, True)["deleted"]
        return deleted

    def list(
        self, bucket: str, prefix: str = "", after: str = "", limit: int = 1000
    ) -> builtins.list[KvEntry]:
        query = urlencode({"prefix": prefix, "after": after, "limit": min(limit, MAX_BATCH)})
        path = f"kv/{path_part(bucket)}?{query}"
        page = self._api.call("GET", path, queue=bucket, idempotent=True).value
        return [_entry(each) for each in page["entries"]]

    def buckets(self) -> builtins.list[BucketInfo]:
        reply = self._api.call("GET", "kv", idempotent=True).value
        return [BucketInfo(each["name"], each["keys"], each["bytes"]) for each in reply["buckets"]]

    def poll(
        self,
        bucket: str,
        key: str,
        version: int,
        wait_s: float,
        on_connection: Callable[[HttpClient | None], bool] | None = None,
    ) -> KvEntry | None:
        """One long poll."""
        reply = self._api.call(
            "POST",
            f"kv/{path_part(bucket)}/wait",
            {"key": key, "version": version, "wait": wait_s},
            queue=bucket,
            idempotent=True,
            wait_s=wait_s,
            on_connection=on_connection,
        )
        entry = None if reply.value is None else reply.value["entry"]
        return None if entry is None else _entry(entry)

    def add_waiter(self, waiter: KvWaiter, version: int = 0) -> KvEntry | None:
        raise OnlyInProcess("waiters are called in the process of the broker; clients over the network poll")

    def remove_waiter(self, waiter: KvWaiter) -> bool:
        return False

    def load(self, entries: Sequence[KvEntry | None]) -> None:
        """The server answers with what is on its disk."""


class LongPollKvWait(KvWait):
    """A wait of a thread: one long poll after the other."""

    _kv: RemoteKeyValues

    def __init__(self, kv: KeyValues, bucket: str, key: str, version: int, waits: WaitRegistry) -> None:
        super().__init__(kv, bucket, key, version, waits)
        self._connection = PollConnection()

    def _wait(self, deadline: float | None) -> KvEntry | None:
        while True:
            started = time.monotonic()
            left_s = POLL_S if deadline is None else min(max(deadline - started, 0.0), POLL_S)
            entry = self._kv.poll(self._bucket, self._key, self._version, left_s, self._connection.use)
            now = time.monotonic()
            if entry is not None or self._ended or (deadline is not None and now >= deadline):
                return entry
            if now - started < left_s / 2:
                self._kv.sleep(0.05)  # an early empty response: the server is about to stop

    def end(self) -> None:
        self._ended = True
        self._connection.end()


def _put_document(put: KvPut) -> Document:
    document: Document = {"key": put.key, "value": put.value}
    if put.ttl_ms is not None:
        document["ttl"] = put.ttl_ms / 1000
    if put.version is not None:
        document["version"] = put.version
    return document


def _outcome(bucket: str, key: str, outcome: Document) -> int | OpenQError:
    if "version" in outcome:
        version: int = outcome["version"]
        return version
    if outcome["code"] == KvConflict.code:
        return KvConflict(bucket, key, outcome["current"])
    return parse_error(Refused(0, outcome["code"], outcome.get("detail", "")), bucket)


def _entry(document: Document) -> KvEntry:
    expires = document["expires"]
    return KvEntry(
        document["key"],
        document["value"],
        document["version"],
        moment_ms(document["changed"], "changed"),
        0 if expires is None else moment_ms(expires, "expires"),
    )
