"""One request on its way through a handler: who asks, what for, and the ways to answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ..auth.guard import Principal
from ..auth.policy import POLICY_NOTE, SQS_ACTION_OF
from ..errors import NotOnThisStore, OpenQError
from ..journal.file_journal import Journal
from ..model import check_name
from ..names import DEFAULT_ACCOUNT, arn_of, qualified_name, split_name, split_namespace
from ..server.condition_keys import request_condition_keys
from ..server.context import ServerContext, unless_gone
from ..server.http import HttpRequest
from .formats import Format, encode_messages
from .problems import CONTENT_TYPE, Problem, render
from .routes import Route, SqsActions

log = logging.getLogger("openq.rest")

T = TypeVar("T")
_SEND_ACTIONS: SqsActions = ("SendMessage",)


class RestCall:
    __slots__ = (
        "account",
        "args",
        "body",
        "broker",
        "context",
        "format",
        "principal",
        "query",
        "request",
        "route",
        "sent",
    )

    def __init__(
        self, context: ServerContext, request: HttpRequest, route: Route, account: str, args: tuple[str, ...]
    ) -> None:
        self.context = context
        self.broker = context.broker
        self.request = request
        self.route = route
        self.account = account
        self.args = args  # of the path, decoded
        self.principal: Principal
        self.sent: Format  # of the request's body
        self.format: Format  # of the answer
        self.body: Any = None
        self.query: Any = None

    # -- names

    @property
    def queue(self) -> str:
        """The engine's name of the queue (or exchange) in the path."""
        return self.qualified(self.args[0])

    def qualified(self, name: str, what: str = "queue") -> str:
        return check_name(qualified_name(self.account, name), what)

    def queue_key_or_none(self, name: str | None, what: str = "queue") -> str | None:
        return None if name is None else self.qualified(name, what)

    def short_name(self, queue_key: str) -> str:
        return split_name(queue_key)[1]

    def is_own(self, queue_key: str) -> bool:
        return split_name(queue_key)[0] == self.account

    # -- permissions

    def may(self, action: str, name: str, sqs_actions: SqsActions | None = None) -> bool:
        """By the caller's rules and the queue's own policy.

        `asked` are the operations of SQS that the policy must not deny, and that together stand for the
        action where only the policy allows it; the route's own, unless said otherwise. For what is no
        queue there are none: the policy of a queue of that name is not about it.
        """
        return self._may(action, self.account, name, sqs_actions)

    def _may(self, action: str, account: str, name: str, sqs_actions: SqsActions | None) -> bool:
        guard, principal = self.context.guard, self.principal
        if sqs_actions is None:
            sqs_actions = (
                self.route.sqs_actions if action == self.route.permission else (SQS_ACTION_OF[action],)
            )
        policy: str | None = None
        if sqs_actions:
            try:
                policy = self.broker.get_queue(qualified_name(account, name)).settings.notes.get(POLICY_NOTE)
            except OpenQError:
                pass  # no such queue, so no policy
        if policy is None:
            return guard.may(principal, action, account, name)
        own_region = self.context.config.region
        arn = arn_of(account, name, own_region)
        region = split_namespace(account)[0] or own_region
        condition_keys = request_condition_keys(self.request, principal, region, self.context.now_ms())
        return all(
            guard.may(
                *(principal, action, account, name),
                policy=policy,
                sqs_action=each,
                resource_arn=arn,
                condition_keys=condition_keys,
            )
            for each in sqs_actions
        )

    def require(self, action: str, name: str, sqs_actions: SqsActions | None = None) -> None:
        if not self.may(action, name, sqs_actions):
            raise Problem("forbidden", f"{self.principal.user} may not {action} {name[:100]!r}")

    def may_peek(self, queue_key: str) -> bool:
        """Of any account, unless the address names one."""
        account, name = split_name(queue_key)
        is_meant = account == self.account or "/accounts/" not in self.request.path
        return is_meant and self._may("peek", account, name, None)

    def may_fill(self, queue_key: str) -> bool:
        """Whoever directs messages to a queue or an exchange sends to it, or manages it; its policy is
        asked about sending either way."""
        account, name = split_name(queue_key)
        return any(self._may(action, account, name, _SEND_ACTIONS) for action in ("send", "manage"))

    def require_target(self, name: str) -> None:
        if not self.may_fill(qualified_name(self.account, name)):
            raise Problem("forbidden", f"{self.principal.user} may not send {name[:100]!r}")

    # -- answers

    def answer(self, value: Any, status: int = 200, headers: bytes = b"") -> None:
        format = self.format
        self.request.answer(status, format.encode(value), format.content_type, headers)

    def answer_encoded(self, data: bytes) -> None:
        self.request.answer(200, data, self.format.content_type)

    def encode(self, value: Any) -> bytes:
        """In a thread. Message by message: an encoder keeps the interpreter until it is done."""
        fields = getattr(value, "__struct_fields__", ())
        if fields and fields[0] == "messages" and isinstance(value.messages, list):
            return encode_messages(self.format, value)
        return self.format.encode(value)

    def fail(self, error: BaseException) -> None:
        answer_problem(self.request, error, self.account)

    def after_commit(self, value: Any, status: int = 200, headers: bytes = b"") -> None:
        """The answer once everything done so far is on disk: before that it would be a lie."""

        def committed(error: OpenQError | None) -> None:
            if error is not None:
                self.fail(error)
            else:
                self.answer(value, status, headers)

        self.context.after_commit(committed)

    def work(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """What may take long, in a thread; `then` on the loop, which answers."""
        self.context.run(work, unless_gone(self.request, then, self.fail))

    def seek(self, work: Callable[[], Any]) -> None:
        """The same for work that goes through a whole queue: only so much of it at once, and apart from
        what is quick."""
        self.context.seek(
            lambda: self.encode(work()), unless_gone(self.request, self.answer_encoded, self.fail)
        )

    def commit(self, job: str, work: Callable[[], Any]) -> None:
        """The same for a staged batch of this job, in its turn."""
        self.context.commit(
            job, work, unless_gone(self.request, self.answer, self.fail), lambda: not self.request.gone
        )

    def answer_with(self, work: Callable[[], Any]) -> None:
        """Work in a thread whose result is the answer."""
        self.work(lambda: self.encode(work()), self.answer_encoded)

    def change(self, work: Callable[[], Any]) -> None:
        """The same for work that changes something: the answer waits for the disk."""
        broker = self.broker
        if not broker.waits:
            self.work(work, self.after_commit)
            return

        def safely() -> Any:
            result = work()
            broker.sync()  # by the thread that wrote: only it knows what
            return result

        self.work(safely, self.answer)


def journal_of(call: RestCall) -> Journal | None:
    """The files of the history; None where messages are in memory only. Raises NotOnThisStore."""
    broker = call.broker
    if broker.storage == "redis":
        raise NotOnThisStore(
            "files of the journal",
            "read GET /api/v1/history/messages, or move the queues with `openq migrate` to a data directory",
        )
    return broker.journal


def answer_problem(request: HttpRequest, error: BaseException, account: str = DEFAULT_ACCOUNT) -> None:
    if not isinstance(error, OpenQError | Problem):
        log.error("%s %r failed", request.method, request.path[:200], exc_info=error)
    if not isinstance(error, Exception):
        error = RuntimeError()
    status, body, headers = render(error)
    # A client of another account knows its queues without the account in front.
    if account != DEFAULT_ACCOUNT:
        body = body.replace(qualified_name(account, "").encode(), b"")
    request.answer(status, body, CONTENT_TYPE, headers)
