"""One REST request in progress: caller, route and body, permissions, and the ways to answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ..auth.guard import Principal
from ..auth.policy import POLICY_NOTE
from ..auth.rules import SQS_ACTION_OF
from ..documents.formats import encode_messages
from ..errors import OpenQError
from ..model import check_name
from ..names import DEFAULT_ACCOUNT, arn_of, qualified_name, split_name, split_namespace
from ..server.condition_keys import request_condition_keys
from ..server.context import ServerContext, unless_gone
from ..server.http_request import HttpRequest
from ..server.traffic import ProtocolTraffic
from .formats import Format
from .problems import CONTENT_TYPE, Problem, code_of, render
from .routes import Route, SqsActions

log = logging.getLogger("openq.rest")

T = TypeVar("T")
_SEND_ACTIONS: SqsActions = ("SendMessage",)


class RestCall:
    __slots__ = (
        "account",
        "args",
        "audit_detail",
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
        self.audit_detail: dict[str, Any] | None = None  # of the record of this call, if it is audited
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
        """Whether the caller's rules and the queue's policy allow the action.

        `sqs_actions` are the SQS actions that the policy must not deny, and all of which it must allow if
        only the policy allows the action; default: those of the route. Exchanges have none: the policy of a
        queue with the same name does not apply.
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
        """Whether the caller may peek; in any account, unless the path names one."""
        account, name = split_name(queue_key)
        is_meant = account == self.account or "/accounts/" not in self.request.path
        return is_meant and self._may("peek", account, name, None)

    def may_fill(self, queue_key: str) -> bool:
        """Whether the caller may direct messages to a queue or an exchange, by the permission send or manage;
        its policy must allow SendMessage in both cases."""
        account, name = split_name(queue_key)
        return any(self._may(action, account, name, _SEND_ACTIONS) for action in ("send", "manage"))

    def require_target(self, name: str) -> None:
        if not self.may_fill(qualified_name(self.account, name)):
            raise Problem("forbidden", f"{self.principal.user} may not send to {name[:100]!r}")

    # -- answers

    def answer(self, value: Any, status: int = 200, headers: bytes = b"") -> None:
        format = self.format
        self.request.answer(status, format.encode(value), format.content_type, headers)

    def answer_encoded(self, data: bytes) -> None:
        self.request.answer(200, data, self.format.content_type)

    def encode(self, value: Any) -> bytes:
        """Encode in a thread, message by message: an encoder holds the GIL until it is done."""
        fields = getattr(value, "__struct_fields__", ())
        if fields and fields[0] == "messages" and isinstance(value.messages, list):
            return encode_messages(self.format, value)
        return self.format.encode(value)

    def fail(self, error: BaseException) -> None:
        answer_problem(self.request, error, self.context.traffic.rest, self.account)

    def after_commit(self, value: Any, status: int = 200, headers: bytes = b"") -> None:
        """Answer once everything done so far is on disk."""

        def committed(error: OpenQError | None) -> None:
            if error is not None:
                self.fail(error)
            else:
                self.answer(value, status, headers)

        self.context.after_commit(committed)

    def work(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run `work` in a thread, then `then` on the loop, which answers."""
        self.context.run(work, unless_gone(self.request, then, self.fail))

    def seek(self, work: Callable[[], Any]) -> None:
        """Like `work`, for scans of a whole queue: in a pool of their own, and limited in number."""
        self.context.seek(
            lambda: self.encode(work()), unless_gone(self.request, self.answer_encoded, self.fail)
        )

    def commit(self, job: str, work: Callable[[], Any]) -> None:
        """Like `work`, for a commit of a staged batch: one at a time for each job."""
        self.context.commit(
            job, work, unless_gone(self.request, self.answer, self.fail), lambda: not self.request.gone
        )

    def answer_with(self, work: Callable[[], Any]) -> None:
        """Run `work` in a thread and answer with its result."""
        self.work(lambda: self.encode(work()), self.answer_encoded)

    def change(self, work: Callable[[], Any]) -> None:
        """Like `answer_with`, for work that changes something: the reply waits for the disk."""
        broker = self.broker
        if not broker.storage.waits:
            self.work(work, self.after_commit)
            return

        def safely() -> Any:
            result = work()
            broker.sync()  # in the writing thread: the store tracks writes by thread
            return result

        self.work(safely, self.answer)


def answer_problem(
    request: HttpRequest, error: BaseException, traffic: ProtocolTraffic, account: str = DEFAULT_ACCOUNT
) -> None:
    if not isinstance(error, OpenQError | Problem):
        log.error("%s %r failed", request.method, request.path[:200], exc_info=error)
    if not isinstance(error, Exception):
        error = RuntimeError()
    traffic.refuse(code_of(error))
    status, body, headers = render(error)
    if status == 401 and request.fields.get(b"sec-fetch-mode", b"navigate") != b"navigate":
        # The script of a page asks: for a challenge by Basic the browser would show a dialog of its own.
        headers = headers.replace(b', Basic realm="openq"', b"")
    # Clients of other accounts name their queues without the account.
    if account != DEFAULT_ACCOUNT:
        body = body.replace(qualified_name(account, "").encode(), b"")
    request.answer(status, body, CONTENT_TYPE, headers)
