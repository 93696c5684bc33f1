"""Who gets in, and what they may do once inside."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from openq.auth.errors import AuthenticationFailed, InvalidSignature, LoginFailed, TooManyFailedLogins
from openq.auth.guard import ANONYMOUS, Guard, Principal, first_key, read_basic
from openq.auth.policy_document import parse
from openq.auth.rules import ACTIONS, Rule
from openq.auth.store import UserStore
from openq.names import DEFAULT_ACCOUNT

from .signing import Wire, send_message

OTHER = "111122223333"
QUEUE = f"arn:aws:sqs:us-east-1:{DEFAULT_ACCOUNT}:orders"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> UserStore:
    return UserStore()


@pytest.fixture
def guard(store: UserStore, clock: Clock) -> Guard:
    store.add_user("admin", role="admin", is_root=True)
    return Guard(store, clock)


def rule(effect: Any, *actions: str, queues: str = "*", account: str | None = None) -> Rule:
    return Rule(effect, frozenset(actions), queues, account)


def signed_in(guard: Guard, name: str, **details: Any) -> Principal:
    guard.store.add_user(name, **details)
    return guard.bearer(guard.store.create_token(name, "t"))


def statement(**changes: Any) -> str:
    base = {"Effect": "Allow", "Principal": {"AWS": OTHER}, "Action": "sqs:SendMessage", "Resource": QUEUE}
    return json.dumps({"Version": "2012-10-17", "Statement": [{**base, **changes}]})


def may(guard: Guard, principal: Principal, action: str = "send", **details: Any) -> bool:
    return guard.may(principal, action, DEFAULT_ACCOUNT, "orders", resource_arn=QUEUE, **details)


# Open and closed


def test_a_server_without_users_is_open_and_everybody_is_root(store: UserStore, clock: Clock) -> None:
    guard = Guard(store, clock)
    somebody = guard.open_principal(OTHER)

    assert guard.is_open
    assert (somebody.account, somebody.arn) == (OTHER, f"arn:aws:iam::{OTHER}:root")
    assert all(guard.may(somebody, action, OTHER, "orders") for action in ACTIONS)
    assert guard.open_principal(OTHER) is somebody


def test_adding_the_first_user_ends_open_access_and_removing_the_last_does_not_restore_it(
    store: UserStore, clock: Clock
) -> None:
    guard = Guard(store, clock)
    store.add_user("alice")
    assert not guard.is_open

    store.remove_user("alice")

    assert not guard.is_open


def test_the_first_key_is_the_roots(store: UserStore, clock: Clock) -> None:
    user, key_id, secret = first_key(store)
    guard = Guard(store, clock)
    wire = send_message(access_key=key_id, secret=secret)
    clock.now_s = wire.now_s

    principal = guard.sigv4(wire.method, wire.target, wire.headers, wire.body, "1.2.3.4")

    assert user == principal.user == "root"
    assert principal.arn == f"arn:aws:iam::{DEFAULT_ACCOUNT}:root"
    assert all(guard.may(principal, action, OTHER, "orders") for action in ACTIONS)


# Signing in


def sign_in(guard: Guard, wire: Wire) -> Principal:
    return guard.sigv4(wire.method, wire.target, wire.headers, wire.body, "1.2.3.4")


def test_a_signature_counts_until_the_key_or_the_user_goes(
    guard: Guard, store: UserStore, clock: Clock
) -> None:
    store.add_user("alice", account=OTHER)
    first, second = store.create_key("alice"), store.create_key("alice")
    wires = {key.id: send_message(access_key=key.id, secret=key.secret) for key in (first, second)}
    clock.now_s = wires[second.id].now_s
    assert sign_in(guard, wires[first.id]) is sign_in(guard, wires[first.id])
    assert sign_in(guard, wires[second.id]).arn == f"arn:aws:iam::{OTHER}:user/alice"

    store.revoke_key(first.id)
    with pytest.raises(InvalidSignature, match="token included"):
        sign_in(guard, wires[first.id])
    sign_in(guard, wires[second.id])

    store.set_disabled("alice", True)
    with pytest.raises(InvalidSignature, match="token included"):
        sign_in(guard, wires[second.id])

    store.set_disabled("alice", False)
    sign_in(guard, wires[second.id])


def test_a_session_key_works_with_its_token_until_it_ends(
    guard: Guard, store: UserStore, clock: Clock
) -> None:
    store.add_user("alice")
    probe = send_message()
    key = store.create_key("alice", is_session=True, expires_s=probe.now_s + 60)
    wire = send_message(access_key=key.id, secret=key.secret, token=key.session_token)
    clock.now_s = wire.now_s
    assert sign_in(guard, wire).user == "alice"

    clock.now_s = probe.now_s + 60
    with pytest.raises(InvalidSignature, match="expired"):
        sign_in(guard, wire)


def test_a_wrong_signature_is_refused_every_time(guard: Guard, store: UserStore, clock: Clock) -> None:
    store.add_user("alice")
    key = store.create_key("alice")
    wire = send_message(access_key=key.id, secret="wrong")
    clock.now_s = wire.now_s

    for _ in range(30):
        with pytest.raises(InvalidSignature, match="does not match"):
            sign_in(guard, wire)


def test_a_token_lets_in_until_it_expires_or_is_revoked(guard: Guard, store: UserStore, clock: Clock) -> None:
    store.add_user("alice", role="viewer")
    lasting = store.create_token("alice", "lasting")
    short = store.create_token("alice", "short", expires_s=clock.now_s + 60)
    assert guard.bearer(short).user == guard.bearer(lasting).user == "alice"

    clock.now_s += 60
    with pytest.raises(LoginFailed):
        guard.bearer(short)
    store.revoke_token("alice", "lasting")
    with pytest.raises(LoginFailed):
        guard.bearer(lasting)


def test_a_token_with_a_scope_does_less_than_its_user_and_never_more(guard: Guard, store: UserStore) -> None:
    store.add_user("boss", role="admin", is_root=True)
    store.add_user("alice", role="producer")
    scope = [rule("allow", "send", "receive", queues="orders", account="*")]
    narrow = guard.bearer(store.create_token("boss", "narrow", rules=scope))
    wide = guard.bearer(store.create_token("alice", "wide", rules=[rule("allow", *ACTIONS, account="*")]))
    nothing = guard.bearer(store.create_token("boss", "nothing", rules=[]))

    assert may(guard, narrow, "send")
    assert not may(guard, narrow, "manage")
    assert not guard.may(narrow, "send", DEFAULT_ACCOUNT, "invoices")
    assert not guard.may(narrow, "admin", DEFAULT_ACCOUNT, None)
    assert not narrow.is_root
    assert may(guard, wide, "send")
    assert not may(guard, wide, "receive")
    assert not may(guard, nothing, "send", policy=statement(Principal="*"))


def test_a_password_lets_in_and_a_new_one_counts_at_once(guard: Guard, store: UserStore) -> None:
    store.add_user("alice", password="old")
    assert guard.basic("alice", "old").user == "alice"
    assert guard.cached_login("alice", "old") is guard.basic("alice", "old")

    store.set_password("alice", "new")

    assert guard.cached_login("alice", "old") is None
    with pytest.raises(LoginFailed):
        guard.basic("alice", "old")
    assert guard.basic("alice", "new").user == "alice"


def test_a_password_is_remembered_for_a_minute_since_it_was_last_used(
    guard: Guard, store: UserStore, clock: Clock
) -> None:
    store.add_user("alice", password="right")
    assert guard.cached_login("alice", "right") is None
    guard.basic("alice", "right")

    clock.now_s += 59
    assert guard.cached_login("alice", "right") is not None
    clock.now_s += 59
    assert guard.cached_login("alice", "right") is not None
    clock.now_s += 60
    assert guard.cached_login("alice", "right") is None


@pytest.mark.parametrize(
    ("user", "password"), [("nobody", "x"), ("keyless", ""), ("alice", ""), ("off", "right")]
)
def test_all_wrong_logins_are_refused_with_the_same_words(guard: Guard, user: str, password: str) -> None:
    guard.store.add_user("keyless")
    guard.store.add_user("alice", password="right")
    guard.store.add_user("off", password="right")
    guard.store.set_disabled("off", True)

    with pytest.raises(LoginFailed) as caught:
        guard.basic(user, password)
    assert str(caught.value) == "the user name, password or token is not valid"


def fail(guard: Guard, peer: str, times: int = 10) -> None:
    for _ in range(times):
        with pytest.raises(LoginFailed):
            guard.bearer("oq_wrong", peer)


def test_an_address_that_fails_ten_times_waits_a_minute(guard: Guard, store: UserStore, clock: Clock) -> None:
    store.add_user("alice", password="right")
    token = store.create_token("alice", "t")
    guard.basic("alice", "right", "10.0.0.1")
    fail(guard, "10.0.0.1", 9)
    guard.basic("alice", "right", "10.0.0.1")
    fail(guard, "10.0.0.1", 1)

    for call in (
        lambda: guard.basic("alice", "right", "10.0.0.1"),
        lambda: guard.cached_login("alice", "right", "10.0.0.1"),
        lambda: guard.bearer("oq_wrong", "10.0.0.1"),
    ):
        with pytest.raises(TooManyFailedLogins) as caught:
            call()
        assert caught.value.retry_after_s == 60
    assert guard.bearer(token, "10.0.0.1").user == "alice"
    assert guard.basic("alice", "right", "10.0.0.2").user == "alice"

    clock.now_s += 60
    assert guard.basic("alice", "right", "10.0.0.1").user == "alice"


def test_wrong_passwords_count_too_and_right_ones_do_not(guard: Guard, store: UserStore) -> None:
    store.add_user("alice", password="right")
    for _ in range(12):
        guard._passwords.clear()
        guard.basic("alice", "right", "10.0.0.1")
    for _ in range(10):
        with pytest.raises(LoginFailed):
            guard.basic("alice", "wrong", "10.0.0.1")

    with pytest.raises(TooManyFailedLogins):
        guard.basic("alice", "right", "10.0.0.1")


def test_the_addresses_of_one_network_count_together(guard: Guard) -> None:
    for last in range(10):
        fail(guard, f"2001:db8::{last}", 1)
    with pytest.raises(TooManyFailedLogins):
        guard.bearer("oq_wrong", "2001:db8::ffff")
    fail(guard, "2001:db8:0:1::1", 1)

    fail(guard, "10.0.0.1")
    with pytest.raises(TooManyFailedLogins):
        guard.bearer("oq_wrong", "::ffff:10.0.0.1")
    fail(guard, "a:socket", 1)


def test_the_table_of_failures_stays_bounded(guard: Guard, clock: Clock) -> None:
    for number in range(10_050):
        fail(guard, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 1)
    assert len(guard._failures._times) == 10_000

    clock.now_s += 61
    fail(guard, "192.168.0.1", 1)
    assert len(guard._failures._times) == 1


def test_a_lasting_connection_sees_what_became_of_its_user(guard: Guard, store: UserStore) -> None:
    principal = signed_in(guard, "alice", role="producer")
    scoped = guard.bearer(store.create_token("alice", "scoped", rules=[rule("allow", "receive")]))
    store.set_role("alice", "consumer")

    renewed, still_scoped = guard.current(principal), guard.current(scoped)

    assert renewed is not None
    assert still_scoped is not None
    assert may(guard, renewed, "receive")
    assert may(guard, still_scoped, "receive")
    assert not may(guard, renewed, "send")
    assert guard.current(ANONYMOUS) is ANONYMOUS
    store.set_disabled("alice", True)
    assert guard.current(principal) is None


@pytest.mark.parametrize("value", [b"", b"!!!", b"eA==", base64.b64encode(b"\xff:\xff"), b"YTpi\n\xff"])
def test_a_malformed_basic_header_is_refused(value: bytes) -> None:
    with pytest.raises(LoginFailed):
        read_basic(value)


def test_a_password_may_hold_colons() -> None:
    assert read_basic(base64.b64encode("alice:a:b:ü".encode())) == ("alice", "a:b:ü")


# Server-wide questions


def request(authorization: bytes | None = None) -> Wire:
    class Asked(Wire):
        peer = "10.0.0.9"

    return Asked(
        "GET", b"/metrics", [] if authorization is None else [(b"authorization", authorization)], b"", 0
    )


def test_server_wide_answers_are_for_those_of_the_default_account(guard: Guard, store: UserStore) -> None:
    def refusal(authorization: bytes | None) -> int | None:
        answer = guard.refusal_for(request(authorization), "peek")  # type: ignore[arg-type]
        return None if answer is None else answer[0]

    store.add_user("viewer", role="viewer", password="right")
    store.add_user("stranger", role="manager", account=OTHER)
    store.add_user("producer", role="producer")
    tokens = {name: store.create_token(name, "t").encode() for name in ("viewer", "stranger", "producer")}

    assert refusal(b"Bearer " + tokens["viewer"]) is None
    assert refusal(b"basic " + base64.b64encode(b"viewer:right")) is None
    assert refusal(b"Bearer " + tokens["stranger"]) == 403
    assert refusal(b"Bearer " + tokens["producer"]) == 403
    assert refusal(None) == 401
    for _ in range(10):
        assert refusal(b"Basic " + base64.b64encode(b"viewer:wrong")) == 401
    assert refusal(b"Basic " + base64.b64encode(b"viewer:right")) == 429


def test_an_open_server_answers_everybody(store: UserStore, clock: Clock) -> None:
    assert Guard(store, clock).refusal_for(request(), "peek") is None  # type: ignore[arg-type]


# Permissions


def test_users_of_an_account_need_a_rule(guard: Guard) -> None:
    producer = signed_in(guard, "producer", role="producer")
    stranger = signed_in(guard, "stranger", role="manager", account=OTHER)

    assert may(guard, producer, "send")
    assert not may(guard, producer, "receive")
    assert not may(guard, producer, "admin")
    assert not may(guard, stranger, "send")
    assert not may(guard, ANONYMOUS, "send")


def test_a_change_of_rules_counts_at_once_for_who_signs_in_again(guard: Guard, store: UserStore) -> None:
    store.add_user("alice", role="producer")
    token = store.create_token("alice", "t")
    assert may(guard, guard.bearer(token), "send")

    store.grant("alice", rule("deny", "send", queues="ord*"))

    assert not may(guard, guard.bearer(token), "send")
    assert guard.may(guard.bearer(token), "send", DEFAULT_ACCOUNT, "invoices")


def test_a_queue_can_be_seen_by_users_with_any_permission_on_it(guard: Guard) -> None:
    consumer = signed_in(guard, "consumer", rules=[rule("allow", "receive", queues="orders")])
    denied = signed_in(
        guard, "denied", role="producer", rules=[rule("deny", "send", "receive", "peek", "manage")]
    )

    assert may(guard, consumer, "see")
    assert not guard.may(consumer, "see", DEFAULT_ACCOUNT, "invoices")
    assert not may(guard, denied, "see")
    assert not may(guard, denied, "see", policy=statement(Principal="*", Action="sqs:*"))


Who = Callable[[Guard], Principal]


def own(**details: Any) -> Who:
    return lambda guard: signed_in(guard, "somebody", **details)


def other(**details: Any) -> Who:
    return own(account=OTHER, **details)


def nobody(guard: Guard) -> Principal:
    return ANONYMOUS


TABLE: list[tuple[str, Who, dict[str, Any], str, bool]] = [
    (
        "own user, named, no rule",
        own(),
        {"Principal": {"AWS": f"arn:aws:iam::{DEFAULT_ACCOUNT}:user/somebody"}},
        "SendMessage",
        True,
    ),
    (
        "own user, account named, no rule",
        own(),
        {"Principal": {"AWS": DEFAULT_ACCOUNT}},
        "SendMessage",
        False,
    ),
    (
        "own user, account named, rule",
        own(role="producer"),
        {"Principal": {"AWS": DEFAULT_ACCOUNT}},
        "SendMessage",
        True,
    ),
    ("own user, everybody, no rule", own(), {"Principal": "*"}, "SendMessage", True),
    ("own user, rule, silent policy", own(role="producer"), {}, "SendMessage", True),
    (
        "own user, rule, policy denies",
        own(role="producer"),
        {"Effect": "Deny", "Principal": "*"},
        "SendMessage",
        False,
    ),
    (
        "own user, rule denies, policy allows",
        own(rules=[rule("deny", "send")]),
        {"Principal": "*"},
        "SendMessage",
        False,
    ),
    ("stranger, account named", other(), {}, "SendMessage", True),
    ("stranger, account named, batch", other(), {}, "SendMessageBatch", True),
    (
        "stranger, own rules do not reach here",
        other(role="manager"),
        {"Principal": {"AWS": "999999999999"}},
        "SendMessage",
        False,
    ),
    ("stranger, another action", other(), {}, "ReceiveMessage", False),
    (
        "stranger, own rule denies everywhere",
        other(rules=[rule("deny", "send", account="*")]),
        {},
        "SendMessage",
        False,
    ),
    ("stranger, denied", other(), {"Effect": "Deny"}, "SendMessage", False),
    ("stranger, all of sqs but the owner's own", other(), {"Action": "sqs:*"}, "SetQueueAttributes", False),
    ("stranger, all of sqs, delete queue", other(), {"Action": "sqs:*"}, "DeleteQueue", False),
    ("stranger, all of sqs, purge", other(), {"Action": "sqs:*"}, "PurgeQueue", True),
    (
        "stranger with a rule for this account",
        other(rules=[rule("allow", "send", account=DEFAULT_ACCOUNT)]),
        {"Principal": {"AWS": "999999999999"}},
        "SendMessage",
        True,
    ),
    ("nobody, everybody allowed", nobody, {"Principal": "*"}, "SendMessage", True),
    ("nobody, an account allowed", nobody, {}, "SendMessage", False),
    (
        "root, denied, sends",
        own(role="admin", is_root=True),
        {"Effect": "Deny", "Principal": "*", "Action": "*"},
        "SendMessage",
        False,
    ),
    (
        "root, denied, repairs",
        own(role="admin", is_root=True),
        {"Effect": "Deny", "Principal": "*", "Action": "*"},
        "SetQueueAttributes",
        True,
    ),
    (
        "admin who is not root, denied, repairs",
        own(role="admin"),
        {"Effect": "Deny", "Principal": "*", "Action": "*"},
        "SetQueueAttributes",
        False,
    ),
    (
        "root of another account, denied, repairs",
        other(role="admin", is_root=True),
        {"Effect": "Deny", "Principal": "*", "Action": "*"},
        "SetQueueAttributes",
        False,
    ),
]
ACTION_OF = {
    "ReceiveMessage": "receive",
    "SetQueueAttributes": "manage",
    "DeleteQueue": "manage",
    "PurgeQueue": "manage",
}


@pytest.mark.parametrize(
    ("name", "who", "changes", "sqs_action", "allowed"), TABLE, ids=[row[0] for row in TABLE]
)
def test_rules_and_policy_together(
    guard: Guard, name: str, who: Who, changes: dict[str, Any], sqs_action: str, allowed: bool
) -> None:
    principal = who(guard)
    action = ACTION_OF.get(sqs_action, "send")

    for _ in range(2):  # the second answer is a remembered one
        assert (
            may(guard, principal, action, policy=statement(**changes), sqs_action=f"sqs:{sqs_action}")
            is allowed
        )


def test_queue_policies_apply_to_other_protocols_too(guard: Guard) -> None:
    producer = signed_in(guard, "producer", role="manager")
    text = statement(Effect="Deny", Principal="*")

    assert not may(guard, producer, "send", policy=text)
    assert may(guard, producer, "receive", policy=text)
    assert not guard.may(producer, "send", DEFAULT_ACCOUNT, "orders", policy=parse(text))


def test_a_condition_is_asked_anew_each_time(guard: Guard) -> None:
    somebody = signed_in(guard, "somebody")
    text = statement(Principal="*", Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})

    answers = [
        may(guard, somebody, policy=text, condition_keys={"aws:SourceIp": ip})
        for ip in ("10.1.1.1", "11.1.1.1", "10.2.2.2")
    ]

    assert answers == [True, False, True]


def test_a_policy_nobody_understands_locks_the_queue_for_all_but_a_repairing_root(guard: Guard) -> None:
    root = signed_in(guard, "boss", role="admin", is_root=True)

    assert not may(guard, root, "send", policy="{broken")
    assert may(guard, root, "manage", policy="{broken", sqs_action="sqs:SetQueueAttributes")


def test_an_admin_question_does_not_ask_the_policy(guard: Guard) -> None:
    somebody = signed_in(guard, "somebody")

    assert not may(guard, somebody, "admin", policy=statement(Principal="*", Action="*"))


def test_what_is_remembered_stays_bounded(guard: Guard) -> None:
    somebody = signed_in(guard, "somebody", role="producer")

    for number in range(20_500):
        assert guard.may(somebody, "send", DEFAULT_ACCOUNT, f"queue-{number}")
    for number in range(1_100):
        assert not guard.may(
            somebody, "manage", DEFAULT_ACCOUNT, "orders", policy=statement(Sid=f"s{number}")
        )

    assert len(guard._decisions) <= 20_000
    assert len(guard._policies) <= 1_000


# Secrets


def test_no_secret_appears_in_any_text_of_any_object(
    guard: Guard, store: UserStore, clock: Clock, tmp_path: Any
) -> None:
    password = "canary-" + "password"  # in two, because a traceback quotes this very file
    store = UserStore(tmp_path / "users.json")
    guard = Guard(store, clock)
    store.add_user("alice", password=password)
    key = store.create_key("alice")
    session = store.create_key("alice", is_session=True, expires_s=clock.now_s + 60)
    token = store.create_token("alice", "ci")
    wire = send_message(access_key=key.id, secret=key.secret)
    clock.now_s = wire.now_s
    principals = [sign_in(guard, wire), guard.bearer(token), guard.basic("alice", password)]
    texts: list[str] = []

    def refuse(call: Callable[[], object]) -> None:
        try:
            call()
        except (AuthenticationFailed, ValueError, KeyError) as error:
            texts.extend([str(error), repr(error), *traceback.format_exception(error)])
        else:
            raise AssertionError("was not refused")

    session_wire = send_message(access_key=session.id, secret=session.secret, token=session.session_token)
    clock.now_s += 10_000
    refuse(lambda: sign_in(guard, wire))
    refuse(lambda: sign_in(guard, session_wire))
    clock.now_s = wire.now_s
    refuse(lambda: sign_in(guard, wire.with_header(b"x-amz-date", b"x")))
    refuse(lambda: guard.basic("alice", password + "-wrong"))
    refuse(lambda: guard.bearer(token + "x"))
    refuse(lambda: store.add_user("alice", password=password))
    refuse(lambda: store.set_password("bob", password))
    info = guard._key_info(key.id)
    objects = [
        store,
        guard,
        info,
        key,
        session,
        *store.users(),
        *store.keys(),
        *store.tokens(),
        *principals,
        store._state,
    ]
    texts += [text for each in objects for text in (repr(each), str(each), f"{each}")]

    assert session.session_token is not None
    password_hash = store.users()[0].password_hash
    assert password_hash is not None
    canaries = [key.secret, session.secret, session.session_token, token, password, password_hash]
    assert [text for text in texts if any(canary in text for canary in canaries)] == []
