"""Messages as stored in Redis: records in the stream, extras as JSON. The functions in `lua/` read the same.

A record never changes: flags, encoding, properties, body. All mutable data is in the extra of the message,
which plain messages do not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any

from ..engine.queue import is_plain_queue
from ..engine.record_values import pack_properties, unpack_properties
from ..errors import InvalidSetting, OpenQError
from ..limits import parse_rate
from ..model import (
    DEFAULT_RETRY,
    DeadLetterEvent,
    Delivery,
    DeliveryOptions,
    Entry,
    Properties,
    QueueSettings,
    plain_options,
)
from .net.url import Address

_SPECIAL, _HAS_EXTRA, _HAS_INFO, _ELSEWHERE = 1, 2, 4, 8
_U32 = Struct("<I")


# Short names in the JSON of an extra, as the functions know them.
_TEXTS = (("g", "group"), ("t", "type"), ("k", "dedup"), ("u", "unique"), ("i", "id"), ("r", "failure"))
_NUMBERS = (
    ("p", "priority"),
    ("d", "due_ms"),
    ("e", "expires_ms"),
    ("c", "count"),
    ("f", "first_ms"),
    ("b", "born_ms"),
)


def pack_record(
    body: bytes, encoding: int, properties: Properties | None, published: bytes, special: bool
) -> bytes:
    """`published` is the extra with which a message was published, as JSON: history shows it."""
    if properties is None and not published:
        return b"%c%c%b" % (special, encoding, body)
    flags = _SPECIAL if special else 0
    parts = [b""]
    if published:
        flags |= _HAS_EXTRA
        parts += (_U32.pack(len(published)), published)
    if properties is not None:
        flags |= _HAS_INFO
        packed = pack_properties(properties)
        parts += (_U32.pack(len(packed)), packed)
    parts[0] = bytes((flags, encoding))
    parts.append(body)
    return b"".join(parts)


def light_fields(options: DeliveryOptions | None) -> bytes:
    """The JSON of a light extra, which describes how a message was published and nothing else."""
    return b"" if options is None else dump(fields_of(options))


def unpack_record(record: bytes) -> tuple[int, bytes, Properties | None, DeliveryOptions | None]:
    """Encoding, body, properties, and the extra that the message was published with."""
    flags = record[0]
    if not flags & (_HAS_EXTRA | _HAS_INFO):
        return record[1], record[2:], None, None
    at = 2
    options = properties = None
    if flags & _HAS_EXTRA:
        (size,) = _U32.unpack_from(record, at)
        fields = json.loads(record[at + 4 : at + 4 + size])
        if flags & _SPECIAL:
            options = extra_of(fields)
        else:
            route = fields.get("R")
            options = plain_options(None if route is None else (route[0], route[1]), fields.get("t"))
        at += 4 + size
    if flags & _HAS_INFO:
        (size,) = _U32.unpack_from(record, at)
        properties = unpack_properties(record[at + 4 : at + 4 + size])
        at += 4 + size
    return record[1], record[at:], properties, options


def is_from_elsewhere(record: bytes) -> bool:
    """Whether it was moved into the queue, not published to it."""
    return bool(record[0] & _ELSEWHERE)


def with_published(record: bytes, published: bytes) -> bytes:
    """The same record with another extra."""
    encoding, body, properties, _ = unpack_record(record)
    return pack_record(body, encoding, properties, published, True)


def dump(fields: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidSetting(f"the text cannot be encoded as UTF-8: {error.reason}") from None


def encoded(text: str) -> str:
    """The same text, if it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSetting(f"the text cannot be encoded as UTF-8: {error.reason}") from None
    return text


def fields_of(options: DeliveryOptions) -> dict[str, object]:
    fields: dict[str, object] = {}
    for short, name in _TEXTS:
        text = getattr(options, name)
        if text is not None:
            fields[short] = text
    for short, name in _NUMBERS:
        number = getattr(options, name)
        if number:
            fields[short] = number
    if options.number:
        fields["n"] = str(options.number)  # too large for the exact integers of JSON in Lua
    if options.deaths:
        fields["D"] = [list(death) for death in options.deaths]
    if options.route is not None:
        fields["R"] = list(options.route)
    return fields


def extra_of(fields: Mapping[str, Any]) -> DeliveryOptions:
    options = DeliveryOptions()
    for short, name in (*_TEXTS, *_NUMBERS):
        value = fields.get(short)
        if value is not None:
            setattr(options, name, value)
    options.number = int(fields.get("n") or 0)
    options.deaths = tuple(DeadLetterEvent(*death) for death in fields.get("D") or ())
    route = fields.get("R")
    options.route = None if route is None else (route[0], route[1])
    return options.mark_plain()


def entry_of(id: bytes, record: bytes, options: bytes) -> Entry:
    seq, _, sent_ms = id.partition(b"-")
    encoding, body, properties, published = unpack_record(record)
    own = _live_extra(options) if options else published
    return Entry(int(seq), int(sent_ms), 0, len(body), encoding, body, properties, own)


def _live_extra(text: bytes) -> DeliveryOptions:
    fields = json.loads(text)
    if "X" in fields:
        raise ValueError("the extra was made anew, because nobody could read it")
    return extra_of(fields)


# Errors of decoding a record that another program wrote.
MALFORMED = (ValueError, IndexError, TypeError, KeyError, AttributeError, StructError, OpenQError)
UNREADABLE = "its record in Redis cannot be read"
# Reasons by the codes of the functions in `lua/`.
DAMAGES = {
    "record": UNREADABLE,
    "extra": "its extra in Redis cannot be read",
    "missing": "its record is gone from the stream in Redis",
}


def entry_if_sound(id: bytes, record: bytes, options: bytes) -> Entry | None:
    """None: another program damaged it."""
    try:
        return entry_of(id, record, options)
    except MALFORMED:
        return None


def deliveries_of(
    answer: Sequence[Any], now_ms: int, consumer: str | None, damaged: list[tuple[int, int]]
) -> list[Delivery]:
    """The reply of `receive` for one caller. `damaged` gets sequence and number of unreadable messages."""
    if not answer:
        return []
    number, until_ms, step = int(answer[0]), int(answer[1]), answer[2]
    found = []
    for at in range(3, len(answer), 4):
        entry = entry_if_sound(answer[at], answer[at + 1], answer[at + 3])
        if entry is None:
            damaged.append((int(answer[at].partition(b"-")[0]), number))
        else:
            found.append(Delivery(entry, number, now_ms, until_ms, answer[at + 2], consumer))
        number += step
    return found


def delivery_of(entry: Entry, lease: bytes) -> Delivery:
    number, until_ms, count, delivered_ms, _, _, consumer = lease.split(b" ", 6)
    return Delivery(
        entry, int(number), int(delivered_ms), int(until_ms), int(count), consumer.decode() or None
    )


def pack_settings(settings: QueueSettings, version: int, address: Address) -> bytes:
    """The settings that the functions need, under short names; `v` orders changes."""
    c: dict[str, object] = {
        "v": version,
        "fifo": settings.fifo,
        "vis": settings.visibility_ms,
        "delay": settings.delay_ms,
        "ret": settings.retention_ms,
        "mp": 255 if settings.max_priority is None else settings.max_priority,
        "dw": settings.dedup_window_ms,
        "hist": settings.history_ms,
        "hmax": address.history,
    }
    for short, value in (
        ("ttl", settings.ttl_ms),
        ("maxr", settings.max_receives),
        ("ml", settings.max_length),
        ("mb", settings.max_bytes),
        ("mbody", settings.max_body),
    ):
        if value is not None:
            c[short] = value
    has_dead_letters = settings.dead_letter is not None or settings.dead_letter_exchange is not None
    refuses = settings.overflow in ("reject", "reject-dead-letter")
    for short, holds in (
        ("dl", has_dead_letters),
        ("dle", has_dead_letters and settings.dead_letter_expired),
        ("exd", settings.exhausted == "drop"),
        ("refuses", refuses),
        ("dbc", settings.dedup_by_content),
        ("dpg", settings.dedup_per_group),
        ("paused", settings.paused),
        ("simple", is_plain_queue(settings)),
    ):
        if holds:
            c[short] = True
    if settings.overflow != "drop-head":
        c["of"] = settings.overflow
    if settings.has_limits:
        c |= _pack_limits(settings)
    retry = settings.retry
    # Without a policy the functions use DEFAULT_RETRY, also for queues packed before policies existed.
    if retry.kind == "none":
        c["rk"] = "none"
    elif retry != DEFAULT_RETRY:
        c |= {
            "rk": retry.kind,
            "rb": retry.base_ms,
            "rf": retry.factor,
            "rm": retry.max_ms,
            "rj": retry.jitter,
        }
        if not retry.on_expiry:
            c["rn"] = True
    return dump(c)


def _pack_limits(settings: QueueSettings) -> dict[str, object]:
    """The rules of the queue (`lq`), of each key (`kd`) and of single keys (`ko`); `lk` tells changes."""
    named = {key: settings.key_limits[key] for key in sorted(settings.key_limits)}
    of_all = (settings.concurrency, settings.rate, settings.key_concurrency, settings.key_rate)
    limits: dict[str, object] = {"lim": True, "lk": json.dumps([*of_all, named])}
    queue = _pack_rule(settings.concurrency, settings.rate)
    default = _pack_rule(settings.key_concurrency, settings.key_rate)
    if queue:
        limits["lq"] = queue
    if default:
        limits["kd"] = default
    if named:
        limits["ko"] = {
            key: _pack_rule(
                own.get("concurrency", settings.key_concurrency), own.get("rate", settings.key_rate)
            )
            for key, own in named.items()
        }
    if default or named:
        limits["kl"] = True
    return limits


def _pack_rule(concurrency: int | None, rate: str | None) -> dict[str, object]:
    rule: dict[str, object] = {}
    if concurrency is not None:
        rule["c"] = concurrency
    if rate is not None:
        parsed = parse_rate(rate)
        rule |= {"i": 1000 * parsed.step / parsed.units, "b": parsed.burst}
    return rule
