"""Vhosts, queues, exchanges and bindings as RabbitMQ's clients know them, over the broker.

Used on the loop's thread only. Names given are those within a vhost. Consumers and connections are not known
here: whoever has them sets `in_use`, and is told by `forgotten` which queue is gone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from ...broker.full import KnownQueue
from ...engine.routing import PREDECLARED, Binding, Exchange, Kind, is_default
from ...errors import ExchangeNotFound, OpenQError, QueueExists, QueueNotFound
from ...names import DEFAULT_ACCOUNT, full_name, split_name
from ...properties import encode_table
from ..site import Site
from .arguments import (
    HOME,
    OWNER,
    Arguments,
    Declaration,
    account_of,
    check_queue,
    declaration_of,
    expires_ms,
    named,
    plain,
    queue_type,
    require_same,
    require_same_arguments,
    require_same_queue,
    settings_of,
    shown,
    type_of,
    vhost_of,
)
from .errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AmqpError,
    from_openq,
)
from .neighbours import Neighbours
from .policies import Policies, Policy

log = logging.getLogger("openq.amqp")

P = ParamSpec("P")
T = TypeVar("T")

KINDS = ("direct", "fanout", "topic", "headers")
DELAYED = "x-delayed-message"
# Among the arguments of an exchange, never shown.
_DELAYED_MARK = "openq.kind"
_POLICY_MARK = "openq.policy"
_HOME_MARK = "openq.home"
_MARKS = (_DELAYED_MARK, _POLICY_MARK, _HOME_MARK)
_BUILT_IN: tuple[tuple[str, Kind], ...] = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)
_BUILT_IN_NAMES = frozenset(("", *(name for name, _ in _BUILT_IN)))
MAX_ARGUMENTS = 16 * 1024
_LINE_ENDS = str.maketrans("", "", "\r\n")
_MATCHES = ("all", "any", "all-with-x", "any-with-x")


class _Expiry:
    __slots__ = ("after_s", "delivered", "due", "number", "timer")

    def __init__(self, number: int, after_s: float) -> None:
        self.delivered = 0  # messages handed out when it was last looked at, through whatever door
        self.number = number  # of the queue that it is about: there may be another of its name one day
        self.after_s = after_s
        self.due = 0.0
        self.timer: asyncio.TimerHandle | None = None


class Topology:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.broker = site.broker
        self.neighbours = Neighbours(site)
        self.policies = Policies(site.config.path, None if self.neighbours.is_alone else site.broker)
        # Exclusive queue -> the connection that declared it, and the number of that very queue: through
        # another door it may be deleted, and one of the same name made.
        self._owners: dict[str, tuple[object, int]] = {}
        self.in_use: Callable[[str], bool] = lambda full: False  # has it consumers?
        self.forgotten: Callable[[str], None] = lambda full: None  # a queue was deleted from here
        self.vhost_gone: Callable[[str], None] = lambda vhost: None  # its connections have to go
        self._expiries: dict[str, _Expiry] = {}

    def startup(self) -> None:
        """What was not to outlive its server goes, and policies count as they are now."""
        if self.neighbours.is_alone:
            self._drop_all_brief()
        else:
            self.neighbours.tell()
            self.neighbours.look()
            self.drop_orphans(at_start=True)
        self.apply_policies()
        for full in self.broker.queues():
            self._arm(full)

    def _drop_all_brief(self) -> None:
        for full in self.broker.queues():
            try:
                declared = declaration_of(self.broker.about(full).settings)
                if not declared.is_foreign and (declared.exclusive or not declared.durable):
                    self.broker.delete(full)
            except QueueNotFound:
                pass  # somebody else was faster
        for exchange in self.exchanges():
            if not exchange.durable and self.has_exchange(exchange.name):
                self.broker.delete_exchange(exchange.name)

    def drop_orphans(self, *, at_start: bool = False) -> None:
        """Where servers share a store: what was not to outlive a server that is gone."""
        is_gone = self.neighbours.is_gone
        for full in self.broker.queues():
            found = self.broker.known(full)
            home = None if found is None else found.settings.notes.get(HOME)
            if home is not None and is_gone(home, at_start=at_start):
                log.info("queue %r goes with the server that it was declared on", full)
                self.drop(full)
        for exchange in self.exchanges():
            mark = exchange.arguments.get(_HOME_MARK)
            is_left = isinstance(mark, str) and is_gone(mark, at_start=at_start)
            if is_left and self.has_exchange(exchange.name):
                _told(self.broker.delete_exchange, exchange.name)

    def close(self) -> None:
        for expiry in self._expiries.values():
            if expiry.timer is not None:
                expiry.timer.cancel()
        self._expiries.clear()

    # -- vhosts

    def account_of(self, vhost: str) -> str:
        return account_of(vhost)

    def vhost_exists(self, vhost: str) -> bool:
        if vhost == "/":
            return True
        if not vhost:
            return False
        if self.has_exchange(full_name(account_of(vhost), "amq.direct")):
            return True
        start = full_name(account_of(vhost), "")
        if any(user.account == vhost for user in self.site.guard.store.users()) or any(
            full.startswith(start) for full in self.broker.queues()
        ):
            self.add_vhost(vhost)  # an account is a vhost, with all that belongs to one
            return True
        return False

    def add_vhost(self, vhost: str) -> bool:
        """Whether it is new."""
        if not vhost or len(vhost.encode("utf-8", "replace")) > 128:
            raise AmqpError(PRECONDITION_FAILED, "the name of a vhost has 1 to 128 bytes")
        account = account_of(vhost)
        if account == DEFAULT_ACCOUNT or self.has_exchange(full_name(account, "amq.direct")):
            return False
        for name, kind in reversed(_BUILT_IN):  # the one by which it is known comes last
            _told(self.broker.declare_exchange, Exchange(full_name(account, name), kind))
        return True

    def remove_vhost(self, vhost: str) -> bool:
        """With everything in it. Whether there was one."""
        account = account_of(vhost)
        if account == DEFAULT_ACCOUNT:
            raise AmqpError(ACCESS_REFUSED, "the vhost '/' is always there")
        if not self.vhost_exists(vhost):
            return False
        self.vhost_gone(vhost)
        for full in self.queues(vhost):
            self.drop(full)
        for exchange in self.exchanges(vhost):
            if split_name(exchange.name)[1] and self.has_exchange(exchange.name):
                _told(self.broker.delete_exchange, exchange.name)
        for policy in self.policies.all(vhost):
            self.policies.clear(vhost, policy.name)
        return True

    def vhosts(self) -> list[str]:
        accounts = {split_name(each.name)[0] for each in self.exchanges()}
        accounts |= {user.account for user in self.site.guard.store.users()}
        accounts |= {split_name(full)[0] for full in self.broker.queues()}
        return sorted({"/", *(vhost_of(account) for account in accounts)})

    # -- queues

    def declare_queue(
        self,
        vhost: str,
        name: str,
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
        owner: object | None = None,
    ) -> str:
        name = stripped(name)
        if passive:
            self.check_access(vhost, name, owner)
            self.touch(full_name(account_of(vhost), name))
            return name
        if not name:
            if queue_type(arguments or {}) == "quorum":
                raise AmqpError(
                    PRECONDITION_FAILED, "Cannot declare a server-named queue for type rabbit_quorum_queue"
                )
            name = "amq.gen-" + secrets.token_urlsafe(16)
        elif name.startswith("amq."):
            raise AmqpError(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
        account = account_of(vhost)
        full = full_name(account, name)
        found = self._find(full)
        lasts = durable and not exclusive  # an exclusive queue never outlives its connection
        if found is not None:
            declared = declaration_of(found.settings)
            if declared.exclusive != exclusive or not self._may_use(found, owner):
                raise _locked(name, vhost)
            require_same_queue(
                name,
                vhost,
                declared,
                found.settings,
                durable=lasts,
                auto_delete=auto_delete,
                arguments=arguments or {},
            )
            self.touch(full)
            return name
        given = dict(arguments or {})
        _check_size(given)
        check_queue(name, vhost, given, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        policy = self.policies.for_(vhost, queue_type(given), name)
        declared = _under(policy, Declaration(lasts, auto_delete, exclusive, given))
        if not lasts and not self.neighbours.is_alone:
            declared = replace(
                declared,
                home=self.neighbours.name,
                owner=_token(owner) if exclusive else None,
            )
        try:
            self._create(full, declared)
        except QueueExists as error:
            # Somebody made it while the store was asked: now it is there, and is to be the same.
            if self.neighbours.is_alone or self._find(full) is None:
                raise from_openq(error) from error
            return self.declare_queue(
                vhost,
                name,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
                owner=owner,
            )
        except OpenQError as error:
            raise from_openq(error) from error
        if exclusive and owner is not None:
            self._owners[full] = owner, self.broker.about(full).number
        self._arm(full)
        return name

    def _create(self, full: str, declared: Declaration) -> None:
        self.broker.declare(full, settings_of(split_name(full)[0], declared))

    def check_access(self, vhost: str, name: str, owner: object | None) -> KnownQueue:
        """For everything one does with a queue; raises 404 or 405."""
        full = full_name(account_of(vhost), name)
        found = self._find(full)
        if found is None:
            raise AmqpError(NOT_FOUND, f"no {named('queue', name, vhost)}")
        if not self._may_use(found, owner):
            raise _locked(name, vhost)
        return found

    def delete_queue(
        self,
        vhost: str,
        name: str,
        owner: object | None,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        in_use: bool | None = None,
    ) -> int:
        """How many messages were ready in it; one that is not there has none."""
        full = full_name(account_of(vhost), name)
        if self._find(full) is None:
            return 0
        self.check_access(vhost, name, owner)
        if if_empty and _told(self.broker.ready_count, full):
            raise AmqpError(PRECONDITION_FAILED, f"{named('queue', name, vhost)} not empty")
        if if_unused and (self.in_use(full) if in_use is None else in_use):
            raise AmqpError(PRECONDITION_FAILED, f"{named('queue', name, vhost)} in use")
        return self.drop(full)

    def drop(self, full: str) -> int:
        """Delete a queue by its engine's name, whoever uses it. How many messages were ready."""
        found = self._find(full)
        if found is None:
            return 0
        try:
            count = self.broker.ready_count(full)
            self.broker.delete(full)
        except QueueNotFound:
            count = 0  # somebody else was faster
        except OpenQError as error:
            raise from_openq(error) from error
        self._owners.pop(full, None)
        self._disarm(full)
        self.forgotten(full)
        return count

    def release(self, owner: object) -> list[str]:
        """The queues that only this connection could use go with it. Their engine's names."""
        mine = {full: number for full, (each, number) in self._owners.items() if each is owner}
        for full, number in mine.items():
            try:
                found = self._find(full)
                if found is not None and found.number == number:
                    self.drop(full)
            except AmqpError as error:  # a full disk, say: the next start deletes it
                log.error("queue %r of a closed connection stays: %s", full, error.text)
            self._owners.pop(full, None)
        return list(mine)

    def purge_queue(self, vhost: str, name: str, owner: object | None) -> int:
        """How many were ready; what is with consumers stays theirs."""
        self.check_access(vhost, name, owner)
        full = full_name(account_of(vhost), name)
        return _told(self.broker.purge, full, waiting_only=True)

    def queues(self, vhost: str | None = None) -> list[str]:
        """The engine's names."""
        names = self.broker.queues()
        return names if vhost is None else [each for each in names if _is_in(each, vhost)]

    def has_queue(self, full: str) -> bool:
        return self._find(full) is not None

    def declaration(self, full: str) -> Declaration:
        return declaration_of(self.broker.about(full).settings)

    def _find(self, full: str) -> KnownQueue | None:
        try:
            return self.broker.about(full)
        except QueueNotFound:
            return None
        except OpenQError as error:
            raise from_openq(error) from error

    def _may_use(self, queue: KnownQueue, owner: object | None) -> bool:
        holder_token = queue.settings.notes.get(OWNER)
        if holder_token is not None and holder_token != _token(owner):
            return False
        holder, number = self._owners.get(queue.name, (owner, 0))
        return holder is owner or number != queue.number

    # -- queues that go when nobody uses them

    def touch(self, full: str) -> None:
        """It was used: its time to live without use starts anew."""
        expiry = self._expiries.get(full)
        if expiry is not None:
            expiry.due = self.site.loop.time() + expiry.after_s

    def _arm(self, full: str) -> None:
        found = self._find(full)
        after_ms = None if found is None else expires_ms(declaration_of(found.settings))
        known = self._expiries.get(full)
        if known is not None:
            is_same = found is not None and known.number == found.number
            if is_same and after_ms is not None and known.after_s == after_ms / 1000:
                return
            self._disarm(full)
        if found is not None and after_ms is not None:
            expiry = self._expiries[full] = _Expiry(found.number, after_ms / 1000)
            expiry.delivered = self._use_of(full)[0]
            self.touch(full)
            self._look_again(full, expiry, expiry.after_s)

    def _look_again(self, full: str, expiry: _Expiry, after_s: float) -> None:
        expiry.timer = self.site.loop.call_later(after_s, self.site.enter, self._expire, full)

    def _use_of(self, full: str) -> tuple[int, int]:
        """How many messages it has handed out, and how many wait for one, through whatever door."""
        try:
            stats = self.broker.stats(full)
        except OpenQError:
            return 0, 0
        return stats.counters["delivered"], stats.waiters

    def _disarm(self, full: str) -> None:
        expiry = self._expiries.pop(full, None)
        if expiry is not None and expiry.timer is not None:
            expiry.timer.cancel()

    def _expire(self, full: str) -> None:
        expiry = self._expiries.get(full)
        if expiry is None:
            return
        try:
            found = self._find(full)
            if found is None or found.number != expiry.number:  # deleted through another door
                self._disarm(full)
                return
        except AmqpError:
            return  # the server stops
        delivered, waiters = self._use_of(full)
        if self.in_use(full) or waiters or delivered != expiry.delivered:
            expiry.delivered = delivered
            self.touch(full)
        left = expiry.due - self.site.loop.time()
        if left > 0:
            self._look_again(full, expiry, left)
            return
        try:
            self.drop(full)
        except AmqpError as error:
            log.error("queue %r was not used for long and should go: %s", full, error.text)
            self.touch(full)
            self._look_again(full, expiry, expiry.after_s)

    # -- exchanges

    def has_exchange(self, full: str) -> bool:
        try:
            self._exchange(full)
        except ExchangeNotFound:
            return False
        return True

    def _exchange(self, full: str) -> Exchange:
        try:
            return self.broker.exchange(full)
        except ExchangeNotFound:
            if not self.broker.is_shared:
                raise
        self.broker.exchanges()  # it may be new on another server: this looks again
        return self.broker.exchange(full)

    def exchange(self, vhost: str, name: str) -> Exchange:
        """Raises 404."""
        try:
            return self._exchange(full_name(account_of(vhost), name))
        except ExchangeNotFound:
            raise AmqpError(NOT_FOUND, f"no {named('exchange', name, vhost)}") from None

    def exchanges(self, vhost: str | None = None) -> list[Exchange]:
        found = self.broker.exchanges()
        return found if vhost is None else [each for each in found if _is_in(each.name, vhost)]

    def is_delayed(self, full: str) -> bool:
        """Whether it keeps messages until the time in their header `x-delay`."""
        router = self.broker.router
        return full in router and _DELAYED_MARK in router.get(full).arguments

    def declare_exchange(
        self,
        vhost: str,
        name: str,
        kind: str,
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> None:
        name = stripped(name)
        if not passive and kind not in (*KINDS, DELAYED):
            # A channel error, as in RabbitMQ from 4.0 on; its 3.x ended the connection (503).
            raise AmqpError(PRECONDITION_FAILED, f"{'unknown' if kind else 'invalid'} exchange type '{kind}'")
        if not name:
            _refuse_default()
        if passive:
            self.exchange(vhost, name)
            return
        full = full_name(account_of(vhost), name)
        what = named("exchange", name, vhost)
        given = dict(arguments or {})
        if self.has_exchange(full):
            current = self.exchange(vhost, name)
            shown_now = arguments_of(current)
            require_same("type", what, kind, kind_of(current))
            require_same("durable", what, durable, current.durable)
            require_same("auto_delete", what, auto_delete, current.auto_delete)
            require_same("internal", what, internal, current.internal)
            require_same_arguments(("alternate-exchange", "x-delayed-type"), what, given, shown_now)
            return
        if name.startswith("amq."):
            raise AmqpError(ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix 'amq.*'")
        _check_size(given)
        alternate = given.get("alternate-exchange")
        if "alternate-exchange" in given and not isinstance(alternate, str | bytes):
            raise AmqpError(
                PRECONDITION_FAILED,
                f"invalid type '{type_of(alternate)}' for arg 'alternate-exchange' in {what}",
            )
        marked = plain(given)
        if kind == DELAYED:
            kind = given.get("x-delayed-type", "")
            if kind not in KINDS:
                raise AmqpError(
                    PRECONDITION_FAILED,
                    "Invalid argument, 'x-delayed-type' must be an existing exchange type",
                )
            marked[_DELAYED_MARK] = DELAYED
        if not durable and not self.neighbours.is_alone:
            marked[_HOME_MARK] = self.neighbours.name
        exchange = _told(
            Exchange,
            full,
            cast(Kind, kind),
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=marked,
        )
        _told(self.broker.declare_exchange, self._with_alternate(exchange))

    def _with_alternate(self, exchange: Exchange) -> Exchange:
        """Where goes what it leads nowhere, by its own argument or by a policy."""
        account, name = split_name(exchange.name)
        arguments = {key: value for key, value in exchange.arguments.items() if key != _POLICY_MARK}
        own = arguments.get("alternate-exchange")
        if own is not None:
            return replace(exchange, alternate=full_name(account, shown(own)))
        if exchange.alternate is not None and _POLICY_MARK not in exchange.arguments:
            return exchange  # another door said so
        policy = self.policies.for_(vhost_of(account), "exchange", name)
        if policy is None:
            return replace(exchange, alternate=None, arguments=arguments)
        by_policy = policy.definition.get("alternate-exchange")
        return replace(
            exchange,
            alternate=None if by_policy is None else full_name(account, by_policy),
            arguments={**arguments, _POLICY_MARK: policy.name},
        )

    def delete_exchange(self, vhost: str, name: str, if_unused: bool = False) -> None:
        name = stripped(name)
        if not name:
            _refuse_default()
        if name.startswith("amq."):
            raise AmqpError(
                ACCESS_REFUSED, f"deletion of system {named('exchange', name, vhost)} not allowed"
            )
        full = full_name(account_of(vhost), name)
        if not self.has_exchange(full):
            return
        if if_unused and self.bindings(source=full):
            raise AmqpError(PRECONDITION_FAILED, f"{named('exchange', name, vhost)} in use")
        _told(self.broker.delete_exchange, full)

    # -- bindings

    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]:
        """By the engine's names."""
        return self.broker.bindings(source, destination)

    def bind_queue(
        self,
        vhost: str,
        queue: str,
        exchange: str,
        key: str,
        arguments: Arguments | None = None,
        owner: object | None = None,
    ) -> bool:
        """Whether it is new."""
        if not exchange:
            _refuse_default()
        source = self.exchange(vhost, exchange)
        self.check_access(vhost, queue, owner)
        return self._bind(
            source, _binding(source.name, full_name(account_of(vhost), queue), False, key, arguments)
        )

    def unbind_queue(
        self,
        vhost: str,
        queue: str,
        exchange: str,
        key: str,
        arguments: Arguments | None = None,
        owner: object | None = None,
    ) -> None:
        """What is not bound is unbound already."""
        if not exchange:
            _refuse_default()
        account = account_of(vhost)
        binding = _binding(full_name(account, exchange), full_name(account, queue), False, key, arguments)
        if binding in self.bindings(binding.source, binding.destination):
            self.check_access(vhost, queue, owner)
            _told(self.broker.unbind, binding)

    def bind_exchange(
        self, vhost: str, destination: str, source: str, key: str, arguments: Arguments | None = None
    ) -> bool:
        """Whether it is new."""
        if not destination or not source:
            _refuse_default()
        first, second = self.exchange(vhost, source), self.exchange(vhost, destination)
        return self._bind(first, _binding(first.name, second.name, True, key, arguments))

    def unbind_exchange(
        self, vhost: str, destination: str, source: str, key: str, arguments: Arguments | None = None
    ) -> None:
        if not destination or not source:
            _refuse_default()
        account = account_of(vhost)
        binding = _binding(full_name(account, source), full_name(account, destination), True, key, arguments)
        _told(self.broker.unbind, binding)

    def _bind(self, source: Exchange, binding: Binding) -> bool:
        if source.kind == "headers" and "x-match" in binding.arguments:
            _check_match(binding.arguments["x-match"])
        return _told(self.broker.bind, binding)

    # -- policies

    def set_policy(self, policy: Policy) -> bool:
        """In force at once; `policies.save` keeps it. Whether that changed anything."""
        before = self.policies.get(policy.vhost, policy.name)
        changed = self.policies.set(policy)
        if changed:
            self._apply_or_restore(policy.vhost, policy.name, before)
        return changed

    def clear_policy(self, vhost: str, name: str) -> bool:
        before = self.policies.get(vhost, name)
        found = self.policies.clear(vhost, name)
        if found:
            self._apply_or_restore(vhost, name, before)
        return found

    def _apply_or_restore(self, vhost: str, name: str, before: Policy | None) -> None:
        try:
            self.apply_policies(vhost)
        except AmqpError:  # a full disk, say, in the middle of it
            self.restore_policy(vhost, name, before)
            raise

    def restore_policy(self, vhost: str, name: str, before: Policy | None) -> None:
        """As it was, after a change that could not be made or kept."""
        if before is None:
            self.policies.clear(vhost, name)
        else:
            self.policies.set(before)
        try:
            self.apply_policies(vhost)
        except AmqpError as error:
            log.error("policy %r: some queues follow it until the next start: %s", name, error.text)

    def apply_policies(self, vhost: str | None = None) -> None:
        """To all queues and exchanges that there are."""
        for full in self.queues(vhost):
            found = self._find(full)
            if found is not None:
                _told(self._apply_to_queue, full, found)
        for exchange in self.exchanges(vhost):
            self._apply_to_exchange(exchange)

    def _apply_to_queue(self, full: str, queue: KnownQueue) -> None:
        declared = declaration_of(queue.settings)
        if declared.is_foreign:
            return  # its own door says how it behaves
        account, name = split_name(full)
        policy = self.policies.for_(vhost_of(account), queue_type(declared.arguments), name)
        after = _under(policy, declared)
        if (after.policy, after.definition) == (declared.policy, declared.definition):
            return
        # Only what the policy changes: another door may have changed the rest meanwhile.
        old, new = settings_of(account, declared), settings_of(account, after)
        changes: dict[str, object] = {
            each: getattr(new, each) for each in _BY_POLICY if getattr(new, each) != getattr(old, each)
        }
        notes: Mapping[str, str] = {
            key: value for key, value in queue.settings.notes.items() if key not in old.notes
        }
        settings = queue.settings.with_(**changes, notes={**notes, **new.notes})
        self.broker.declare(full, settings, change=True)
        self._arm(full)

    def _apply_to_exchange(self, exchange: Exchange) -> None:
        if is_default(exchange.name) or exchange in PREDECLARED:
            return
        wanted = self._with_alternate(exchange)
        if wanted != exchange and self.has_exchange(exchange.name):
            _told(self.broker.change_exchange, wanted)


_BY_POLICY = (
    "ttl_ms",
    "max_receives",
    "dead_letter_exchange",
    "dead_letter_key",
    "max_length",
    "max_bytes",
    "overflow",
)


def _told(act: Callable[P, T], *given: P.args, **more: P.kwargs) -> T:
    """What the broker says, and what it refuses in AMQP's words."""
    try:
        return act(*given, **more)
    except OpenQError as error:
        raise from_openq(error) from error


def _binding(
    source: str, destination: str, to_exchange: bool, key: str, arguments: Arguments | None
) -> Binding:
    _check_size(arguments or {})
    return _told(Binding, source, destination, to_exchange, key, plain(arguments or {}))


def _check_size(arguments: Arguments) -> None:
    """They are kept, and written again at the beginning of every journal file."""
    encoded_arguments(arguments)


def encoded_arguments(arguments: Arguments) -> bytes:
    """Raises AmqpError if they are too long to be kept."""
    try:
        encoded = encode_table(arguments)
    except OpenQError as error:
        raise from_openq(error) from error
    size = len(encoded)
    if size > MAX_ARGUMENTS:
        raise AmqpError(PRECONDITION_FAILED, f"arguments of {size} bytes; at most {MAX_ARGUMENTS} are kept")
    return encoded


def stripped(name: str) -> str:
    """As RabbitMQ takes the name of what is declared; rights are those of this name."""
    return name.translate(_LINE_ENDS)


def is_built_in(name: str) -> bool:
    """Whether every vhost has an exchange of this name."""
    return name in _BUILT_IN_NAMES


def kind_of(exchange: Exchange) -> str:
    return DELAYED if _DELAYED_MARK in exchange.arguments else exchange.kind


def arguments_of(exchange: Exchange) -> dict[str, Any]:
    """As they were given; what another door asked for as AMQP would have said it."""
    found = {name: value for name, value in exchange.arguments.items() if name not in _MARKS}
    if exchange.alternate is not None and _POLICY_MARK not in exchange.arguments:
        found.setdefault("alternate-exchange", split_name(exchange.alternate)[1])
    return found


def policy_of(exchange: Exchange) -> str | None:
    mark = exchange.arguments.get(_POLICY_MARK)
    return None if mark is None else str(mark)


def _token(owner: object | None) -> str | None:
    """By which a connection is known to other servers."""
    return getattr(owner, "token", None)


def _under(policy: Policy | None, declared: Declaration) -> Declaration:
    return replace(
        declared,
        policy=None if policy is None else policy.name,
        definition=None if policy is None else policy.definition,
    )


def _is_in(full: str, vhost: str) -> bool:
    return split_name(full)[0] == account_of(vhost)


def _check_match(how: object) -> None:
    if not isinstance(how, str):
        raise AmqpError(
            PRECONDITION_FAILED,
            f"Invalid x-match field type {type_of(how)} (value {shown(how)}); expected longstr",
        )
    if how not in _MATCHES:
        raise AmqpError(
            PRECONDITION_FAILED,
            f'Invalid x-match field value <<"{how}">>; expected all, any, all-with-x, or any-with-x',
        )


def _locked(name: str, vhost: str) -> AmqpError:
    return AmqpError(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked {named('queue', name, vhost)}. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration.",
    )


def _refuse_default() -> NoReturn:
    raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")
