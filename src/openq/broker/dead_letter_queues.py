"""Where dead letters of queues go: to a queue by its name or, as AMQP declares it, through an exchange."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ..engine.routing import Binding, ExchangeRouter, is_default
from ..model import QueueSettings
from ..names import qualified_name, split_name


def dead_letter_queues(router: ExchangeRouter, queue_key: str, settings: QueueSettings) -> list[str]:
    """As far as bindings tell; whether these queues exist is not looked at.

    Without a key of its own, a dead letter keeps the key that it was published with: then it is taken to be
    published directly to the queue, or, if no binding has that key, to reach every queue of the exchange.
    """
    exchange = settings.dead_letter_exchange
    if exchange is None:
        return [] if settings.dead_letter is None else [settings.dead_letter]
    account, short = split_name(queue_key)
    key = settings.dead_letter_key
    if is_default(exchange):
        return [] if key is None else [qualified_name(account, key)]
    found: dict[str, None] = {}
    seen, following = {exchange}, deque([exchange])
    while following:
        name = following.popleft()
        for binding in _matching(router.bindings(name), short if key is None else key):
            if not binding.to_exchange:
                found[binding.destination] = None
            elif binding.destination not in seen:
                seen.add(binding.destination)
                following.append(binding.destination)
    return list(found)


def _matching(bindings: Sequence[Binding], key: str) -> Sequence[Binding]:
    return [each for each in bindings if each.key == key] or bindings


def all_dead_letter_queues(
    router: ExchangeRouter, queues: Iterable[tuple[str, QueueSettings]]
) -> dict[str, list[str]]:
    """The queues that take dead letters, each with those whose dead letters they are."""
    found: dict[str, list[str]] = {}
    for name, settings in queues:
        if settings.dead_letter is None and settings.dead_letter_exchange is None:
            continue
        for target in dead_letter_queues(router, name, settings):
            found.setdefault(target, []).append(name)
    return found
