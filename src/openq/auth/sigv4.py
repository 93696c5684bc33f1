"""Verification of AWS Signature Version 4. Pure: raw parts of a request and the time in, the signer out.

The canonical request is built from the received bytes, never from decoded values, so that what was signed is
what is executed. Requests that could be changed without breaking the signature (an unsigned `host` or
`x-amz-*` header, an unsigned body) are rejected, though AWS accepts some.

The most frequent request, in header form, costs one hash of the body, one of the canonical request and one
HMAC.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from operator import itemgetter
from time import gmtime, strftime
from typing import Protocol, TypeVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

from .errors import InvalidSignature

Headers = Sequence[tuple[bytes, bytes]]

ALGORITHM = b"AWS4-HMAC-SHA256"
SERVICE = b"sqs"
TERMINATOR = b"aws4_request"
MAX_SKEW_S = 15 * 60
MAX_EXPIRES_S = 7 * 24 * 3600
EMPTY_SHA256 = sha256(b"").hexdigest().encode()

# Enough for every real scope; bounds the memory of the cache.
_MAX_AUTHORIZATION = 4096
_MAX_CACHED = 1024
_MAX_NAME = 100  # of a cached header
_UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_PLAIN_PATH = _UNRESERVED + b"/"
_PLAIN_QUERY = _UNRESERVED + b"%=&"
_QUERY_NAMES = (
    b"X-Amz-Algorithm",
    b"X-Amz-Credential",
    b"X-Amz-Date",
    b"X-Amz-Expires",
    b"X-Amz-SignedHeaders",
    b"X-Amz-Security-Token",
    b"X-Amz-Signature",
)


class _Hash(Protocol):
    def copy(self) -> _Hash: ...
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """An access key, for verification."""

    access_key: str
    secret: str = field(repr=False)
    # SHA-256 of the session token of this key; None for a permanent key.
    token_hash: bytes | None = field(default=None, repr=False)
    expires_s: float | None = None


class Signed:
    """A request with a valid signature: its access key and region."""

    __slots__ = ("access_key", "presigned", "region", "signed_s")

    def __init__(self, access_key: str, region: str, signed_s: int, presigned: bool) -> None:
        self.access_key = access_key
        self.region = region
        self.signed_s = signed_s
        self.presigned = presigned

    def __repr__(self) -> str:
        return f"Signed({self.access_key!r}, {self.region!r}, {self.signed_s}, presigned={self.presigned})"


# Signed headers whose values are checked for every request.
_SIGNED_FIELDS = frozenset((b"x-amz-content-sha256", b"x-amz-security-token"))


class _Scope:
    """The part of a signature that a client repeats all day, parsed."""

    __slots__ = (
        "access_key",
        "date",
        "harmless",
        "lines",
        "region",
        "scope",
        "signed_headers",
        "values_of",
        "wanted",
    )

    def __init__(self, credential: bytes, signed_headers: bytes) -> None:
        parts = credential.split(b"/")
        if len(parts) != 5:
            raise _incomplete(
                "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term"
            )
        key, date, region, service, terminator = parts
        if service != SERVICE:
            raise _mismatch("Credential should be scoped to correct service: 'sqs'.")
        if terminator != TERMINATOR:
            raise _mismatch("Credential should be scoped with a valid terminator: 'aws4_request'.")
        if not key or not region or len(region) > 64:
            raise _mismatch("Credential should be scoped to a valid region.")
        if len(date) != 8 or not date.isdigit():
            raise _mismatch("Date in Credential scope must be in the format YYYYMMDD.")
        names = signed_headers.split(b";")
        # Sorted, lower case, each once: the canonical form is the only one, so that no two spellings pass.
        if names != sorted(set(names)) or signed_headers != signed_headers.lower() or b"" in names:
            raise _incomplete("SignedHeaders must be lower case names, sorted, each of them once.")
        if b"host" not in names:
            raise _mismatch("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.")
        try:
            self.access_key = key.decode("ascii")
            self.region = region.decode("ascii")
        except UnicodeDecodeError:
            raise _incomplete("Credential must be ASCII.") from None
        self.date = date
        self.scope = b"/".join(parts[1:])
        self.signed_headers = signed_headers
        self.wanted = frozenset(names)
        # Header names seen with a valid signature: signed, or exempt from signing.
        self.harmless: set[bytes] = set()
        # The canonical headers in two steps of C: pick the values in order, fill them in.
        self.values_of: Callable[[dict[bytes, bytes]], object] = itemgetter(*names)
        self.lines = b"\n".join([name.replace(b"%", b"%%") + b":%b" for name in names])


class Verifier:
    """Verifies signatures with the keys of `secret_of`.

    `accepted_hosts` are public names of this server behind a proxy that changes `Host`; signatures for them
    are valid too. `X-Forwarded-Host` is never trusted.
    """

    def __init__(
        self, secret_of: Callable[[str], KeyInfo | None], accepted_hosts: Sequence[str] = ()
    ) -> None:
        self._secret_of = secret_of
        self._accepted_hosts = [host.encode("latin-1") for host in accepted_hosts]
        self._scopes: dict[bytes, _Scope] = {}
        self._keys: dict[tuple[str, bytes], tuple[_Hash, _Hash]] = {}
        self._times: dict[bytes, int] = {}

    def verify_fast(self, target: bytes, given: dict[bytes, bytes], body: bytes, now_s: float) -> str | None:
        """The fast path: the access key of a POST to `/` in a known form, if its signature is valid.

        None is not a rejection: `verify` decides. The check is the same, with everything cached that does not
        change between the requests of a client.
        """
        authorization = given.get(b"authorization", b"")
        scope = self._scopes.get(authorization[:-64])
        timestamp = given.get(b"x-amz-date", b"")
        signed_s = self._times.get(timestamp)
        if (
            scope is None
            or signed_s is None
            or target != b"/"
            or not -MAX_SKEW_S <= now_s - signed_s <= MAX_SKEW_S
            or scope.date != timestamp[:8]
            or not scope.harmless.issuperset(given)
            or self._accepted_hosts
        ):
            return None
        info = self._secret_of(scope.access_key)
        if info is None or info.token_hash is not None or info.expires_s is not None:
            return None
        halves = self._keys.get((info.secret, scope.scope))
        try:
            lines = scope.lines % scope.values_of(given)
        except KeyError:
            return None  # a header that was signed before is missing
        if halves is None or b"  " in lines or b": " in lines or b" \n" in lines or b"\t" in lines:
            return None
        digest = sha256(body).hexdigest().encode()
        canonical = sha256(b"POST\n/\n\n%b\n\n%b\n%b" % (lines, scope.signed_headers, digest))
        inner, outer = halves[0].copy(), halves[1].copy()
        inner.update(
            b"AWS4-HMAC-SHA256\n%b\n%b\n%b" % (timestamp, scope.scope, canonical.hexdigest().encode())
        )
        outer.update(inner.digest())
        holds = hmac.compare_digest(outer.hexdigest().encode(), authorization[-64:])
        return scope.access_key if holds else None

    def verify(self, method: str, target: bytes, headers: Headers, body: bytes, now_s: float) -> Signed:
        """The signer of a request; raises InvalidSignature. Header names must be in lower case."""
        given = dict(headers)
        if len(given) != len(headers):
            given = {}
            for name, value in headers:
                value = b" ".join(value.split())
                given[name] = given[name] + b"," + value if name in given else value
        path, _, query = target.partition(b"?")
        authorization = given.get(b"authorization")
        if authorization is not None and authorization[:5] == b"AWS4-":
            return self._by_header(method, path, query, given, body, now_s, authorization)
        if b"X-Amz-Signature=" in query or b"X-Amz-Credential=" in query or b"X-Amz-Algorithm=" in query:
            return self._by_query(method, path, query, given, body, now_s)
        raise InvalidSignature("MissingAuthenticationToken", "Request is missing Authentication Token")

    def _by_header(
        self,
        method: str,
        path: bytes,
        query: bytes,
        given: dict[bytes, bytes],
        body: bytes,
        now_s: float,
        authorization: bytes,
    ) -> Signed:
        prefix = authorization[:-64]
        signature = authorization[-64:]
        known = self._scopes.get(prefix)
        if known is not None:
            scope = known
        else:
            scope, signature = _parse_authorization(authorization)
        timestamp = given.get(b"x-amz-date")
        if timestamp is None:
            timestamp = _timestamp_of_date(given.get(b"date"))
        signed_s = self._time_of(timestamp)
        if not -MAX_SKEW_S <= now_s - signed_s <= MAX_SKEW_S:
            raise _skewed(signed_s, now_s)
        token = given.get(b"x-amz-security-token")
        self._check_signature(scope, signature, method, path, query, given, body, timestamp, token, now_s)
        if known is not None and len(known.harmless) < _MAX_CACHED:
            # All `x-amz-` headers of this request are signed, and its signature is valid.
            known.harmless.update(name for name in given.keys() - _SIGNED_FIELDS if len(name) <= _MAX_NAME)
        # Only valid signatures are cached: invalid requests cannot evict entries.
        if known is None and prefix[-10:] == b"Signature=" and signature == authorization[-64:]:
            _cache(self._scopes, prefix, scope)
        return Signed(scope.access_key, scope.region, signed_s, False)

    def _by_query(
        self,
        method: str,
        path: bytes,
        query: bytes,
        given: dict[bytes, bytes],
        body: bytes,
        now_s: float,
    ) -> Signed:
        values: dict[bytes, bytes] = {}
        rest: list[bytes] = []
        for pair in query.split(b"&"):
            name, _, value = pair.partition(b"=")
            if name in _QUERY_NAMES:
                if name in values:
                    raise _incomplete(f"{name.decode()} must appear only once.")
                values[name] = unquote_to_bytes(value)
            if name != b"X-Amz-Signature":
                rest.append(pair)
        missing = [n.decode() for n in _QUERY_NAMES if n not in values and n != b"X-Amz-Security-Token"]
        if missing:
            raise _incomplete(
                " ".join(f"AWS query-string parameters must include '{name}'." for name in missing)
            )
        if values[b"X-Amz-Algorithm"] != ALGORITHM:
            raise _incomplete("Unsupported AWS 'algorithm': only AWS4-HMAC-SHA256 is known.")
        if len(values[b"X-Amz-Credential"]) + len(values[b"X-Amz-SignedHeaders"]) > _MAX_AUTHORIZATION:
            raise _incomplete("The signature parameters are too long.")
        scope = _Scope(values[b"X-Amz-Credential"], values[b"X-Amz-SignedHeaders"])
        signature = values[b"X-Amz-Signature"]
        _check_signature_syntax(signature)
        text = values[b"X-Amz-Expires"]
        if not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= MAX_EXPIRES_S:
            raise _incomplete("X-Amz-Expires must be a number of seconds from 1 to 604800.")
        timestamp = values[b"X-Amz-Date"]
        signed_s = self._time_of(timestamp)
        if signed_s - now_s > MAX_SKEW_S:
            raise _skewed(signed_s, now_s)
        end_s = signed_s + int(text)
        if now_s > end_s:
            message = f"Signature expired: {_timestamp(end_s)} is now earlier than {_timestamp(now_s)}"
            raise InvalidSignature("RequestExpired", message)
        token = values.get(b"X-Amz-Security-Token", given.get(b"x-amz-security-token"))
        self._check_signature(
            scope, signature, method, path, b"&".join(rest), given, body, timestamp, token, now_s
        )
        return Signed(scope.access_key, scope.region, signed_s, True)

    def _check_signature(
        self,
        scope: _Scope,
        signature: bytes,
        method: str,
        path: bytes,
        query: bytes,
        given: dict[bytes, bytes],
        body: bytes,
        timestamp: bytes,
        token: bytes | None,
        now_s: float,
    ) -> None:
        if scope.date != timestamp[:8]:
            raise _mismatch(
                "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
                f"'{scope.date.decode()}' != '{timestamp[:8].decode()}', from '{timestamp.decode()}'."
            )
        for name in given.keys() - scope.wanted:
            if name[:6] == b"x-amz-":
                shown = name.decode("latin-1")[:80]
                raise _mismatch(f"There were headers present in the request which were not signed: {shown}")
        digest = sha256(body).hexdigest().encode() if body else EMPTY_SHA256
        payload = given.get(b"x-amz-content-sha256")
        if payload is not None and payload != digest:
            raise _wrong_payload(payload)

        info = self._secret_of(scope.access_key)
        # An unknown key is checked with a dummy secret, so that the time reveals nothing.
        secret = _UNKNOWN_KEY if info is None else info.secret
        halves = self._keys.get((secret, scope.scope))
        if halves is None:
            halves = _signing_key(secret, scope)
            _cache(self._keys, (secret, scope.scope), halves)
        start = method.encode("latin-1") + b"\n" + (path if path == b"/" else _canonical_path(path)) + b"\n"
        end = b"\n\n" + scope.signed_headers + b"\n" + digest
        before = ALGORITHM + b"\n" + timestamp + b"\n" + scope.scope + b"\n"
        holds = False
        for lines in self._canonical_headers(scope, given):
            for canonical_query in _canonical_queries(query) if query else (query,):
                canonical = sha256(start + canonical_query + b"\n" + lines + end)
                # HMAC by hand from its two prepared halves: half the time of `hmac.digest`.
                inner, outer = halves[0].copy(), halves[1].copy()
                inner.update(before + canonical.hexdigest().encode())
                outer.update(inner.digest())
                holds = hmac.compare_digest(outer.hexdigest().encode(), signature) or holds
        if info is None:
            raise _unknown_key()
        if not holds:
            raise _mismatch(
                "The request signature we calculated does not match the signature you provided. "
                "Check your AWS Secret Access Key and signing method. "
                "Consult the service documentation for details."
            )
        # After the signature: errors of tokens are only for holders of the secret.
        if token is not None or info.token_hash is not None:
            given_hash = sha256(token or b"").digest()
            if not hmac.compare_digest(given_hash, info.token_hash or b""):
                raise _unknown_key()
        if info.expires_s is not None and now_s >= info.expires_s:
            raise InvalidSignature("ExpiredToken", "The security token included in the request is expired")

    def _canonical_headers(self, scope: _Scope, given: dict[bytes, bytes]) -> list[bytes]:
        """The canonical headers; several variants only behind a proxy."""
        try:
            lines = scope.lines % scope.values_of(given)
            if b"  " in lines or b": " in lines or b" \n" in lines or b"\t" in lines or lines[-1] == 32:
                given = {name: b" ".join(given[name].split()) for name in scope.wanted}
                lines = scope.lines % scope.values_of(given)
        except KeyError:
            raise _mismatch("A header that was signed did not arrive.") from None
        others = [scope.lines % scope.values_of(given | {b"host": host}) for host in self._accepted_hosts]
        return [lines, *others]

    def _time_of(self, timestamp: bytes) -> int:
        seconds = self._times.get(timestamp)
        if seconds is None:
            seconds = _seconds(timestamp)
            _cache(self._times, timestamp, seconds)
        return seconds


# As long as a real secret: the work on it is the same.
_UNKNOWN_KEY = "\0" * 40

K = TypeVar("K")
V = TypeVar("V")


def _cache(cache: dict[K, V], key: K, value: V) -> None:
    # Cleared as a whole: entries in use come back at once, and no order is kept.
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    cache[key] = value


def _parse_authorization(authorization: bytes) -> tuple[_Scope, bytes]:
    algorithm, _, rest = authorization.partition(b" ")
    if algorithm != ALGORITHM:
        raise _incomplete("Unsupported AWS 'algorithm': only AWS4-HMAC-SHA256 is known.")
    if len(authorization) > _MAX_AUTHORIZATION:
        raise _incomplete("The Authorization header is too long.")
    values: dict[bytes, bytes] = {}
    for part in rest.split(b","):
        name, equals, value = part.strip(b" ").partition(b"=")
        if name not in (b"Credential", b"SignedHeaders", b"Signature") or not equals or name in values:
            raise _incomplete(
                "Authorization header must be 'Credential=..., SignedHeaders=..., Signature=...', each once."
            )
        values[name] = value
    missing = [name for name in ("Credential", "Signature", "SignedHeaders") if name.encode() not in values]
    if missing:
        raise _incomplete(" ".join(f"Authorization header requires '{name}' parameter." for name in missing))
    _check_signature_syntax(values[b"Signature"])
    return _Scope(values[b"Credential"], values[b"SignedHeaders"]), values[b"Signature"]


def _check_signature_syntax(signature: bytes) -> None:
    if len(signature) != 64 or signature.translate(None, b"0123456789abcdef"):
        raise _mismatch("The signature must be 64 hexadecimal digits in lower case.")


def _signing_key(secret: str, scope: _Scope) -> tuple[_Hash, _Hash]:
    """The two halves of HMAC under the key of this day, region and service."""
    key = b"AWS4" + secret.encode()
    for part in scope.scope.split(b"/"):
        key = hmac.digest(key, part, "sha256")
    block = key.ljust(64, b"\0")
    return sha256(bytes([byte ^ 0x36 for byte in block])), sha256(bytes([byte ^ 0x5C for byte in block]))


def _canonical_path(path: bytes) -> bytes:
    """Without `.`, `..` and empty segments, and escaped once more: `%20` is signed as `%2520`."""
    if path[:1] != b"/":
        # Clients never send it; rejected so that it cannot be confused with the normalised path.
        raise _mismatch("The path of a request must begin with a slash.")
    if b"//" in path or b"/." in path:
        kept: list[bytes] = []
        for segment in path.split(b"/"):
            if segment == b"..":
                if kept:
                    kept.pop()
            elif segment and segment != b".":
                kept.append(segment)
        end = b"/" if kept and path[-1:] == b"/" else b""
        path = b"/" + b"/".join(kept) + end
    if path.translate(None, _PLAIN_PATH):
        path = quote_from_bytes(path, safe="/~").encode()
    return path


def _canonical_queries(query: bytes) -> list[bytes]:
    """The sorted query as it came, and with unescaped bytes escaped.

    Signers differ on `:` (plain or `%3A`); both are the same parameters.
    """
    pairs = []
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        pairs.append((name, value))
    forms = [pairs]
    if query.translate(None, _PLAIN_QUERY) or b"=" in b"".join([value for _, value in pairs]):
        forms.append([(_escaped(name), _escaped(value)) for name, value in pairs])
    return [b"&".join([name + b"=" + value for name, value in sorted(form)]) for form in forms]


def _escaped(text: bytes) -> bytes:
    return quote_from_bytes(text.replace(b"+", b"%20"), safe="%~").encode()


def _seconds(timestamp: bytes) -> int:
    if len(timestamp) == 16 and timestamp[8:9] == b"T" and timestamp[15:] == b"Z":
        digits = timestamp[:8] + timestamp[9:15]
        if digits.isdigit():
            fields = [int(digits[a:b]) for a, b in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14))]
            try:
                return int(datetime(*fields, tzinfo=UTC).timestamp())  # type: ignore[arg-type,misc]
            except ValueError:
                pass
    raise _incomplete("Date must be in ISO-8601 'basic format', such as 20300131T235959Z.")


def _timestamp_of_date(date: bytes | None) -> bytes:
    """`X-Amz-Date` may be left out if there is a `Date`, in either format."""
    if date is None:
        raise _incomplete(
            "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
        )
    if date[:8].isdigit():
        return date
    from email.utils import parsedate_to_datetime  # rarely needed, and slow to load

    try:
        moment = parsedate_to_datetime(date.decode("ascii"))
        return _timestamp(moment.timestamp()).encode()
    except (ValueError, OverflowError, TypeError, IndexError):
        raise _incomplete("Date must be in ISO-8601 'basic format' or as HTTP writes it.") from None


def _timestamp(seconds: float) -> str:
    return strftime("%Y%m%dT%H%M%SZ", gmtime(seconds))


def _incomplete(message: str) -> InvalidSignature:
    return InvalidSignature("IncompleteSignature", message)


def _mismatch(message: str) -> InvalidSignature:
    return InvalidSignature("SignatureDoesNotMatch", message)


def _unknown_key() -> InvalidSignature:
    return InvalidSignature("InvalidClientTokenId", "The security token included in the request is invalid.")


def _wrong_payload(payload: bytes) -> InvalidSignature:
    if payload.startswith((b"UNSIGNED-PAYLOAD", b"STREAMING-")):
        return _mismatch("The payload must be signed: UNSIGNED-PAYLOAD and streaming forms are not accepted.")
    return _mismatch("The provided 'x-amz-content-sha256' header does not match what was computed.")


def _skewed(signed_s: int, now_s: float) -> InvalidSignature:
    signed, now = _timestamp(signed_s), _timestamp(now_s)
    if signed_s < now_s:
        edge = _timestamp(now_s - MAX_SKEW_S)
        message = f"Signature expired: {signed} is now earlier than {edge} ({now} - 15 min.)"
    else:
        edge = _timestamp(now_s + MAX_SKEW_S)
        message = f"Signature not yet current: {signed} is still later than {edge} ({now} + 15 min.)"
    return InvalidSignature("RequestTimeTooSkewed", message)
