"""Exchanges: one published message reaches every queue whose binding matches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.routing import Binding, Exchange, Kind
from ..errors import InvalidSetting
from . import checks
from .parts import QueuePart
from .publishing import PublishOptions, check_attributes, make_draft

if TYPE_CHECKING:
    from typing import Unpack


class RoutedMessage(NamedTuple):
    """The id of a message published to an exchange, and the names of the queues that it reached."""

    id: str
    queues: list[str]


class QueueExchanges(QueuePart):
    """The exchanges on the target of a queue: `queue.exchanges`.

        orders.exchanges.declare("events", "topic")
        orders.exchanges.bind("events", "order.*")
        orders.exchanges.publish("events", "order.created", {"id": 1})

    They are those of AMQP: clients of every protocol publish to the same exchanges.
    """

    __slots__ = ()

    def declare(
        self,
        name: str,
        kind: Kind = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        alternate: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> bool:
        """Create an exchange: direct, fanout, topic or headers. Returns False if it exists already.

        `auto_delete` removes it with its last binding; an `internal` exchange takes messages from other
        exchanges only; `alternate` names the exchange that gets messages no binding matches. An exchange
        that exists with other properties raises InvalidSetting.
        """
        exchange = Exchange(
            checks.text(name, "name"),
            kind,
            durable,
            auto_delete,
            internal,
            checks.text_or_none(alternate, "alternate"),
            _arguments(arguments),
        )
        is_new = self.core.broker.exchanges.declare_exchange(exchange)
        self.core.sync()
        return is_new

    def delete(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings. With `if_unused`, one with bindings raises ExchangeInUse."""
        self.core.broker.exchanges.delete_exchange(checks.text(name, "name"), if_unused)
        self.core.sync()

    def bind(self, exchange: str, key: str = "", *, arguments: Mapping[str, Any] | None = None) -> bool:
        """Bind this queue to an exchange. Returns False if the binding exists already.

        `key` is the routing key of a direct exchange or the pattern of a topic exchange; `arguments` are the
        headers that a headers exchange compares.
        """
        return self._bind(
            Binding(*self._ends(exchange), False, checks.text(key, "key"), _arguments(arguments))
        )

    def unbind(self, exchange: str, key: str = "", *, arguments: Mapping[str, Any] | None = None) -> bool:
        """Remove a binding of this queue. Returns False if there is no such binding."""
        return self._unbind(
            Binding(*self._ends(exchange), False, checks.text(key, "key"), _arguments(arguments))
        )

    def bind_exchange(
        self, source: str, destination: str, key: str = "", *, arguments: Mapping[str, Any] | None = None
    ) -> bool:
        """Bind an exchange to another one: matching messages of `source` go on to `destination`."""
        return self._bind(_exchange_binding(source, destination, key, arguments))

    def unbind_exchange(
        self, source: str, destination: str, key: str = "", *, arguments: Mapping[str, Any] | None = None
    ) -> bool:
        """Remove a binding between two exchanges. Returns False if there is no such binding."""
        return self._unbind(_exchange_binding(source, destination, key, arguments))

    def publish(self, exchange: str, key: str, body: Any, **options: Unpack[PublishOptions]) -> RoutedMessage:
        """Publish to an exchange with a routing key; the options are those of `Queue.publish`.

        The message has one id in every queue that it reaches. One that reaches no queue is dropped.
        """
        core = self.core
        checks.text(exchange, "exchange")
        draft = make_draft(core.codec, body, **options)
        if not core.handle.is_remote and core.broker.exchanges.exchange(exchange).internal:
            raise InvalidSetting(f"exchange {exchange!r} is internal: only other exchanges lead to it")
        message_id, queues = core.broker.exchanges.route(exchange, checks.text(key, "key"), draft)
        core.sync()
        return RoutedMessage(message_id, queues)

    def all(self) -> list[Exchange]:
        """All exchanges but the default one, which reaches every queue by its name."""
        return [exchange for exchange in self.core.broker.exchanges.list_exchanges() if exchange.name]

    def bindings(self) -> list[Binding]:
        """The bindings of this queue."""
        return [
            binding
            for binding in self.core.broker.exchanges.bindings(None, self.core.name)
            if not binding.to_exchange and binding.source
        ]

    def _ends(self, exchange: str) -> tuple[str, str]:
        return checks.text(exchange, "exchange"), self.core.name

    def _bind(self, binding: Binding) -> bool:
        is_new = self.core.broker.exchanges.bind(binding)
        self.core.sync()
        return is_new

    def _unbind(self, binding: Binding) -> bool:
        is_removed = bool(self.core.broker.exchanges.unbind(binding))
        self.core.sync()
        return is_removed


def _exchange_binding(
    source: str, destination: str, key: str, arguments: Mapping[str, Any] | None
) -> Binding:
    return Binding(
        checks.text(source, "source"),
        checks.text(destination, "destination"),
        True,
        checks.text(key, "key"),
        _arguments(arguments),
    )


def _arguments(arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {} if arguments is None else check_attributes(arguments, "arguments")
