"""The base classes and types of requests and replies: for decoding, validation, encoding and /openapi.json.

Names and units are those of the library: durations in seconds, times as ISO-8601 in UTC. A request with an
unknown field is rejected, so that misspelt fields are noticed.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MAX_BATCH = 1_000

Seconds = Annotated[float, Meta(ge=0, le=253_402_300_799)]
Count = Annotated[int, Meta(ge=1, le=(1 << 60))]
Size = Annotated[int, Meta(ge=0, le=(1 << 60))]
Limit = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Word = Annotated[str, Meta(min_length=1, max_length=1024)]
Moment = Annotated[str, Meta(description="ISO-8601, such as 2023-04-03T10:30:00Z")]


class RequestBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request."""


class ReplyBody(Struct, kw_only=True):
    """The body of a reply. Unset fields are left out."""
