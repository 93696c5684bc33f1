"""One SQS request in progress, and the resolution of queue URLs and ARNs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ..auth.guard import Principal
from ..auth.policy import POLICY_NOTE
from ..auth.rules import SQS_ACTIONS
from ..broker.interface import KnownQueue
from ..errors import QueueNotFound
from ..model import QueueSettings
from ..names import DEFAULT_ACCOUNT, arn_of, namespace_of, qualified_name, split_name, split_namespace
from ..server.condition_keys import request_condition_keys
from ..server.context import ServerContext
from ..server.http_request import HttpRequest, host_of
from . import errors
from .limits import SqsLimits, limits_of
from .queue_attributes import max_message_size, wait_s
from .recent_queues import RecentQueues
from .regions import Regions, host_in, region_of_host

_MAX_CACHED = 10_000
_MAX_URL = 1_000
_MAX_HINTS = 100

log = logging.getLogger("openq.sqs")


class SqsQueue:
    """A queue as SQS sees it; rebuilt when the queue or its settings change."""

    __slots__ = (
        "account",
        "arn",
        "fifo",
        "known",
        "limits",
        "max_bytes",
        "name",
        "namespace",
        "number",
        "policy",
        "queue_key",
        "region",
        "settings",
        "wait_s",
    )

    def __init__(
        self, queue_key: str, known: KnownQueue, resolver: QueueResolver, context: ServerContext
    ) -> None:
        settings = known.settings
        self.queue_key = queue_key
        self.namespace, self.name = split_name(queue_key)
        self.region, self.account = split_namespace(self.namespace)  # None: the server's own region
        self.known = known
        self.settings: QueueSettings = settings
        self.number = known.number
        self.fifo = settings.fifo
        self.limits: SqsLimits = limits_of(settings, context.config)
        self.max_bytes = max_message_size(settings, self.limits)
        self.wait_s = wait_s(settings)
        self.arn = resolver.arn_of(queue_key)
        self.policy: str | None = settings.notes.get(POLICY_NOTE)


class QueueAddress(NamedTuple):
    """The parts of a queue URL."""

    name: str
    account: str  # empty: that of the caller
    region: str | None  # None: the server's own
    has_region: bool  # else the region of the request counts
    claimed_account: str = ""  # an account that is not a number: only its own users may use it


def _is_number(account: str) -> bool:
    return account.isascii() and account.isdigit()


class QueueResolver:
    """Queues by their URLs and ARNs, in the forms that clients build. One per server."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self.regions = Regions(context.config.region)
        self._urls: dict[str, QueueAddress] = {}
        self._hinted: set[str] = set()
        self._queues: dict[str, SqsQueue] = {}
        self._by_url: dict[str | tuple[str, str], SqsQueue] = {}
        self.deleted = RecentQueues()
        self.purged = RecentQueues()

    split = staticmethod(split_name)

    def arn_of(self, queue_key: str) -> str:
        return arn_of(*split_name(queue_key), self.regions.own)

    def key_of_arn(self, arn: str) -> str | None:
        """The queue key of an ARN; None if it is not an ARN of SQS."""
        parts = arn.split(":")
        if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs" or not parts[5]:
            return None
        if not self.regions.is_known(parts[3]) or split_namespace(parts[4])[0] is not None:
            return None  # the region stands before the account, not in it
        return qualified_name(namespace_of(parts[4], self.regions.key_of(parts[3])), parts[5])

    def url_of(self, queue_key: str, host_url: str) -> str:
        """The URL of a queue, with the host that the client used. If the host does not name the region, the
        path does, so that a URL always identifies one queue."""
        namespace, name = split_name(queue_key)
        region, account = split_namespace(namespace)
        if self._context.config.queue_urls == "path" and region != self.regions.of_host(host_in(host_url)):
            return f"{host_url}/queue/{self.regions.name_of(region)}/{account}/{name}"
        return f"{host_url}/{account}/{name}"

    def key_of_url(self, url: str, account: str, region: str | None) -> str:
        """The queue key of `.../ACCOUNT/NAME`; `account` and `region` are those of the caller.

        A URL without a region is resolved in the caller's region, as on other servers, and, if there is no
        such queue, in the server's own region.
        """
        address = self._urls.get(url)
        if address is None:
            address = self._parse_url(url)
            # Queue names are short: longer URLs are not cached, to bound the memory.
            if len(url) <= _MAX_URL:
                if len(self._urls) >= _MAX_CACHED:
                    self._urls.clear()
                self._urls[url] = address
        if address.claimed_account and address.claimed_account not in (
            account,
            namespace_of(account, region),
        ):
            raise errors.invalid_address(url[:_MAX_URL])
        account = address.account or account or DEFAULT_ACCOUNT
        if region is not None and not address.has_region:
            queue_key = qualified_name(namespace_of(account, region), address.name)
            if self.exists(queue_key):
                return queue_key
        return qualified_name(namespace_of(account, address.region), address.name)

    def _parse_url(self, url: str) -> QueueAddress:
        try:
            parts = [unquote(part) for part in urlsplit(url).path.split("/") if part]
        except ValueError:
            parts = []  # brackets that are not part of an address
        if not parts:
            raise errors.queue_does_not_exist()
        *where, name = parts
        region_name = region_of_host(host_in(url))
        account = claimed = ""
        if (
            len(where) == 3
            and where[0] == "queue"
            and self.regions.is_known(where[1])
            and _is_number(where[2])
        ):
            _, region_name, account = where
        elif len(where) == 1 and _is_number(where[0]):
            account = where[0]
        elif len(where) == 1 and (named := split_namespace(where[0]))[0] is not None:
            region_name, account = named
        elif where and where != ["queue"]:  # `/queue/NAME` and a bare `/NAME` are URLs of other servers
            # Not resolved to the caller's own queue: the URL names another account.
            claimed = "/".join(where)
        region = None if region_name is None else self.regions.key_of(region_name)
        return QueueAddress(name, account, region, region_name is not None, claimed)

    def hint_region(self, queue_key: str, region: str | None) -> None:
        """Log, once a region, that a queue which was not found there is in the server's own region."""
        if region is None or region in self._hinted or len(self._hinted) >= _MAX_HINTS:
            return
        namespace, name = split_name(queue_key)
        if self.exists(qualified_name(split_namespace(namespace)[1], name)):
            self._hinted.add(region)
            log.info(
                "a client of region %s uses the queue %r of region %s: each region has its own queues. "
                "Create it there, give the client region %s, or start the server with --region %s",
                *(region, name, self.regions.own, self.regions.own, region),
            )

    def exists(self, queue_key: str) -> bool:
        try:
            self._context.broker.get_queue(queue_key)
        except QueueNotFound:
            return False
        return True

    def find(self, queue_key: str) -> SqsQueue:
        """The queue; raises QueueDoesNotExist. It is rebuilt when the queue or its settings changed."""
        try:
            known = self._context.broker.get_queue(queue_key)
        except QueueNotFound:
            self._queues.pop(queue_key, None)
            raise errors.queue_does_not_exist() from None
        queue = self._queues.get(queue_key)
        if queue is None or queue.known is not known or queue.settings is not known.settings:
            if len(self._queues) >= _MAX_CACHED:
                self._queues.clear()
            queue = self._queues[queue_key] = SqsQueue(queue_key, known, self, self._context)
        return queue

    def plain_queue(self, url: str, principal: Principal, region: str | None, action: str) -> SqsQueue | None:
        """The queue of a URL if it is in the caller's account and has no policy, and the caller may do this
        to it; else None, which says nothing about why.

        Cached by URL: the cached queue is used until it is deleted or its settings change.
        """
        key = url if region is None else (region, url)
        queue = self._by_url.get(key)
        if queue is None or queue.known.deleted or queue.known.settings is not queue.settings:
            if not principal.is_root:  # not looked up: the reply must not reveal whether it exists
                return None
            queue = self.find(self.key_of_url(url, principal.account, region))
            if region is not None and queue.region != region:
                return None  # of the server's own region, until the caller's region has such a queue
            self._remember(key, queue)
        if principal.account != queue.account or queue.policy is not None:
            return None
        if principal.is_root or self._context.guard.may(
            principal,
            SQS_ACTIONS[action],
            queue.namespace,
            queue.name,
            sqs_action=action,
            resource_arn=queue.arn,
        ):
            return queue
        return None

    def _remember(self, key: str | tuple[str, str], queue: SqsQueue) -> None:
        if len(self._by_url) >= _MAX_CACHED:
            self._by_url.clear()
        self._by_url[key] = queue

    def keep(self, url: str, region: str | None, queue: SqsQueue) -> None:
        """A caller of its account was allowed to use this queue: `plain_queue` finds it the next time."""
        if (region is None or queue.region == region) and len(url) <= _MAX_URL:
            self._remember(url if region is None else (region, url), queue)


class SqsCall:
    """One action of one caller."""

    __slots__ = ("context", "http", "principal", "queue", "region_key", "resolver")

    def __init__(
        self,
        context: ServerContext,
        resolver: QueueResolver,
        http: HttpRequest,
        principal: Principal,
        region: str | None = None,
    ) -> None:
        self.context = context
        self.resolver = resolver
        self.http = http
        self.principal = principal
        self.region_key = region  # None: the server's own
        self.queue: SqsQueue  # the queue of QueueUrl, found and authorised; not set for actions without one

    @property
    def account(self) -> str:
        return self.principal.account

    @property
    def region(self) -> str:
        return self.resolver.regions.name_of(self.region_key)

    @property
    def namespace(self) -> str:
        return namespace_of(self.account, self.region_key)

    @property
    def now_ms(self) -> int:
        return self.context.now_ms()

    @property
    def host_url(self) -> str:
        scheme = "https" if self.http.is_tls else "http"
        return f"{scheme}://{host_of(self.http) or 'localhost'}"

    def key_of_url(self, queue_url: str) -> str:
        return self.resolver.key_of_url(queue_url, self.account, self.region_key)

    def queue_key(self, name: str, account: str | None = None) -> str:
        return qualified_name(
            namespace_of(self.account if account is None else account, self.region_key), name
        )

    def url_of(self, queue_key: str) -> str:
        return self.resolver.url_of(queue_key, self.host_url)

    def arn_of(self, queue_key: str) -> str:
        return self.resolver.arn_of(queue_key)

    def may_fill(self, queue_key: str) -> bool:
        """Whether the caller may direct messages to this queue, by the permission send or manage.

        Checked before the queue is looked up: the reply must not reveal whether it exists.
        """
        namespace, name = self.resolver.split(queue_key)
        try:
            queue: SqsQueue | None = self.resolver.find(queue_key)
        except errors.SqsError:
            queue = None
        policy = None if queue is None else queue.policy
        return any(
            self.context.guard.may(
                *(self.principal, action, namespace, name),
                policy=policy,
                sqs_action="sqs:SendMessage",
                resource_arn=self.arn_of(queue_key),
                condition_keys=None if queue is None or policy is None else self.condition_keys(queue),
            )
            for action in ("send", "manage")
        )

    def condition_keys(self, queue: SqsQueue) -> Mapping[str, str]:
        """The condition keys of this request, for the policy of a queue."""
        region = self.resolver.regions.name_of(queue.region)
        return request_condition_keys(self.http, self.principal, region, self.now_ms)
