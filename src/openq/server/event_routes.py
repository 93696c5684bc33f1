"""Which events the bindings of the exchanges for events want, and which must be left out. Pure.

The routing key of an event is `QUEUE.EVENT`. A queue's name may contain dots, so it may be several words.
"""

from __future__ import annotations

from collections.abc import Callable

from ..broker.events import EVENT_NAMES, EventFilter
from ..engine.routing import EVENTS_EXCHANGE, Binding, ExchangeRouter, is_default
from ..model import QueueSettings
from ..names import DEFAULT_ACCOUNT, qualified_name, split_name

FindSettings = Callable[[str], QueueSettings | None]
_MAX_PATTERNS = 100  # then every queue is read
_NOTHING = EventFilter(queues=("\0",))


def routing_key(queue: str, event: str) -> str:
    """`queue` is a queue key."""
    return f"{split_name(queue)[1]}.{event}"


def exchange_of(queue: str) -> str:
    """The exchange for the events of a queue; those of the whole server go through the default account's."""
    account = split_name(queue)[0] if queue else DEFAULT_ACCOUNT
    return qualified_name(account, EVENTS_EXCHANGE)


def wanted_events(router: ExchangeRouter) -> EventFilter:
    """A filter that accepts all events that some binding wants, and few others."""
    queues: dict[str, None] = {}
    names: set[str] = set()
    for source in router.event_sources():
        account = split_name(source)[0]
        for binding in router.bindings(source):
            patterns, event = _parts(binding.key)
            queues.update(dict.fromkeys(qualified_name(account, pattern) for pattern in patterns))
            names.update(EVENT_NAMES if event is None else (event,))
    names &= set(EVENT_NAMES)
    if not queues or not names:
        return _NOTHING
    patterns_in_all = tuple(queues) if len(queues) <= _MAX_PATTERNS and "*" not in queues else ()
    return EventFilter(patterns_in_all, frozenset() if len(names) == len(EVENT_NAMES) else frozenset(names))


def _parts(key: str) -> tuple[list[str], str | None]:
    """Patterns of queue names, and the event; None: any."""
    words = key.split(".")
    *queue, event = [word for at, word in enumerate(words) if word != "#" or words[at - 1 : at] != ["#"]]
    if event == "#":
        # It matches no words, too: then the word before it is the event.
        *shorter, last = queue or ["#"]
        found = ["*"] if not queue else [_pattern(queue), _pattern([*queue, "*"])]
        if last in EVENT_NAMES or last in ("*", "#"):
            found.append(_pattern(shorter))
        return found, None
    return [_pattern(queue)], None if event == "*" else event


def _pattern(words: list[str]) -> str:
    """With `*` for whole words. `#` may match no word, and then its dot is missing."""
    pattern = ".".join("*" if word == "#" else word for word in words)
    return pattern.replace(".*", "*").replace("*.", "*") if "#" in words else pattern


class LeftOut:
    """The queues whose events are not sent, because the messages about events reach them.

    An event about such a queue would cause another one, for ever. They are the queues bound to an exchange
    for events, directly or through others, and the queues that their dead letters reach.
    """

    def __init__(self, router: ExchangeRouter, find_settings: FindSettings) -> None:
        self.queues: set[str] = set()
        self._by_key = False
        exchanges = router.event_sources()
        seen = set(exchanges)
        queues: list[str] = []

        def add_exchange(name: str) -> None:
            if name not in seen:
                seen.add(name)
                exchanges.append(name)

        def add_queue(name: str) -> None:
            if name not in self.queues:
                self.queues.add(name)
                queues.append(name)

        while exchanges or queues:
            if exchanges:
                for binding in self._onward(router, exchanges.pop()):
                    (add_exchange if binding.to_exchange else add_queue)(binding.destination)
                continue
            queue = queues.pop()
            settings = find_settings(queue)
            if settings is None:
                continue
            if settings.dead_letter is not None:
                add_queue(settings.dead_letter)
            exchange, key = settings.dead_letter_exchange, settings.dead_letter_key
            if exchange is not None and not is_default(exchange):
                add_exchange(exchange)
            elif exchange is not None and key is not None:
                add_queue(qualified_name(split_name(queue)[0], key))
            elif exchange is not None:
                self._by_key = True  # dead letters go to the queue with the name of their routing key

    @staticmethod
    def _onward(router: ExchangeRouter, exchange: str) -> list[Binding]:
        if exchange not in router:
            return []
        found = router.bindings(exchange)
        alternate = router.get(exchange).alternate
        return found if alternate is None else [*found, Binding(exchange, alternate, to_exchange=True)]

    def __contains__(self, queue: str) -> bool:
        if queue in self.queues:
            return True
        return self._by_key and queue.rpartition(".")[2] in EVENT_NAMES
