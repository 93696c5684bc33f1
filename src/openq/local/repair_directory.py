"""Repairing a data directory. All losses and findings are entered in its damage register.

So a server that starts on a repaired journal reports what is missing: its health is degraded until an
operator has seen the list and cleared it.
"""

from __future__ import annotations

import logging
import os
import time

from ..broker.damage import BLOCK, FOUND, LOST, RECORD, DamageRegister
from ..broker.state_file import StateFile
from ..journal import losses, repair
from ..journal.disk import DiskIo
from ..journal.inspect import JournalDamage

FILE = "damage.json"


def repair_directory(path: str | os.PathLike[str], io: DiskIo | None = None) -> repair.CheckReport:
    """Like `journal.repair.repair`; raises the same errors."""
    report = repair.repair(path, io=io)
    if report.damages:
        register = DamageRegister(StateFile(report.path, FILE, io))
        now_ms = time.time_ns() // 1_000_000
        logging.getLogger("openq").addFilter(_no_record)  # the command prints its own report
        try:
            for damage in report.damages:
                _register(register, damage, now_ms)
        finally:
            logging.getLogger("openq").removeFilter(_no_record)
        register.save()
    return report


def _register(register: DamageRegister, damage: JournalDamage, now_ms: int) -> None:
    place = {"file": damage.file, "offset": damage.offset}
    about = losses.messages_text(damage.messages, damage.waiting)
    detail = f"{damage.kind}, {about}" if about else damage.kind
    if not losses.is_loss(damage):
        register.report(FOUND, f"{detail}; repaired", now_ms, save=False, **place)  # type: ignore[arg-type]
        return
    count, unit = damage.waiting or damage.messages or 0, RECORD
    if not count:
        count, unit = max(damage.last_block - damage.first_block + 1, 1), BLOCK
        detail = f"{detail}; counted in blocks of one record or more"
    register.report(LOST, detail, now_ms, count=count, unit=unit, save=False, **place)  # type: ignore[arg-type]


def _no_record(record: logging.LogRecord) -> bool:
    return False
