"""Every setting of a queue reaches the functions in Redis, or is named here with the reason."""

from __future__ import annotations

from typing import Any

from openq.model import QueueSettings, RetryPolicy
from openq.redis.net.url import parse
from openq.redis.records import pack_settings
from openq.settings import SETTINGS

ADDRESS = parse("redis://127.0.0.1:1")
OTHER: dict[str, Any] = {
    "duration": 7,
    "count": 3,
    "bytes": 7,
    "flag": True,
    "text": "t",
    "queue": "dead",
    "exchange": "x",
    "rate": "5/s",
    "key_limits": {"k": {"concurrency": 2}},
}
# Broker code in Python applies these; the functions do not read them.
IN_PYTHON = {
    "dead_letter_key": "routed by the broker when a dead letter is moved",
    "relaxed": "the profile of the store decides what an answer waits for",
}


def changed(base: QueueSettings, field: str, kind: str, choices: tuple[str, ...]) -> QueueSettings:
    if kind == "retry":
        return base.with_(retry=RetryPolicy.named("fixed"))
    value = OTHER[kind] if kind != "choice" else next(c for c in choices if c != getattr(base, field))
    return base.with_(**{field: value})


def test_every_setting_is_packed_for_the_functions() -> None:
    base = QueueSettings(dead_letter="first", fifo=False)
    unpacked = set()
    for each in SETTINGS:
        start = base.with_(dead_letter=None) if each.kind in ("queue", "exchange") else base
        before = pack_settings(start, 1, ADDRESS)
        if pack_settings(changed(start, each.field, each.kind, each.choices), 1, ADDRESS) == before:
            unpacked.add(each.name)

    assert unpacked == set(IN_PYTHON)
