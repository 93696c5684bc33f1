"""Exchanges and bindings: which queues a message goes to.

The router knows queues only as names at the end of bindings; the caller checks that they exist. Everything is
kept in the order of binding, so the same calls always give the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from ..errors import ExchangeInUse, ExchangeNotFound, InvalidSetting
from ..model import Properties
from ..names import DEFAULT_ACCOUNT, qualified_name, split_name

Kind = Literal["direct", "fanout", "topic", "headers"]

MAX_DEPTH = 32
EVENTS_EXCHANGE = "openq.events"  # every account has one; servers publish events through it


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange. It is replaced as a whole, never edited in place.

    Publishers must respect `internal`. `route` works for every exchange, because bindings and dead-lettering
    may lead to internal ones.
    """

    name: str
    kind: Kind
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: str | None = None
    arguments: Mapping[str, object] = field(default_factory=dict, compare=False)
    _identity: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in _TABLES:
            raise InvalidSetting(f"an exchange is one of {', '.join(_TABLES)}, not {self.kind!r}")
        _own_arguments(self)


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue, or to another exchange.

    Bindings with different arguments are different.
    """

    source: str
    destination: str
    to_exchange: bool = False
    key: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict, compare=False)
    _identity: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _own_arguments(self)


@dataclass(slots=True)
class Removed:
    """The exchanges and bindings that were removed, in the order of removal."""

    bindings: list[Binding] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.bindings or self.exchanges)


class ExchangeRouter:
    """All exchanges and bindings of one broker."""

    def __init__(self, cache_bytes: int = 16 * 1024 * 1024) -> None:
        self._cache_bytes = cache_bytes
        self._reset()

    def _reset(self) -> None:
        self._tables: dict[str, _BindingTable] = {x.name: _TABLES[x.kind](x) for x in PREDECLARED}
        # Bindings are numbered as they are made. The number is the order of every answer.
        self._numbers: dict[Binding, int] = {}
        self._arrivals: dict[tuple[bool, str], dict[int, Binding]] = {}
        self._next = 1
        self._known: dict[str, dict[str, list[str]]] = {}
        self._room = self._cache_bytes

    def declare(self, exchange: Exchange) -> bool:
        """True if it is new, False if it exists. Raises InvalidSetting if it exists with other properties."""
        if exchange.name not in self:
            if exchange.name.startswith("amq."):
                raise InvalidSetting(f"exchange {exchange.name!r}: names with 'amq.' in front are reserved")
            self._tables[exchange.name] = _TABLES[exchange.kind](exchange)
            self._forget_routes()
            return True
        known = self.get(exchange.name)
        if known != exchange:
            raise InvalidSetting(_difference(known, exchange))
        return False

    def delete(self, name: str, if_unused: bool = False) -> Removed:
        """Remove an exchange with all bindings from it and to it."""
        exchange = self.get(name)
        if exchange in PREDECLARED or is_default(name) or is_events_exchange(name):
            raise InvalidSetting(f"exchange {name!r} is always there and cannot be deleted")
        if if_unused and self._tables[name].bindings:
            raise ExchangeInUse(name)
        removed = Removed()
        self._unlink(self._take(name, removed), removed)
        return removed

    def change(self, exchange: Exchange) -> Exchange:
        """Replace the alternate or the arguments of an existing exchange; bindings stay.

        Returns the old one.
        """
        before = self.get(exchange.name)
        if before in PREDECLARED or is_default(exchange.name) or is_events_exchange(exchange.name):
            raise InvalidSetting(f"exchange {exchange.name!r} is always there and does not change")
        if exchange.kind != before.kind:
            raise InvalidSetting(_difference(before, exchange))
        self._tables[exchange.name].exchange = exchange
        self._forget_routes()
        return before

    def get(self, name: str) -> Exchange:
        """Raises ExchangeNotFound; `name in router` tests without raising."""
        table = self._tables.get(name)
        if table is not None:
            return table.exchange
        if is_default(name):
            return Exchange(name, "direct")
        if is_events_exchange(name):
            return Exchange(name, "topic", internal=True)
        raise ExchangeNotFound(name)

    def __contains__(self, name: object) -> bool:
        return name in self._tables or (
            isinstance(name, str) and (is_default(name) or is_events_exchange(name))
        )

    def exchanges(self) -> list[Exchange]:
        return [table.exchange for table in self._tables.values()]

    def bind(self, binding: Binding) -> bool:
        """True if it is new. The caller has checked that a destination queue exists."""
        source = self.get(binding.source)
        if binding.to_exchange:
            self.get(binding.destination)
        if is_default(binding.source) or (binding.to_exchange and is_default(binding.destination)):
            raise InvalidSetting("the default exchange reaches every queue by name and takes no bindings")
        if binding in self._numbers:
            return False
        if source.name not in self._tables:  # the exchange for events of another account
            self._tables[source.name] = _TABLES[source.kind](source)
        self._tables[source.name].add(self._next, binding)
        self._arrivals.setdefault((binding.to_exchange, binding.destination), {})[self._next] = binding
        self._numbers[binding] = self._next
        self._next += 1
        self._forget_routes()
        return True

    def unbind(self, binding: Binding) -> Removed:
        """Empty if there was no such binding.

        An auto-delete exchange is removed with the last binding from it.
        """
        removed = Removed()
        if binding in self._numbers:
            self._unlink([binding], removed)
        return removed

    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]:
        """In the order of binding; `destination` is a queue or an exchange."""
        if destination is not None:
            found = self._arrivals.get((False, destination), {}) | self._arrivals.get((True, destination), {})
            return [found[n] for n in sorted(found) if source in (None, found[n].source)]
        if source is not None:
            return list(self._tables[source].bindings.values()) if source in self._tables else []
        return list(self._numbers)

    def drop_queue(self, name: str) -> Removed:
        """Remove all bindings to a deleted queue, and auto-delete exchanges that have none left."""
        removed = Removed()
        self._unlink(list(self._arrivals.get((False, name), {}).values()), removed)
        return removed

    def route(
        self, exchange: str, key: str, headers: Mapping[str, object] | Properties | None = None
    ) -> list[str]:
        """The queues for a message: each once, nearest first, then in the order of binding.

        Of properties only the attributes are read, and only if an exchange needs them. An account's default
        exchange leads to its queue named `key`, whether or not that queue exists.
        """
        if (not exchange or exchange[-1] == "/") and is_default(exchange):
            return [_queue_by_name(exchange, key)]
        # Two plain lookups and a copy: a third faster than one lookup by a pair and a call of get.
        try:
            return [*self._known[exchange][key]]
        except KeyError:
            pass
        if exchange not in self:
            raise ExchangeNotFound(exchange)
        return self._walk(exchange, key, headers)

    def fixed_route(self, exchange: str, key: str) -> list[str] | None:
        """The route of every message with this key.

        None if it depends on headers, or without such an exchange.
        """
        try:
            names = self.route(exchange, key)
        except ExchangeNotFound:
            return None
        if (not exchange or exchange[-1] == "/") and is_default(exchange):
            return names
        return names if key in self._known.get(exchange, ()) else None

    def event_sources(self) -> list[str]:
        """The exchanges for events that have bindings."""
        return [
            name for name, table in list(self._tables.items()) if table.bindings and is_events_exchange(name)
        ]

    def dump(self) -> dict[str, Any]:
        """Everything except the predeclared exchanges, as values that JSON can hold."""
        return {
            "exchanges": [
                {"name": x.name}
                | {name: getattr(x, name) for name in _SETTINGS}
                | {"arguments": _pack_map(x.arguments)}
                for x in self.exchanges()
                # Bindings from the exchange for events are read by versions that do not know it, too.
                if x not in PREDECLARED or (x.name == EVENTS_EXCHANGE and self.bindings(x.name))
            ],
            "bindings": [
                {
                    "source": b.source,
                    "destination": b.destination,
                    "to_exchange": b.to_exchange,
                    "key": b.key,
                    "arguments": _pack_map(b.arguments),
                }
                for b in self._numbers
            ],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace the whole state by one from `dump`."""
        exchanges = [Exchange(**x | {"arguments": _unpack_map(x["arguments"])}) for x in state["exchanges"]]
        bindings = [Binding(**b | {"arguments": _unpack_map(b["arguments"])}) for b in state["bindings"]]
        self._reset()
        for exchange in exchanges:
            if not is_events_exchange(exchange.name):
                self.declare(exchange)
        for binding in bindings:
            self.bind(binding)

    def _walk(self, exchange: str, key: str, headers: Mapping[str, object] | Properties | None) -> list[str]:
        queues: dict[str, None] = {}
        # Both grow during the walk: a list for the order, a set so that a cycle ends.
        path, seen = [exchange], {exchange}
        facts: Set[_Fact] | None = None
        for name in path:
            if is_default(name):
                queues[_queue_by_name(name, key)] = None
                continue
            table = self._tables.get(name)
            if table is None:
                continue  # an alternate that was not declared: it routes the message nowhere
            if isinstance(table, _Headers) and facts is None:
                facts = _facts(headers.attributes if isinstance(headers, Properties) else headers or {})
            onward: list[str] = []
            matched = table.match(key, facts or frozenset())
            for binding in matched:
                if binding.to_exchange:
                    onward.append(binding.destination)
                else:
                    queues[binding.destination] = None
            # A match on an exchange that leads nowhere is still a match. Then only that exchange's own
            # alternate applies.
            if not matched and table.exchange.alternate is not None:
                onward.append(table.exchange.alternate)
            for following in onward:
                if following not in seen:
                    seen.add(following)
                    path.append(following)
        result = list(queues)
        # Where headers were compared, the key alone does not decide the route.
        if facts is None:
            self._remember(exchange, key, result)
        return result.copy()

    def _remember(self, exchange: str, key: str, queues: list[str]) -> None:
        # Bounded by size, not by count: one fanout to 10,000 queues weighs as much as 300 small routes, and a
        # client may use a new key for each message. Clearing the cache costs a busy key one walk in many
        # thousands. An LRU would cost bookkeeping at every hit.
        if self._room <= 0:
            self._forget_routes()
        self._room -= 250 + len(key) + 8 * len(queues)
        self._known.setdefault(exchange, {})[key] = queues

    def _forget_routes(self) -> None:
        self._known.clear()
        self._room = self._cache_bytes

    def _take(self, name: str, removed: Removed) -> list[Binding]:
        """Remove one exchange. Returns the bindings from and to it, which the caller removes."""
        table = self._tables.pop(name)
        removed.exchanges.append(table.exchange)
        return [*table.bindings.values(), *self._arrivals.get((True, name), {}).values()]

    def _unlink(self, loose: list[Binding], removed: Removed) -> None:
        for binding in loose:  # grows: an exchange is removed with its last binding
            number = self._numbers.pop(binding, None)
            if number is None:
                continue  # removed already: it joined two exchanges that are both removed
            removed.bindings.append(binding)
            where = binding.to_exchange, binding.destination
            del self._arrivals[where][number]
            if not self._arrivals[where]:
                del self._arrivals[where]
            table = self._tables.get(binding.source)
            if table is not None:
                table.remove(number, binding)
                if not table.bindings and is_events_exchange(binding.source):
                    if table.exchange not in PREDECLARED:
                        del self._tables[binding.source]
                elif table.exchange.auto_delete and not table.bindings:
                    loose += self._take(binding.source, removed)
        self._forget_routes()


def is_default(exchange: str) -> bool:
    """Whether it is an account's default exchange, which reaches each queue by name: "" or "@account/"."""
    return not exchange or (
        exchange[0] == "@" and len(exchange) > 2 and exchange.find("/") == len(exchange) - 1
    )


def is_events_exchange(exchange: str) -> bool:
    """Whether it is an account's exchange for events."""
    if exchange == EVENTS_EXCHANGE:
        return True
    return exchange[:1] == "@" and split_name(exchange)[1] == EVENTS_EXCHANGE


def _queue_by_name(default_exchange: str, key: str) -> str:
    # A key that looks like a queue of another account must not lead to that queue.
    return default_exchange + key if default_exchange else qualified_name(DEFAULT_ACCOUNT, key)


# How each exchange type chooses among its bindings. --------------------------------------------


class _BindingTable:
    """An exchange and its bindings by number. In this base class all of them match: a fanout."""

    __slots__ = ("bindings", "exchange")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.bindings: dict[int, Binding] = {}

    def add(self, number: int, binding: Binding) -> None:
        self.bindings[number] = binding

    def remove(self, number: int, binding: Binding) -> None:
        del self.bindings[number]

    def match(self, key: str, facts: Set[_Fact]) -> Collection[Binding]:
        return self.bindings.values()


class _Direct(_BindingTable):
    __slots__ = ("_by_key",)

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._by_key: dict[str, dict[int, Binding]] = {}

    def add(self, number: int, binding: Binding) -> None:
        super().add(number, binding)
        self._by_key.setdefault(binding.key, {})[number] = binding

    def remove(self, number: int, binding: Binding) -> None:
        super().remove(number, binding)
        del self._by_key[binding.key][number]
        if not self._by_key[binding.key]:
            del self._by_key[binding.key]

    def match(self, key: str, facts: Set[_Fact]) -> Collection[Binding]:
        return self._by_key.get(key, {}).values()


class _TopicNode:
    """One word of one or more topic patterns; `endless` if that word is `#`."""

    __slots__ = ("bindings", "endless", "following")

    def __init__(self, endless: bool = False) -> None:
        self.endless = endless
        self.following: dict[str, _TopicNode] = {}
        self.bindings: dict[int, Binding] = {}


class _Topic(_BindingTable):
    """Patterns as a trie, walked with the set of all nodes that a key may have reached.

    The set is never larger than the trie. So even with many `#` a key costs at most its words times the size
    of the trie. Trying one path after another would be exponential.
    """

    __slots__ = ("_root",)

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._root = _TopicNode()

    def add(self, number: int, binding: Binding) -> None:
        super().add(number, binding)
        node = self._root
        for word in _words(binding.key):
            if word not in node.following:
                node.following[word] = _TopicNode(endless=word == "#")
            node = node.following[word]
        node.bindings[number] = binding

    def remove(self, number: int, binding: Binding) -> None:
        super().remove(number, binding)
        words = _words(binding.key)
        path = [self._root]
        for word in words:
            path.append(path[-1].following[word])
        del path[-1].bindings[number]
        while words and not path[-1].bindings and not path[-1].following:
            path.pop()
            del path[-1].following[words.pop()]

    def match(self, key: str, facts: Set[_Fact]) -> Collection[Binding]:
        here: set[_TopicNode] = set()
        _reach(self._root, here)
        for word in _words(key):
            ahead: set[_TopicNode] = set()
            for node in here:
                if node.endless:
                    _reach(node, ahead)
                # A key may itself contain `*` or `#`. As words they lead to the same nodes as the wildcards.
                if word in node.following:
                    _reach(node.following[word], ahead)
                if "*" in node.following:
                    _reach(node.following["*"], ahead)
            here = ahead
        found: dict[int, Binding] = {}
        for node in here:
            found.update(node.bindings)
        return [found[number] for number in sorted(found)]


def _words(key: str) -> list[str]:
    """An empty key has no words, but "." has two empty ones."""
    return key.split(".") if key else []


def _reach(node: _TopicNode | None, places: set[_TopicNode]) -> None:
    """Add a node and the nodes behind its `#`, because `#` also matches no words."""
    while node is not None and node not in places:
        places.add(node)
        node = node.following.get("#")


# A header with its value, or with None, which means that the header is present with any value.
_Fact = tuple[str, bytes | float | str | None]


class _Headers(_BindingTable):
    __slots__ = ("_tests",)

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._tests: dict[int, tuple[bool, frozenset[_Fact]]] = {}

    def add(self, number: int, binding: Binding) -> None:
        how = binding.arguments.get("x-match", "all")
        if how not in ("all", "any", "all-with-x", "any-with-x"):
            raise InvalidSetting(f"x-match is all, any, all-with-x or any-with-x, not {how!r}")
        wanted = frozenset(
            (name, None if value is None else _comparable(value))
            for name, value in binding.arguments.items()
            if name != "x-match" and (how in ("all-with-x", "any-with-x") or not name.startswith("x-"))
        )
        super().add(number, binding)
        self._tests[number] = how in ("all", "all-with-x"), wanted

    def remove(self, number: int, binding: Binding) -> None:
        super().remove(number, binding)
        del self._tests[number]

    def match(self, key: str, facts: Set[_Fact]) -> Collection[Binding]:
        # So "all" without conditions matches every message, and "any" without conditions matches none.
        return [
            self.bindings[number]
            for number, (every, wanted) in self._tests.items()
            if (wanted <= facts if every else not wanted.isdisjoint(facts))
        ]


def _facts(headers: Mapping[str, object]) -> Set[_Fact]:
    facts: set[_Fact] = set()
    for name, value in headers.items():
        facts.add((name, None))
        try:
            facts.add((name, _comparable(value)))
        except InvalidSetting:
            # No binding can hold such a value, so no binding can test for it. Only the presence of the header
            # counts.
            continue
    return facts


def _comparable(value: object) -> bytes | float | str:
    """Equal for equal header values: 1 and 1.0 are equal, also "a" and b"a"; 1, True and "1" are not."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return repr(_pack(value))


# Arguments: any nesting of plain values, copied. -----------------------------------------------


def _own_arguments(value: Exchange | Binding) -> None:
    """Copy the arguments, and make their text part of the value's identity.

    The text is used because a mapping has no hash, and because 1, 1.0 and True are equal in Python.
    """
    packed = _pack_map(value.arguments)
    object.__setattr__(value, "arguments", _unpack_map(packed))
    object.__setattr__(value, "_identity", repr(packed))


def _pack_map(values: Mapping[str, object], depth: int = 0) -> dict[str, object]:
    """In the order of names, so that equal arguments have equal texts."""
    for name in values:
        if not isinstance(name, str):
            raise InvalidSetting(f"arguments are named by text, not by {name!r}")
    return {name: _pack(values[name], depth) for name in sorted(values)}


def _pack(value: object, depth: int = 0) -> object:
    """Values that JSON has stay as they are. Any other becomes an object with one name, which is its type."""
    if value is None or isinstance(value, bool):
        return value
    # Of a subclass (an enum, for example) only the plain value counts: that is the value after a restart.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise InvalidSetting("a number in arguments has at most 64 bits")
        return int(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else {"float": str(float(value))}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if depth == MAX_DEPTH:
        raise InvalidSetting(f"arguments are nested at most {MAX_DEPTH} deep")
    if isinstance(value, list | tuple):
        return [_pack(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {"map": _pack_map(value, depth + 1)}
    raise InvalidSetting(
        f"arguments hold text, bytes, numbers, booleans, None, lists and mappings, not {type(value).__name__}"
    )


def _unpack_map(values: Mapping[str, Any]) -> dict[str, object]:
    return {name: _unpack(value) for name, value in values.items()}


def _unpack(value: Any) -> object:
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    [(what, content)] = value.items()
    if what == "bytes":
        return bytes.fromhex(content)
    return float(content) if what == "float" else _unpack_map(content)


_SETTINGS = ("kind", "durable", "auto_delete", "internal", "alternate")


def _difference(old: Exchange, new: Exchange) -> str:
    changed = [name for name in _SETTINGS if getattr(old, name) != getattr(new, name)] or ["arguments"]
    return f"exchange {old.name!r} exists with " + ", ".join(
        f"{name}={getattr(old, name)!r}, not {getattr(new, name)!r}" for name in changed
    )


_TABLES: dict[str, type[_BindingTable]] = {
    "direct": _Direct,
    "fanout": _BindingTable,
    "topic": _Topic,
    "headers": _Headers,
}

PREDECLARED = (
    Exchange("", "direct"),
    Exchange("amq.direct", "direct"),
    Exchange("amq.fanout", "fanout"),
    Exchange("amq.topic", "topic"),
    Exchange("amq.headers", "headers"),
    Exchange("amq.match", "headers"),
    Exchange(EVENTS_EXCHANGE, "topic", internal=True),
)
