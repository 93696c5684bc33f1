"""Convert drafts to the arguments of the functions: a record, and an extra if there is one.

Times stay relative here: Redis's clock makes them absolute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ..engine.publishing import base_options, make_properties
from ..model import Draft
from .records import dump, fields_of, pack_record
from .registry import CachedQueue

_LIGHT = {"t", "R"}  # fields that a plain message may have
_PUBLISHED = ("t", "R", "p", "g", "i", "k", "d", "dr", "er")  # fields that history shows


def published_fields(fields: Mapping[str, object]) -> bytes:
    """The part of an extra that describes how the message was published."""
    return dump({name: fields[name] for name in _PUBLISHED if name in fields})


def own_fields(draft: Draft, now_ms: int) -> dict[str, object]:
    """The fields that the draft itself sets, validated."""
    options = base_options(draft, now_ms)
    options.due_ms = options.expires_ms = 0
    fields = fields_of(options)
    if draft.delay_ms is not None:
        # An explicit delay of 0 counts too: it overrides the delay of the queue.
        fields["dr" if draft.delay_ms else "z"] = draft.delay_ms or 1
    elif draft.due_ms > 0:
        fields["d"] = draft.due_ms
    if draft.ttl_ms is not None:
        fields["er"] = draft.ttl_ms
    return fields


def content_key(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def pack_draft(
    view: CachedQueue, draft: Draft, now_ms: int, own_seq: int, *, again: bool = False
) -> tuple[bytes, bytes]:
    """Record and extra; the extra is empty for a plain message. `own_seq`: see `repeats` in the functions.

    `again` is for replays: the deduplication window knows the message, and must not reject it.
    """
    properties = make_properties(draft)
    fields = own_fields(draft, now_ms)
    if again:
        fields["k"] = False
    elif view.settings.dedup_by_content and "k" not in fields:
        fields["k"] = content_key(draft.body)
    published = published_fields(fields) if fields.keys() & set(_PUBLISHED) else b""
    if not fields.keys() - _LIGHT:
        return pack_record(draft.body, draft.encoding, properties, published, False), b""
    if own_seq:
        fields["is"] = str(own_seq)
    return pack_record(draft.body, draft.encoding, properties, published, True), dump(fields)
