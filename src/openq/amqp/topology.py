"""Vhosts, queues, exchanges and bindings as RabbitMQ's clients know them, over the broker.

Used on the loop's thread only. Parameters `vhost` and `name` are AMQP's; a `queue_key` or `exchange_key`
includes the account. Consumers and connections are not known here: the server sets the callbacks
`has_consumers`, `on_queue_deleted` and `on_vhost_deleted`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn, ParamSpec, TypeVar, cast

from ..broker.interface import KnownQueue
from ..engine.routing import (
    EVENTS_EXCHANGE,
    PREDECLARED,
    Binding,
    Exchange,
    Kind,
    is_default,
    is_events_exchange,
)
from ..errors import ExchangeNotFound, OpenQError, QueueExists, QueueNotFound
from ..names import DEFAULT_ACCOUNT, qualified_name, split_name
from ..server.context import ServerContext
from .arguments import (
    HOME_SERVER,
    OWNER,
    Arguments,
    QueueDeclaration,
    account_of,
    as_text,
    check_queue,
    declaration_of,
    describe,
    encoded_arguments,
    plain_value,
    queue_type,
    require_same,
    require_same_arguments,
    require_same_queue,
    settings_of,
    strip_line_ends,
    type_of,
    vhost_of,
)
from .errors import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED, AmqpError, from_openq
from .exchanges import (
    DELAYED,
    DELAYED_ARGUMENT,
    HOME_ARGUMENT,
    KINDS,
    POLICY_ARGUMENT,
    PREDECLARED_NAMES,
    arguments_of,
    check_match,
    is_built_in,
    kind_of,
)
from .peers import PeerServers
from .policies import Policies, Policy
from .queue_expiry import QueueExpiry

log = logging.getLogger("openq.amqp")

P = ParamSpec("P")
T = TypeVar("T")


class Topology:
    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.broker = context.broker
        self.peers = PeerServers(context)
        self.policies = Policies(context.config.path, context.broker.cluster)
        # Exclusive queue -> the connection that declared it, and the number of that queue: another protocol
        # may delete it and create one of the same name.
        self._owners: dict[str, tuple[object, int]] = {}
        self.has_consumers: Callable[[str], bool] = lambda queue_key: False
        self.on_queue_deleted: Callable[[str], None] = lambda queue_key: None
        self.on_vhost_deleted: Callable[[str], None] = lambda vhost: None
        self._expiry = QueueExpiry(
            context,
            find=self._find,
            delete=self.delete_by_key,
            has_consumers=lambda queue_key: self.has_consumers(queue_key),
        )
        self.mark_used = self._expiry.mark_used  # call it when a queue was used

    def startup(self) -> None:
        """Delete transient objects of an earlier process, and apply the policies."""
        if self.peers.is_single:
            self._delete_transient()
        else:
            self.peers.announce()
            self.peers.refresh()
            self.delete_orphans(at_start=True)
        self.apply_policies()
        for queue_key in self.broker.queues():
            self._expiry.start(queue_key)

    def _delete_transient(self) -> None:
        for queue_key in self.broker.queues():
            try:
                declared = declaration_of(self.broker.get_queue(queue_key).settings)
                if not declared.is_from_other_protocol and (declared.exclusive or not declared.durable):
                    self.broker.delete(queue_key)
            except QueueNotFound:
                pass  # deleted meanwhile
        for exchange in self.exchanges():
            if not exchange.durable and self.has_exchange(exchange.name):
                self.broker.exchanges.delete_exchange(exchange.name)

    def delete_orphans(self, *, at_start: bool = False) -> None:
        """Delete transient objects of servers that died, where servers share a store."""
        is_dead = self.peers.is_dead
        for queue_key in self.broker.queues():
            found = self.broker.find_queue(queue_key)
            home = None if found is None else found.settings.notes.get(HOME_SERVER)
            if home is not None and is_dead(home, at_start=at_start):
                log.info("queue %r is deleted: its server died", queue_key)
                self.delete_by_key(queue_key)
        for exchange in self.exchanges():
            server = exchange.arguments.get(HOME_ARGUMENT)
            is_orphan = isinstance(server, str) and is_dead(server, at_start=at_start)
            if is_orphan and self.has_exchange(exchange.name):
                _with_amqp_errors(self.broker.exchanges.delete_exchange, exchange.name)

    def close(self) -> None:
        self._expiry.close()

    # -- vhosts

    def vhost_exists(self, vhost: str) -> bool:
        if vhost == "/":
            return True
        if not vhost:
            return False
        if self.has_exchange(qualified_name(account_of(vhost), "amq.direct")):
            return True
        start = qualified_name(account_of(vhost), "")
        if any(user.account == vhost for user in self.context.guard.store.users()) or any(
            queue_key.startswith(start) for queue_key in self.broker.queues()
        ):
            self.add_vhost(vhost)  # every account is a vhost
            return True
        return False

    def add_vhost(self, vhost: str) -> bool:
        """Returns whether it is new."""
        if not vhost or len(vhost.encode("utf-8", "replace")) > 128:
            raise AmqpError(PRECONDITION_FAILED, "the name of a vhost has 1 to 128 bytes")
        account = account_of(vhost)
        if account == DEFAULT_ACCOUNT or self.has_exchange(qualified_name(account, "amq.direct")):
            return False
        for name, kind in reversed(PREDECLARED_NAMES):  # amq.direct, which marks a vhost, comes last
            _with_amqp_errors(
                self.broker.exchanges.declare_exchange, Exchange(qualified_name(account, name), kind)
            )
        return True

    def remove_vhost(self, vhost: str) -> bool:
        """Delete it with everything in it. Returns whether it existed."""
        account = account_of(vhost)
        if account == DEFAULT_ACCOUNT:
            raise AmqpError(ACCESS_REFUSED, "the vhost '/' cannot be deleted")
        if not self.vhost_exists(vhost):
            return False
        self.on_vhost_deleted(vhost)
        for queue_key in self.queues(vhost):
            self.delete_by_key(queue_key)
        for exchange in self.exchanges(vhost):
            if split_name(exchange.name)[1] not in ("", EVENTS_EXCHANGE) and self.has_exchange(exchange.name):
                _with_amqp_errors(self.broker.exchanges.delete_exchange, exchange.name)
        for policy in self.policies.all(vhost):
            self.policies.clear(vhost, policy.name)
        return True

    def vhosts(self) -> list[str]:
        accounts = {split_name(each.name)[0] for each in self.exchanges()}
        accounts |= {user.account for user in self.context.guard.store.users()}
        accounts |= {split_name(queue_key)[0] for queue_key in self.broker.queues()}
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
        name = strip_line_ends(name)
        if passive:
            self.check_access(vhost, name, owner)
            self.mark_used(qualified_name(account_of(vhost), name))
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
        queue_key = qualified_name(account, name)
        found = self._find(queue_key)
        lasts = durable and not exclusive  # an exclusive queue is never durable
        if found is not None:
            declared = declaration_of(found.settings)
            if declared.exclusive != exclusive or not self._may_use(found, owner):
                raise _locked_error(name, vhost)
            require_same_queue(
                name,
                vhost,
                declared,
                found.settings,
                durable=lasts,
                auto_delete=auto_delete,
                arguments=arguments or {},
            )
            self.mark_used(queue_key)
            return name
        given = dict(arguments or {})
        encoded_arguments(given)
        check_queue(name, vhost, given, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        policy = self.policies.matching(vhost, queue_type(given), name)
        declared = _with_policy(policy, QueueDeclaration(lasts, auto_delete, exclusive, given))
        if not lasts and not self.peers.is_single:
            declared = replace(
                declared,
                home=self.peers.name,
                owner=_owner_token(owner) if exclusive else None,
            )
        try:
            self._create(queue_key, declared)
        except QueueExists as error:
            # Another client created it while the store was asked: compare with that one.
            if self.peers.is_single or self._find(queue_key) is None:
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
            self._owners[queue_key] = owner, self.broker.get_queue(queue_key).number
        self._expiry.start(queue_key)
        return name

    def _create(self, queue_key: str, declared: QueueDeclaration) -> None:
        self.broker.declare(queue_key, settings_of(split_name(queue_key)[0], declared))

    def check_access(self, vhost: str, name: str, owner: object | None) -> KnownQueue:
        """Raises 404 for an unknown queue, 405 for an exclusive queue of another connection."""
        queue_key = qualified_name(account_of(vhost), name)
        found = self._find(queue_key)
        if found is None:
            raise AmqpError(NOT_FOUND, f"no {describe('queue', name, vhost)}")
        if not self._may_use(found, owner):
            raise _locked_error(name, vhost)
        return found

    def delete_queue(
        self,
        vhost: str,
        name: str,
        owner: object | None,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        has_consumers: bool | None = None,
    ) -> int:
        """Returns the number of ready messages; 0 for an unknown queue."""
        queue_key = qualified_name(account_of(vhost), name)
        if self._find(queue_key) is None:
            return 0
        self.check_access(vhost, name, owner)
        if if_empty and _with_amqp_errors(self.broker.waiting, queue_key).ready:
            raise AmqpError(PRECONDITION_FAILED, f"{describe('queue', name, vhost)} not empty")
        if if_unused and (self.has_consumers(queue_key) if has_consumers is None else has_consumers):
            raise AmqpError(PRECONDITION_FAILED, f"{describe('queue', name, vhost)} in use")
        return self.delete_by_key(queue_key)

    def delete_by_key(self, queue_key: str) -> int:
        """Delete a queue without checks. Returns the number of ready messages."""
        found = self._find(queue_key)
        if found is None:
            return 0
        try:
            count = self.broker.waiting(queue_key).ready
            self.broker.delete(queue_key)
        except QueueNotFound:
            count = 0  # deleted meanwhile
        except OpenQError as error:
            raise from_openq(error) from error
        self._owners.pop(queue_key, None)
        self._expiry.stop(queue_key)
        self.on_queue_deleted(queue_key)
        return count

    def delete_exclusive_queues(self, owner: object) -> list[str]:
        """Delete the exclusive queues of a connection that ends. Returns their keys."""
        mine = {queue_key: number for queue_key, (each, number) in self._owners.items() if each is owner}
        for queue_key, number in mine.items():
            try:
                found = self._find(queue_key)
                if found is not None and found.number == number:
                    self.delete_by_key(queue_key)
            except AmqpError as error:  # the disk may be full: the next start deletes it
                log.error(
                    "exclusive queue %r of a closed connection is not deleted: %s", queue_key, error.text
                )
            self._owners.pop(queue_key, None)
        return list(mine)

    def purge_queue(self, vhost: str, name: str, owner: object | None) -> int:
        """Delete the ready messages, and return their number. Messages in flight stay."""
        self.check_access(vhost, name, owner)
        queue_key = qualified_name(account_of(vhost), name)
        return _with_amqp_errors(self.broker.purge, queue_key, waiting_only=True)

    def queues(self, vhost: str | None = None) -> list[str]:
        """Queue keys."""
        names = self.broker.queues()
        return names if vhost is None else [each for each in names if _is_in_vhost(each, vhost)]

    def has_queue(self, queue_key: str) -> bool:
        return self._find(queue_key) is not None

    def declaration(self, queue_key: str) -> QueueDeclaration:
        return declaration_of(self.broker.get_queue(queue_key).settings)

    def _find(self, queue_key: str) -> KnownQueue | None:
        try:
            return self.broker.get_queue(queue_key)
        except QueueNotFound:
            return None
        except OpenQError as error:
            raise from_openq(error) from error

    def _may_use(self, queue: KnownQueue, owner: object | None) -> bool:
        holder_token = queue.settings.notes.get(OWNER)
        if holder_token is not None and holder_token != _owner_token(owner):
            return False
        holder, number = self._owners.get(queue.name, (owner, 0))
        return holder is owner or number != queue.number

    # -- exchanges

    def has_exchange(self, exchange_key: str) -> bool:
        try:
            self._exchange(exchange_key)
        except ExchangeNotFound:
            return False
        return True

    def _exchange(self, exchange_key: str) -> Exchange:
        try:
            return self.broker.exchanges.exchange(exchange_key)
        except ExchangeNotFound:
            if not self.broker.exchanges.refresh():  # another server may have declared it
                raise
        return self.broker.exchanges.exchange(exchange_key)

    def exchange(self, vhost: str, name: str) -> Exchange:
        """Raises 404."""
        try:
            return self._exchange(qualified_name(account_of(vhost), name))
        except ExchangeNotFound:
            raise AmqpError(NOT_FOUND, f"no {describe('exchange', name, vhost)}") from None

    def exchanges(self, vhost: str | None = None) -> list[Exchange]:
        found = self.broker.exchanges.list_exchanges()
        if vhost is None:
            return found
        own = [each for each in found if _is_in_vhost(each.name, vhost)]
        events = self._exchange(qualified_name(account_of(vhost), EVENTS_EXCHANGE))
        return own if events in own else [*own, events]  # every vhost has it, bound or not

    def is_delayed(self, exchange_key: str) -> bool:
        """Whether messages are delayed by their header `x-delay`."""
        router = self.broker.exchanges.router
        return exchange_key in router and DELAYED_ARGUMENT in router.get(exchange_key).arguments

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
        name = strip_line_ends(name)
        if not passive and kind not in (*KINDS, DELAYED):
            # A channel error, as in RabbitMQ from 4.0 on; its 3.x ended the connection (503).
            raise AmqpError(PRECONDITION_FAILED, f"{'unknown' if kind else 'invalid'} exchange type '{kind}'")
        if not name:
            _refuse_default()
        if passive:
            self.exchange(vhost, name)
            return
        exchange_key = qualified_name(account_of(vhost), name)
        what = describe("exchange", name, vhost)
        given = dict(arguments or {})
        if self.has_exchange(exchange_key):
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
        encoded_arguments(given)
        alternate = given.get("alternate-exchange")
        if "alternate-exchange" in given and not isinstance(alternate, str | bytes):
            raise AmqpError(
                PRECONDITION_FAILED,
                f"invalid type '{type_of(alternate)}' for arg 'alternate-exchange' in {what}",
            )
        marked = plain_value(given)
        if kind == DELAYED:
            kind = given.get("x-delayed-type", "")
            if kind not in KINDS:
                raise AmqpError(
                    PRECONDITION_FAILED,
                    "Invalid argument, 'x-delayed-type' must be an existing exchange type",
                )
            marked[DELAYED_ARGUMENT] = DELAYED
        if not durable and not self.peers.is_single:
            marked[HOME_ARGUMENT] = self.peers.name
        exchange = _with_amqp_errors(
            Exchange,
            exchange_key,
            cast(Kind, kind),
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=marked,
        )
        _with_amqp_errors(self.broker.exchanges.declare_exchange, self._with_alternate(exchange))

    def _with_alternate(self, exchange: Exchange) -> Exchange:
        """Set the alternate exchange, by its own argument or by a policy."""
        account, name = split_name(exchange.name)
        arguments = {key: value for key, value in exchange.arguments.items() if key != POLICY_ARGUMENT}
        own = arguments.get("alternate-exchange")
        if own is not None:
            return replace(exchange, alternate=qualified_name(account, as_text(own)))
        if exchange.alternate is not None and POLICY_ARGUMENT not in exchange.arguments:
            return exchange  # set by another protocol
        policy = self.policies.matching(vhost_of(account), "exchange", name)
        if policy is None:
            return replace(exchange, alternate=None, arguments=arguments)
        by_policy = policy.definition.get("alternate-exchange")
        return replace(
            exchange,
            alternate=None if by_policy is None else qualified_name(account, by_policy),
            arguments={**arguments, POLICY_ARGUMENT: policy.name},
        )

    def delete_exchange(self, vhost: str, name: str, if_unused: bool = False) -> None:
        name = strip_line_ends(name)
        if not name:
            _refuse_default()
        if name.startswith("amq.") or is_built_in(name):
            raise AmqpError(
                ACCESS_REFUSED, f"deletion of system {describe('exchange', name, vhost)} not allowed"
            )
        exchange_key = qualified_name(account_of(vhost), name)
        if not self.has_exchange(exchange_key):
            return
        if if_unused and self.bindings(source=exchange_key):
            raise AmqpError(PRECONDITION_FAILED, f"{describe('exchange', name, vhost)} in use")
        _with_amqp_errors(self.broker.exchanges.delete_exchange, exchange_key)

    # -- bindings

    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]:
        """`source` and `destination` are keys."""
        return self.broker.exchanges.bindings(source, destination)

    def bind_queue(
        self,
        vhost: str,
        queue: str,
        exchange: str,
        key: str,
        arguments: Arguments | None = None,
        owner: object | None = None,
    ) -> bool:
        """Returns whether it is new."""
        if not exchange:
            _refuse_default()
        source = self.exchange(vhost, exchange)
        self.check_access(vhost, queue, owner)
        return self._bind(
            source, _binding(source.name, qualified_name(account_of(vhost), queue), False, key, arguments)
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
        """Unbinding a missing binding succeeds."""
        if not exchange:
            _refuse_default()
        account = account_of(vhost)
        binding = _binding(
            qualified_name(account, exchange), qualified_name(account, queue), False, key, arguments
        )
        if binding in self.bindings(binding.source, binding.destination):
            self.check_access(vhost, queue, owner)
            _with_amqp_errors(self.broker.exchanges.unbind, binding)

    def bind_exchange(
        self, vhost: str, destination: str, source: str, key: str, arguments: Arguments | None = None
    ) -> bool:
        """Returns whether it is new."""
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
        binding = _binding(
            qualified_name(account, source), qualified_name(account, destination), True, key, arguments
        )
        _with_amqp_errors(self.broker.exchanges.unbind, binding)

    def _bind(self, source: Exchange, binding: Binding) -> bool:
        if source.kind == "headers" and "x-match" in binding.arguments:
            check_match(binding.arguments["x-match"])
        bridge = self.context.event_bridge
        _with_amqp_errors(bridge.prepare, binding)
        new = _with_amqp_errors(self.broker.exchanges.bind, binding)
        bridge.bound(binding)
        return new

    # -- policies

    def set_policy(self, policy: Policy) -> bool:
        """Apply it at once; `policies.save` stores it. Returns whether anything changed."""
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
        except AmqpError:  # the disk may be full
            self.restore_policy(vhost, name, before)
            raise

    def restore_policy(self, vhost: str, name: str, before: Policy | None) -> None:
        """Undo a change that could not be applied or stored."""
        if before is None:
            self.policies.clear(vhost, name)
        else:
            self.policies.set(before)
        try:
            self.apply_policies(vhost)
        except AmqpError as error:
            log.error("policy %r still applies to some queues until the next start: %s", name, error.text)

    def apply_policies(self, vhost: str | None = None) -> None:
        """Apply them to all existing queues and exchanges."""
        for queue_key in self.queues(vhost):
            found = self._find(queue_key)
            if found is not None:
                _with_amqp_errors(self._apply_to_queue, queue_key, found)
        for exchange in self.exchanges(vhost):
            self._apply_to_exchange(exchange)

    def _apply_to_queue(self, queue_key: str, queue: KnownQueue) -> None:
        declared = declaration_of(queue.settings)
        if declared.is_from_other_protocol:
            return  # policies apply only to queues declared by AMQP
        account, name = split_name(queue_key)
        policy = self.policies.matching(vhost_of(account), queue_type(declared.arguments), name)
        after = _with_policy(policy, declared)
        if (after.policy, after.definition) == (declared.policy, declared.definition):
            return
        # Only what the policy changes: another protocol may have changed the rest.
        old, new = settings_of(account, declared), settings_of(account, after)
        changes: dict[str, object] = {
            each: getattr(new, each) for each in _POLICY_SETTINGS if getattr(new, each) != getattr(old, each)
        }
        notes: Mapping[str, str] = {
            key: value for key, value in queue.settings.notes.items() if key not in old.notes
        }
        settings = queue.settings.with_(**changes, notes={**notes, **new.notes})
        self.broker.declare(queue_key, settings, change=True)
        self._expiry.start(queue_key)

    def _apply_to_exchange(self, exchange: Exchange) -> None:
        if is_default(exchange.name) or is_events_exchange(exchange.name) or exchange in PREDECLARED:
            return
        wanted = self._with_alternate(exchange)
        if wanted != exchange and self.has_exchange(exchange.name):
            _with_amqp_errors(self.broker.exchanges.change_exchange, wanted)


_POLICY_SETTINGS = (
    "ttl_ms",
    "max_receives",
    "dead_letter_exchange",
    "dead_letter_key",
    "max_length",
    "max_bytes",
    "overflow",
)


def _with_amqp_errors(act: Callable[P, T], *given: P.args, **more: P.kwargs) -> T:
    """Call the broker, and raise its errors as AmqpError."""
    try:
        return act(*given, **more)
    except OpenQError as error:
        raise from_openq(error) from error


def _binding(
    source: str, destination: str, to_exchange: bool, key: str, arguments: Arguments | None
) -> Binding:
    encoded_arguments(arguments or {})
    return _with_amqp_errors(Binding, source, destination, to_exchange, key, plain_value(arguments or {}))


def _owner_token(owner: object | None) -> str | None:
    """Identifies a connection to other servers of the store."""
    return getattr(owner, "token", None)


def _with_policy(policy: Policy | None, declared: QueueDeclaration) -> QueueDeclaration:
    return replace(
        declared,
        policy=None if policy is None else policy.name,
        definition=None if policy is None else policy.definition,
    )


def _is_in_vhost(queue_key: str, vhost: str) -> bool:
    return split_name(queue_key)[0] == account_of(vhost)


def _locked_error(name: str, vhost: str) -> AmqpError:
    return AmqpError(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked {describe('queue', name, vhost)}. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration.",
    )


def _refuse_default() -> NoReturn:
    raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")
