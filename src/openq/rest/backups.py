"""Backups of this server, for admins: a consistent point, its files, and their release.

`openq backup` uses these: it begins, reads what its repository does not have yet, and ends. A point that
nobody reads from is released after ten minutes.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .._version import __version__
from ..broker.backups import CHUNK_BYTES, BackupFile, BackupPoint
from .call import RestCall
from .problems import Problem
from .routes import route
from .schemas import QueryParameters, ReplyBody

_OCTETS = b"application/octet-stream"


class BackupFileView(ReplyBody, kw_only=True):
    """Files of the same name, journal and stamp have the same content; an empty stamp claims nothing."""

    name: str
    bytes: int
    stamp: str
    stable: bool


class BackupView(ReplyBody, kw_only=True):
    id: str
    journal_id: str
    location: int
    time_ms: int
    version: str
    chunk_bytes: int
    queues: int | None
    messages: int | None
    files: list[BackupFileView]


class DigestsView(ReplyBody, kw_only=True):
    """SHA-256 of each piece of `chunk_bytes`."""

    digests: list[str]


class EndedView(ReplyBody, kw_only=True):
    id: str


class PieceQuery(QueryParameters):
    offset: Annotated[int, Meta(ge=0)] = 0
    bytes: Annotated[int, Meta(ge=0, le=CHUNK_BYTES)] = CHUNK_BYTES


class EndQuery(QueryParameters):
    outcome: Annotated[str, Meta(max_length=20, description="done, or failed; for the audit log")] = "done"
    copied: Annotated[int, Meta(ge=0, description="bytes that were new; for the audit log")] = 0


@route(
    "POST",
    "backups",
    permission="admin",
    scope="server",
    summary="Begin a backup: a consistent point",
    reply=BackupView,
    status=(201,),
)
def begin_backup(call: RestCall) -> None:
    """Everything that was acknowledged before this request is in it. Read its files, then DELETE it."""
    backups = call.broker.admin.backups

    def then(point: BackupPoint) -> None:
        if call.audit_detail is not None:
            call.audit_detail.update(backup=point.id, location=point.location)
        call.answer(_view(point), 201)

    call.work(backups.begin, then)


@route(
    "GET",
    "backups/{id}/files/{index}",
    permission="admin",
    scope="server",
    summary="Bytes of a file of a backup",
    query=PieceQuery,
    media=("application/octet-stream",),
)
def read_backup_file(call: RestCall) -> None:
    index, query = _index(call), call.query
    backups, id = call.broker.admin.backups, call.args[0]

    def work() -> bytes:
        held = backups.files(id)
        _file(held.point, index)
        return held.read(index, query.offset, query.bytes)

    call.work(work, lambda data: call.request.answer(200, data, _OCTETS))


@route(
    "GET",
    "backups/{id}/files/{index}/digests",
    permission="admin",
    scope="server",
    summary="Digests of the pieces of a file",
    reply=DigestsView,
)
def digest_backup_file(call: RestCall) -> None:
    index = _index(call)
    backups, id = call.broker.admin.backups, call.args[0]

    def work() -> DigestsView:
        held = backups.files(id)
        _file(held.point, index)
        return DigestsView(digests=list(held.digests(index)))

    call.seek(work)


@route(
    "DELETE",
    "backups/{id}",
    permission="admin",
    scope="server",
    summary="End a backup: its files are released",
    query=EndQuery,
    reply=EndedView,
)
def end_backup(call: RestCall) -> None:
    backups, id = call.broker.admin.backups, call.args[0]
    if call.audit_detail is not None:
        call.audit_detail.update(outcome=call.query.outcome, copied=call.query.copied)
    call.work(lambda: backups.end(id), lambda _: call.answer(EndedView(id=id)))


def _index(call: RestCall) -> int:
    text = call.args[1]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Problem("invalid", "the index of a file is a number")
    return int(text)


def _file(point: BackupPoint, index: int) -> BackupFile:
    if index >= len(point.files):
        raise Problem("invalid", f"the backup has {len(point.files)} files, and the first one is 0")
    return point.files[index]


def _view(point: BackupPoint) -> BackupView:
    return BackupView(
        id=point.id,
        journal_id=point.journal_id,
        location=point.location,
        time_ms=point.time_ms,
        version=__version__,
        chunk_bytes=CHUNK_BYTES,
        queues=point.queues,
        messages=point.messages,
        files=[
            BackupFileView(name=each.name, bytes=each.bytes, stamp=each.stamp, stable=each.stable)
            for each in point.files
        ],
    )
