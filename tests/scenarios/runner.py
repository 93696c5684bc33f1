"""Runs a story, written as text, against a broker.

    # Settings are as in QueueSettings; times are written as 5ms 30s 2h 3d 1y.
    queue orders visibility=30s dead_letter=dead
    exchange events topic alternate=lost
    bind events orders key=order.*
    0s   publish orders hello type=greeting
    0s   receive orders            -> hello#1
    30s  receive orders            -> hello#2
    30s  ack orders hello/1        -> VisibilityTimeoutExpired
    30s  ack orders hello

A message is called by the body it was published with; `#2` counts its deliveries, `/1` is the receipt of
its first one. What stands after the arrow must come out exactly; a line without an arrow must succeed. A
line that begins with `on` names the brokers the story is about, where it is not about all of them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from openq.broker.interface import Broker, Filter, only
from openq.clock import VirtualClock
from openq.engine.routing import Binding, Exchange
from openq.errors import OpenQError
from openq.model import NO_DEADLINE, Delivery, Draft, Entry, MessageFilter, QueueSettings, RetryPolicy

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "y": 31_536_000_000}
_TIMES = ("visibility", "delay", "retention", "ttl", "dedup_window", "history", "lease", "base", "max")
_TEXTS = ("dedup", "unique", "id", "group", "type", "text", "reason", "key", "ids")
_SETTINGS = {each.name for each in fields(QueueSettings)}


def _count(results: Sequence[object]) -> str:
    return str(sum(not isinstance(each, OpenQError) for each in results))


class Stage(Protocol):
    """A broker on which a story is played; it may be another one at each line."""

    clock: VirtualClock

    def before_line(self) -> None: ...
    @property
    def broker(self) -> Broker: ...


class StoryFailed(AssertionError):
    pass


def milliseconds(text: str) -> int:
    for unit in sorted(UNITS_MS, key=len, reverse=True):
        if text.endswith(unit):
            return round(float(text.removesuffix(unit)) * UNITS_MS[unit])
    raise ValueError(f"{text!r} is no time")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _options(words: list[str]) -> dict[str, Any]:
    """`key=value` words; times become numbers of milliseconds under `key_ms`."""
    found: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        if key in _TIMES:
            found[f"{key}_ms"] = NO_DEADLINE if text == "none" else milliseconds(text)
        else:
            found[key] = text if key in _TEXTS else _value(text)
    return found


def _settings(options: dict[str, Any]) -> QueueSettings:
    options = dict(options)
    if "retry" in options:
        policy = {
            name: options.pop(name) for name in ("base_ms", "max_ms", "factor", "jitter") if name in options
        }
        options["retry"] = RetryPolicy(options.pop("retry"), **policy)
    assert options.keys() <= _SETTINGS, f"no such setting: {options.keys() - _SETTINGS}"
    return QueueSettings(**options)


class Story:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._receipts: dict[str, list[tuple[int, int]]] = {}
        self._start_ms = stage.clock.now_ms()

    @property
    def _broker(self) -> Any:
        return self._stage.broker

    def play(self, text: str) -> None:
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip()
            if line and not line.startswith(("#", "on ")):
                try:
                    self._line(line)
                except StoryFailed as failed:
                    raise StoryFailed(f"line {number}: {line}\n    {failed}") from None
                except Exception as error:
                    raise StoryFailed(f"line {number}: {line}\n    {error!r}") from error

    def _line(self, line: str) -> None:
        self._stage.before_line()
        reported, arrow, expected = line.partition("->")
        words = shlex.split(reported)
        if words[0][0].isdigit():
            self._advance(milliseconds(words.pop(0)))
        verb = getattr(self, f"do_{words[0].replace('-', '_')}")
        positional = [word for word in words[1:] if "=" not in word]
        named = _options([word for word in words[1:] if "=" in word])
        try:
            outcome = verb(*positional, **named)
        except OpenQError as error:
            outcome = type(error).__name__
            if not arrow:
                raise
        self._broker.sync()
        if arrow and outcome.strip() != expected.strip():
            raise StoryFailed(f"got {outcome}")

    def _advance(self, to_ms: int) -> None:
        ahead_ms = self._start_ms + to_ms - self._stage.clock.now_ms()
        self._stage.clock.advance(ahead_ms / 1000)

    # -- names --------------------------------------------------------------------------------

    def _draft(self, body: str, options: Mapping[str, Any]) -> Draft:
        options = dict(options)
        attributes = {key[5:]: options.pop(key) for key in list(options) if key.startswith("attr.")}
        if "at" in options:
            options["due_ms"] = self._start_ms + milliseconds(options.pop("at"))
        return Draft(body.encode(), attributes=attributes or None, **options)

    def _note(self, name: str, message_id: str) -> str:
        """The name of a message; a new id is called by what it was published as."""
        if message_id not in self._names:
            self._names[message_id] = name
            self._ids[name] = message_id
        return self._names[message_id]

    def _name(self, entry: Entry) -> str:
        message_id: str = self._broker.inspect.message_id(entry)
        return self._names.get(message_id, message_id)

    def _list(self, entries: list[Entry]) -> str:
        return ", ".join(self._name(entry) for entry in entries) or "nothing"

    def _receipt(self, queue: str, name: str) -> tuple[int, int]:
        name, _, which = name.partition("/")
        receipts = self._receipts.get(f"{queue} {name}", [(1 << 40, 1)])
        return receipts[int(which) - 1 if which else -1]

    # -- queues and exchanges -----------------------------------------------------------------

    def do_queue(self, name: str, **options: Any) -> str:
        self._broker.declare(name, _settings(options))
        return "ok"

    def do_change(self, name: str, **options: Any) -> str:
        now = self._broker.settings(name)
        self._broker.declare(name, now.with_(**options), change=True)
        return "ok"

    def do_pause(self, name: str) -> str:
        return self.do_change(name, paused=True)

    def do_resume(self, name: str) -> str:
        return self.do_change(name, paused=False)

    def do_delete(self, name: str, **options: Any) -> str:
        return str(self._broker.delete(name, **options))

    def do_queues(self) -> str:
        return ", ".join(sorted(self._broker.queues())) or "nothing"

    def do_purge(self, name: str, *flags: str) -> str:
        return str(self._broker.purge(name, **({"waiting_only": True} if "waiting" in flags else {})))

    def do_exchange(self, name: str, kind: Any, alternate: str | None = None) -> str:
        return str(self._broker.exchanges.declare_exchange(Exchange(name, kind, alternate=alternate)))

    def do_bind(
        self, source: str, destination: str, key: str = "", to: str = "queue", **arguments: Any
    ) -> str:
        return str(
            self._broker.exchanges.bind(Binding(source, destination, to == "exchange", key, arguments))
        )

    def do_unbind(self, source: str, destination: str, key: str = "", to: str = "queue") -> str:
        return str(bool(self._broker.exchanges.unbind(Binding(source, destination, to == "exchange", key))))

    # -- in and out ---------------------------------------------------------------------------

    def do_publish(self, queue: str, body: str, **options: Any) -> str:
        return self._note(body, self._broker.publish(queue, self._draft(body, options)))

    def do_route(self, exchange: str, key: str, body: str, **options: Any) -> str:
        message_id, queues = self._broker.exchanges.route(exchange, key, self._draft(body, options))
        if queues:
            self._note(body, message_id)
        return ", ".join(queues) or "nowhere"

    def do_receive(self, queue: str, types: str | None = None, **options: Any) -> str:
        attributes = {key[5:]: options.pop(key) for key in list(options) if key.startswith("attr.")}
        wanted = MessageFilter.of(
            None if types is None else types.split(","),
            {
                name: value.split("|") if isinstance(value, str) else value
                for name, value in attributes.items()
            },
        )
        deliveries: list[Delivery] = self._broker.receive(queue, wanted=wanted, **options)
        self._broker.load(deliveries)
        for delivery in deliveries:
            receipt = (delivery.entry.seq, delivery.number)
            self._receipts.setdefault(f"{queue} {self._name(delivery.entry)}", []).append(receipt)
        reported = [f"{self._name(delivery.entry)}#{delivery.count}" for delivery in deliveries]
        return ", ".join(reported) or "nothing"

    def do_ack(self, queue: str, *names: str) -> str:
        results = self._broker.ack(queue, [self._receipt(queue, name) for name in names])
        return ", ".join("ok" if error is None else type(error).__name__ for error in results)

    def do_ack_late(self, queue: str, name: str) -> str:
        [error] = self._broker.ack(queue, [self._receipt(queue, name)], late=True)
        return "ok" if error is None else "too late"

    def do_extend_late(self, queue: str, name: str, lease_ms: int) -> str:
        [until_ms] = self._broker.extend(queue, [self._receipt(queue, name)], lease_ms, late=True)
        return "too late" if isinstance(until_ms, OpenQError) else "ok"

    def do_nack(self, queue: str, name: str, **options: Any) -> str:
        return str(only(self._broker.nack(queue, [self._receipt(queue, name)], **options)))

    def do_nack_many(self, queue: str, *names: str, **options: Any) -> str:
        receipts = [self._receipt(queue, name) for name in names]
        return _count(self._broker.nack(queue, receipts, **{"delay_ms": 0, **options}))

    def do_reject_many(self, queue: str, *names: str, **options: Any) -> str:
        return _count(self._broker.reject(queue, [self._receipt(queue, name) for name in names], **options))

    def do_reject(self, queue: str, name: str, **options: Any) -> str:
        return str(only(self._broker.reject(queue, [self._receipt(queue, name)], **options)))

    def do_release(self, queue: str, *names: str) -> str:
        return str(self._broker.release(queue, [self._receipt(queue, name) for name in names]))

    def do_extend(self, queue: str, name: str, lease_ms: int) -> str:
        only(self._broker.extend(queue, [self._receipt(queue, name)], lease_ms))
        return "ok"

    # -- looking and mending ------------------------------------------------------------------

    def do_peek(self, queue: str, *flags: str, limit: int = 100) -> str:
        return self._list(self._broker.inspect.peek(queue, limit, rear="rear" in flags))

    def do_list(self, queue: str, state: str) -> str:
        return self._list(self._broker.inspect.entries(queue, state))

    def do_stats(self, queue: str, *keys: str) -> str:
        stats = self._broker.stats(queue)
        counts = {
            "ready": stats.ready,
            "delayed": stats.delayed,
            "in_flight": stats.in_flight,
            "bytes": stats.waiting_bytes,
            "age": stats.oldest_age_ms,
            **stats.counters,
        }
        return " ".join(f"{key}={counts[key]}" for key in keys)

    def _filter(self, options: Mapping[str, Any]) -> Filter:
        plain = {key: value for key, value in options.items() if "." not in key and key != "ids"}
        ids = options.get("ids")
        return Filter(
            ids=None if ids is None else [self._ids.get(name, name) for name in str(ids).split(",")],
            attributes={key[5:]: value for key, value in options.items() if key.startswith("attr.")},
            json={key[5:]: value for key, value in options.items() if key.startswith("json.")},
            **plain,
        )

    def do_search(self, queue: str, limit: int = 100, **options: Any) -> str:
        return self._list(self._broker.inspect.search(queue, self._filter(options), limit, 60.0).entries)

    def do_why(self, queue: str, name: str) -> str:
        return str(self._broker.inspect.why(queue, self._ids.get(name, name)).code)

    def do_timeline(self, queue: str, name: str) -> str:
        return (
            ", ".join(step.what for step in self._broker.inspect.timeline(queue, self._ids[name]))
            or "nothing"
        )

    def do_show(self, queue: str, name: str, *what: str) -> str:
        entry = self._broker.inspect.find(queue, self._ids[name])
        return " ".join(str(self._aspect(entry, each)) for each in what)

    def _aspect(self, entry: Entry, what: str) -> object:
        attributes = entry.properties.attributes if entry.properties is not None else {}
        aspects: dict[str, Callable[[], object]] = {
            "body": lambda: (entry.body or b"").decode(),
            "deaths": lambda: (
                ",".join(f"{d[0]}:{d[1]}:{d[3]}" for d in entry.options.deaths) if entry.options else ""
            ),
            "times": lambda: (
                ",".join(f"{d.queue}:{d.kind}:{d.times}" for d in entry.options.deaths)
                if entry.options
                else ""
            ),
            "sent": lambda: f"{entry.sent_ms - self._start_ms}ms",
            "id": lambda: self._name(entry),
        }
        if what in aspects:
            return aspects[what]()
        if what.startswith("attr."):
            return attributes.get(what[5:])
        return getattr(entry.options, what, None)

    def do_cancel(self, queue: str, name: str) -> str:
        self._broker.admin.cancel(queue, self._ids.get(name, name))
        return "ok"

    def do_edit(self, queue: str, name: str, body: str, **options: Any) -> str:
        self._broker.admin.edit(queue, self._ids[name], self._draft(body, options))
        return "ok"

    def do_move(self, queue: str, *names: str, to: str) -> str:
        errors = self._broker.admin.move(queue, [self._ids.get(name, name) for name in names], to)
        return ", ".join("ok" if error is None else type(error).__name__ for error in errors)

    def do_reschedule(self, queue: str, name: str, at: str) -> str:
        self._broker.admin.reschedule(queue, self._ids[name], self._start_ms + milliseconds(at))
        return "ok"

    def do_redrive(self, queue: str, to: str | None = None, **options: Any) -> str:
        return str(self._broker.admin.redrive(queue, to, self._filter(options) if options else None))

    def do_replay(self, queue: str, since: str = "0s", to: str | None = None, purged: str = "no") -> str:
        include = purged == "yes"
        if since in self._ids:
            return str(self._broker.admin.replay(queue, None, self._ids[since], to, include_purged=include))
        since_ms = self._start_ms + milliseconds(since)
        return str(self._broker.admin.replay(queue, since_ms, None, to, include_purged=include))
