"""Signatures made by botocore hold; anything that changes what was asked for does not."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from random import Random

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from openq.auth.errors import InvalidSignature
from openq.auth.sigv4 import KeyInfo, Verifier

from .campaign import refused, verifier_of
from .signing import (
    ACCESS_KEY,
    HOST,
    SECRET,
    Wire,
    any_request,
    mutations,
    send_message,
    sign,
    verifier,
    verify,
)


def code_of(wire: Wire, by: Verifier | None = None, now_s: float | None = None) -> str:
    with pytest.raises(InvalidSignature) as caught:
        verify(wire, by, now_s)
    return caught.value.code


def test_the_hot_request_holds_and_says_who_signed() -> None:
    signed = verify(send_message(region="eu-central-1"))

    assert (signed.access_key, signed.region, signed.presigned) == (ACCESS_KEY, "eu-central-1", False)


def test_a_second_request_of_the_same_client_holds_too() -> None:
    by = verifier()

    for body in ("one", "two", "three"):
        assert verify(send_message(body), by).access_key == ACCESS_KEY


def test_what_is_remembered_of_a_good_request_does_not_let_a_bad_one_in() -> None:
    by = verifier()
    wire = send_message()
    verify(wire, by)

    assert code_of(replace(wire, body=wire.body + b" "), by) == "SignatureDoesNotMatch"
    assert code_of(wire.with_header(b"x-amz-target", b"AmazonSQS.DeleteQueue"), by) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("seed", range(20))
def test_requests_of_any_shape_hold_and_any_changed_byte_is_noticed(seed: int) -> None:
    random = Random(seed)
    for _ in range(60):
        wire = any_request(random)
        by = verifier_of(wire)
        verify(wire, by)
        for place, spoiled in mutations(wire, random, 20):
            assert refused(spoiled, by), (place, wire, spoiled)


@given(
    st.text(max_size=60), st.dictionaries(st.text("abcxyz-", min_size=1), st.text(max_size=20), max_size=4)
)
def test_any_text_in_body_and_query_holds(body: str, parameters: dict[str, str]) -> None:
    request = AWSRequest("POST", f"http://{HOST}/", params=parameters, data=body.encode("utf-8", "replace"))
    SigV4Auth(Credentials(ACCESS_KEY, SECRET), "sqs", "us-east-1").add_auth(request)
    prepared = request.prepare()
    target = prepared.url.removeprefix(f"http://{HOST}").encode()
    # botocore writes a space in parameters as `+` on the wire and signs it as `%20`.
    headers = [
        (n.lower().encode(), v if isinstance(v, bytes) else v.encode()) for n, v in prepared.headers.items()
    ]
    headers = [*headers, (b"host", HOST.encode())]
    wire = Wire("POST", target, headers, body.encode("utf-8", "replace"), _signed_s(headers))

    verify(wire)


def _signed_s(headers: list[tuple[bytes, bytes]]) -> float:
    from openq.auth.sigv4 import _seconds

    return _seconds(dict(headers)[b"x-amz-date"])


@pytest.mark.parametrize(
    "path",
    [
        "/a/./b",
        "/a/../b",
        "//a///b//",
        "/a/b/",
        "/a%20b",
        "/%E6%BC%A2",
        "/a:b@c(d)",
        "/..",
        "/.",
        "/a/..",
        "/~x",
    ],
)
def test_paths_are_normalised_as_botocore_does(path: str) -> None:
    verify(sign("GET", path))


@pytest.mark.parametrize(
    "query", ["b=2&a=1", "a=2&a=1", "a", "a=&b", "a=b=c", "a=%3A&b=%2F", "a==", "&a=1", "a=1&&b"]
)
def test_queries_are_sorted_by_name_then_value(query: str) -> None:
    verify(sign("GET", f"/?{query}"))


def test_a_colon_may_be_signed_as_it_is_or_escaped() -> None:
    plain = sign("GET", "/?a=x:y")
    escaped = sign("GET", "/?a=x%3Ay")

    verify(plain)
    verify(replace(escaped, target=b"/?a=x:y"))


def test_repeated_headers_are_joined() -> None:
    wire = sign("POST", "/", {"X-Thing": "one,two"})
    kept = [pair for pair in wire.headers if pair[0] != b"x-thing"]

    verify(replace(wire, headers=[*kept, (b"x-thing", b"one"), (b"x-thing", b"two")]))
    assert code_of(replace(wire, headers=[*wire.headers, (b"x-thing", b"more")])) == "SignatureDoesNotMatch"


def test_white_space_around_and_inside_a_value_does_not_count() -> None:
    wire = sign("POST", "/", {"X-Thing": "one two"})

    verify(wire.with_header(b"x-thing", b"  one \t  two "))


def test_a_request_without_a_signature_is_refused_with_what_is_missing() -> None:
    assert code_of(send_message().without_header(b"authorization")) == "MissingAuthenticationToken"
    assert code_of(send_message().with_header(b"authorization", b"Bearer x")) == "MissingAuthenticationToken"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (b"AWS4-HMAC-SHA256", b"AWS4-HMAC-SHA512", "IncompleteSignature"),
        (b"Credential=", b"Kredential=", "IncompleteSignature"),
        (b"/us-east-1/sqs", b"/us-east-1/sns", "SignatureDoesNotMatch"),
        (b"/aws4_request", b"/aws5_request", "SignatureDoesNotMatch"),
        (b"/us-east-1/", b"/", "IncompleteSignature"),
        (b"/us-east-1/", b"//", "SignatureDoesNotMatch"),
        (b";host", b"", "SignatureDoesNotMatch"),
        (b";x-amz-target", b"", "SignatureDoesNotMatch"),
        (b";host", b";host;host", "IncompleteSignature"),
        (b";host", b";Host", "IncompleteSignature"),
        (b";host", b";host;not-there", "SignatureDoesNotMatch"),
        (b", Signature=", b", Signature=00", "SignatureDoesNotMatch"),
        (b", Signature=", b", Other=", "IncompleteSignature"),
        (b"Credential=", b"Credential=x, Credential=", "IncompleteSignature"),
        (b"Credential=", b"Credential=\xff", "IncompleteSignature"),
    ],
)
def test_a_malformed_authorization_is_refused(old: bytes, new: bytes, code: str) -> None:
    wire = send_message()
    value = wire.header(b"authorization")
    assert old in value

    assert code_of(wire.with_header(b"authorization", value.replace(old, new, 1))) == code


def test_every_part_of_the_authorization_is_needed() -> None:
    wire = send_message()
    start, *parts = (
        wire.header(b"authorization").replace(b"AWS4-HMAC-SHA256 ", b"AWS4-HMAC-SHA256 , ").split(b", ")
    )
    for left_out in parts:
        value = start + b", ".join(part for part in parts if part != left_out)
        assert code_of(wire.with_header(b"authorization", value)) == "IncompleteSignature"


def test_an_unsigned_amz_header_is_refused() -> None:
    assert code_of(send_message().with_header(b"x-amz-anything", b"1")) == "SignatureDoesNotMatch"
    presigned = sign("GET", "/?Action=ListQueues", expires=60)
    assert (
        code_of(presigned.with_header(b"x-amz-target", b"AmazonSQS.DeleteQueue")) == "SignatureDoesNotMatch"
    )


@pytest.mark.parametrize("claim", ["UNSIGNED-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "0" * 64])
def test_a_body_hash_that_is_not_the_bodys_is_refused(claim: str) -> None:
    wire = sign("POST", "/", {"X-Amz-Content-SHA256": claim}, b"body")

    assert code_of(wire) == "SignatureDoesNotMatch"


def test_the_right_body_hash_is_accepted() -> None:
    verify(sign("POST", "/", {"X-Amz-Content-SHA256": sha256(b"body").hexdigest()}, b"body"))


@pytest.mark.parametrize(("off_s", "holds"), [(-900, True), (900, True), (-901, False), (901, False)])
def test_a_clock_may_be_off_by_fifteen_minutes(off_s: int, holds: bool) -> None:
    wire = send_message()

    if holds:
        verify(wire, now_s=wire.now_s + off_s)
    else:
        assert code_of(wire, now_s=wire.now_s + off_s) == "RequestTimeTooSkewed"


@pytest.mark.parametrize(
    "stamp", [b"", b"20261301T000000Z", b"20260101T250000Z", b"yesterday", b"20260101T0000000", b"\xff"]
)
def test_a_date_that_is_none_is_refused(stamp: bytes) -> None:
    assert code_of(send_message().with_header(b"x-amz-date", stamp)) == "IncompleteSignature"


def test_the_date_header_stands_in_for_the_amz_one() -> None:
    wire = sign("POST", "/", {"Date": "is replaced"}, b"body")
    assert b"x-amz-date" not in dict(wire.headers)

    verify(wire)
    assert code_of(wire.without_header(b"date")) == "IncompleteSignature"
    assert code_of(wire.with_header(b"date", b"some day")) == "IncompleteSignature"


def test_the_day_of_the_scope_is_the_day_of_the_date() -> None:
    wire = send_message()
    day = wire.header(b"x-amz-date")[:8]
    other = wire.header(b"authorization").replace(day, b"20200101")

    assert code_of(wire.with_header(b"authorization", other)) == "SignatureDoesNotMatch"


def test_a_presigned_url_holds_until_it_expires() -> None:
    wire = sign("GET", "/000000000000/orders?Action=ReceiveMessage", expires=60)

    assert verify(wire, now_s=wire.now_s + 60).presigned
    assert code_of(wire, now_s=wire.now_s + 61) == "RequestExpired"
    assert code_of(wire, now_s=wire.now_s - 901) == "RequestTimeTooSkewed"


@pytest.mark.parametrize("expires", [0, 604_801, -1])
def test_a_presigned_url_lasts_a_second_to_a_week(expires: int) -> None:
    assert code_of(sign("GET", "/?Action=ListQueues", expires=expires)) == "IncompleteSignature"
    verify(sign("GET", "/?Action=ListQueues", expires=604_800))


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_a_presigned_url_needs_each_parameter_exactly_once(name: str) -> None:
    wire = sign("GET", "/?Action=ListQueues", expires=60)
    pairs = wire.target.removeprefix(b"/?").split(b"&")
    [pair] = [pair for pair in pairs if pair.startswith(f"X-Amz-{name}=".encode())]

    assert (
        code_of(replace(wire, target=b"/?" + b"&".join(p for p in pairs if p != pair)))
        == "IncompleteSignature"
    )
    assert code_of(replace(wire, target=wire.target + b"&" + pair)) == "IncompleteSignature"


def test_a_presigned_url_of_another_algorithm_is_refused() -> None:
    wire = sign("GET", "/?Action=ListQueues", expires=60)

    assert code_of(replace(wire, target=wire.target.replace(b"SHA256", b"SHA1"))) == "IncompleteSignature"


@pytest.mark.parametrize("expires", [None, 60])
def test_a_session_needs_its_token_and_ends(expires: int | None) -> None:
    wire = sign("GET", "/?Action=ListQueues", token="the/token+=", expires=expires)
    session = verifier(token_hash=sha256(b"the/token+=").digest(), expires_s=wire.now_s + 30)

    verify(wire, session)
    assert code_of(wire, session, wire.now_s + 30) == "ExpiredToken"
    assert code_of(wire, verifier(token_hash=sha256(b"another").digest())) == "InvalidClientTokenId"
    assert code_of(wire, verifier()) == "InvalidClientTokenId"
    assert code_of(sign("GET", "/?Action=ListQueues", expires=expires), session) == "InvalidClientTokenId"


def test_nothing_is_revealed_about_a_session_without_its_secret() -> None:
    wire = sign("GET", "/", token="t", secret="wrong")
    ended = verifier(token_hash=sha256(b"other").digest(), expires_s=0)

    assert code_of(wire, ended) == "SignatureDoesNotMatch"


def test_an_unknown_key_and_a_wrong_secret_are_refused_as_aws_does() -> None:
    assert code_of(send_message(access_key="OQIANOBODY")) == "InvalidClientTokenId"
    assert code_of(send_message(secret="wrong")) == "SignatureDoesNotMatch"


def test_an_unknown_key_is_not_let_in_by_the_stand_in_secret() -> None:
    assert code_of(send_message(access_key="OQIANOBODY", secret="\0" * 40)) == "InvalidClientTokenId"


def test_a_new_secret_counts_at_once() -> None:
    keys = {ACCESS_KEY: KeyInfo(ACCESS_KEY, SECRET)}
    by = Verifier(keys.get)
    verify(send_message(), by)

    keys[ACCESS_KEY] = KeyInfo(ACCESS_KEY, "another secret")

    assert code_of(send_message(), by) == "SignatureDoesNotMatch"
    verify(send_message(secret="another secret"), by)


def test_behind_a_proxy_the_names_clients_know_are_accepted() -> None:
    wire = send_message(host="queues.example.com").with_header(b"host", b"10.0.0.7:9324")
    keys = {ACCESS_KEY: KeyInfo(ACCESS_KEY, SECRET)}

    verify(wire, Verifier(keys.get, ["other.example.com", "queues.example.com"]))
    assert code_of(wire) == "SignatureDoesNotMatch"
    assert code_of(wire.with_header(b"x-forwarded-host", b"queues.example.com")) == "SignatureDoesNotMatch"


def test_memory_stays_bounded_whatever_strangers_send() -> None:
    by = verifier()
    wire = send_message()
    value = wire.header(b"authorization")
    for number in range(3000):
        spoiled = value.replace(b"us-east-1", b"region-%d" % number)
        assert refused(wire.with_header(b"authorization", spoiled), by)

    assert max(len(cache) for cache in (by._scopes, by._keys, by._times)) <= 1024
    verify(wire, by)


def test_the_quick_proof_lets_nothing_in_that_the_whole_one_refuses() -> None:
    by = verifier()
    wire = send_message()
    target, headers, body = wire.target, wire.headers, wire.body
    now_s = _signed_s(headers)
    # Two whole proofs: the first one learns how this client signs, the second which headers it sends.
    for _ in range(2):
        by.verify(wire.method, target, headers, body, now_s)
    given = dict(headers)
    assert by.verify_fast(target, given, body, now_s) == ACCESS_KEY
    scope = {*given[b"authorization"].partition(b"SignedHeaders=")[2].partition(b",")[0].split(b";")}
    scope.add(b"authorization")

    for name in list(given):
        value = given[name]
        for at in range(len(value)):
            changed = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
            if name in scope:
                assert by.verify_fast(target, {**given, name: changed}, body, now_s) is None, (name, at)
        rest = {each: text for each, text in given.items() if each != name}
        if name in scope:
            assert by.verify_fast(target, rest, body, now_s) is None
    for at in range(len(body)):
        assert (
            by.verify_fast(target, given, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :], now_s) is None
        )
    assert by.verify_fast(target, given, body + b" ", now_s) is None
    assert by.verify_fast(b"/x", given, body, now_s) is None
    assert by.verify_fast(target, {**given, b"x-amz-more": b"1"}, body, now_s) is None
    assert by.verify_fast(target, {**given, b"x-amz-security-token": b"1"}, body, now_s) is None
    assert (
        by.verify_fast(target, {**given, b"x-amz-content-sha256": b"UNSIGNED-PAYLOAD"}, body, now_s) is None
    )
    assert by.verify_fast(target, given, body, now_s + 901) is None
