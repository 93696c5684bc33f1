"""The types of webhooks in requests and replies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from ..webhooks.model import MAX_BATCH, MAX_CONCURRENCY, MAX_PATTERNS
from .schemas import Limit, Moment, Name, QueryParameters, RateText, ReplyBody, RequestBody, Seconds, Word

Mode = Literal["raw", "json", "cloudevents-binary", "cloudevents-structured"]
SecretText = Annotated[str, Meta(max_length=200, description="whsec_ and the base64 of 24 to 64 bytes")]
Words = Annotated[list[Word], Meta(max_length=MAX_PATTERNS)]


class EventChoice(RequestBody, kw_only=True):
    """Which events are sent: by patterns of queue names, by events, by message types. Empty: all."""

    queues: Words = field(default_factory=list)
    events: Words = field(default_factory=list)
    types: Words = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    bodies: bool = False


class WebhookChange(RequestBody, kw_only=True):
    """Either the messages of a `queue`, or `events`, and the URL that they are sent to.

    Without a `secret`, a new webhook gets one, which the reply shows this once; an existing one keeps its
    own.
    """

    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    queue: Name | None = None
    types: Words = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    events: EventChoice | None = None
    mode: Mode | None = None
    batch: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 1
    headers: dict[str, str] = field(default_factory=dict)
    secret: SecretText | None = None
    concurrency: Annotated[int, Meta(ge=1, le=MAX_CONCURRENCY)] = 8
    rate: RateText | None = None
    timeout: Annotated[float, Meta(ge=0.1, le=300)] = 30.0
    failures: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    max_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class SecretView(ReplyBody, kw_only=True):
    """A secret, without its text. `expires` is null for the newest one."""

    created: str
    expires: str | None


class WebhookStatus(ReplyBody, kw_only=True):
    """`state`: running, paused (by the circuit breaker or by the endpoint), waiting (`trouble` says why),
    disabled, or elsewhere (another server sends it). Counts are those of this server since its start."""

    state: str
    breaker: str
    paused_until: str | None
    in_flight: int
    trouble: str | None
    delivered: int
    failed: int
    last_attempt: str | None
    last_error: str | None
    owner: str | UnsetType = UNSET


class WebhookView(ReplyBody, kw_only=True):
    """A webhook. Values of headers and passwords in the URL are not shown."""

    name: str
    url: str
    queue: str | None
    types: list[str]
    attributes: dict[str, Any]
    events: EventChoice | None
    mode: str
    batch: int
    headers: list[str]
    secrets: list[SecretView]
    concurrency: int
    rate: str | None
    timeout: float
    failures: int
    max_attempts: int | None
    enabled: bool
    reason: str | None
    created: str
    status: WebhookStatus
    secret: str | UnsetType = UNSET


class WebhookList(ReplyBody, kw_only=True):
    webhooks: list[WebhookView]


class WebhookId(ReplyBody, kw_only=True):
    id: str


class NewSecret(RequestBody, kw_only=True):
    """`keep`: seconds for which the older secrets stay valid; requests have a signature for each."""

    secret: SecretText | None = None
    keep: Seconds = 86_400.0


class Disabling(RequestBody, kw_only=True):
    reason: Word | None = None


class AttemptView(ReplyBody, kw_only=True):
    """`status` is null if there was no response; `detail` then says why, else it is an excerpt."""

    id: str
    time: str
    outcome: str
    status: int | None
    duration: float
    attempt: int
    messages: int
    detail: str


class AttemptList(ReplyBody, kw_only=True):
    """The last attempts, the newest first. `skipped`: attempts of the same time that were not logged."""

    deliveries: list[AttemptView]
    skipped: int


class AttemptQuery(QueryParameters, kw_only=True):
    limit: Limit = 100
    outcome: Literal["delivered", "failed", "paused", "gone"] | None = None


class WebhookReplay(RequestBody, kw_only=True):
    """Past messages by time of publishing, or by id. `until` is not included."""

    since: Moment | float | None = None
    until: Moment | float | None = None
    ids: Annotated[list[Word], Meta(min_length=1, max_length=1000)] | None = None
    rate: RateText | None = None
