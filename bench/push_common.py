"""What the benches of push share."""

from __future__ import annotations

BENCH = "push"
