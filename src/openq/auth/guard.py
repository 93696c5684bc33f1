"""Authentication and authorisation for all protocols.

Authentication gives a `Principal`; `may` authorises its actions. Both are cheap enough for every request:
results are cached until a user, key, token or rule changes. A server without users is open: every caller is
the root of the account that it names.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import OpenQError
from ..names import DEFAULT_ACCOUNT, arn_of, owner_of
from .documents import write_private
from .errors import (
    AuthenticationFailed,
    ForeignRequest,
    InvalidAccessPolicy,
    InvalidSignature,
    LoginFailed,
    SessionExpired,
    TooManyFailedLogins,
    UserStoreDamaged,
)
from .failed_logins import (
    DISABLED,
    EXPIRED,
    FOREIGN,
    LOCKED_OUT,
    MALFORMED,
    NO_PASSWORD,
    SESSION_ENDED,
    SIGNATURE_REASONS,
    UNKNOWN_TOKEN,
    UNKNOWN_USER,
    WRONG_PASSWORD,
    FailedLogins,
    RefusedLogins,
)
from .policy import evaluate
from .policy_document import PolicyDocument, PolicyStatement, parse
from .rules import (
    LIST_ACTION,
    OWN_ACCOUNT_ONLY,
    POLICY_REPAIR_ACTIONS,
    QUEUE_ACTIONS,
    ROLES,
    SQS_ACTION_OF,
    Effect,
    Rule,
    judge,
)
from .sessions import Session, Sessions, hash_of, is_foreign, session_in
from .sigv4 import Headers, KeyInfo, Verifier
from .store import Token, User, UserStore, check_password, is_rabbitmq_hash

_ACCESS_KEY = re.compile(rb"Credential=([A-Z0-9]{16,128})(?:/|%2F)")
PASSWORD_CACHE_S = 60
RECHECK_S = 0.1

_MAX_OPEN_ACCOUNTS = 10_000
_MAX_DECISIONS = 20_000
_MAX_NAME = 255  # of a queue; longer names are not cached
_MAX_CACHED_PASSWORDS = 1_000
_MAX_POLICIES = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Principal:
    """An authenticated caller. Compared by identity, so that it is a cheap cache key."""

    account: str
    user: str
    is_root: bool
    rules: tuple[Rule, ...] = field(repr=False)
    scope: tuple[Rule, ...] | None = field(default=None, repr=False)  # limits of a token
    is_anonymous: bool = False
    token: str = ""  # name of the token, if it has a scope

    @property
    def arn(self) -> str:
        if self.is_anonymous:
            return ""
        name = "root" if self.is_root else f"user/{self.user}"
        return f"arn:aws:iam::{self.account}:{name}"


# An anonymous caller of a server with users. A policy may allow it (`"Principal": "*"`).
ANONYMOUS = Principal("", "anonymous", False, (), None, True)

# Stands for a stored policy that is invalid: it allows only the root, who can repair it.
_DENY_ALL = PolicyDocument(
    "2012-10-17", (PolicyStatement(None, "deny", ("*",), False, ("*",), False, ("*",), False, ()),)
)


class RequestLike(Protocol):
    """The parts of an HTTP request that authentication needs."""

    @property
    def method(self) -> str: ...
    @property
    def target(self) -> bytes: ...
    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def peer(self) -> str: ...


class Guard:
    def __init__(
        self,
        store: UserStore,
        clock_s: Callable[[], float],
        *,
        accepted_hosts: Sequence[str] = (),
        region: str = "us-east-1",
        sessions: Sessions | None = None,
    ) -> None:
        self.store = store
        self.sessions = sessions or Sessions(lambda: int(clock_s() * 1000))
        self._clock_s = clock_s
        self._region = region
        self._is_open = not store.users()
        self._verifier = Verifier(self._key_info, accepted_hosts)
        self._failures = FailedLogins()
        self.refused = RefusedLogins(clock_s)
        self._salt = secrets.token_bytes(32)
        self._policies: dict[str, PolicyDocument] = {}
        self._open: dict[str, Principal] = {}
        self._checked_s = 0.0
        self._forget()

    def _forget(self) -> None:
        self._generation = self.store.generation
        if self.store.users():
            self._is_open = False
        self._infos: dict[str, KeyInfo] = {}
        self._by_key: dict[str, Principal] = {}
        self._by_user: dict[str, Principal] = {}
        self._by_token: dict[bytes, Principal] = {}
        self._passwords: dict[tuple[str, bytes], float] = {}
        self._decisions: dict[object, bool] = {}

    @property
    def is_open(self) -> bool:
        """Whether the server has no users, so that callers need not authenticate.

        A server that had users does not become open again while it runs, even if the last user is removed.
        """
        if self._generation != self.store.generation:
            self._forget()
        return self._is_open

    def refresh(self) -> None:
        """Read changes of other processes. Raises UserStoreDamaged; then the previous users stay in force."""
        self.store.refresh()
        self.sessions.refresh()
        if self._generation != self.store.generation:
            self._forget()

    # -- authentication

    def open_principal(self, account: str = DEFAULT_ACCOUNT) -> Principal:
        """The caller of an open server: the root of that account, with the role admin."""
        account = owner_of(account)
        found = self._open.get(account)
        if found is None:
            found = Principal(account, "root", True, ROLES["admin"])
            if len(self._open) < _MAX_OPEN_ACCOUNTS:
                self._open[account] = found
        return found

    def sigv4(
        self,
        method: str,
        target: bytes,
        headers: Headers | dict[bytes, bytes],
        body: bytes,
        peer: str = "",
        protocol: str = "sqs",
    ) -> Principal:
        """Authenticate an AWS signature; raises InvalidSignature. A dict of headers is faster than a list.

        Not counted as a failed login: a secret of 40 random characters cannot be guessed, and AWS reports a
        wrong signature each time.
        """
        if self._generation != self.store.generation:
            self._forget()
        now_s = self._clock_s()
        key_id: str | None = None
        if isinstance(headers, dict) and method == "POST":
            key_id = self._verifier.verify_fast(target, headers, body, now_s)
        if key_id is None:
            if isinstance(headers, dict):
                headers = list(headers.items())
            try:
                key_id = self._verifier.verify(method, target, headers, body, now_s).access_key
            except InvalidSignature as refused:
                if refused.code != "InvalidClientTokenId" or not self._recheck(now_s):
                    self._refuse_signature(refused, target, headers, peer, protocol)
                    raise
                try:
                    key_id = self._verifier.verify(method, target, headers, body, now_s).access_key
                except InvalidSignature as again:
                    self._refuse_signature(again, target, headers, peer, protocol)
                    raise
        principal = self._by_key.get(key_id)
        if principal is None:
            key = self.store.key(key_id)
            user = None if key is None else self.store.user(key.user)
            if user is None or user.is_disabled:  # removed between the check and here
                raise self.refused.refuse(protocol, "", peer, DISABLED)
            principal = self._by_key[key_id] = self._principal(user)
        return principal

    def _refuse_signature(
        self, refused: InvalidSignature, target: bytes, headers: Headers, peer: str, protocol: str
    ) -> None:
        if refused.code == "MissingAuthenticationToken" and protocol == "sqs":
            return  # anonymous: the policy of a queue may allow it
        texts = [target, *(value for name, value in headers if name == b"authorization")]
        found = next((match for text in texts if (match := _ACCESS_KEY.search(text))), None)
        # A name, not the key id: a client may have put the secret there.
        key = None if found is None else self.store.key(found[1].decode())
        user = "" if key is None else key.user
        self.refused.refuse(protocol, user, peer, SIGNATURE_REASONS.get(refused.code, refused.code))

    def bearer(self, token: str, peer: str = "", protocol: str = "rest") -> Principal:
        """Authenticate a token. Valid ones always pass; addresses with many failures have to wait."""
        if self._generation != self.store.generation:
            self._forget()
        now_s = self._clock_s()
        found = self.store.find_token(token)
        if found is None and self._recheck(now_s):
            found = self.store.find_token(token)
        user = None if found is None else self.store.user(found.user)
        reason = ""
        if found is None or user is None:
            reason = UNKNOWN_TOKEN
        elif user.is_disabled:
            reason = DISABLED
        elif found.expires_ms is not None and now_s * 1000 >= found.expires_ms:
            reason = EXPIRED
        if reason:
            name = "" if user is None else user.name
            self._check_lock(name, peer, protocol, now_s)
            self._failures.add(peer, now_s)
            raise self._refused(name, peer, protocol, reason, now_s)
        assert found is not None
        assert user is not None
        return self._token_principal(user, found)

    def _token_principal(self, user: User, token: Token) -> Principal:
        principal = self._by_token.get(token.hash)
        if principal is None:
            if token.rules is None:
                principal = self._principal(user)
            else:
                principal = _with_scope(user, token.rules, token.name)
            self._by_token[token.hash] = principal
        return principal

    def session(
        self, text: str, method: str, fields: Mapping[bytes, bytes], peer: str = "", protocol: str = "rest"
    ) -> tuple[Principal, Session]:
        """Authenticate the cookie of a session; raises SessionExpired and ForeignRequest.

        Not counted as a failed login: 256 random bits cannot be guessed, and a page that is still open after
        its session must not lock its user out.
        """
        if is_foreign(method, fields):
            self.refused.refuse(protocol, "", peer, FOREIGN)
            raise ForeignRequest
        hash = hash_of(text)
        session = self.sessions.find(hash)
        if session is None and self._recheck(self._clock_s()):
            session = self.sessions.find(hash)
        principal = None if session is None else self.session_principal(hash)
        if session is None or principal is None:
            self.refused.refuse(protocol, "" if session is None else session.user, peer, SESSION_ENDED)
            raise SessionExpired
        self.sessions.use(session)
        return principal, session

    def session_principal(self, hash: str) -> Principal | None:
        """The caller with its current rules; None if the session is over."""
        if self._generation != self.store.generation:
            self._forget()
        session = self.sessions.find(hash)
        found = None if session is None else self.sessions.user_of(session, self.store)
        if found is None:
            return None
        user, token = found
        return self._principal(user) if token is None else self._token_principal(user, token)

    def known(self, user: str, token_hash: bytes) -> tuple[Principal, Token | None] | None:
        """A caller whom another server authenticated, with its current rules; None if removed or disabled."""
        if self._generation != self.store.generation:
            self._forget()
        found = self._known(user, token_hash)
        return self._known(user, token_hash) if found is None and self._recheck(self._clock_s()) else found

    def _known(self, name: str, token_hash: bytes) -> tuple[Principal, Token | None] | None:
        user = self.store.user(name)
        token = self.store.token(token_hash) if token_hash else None
        if user is None or user.is_disabled or (token_hash and token is None):
            return None
        return (self._principal(user) if token is None else self._token_principal(user, token)), token

    def _recheck(self, now_s: float) -> bool:
        """Read the store again for an unknown name: another process may have added it. Limited to a few times
        a second, whatever is sent."""
        if 0 <= now_s - self._checked_s < RECHECK_S:
            return False
        self._checked_s = now_s
        try:
            self.refresh()
        except UserStoreDamaged:
            return False
        return True

    def _check_lock(self, user: str, peer: str, protocol: str | None, now_s: float) -> None:
        """Raises TooManyFailedLogins while an address is locked out; counted, if there is a protocol."""
        try:
            self._failures.check(peer, now_s)
        except TooManyFailedLogins:
            if protocol is not None:
                self.refused.refuse(protocol, user, peer, LOCKED_OUT)
            raise

    def _refused(self, user: str, peer: str, protocol: str, reason: str, now_s: float) -> LoginFailed:
        error = self.refused.refuse(protocol, user, peer, reason)
        if self._failures.is_locked(peer, now_s):
            self.refused.lock_out(protocol, peer)
        return error

    @property
    def locked_addresses(self) -> int:
        return self._failures.locked(self._clock_s())

    def read_basic(self, value: bytes, peer: str, protocol: str) -> tuple[str, str]:
        """Name and password of a Basic credential; raises LoginFailed if it is invalid."""
        try:
            return read_basic(value)
        except LoginFailed:
            raise self.refused.refuse(protocol, "", peer, MALFORMED) from None

    def cached_login(
        self, user: str, password: str, peer: str = "", protocol: str | None = None
    ) -> Principal | None:
        """The principal if this password was verified a moment ago. Never slow.

        Without a protocol a refusal is not counted: the caller goes on with `basic`, which counts it.
        """
        if self._generation != self.store.generation:
            self._forget()
        key = (user, self._digest(password))
        seen_s = self._passwords.get(key)
        now_s = self._clock_s()
        if seen_s is None or not 0 <= now_s - seen_s < PASSWORD_CACHE_S:
            return None
        # A password is short enough to guess: while an address is locked out, no guess is answered.
        self._check_lock(user, peer, protocol, now_s)
        found = self.store.user(user)
        if found is None or found.is_disabled:
            return None
        self._passwords[key] = now_s
        return self._principal(found)

    def basic(self, user: str, password: str, peer: str = "", protocol: str = "rest") -> Principal:
        """Authenticate name and password. Takes tens of milliseconds unless cached: not for the loop."""
        principal = self.cached_login(user, password, peer, protocol)
        if principal is not None:
            return principal
        generation = self._generation
        found = self.store.user(user)
        now_s = self._clock_s()
        # Counted before the check, so that concurrent attempts cannot exceed the limit.
        self._check_lock(user, peer, protocol, now_s)
        self._failures.take(peer, now_s)
        hashed = None if found is None else found.password_hash
        is_right = check_password(password, hashed)
        if not is_right or found is None or found.is_disabled:
            raise self._refused(user, peer, protocol, _password_reason(found), now_s)
        self._failures.give_back(peer, now_s)
        if hashed is not None and is_rabbitmq_hash(hashed):
            # The login succeeds even if the upgraded hash cannot be stored now.
            with suppress(OSError, OpenQError):
                self.store.upgrade_hash(user, password, hashed)
        if generation == self.store.generation:
            if len(self._passwords) >= _MAX_CACHED_PASSWORDS:
                self._passwords.clear()
            self._passwords[user, self._digest(password)] = now_s
        return self._principal(found)

    def named(self, user: str, peer: str = "", protocol: str = "amqp") -> Principal | None:
        """The principal of a user that was authenticated by a certificate."""
        if self._generation != self.store.generation:
            self._forget()
        found = self.store.user(user)
        if found is None or found.is_disabled:
            self.refused.refuse(protocol, user, peer, UNKNOWN_USER if found is None else DISABLED)
            return None
        return self._principal(found)

    def current(self, principal: Principal) -> Principal | None:
        """The current rules of a user, for long connections; None if removed or disabled."""
        if self._is_open or principal.is_anonymous:
            return principal
        user = self.store.user(principal.user)
        if user is None or user.is_disabled:
            return None
        if principal.scope is not None:
            return _with_scope(user, principal.scope, principal.token)
        return self._principal(user)

    def sign_in(self, request: RequestLike) -> Principal:
        """Authenticate by the `Authorization` header; not needed on an open server.

        Like `basic`, it may take tens of milliseconds.
        """
        if self.is_open:
            return self.open_principal()
        value = next((value for name, value in request.headers if name == b"authorization"), b"")
        if not value:
            fields = dict(request.headers)
            text = session_in(fields.get(b"cookie"))
            if text is not None:
                return self.session(text, request.method, fields, request.peer, "http")[0]
        kind, _, rest = value.partition(b" ")
        if kind.lower() == b"bearer":
            return self.bearer(rest.strip().decode("latin-1"), request.peer, "http")
        if kind.lower() == b"basic":
            return self.basic(*self.read_basic(rest, request.peer, "http"), request.peer, "http")
        return self.sigv4(request.method, request.target, request.headers, request.body, request.peer, "http")

    def refusal_for(self, request: RequestLike, action: str) -> tuple[int, bytes, bytes, bytes] | None:
        """None, or the error reply (status, body, content type, headers) if the caller may not do this.

        Actions on the whole server belong to the default account.
        """
        try:
            principal = self.sign_in(request)
        except TooManyFailedLogins as refused:
            wait = b"Retry-After: %d\r\n" % refused.retry_after_s
            return 429, f"{refused}\n".encode(), b"text/plain; charset=utf-8", wait
        except AuthenticationFailed as refused:
            challenge = b'WWW-Authenticate: Bearer realm="openq", Basic realm="openq"\r\n'
            return 401, f"{refused}\n".encode(), b"text/plain; charset=utf-8", challenge
        if self.may(principal, action, DEFAULT_ACCOUNT, None):
            return None
        return 403, f"{principal.user} may not {action} here\n".encode(), b"text/plain; charset=utf-8", b""

    def _principal(self, user: User) -> Principal:
        principal = self._by_user.get(user.name)
        if principal is None:
            principal = Principal(user.account, user.name, user.is_root, user.all_rules)
            self._by_user[user.name] = principal
        return principal

    def _key_info(self, key_id: str) -> KeyInfo | None:
        info = self._infos.get(key_id)
        if info is None:
            key = self.store.key(key_id)
            user = None if key is None else self.store.user(key.user)
            if key is None or user is None or user.is_disabled:
                return None
            end_s = None if key.expires_ms is None else key.expires_ms / 1000
            info = self._infos[key_id] = KeyInfo(key.id, key.secret, key.token_hash, end_s)
        return info

    def _digest(self, password: str) -> bytes:
        # Keyed with a secret of this process: a dump of the cache has no fast hashes of passwords.
        return hmac.digest(self._salt, password.encode(), "sha256")

    # -- authorisation

    def may(
        self,
        principal: Principal,
        action: str,
        account: str,
        queue: str | None,
        *,
        policy: str | PolicyDocument | None = None,
        sqs_action: str | None = None,
        resource_arn: str | None = None,
        condition_keys: Mapping[str, str] | None = None,
    ) -> bool:
        """Whether the principal may do this to the queue (None: to the account as a whole).

        `account` is the namespace of the queue: an account, or an account in another region.

        `policy` is the queue's own. Protocols other than SQS leave `sqs_action` out; the policy is then
        evaluated for the corresponding SQS action.
        """
        if self._generation != self.store.generation:
            self._forget()
        key = (principal, action, account, queue, policy, sqs_action, resource_arn)
        decision = self._decisions.get(key)
        if decision is None:
            document = self._document(policy) if policy else None
            arn = resource_arn or arn_of(account, queue or "*", self._region)
            decision = self._decide(
                principal, action, account, queue, document, sqs_action, arn, condition_keys
            )
            is_steady = document is None or not document.depends_on_context
            if is_steady and len(queue or "") <= _MAX_NAME:
                if len(self._decisions) >= _MAX_DECISIONS:
                    self._decisions.clear()
                self._decisions[key] = decision
        return decision

    def may_everywhere(self, principal: Principal, action: str, account: str) -> bool:
        """Whether the rules allow the action on every queue of the account."""
        if principal.is_root and principal.account == owner_of(account):
            return True
        is_denied = any(rule.effect == "deny" and action in rule.actions for rule in principal.rules)
        return not is_denied and self.may(principal, action, account, None)

    def _decide(
        self,
        principal: Principal,
        action: str,
        account: str,
        queue: str | None,
        document: PolicyDocument | None,
        sqs_action: str | None,
        arn: str,
        condition_keys: Mapping[str, str] | None,
    ) -> bool:
        own_account = principal.account
        by_rules = _judge(principal.rules, action, account, queue, own_account)
        if by_rules == "deny":
            return False
        scope = principal.scope
        if scope is not None and _judge(scope, action, account, queue, own_account) != "allow":
            return False
        if document is None or action == "admin":
            return by_rules == "allow"
        name = (sqs_action or SQS_ACTION_OF[action]).removeprefix("sqs:")
        is_own = own_account == owner_of(account)
        by_policy = evaluate(
            document, principal.arn, own_account, name, arn, condition_keys, delegated=not is_own
        )
        if by_policy == "deny":
            return principal.is_root and is_own and name in POLICY_REPAIR_ACTIONS
        if by_rules == "allow":
            return True
        return by_policy == "allow" and (is_own or name not in OWN_ACCOUNT_ONLY)

    def depends_on_request(self, policy: str) -> bool:
        """Whether the policy has conditions on the request, such as its address."""
        return self._document(policy).depends_on_context

    def _document(self, policy: str | PolicyDocument) -> PolicyDocument:
        if isinstance(policy, PolicyDocument):
            return policy
        document = self._policies.get(policy)
        if document is None:
            try:
                document = parse(policy)
            except InvalidAccessPolicy:
                document = _DENY_ALL
            if len(self._policies) >= _MAX_POLICIES:
                self._policies.clear()
            self._policies[policy] = document
        return document


def _password_reason(user: User | None) -> str:
    if user is None:
        return UNKNOWN_USER
    if user.is_disabled:
        return DISABLED
    return NO_PASSWORD if user.password_hash is None else WRONG_PASSWORD


def _with_scope(user: User, scope: tuple[Rule, ...], token: str) -> Principal:
    return Principal(user.account, user.name, False, user.all_rules, scope, token=token)


def _judge(
    rules: Sequence[Rule], action: str, account: str, queue: str | None, own_account: str
) -> Effect | None:
    if action != LIST_ACTION:
        return judge(rules, action, account, queue, own_account)
    verdicts = {judge(rules, each, account, queue, own_account) for each in QUEUE_ACTIONS}
    if "allow" in verdicts:
        return "allow"
    return "deny" if verdicts == {"deny"} else None


def read_basic(value: bytes) -> tuple[str, str]:
    """Name and password of a Basic credential; raises LoginFailed if it is invalid."""
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise LoginFailed from None
    if not colon:
        raise LoginFailed
    return user, password


def first_key(store: UserStore) -> tuple[str, str, str]:
    """Create the first user, `root`, with the role admin, and its access key: (user, key id, secret)."""
    user = store.user("root") or store.add_user("root", role="admin", is_root=True)
    key = store.create_key(user.name)
    return user.name, key.id, key.secret


def write_secret_file(path: str | os.PathLike[str], text: str) -> None:
    """Write a file that only its owner can read; an existing one is replaced."""
    name = os.fspath(path)
    temporary = f"{name}.{os.getpid()}.new"
    try:
        write_private(temporary, text.encode())
        os.rename(temporary, name)
    except BaseException:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass
        raise
