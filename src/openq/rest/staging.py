"""Staged batches, which a job uploads in parts and publishes atomically: upload, commit, abort.

A part is packed rows (`openq.packed`). Requests may be repeated: a part replaces the one of its name, and
a batch is published once however often it is committed. The work runs in threads: parts are large.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..auth.rules import Rule
from ..broker.staged_batches import Committed, StagedBatch, StagingJob
from ..documents.values import iso
from ..names import DEFAULT_ACCOUNT, owner_of, split_name
from .call import RestCall
from .history_schemas import BatchCommitted, Stage, StageAborted, StageCommit, StageList, StagePart
from .problems import Problem
from .routes import route

_SEND_ACTIONS = ("SendMessage",)
_MAX_DIGITS = 16


@route(
    "PUT",
    "pipeline/stages/{job}/{batch}/parts/{part}",
    permission="send",
    scope="body",
    sqs_actions=("SendMessage",),
    summary="Upload a part of a batch, as packed rows",
    reply=StagePart,
    takes=("application/x-openq-rows",),
)
def put_part(call: RestCall) -> None:
    """The part is on disk when the request is answered; it takes effect once a commit names it."""
    job, batch, part = _job(call), _batch(call), call.args[2]
    staging, data = call.broker.staging, call.request.body
    call.answer_with(lambda: StagePart(rows=staging.put(job, batch, part, bytes(data)), bytes=len(data)))


@route(
    "POST",
    "pipeline/stages/{job}/{batch}/commit",
    permission="send",
    scope="body",
    sqs_actions=("SendMessage",),
    summary="Commit a batch, once",
    request=StageCommit,
    reply=BatchCommitted,
)
def commit_batch(call: RestCall) -> None:
    """Publish all rows of the named parts in this order, or none. A second commit changes nothing."""
    job, batch, body = _job(call), _batch(call), call.body
    if (body.dlq is not None) != (body.on_error == "dlq"):
        raise Problem("invalid", "on_error dlq needs a queue as dlq, and a dlq needs on_error dlq")

    def may_send(queue_key: str) -> None:
        call.require("send", split_name(queue_key)[1], _SEND_ACTIONS)

    def work() -> BatchCommitted:
        done: Committed = call.broker.staging.commit(
            *(job, batch, body.parts, body.rows),
            queue=body.queue,
            dead_letter=body.dlq,
            may_send=may_send,
        )
        return BatchCommitted(published=done.published, rejected=done.rejected, repeated=done.repeated)

    call.commit(job.key, work)


@route(
    "DELETE",
    "pipeline/stages/{job}/{batch}",
    permission="send",
    scope="body",
    sqs_actions=("SendMessage",),
    summary="Abort a batch",
    reply=StageAborted,
)
def abort_batch(call: RestCall) -> None:
    """Drop the parts. A committed batch stays committed, and the reply says so."""
    job, batch = _job(call), _batch(call)
    call.commit(job.key, lambda: StageAborted(committed=not call.broker.staging.abort(job, batch)))


@route(
    "GET",
    "pipeline/stages",
    permission="send",
    scope="each",
    sqs_actions=("SendMessage",),
    summary="List staged batches",
    reply=StageList,
)
def list_stages(call: RestCall) -> None:
    owner, is_admin = _owner(call), _is_admin(call)

    def is_shown(stage: StagedBatch) -> bool:
        job = stage.job
        return job.account == call.account and (is_admin or not job.owner or job.owner == owner)

    stages = call.broker.staging.stages() if _may_send_anywhere(call) else []
    call.answer(
        StageList(
            stages=[
                Stage(
                    job=each.job.name,
                    batch=each.batch,
                    parts=each.parts,
                    bytes=each.bytes,
                    updated=iso(each.touched_ms),
                    committed=each.is_committed,
                )
                for each in stages
                if is_shown(each)
            ]
        )
    )


# -- permissions ------------------------------------------------------------------------


def _job(call: RestCall) -> StagingJob:
    """The queues are known and authorised at the commit; staging needs the permission to send somewhere."""
    if not _may_send_anywhere(call):
        raise Problem("forbidden", f"{call.principal.user} may not send to any queue here")
    return StagingJob(call.args[0], call.account, _owner(call), _is_admin(call))


def _owner(call: RestCall) -> str:
    """The owner of a job. A limited token is not the same owner as its user: its rows could be committed to
    queues that the token may not send to."""
    if call.context.guard.is_open:
        return ""
    principal = call.principal
    return principal.user if principal.scope is None else f"{principal.user}/{principal.token}"


def _is_admin(call: RestCall) -> bool:
    return call.context.guard.may(call.principal, "admin", DEFAULT_ACCOUNT, None)


def _may_send_anywhere(call: RestCall) -> bool:
    principal = call.principal
    scope = principal.scope
    return _allow_sending(principal.rules, call.account, principal.account) and (
        scope is None or _allow_sending(scope, call.account, principal.account)
    )


def _allow_sending(rules: Sequence[Rule], account: str, own_account: str) -> bool:
    meant = ("*", account, owner_of(account))
    return any(
        rule.effect == "allow" and "send" in rule.actions and (rule.account or own_account) in meant
        for rule in rules
    )


def _batch(call: RestCall) -> int:
    text = call.args[1]
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise Problem("invalid", f"a batch is a number, not {text[:40]!r}")
    return int(text)
