"""What the storage tests share: small journals and the records in them."""

from __future__ import annotations

import os
from typing import Any

from openq.journal.file_journal import Journal
from openq.journal.format import FRAME, ITEM

SALT = 0x1234_5678_9ABC_DEF0


def no_rows(record: bytes, offset: int) -> bytes:
    """These tests store plain bytes, which the engine's own index function would not understand."""
    return b""


def small(path: str | os.PathLike[str], **options: Any) -> Journal:
    """A journal with small files. Give `rows_of` to index something."""
    settings: dict[str, Any] = {
        "segment_bytes": 4096,
        "first_segment_bytes": 1024,
        "reserve_bytes": 2048,
        "salt": SALT,
        "rows_of": no_rows,
    }
    return Journal(path, **{**settings, **options})


def put(journal: Journal, *records: bytes, wait: bool = True) -> list[int]:
    """Append the records together and, normally, wait for them."""
    with journal.lock:
        locations = [journal.append(record) for record in records]
    if wait:
        journal.wait(locations[-1])
    return locations


def contents(path: str | os.PathLike[str], **options: Any) -> list[bytes]:
    """Open, read everything, close."""
    journal = small(path, **options)
    try:
        return [record for _, record in journal.replay()]
    finally:
        journal.close()


def records(count: int, size: int = 60) -> list[bytes]:
    return [f"{n:06d}".encode().ljust(size, b".") for n in range(count)]


def segment_file(path: str | os.PathLike[str], number: int) -> str:
    return os.path.join(path, "journal", f"{number:016x}.seg")


def batch(*items: bytes, head: bytes = b"head") -> tuple[bytes, list[int]]:
    """A record with items inside, and each item's distance from the record's own frame."""
    record = bytearray(head)
    distances = []
    for item in items:
        distance = FRAME.size + len(record)
        distances.append(distance)
        record += FRAME.pack(len(item), ITEM | distance)
        record += item
    return bytes(record), distances
