"""Rules and policies: what is allowed is exactly what somebody allowed and nobody denied."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.auth.errors import InvalidAccessPolicy
from openq.auth.policy import LabelExists, LabelNotFound, add_permission, evaluate, remove_permission
from openq.auth.policy_document import parse
from openq.auth.rules import ACTIONS, QUEUE_ACTIONS, ROLES, Rule, judge, matches
from openq.errors import InvalidSetting

OWNER = "444455556666"
FRIEND = "111122223333"
QUEUE = f"arn:aws:sqs:us-east-1:{OWNER}:orders"
ALICE = f"arn:aws:iam::{FRIEND}:user/alice"
ROOT = f"arn:aws:iam::{FRIEND}:root"

rules = st.builds(
    Rule,
    st.sampled_from(["allow", "deny"]),
    st.frozensets(st.sampled_from(sorted(ACTIONS)), min_size=1),
    st.sampled_from(["*", "orders", "o*", "?rders", "other"]),
    st.sampled_from([None, "*", OWNER, FRIEND]),
)


@given(st.lists(rules), rules, st.sampled_from(sorted(QUEUE_ACTIONS)), st.integers(0, 20))
def test_one_deny_outweighs_any_list_of_allows(others: list[Rule], deny: Rule, action: str, at: int) -> None:
    deny = Rule("deny", deny.actions | {action}, deny.queues, "*")
    listed = [*others[:at], deny, *others[at:]]

    if matches(deny.queues, "orders"):
        assert judge(listed, action, OWNER, "orders", OWNER) == "deny"


@given(st.lists(rules), st.sampled_from(sorted(ACTIONS)))
def test_what_no_rule_allows_is_not_allowed(listed: list[Rule], action: str) -> None:
    allowing = [r for r in listed if r.effect == "allow" and r.applies_to(action, OWNER, "orders", FRIEND)]

    if not allowing:
        assert judge(listed, action, OWNER, "orders", FRIEND) != "allow"


@given(st.lists(rules), st.randoms(use_true_random=False), st.sampled_from(sorted(ACTIONS)))
def test_the_order_of_rules_does_not_matter(listed: list[Rule], random: Any, action: str) -> None:
    mixed = list(listed)
    random.shuffle(mixed)

    assert judge(mixed, action, OWNER, "orders", OWNER) == judge(listed, action, OWNER, "orders", OWNER)


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("admin", {"send", "receive", "peek", "manage", "admin"}),
        ("manager", {"send", "receive", "peek", "manage"}),
        ("operator", {"receive", "peek", "manage"}),
        ("producer", {"send"}),
        ("consumer", {"receive"}),
        ("viewer", {"peek"}),
        ("none", set()),
    ],
)
def test_a_role_allows_exactly_its_actions_and_only_admin_leaves_its_account(
    role: str, allowed: set[str]
) -> None:
    here = {action for action in ACTIONS if judge(ROLES[role], action, OWNER, "orders", OWNER) == "allow"}
    there = {action for action in ACTIONS if judge(ROLES[role], action, FRIEND, "orders", OWNER) == "allow"}

    assert here == allowed
    assert there == (allowed if role == "admin" else set())


def test_a_rule_for_some_queues_says_nothing_about_the_whole_account() -> None:
    some = Rule("allow", frozenset({"manage"}), "orders*")

    assert judge([some], "manage", OWNER, "orders-2", OWNER) == "allow"
    assert judge([some], "manage", OWNER, None, OWNER) is None


@pytest.mark.parametrize(
    "wrong",
    [("grant", {"send"}, "*"), ("allow", {"fly"}, "*"), ("allow", set(), "*"), ("allow", {"send"}, "")],
)
def test_a_rule_that_means_nothing_is_refused(wrong: tuple[Any, set[str], str]) -> None:
    with pytest.raises(InvalidSetting):
        Rule(wrong[0], frozenset(wrong[1]), wrong[2])


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("*", "", True),
        ("a*", "a", True),
        ("a*c", "abbc", True),
        ("a*c", "ac", True),
        ("a*a", "a", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("*b*", "abc", True),
        ("*bc*bc", "abcbc", True),
        ("*bc*bc", "abc", False),
        ("a*?c*d", "abcd", True),
        ("[a]", "a", False),
        ("a.c", "abc", False),
        ("?", "", False),
        ("**", "x\ny", True),
    ],
)
def test_stars_and_question_marks(pattern: str, text: str, fits: bool) -> None:
    assert matches(pattern, text) is fits


@given(st.text("ab?*", max_size=8), st.text("ab", max_size=10))
def test_patterns_match_as_a_slow_and_simple_matcher_does(pattern: str, text: str) -> None:
    def slow(p: str, t: str) -> bool:
        if not p:
            return not t
        if p[0] == "*":
            return slow(p[1:], t) or (bool(t) and slow(p, t[1:]))
        return bool(t) and p[0] in ("?", t[0]) and slow(p[1:], t[1:])

    assert matches(pattern, text) == slow(pattern, text)


def test_a_hostile_pattern_is_answered_at_once() -> None:
    # By backtracking this would take longer than the universe has.
    assert not matches("*a" * 200 + "b", "a" * 10_000)


def policy(*statements: dict[str, Any], version: str = "2012-10-17") -> str:
    return json.dumps({"Version": version, "Statement": list(statements)})


def statement(**changes: Any) -> dict[str, Any]:
    base = {"Effect": "Allow", "Principal": {"AWS": FRIEND}, "Action": "sqs:SendMessage", "Resource": QUEUE}
    merged = {**base, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def asks(
    *statements: dict[str, Any], action: str = "SendMessage", arn: str = ALICE, **context: str
) -> str | None:
    account = arn.split(":")[4] if arn else ""
    facts = {name.replace("_", ":"): value for name, value in context.items()}
    return evaluate(parse(policy(*statements)), arn, account, action, QUEUE, facts)


# The documented logic of AWS, row by row: the statement, and what it says when alice sends to the queue.
DENY = {"Effect": "Deny"}
TABLE: list[tuple[str, dict[str, Any], str | None]] = [
    ("account id", {}, "allow"),
    ("root arn", {"Principal": {"AWS": ROOT}}, "allow"),
    ("user arn", {"Principal": {"AWS": ALICE}}, "allow"),
    ("list of principals", {"Principal": {"AWS": ["999999999999", ALICE]}}, "allow"),
    ("another user", {"Principal": {"AWS": f"arn:aws:iam::{FRIEND}:user/bob"}}, None),
    ("another account", {"Principal": {"AWS": "999999999999"}}, None),
    ("a user of the same name elsewhere", {"Principal": {"AWS": f"arn:aws:iam::{OWNER}:user/alice"}}, None),
    ("everybody", {"Principal": "*"}, "allow"),
    ("everybody as AWS", {"Principal": {"AWS": "*"}}, "allow"),
    ("a service", {"Principal": {"Service": "sns.amazonaws.com"}}, None),
    ("a service named like a user", {"Principal": {"Service": ALICE}}, None),
    ("no wildcards inside a principal", {"Principal": {"AWS": f"arn:aws:iam::{FRIEND}:user/*"}}, None),
    ("not alice, allow", {"Principal": None, "NotPrincipal": {"AWS": ALICE}}, None),
    (
        "not bob, allow",
        {"Principal": None, "NotPrincipal": {"AWS": "arn:aws:iam::999999999999:user/bob"}},
        "allow",
    ),
    ("not alice alone, deny", {**DENY, "Principal": None, "NotPrincipal": {"AWS": ALICE}}, "deny"),
    (
        "not alice and her account, deny",
        {**DENY, "Principal": None, "NotPrincipal": {"AWS": [ALICE, ROOT]}},
        None,
    ),
    ("not the account, deny", {**DENY, "Principal": None, "NotPrincipal": {"AWS": ROOT}}, "deny"),
    ("deny", DENY, "deny"),
    ("action in any case", {"Action": "SQS:sendmessage"}, "allow"),
    ("all of sqs", {"Action": "sqs:*"}, "allow"),
    ("everything", {"Action": "*"}, "allow"),
    ("send anything", {"Action": "sqs:Send*"}, "allow"),
    ("question mark", {"Action": "sqs:SendMessag?"}, "allow"),
    ("another action", {"Action": "sqs:ReceiveMessage"}, None),
    ("list of actions", {"Action": ["sqs:ReceiveMessage", "sqs:SendMessage"]}, "allow"),
    ("not this action", {"Action": None, "NotAction": "sqs:SendMessage"}, None),
    ("not another action", {"Action": None, "NotAction": "sqs:DeleteQueue"}, "allow"),
    ("any resource", {"Resource": "*"}, "allow"),
    ("resource pattern", {"Resource": f"arn:aws:sqs:*:{OWNER}:ord*"}, "allow"),
    ("another queue", {"Resource": f"arn:aws:sqs:us-east-1:{OWNER}:Orders"}, None),
    ("not this resource", {"Resource": None, "NotResource": QUEUE}, None),
    ("no resource means this queue", {"Resource": None}, "allow"),
]


@pytest.mark.parametrize(("name", "changes", "verdict"), TABLE, ids=[row[0] for row in TABLE])
def test_a_statement_speaks_of_whom_what_and_where_it_says(
    name: str, changes: dict[str, Any], verdict: str | None
) -> None:
    assert asks(statement(**changes)) == verdict


SENDER = {
    "aws_SourceIp": "10.1.2.3",
    "aws_SecureTransport": "true",
    "aws_CurrentTime": "2026-05-01T12:00:00Z",
    "aws_UserAgent": "Boto3/1.40",
    "aws_SourceArn": "arn:aws:sns:us-east-1:111122223333:news",
    "aws_MultiFactorAuthAge": "300",
}
CONDITIONS: list[tuple[str, dict[str, Any], bool]] = [
    ("StringEquals", {"aws:UserAgent": "Boto3/1.40"}, True),
    ("StringEquals", {"aws:useragent": ["x", "Boto3/1.40"]}, True),
    ("StringEquals", {"aws:UserAgent": "boto3/1.40"}, False),
    ("StringEquals", {"aws:UserAgent": "Boto3*"}, False),
    ("StringEqualsIgnoreCase", {"aws:UserAgent": "BOTO3/1.40"}, True),
    ("StringNotEquals", {"aws:UserAgent": ["x", "Boto3/1.40"]}, False),
    ("StringNotEquals", {"aws:UserAgent": ["x", "y"]}, True),
    ("StringNotEquals", {"aws:Referer": "x"}, True),
    ("StringEquals", {"aws:Referer": "x"}, False),
    ("StringEqualsIfExists", {"aws:Referer": "x"}, True),
    ("StringEqualsIfExists", {"aws:UserAgent": "x"}, False),
    ("StringLike", {"aws:UserAgent": "Boto?/*"}, True),
    ("StringNotLike", {"aws:UserAgent": "Boto*"}, False),
    ("StringEquals", {"aws:PrincipalArn": ALICE}, True),
    ("StringEquals", {"aws:PrincipalAccount": FRIEND}, True),
    ("StringEquals", {"aws:PrincipalAccount": OWNER}, False),
    ("ArnEquals", {"aws:SourceArn": "arn:aws:sns:us-east-1:111122223333:news"}, True),
    ("ArnLike", {"aws:SourceArn": "arn:aws:sns:*:111122223333:n*"}, True),
    ("ArnLike", {"aws:SourceArn": "arn:aws:*:news"}, False),
    ("ArnNotEquals", {"aws:SourceArn": "arn:aws:sns:us-east-1:111122223333:news"}, False),
    ("ArnNotLike", {"aws:SourceArn": "arn:aws:s3:*:*:*"}, True),
    ("Bool", {"aws:SecureTransport": "true"}, True),
    ("Bool", {"aws:SecureTransport": True}, True),
    ("Bool", {"aws:SecureTransport": "false"}, False),
    ("NumericEquals", {"aws:MultiFactorAuthAge": "300.0"}, True),
    ("NumericNotEquals", {"aws:MultiFactorAuthAge": 300}, False),
    ("NumericLessThan", {"aws:MultiFactorAuthAge": "301"}, True),
    ("NumericLessThanEquals", {"aws:MultiFactorAuthAge": "299"}, False),
    ("NumericGreaterThan", {"aws:MultiFactorAuthAge": "300"}, False),
    ("NumericGreaterThanEquals", {"aws:MultiFactorAuthAge": "300"}, True),
    ("DateLessThan", {"aws:CurrentTime": "2026-05-01T12:00:01Z"}, True),
    ("DateGreaterThan", {"aws:CurrentTime": "2026-05-01T14:00:00+01:00"}, False),
    ("DateEquals", {"aws:CurrentTime": "1777636800"}, True),
    ("DateNotEquals", {"aws:CurrentTime": "2026-05-01"}, True),
    ("IpAddress", {"aws:SourceIp": "10.1.0.0/16"}, True),
    ("IpAddress", {"aws:SourceIp": ["192.168.0.0/16", "10.1.2.3"]}, True),
    ("IpAddress", {"aws:SourceIp": "2001:db8::/32"}, False),
    ("NotIpAddress", {"aws:SourceIp": "10.1.0.0/16"}, False),
    ("NotIpAddress", {"aws:SourceIp": "10.2.0.0/16"}, True),
    ("Null", {"aws:Referer": "true"}, True),
    ("Null", {"aws:UserAgent": "true"}, False),
    ("Null", {"aws:UserAgent": "false"}, True),
    ("ForAnyValue:StringEquals", {"aws:UserAgent": ["x", "Boto3/1.40"]}, True),
    ("ForAnyValue:StringEquals", {"aws:CalledVia": "x"}, False),
    ("ForAllValues:StringEquals", {"aws:CalledVia": "x"}, True),
    ("ForAllValues:StringLike", {"aws:UserAgent": "x*"}, False),
    ("StringEquals", {"aws:UserAgent": "Boto3/1.40", "aws:SourceIp": "10.1.2.3"}, True),
    ("StringEquals", {"aws:UserAgent": "Boto3/1.40", "aws:SourceIp": "10.1.2.4"}, False),
    ("StringEquals", {"aws:PrincipalArn": "arn:aws:iam::${aws:PrincipalAccount}:user/alice"}, True),
]


@pytest.mark.parametrize("effect", ["Allow", "Deny"])
@pytest.mark.parametrize(("operator", "tests", "holds"), CONDITIONS)
def test_a_condition_holds_as_aws_documents_it(
    operator: str, tests: dict[str, Any], holds: bool, effect: str
) -> None:
    verdict = asks(statement(Effect=effect, Condition={operator: tests}), **SENDER)

    assert verdict == (effect.lower() if holds else None)


@pytest.mark.parametrize(
    "condition",
    [
        {"StringAlmostEquals": {"aws:UserAgent": "x"}},
        {"ForSomeValues:StringEquals": {"aws:UserAgent": "x"}},
        {"StringEquals": {"aws:PrincipalTag/team": "red"}},
        {"StringEquals": {"sqs:Something": "x"}},
        {"StringNotEquals": {"openq:unknown": "x"}},
        {"NumericEquals": {"aws:UserAgent": "1"}},
        {"NumericEquals": {"aws:MultiFactorAuthAge": "nan"}},
        {"DateLessThan": {"aws:CurrentTime": "tomorrow"}},
        {"IpAddress": {"aws:SourceIp": "everywhere"}},
        {"Null": {"aws:UserAgent": "maybe"}},
        {"ArnLike": {"aws:UserAgent": "arn:aws:s3:*:*:*"}},
        {"StringEquals": {"aws:UserAgent": "${aws:Referer}"}},
    ],
)
def test_a_condition_that_cannot_be_evaluated_denies(condition: dict[str, Any]) -> None:
    assert asks(statement(Condition=condition), **SENDER) is None
    assert asks(statement(Effect="Deny", Condition=condition), **SENDER) == "deny"


@pytest.mark.parametrize(
    "condition",
    [
        {"DateGreaterThan": {"aws:CurrentTime": "2001-01-01T00:00:00Z"}},
        {"NumericLessThan": {"aws:EpochTime": "1"}},
        {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}},
        {"NotIpAddressIfExists": {"aws:SourceIp": "10.0.0.0/8"}},
        {"Bool": {"aws:SecureTransport": "false"}},
        {"StringEquals": {"aws:RequestedRegion": "us-east-1"}},
        {"StringEquals": {"aws:userid": "AIDA"}},
        {"Null": {"aws:CurrentTime": "true"}},
    ],
)
def test_a_missing_condition_key_that_every_request_has_denies(condition: dict[str, Any]) -> None:
    assert asks(statement(Condition=condition)) is None
    assert asks(statement(Effect="Deny", Condition=condition)) == "deny"


def test_a_condition_that_is_plainly_false_ends_a_deny_whatever_the_others_are() -> None:
    condition = {"Unheard": {"aws:UserAgent": "x"}, "Bool": {"aws:SecureTransport": "false"}}

    assert asks(statement(Effect="Deny", Condition=condition), **SENDER) is None


def test_a_deny_outweighs_an_allow_wherever_it_stands() -> None:
    allow, deny = statement(Principal="*"), statement(Effect="Deny")

    assert asks(allow, deny) == asks(deny, allow) == "deny"


def test_the_batch_needs_what_the_single_needs() -> None:
    assert asks(statement(), action="SendMessageBatch") == "allow"
    assert asks(statement(), action="sqs:SendMessageBatch") == "allow"
    assert asks(statement(Effect="Deny"), action="SendMessageBatch") == "deny"


def test_who_did_not_sign_in_gets_what_everybody_gets() -> None:
    assert asks(statement(Principal="*"), arn="") == "allow"
    assert asks(statement(), arn="") is None
    assert asks(statement(Principal="*", Condition={"StringLike": {"aws:PrincipalArn": "*"}}), arn="") is None


def test_naming_the_queues_own_account_leaves_the_choice_to_its_rules() -> None:
    document = parse(policy(statement(Principal={"AWS": OWNER})))
    user = f"arn:aws:iam::{OWNER}:user/carol"

    assert evaluate(document, user, OWNER, "SendMessage", QUEUE, delegated=False) is None
    assert (
        evaluate(document, f"arn:aws:iam::{OWNER}:root", OWNER, "SendMessage", QUEUE, delegated=False)
        == "allow"
    )


def test_variables_belong_to_the_newer_version_only() -> None:
    text = statement(Principal="*", Condition={"StringEquals": {"aws:UserAgent": "${aws:UserAgent}"}})
    facts = {"aws:UserAgent": "${aws:UserAgent}"}

    old = parse(policy(text, version="2008-10-17"))
    assert evaluate(old, ALICE, FRIEND, "SendMessage", QUEUE, facts) == "allow"
    assert evaluate(old, ALICE, FRIEND, "SendMessage", QUEUE, {"aws:UserAgent": "x"}) is None


def test_a_value_cannot_smuggle_a_wildcard_in_through_a_variable() -> None:
    text = statement(Resource=f"arn:aws:sqs:*:{OWNER}:${{aws:UserAgent}}")

    assert asks(text, aws_UserAgent="orders") == "allow"
    assert asks(text, aws_UserAgent="*") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"*"',
        "{}",
        '{"Statement": []}',
        '{"Statement": [1]}',
        "[" * 100_000,
        policy(statement(), version="2020-01-01"),
        policy(statement(Effect="Maybe")),
        policy(statement(Effect=None)),
        policy(statement(Principal=None)),
        policy(statement(NotPrincipal="*")),
        policy(statement(Principal="alice")),
        policy(statement(Principal={})),
        policy(statement(Principal={"Gods": "Zeus"})),
        policy(statement(Principal={"AWS": []})),
        policy(statement(Principal={"AWS": 1})),
        policy(statement(Action=None)),
        policy(statement(Action=[])),
        policy(statement(Action="s3:GetObject")),
        policy(statement(Action="sqs:")),
        policy(statement(NotResource="*")),
        policy(statement(Resource=[1])),
        policy(statement(Sid=1)),
        policy(statement(Sid="a"), statement(Sid="a")),
        policy(statement(Condition=[])),
        policy(statement(Condition={"Bool": "x"})),
        policy(statement(Condition={"Bool": {"aws:SecureTransport": {}}})),
        policy(statement(Surprise="x")),
        '{"Statement": [], "Statement": []}',
        '{"Id": 1, "Statement": {}}',
        " " * 70_000,
    ],
)
def test_a_policy_that_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidAccessPolicy):
        parse(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["Statement", "Effect", "Principal", "AWS", "Action", "Condition", "Bool"]),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_no_document_is_an_accident(source: object) -> None:
    try:
        parse(json.dumps(source))
    except InvalidAccessPolicy:
        pass


def test_a_permission_is_added_as_aws_writes_it_and_removed_again() -> None:
    text = add_permission(None, "first", [FRIEND], ["SendMessage"], QUEUE)

    assert json.loads(text) == {
        "Version": "2008-10-17",
        "Id": f"{QUEUE}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "first",
                "Effect": "Allow",
                "Principal": {"AWS": ROOT},
                "Action": "SQS:SendMessage",
                "Resource": QUEUE,
            }
        ],
    }
    more = add_permission(text, "second", [FRIEND, "999999999999"], ["*", "sqs:ReceiveMessage"], QUEUE)
    added = json.loads(more)["Statement"][1]
    assert added["Action"] == ["SQS:*", "SQS:ReceiveMessage"]
    assert added["Principal"] == {"AWS": [ROOT, "arn:aws:iam::999999999999:root"]}
    assert evaluate(parse(more), ALICE, FRIEND, "DeleteMessage", QUEUE) == "allow"

    assert remove_permission(more, "second") == text
    assert remove_permission(text, "first") is None


def test_labels_are_unique_and_must_be_there() -> None:
    text = add_permission(None, "first", [FRIEND], ["SendMessage"], QUEUE)

    with pytest.raises(LabelExists):
        add_permission(text, "first", [FRIEND], ["SendMessage"], QUEUE)
    with pytest.raises(LabelNotFound):
        remove_permission(text, "second")
    with pytest.raises(LabelNotFound):
        remove_permission(None, "first")


def test_a_single_statement_that_is_no_list_can_be_added_to() -> None:
    text = json.dumps({"Version": "2012-10-17", "Statement": statement(Sid="own")})

    assert len(parse(add_permission(text, "more", [FRIEND], ["*"], QUEUE)).statements) == 2


def test_a_policy_has_at_most_twenty_statements() -> None:
    text: str | None = None
    for number in range(20):
        text = add_permission(text, f"label-{number}", [FRIEND], ["*"], QUEUE)

    with pytest.raises(InvalidAccessPolicy):
        add_permission(text, "one more", [FRIEND], ["*"], QUEUE)
