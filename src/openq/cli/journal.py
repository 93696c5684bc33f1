"""`openq journal check`, `repair` and `dump`: the doctor of the storage layer, for people and scripts."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict
from itertools import islice
from typing import Any

from ..journal import losses, repair
from ..journal.disk import DiskIo
from ..journal.inspect import JournalDamage
from ..journal.scan import SUFFIX
from ..local import repair_directory
from .record_json import RecordDescriber
from .terminal import FAILED, NOT_FOUND, OK, USAGE, ByteProgress, say, size_text, styled


class ProgressIo(DiskIo):
    """The real disk, telling how much was read."""

    def __init__(self, progress: ByteProgress) -> None:
        self._progress = progress

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        self._progress.add(len(data))
        return data


class _LogLines(logging.Handler):
    """What the storage layer logs, as lines of ours; `count` says whether there was anything."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        say(record.getMessage())


def missing_reason(directory: str) -> str | None:
    """Why there is no journal to look at, in one line; None if there is one."""
    folder = os.path.join(directory, "journal")
    if not os.path.exists(directory):
        return f"{directory}: no such directory"
    if not os.path.isdir(directory):
        return f"{directory}: not a directory; give the data directory that contains `journal`"
    if not os.path.isdir(folder):
        inside = any(name.endswith(SUFFIX) for name in os.listdir(directory))
        parent = os.path.dirname(os.path.abspath(directory))
        hint = f"; did you mean {parent}?" if inside else ", it contains no folder `journal`"
        return f"{directory}: not a data directory of OpenQ{hint}"
    names = os.listdir(folder)
    if not any(name.endswith(SUFFIX) for name in names):
        return f"{folder}: there are no segment files (*{SUFFIX})" + (
            ", and other files show that there were: restore them from a backup" if names else ""
        )
    return None


def _check_with_progress(directory: str, what: str) -> repair.CheckReport:
    folder = os.path.join(directory, "journal")
    total = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(SUFFIX))
    progress = ByteProgress(what, total)
    try:
        return repair.check(directory, ProgressIo(progress))
    finally:
        progress.end()


# -- check --------------------------------------------------------------------------------------


def check_journal(directory: str, *, as_json: bool) -> int:
    if (reason := missing_reason(directory)) is not None:
        say(reason)
        return NOT_FOUND
    report = _check_with_progress(directory, "checking")
    if as_json:
        print(json.dumps(as_dict(report)))
    else:
        print_summary(report)
        if not report.ok:
            say("`openq journal repair` saves every intact record; make a copy of the directory first")
    return OK if report.ok else FAILED


def as_dict(report: repair.CheckReport) -> dict[str, Any]:
    return {"ok": report.ok, **asdict(report)}


def print_summary(report: repair.CheckReport) -> None:
    verdict = styled("ok", "green") if report.ok else styled("damaged", "red")
    print(
        f"{report.path}: {verdict}, {_count(report.records, 'intact record')} in "
        f"{_count(report.segments, 'segment')}, {size_text(report.bytes)}"
    )
    for damage in report.damages:
        print(f"  {styled('damage', 'red')}: {damage_text(damage)}")
    torn = report.torn
    # A snapshot may prove that the end was written in full once: then it is listed above as damage.
    if torn is not None and not any(torn.offset == damage.offset for damage in report.damages):
        print(
            f"  torn tail: {torn.file} at offset {torn.offset}, {size_text(torn.size)}; "
            "never acknowledged, opening cuts it"
        )
    if report.holes:
        print(f"  {_count(report.holes, 'hole')} left by earlier repairs")
    for path in report.missing_sidecars:
        print(f"  no usable index: {path}; opening makes it anew")


def damage_text(damage: JournalDamage) -> str:
    lost = damage.last_block - damage.first_block + 1
    size = f", {size_text(damage.size)}" if damage.size else ""
    blocks = ""
    if lost == 1:
        blocks = f", block {damage.first_block} is lost"
    elif lost > 1:
        blocks = f", blocks {damage.first_block} to {damage.last_block} are lost"
    if damage.target:
        return f"{damage.file}: {damage.kind}, it is {os.path.basename(damage.target)}"
    about = losses.messages_text(damage.messages, damage.waiting)
    return f"{damage.file} at offset {damage.offset}: {damage.kind}{size}{blocks}" + (about and f", {about}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# -- repair -------------------------------------------------------------------------------------


def repair_journal(directory: str, dry_run: bool, yes: bool, *, as_json: bool) -> int:
    if (reason := missing_reason(directory)) is not None:
        say(reason)
        return NOT_FOUND
    report = _check_with_progress(directory, "checking")
    if dry_run or (report.ok and not report.missing_sidecars):
        if as_json:
            print(json.dumps(as_dict(report)))
        else:
            print_summary(report)
            print("dry run: nothing was changed" if dry_run else "nothing to repair")
        return OK if report.ok else FAILED
    if not yes and not _confirm(report):
        say("nothing was changed")
        return USAGE
    progress = ByteProgress("repairing", 3 * report.bytes)  # looked at before, while and after
    try:
        report = repair_directory.repair_directory(directory, io=ProgressIo(progress))
    finally:
        progress.end()
    orphans = _orphans(directory) if report.damages else 0
    if as_json:
        print(json.dumps({**as_dict(report), "orphans": orphans}))
    else:
        print_outcome(report)
    if orphans:
        say(
            f"{_count(orphans, 'intact record')} cannot be reached: what named their queues is lost. "
            "`openq journal dump --bodies` shows them; restore a backup, or publish them again"
        )
        return FAILED
    return OK


def _confirm(report: repair.CheckReport) -> bool:
    """Ask on stderr, so that stdout stays data."""
    for damage in report.damages:
        say(damage_text(damage))
    what = _count(len(report.damages), "damaged place") if report.damages else "the index files"
    sys.stderr.write(
        f"Repair {what}, keeping {_count(report.records, 'intact record')}? "
        "What is unreadable goes to quarantine/. [y/N] "
    )
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        say("no answer; give --yes to repair without being asked")
    return answer.strip().lower() in ("y", "yes")


def print_outcome(report: repair.CheckReport) -> None:
    print(f"{report.path}: {styled('repaired', 'green')}, kept {_count(report.records, 'intact record')}")
    for damage in report.damages:
        print(
            f"  could not be saved: {damage_text(damage)}"
            if losses.is_loss(damage)
            else f"  mended: {damage_text(damage)}"
        )
    for path in report.quarantined:
        what = (
            "a snapshot that may point at them was moved to" if path.endswith(".snap") else "the bytes are in"
        )
        print(f"  {what} {path}")
    if report.missing_sidecars:
        print(f"  made {_count(len(report.missing_sidecars), 'index file')} anew")


def _orphans(directory: str) -> int:
    """Intact records that no queue will offer, because what said that there is such a queue was damaged."""
    describer = RecordDescriber()
    return sum(describer.is_orphan(data) for _, data in repair.dump(directory))


# -- dump ---------------------------------------------------------------------------------------


def dump_journal(directory: str, start_location: int, limit: int | None, bodies: bool) -> int:
    if (reason := missing_reason(directory)) is not None:
        say(reason)
        return NOT_FOUND
    messages = _LogLines(logging.WARNING)
    log = logging.getLogger("openq.journal")
    log.addHandler(messages)
    log.propagate = False
    describer = RecordDescriber(bodies)
    write = sys.stdout.write
    encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode
    unreadable = 0

    def wanted() -> Any:
        # From the very beginning, whatever is asked for: the names of the queues are there.
        for location, data in repair.dump(directory):
            if location >= start_location:
                yield location, data
            else:
                describer.read_names(data)

    try:
        for location, data in islice(wanted(), limit):
            line = describer.describe(location, data)
            unreadable += line["kind"] == "unreadable"
            write(encode(line) + "\n")
    finally:
        log.removeHandler(messages)
        log.propagate = True
    return FAILED if messages.count or unreadable else OK
