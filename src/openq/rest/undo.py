"""Undo of discard and purge: messages that were kept for it go back to their queue."""

from __future__ import annotations

from collections.abc import Iterable

from ..broker.restoring import draft_of
from ..documents.values import iso
from ..errors import OpenQError
from ..model import Entry
from ..server.undo import KEPT_S, Removal
from .call import RestCall
from .problems import Problem
from .routes import route
from .schemas import ReplyBody

_CHUNK = 500


class Undone(ReplyBody, kw_only=True):
    restored: int
    failed: int  # they are kept, and can be tried again with the same id


def begin(call: RestCall) -> Removal:
    return Removal(call.account, call.args[0])


def load(call: RestCall, removal: Removal, entries: list[Entry]) -> list[Entry]:
    """The entries with their bodies, as far as they can be kept."""
    return call.broker.inspect.with_bodies(entries) if removal.fits(entries) else entries


def add(call: RestCall, removal: Removal, entries: Iterable[Entry]) -> None:
    for entry in entries:
        draft = draft_of(entry, call.broker.inspect.message_id(entry))
        if draft.past is not None:
            draft.past.born_ms = draft.past.born_ms or entry.sent_ms
        removal.add(draft)


def keep(call: RestCall, removal: Removal) -> dict[str, object]:
    """Fields of a reply: how it can be undone, or that it cannot."""
    context = call.context
    if not context.undo.keep(removal):
        return {"undo": None}
    context.loop.call_soon_threadsafe(context.loop.call_later, KEPT_S + 1, context.undo.forget_expired)
    return {"undo": removal.id, "undo_until": iso(context.now_ms() + int(KEPT_S * 1000))}


@route(
    "POST",
    "queues/{queue}/undo/{id}",
    permission="manage",
    sqs_actions=("SendMessage",),
    summary="Bring back what a discard or a purge removed",
    reply=Undone,
)
def undo_removal(call: RestCall) -> None:
    """Messages keep ids, failures and counts. They are behind those that wait now."""
    broker, queue, context = call.broker, call.queue, call.context
    broker.settings(queue)
    removal = context.undo.take(call.args[1], call.account, call.args[0])
    if removal is None or removal.drafts is None:
        raise Problem("undo_not_found", f"there is nothing to undo with the id {call.args[1][:100]!r}")
    drafts = removal.drafts

    def work() -> Undone:
        left, restored = [], 0
        for start in range(0, len(drafts), _CHUNK):
            part = drafts[start : start + _CHUNK]
            for draft, result in zip(part, broker.publish_many(queue, part), strict=True):
                if isinstance(result, OpenQError):
                    left.append(draft)
                else:
                    restored += 1
        removal.drafts, removal.size = left, sum(len(draft.body) for draft in left)
        context.undo.keep(removal)
        return Undone(restored=restored, failed=len(left))

    call.change(work)
