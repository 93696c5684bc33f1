"""The requests of a webhook: CloudEvents and Standard Webhooks, read by their own packages."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from openq.errors import InvalidSetting
from openq.model import (
    ENCODING_BYTES,
    ENCODING_JSON,
    ENCODING_MSGPACK,
    ENCODING_TEXT,
    DeliveryOptions,
    Properties,
)
from openq.webhooks.formats import Item, RequestBuilder
from openq.webhooks.model import MODES, Secret, Webhook, with_secret
from openq.webhooks.signing import key_of, new_secret
from tests.budget import examples


def current_ms() -> int:
    """The verifier accepts no request that is older than five minutes; a run of all tests takes longer."""
    return int(datetime.now(UTC).timestamp() * 1000)


NOW_MS = current_ms()
SECRET = new_secret()


def builder(
    mode: str = "raw", batch: int = 1, secrets: list[Secret] | None = None, **fields: Any
) -> RequestBuilder:
    secrets = [Secret(text=SECRET, created_ms=0)] if secrets is None else secrets
    url = "https://example.com/hook"
    return RequestBuilder(
        Webhook(name="w", url=url, queue="q", mode=mode, batch=batch, secrets=secrets, **fields)
    )


def item(body: bytes = b'{"a": 1}', encoding: int = ENCODING_JSON, **fields: Any) -> Item:
    attributes = fields.pop("attributes", None)
    if attributes is not None:
        fields["properties"] = Properties(attributes)
    return Item(
        **{"id": "m1", "queue": "orders", "type": None, "time_ms": NOW_MS, **fields},
        body=body,
        encoding=encoding,
    )


def parsed(head: bytes) -> dict[str, str]:
    """Headers as a strict reader sees them."""
    assert head.endswith(b"\r\n\r\n")
    lines = head[:-4].decode("ascii").split("\r\n")
    assert lines[0].startswith("POST ")
    pairs = [line.split(": ", 1) for line in lines[1:]]
    return {name.lower(): value for name, value in pairs}


def event_of(mode: str, sent: Item) -> Any:
    request = builder(mode).build([sent], NOW_MS)
    event: Any = from_http(HTTPMessage(parsed(request.head), request.body), JSONFormat())
    return event


@pytest.mark.parametrize("mode", ["cloudevents-binary", "cloudevents-structured"])
def test_the_cloudevents_package_reads_an_event(mode: str) -> None:
    sent = item(
        type="order.created",
        options=DeliveryOptions(type="order.created", group="Zürich 100%", priority=7),
        deliveries=3,
        attributes={
            "tenant": 'a "b" %',
            "small": 5,
            "flag": True,
            "Not-A-Name": 1,
            "big": 1 << 40,
            "deep": {"x": b"1"},
        },
    )
    event = event_of(mode, sent)
    attributes = event.get_attributes()

    assert event.get_data() == {"a": 1}
    assert attributes["id"] == "m1"
    assert attributes["source"] == "/queues/orders"
    assert attributes["type"] == "order.created"
    assert attributes["specversion"] == "1.0"
    assert attributes["time"] == datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert attributes["datacontenttype"] == "application/json"
    assert attributes["openqgroup"] == "Zürich 100%"
    assert attributes["tenant"] == 'a "b" %'
    assert str(attributes["openqpriority"]) == "7"
    assert str(attributes["openqreceivecount"]) == "3"
    assert str(attributes["small"]) == "5"
    assert str(attributes["flag"]).lower() == "true"
    rest = json.loads(attributes["openqattributes"])
    assert rest == {"Not-A-Name": 1, "big": 1 << 40, "deep": {"x": {"$base64": "MQ=="}}}


@pytest.mark.parametrize(
    ("body", "encoding", "kind"),
    [
        (b"hello", ENCODING_TEXT, "text/plain; charset=utf-8"),
        (b"\x00\xff", ENCODING_BYTES, "application/octet-stream"),
        (b"\x81\xa1a\x01", ENCODING_MSGPACK, "application/msgpack"),
        (b"[1,2]", ENCODING_JSON, "application/json"),
    ],
)
def test_bodies_of_every_kind(body: bytes, encoding: int, kind: str) -> None:
    sent = item(body, encoding)
    for mode in ("raw", "cloudevents-binary"):
        request = builder(mode).build([sent], NOW_MS)
        assert (request.body, parsed(request.head)["content-type"]) == (body, kind)
    event = json.loads(builder("cloudevents-structured").build([sent], NOW_MS).body)
    assert event["datacontenttype"] == kind
    if encoding == ENCODING_JSON:
        assert event["data"] == [1, 2]
    elif encoding == ENCODING_TEXT:
        assert event["data"] == "hello"
    else:
        assert base64.b64decode(event["data_base64"]) == body


def test_batches_of_cloudevents_are_an_array() -> None:
    items = [item(id=f"m{number}") for number in range(3)]
    request = builder("cloudevents-structured", batch=10).build(items, NOW_MS)

    assert parsed(request.head)["content-type"] == "application/cloudevents-batch+json; charset=utf-8"
    assert [event["id"] for event in json.loads(request.body)] == ["m0", "m1", "m2"]
    # The same messages again have the same id, others another one.
    assert builder("cloudevents-structured", batch=10).build(items, NOW_MS + 5000).id == request.id
    assert builder("cloudevents-structured", batch=10).build(items[:2], NOW_MS).id != request.id


def test_queues_of_accounts_have_their_own_source() -> None:
    assert (
        event_of("cloudevents-binary", item(queue="@a/b c")).get_attributes()["source"]
        == "/accounts/a/queues/b%20c"
    )


def test_during_a_rotation_both_secrets_verify() -> None:
    second, now_ms = new_secret(), current_ms()
    secrets = with_secret([Secret(text=SECRET, created_ms=0)], second, now_ms, 60_000)
    build = builder(secrets=secrets).build
    request = build([item()], now_ms)
    for secret in (SECRET, second):
        assert Verifier(secret).verify(request.body, parsed(request.head)) == {"a": 1}
    later = build([item()], now_ms + 60_000)
    assert Verifier(second).verify(later.body, parsed(later.head)) == {"a": 1}
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(later.body, parsed(later.head))
    with pytest.raises(WebhookVerificationError):
        Verifier(second).verify(b'{"a": 2}', parsed(later.head))


def test_a_rotation_keeps_old_secrets_for_their_time_only() -> None:
    first = [Secret(text=SECRET, created_ms=0)]
    assert [each.until_ms for each in with_secret(first, new_secret(), 1000, 500)] == [0, 1500]
    assert len(with_secret(first, new_secret(), 1000, 0)) == 1
    several = first
    for number in range(20):
        several = with_secret(several, new_secret(), number, 1000)
    assert len(several) == 5


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_short", "whsec_" + "A" * 200, "x" * 40, "whsec_\u00fc" + "A" * 40]
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        key_of(secret)
    assert len(secret) < 12 or secret not in str(raised.value)


@settings(max_examples=examples(60), deadline=None)
@given(
    mode=st.sampled_from(MODES),
    id=st.text(min_size=1, max_size=30),
    kind=st.none() | st.text(min_size=1, max_size=30),
    group=st.none() | st.text(min_size=1, max_size=30),
    attributes=st.dictionaries(
        st.text(min_size=1, max_size=12),
        st.text(max_size=20) | st.integers() | st.binary(max_size=8),
        max_size=4,
    ),
    body=st.binary(max_size=50),
    encoding=st.sampled_from([ENCODING_BYTES, ENCODING_TEXT, ENCODING_JSON, ENCODING_MSGPACK]),
)
def test_no_message_can_change_the_head_of_a_request(
    mode: str,
    id: str,
    kind: str | None,
    group: str | None,
    attributes: dict[str, Any],
    body: bytes,
    encoding: int,
) -> None:
    now_ms = current_ms()
    options = DeliveryOptions(type=kind, group=group)
    sent = item(body, encoding, id=id, type=kind, options=options, attributes=attributes)
    request = builder(mode).build([sent], now_ms)
    headers = parsed(request.head)

    assert headers["content-length"] == str(len(request.body))
    assert request.head.count(b"\r\n\r\n") == 1
    assert headers["webhook-id"].isprintable()
    assert "." not in headers["webhook-id"]
    assert " " not in headers["webhook-id"]
    Verifier(SECRET).verify(
        b"{}",
        {
            **headers,
            "webhook-signature": Verifier(SECRET).sign(
                headers["webhook-id"], datetime.fromtimestamp(now_ms // 1000, UTC), "{}"
            ),
        },
    )
    if mode.startswith("cloudevents"):
        event = from_http(HTTPMessage(headers, request.body), _AnyData())
        assert event.get_attributes()["id"] == id


class _AnyData(JSONFormat):
    """Bodies of these tests are not what their encodings say."""

    def read_data(self, body: bytes, datacontenttype: str | None) -> Any:
        return body
