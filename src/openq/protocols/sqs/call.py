"""One SQS request on its way: who asks, which queue, and under which names queues are shown."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ...broker.full import KnownQueue
from ...errors import QueueNotFound
from ...model import QueueSettings
from ...names import DEFAULT_ACCOUNT, arn_of, full_name, namespace_of, split_name, split_namespace
from ...security.guard import Principal
from ..facts import facts_of
from ..http import Request, host_of
from ..site import Site
from . import errors
from .limits import Limits, limits_of
from .recent import Recent
from .regions import Regions, host_in, told_by
from .settings import POLICY, max_message_size, wait_s

_MAX_CACHED = 10_000
_MAX_URL = 1_000
_MAX_HINTS = 100

log = logging.getLogger("openq.sqs")


class View:
    """A queue as SQS sees it; made anew when the queue or its settings change."""

    __slots__ = (
        "account",
        "arn",
        "fifo",
        "full",
        "limits",
        "max_bytes",
        "name",
        "namespace",
        "number",
        "policy",
        "queue",
        "region",
        "settings",
        "wait_s",
    )

    def __init__(self, full: str, queue: KnownQueue, names: Names, site: Site) -> None:
        settings = queue.settings
        self.full = full
        self.namespace, self.name = split_name(full)
        self.region, self.account = split_namespace(self.namespace)  # None: the server's own region
        self.queue = queue
        self.settings: QueueSettings = settings
        self.number = queue.number
        self.fifo = settings.fifo
        self.limits: Limits = limits_of(settings, site.config)
        self.max_bytes = max_message_size(settings, self.limits)
        self.wait_s = wait_s(settings)
        self.arn = names.arn_of(full)
        self.policy: str | None = settings.notes.get(POLICY)


class Place(NamedTuple):
    """What a queue URL says of its queue."""

    name: str
    account: str  # empty: that of the caller
    region: str | None  # None: the server's own
    tells_region: bool  # else the region of the request counts
    claimed: str = ""  # an account that is no number: only its own users can mean it


def _is_number(account: str) -> bool:
    return account.isascii() and account.isdigit()


class Names:
    """Queues by their URLs and ARNs, in the forms that clients build. One per server."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.regions = Regions(site.config.region)
        self._urls: dict[str, Place] = {}
        self._hinted: set[str] = set()
        self._views: dict[str, View] = {}
        self.deleted = Recent()
        self.purged = Recent()

    split = staticmethod(split_name)

    def arn_of(self, full: str) -> str:
        return arn_of(*split_name(full), self.regions.own)

    def full_of_arn(self, arn: str) -> str | None:
        """The engine's name of the queue that an ARN means; None if it is no ARN of SQS."""
        parts = arn.split(":")
        if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs" or not parts[5]:
            return None
        if not self.regions.is_known(parts[3]) or split_namespace(parts[4])[0] is not None:
            return None  # the region is told once, before the account
        return full_name(namespace_of(parts[4], self.regions.key_of(parts[3])), parts[5])

    def url_of(self, full: str, host_url: str) -> str:
        """With the host that the client used. A host that does not tell the region has it in the path, so
        that a URL is of one queue alone, whoever calls it."""
        namespace, name = split_name(full)
        region, account = split_namespace(namespace)
        if self._site.config.queue_urls == "path" and region != self.regions.of_host(host_in(host_url)):
            return f"{host_url}/queue/{self.regions.name_of(region)}/{account}/{name}"
        return f"{host_url}/{account}/{name}"

    def full_of_url(self, url: str, account: str, region: str | None) -> str:
        """The engine's name for `.../ACCOUNT/NAME`; `account` and `region` are those of the caller.

        A URL that tells no region means the caller's, as on other servers; if that has no such queue, the
        server's own region, whose URLs these are.
        """
        place = self._urls.get(url)
        if place is None:
            place = self._place(url)
            # A queue's name is short: longer URLs are nobody's, and would fill the memory.
            if len(url) <= _MAX_URL:
                if len(self._urls) >= _MAX_CACHED:
                    self._urls.clear()
                self._urls[url] = place
        if place.claimed and place.claimed not in (account, namespace_of(account, region)):
            raise errors.invalid_address(url[:_MAX_URL])
        account = place.account or account or DEFAULT_ACCOUNT
        if region is not None and not place.tells_region:
            full = full_name(namespace_of(account, region), place.name)
            if self.exists(full):
                return full
        return full_name(namespace_of(account, place.region), place.name)

    def _place(self, url: str) -> Place:
        try:
            parts = [unquote(part) for part in urlsplit(url).path.split("/") if part]
        except ValueError:
            parts = []  # brackets that belong to no address
        if not parts:
            raise errors.queue_does_not_exist()
        *where, name = parts
        told = told_by(host_in(url))
        account = claimed = ""
        if (
            len(where) == 3
            and where[0] == "queue"
            and self.regions.is_known(where[1])
            and _is_number(where[2])
        ):
            _, told, account = where
        elif len(where) == 1 and _is_number(where[0]):
            account = where[0]
        elif len(where) == 1 and (named := split_namespace(where[0]))[0] is not None:
            told, account = named
        elif where and where != ["queue"]:  # `/queue/NAME` and a bare `/NAME` are URLs of other servers
            # Never the caller's queue of that name: the caller meant another one.
            claimed = "/".join(where)
        region = None if told is None else self.regions.key_of(told)
        return Place(name, account, region, told is not None, claimed)

    def hint_region(self, full: str, region: str | None) -> None:
        """Log, once a region, that a queue which was not found there is in the server's own region."""
        if region is None or region in self._hinted or len(self._hinted) >= _MAX_HINTS:
            return
        namespace, name = split_name(full)
        if self.exists(full_name(split_namespace(namespace)[1], name)):
            self._hinted.add(region)
            log.info(
                "a client in region %s looks for the queue %r of region %s: each region has its own queues. "
                "Create it there, give the client region %s, or start the server with --region %s",
                *(region, name, self.regions.own, self.regions.own, region),
            )

    def exists(self, full: str) -> bool:
        try:
            self._site.broker.about(full)
        except QueueNotFound:
            return False
        return True

    def view(self, full: str) -> View:
        """Raises QueueDoesNotExist."""
        try:
            queue = self._site.broker.about(full)
        except QueueNotFound:
            self._views.pop(full, None)
            raise errors.queue_does_not_exist() from None
        view = self._views.get(full)
        if view is None or view.queue is not queue or view.settings is not queue.settings:
            if len(self._views) >= _MAX_CACHED:
                self._views.clear()
            view = self._views[full] = View(full, queue, self, self._site)
        return view


class Call:
    """One action of one caller."""

    __slots__ = ("http", "names", "principal", "region_key", "site")

    def __init__(
        self, site: Site, names: Names, http: Request, principal: Principal, region: str | None = None
    ) -> None:
        self.site = site
        self.names = names
        self.http = http
        self.principal = principal
        self.region_key = region  # None: the server's own

    @property
    def account(self) -> str:
        return self.principal.account

    @property
    def region(self) -> str:
        return self.names.regions.name_of(self.region_key)

    @property
    def namespace(self) -> str:
        return namespace_of(self.account, self.region_key)

    @property
    def now_ms(self) -> int:
        return self.site.now_ms()

    @property
    def host_url(self) -> str:
        scheme = "https" if self.http.is_tls else "http"
        return f"{scheme}://{host_of(self.http) or 'localhost'}"

    def queue(self, queue_url: str) -> View:
        return self.names.view(self.full_of_url(queue_url))

    def full_of_url(self, queue_url: str) -> str:
        return self.names.full_of_url(queue_url, self.account, self.region_key)

    def full(self, name: str, account: str | None = None) -> str:
        return full_name(namespace_of(self.account if account is None else account, self.region_key), name)

    def url_of(self, full: str) -> str:
        return self.names.url_of(full, self.host_url)

    def arn_of(self, full: str) -> str:
        return self.names.arn_of(full)

    def may_fill(self, full: str) -> bool:
        """Whether the caller may direct messages to this queue: it sends to it, or manages it.

        Asked before the queue is looked up: whoever may not use it must not learn whether it exists.
        """
        namespace, name = self.names.split(full)
        try:
            view: View | None = self.names.view(full)
        except errors.SqsError:
            view = None
        policy = None if view is None else view.policy
        return any(
            self.site.guard.may(
                *(self.principal, action, namespace, name),
                policy=policy,
                sqs_action="sqs:SendMessage",
                resource_arn=self.arn_of(full),
                context=None if view is None or policy is None else self.context(view),
            )
            for action in ("send", "manage")
        )

    def context(self, view: View) -> Mapping[str, str]:
        """What the conditions of a queue's policy may ask about a request."""
        region = self.names.regions.name_of(view.region)
        return facts_of(self.http, self.principal, region, self.now_ms)
