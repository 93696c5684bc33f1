"""The audit log of a store: a stream that all servers share.

The number of a record is its id in the stream. Redis refuses an id that is not greater than the last one, so
of two servers that add the same number one is refused, reads the newer record and tries again: the chain of
hashes has one order without a lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..broker.audit import FIRST_HASH, AuditEntry, AuditLimits, AuditRecord, AuditUnavailable, parse, seal
from ..errors import StoreError
from .store import RedisStore

_PAGE = 500
_TRIES = 100
_TRIM_EVERY = 100  # records
_FIELD = "record"
_TOO_SMALL = "equal or smaller"  # of Redis's answer to an id that exists


class RedisAudit:
    def __init__(self, store: RedisStore) -> None:
        self._calls = store.calls
        self._now_ms = store.now_ms
        self._key = f"{store.address.prefix}:{{meta}}:audit".encode()
        self.limits = AuditLimits()

    def append(self, entries: Sequence[AuditEntry]) -> None:
        try:
            for entry in entries:
                number = self._add(entry)
                if number % _TRIM_EVERY == 0:
                    self._trim()
        except StoreError as error:
            raise AuditUnavailable(f"the audit log in Redis: {error}") from error

    def _add(self, entry: AuditEntry) -> int:
        sent = b""
        for _ in range(_TRIES):
            last = self._last()
            if last is not None and last[1] == sent:
                return last[0].number  # the answer was lost
            number, previous = (1, FIRST_HASH) if last is None else (last[0].number + 1, last[0].hash)
            sent = seal(number, previous, entry)
            try:
                self._calls.call(self._key, "XADD", self._key, f"{number}-0", _FIELD, sent)
            except StoreError as error:
                if _TOO_SMALL not in str(error):
                    raise
                continue
            return number
        raise StoreError("other servers write all the time; try again")

    def _last(self) -> tuple[AuditRecord, bytes] | None:
        found = self._calls.call(self._key, "XREVRANGE", self._key, "+", "-", "COUNT", 1, idempotent=True)
        if not found:
            return None
        id, fields = found[0]
        try:
            return parse(fields[1]), fields[1]
        except ValueError:  # somebody has changed the stream: `verify` reports it
            return AuditRecord(int(id.partition(b"-")[0]), _NOBODY, "", ""), fields[1]

    def newest(self) -> AuditRecord | None:
        try:
            last = self._last()
        except StoreError as error:
            raise AuditUnavailable(f"the audit log in Redis: {error}") from error
        return None if last is None else last[0]

    def lines(self, after: int = 0) -> Iterator[bytes]:
        start = f"({after}-0" if after else "-"
        while True:
            try:
                page = self._calls.call(
                    self._key, "XRANGE", self._key, start, "+", "COUNT", _PAGE, idempotent=True
                )
            except StoreError as error:
                raise AuditUnavailable(f"the audit log in Redis: {error}") from error
            for _, fields in page:
                yield fields[1]
            if len(page) < _PAGE:
                return
            start = "(" + page[-1][0].decode()

    def _trim(self) -> None:
        call = self._calls.call
        size = call(self._key, "MEMORY", "USAGE", self._key, idempotent=True) or 0
        count = call(self._key, "XLEN", self._key, idempotent=True) or 1
        if size > self.limits.max_bytes:
            kept = int(count * self.limits.max_bytes / size)
            call(self._key, "XTRIM", self._key, "MAXLEN", max(1, kept), idempotent=True)
        oldest_ms = self._now_ms() - self.limits.max_age_ms
        for line in self.lines():
            record = parse(line)
            if record.entry.time_ms >= oldest_ms:
                call(self._key, "XTRIM", self._key, "MINID", f"{record.number}-0", idempotent=True)
                return


_NOBODY = AuditEntry(0, "", "", "", "", "", "")
