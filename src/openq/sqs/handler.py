"""The SQS protocol: from an HTTP request to an action and back, in either of AWS's two wire formats.

The order is AWS's: authenticate, find the action, decode, find the queue, authorise. The reply to a change is
sent when the change is on disk. The four commonest requests have a fast path (`fast_path.py`) that gives the
same replies.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Protocol

from ..auth.errors import AuthenticationFailed, InvalidSignature, TooManyFailedLogins
from ..auth.failed_logins import NO_CREDENTIALS
from ..auth.guard import ANONYMOUS, Principal
from ..auth.rules import ROLES, SQS_ACTIONS
from ..errors import OpenQError
from ..names import DEFAULT_ACCOUNT
from ..server.audit import shown_detail
from ..server.context import ServerContext
from ..server.http_request import HttpRequest
from ..server.traffic import ProtocolTraffic
from . import aws_json, aws_query, errors, messages, sts
from . import requests as sqs
from .call import QueueResolver, SqsCall, SqsQueue
from .errors import SqsError
from .fast_path import FastPath
from .limits import server_limits
from .peek import as_plain_json, peek_messages
from .queues import QUEUE_ACTIONS
from .regions import credential_of

log = logging.getLogger("openq.sqs")

JSON_TYPE = b"application/x-amz-json-1.0"
XML_TYPE = b"text/xml"
_PREFIX = b"AmazonSQS."
MAX_ANONYMOUS_BYTES = 1 << 20  # bytes of a form without authentication
MOVE_TASKS = ("StartMessageMoveTask", "ListMessageMoveTasks")
_MAX_CALLERS = 10_000
_MAX_CALLER_BYTES = 1_000  # bytes
_CREDENTIAL = b"AWS4-HMAC-SHA256 Credential="

Action = Callable[[SqsCall, Any, "messages.ReplyCallback"], None]


class WireFormat(Protocol):
    """One of the two wire formats, for replies."""

    def answer(self, request: HttpRequest, action: str, reply: sqs.SqsReply | None) -> None: ...
    def fail(self, request: HttpRequest, error: SqsError) -> None: ...


class RequestIds:
    """Ids in the form of a UUID, made from a counter."""

    def __init__(self) -> None:
        node = os.urandom(8).hex()
        self.prefix = f"{node[:8]}-{node[8:12]}-4{node[12:15]}-8{node[:3]}-".encode()
        self.numbers = count(1)

    def next(self) -> bytes:
        return b"%b%012x" % (self.prefix, next(self.numbers))


class JsonFormat:
    def __init__(self, ids: RequestIds, traffic: ProtocolTraffic) -> None:
        self._ids = ids
        self._traffic = traffic

    def answer(self, request: HttpRequest, action: str, reply: sqs.SqsReply | None) -> None:
        self.send(request, b"{}" if reply is None else aws_json.encode(reply))

    def send(self, request: HttpRequest, body: bytes) -> None:
        ids = self._ids
        line = b"x-amzn-RequestId: %b%012x\r\n" % (ids.prefix, next(ids.numbers))
        request.answer(200, body, JSON_TYPE, line)

    def fail(self, request: HttpRequest, error: SqsError) -> None:
        self._traffic.refuse(error.code)
        headers = b"x-amzn-RequestId: %b\r\n%b" % (self._ids.next(), aws_json.error_headers(error))
        request.answer(error.status, aws_json.encode_error(error), JSON_TYPE, headers)


class QueryFormat:
    """XML, or JSON if `Accept` asks for it, as AWS does for API Gateway and other programs."""

    def __init__(self, ids: RequestIds, traffic: ProtocolTraffic) -> None:
        self._ids = ids
        self._traffic = traffic

    def answer(self, request: HttpRequest, action: str, reply: sqs.SqsReply | None) -> None:
        id = self._ids.next()
        is_json = _wants_json(request)
        encode = aws_query.encode_json if is_json else aws_query.encode
        body = encode(action, reply, id.decode())
        content_type = aws_query.JSON_TYPE if is_json else XML_TYPE
        request.answer(200, body, content_type, b"x-amzn-RequestId: %b\r\n" % id)

    def fail(self, request: HttpRequest, error: SqsError) -> None:
        self._traffic.refuse(error.code)
        id = self._ids.next()
        is_json = _wants_json(request)
        encode = aws_query.encode_json_error if is_json else aws_query.encode_error
        body = encode(error, id.decode())
        content_type = aws_query.JSON_TYPE if is_json else XML_TYPE
        request.answer(error.status, body, content_type, b"x-amzn-RequestId: %b\r\n" % id)


def _wants_json(request: HttpRequest) -> bool:
    return b"application/json" in request.fields.get(b"accept", b"")


AUDITED_ACTIONS = frozenset(
    [
        *("CreateQueue", "DeleteQueue", "SetQueueAttributes", "PurgeQueue", "TagQueue", "UntagQueue"),
        *("AddPermission", "RemovePermission", "StartMessageMoveTask", "CancelMessageMoveTask"),
    ]
)


class SqsHandler:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._broker = context.broker
        self._guard = context.guard
        self.resolver = QueueResolver(context)
        self._region_of = self.resolver.regions.of_request
        self._ids = ids = RequestIds()
        self._json = JsonFormat(ids, context.traffic.sqs)
        self._query = QueryFormat(ids, context.traffic.sqs)
        self._attempts = messages.ReceiveAttempts()
        self._actions: dict[str, Action] = {
            "SendMessage": messages.send_message,
            "SendMessageBatch": messages.send_message_batch,
            "ReceiveMessage": self._receive,
            "DeleteMessage": messages.delete_message,
            "DeleteMessageBatch": messages.delete_message_batch,
            "ChangeMessageVisibility": messages.change_message_visibility,
            "ChangeMessageVisibilityBatch": messages.change_message_visibility_batch,
        }
        for name, act in QUEUE_ACTIONS.items():
            self._actions[name] = _answering(act)
        self._callers: dict[tuple[bytes, bytes | None], tuple[Principal, str | None]] = {}
        self._open_principals = {DEFAULT_ACCOUNT: _root_of(DEFAULT_ACCOUNT)}
        self.fast_path = FastPath(context, self._json, partial(self.handle, is_fast=False)).actions
        self._plain_queue = self.resolver.plain_queue
        # By X-Amz-Target: the action, its decoder, and whether its requests have a QueueUrl.
        self._targets = {
            _PREFIX + name.encode(): (
                name,
                decoder.decode,
                "queue_url" in sqs.REQUESTS[name].__struct_fields__,
            )
            for name, decoder in aws_json.DECODERS.items()
            if name in self._actions
        }

    # -- the two formats

    def handle(self, request: HttpRequest, is_fast: bool = True) -> None:
        target = request.fields.get(b"x-amz-target")
        wire: WireFormat = self._query if target is None else self._json
        try:
            if target is not None:
                self._handle_json(request, target, is_fast)
            else:
                self._handle_query(request)
        except SqsError as error:
            wire.fail(request, error)
        except OpenQError as error:
            wire.fail(request, errors.from_openq(error))
        except Exception:
            # Not the query: it may hold a signature.
            log.exception("an SQS request failed: %r", (target or request.path.encode("latin-1"))[:200])
            wire.fail(request, errors.internal_error())

    def _handle_json(self, request: HttpRequest, target: bytes, is_fast: bool) -> None:
        known = self._targets.get(target)
        if known is None:
            raise errors.unknown_operation(target.removeprefix(_PREFIX).decode("latin-1")[:100])
        name, decode, has_url = known
        principal, region = self._caller(request)
        request.user = principal.user
        try:
            wanted: Any = decode(request.body or b"{}")
        except aws_json.DECODE_ERRORS as error:
            raise aws_json.failure(name, error) from None
        queue = self._plain_queue(wanted.queue_url, principal, region, name) if has_url else None
        if queue is not None and is_fast:
            fast = self.fast_path.get(name)
            sender = None if principal.is_root else principal.user
            if fast is not None and fast(request, queue, wanted, sender):
                return
        self._act(request, self._json, name, wanted, principal, region, queue)

    def _handle_query(self, request: HttpRequest) -> None:
        if request.method == "GET" and "Action=" not in request.query:
            # Always XML, whatever `Accept` says, as AWS does.
            request.answer(404, b"<UnknownOperationException/>\n", XML_TYPE)
            return
        principal = self.principal(request)
        request.user = principal.user
        if sts.is_caller_identity_request(request.query, request.body) and not principal.is_anonymous:
            id = self._ids.next()
            body = sts.caller_identity(principal, principal.account, id.decode())
            request.answer(200, body, XML_TYPE, b"x-amzn-RequestId: %b\r\n" % id)
            return
        # Decoding a form takes time: the limit is the largest batch with each byte as `%41`.
        limit = 4 * server_limits(self._context.config).max_batch_bytes
        if len(request.body) > limit or (principal.is_anonymous and len(request.body) > MAX_ANONYMOUS_BYTES):
            raise errors.malformed_query_string(f"The form is too long: {len(request.body)} bytes.")
        name, wanted = aws_query.decode(request.query, request.body, request.path)
        if isinstance(wanted, sqs.ReceiveMessage) and wanted.attribute_names:
            # Of the two names of one parameter AWS takes the older one here, and both in JSON.
            wanted.message_system_attribute_names = None
        self._act(request, self._query, name, wanted, principal, self._region_of(request))

    # -- authentication and authorisation

    def _caller(self, request: HttpRequest) -> tuple[Principal, str | None]:
        """The caller and the region. Without users both follow from two headers that a client repeats, so
        they are cached."""
        if not self._guard.is_open or request.target != b"/":
            return self.principal(request), self._region_of(request)
        fields = request.fields
        key = (credential_of(fields.get(b"authorization", b"")), fields.get(b"host"))
        caller = self._callers.get(key)
        if caller is None:
            caller = self.principal(request), self._region_of(request)
            if len(key[0]) + len(key[1] or b"") <= _MAX_CALLER_BYTES:
                if len(self._callers) >= _MAX_CALLERS:
                    self._callers.clear()
                self._callers[key] = caller
        return caller

    def principal(self, request: HttpRequest) -> Principal:
        guard = self._guard
        if guard.is_open:
            signed = request.fields.get(b"authorization", b"")
            # Without users signatures are not checked. An access key that is an account number selects the
            # account, so that tests of several accounts need no set-up.
            key = signed[28:40]
            if signed[40:41] == b"/" and key.isdigit() and signed.startswith(_CREDENTIAL):
                return self._open_principal(key.decode())
            return self._open_principals[DEFAULT_ACCOUNT]
        try:
            headers = request.headers if request.repeated else request.fields
            return guard.sigv4(request.method, request.target, headers, request.body, request.peer)
        except InvalidSignature as refused:
            if refused.code == "MissingAuthenticationToken":
                return ANONYMOUS  # a queue policy may allow anonymous access
            raise errors.from_sign_in(refused.code, refused.message) from None
        except TooManyFailedLogins as refused:
            raise errors.request_throttled(str(refused)) from None
        except AuthenticationFailed as refused:
            raise errors.access_denied(str(refused)) from None

    def _open_principal(self, shown: str) -> Principal:
        found = self._open_principals.get(shown)
        if found is None:
            if len(self._open_principals) > 10_000:
                return _root_of(shown)
            found = self._open_principals[shown] = _root_of(shown)
        return found

    def _act(
        self,
        request: HttpRequest,
        wire: WireFormat,
        name: str,
        wanted: Any,
        principal: Principal,
        region: str | None,
        queue: SqsQueue | None = None,
    ) -> None:
        """`queue`: already found, and the caller's own."""
        call = SqsCall(self._context, self.resolver, request, principal, region)
        if name in AUDITED_ACTIONS:
            self._audit(call, name, wanted)
        if queue is not None:
            call.queue = queue
        else:
            self._authorize(call, name, wanted)

        def answer(reply: sqs.SqsReply | SqsError | None) -> None:
            if isinstance(reply, SqsError):
                wire.fail(request, reply)
            elif name == "ReceiveMessage":
                # Not after the commit: a lease that is lost in a crash only means a redelivery.
                wire.answer(request, name, reply)
            else:
                self._context.after_commit(lambda error: committed(error, reply))

        def committed(error: OpenQError | None, reply: sqs.SqsReply | None) -> None:
            if error is not None:
                request.run_guarded(wire.fail, request, errors.from_openq(error))
            else:
                request.run_guarded(wire.answer, request, name, reply)

        self._actions[name](call, wanted, answer)

    def _audit(self, call: SqsCall, name: str, wanted: Any) -> None:
        names = ("queue_url", "queue_name", "source_arn")
        url = next((value for name in names if (value := getattr(wanted, name, None))), "")
        target = str(url).rpartition("/")[2].rpartition(":")[2]
        user = "" if call.principal.is_anonymous else call.principal.user
        detail = self._context.audit.watch(call.http, "sqs", name, target, user)
        detail.update(shown_detail(wanted))
        detail.pop("queue_url", None)
        if call.namespace != DEFAULT_ACCOUNT:
            detail["account"] = call.namespace

    def _authorize(self, call: SqsCall, name: str, wanted: Any) -> None:
        url: str | None = getattr(wanted, "queue_url", None)
        if url is not None:
            call.queue = self._find(call, name, call.key_of_url(url))
            if call.queue.account == call.account:
                self.resolver.keep(url, call.region_key, call.queue)
            return
        arn: str | None = getattr(wanted, "source_arn", None)
        queue: str | None = getattr(wanted, "queue_name", None)
        queue_key = None if arn is None else self.resolver.key_of_arn(arn)
        if name == "GetQueueUrl" and wanted.queue_owner_aws_account_id:
            queue_key = call.queue_key(queue or "", wanted.queue_owner_aws_account_id)
        if queue_key is not None:
            self._find(call, name, queue_key)
        elif not self._guard.may(call.principal, SQS_ACTIONS[name], call.namespace, queue):
            raise errors.access_denied(self._denied_text(call, name, queue))

    def queue_or_denied(self, call: SqsCall, name: str, queue_key: str) -> SqsQueue:
        """Find a queue. Without permission the reply does not reveal whether it exists."""
        try:
            return self.resolver.find(queue_key)
        except SqsError:
            account, queue = self.resolver.split(queue_key)
            if not self._guard.may(call.principal, SQS_ACTIONS[name], account, queue):
                raise errors.access_denied(self._denied_text(call, name, queue)) from None
            if name in MOVE_TASKS:
                raise errors.resource_not_found(
                    "The resource that you specified for the SourceArn parameter doesn't exist."
                ) from None
            raise

    def allow(self, call: SqsCall, name: str, queue: SqsQueue) -> None:
        principal = call.principal
        if principal.is_root and principal.account == queue.account and queue.policy is None:
            return
        allowed = self._guard.may(
            principal,
            SQS_ACTIONS[name],
            queue.namespace,
            queue.name,
            policy=queue.policy,
            sqs_action=name,
            resource_arn=queue.arn,
            condition_keys=call.condition_keys(queue) if queue.policy is not None else None,
        )
        if not allowed:
            raise errors.access_denied(self._denied_text(call, name, queue.name))

    def _denied_text(self, call: SqsCall, name: str, queue: str | None) -> str:
        if call.principal.is_anonymous:
            self._guard.refused.refuse("sqs", "", call.http.peer, NO_CREDENTIALS)
            raise errors.missing_authentication_token()
        action = f"sqs:{name.removesuffix('Batch').lower()}"
        arn = f"arn:aws:sqs:{call.region}:{call.account}:{queue or '*'}"
        return (
            f"User: {call.principal.arn} is not authorized to perform: "
            f"{action} on resource: {arn} because no policy allows the {action} action"
        )

    # -- messages

    def _receive(self, call: SqsCall, wanted: sqs.ReceiveMessage, answer: messages.ReplyCallback) -> None:
        messages.receive_message(call, wanted, self._attempts, answer)

    # -- looking without receiving

    def peek(self, request: HttpRequest) -> None:
        """All messages of a queue, with no effect on them."""
        wire: WireFormat = self._query if request.header(b"x-amz-target") is None else self._json
        id = self._ids.next()
        content_type = JSON_TYPE if wire is self._json else XML_TYPE
        if wire is self._query and b"json" in (request.header(b"accept") or b""):
            content_type = b"application/json"

        def encode(reply: sqs.ReceiveMessageReply) -> bytes:
            if content_type == JSON_TYPE:
                return aws_json.encode(reply)
            if content_type == XML_TYPE:
                return aws_query.encode("ReceiveMessage", reply, id.decode())
            return as_plain_json(reply, id.decode())

        def then(reply: bytes | SqsError) -> None:
            if isinstance(reply, SqsError):
                wire.fail(request, reply)
            else:
                request.answer(200, reply, content_type, b"x-amzn-RequestId: %b\r\n" % id)

        try:
            principal = self.principal(request)
            call = SqsCall(self._context, self.resolver, request, principal, self._region_of(request))
            peek_messages(call, self._find, encode, then)
        except SqsError as error:
            wire.fail(request, error)
        except OpenQError as error:
            wire.fail(request, errors.from_openq(error))

    def _find(self, call: SqsCall, name: str, queue_key: str) -> SqsQueue:
        queue = self.queue_or_denied(call, name, queue_key)
        self.allow(call, name, queue)
        return queue


def _root_of(account: str) -> Principal:
    """The caller of a server without users. Queues of other accounts need a policy."""
    return Principal(account, "root", True, ROLES["manager"])


def _answering(act: Callable[[SqsCall, Any], sqs.SqsReply | None]) -> Action:
    def run(call: SqsCall, wanted: Any, answer: messages.ReplyCallback) -> None:
        answer(act(call, wanted))

    return run
