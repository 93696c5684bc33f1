"""`openq backup` and `openq restore`."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from datetime import UTC, datetime

from .. import backup as backups
from ..backup.encryption import Secret, make_key_file
from ..backup.repository import BackupManifest, Repository, unlocked_by
from ..backup.restore import RestoreReport
from ..config import secret
from ..local.audit_file import FileAudit
from .api import UsageError, ask_password, client_of
from .audit import record
from .output import count_text, duration_text, print_json, print_list
from .terminal import EMPTY, FAILED, OK, ByteProgress, say, size_text

_PASSPHRASE = "OPENQ_BACKUP_PASSPHRASE"


def _key_file(options: Namespace) -> str | None:
    return options.key_file or os.environ.get("OPENQ_BACKUP_KEY_FILE") or None


def _open(options: Namespace, *, create: bool = False) -> Repository:
    """The repository of a command, unlocked by what its header asks for."""
    path, key_file = options.repository, _key_file(options)
    found = unlocked_by(path)
    wanted = found
    if found is None:
        wanted = "key file" if options.key_file else "passphrase" if create and options.encrypt else "nothing"
    elif create and options.encrypt and found == "nothing":
        raise UsageError(f"{path} is not encrypted: begin another repository for encrypted backups")
    unlocking: Secret | None = None
    if wanted == "key file":
        if key_file is None:
            raise UsageError(f"{path} is encrypted by a key file: --key-file, or OPENQ_BACKUP_KEY_FILE")
        unlocking = Secret.from_file(key_file)
    elif wanted == "passphrase":
        text = secret(_PASSPHRASE, os.environ) or ask_password(f"passphrase of {path}: ", twice=found is None)
        unlocking = Secret(passphrase=text)
    return Repository.open(path, unlocking, create=create)


def create(options: Namespace) -> int:
    if options.data is not None and options.url:
        raise UsageError("--data and --url cannot be combined")
    source_of = options.data if options.data is not None else client_of(options)
    repository = _open(options, create=True)
    with backups.open_source(source_of) as source:
        bar = ByteProgress("backup", sum(file.bytes for file in source.point.files))
        try:
            report = backups.create(source, repository, full=options.full, progress=bar.add)
        finally:
            bar.end()
    manifest = report.manifest
    if options.data is not None:
        record(FileAudit(options.data), "backup", manifest.id, {"added_bytes": manifest.added_bytes})
    if options.json:
        print_json({**_fields(manifest), "unchanged_files": report.unchanged_files})
        return OK
    print(f"backup {manifest.id} of {manifest.source}")
    if manifest.queues is not None:
        print(f"{count_text(manifest.messages or 0, 'message')} in {count_text(manifest.queues, 'queue')}")
    print(
        f"{count_text(len(manifest.files), 'file')}, {size_text(manifest.bytes)}; "
        f"{report.unchanged_files} unchanged since the last backup; "
        f"{size_text(manifest.added_bytes)} added in {duration_text(report.seconds)}"
    )
    return OK


def ls(options: Namespace) -> int:
    repository = _open(options)
    found = [repository.manifest(id) for id in repository.ids()]
    print_list(
        options,
        [_fields(each) for each in found],
        {
            "id": "id",
            "time": "time",
            "source": "source",
            "queues": lambda each: "" if each["queues"] is None else each["queues"],
            "messages": lambda each: "" if each["messages"] is None else each["messages"],
            "files": "files",
            "size": lambda each: size_text(each["bytes"]),
            "added": lambda each: size_text(each["added_bytes"]),
        },
        right=("queues", "messages", "files", "size", "added"),
        empty=f"no backups in {options.repository}",
    )
    return OK if found else EMPTY


def verify(options: Namespace) -> int:
    repository = _open(options)
    ids = None if options.backup is None else [options.backup]
    total = 0
    for id in repository.ids() if ids is None else ids:
        try:
            total = max(total, repository.manifest(id).bytes)
        except backups.BackupError:
            continue  # reported below
    bar = ByteProgress("verify", total)
    try:
        report = backups.verify(repository, ids, bar.add)
    finally:
        bar.end()
    if options.json:
        print_json(
            {
                "ok": report.ok,
                "backups": report.backups,
                "pieces": report.pieces,
                "bytes": report.bytes,
                "damages": report.damages,
            }
        )
        return OK if report.ok else FAILED
    for damage in report.damages:
        say(damage)
    state = "all intact" if report.ok else "DAMAGED"
    checked = f"{count_text(report.backups, 'backup')}, {count_text(report.pieces, 'piece')}"
    print(f"{checked}, {size_text(report.bytes)}: {state}")
    return OK if report.ok else FAILED


def prune(options: Namespace) -> int:
    repository = _open(options)
    removed, freed = backups.prune(repository, options.keep)
    if options.json:
        print_json({"removed": removed, "freed_bytes": freed})
        return OK
    for id in removed:
        print(f"removed {id}")
    print(f"{count_text(len(removed), 'backup')} removed, {size_text(freed)} freed")
    return OK


def key(options: Namespace) -> int:
    try:
        make_key_file(options.file)
    except FileExistsError:
        raise UsageError(f"{options.file} exists; a key that is in use must not be overwritten") from None
    if options.json:
        print_json({"file": options.file})
    say(f"{options.file} is written. Keep a copy elsewhere: without it no backup can be restored")
    return OK


def restore(options: Namespace) -> int:
    repository = _open(options)
    manifest = repository.latest() if options.backup is None else repository.manifest(options.backup)
    bar = ByteProgress("restore", manifest.bytes)
    started = time.monotonic()
    try:
        report = backups.restore(
            repository, manifest, options.directory, replace=options.replace, progress=bar.add
        )
    finally:
        bar.end()
    detail = {"files": report.files, "source": manifest.source}
    record(FileAudit(report.path), "restore", manifest.id, detail)
    if options.json:
        print_json(_restored(report))
        return OK
    summary = report.summary
    print(f"backup {manifest.id} of {manifest.source}, {_time(manifest)}, restored to {report.path}")
    print(f"{count_text(summary.messages, 'message')} in {count_text(summary.queues, 'queue')}")
    print(
        f"{count_text(summary.users, 'user')}, {count_text(summary.keys, 'key-value')}, "
        f"{count_text(summary.audit_records, 'audit record')}"
    )
    resumed = f", {report.resumed_files} of them by an earlier run" if report.resumed_files else ""
    took = duration_text(time.monotonic() - started)
    print(f"{count_text(report.files, 'file')}{resumed}, {size_text(report.bytes)}, verified, in {took}")
    if report.replaced is not None:
        print(f"the earlier content is in {report.replaced}; remove it when it is not needed any more")
    return OK


def _time(manifest: BackupManifest) -> str:
    return datetime.fromtimestamp(manifest.time_ms / 1000, UTC).isoformat(timespec="seconds")


def _fields(manifest: BackupManifest) -> dict[str, object]:
    return {
        "id": manifest.id,
        "time": _time(manifest),
        "source": manifest.source,
        "version": manifest.version,
        "queues": manifest.queues,
        "messages": manifest.messages,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "added_bytes": manifest.added_bytes,
    }


def _restored(report: RestoreReport) -> dict[str, object]:
    summary = report.summary
    return {
        "backup": report.manifest.id,
        "directory": report.path,
        "files": report.files,
        "bytes": report.bytes,
        "resumed_files": report.resumed_files,
        "replaced": report.replaced,
        "queues": summary.queues,
        "messages": summary.messages,
        "users": summary.users,
        "keys": summary.keys,
        "audit_records": summary.audit_records,
    }
