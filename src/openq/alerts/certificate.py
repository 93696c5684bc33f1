"""When a certificate ends, read from its PEM file. The standard library has no public function for it."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x17, 0x18, 0xA0


def end_of_certificate(pem: bytes) -> float:
    """Seconds since the epoch: the earliest end of the chain. Raises ValueError."""
    ends = [_end(base64.b64decode(b"".join(found.split()))) for found in _PEM.findall(pem)]
    if not ends:
        raise ValueError("no certificate in PEM")
    return min(ends)


def _end(der: bytes) -> float:
    """Certificate ::= SEQUENCE { tbs SEQUENCE { [version], serial, algorithm, issuer, validity ... } ... }"""
    certificate = _contents(der, 0)
    tbs = _contents(der, certificate[0])
    at = tbs[0]
    if der[at] == _VERSION:
        at = _contents(der, at)[1]
    for _ in range(3):  # serial, algorithm, issuer
        at = _contents(der, at)[1]
    start, _ = _contents(der, at)
    _, begin_end = _contents(der, start)
    kind = der[begin_end]
    first, last = _contents(der, begin_end)
    text = der[first:last].decode("ascii")
    if kind == _UTC_TIME:  # two digits of the year, from 1950 to 2049
        text = ("19" if text >= "5" else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("a certificate without an end")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _contents(der: bytes, at: int) -> tuple[int, int]:
    """Where the contents of the element at this place begin and end."""
    try:
        size = der[at + 1]
        start = at + 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(der[start : start + count], "big")
            start += count
    except IndexError:
        raise ValueError("a certificate that is cut off") from None
    if start + size > len(der):
        raise ValueError("a certificate that is cut off")
    return start, start + size
