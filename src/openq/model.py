"""The values that travel through OpenQ: entries, deliveries, queue settings.

Every layer speaks these types and no protocol's own vocabulary appears in them.
Times are integer milliseconds since the epoch; the names say so: `now_ms`, `sent_ms`.
Values made for every message are plain slotted classes: a frozen dataclass costs several
times as much to make, and this is the hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .errors import InvalidSetting
from .limits import KeyLimits, check_concurrency, check_key_limits, rate_text
from .properties import Properties as Properties  # part of the values that every layer uses

# What the bytes of a body are, so that a reader gets back what the writer put in.
ENCODING_BYTES = 0
ENCODING_TEXT = 1
ENCODING_JSON = 2
ENCODING_MSGPACK = 3
ENCODING_PICKLE = 4

NO_DEADLINE = -1  # as a lease: bound to its holder, ends only by ack, nack or release
MAX_PRIORITY = 255
MAX_SPAN_MS = 1 << 60  # 36 million years; a time this far ahead still fits the records
FOREVER_MS = MAX_SPAN_MS  # a retention or history that never ends; clients write and read it as null
MAX_NAME_BYTES = 255
MAX_CONDITIONS = 100  # attributes of a filter, and values of each
MAX_VERDICTS = 200_000

DEAD_LETTER_KINDS = ("max_receives", "rejected", "expired", "overflow")
MAX_DEAD_LETTER_EVENTS = 64  # remembered by one message, the newest of them


class DeadLetterEvent(NamedTuple):
    """Why a message was dead-lettered. One event for each queue and kind; it keeps the last time."""

    queue: str
    reason: str  # as the consumer gave it, or the kind
    time_ms: int
    count: int  # type: ignore[assignment]  # how often it had been received there; hides what tuples count
    kind: str = ""  # max_receives, rejected, expired or overflow; "" where an old record does not say
    exchange: str = ""  # and the key it had come with
    key: str = ""
    times: int = 1  # how often, for this queue and kind
    first_ms: int = 0  # the first time; 0: the same as time_ms

    @classmethod
    def from_fields(
        cls,
        queue: str,
        reason: str,
        time_ms: int,
        count: int,
        *,
        kind: str | None = None,
        times: int | None = None,
        first_ms: int = 0,
    ) -> DeadLetterEvent:
        """From a backup or an early record, where a kind that equals the reason may be missing."""
        if kind is None:
            kind = reason if reason in DEAD_LETTER_KINDS else ""
        elif kind not in DEAD_LETTER_KINDS:
            raise InvalidSetting(
                f"the kind of a death is one of {', '.join(DEAD_LETTER_KINDS)}, not {kind!r}"
            )
        if times is not None and not 1 <= times < 1 << 31:
            raise InvalidSetting(f"the times of a death must be 1 to {(1 << 31) - 1}, not {times}")
        return cls(queue, reason, time_ms, count, kind, times=times or 1, first_ms=first_ms)

    def document(self, show_time: Callable[[int], object]) -> dict[str, Any]:
        """The event as the library shows it, and as `from_fields` reads it."""
        return {
            "queue": self.queue,
            "reason": self.reason,
            "time": show_time(self.time_ms),
            "receive_count": self.count,
            **self.details(show_time),
        }

    def details(self, show_time: Callable[[int], object]) -> dict[str, Any]:
        """The fields beyond queue, reason, time and count."""
        details: dict[str, Any] = {}
        if self.kind and self.kind != self.reason:
            details["kind"] = self.kind
        if self.times > 1:
            details["times"] = self.times
            details["first_time"] = show_time(self.first_ms or self.time_ms)
        return details


# Where a failure is written as one text, the traceback follows the reason behind this line.
_TRACE_MARK = "\n\nTraceback:\n"
MAX_TRACE_BYTES = 4096
_MAX_TRACES = 1024
_traces: dict[str, str] = {}


def failure_text(reason: str | None, trace: str | None) -> str | None:
    """Why a delivery failed, as records and stores keep it. Of a long traceback the end is kept."""
    if not trace:
        return reason
    data = trace.encode("utf-8", "surrogatepass")
    if len(data) > MAX_TRACE_BYTES:
        end = data[4 - MAX_TRACE_BYTES :].decode("utf-8", "ignore")
        trace = "...\n" + (end.partition("\n")[2] or end)  # whole lines, where there are some
    return f"{reason or ''}{_TRACE_MARK}{trace}"


def split_failure(text: str | None) -> tuple[str | None, str | None]:
    """The reason and the traceback of a failure."""
    if text is None or _TRACE_MARK not in text:
        return text, None
    reason, _, trace = text.partition(_TRACE_MARK)
    # Failures of one kind have one traceback: a million dead letters hold it once.
    if len(_traces) >= _MAX_TRACES:
        _traces.clear()
    return reason, _traces.setdefault(trace, trace)


class DeliveryOptions:
    """What the engine must know of a message that is not plain. Never changed once queued.

    Plain options say only how the message was published, and nothing that the engine must act on: such
    messages take the fast paths and may share one object.
    """

    __slots__ = (
        "born_ms",
        "count",
        "deaths",
        "dedup",
        "due_ms",
        "expires_ms",
        "first_ms",
        "group",
        "id",
        "is_plain",
        "number",
        "packed",
        "priority",
        "reason",
        "route",
        "trace",
        "type",
        "unique",
    )

    def __init__(
        self,
        *,
        priority: int = 0,
        group: str | None = None,
        type: str | None = None,
        due_ms: int = 0,
        expires_ms: int = 0,
        dedup: str | None = None,
        unique: str | None = None,
        id: str | None = None,
        count: int = 0,
        number: int = 0,
        first_ms: int = 0,
        born_ms: int = 0,
        reason: str | None = None,
        deaths: tuple[DeadLetterEvent, ...] = (),
        route: tuple[str, str] | None = None,
        trace: str | None = None,
    ) -> None:
        self.priority = priority
        self.group = group
        self.type = type
        self.due_ms = due_ms  # not to be handed out before
        self.expires_ms = expires_ms  # its own time to live; 0 = none
        self.dedup = dedup
        self.unique = unique
        self.id = id  # its public id, where that does not follow from the sequence number
        self.count = count  # deliveries so far
        self.number = number  # of its last delivery
        self.first_ms = first_ms  # first delivery
        self.born_ms = born_ms  # first sent, where it came from another queue
        self.reason = reason  # of its last return
        self.trace = trace  # the traceback that came with it
        self.deaths = deaths  # newest first
        self.route = route  # exchange and key it was published with
        self.is_plain = False
        self.packed: bytes | None = None  # its bytes on disk, once they were needed

    def mark_plain(self) -> DeliveryOptions:
        """Set `is_plain` once all fields are set."""
        self.is_plain = not (
            self.priority
            or self.due_ms
            or self.expires_ms
            or self.count
            or self.number
            or self.first_ms
            or self.born_ms
            or self.deaths
            or self.group is not None
            or self.dedup is not None
            or self.unique is not None
            or self.id is not None
            or self.reason is not None
        )
        return self

    @property
    def failure(self) -> str | None:
        """The reason and its traceback as one text."""
        return self.reason if self.trace is None else failure_text(self.reason, self.trace)

    @failure.setter
    def failure(self, text: str | None) -> None:
        self.reason, self.trace = split_failure(text)

    def copy(self) -> DeliveryOptions:
        """A copy to change; derived values are not copied."""
        other = DeliveryOptions.__new__(DeliveryOptions)
        for name in OPTION_FIELDS:
            setattr(other, name, getattr(self, name))
        other.is_plain = False
        other.packed = None
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeliveryOptions):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in OPTION_FIELDS)

    __hash__ = None  # type: ignore[assignment]


OPTION_FIELDS = tuple(name for name in DeliveryOptions.__slots__ if name not in ("is_plain", "packed"))

_plain_options: dict[tuple[tuple[str, str] | None, str | None], DeliveryOptions] = {}


def plain_options(route: tuple[str, str] | None, type: str | None = None) -> DeliveryOptions:
    """One shared object for all messages of this route and type."""
    options = _plain_options.get((route, type))
    if options is None:
        options = DeliveryOptions(route=route, type=type).mark_plain()
        if len(_plain_options) >= 1024:
            _plain_options.clear()
        if type is None or len(type) <= MAX_NAME_BYTES:
            _plain_options[route, type] = options
    return options


class Entry:
    """One message as a queue holds it. `body` is None while it is only on disk, at `location`."""

    __slots__ = ("body", "encoding", "location", "options", "properties", "sent_ms", "seq", "size")

    def __init__(
        self,
        seq: int,
        sent_ms: int,
        location: int,
        size: int,
        encoding: int,
        body: bytes | None,
        properties: Properties | None,
        options: DeliveryOptions | None,
    ) -> None:
        self.seq = seq
        self.sent_ms = sent_ms  # when it came into this queue
        self.location = location
        self.size = size
        self.encoding = encoding
        self.body = body
        self.properties = properties
        self.options = options

    def with_options(self, options: DeliveryOptions | None) -> Entry:
        return Entry(
            self.seq,
            self.sent_ms,
            self.location,
            self.size,
            self.encoding,
            self.body,
            self.properties,
            options,
        )

    def without_body(self) -> Entry:
        found = self.with_options(self.options)
        found.body = None
        return found

    @property
    def priority(self) -> int:
        return 0 if self.options is None else self.options.priority

    @property
    def group(self) -> str | None:
        return None if self.options is None else self.options.group


Scalar = str | bytes | int | float | None


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages a consumer gets: those of one of the types that have all the attributes.

    For each attribute there are the values of which a message must have one.
    """

    types: frozenset[str] | None = None
    attributes: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()
    # What a store found out of messages whose attributes are not in memory, by a key of the store.
    verdicts: dict[int, bool] = field(default_factory=dict, compare=False, repr=False)
    # How far it has looked in vain, by the number of a queue: what the engine remembers.
    looked: dict[int, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls, types: Iterable[str] | None = None, attributes: Mapping[str, object] | None = None
    ) -> MessageFilter | None:
        """None if there is no condition. Raises InvalidSetting."""
        if types is None and not attributes:
            return None
        if attributes is not None and len(attributes) > MAX_CONDITIONS:
            raise InvalidSetting(f"at most {MAX_CONDITIONS} attributes, not {len(attributes)}")
        conditions = [(name, _wanted_values(name, given)) for name, given in (attributes or {}).items()]
        return cls(None if types is None else frozenset(types), tuple(conditions))

    def has_type(self, options: DeliveryOptions | None) -> bool:
        return self.types is None or (options is not None and options.type in self.types)

    def has_attributes(self, properties: Properties | None) -> bool:
        attributes = {} if properties is None else properties.attributes
        return all(
            name in attributes and any(attributes[name] == value for value in values)
            for name, values in self.attributes
        )

    def keep_verdict(self, key: int, verdict: bool) -> None:
        if len(self.verdicts) >= MAX_VERDICTS:
            self.verdicts.clear()
        self.verdicts[key] = verdict


def _wanted_values(name: str, given: object) -> tuple[Scalar, ...]:
    values = tuple(given) if isinstance(given, list | tuple | set | frozenset) else (given,)
    if not 0 < len(values) <= MAX_CONDITIONS:
        raise InvalidSetting(f"attribute {name!r}: 1 to {MAX_CONDITIONS} values, not {len(values)}")
    for value in values:
        if not isinstance(value, str | bytes | int | float | None):
            raise InvalidSetting(f"attribute {name!r} must be text, bytes, a number or a list of them")
    return values


class Delivery:
    """One delivery of one message: the lease, and what the consumer gets. One receipt per delivery."""

    __slots__ = ("consumer", "count", "delivered_ms", "entry", "number", "until_ms")

    def __init__(
        self, entry: Entry, number: int, delivered_ms: int, until_ms: int, count: int, consumer: str | None
    ) -> None:
        self.entry = entry
        self.number = number
        self.delivered_ms = delivered_ms
        self.until_ms = until_ms  # 0 = no deadline
        self.count = count
        self.consumer = consumer


RETRY_KINDS = ("none", "fixed", "exponential")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a message waits after a failed delivery, unless the nack itself says so.

    `on_expiry`: a lease that ends unsettled counts as such a failure. Otherwise its message is back at the
    deadline, whatever the policy.
    """

    kind: str = "none"  # none | fixed | exponential
    base_ms: int = 1_000
    factor: float = 2.0
    max_ms: int = 3_600_000
    jitter: float = 0.0  # 0..1: the share of the delay that is random
    on_expiry: bool = True

    def __post_init__(self) -> None:
        if self.kind not in RETRY_KINDS:
            raise InvalidSetting(f"retry kind must be none, fixed or exponential, not {self.kind!r}")
        fits = 0 <= self.base_ms <= MAX_SPAN_MS and 0 <= self.max_ms <= MAX_SPAN_MS
        if not fits or not 1 <= self.factor <= 1000 or not 0 <= self.jitter <= 1:
            raise InvalidSetting(
                "retry needs base and max from 0 seconds on, a factor from 1 to 1000 and a jitter from 0 to 1"
            )
        if not isinstance(self.on_expiry, bool):
            raise InvalidSetting(f"retry: on_expiry must be true or false, not {self.on_expiry!r}")

    @classmethod
    def named(cls, kind: str) -> RetryPolicy:
        """The policy of that kind; "default" is the one of queues for which nobody chose any."""
        if kind == "default":
            return DEFAULT_RETRY
        if kind not in RETRY_KINDS:
            raise InvalidSetting(f"retry must be default, none, fixed or exponential, not {kind!r}")
        return cls(kind)

    def delay_ms(self, count: int, random_fraction: float) -> int:
        """The delay after the `count`-th failed delivery; `chance` in [0, 1) comes from outside."""
        if self.kind == "none":
            return 0
        delay = float(self.base_ms)
        if self.kind == "exponential":
            # Bounded exponent: 2.0 ** 2000 would raise instead of being capped.
            delay = min(delay * self.factor ** min(count - 1, 100), float(self.max_ms))
        return int(delay * (1.0 - self.jitter * random_fraction))

    def to_json(self) -> dict[str, object]:
        out: dict[str, object] = {name: getattr(self, name) for name in RetryPolicy.__slots__}
        if self.on_expiry:
            del out["on_expiry"]  # as versions without that field wrote it, which can then read it too
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RetryPolicy:
        return cls(**{name: value for name, value in data.items() if name in cls.__slots__})


# Of a queue for which nobody chose a policy: a message that fails does not keep others from their turn.
# A lease that ends says nothing about the message, so its message returns at once.
DEFAULT_RETRY = RetryPolicy("exponential", 1_000, 2.0, 900_000, 0.2, on_expiry=False)


DAY_MS = 86_400_000
OVERFLOWS = ("drop-head", "reject", "dead-letter", "reject-dead-letter")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How one queue behaves. Replaced as a whole, never edited in place."""

    fifo: bool = False
    visibility_ms: int = 30_000
    delay_ms: int = 0
    retention_ms: int = 4 * DAY_MS
    ttl_ms: int | None = None
    max_receives: int | None = None
    exhausted: str = "keep"  # keep | drop: one whose receives are used up, where there are no dead letters
    dead_letter: str | None = None
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    dead_letter_expired: bool = False
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "drop-head"  # drop-head | reject | dead-letter | reject-dead-letter
    max_body: int | None = None
    max_priority: int | None = None  # higher priorities count as this one; None: no limit
    dedup_window_ms: int = 300_000
    dedup_by_content: bool = False
    dedup_per_group: bool = False
    retry: RetryPolicy = DEFAULT_RETRY
    history_ms: int = DAY_MS
    paused: bool = False
    relaxed: bool = False  # answers before the sync; at most 50 ms at risk
    # Limits of what is handed out; see `limits.py`. A key is a message group.
    concurrency: int | None = None  # messages of the queue in flight
    rate: str | None = None  # deliveries of the queue
    key_concurrency: int | None = None  # the same for each key
    key_rate: str | None = None
    key_limits: KeyLimits = field(default_factory=dict, hash=False)  # instead of these, for single keys
    # What a protocol knows of the queue and the engine does not: tags, access policies, ...
    notes: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("visibility_ms", "delay_ms", "retention_ms", "dedup_window_ms", "history_ms"):
            if not 0 <= getattr(self, name) <= MAX_SPAN_MS:
                raise _out_of_bounds(name, getattr(self, name))
        for name in ("ttl_ms", "max_length", "max_bytes", "max_body"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_SPAN_MS:
                raise _out_of_bounds(name, value)
        if self.max_receives is not None and self.max_receives < 1:
            raise InvalidSetting("max_receives must be at least 1")
        if self.max_priority is not None and not 0 <= self.max_priority <= MAX_PRIORITY:
            raise InvalidSetting(f"max_priority must be 0 to {MAX_PRIORITY}, not {self.max_priority}")
        if self.exhausted not in ("keep", "drop"):
            raise InvalidSetting(f"exhausted must be keep or drop, not {self.exhausted!r}")
        if self.overflow not in OVERFLOWS:
            raise InvalidSetting(f"overflow must be one of {', '.join(OVERFLOWS)}, not {self.overflow!r}")
        if self.has_limits:
            self._normalise_limits()

    @property
    def has_limits(self) -> bool:
        return (
            self.concurrency is not None
            or self.rate is not None
            or self.key_concurrency is not None
            or self.key_rate is not None
            or bool(self.key_limits)
        )

    def _normalise_limits(self) -> None:
        for name in ("concurrency", "key_concurrency"):
            check_concurrency(getattr(self, name), name)
        for name in ("rate", "key_rate"):
            object.__setattr__(self, name, rate_text(getattr(self, name), name))
        object.__setattr__(self, "key_limits", check_key_limits(self.key_limits))

    def with_(self, **changes: object) -> QueueSettings:
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, object]:
        """Only what differs from the defaults, so that stored settings survive new fields."""
        default = QueueSettings()
        out: dict[str, object] = {}
        for name in QueueSettings.__slots__:
            value = getattr(self, name)
            if value != getattr(default, name):
                out[name] = value.to_json() if isinstance(value, RetryPolicy) else value
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> QueueSettings:
        values = {name: value for name, value in data.items() if name in cls.__slots__}
        retry = values.get("retry")
        if isinstance(retry, Mapping):
            values["retry"] = RetryPolicy.from_json(retry)
        return cls(**values)  # type: ignore[arg-type]


# Settings as users name them; times are seconds there.
_SHOWN_NAMES = {
    "visibility_ms": "visibility_timeout",
    "delay_ms": "delay",
    "retention_ms": "retention",
    "ttl_ms": "message_ttl",
    "dedup_window_ms": "dedup_window",
    "history_ms": "history",
    "dead_letter": "dlq",
}


def shown_setting(name: str, value: Any) -> tuple[str, str]:
    """A setting for the text of an error: its name and value as users write them."""
    if name.endswith("_ms") and isinstance(value, int | float):
        text = "for ever" if value == FOREVER_MS else seconds_text(value)
        return _SHOWN_NAMES.get(name, name), text
    if isinstance(value, RetryPolicy):
        value = "default" if value == DEFAULT_RETRY else value.kind
    return _SHOWN_NAMES.get(name, name), repr(value)


def seconds_text(ms: float) -> str:
    return f"{ms // 1000 if ms % 1000 == 0 else ms / 1000} seconds"


def settings_difference(name: str, old: Any, new: Any) -> str:
    shown, then = shown_setting(name, old)
    return f"{shown} is {then}, not {shown_setting(name, new)[1]}"


def span_error(what: str, ms: int) -> InvalidSetting:
    return InvalidSetting(f"a {what} of {seconds_text(ms)}; it must be from 0 to {seconds_text(MAX_SPAN_MS)}")


def _out_of_bounds(name: str, value: int) -> InvalidSetting:
    shown, text = shown_setting(name, value)
    most = seconds_text(MAX_SPAN_MS) if name.endswith("_ms") else MAX_SPAN_MS
    return InvalidSetting(f"{shown} must be from 0 to {most}, not {text}")


@dataclass(slots=True)
class Draft:
    """One message as a publisher hands it in."""

    body: bytes
    encoding: int = ENCODING_BYTES
    delay_ms: int | None = None  # None: the queue's own delay
    due_ms: int = 0  # an absolute time instead of a delay
    priority: int = 0
    group: str | None = None
    type: str | None = None
    dedup: str | None = None
    unique: str | None = None
    ttl_ms: int | None = None
    id: str | None = None
    attributes: Mapping[str, object] | None = None
    publisher: str | None = None
    route: tuple[str, str] | None = None
    past: DeliveryOptions | None = (
        None  # counts, deaths and first time sent of a message that comes from a backup
    )
    properties: Properties | None = None  # made already: instead of attributes and publisher

    def is_plain(self) -> bool:
        """Only a body: such messages take the fast path."""
        return (
            self.delay_ms is None
            and not self.due_ms
            and not self.priority
            and self.group is None
            and self.type is None
            and self.dedup is None
            and self.unique is None
            and self.ttl_ms is None
            and self.id is None
            and self.attributes is None
            and self.publisher is None
            and self.route is None
            and self.past is None
            and self.properties is None
        )


def check_name(name: str, what: str = "queue") -> str:
    """Any UTF-8 name up to 255 bytes without control characters; protocols may be stricter."""
    try:
        size = len(name.encode())
    except (AttributeError, UnicodeEncodeError):
        raise InvalidSetting(f"a {what} name must be text that can be encoded as UTF-8") from None
    if not 0 < size <= MAX_NAME_BYTES:
        raise InvalidSetting(f"a {what} name must have 1 to {MAX_NAME_BYTES} bytes, this one has {size}")
    # The first test is fast and enough for most names.
    if not name.isprintable() and any(ord(char) < 32 or ord(char) == 127 for char in name):
        raise InvalidSetting(f"a {what} name must not contain control characters: {name!r}")
    return name
