"""Chance that can be repeated: OPENQ_CRASH_SEED sets it, and every failure names it."""

from __future__ import annotations

import os


def chosen_seed() -> int:
    given = os.environ.get("OPENQ_CRASH_SEED")
    return int(given) if given else int.from_bytes(os.urandom(4), "little")


def repeat_with(seed: int) -> str:
    return f"repeat with OPENQ_CRASH_SEED={seed}"
