"""The reference of the server's rows: an RSGI application for granian that does nothing at all."""

from __future__ import annotations

from typing import Any


async def app(scope: Any, proto: Any) -> None:
    proto.response_empty(200, [])
