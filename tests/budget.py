"""How many examples a property is tried with: a few in `make test`, many in `make fuzz`."""

from __future__ import annotations

import os

BUDGET = float(os.environ.get("OPENQ_TEST_BUDGET", "1"))


def examples(count: int) -> int:
    return max(5, round(count * BUDGET))
