"""Failed logins: how many an address may have, and what the log, the metrics and the audit log say of them.

No text holds a password, a token or a secret. Of an unknown user the name is shown only if it looks like one:
people type passwords into the wrong field.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from ..logs import emit
from .errors import LoginFailed, TooManyFailedLogins

log = logging.getLogger("openq.auth")

MAX_FAILURES = 10
FAILURE_SPAN_S = 60
WINDOW_S = 60.0  # equal refusals within it are one line of the log, with a count
_MAX_PEERS = 10_000
_MAX_OPEN = 1_000  # different refusals within a window; further ones are counted together

NO_CREDENTIALS = "no_credentials"
MALFORMED = "malformed"
UNKNOWN_SCHEME = "unknown_scheme"
UNKNOWN_USER = "unknown_user"
WRONG_PASSWORD = "wrong_password"
NO_PASSWORD = "no_password"  # the user has none: only keys and tokens
DISABLED = "disabled"
UNKNOWN_TOKEN = "unknown_token"
EXPIRED = "expired"
SESSION_ENDED = "session_ended"
FOREIGN = "foreign_request"  # with the cookie of a session
LOCKED_OUT = "locked_out"
NOT_GUEST = "not_guest"  # of an open server
# By the code of a signature's error.
SIGNATURE_REASONS = {
    "MissingAuthenticationToken": NO_CREDENTIALS,
    "IncompleteSignature": MALFORMED,
    "InvalidClientTokenId": "unknown_key",
    "SignatureDoesNotMatch": "wrong_signature",
    "RequestExpired": EXPIRED,
    "ExpiredToken": EXPIRED,
    "RequestTimeTooSkewed": "clock_skew",
}

_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,19}")


@dataclass(frozen=True, slots=True)
class RefusedLogin:
    """One refused login, or several equal ones."""

    protocol: str
    user: str  # as the client gave it; empty: unknown
    peer: str
    reason: str
    count: int = 1


Observer = Callable[[RefusedLogin], None]


class RefusedLogins:
    """Counts refused logins, and reports them to the log and to an observer.

    The first of several equal ones is reported at once; the others once a minute, as one with a count. An
    attack must not fill the log.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._open: dict[RefusedLogin, tuple[float, int]] = {}  # reported at; further ones since
        self.counts: Counter[tuple[str, str]] = Counter()  # by protocol and reason
        self.lockouts = 0
        self._locked_until_s: dict[str, float] = {}
        self.observer: Observer = lambda refused: None

    def refuse(self, protocol: str, user: str, peer: str, reason: str) -> LoginFailed:
        """Count and report it. Returns the error to raise: one for all reasons."""
        refused = RefusedLogin(protocol, shown_name(user, reason), peer, reason)
        now_s = self._clock_s()
        with self._lock:
            self.counts[protocol, reason] += 1
            if refused not in self._open and len(self._open) >= _MAX_OPEN:
                refused = RefusedLogin(protocol, "", "", reason)
            reported_s, count = self._open.get(refused, (None, 0))
            is_first = reported_s is None
            self._open[refused] = (now_s, 0) if reported_s is None else (reported_s, count + 1)
        if is_first:
            self._report(refused)
        return LoginFailed()

    def lock_out(self, protocol: str, peer: str) -> None:
        """An address has reached the limit of failures: said once for each time that it is locked out."""
        now_s = self._clock_s()
        with self._lock:
            if self._locked_until_s.get(peer, 0) > now_s:
                return
            if len(self._locked_until_s) >= _MAX_PEERS:
                self._locked_until_s.clear()
            self._locked_until_s[peer] = now_s + FAILURE_SPAN_S
            self.lockouts += 1
        emit(
            log,
            logging.WARNING,
            "login_locked",
            protocol=protocol,
            conn=peer,
            failures=MAX_FAILURES,
            duration_s=FAILURE_SPAN_S,
        )

    def flush(self, *, is_end: bool = False) -> None:
        """Report what has been counted since the first report; called every second."""
        now_s = self._clock_s()
        ended: list[RefusedLogin] = []
        with self._lock:
            for refused, (reported_s, count) in list(self._open.items()):
                if is_end or not 0 <= now_s - reported_s < WINDOW_S:
                    del self._open[refused]
                    if count:
                        ended.append(
                            RefusedLogin(refused.protocol, refused.user, refused.peer, refused.reason, count)
                        )
        for refused in ended:
            self._report(refused)

    def _report(self, refused: RefusedLogin) -> None:
        emit(
            log,
            logging.WARNING,
            "login_refused",
            protocol=refused.protocol,
            user=refused.user or None,
            conn=refused.peer or None,
            reason=refused.reason,
            count=refused.count,
        )
        self.observer(refused)


def shown_name(user: str, reason: str) -> str:
    """The name of a user for the log."""
    if reason in (UNKNOWN_USER, NOT_GUEST, LOCKED_OUT) and user and not _PLAIN_NAME.fullmatch(user):
        return "(hidden)"
    return user


class FailedLogins:
    """Failed logins per address in the last minute. IPv6 addresses are counted by network."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def check(self, peer: str, now_s: float) -> None:
        with self._lock:
            self._check(_network(peer), now_s)

    def add(self, peer: str, now_s: float) -> None:
        with self._lock:
            self._add(_network(peer), now_s)

    def take(self, peer: str, now_s: float) -> None:
        """Check and add in one step."""
        with self._lock:
            self._check(_network(peer), now_s)
            self._add(_network(peer), now_s)

    def give_back(self, peer: str, now_s: float) -> None:
        with self._lock:
            times = self._times.get(_network(peer), [])
            if now_s in times:
                times.remove(now_s)

    def is_locked(self, peer: str, now_s: float) -> bool:
        try:
            self.check(peer, now_s)
        except TooManyFailedLogins:
            return True
        return False

    def locked(self, now_s: float) -> int:
        """The number of addresses that are locked out now."""
        with self._lock:
            networks = [network for network, times in self._times.items() if len(times) >= MAX_FAILURES]
        return sum(self.is_locked(network, now_s) for network in networks)

    def _check(self, network: str, now_s: float) -> None:
        times = self._times.get(network)
        if not times:
            return
        times[:] = [at for at in times if 0 <= now_s - at < FAILURE_SPAN_S]
        if len(times) >= MAX_FAILURES:
            raise TooManyFailedLogins(max(1, round(times[-MAX_FAILURES] + FAILURE_SPAN_S - now_s)))

    def _add(self, network: str, now_s: float) -> None:
        if network not in self._times and len(self._times) >= _MAX_PEERS:
            self._times = {
                other: times
                for other, times in self._times.items()
                if times and 0 <= now_s - times[-1] < FAILURE_SPAN_S
            }
            if len(self._times) >= _MAX_PEERS:
                # The table is full: the oldest address is removed.
                del self._times[next(iter(self._times))]
        self._times.setdefault(network, []).append(now_s)


def _network(peer: str) -> str:
    if ":" not in peer:
        return peer
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or address.packed[:8].hex())
    return peer
