"""One SQS request on its way: who asks, which queue, and under which names queues are shown."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from ...broker.full import KnownQueue
from ...errors import QueueNotFound
from ...model import QueueSettings
from ...names import DEFAULT_ACCOUNT, full_name, split_name
from ...security.guard import Principal
from ..facts import facts_of
from ..http import Request, host_of
from ..site import Site
from . import errors
from .limits import Limits, limits_of
from .recent import Recent
from .settings import POLICY, max_message_size, wait_s

_MAX_CACHED = 10_000
_MAX_URL = 1_000


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
        "number",
        "policy",
        "queue",
        "settings",
        "wait_s",
    )

    def __init__(self, full: str, queue: KnownQueue, names: Names, site: Site) -> None:
        settings = queue.settings
        self.full = full
        self.account, self.name = split_name(full)
        self.queue = queue
        self.settings: QueueSettings = settings
        self.number = queue.number
        self.fifo = settings.fifo
        self.limits: Limits = limits_of(settings, site.config)
        self.max_bytes = max_message_size(settings, self.limits)
        self.wait_s = wait_s(settings)
        self.arn = names.arn_of(full)
        self.policy: str | None = settings.notes.get(POLICY)


class Names:
    """Queues by their URLs and ARNs, in the forms that clients build. One per server."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._urls: dict[str, tuple[str, str]] = {}
        self._views: dict[str, View] = {}
        self.deleted = Recent()
        self.purged = Recent()

    split = staticmethod(split_name)

    def arn_of(self, full: str) -> str:
        account, name = split_name(full)
        return f"arn:aws:sqs:{self._site.config.region}:{account}:{name}"

    def full_of_arn(self, arn: str) -> str | None:
        """The engine's name of the queue that an ARN means; None if it is no ARN of SQS."""
        parts = arn.split(":")
        if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs" or not parts[5]:
            return None
        return full_name(parts[4], parts[5])

    def url_of(self, full: str, host_url: str) -> str:
        account, name = split_name(full)
        return f"{host_url}/{account}/{name}"

    def parse_url(self, url: str) -> str:
        """The engine's name for `.../ACCOUNT/NAME`, whatever host clients put before it."""
        found = self._urls.get(url)
        if found is None:
            try:
                parts = [unquote(part) for part in urlsplit(url).path.split("/") if part]
            except ValueError:
                parts = []  # brackets that belong to no address
            if not parts:
                raise errors.queue_does_not_exist()
            name = parts[-1]
            # `/queue/NAME` and a bare `/NAME` are of other servers that people come from.
            shown = parts[-2] if len(parts) > 1 and parts[-2].isdigit() else ""
            found = (shown if shown else DEFAULT_ACCOUNT, name)
            # A queue's name is short: longer URLs are nobody's, and would fill the memory.
            if len(url) <= _MAX_URL:
                if len(self._urls) >= _MAX_CACHED:
                    self._urls.clear()
                self._urls[url] = found
        return full_name(*found)

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

    __slots__ = ("http", "names", "principal", "site")

    def __init__(self, site: Site, names: Names, http: Request, principal: Principal) -> None:
        self.site = site
        self.names = names
        self.http = http
        self.principal = principal

    @property
    def account(self) -> str:
        return self.principal.account

    @property
    def region(self) -> str:
        return self.site.config.region

    @property
    def now_ms(self) -> int:
        return self.site.now_ms()

    @property
    def host_url(self) -> str:
        scheme = "https" if self.http.is_tls else "http"
        return f"{scheme}://{host_of(self.http) or 'localhost'}"

    def queue(self, queue_url: str) -> View:
        return self.names.view(self.names.parse_url(queue_url))

    def full(self, name: str, account: str | None = None) -> str:
        return full_name(self.account if account is None else account, name)

    def url_of(self, full: str) -> str:
        return self.names.url_of(full, self.host_url)

    def arn_of(self, full: str) -> str:
        return self.names.arn_of(full)

    def may_fill(self, full: str) -> bool:
        """Whether the caller may direct messages to this queue: it sends to it, or manages it.

        Asked before the queue is looked up: whoever may not use it must not learn whether it exists.
        """
        account, name = self.names.split(full)
        try:
            policy = self.names.view(full).policy
        except errors.SqsError:
            policy = None
        return any(
            self.site.guard.may(
                *(self.principal, action, account, name),
                policy=policy,
                sqs_action="sqs:SendMessage",
                resource_arn=self.arn_of(full),
                context=None if policy is None else self.context(),
            )
            for action in ("send", "manage")
        )

    def context(self) -> Mapping[str, str]:
        """What a policy's conditions may ask about a request."""
        return facts_of(self.http, self.principal, self.region, self.now_ms)
