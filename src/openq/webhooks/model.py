"""A webhook as it is stored, and the rules that it must keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..broker.events import EVENT_NAMES
from ..errors import InvalidSetting
from ..limits import rate_text
from ..model import MessageFilter
from .addresses import AddressRules, literal_address
from .endpoint import check_headers, read_url
from .signing import key_of

RAW, JSON = "raw", "json"
CE_BINARY, CE_STRUCTURED = "cloudevents-binary", "cloudevents-structured"
MODES = (RAW, JSON, CE_BINARY, CE_STRUCTURED)
BATCH_MODES = (JSON, CE_STRUCTURED)

MAX_BATCH = 1_000
MAX_CONCURRENCY = 256
MAX_TIMEOUT_MS = 300_000
MAX_SECRETS = 5
MAX_PATTERNS = 100


class Secret(msgspec.Struct, kw_only=True):
    """A key that requests are signed with. `until_ms` 0: for ever; an older one is valid for a while."""

    text: str
    created_ms: int
    until_ms: int = 0


class EventSelection(msgspec.Struct, kw_only=True):
    """Which events are sent. A condition that is empty holds for all."""

    queues: list[str] = []  # patterns of queue keys
    events: list[str] = []
    types: list[str] = []
    attributes: dict[str, Any] = {}
    bodies: bool = False


class Webhook(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`name` and `queue` are qualified. Either `queue` or `events` is set."""

    name: str
    url: str
    queue: str | None = None
    types: list[str] = []  # only messages of these types; all if it is empty
    attributes: dict[str, Any] = {}  # only messages that have these: for each a value, or a list of values
    events: EventSelection | None = None
    mode: str = RAW
    batch: int = 1
    headers: dict[str, str] = {}
    secrets: list[Secret] = []  # the newest first
    concurrency: int = 8
    rate: str | None = None
    timeout_ms: int = 30_000
    failures: int = 10  # in a row, which open the circuit breaker
    max_attempts: int | None = None  # for an event; None: until it is delivered. Messages: the queue's
    enabled: bool = True
    reason: str | None = None  # why it is disabled
    is_gone: bool = False  # disabled because its endpoint answered 410
    created_ms: int = 0
    position: str | None = None  # of events: where it began
    declared_by: str | None = None  # a user; "": the configuration, or a server without users; None: unknown

    def message_filter(self) -> MessageFilter | None:
        source = self if self.events is None else self.events
        return MessageFilter.of(source.types or None, source.attributes)

    def keys(self, now_ms: int) -> list[bytes]:
        """The keys that are valid now."""
        return [key_of(each.text) for each in self.secrets if not each.until_ms or each.until_ms > now_ms]


def check(webhook: Webhook, rules: AddressRules) -> Webhook:
    """With canonical values. Raises InvalidSetting."""
    if (webhook.queue is None) == (webhook.events is None):
        raise InvalidSetting("a webhook sends messages or events: give one of queue and events")
    endpoint = read_url(webhook.url)
    address = literal_address(endpoint.host)
    if address is not None:
        rules.check(endpoint.host, address)  # of a name at every connection
    if webhook.mode not in MODES:
        raise InvalidSetting(f"mode must be one of {', '.join(MODES)}, not {webhook.mode!r}")
    if webhook.events is not None:
        _check_events(webhook)
    wanted = webhook.message_filter()  # raises InvalidSetting
    if wanted is not None and any(
        isinstance(each, bytes) for _, values in wanted.attributes for each in values
    ):
        raise InvalidSetting("a webhook selects attributes by texts and numbers, not by bytes")
    if not 1 <= webhook.batch <= MAX_BATCH:
        raise InvalidSetting(f"batch must be 1 to {MAX_BATCH}, not {webhook.batch}")
    if webhook.batch > 1 and webhook.mode not in BATCH_MODES:
        raise InvalidSetting(f"only {' and '.join(BATCH_MODES)} have batches, not {webhook.mode}")
    if not 1 <= webhook.concurrency <= MAX_CONCURRENCY:
        raise InvalidSetting(f"concurrency must be 1 to {MAX_CONCURRENCY}, not {webhook.concurrency}")
    if not 100 <= webhook.timeout_ms <= MAX_TIMEOUT_MS:
        raise InvalidSetting(f"timeout must be 0.1 to {MAX_TIMEOUT_MS // 1000} seconds")
    if not 1 <= webhook.failures <= 1_000_000:
        raise InvalidSetting("failures must be 1 to 1000000")
    if webhook.max_attempts is not None and not 1 <= webhook.max_attempts <= 1_000_000:
        raise InvalidSetting("max_attempts must be 1 to 1000000, or null")
    for secret in webhook.secrets:
        key_of(secret.text)
    webhook.rate = rate_text(webhook.rate, "rate")
    webhook.headers = check_headers(webhook.headers)
    return webhook


def _check_events(webhook: Webhook) -> None:
    selected = webhook.events
    assert selected is not None
    if webhook.mode == RAW:
        raise InvalidSetting("events have no raw body: choose the mode json or one of cloudevents")
    if webhook.types:
        raise InvalidSetting("types of events belong into events: {types: [...]}")
    if webhook.attributes:
        raise InvalidSetting("attributes of events belong into events: {attributes: {...}}")
    unknown = [each for each in selected.events if each not in EVENT_NAMES]
    if unknown:
        raise InvalidSetting(f"unknown event {unknown[0][:100]!r}; there are {', '.join(EVENT_NAMES)}")
    for values in (selected.queues, selected.types, selected.events):
        if len(values) > MAX_PATTERNS:
            raise InvalidSetting(f"at most {MAX_PATTERNS} queues, types or events")


def with_secret(secrets: Sequence[Secret], text: str, now_ms: int, keep_ms: int) -> list[Secret]:
    """The secrets after a rotation: the new one, and the older ones for `keep_ms` at most."""
    key_of(text)
    until_ms = now_ms + keep_ms
    older = [
        Secret(
            text=each.text,
            created_ms=each.created_ms,
            until_ms=min(each.until_ms or until_ms, until_ms),
        )
        for each in secrets
        if each.text != text and (not each.until_ms or each.until_ms > now_ms)
    ]
    if not keep_ms:
        older = []
    return [Secret(text=text, created_ms=now_ms), *older][:MAX_SECRETS]
